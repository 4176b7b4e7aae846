"""A transformer as an ONNX file: exported once, kept in a directory, computed by onnxruntime or openvino.

Only the first module of a sentence-transformers model is exported; where the others are just a tokenizer and a
pooling, these are described beside it. The directory is named by the model's digest, and written whole or not at all.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.onnx_model import Compute, describe
from kohaku_ray.index.torch_model import TorchModel

Backend = Literal["onnx", "openvino"]
Precision = Literal["float32", "int8"]

EXPORT = "2"
"""Version of the export; another number makes every kept file stale."""

OPSET = 17
"""The first opset with LayerNormalization as one operation."""

MODEL = "model.onnx"
MANIFEST = "manifest.json"
TOLERANCE = 1e-3
"""Largest difference of a token vector's entry between the export and the original model."""

INSTALL = {
    "onnx": {"onnx": "onnx", "onnxruntime": "onnxruntime"},
    "openvino": {"onnx": "onnx", "openvino": "openvino"},
}
"""Modules that each backend imports, with the package of each."""


def default_cache_dir() -> Path:
    """Default directory of exported models: in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kohaku-ray" / "encoders"


def kept_at(cache_dir: Path, digest: str, precision: str) -> Path:
    """Directory of a model's export."""
    return cache_dir / f"{digest[:32]}-{EXPORT}-{precision}"


@contextmanager
def kept(load: Callable[[], Any], digest: str, precision: Precision, cache_dir: Path) -> Iterator[Path]:
    """Lock a model's export while it is read; make it first where it is missing or damaged.

    Args:
        load: Returns the ``SentenceTransformer``, in float32 on the CPU; called when there is something to export.
        digest: Hash of the model's files.
        precision: ``int8``: weights quantised by channel, activations dynamically.
        cache_dir: Directory of the exports.

    Yields:
        Its directory.

    Raises:
        ConfigError: The model cannot be exported, or the directory cannot be written.
    """
    directory = kept_at(cache_dir, digest, precision)
    with _prepared(directory):
        if not _is_whole(directory):
            loaded = load()
            _publish(directory, lambda scratch: _write(scratch, loaded, digest, precision, cache_dir))
        yield directory


def compute_by(backend: Backend, path: Path) -> Compute:
    """Open an export in a library, which uses one thread per call."""
    return by_onnxruntime(path) if backend == "onnx" else by_openvino(path)


def _examples(loaded: Any, inner: Any) -> list[dict[str, Any]]:
    """Inputs of three shapes: the first is traced, the others check that the trace is valid for any shape."""
    import torch

    takes = inspect.signature(inner.forward).parameters
    batches = (["one sentence of some length", "another"], ["a"] * 3, ["many more words than either of them " * 4])
    return [
        {name: value for name, value in loaded.preprocess(batch).items() if torch.is_tensor(value) and name in takes}
        for batch in batches
    ]


def _write(scratch: Path, loaded: Any, digest: str, precision: Precision, cache_dir: Path) -> None:
    """Export, or quantise an existing export, and describe the rest of the model."""
    inner = getattr(loaded[0], "auto_model", None)
    if inner is None:
        raise ConfigError(
            f"the encoder's first module is a {type(loaded[0]).__name__}, not a transformer, and cannot be exported to "
            "ONNX: set encoder.backend to torch"
        )
    examples = _examples(loaded, inner)
    if precision == "float32":
        _export(inner, examples, scratch / MODEL)
    else:
        with kept(lambda: loaded, digest, "float32", cache_dir) as full:
            _quantise(full / MODEL, scratch / MODEL)
    describe(scratch, TorchModel(loaded), list(examples[0]))


def _export(inner: Any, examples: Sequence[dict[str, Any]], path: Path) -> None:
    """Trace a transformer from its inputs to its last hidden state, for any number of rows and tokens."""
    import torch

    names = list(examples[0])

    class Traced(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *inputs: Any) -> Any:
            return self.inner(**dict(zip(names, inputs, strict=True)), return_dict=True).last_hidden_state

    with warnings.catch_warnings(), torch.no_grad():
        # The older, tracing exporter: its graph runs a tenth faster than the newer one's. Checked below.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                Traced().eval(),
                tuple(examples[0].values()),
                str(path),
                input_names=names,
                output_names=["last_hidden_state"],
                dynamic_axes={name: {0: "rows", 1: "tokens"} for name in (*names, "last_hidden_state")},
                opset_version=OPSET,
                dynamo=False,
            )
            wanted = [inner(**example, return_dict=True).last_hidden_state.numpy() for example in examples]
        except Exception as error:  # a model's own code may raise anything when traced
            raise ConfigError(f"encoder.model cannot be exported to ONNX ({error}): set backend to torch") from error
    _check(path, examples, wanted)


def _check(path: Path, examples: Sequence[dict[str, Any]], wanted: Sequence[F32]) -> None:
    compute = _reference(path)
    for example, right in zip(examples, wanted, strict=True):
        off = float(np.abs(compute({name: value.numpy() for name, value in example.items()}) - right).max())
        if not off <= TOLERANCE:
            raise ConfigError(
                f"the model exported to ONNX is off by {off:.1e} (at most {TOLERANCE:.0e}) for inputs of shape "
                f"{right.shape[:2]}: set encoder.backend to torch"
            )


def _reference(path: Path) -> Compute:
    """Compute an export by the installed library."""
    import importlib.util

    return by_onnxruntime(path) if importlib.util.find_spec("onnxruntime") else by_openvino(path)


def _quantise(full: Path, path: Path) -> None:
    import onnx
    from onnxruntime import quantization  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from onnxruntime.quantization import quant_utils  # type: ignore[import-untyped,import-not-found,unused-ignore]

    model = onnx.load(full)
    quant_utils.add_pre_process_metadata(model)  # else it warns of a step that fuses operators to be quantised
    quantization.quantize_dynamic(model, path, per_channel=True, weight_type=quantization.QuantType.QInt8)


def by_onnxruntime(path: Path) -> Compute:
    """Open with one thread per call: callers run several at once, and vectors do not depend on the thread count."""
    import onnxruntime  # type: ignore[import-untyped,import-not-found,unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    takes = [entry.name for entry in session.get_inputs()]

    def compute(inputs: Mapping[str, I64]) -> F32:
        vectors: F32 = session.run(None, {name: np.ascontiguousarray(inputs[name]) for name in takes})[0]
        return vectors

    return compute


def by_openvino(path: Path) -> Compute:
    """Open with one thread per call, as with onnxruntime; always in float32."""
    import openvino  # type: ignore[import-untyped,import-not-found,unused-ignore]

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    takes = [entry.get_any_name() for entry in compiled.inputs]
    own = threading.local()

    def compute(inputs: Mapping[str, I64]) -> F32:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        vectors: F32 = own.request.infer({name: np.ascontiguousarray(inputs[name]) for name in takes})[0].copy()
        return vectors

    return compute


def replace(loaded: Any, compute: Compute) -> None:
    """Replace a loaded model's transformer by another library's, and free its own weights; in place."""
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    def forward(**features: Any) -> Any:
        arrays = {name: value.numpy() for name, value in features.items() if torch.is_tensor(value)}
        return BaseModelOutput(last_hidden_state=torch.from_numpy(compute(arrays)))

    inner = loaded[0].auto_model
    inner.forward = forward
    for parameter in inner.parameters():
        parameter.data = parameter.data.new_empty(0)


@contextmanager
def _prepared(directory: Path) -> Iterator[None]:
    """Hold a kept model's lock: one process exports, others that need the model wait."""
    from filelock import FileLock

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{directory}.lock")
        lock.acquire()
    except OSError as error:
        raise ConfigError(
            f"exported models cannot be kept in {directory.parent} ({error}): name a directory that can be written, "
            "or set encoder.backend to torch"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _publish(directory: Path, write: Callable[[Path], None]) -> None:
    """Write a directory whole under another name, then replace the old one by it."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        write(scratch)
        (scratch / MANIFEST).write_text(json.dumps(_described(scratch), sort_keys=True))
        shutil.rmtree(directory, ignore_errors=True)
        scratch.rename(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _described(directory: Path) -> dict[str, str]:
    """Hash every file but the manifest."""
    found = {}
    for path in sorted(directory.iterdir()):
        if path.name != MANIFEST:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _is_whole(directory: Path) -> bool:
    """Whether a kept model exists and is unchanged since it was written."""
    try:
        written = json.loads((directory / MANIFEST).read_text())
        return bool(written == _described(directory))
    except (OSError, ValueError):
        return False
