"""Loading a sentence-transformers model, and the facts an encoder needs of it."""

from __future__ import annotations

from typing import Any, Literal

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import locate_model, model_directory

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
) -> Any:
    """Load a sentence-transformers model for inference.

    Raises:
        ConfigError: The library of the backend is missing, precision and backend do not go together, there is no GPU,
            or the model cannot be loaded.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar a worker, for a tenth of a second
    located = locate_model(model)
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ConfigError("encoder.device is 'cuda' but this process sees no GPU: set it to auto or cpu")
    kwargs = _model_kwargs(model, revision, backend, precision)
    try:
        loaded = SentenceTransformer(
            located,
            revision=revision,
            backend=backend,
            device="cuda" if has_gpu and device != "cpu" else "cpu",
            trust_remote_code=trust_remote_code,
            model_kwargs=kwargs,
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"encoder.model {model!r} cannot be loaded: {error}") from error
    return loaded.eval()


def _model_kwargs(model: str, revision: str | None, backend: Backend, precision: Precision) -> dict[str, Any]:
    import importlib.util

    if backend == "torch":
        if precision == "int8":
            raise ConfigError("encoder.precision is int8 but encoder.backend is torch: set backend to onnx or openvino")
        import torch

        return {"dtype": getattr(torch, precision)}
    library = {"onnx": "onnxruntime", "openvino": "openvino"}[backend]
    for package in ("optimum", library):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"encoder.backend is {backend} but the package {package} is missing: "
                f"pip install 'sentence-transformers[{backend}]', or set backend to torch"
            )
    if precision == "int8":
        return {"file_name": _quantised_file(model, revision, backend)}
    if precision != "float32":
        raise ConfigError(f"encoder.precision is {precision} but encoder.backend is {backend}: use float32 or int8")
    return {}


def _quantised_file(model: str, revision: str | None, backend: Backend) -> str:
    """Name the model's own quantised file, the first by name where there are several."""
    directory = model_directory(model, revision)
    pattern = "*int8*.onnx" if backend == "onnx" else "*int8*.xml"
    files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob(pattern))
    if not files:
        raise ConfigError(
            f"encoder.precision is int8 but {directory} holds no {pattern}: "
            "export one (sentence_transformers.export_dynamic_quantized_onnx_model) or set precision to float32"
        )
    return files[0]


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
