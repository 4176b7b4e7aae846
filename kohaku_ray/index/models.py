"""Loading a sentence-transformers model, and the facts an encoder needs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from kohaku_ray.errors import ConfigError
from kohaku_ray.index import exported
from kohaku_ray.index.identity import files_digest, locate_model, model_directory

Backend = Literal["torch", "onnx", "openvino"]
Precision = Literal["float32", "float16", "bfloat16", "int8"]
Device = Literal["auto", "cpu", "cuda"]


def load_model(
    model: str,
    revision: str | None,
    backend: Backend,
    precision: Precision,
    device: Device,
    trust_remote_code: bool,
    cache_dir: str | None = None,
) -> Any:
    """Load a sentence-transformers model for inference.

    Raises:
        ConfigError: The library of the backend is missing, precision, backend and device do not go together, there is
            no GPU, or the model cannot be loaded or exported.
    """
    _check_backend(backend, precision, device)
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar a worker, for a tenth of a second
    located = locate_model(model)
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ConfigError("encoder.device is 'cuda' but this process sees no GPU: set it to auto or cpu")
    kwargs: dict[str, Any] = {"dtype": getattr(torch, "float32" if precision == "int8" else precision)}
    if backend != "torch":
        kwargs["attn_implementation"] = "eager"  # plain matrix products, which every runtime knows to fuse
    try:
        loaded = SentenceTransformer(
            located,
            revision=revision,
            device="cuda" if has_gpu and device != "cpu" and backend == "torch" else "cpu",
            trust_remote_code=trust_remote_code,
            model_kwargs=kwargs,
        ).eval()
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"encoder.model {model!r} cannot be loaded: {error}") from error
    if backend != "torch":
        digest = files_digest(model_directory(model, revision))
        directory = Path(cache_dir) if cache_dir else exported.default_cache_dir()
        kept: exported.Precision = "int8" if precision == "int8" else "float32"
        exported.compute_by(loaded, digest, backend, kept, directory)
    return loaded


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


def native_dim(model: Any) -> int:
    """Length of the model's own vectors; the method was renamed in sentence-transformers 6."""
    renamed = getattr(model, "get_embedding_dimension", None)
    return int((renamed or model.get_sentence_embedding_dimension)())


def window(model: Any) -> int:
    """Longest text the model takes, in tokens, special ones included; practically endless where it does not say."""
    windows = (model.max_seq_length, getattr(model.tokenizer, "model_max_length", None))
    return int(next((window for window in windows if window), 1 << 30))


def padded(features: dict[str, Any], length: int, tokenizer: Any) -> dict[str, Any]:
    """Pad every (rows, tokens) tensor on the tokenizer's side; attention masks and types with zeros."""
    import torch
    from torch.nn.functional import pad

    width = features["input_ids"].shape[1]
    side = (length - width, 0) if tokenizer.padding_side == "left" else (0, length - width)
    fill = {"input_ids": tokenizer.pad_token_id or 0}
    return {
        key: pad(value, side, value=fill.get(key, 0))
        if torch.is_tensor(value) and value.ndim == 2 and value.shape[1] == width
        else value
        for key, value in features.items()
    }
