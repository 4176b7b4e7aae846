"""Load a sentence-transformers model, and the interface that an encoder needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

from kohaku_ray.documents.lean_imports import without_sklearn
from kohaku_ray.errors import ConfigError
from kohaku_ray.index import exported
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.identity import files_digest, locate_model, model_directory
from kohaku_ray.index.onnx_model import OnnxModel, is_described
from kohaku_ray.index.torch_model import GpuMemory, TorchModel

Backend = Literal["torch", "onnx", "openvino"]
Precision = Literal["float32", "float16", "bfloat16", "int8"]
Device = Literal["auto", "cpu", "cuda"]


class Model(Protocol):
    """A sentence-transformers model in any backend; attributes as in ``TorchModel``."""

    dim: int
    window: int
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    takes_task: bool
    on_cpu: bool
    memory: GpuMemory | None

    def pool(self) -> ThreadPoolExecutor | None:
        """Make threads that run ``embed`` in parallel; None where one thread is enough."""
        ...

    def lengths(self, texts: Sequence[str], *, special: bool) -> list[int]:
        """Count each text's tokens, with or without special ones, however long it is."""
        ...

    def features(self, texts: Sequence[str], prompt: str | None, pad_to: int, **task: Any) -> dict[str, Any]:
        """Tokenise texts, cut at the window, for one forward pass.

        Args:
            texts: At least one.
            prompt: Put before each.
            pad_to: Tokens of each row; 0: the longest text's.
            task: At most ``task``, for a model that takes one.
        """
        ...

    def embed(self, features: Mapping[str, Any], **task: Any) -> F32:
        """Run a forward pass: shape ``(rows, dim)``."""
        ...


def load_model(
    model: str,
    revision: str | None,
    backend: Backend,
    precision: Precision,
    device: Device,
    trust_remote_code: bool,
    cache_dir: str | None = None,
    task: str | None = None,
) -> Model:
    """Load a sentence-transformers model for inference.

    Raises:
        ConfigError: The library of the backend is missing, precision, backend and device do not go together, there is
            no GPU, or the model cannot be loaded or exported.
    """
    _check_backend(backend, precision, device)
    if backend == "torch":
        return TorchModel(_sentence_transformer(model, revision, device, trust_remote_code, {"dtype": precision}), task)
    # Plain matrix products, which every runtime can fuse.
    kwargs = {"dtype": "float32", "attn_implementation": "eager"}
    load = functools.partial(_sentence_transformer, model, revision, "cpu", trust_remote_code, kwargs)
    digest = files_digest(model_directory(model, revision))
    directory = Path(cache_dir) if cache_dir else exported.default_cache_dir()
    return _exported_model(load, digest, backend, "int8" if precision == "int8" else "float32", directory)


def _exported_model(
    load: Callable[[], Any], digest: str, backend: exported.Backend, precision: exported.Precision, cache_dir: Path
) -> Model:
    """Open a model's export: alone where it is described, else in place of the loaded model's transformer."""
    with exported.kept(load, digest, precision, cache_dir) as directory:
        compute = exported.compute_by(backend, directory / exported.MODEL)
        if is_described(directory):
            return OnnxModel(directory, compute)
    loaded = load()
    exported.replace(loaded, compute)
    return TorchModel(loaded)


def _sentence_transformer(
    model: str, revision: str | None, device: Device, trust_remote_code: bool, kwargs: Mapping[str, str]
) -> Any:
    import torch

    with without_sklearn():
        from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # one bar per worker, for a tenth of a second
    located = locate_model(model)
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ConfigError("encoder.device is 'cuda' but this process sees no GPU: set it to auto or cpu")
    try:
        return SentenceTransformer(
            located,
            revision=revision,
            device="cuda" if has_gpu and device != "cpu" else "cpu",
            trust_remote_code=trust_remote_code,
            model_kwargs={**kwargs, "dtype": getattr(torch, kwargs["dtype"])},
        ).eval()
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"encoder.model {model!r} cannot be loaded: {error}") from error


def _check_backend(backend: Backend, precision: Precision, device: Device) -> None:
    import importlib.util

    if backend == "torch":
        if precision == "int8":
            raise ConfigError("encoder.precision is int8 but encoder.backend is torch: set backend to onnx")
        return
    for module, package in exported.INSTALL[backend].items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"encoder.backend is {backend} but the package {package} is missing: "
                f"pip install 'kohaku-ray[{backend}]', or set backend to torch"
            )
    offered = ("float32", "int8") if backend == "onnx" else ("float32",)
    if precision not in offered:
        raise ConfigError(
            f"encoder.precision is {precision} but encoder.backend is {backend}: use {' or '.join(offered)}"
        )
    if device == "cuda":
        raise ConfigError(
            f"encoder.device is 'cuda' but encoder.backend is {backend}, which computes on the CPU: "
            "set device to auto or backend to torch"
        )
