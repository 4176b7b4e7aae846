"""Cross-encoders of sentence-transformers or behind an endpoint: their settings, and how one is loaded."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from kohaku_ray.documents.lean_imports import for_encoding_alone
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import model_directory
from kohaku_ray.models.backend import BackendConfig
from kohaku_ray.records import canonical_json
from kohaku_ray.settings import ModelPath, PositiveInt, ServerSettings

if TYPE_CHECKING:
    from kohaku_ray.models.openai import Limiter

RERANKER_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>{{ '\\n\\n' }}"  # Jinja drops a newline at the end
)
"""Prompt of Qwen3-Reranker (arXiv 2506.05176), as its model card writes it."""


class CrossEncoderConfig(ServerSettings, BackendConfig):
    """A model that scores (query, text) pairs: one of sentence-transformers, or with `base_url` a server's."""

    kind: Literal["cross_encoder"] = "cross_encoder"
    model: ModelPath
    """Name or path of the model, or the server's name of it."""
    base_url: str | None = None
    """URL of a server up to `/rerank` (TEI, vLLM, Jina, Cohere), such as http://127.0.0.1:8000/v1; None: the model is
    loaded here, and the settings of a server have no effect."""
    api_key_env: str | None = None
    """Environment variable that holds the API key; None: no key is sent."""
    revision: str | None = None
    """Revision on the hub; None: the default branch."""
    max_ongoing: PositiveInt = 256
    """Requests in flight per replica."""
    max_tokens: PositiveInt = 512
    """Longest pair, in tokens; longer texts are cut. A server's own limit counts there."""
    batch_pairs: PositiveInt = 64
    """Pairs per forward pass, sorted by length; of a server, texts per request, halved where it takes fewer."""
    precision: Literal["float32", "float16", "bfloat16"] | None = None
    """Number format of the model's weights; None: bfloat16 on a GPU, ten times as fast there as float32; on a CPU as
    they are saved."""
    gpus: Annotated[float, Field(ge=0)] = 0
    """GPUs per replica, such as 0.25; 0: runs on a CPU."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""

    @property
    def model_identity(self) -> str:
        """The model's identity: its name and what changes its scores."""
        if self.base_url is not None:
            return f"rerank:{self.model} {canonical_json([self.identity, self.extra_identity])}"
        # Not what is as saved: the identities of runs stay as they are.
        precision = [] if self.weights_dtype == "auto" else [self.weights_dtype]
        return f"cross_encoder:{self.model} {canonical_json([self.revision, self.max_tokens, *precision])}"

    @property
    def weights_dtype(self) -> str:
        """Number format that the model is loaded in; ``auto``: that of its files."""
        return self.precision or ("bfloat16" if self.gpus else "auto")

    def check(self, here: bool) -> None:
        """Check that the model is here; see ``BackendConfig.check``."""
        if self.application is not None:
            return
        if self.base_url is not None:
            self.load()
        elif here:
            model_directory(self.model, self.revision)

    def load(self, limiter: Limiter | None = None) -> Any:
        """Load the model on its device, or name its server, whose replicas share a rate limit."""
        if self.base_url is not None:
            from kohaku_ray.models.endpoint import Endpoint, EndpointRanker  # every actor imports the settings

            return EndpointRanker(Endpoint(self, self.base_url, self.model, self.max_ongoing, limiter), self.model)
        with for_encoding_alone():
            from sentence_transformers import CrossEncoder

        directory = model_directory(self.model, self.revision)
        with nullcontext() if self.trust_remote_code else for_encoding_alone():
            model = CrossEncoder(
                str(directory),
                max_length=self.max_tokens,
                device="cuda" if self.gpus else "cpu",
                trust_remote_code=self.trust_remote_code,
                model_kwargs={"dtype": self.weights_dtype},
                processor_kwargs=_template_of(directory),
            )
        words = {getattr(model[-1], name, None) for name in ("true_token_id", "false_token_id")} - {None}
        if model.tokenizer.unk_token_id in words:  # all scores would be the same, or noise
            raise ConfigError(f'{self.model} has no token "yes" or "no", by which it would score: name a reranker')
        return model


def _template_of(directory: Path) -> dict[str, Any] | None:
    """Return the prompt of a generative reranker, whose score is that of "yes" over "no", unless it has one itself."""
    file = directory / "config.json"
    names = json.loads(file.read_text(encoding="utf-8")).get("architectures") if file.is_file() else None
    if not names or not names[0].endswith("ForCausalLM"):
        return None
    files = (directory / name for name in ("chat_template.jinja", "tokenizer_config.json", "modules.json"))
    is_told = any(path.is_file() and ("document" in path.read_text(encoding="utf-8")) for path in files)
    return None if is_told else {"chat_template": RERANKER_TEMPLATE}
