"""Check that the weights of a job's models fit the memory of the GPUs it would get."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.identity import model_directory
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.models.vllm import VllmConfig

CARD_GIB = {
    **{"T4": 14.56, "A10G": 22.05, "L4": 22.05, "L40S": 44.5},
    **{"A100": 79.2, "A100-40G": 39.4, "A100-80G": 79.2, "H20": 139.8, "H100": 94.0, "H200": 139.8},
    **{"RTX-PRO-6000": 95.0, "B200": 178.0, "B300": 268.0},
}
"""Memory of a GPU that torch sees, by Ray's accelerator type: of the first row 0.4 GiB less than the driver reports
(Wan2.1#205, GeoPixel#5). Of one with several sizes the largest, since Ray does not tell them apart and a refusal must
be right (NVIDIA's data sheets: A100 40 or 80 GB, H100 80 or (NVL) 94, H20 96 or (H20-3e) 141). Where weights fit and
leave no room for a KV cache, vLLM says so (models/vllm_failure.py)."""

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of the numbers that a model loads in another format than they are saved in, by safetensors' names."""

_HEADER_BYTES = 100_000_000
"""Longest header that safetensors allows: a damaged file may claim any."""


@dataclass(frozen=True, slots=True)
class CardNeed:
    """What somebody needs of one GPU.

    Attributes:
        n_bytes: Memory.
        what: What it holds.
        share: Part of the GPU's memory that is there for it.
        way_out: What else to do than to take a larger GPU.
        resources: What a node must have for it besides.
    """

    n_bytes: int
    what: str
    share: float
    way_out: str
    resources: Mapping[str, float]


def deployment_needs(deployments: Mapping[str, Deployment]) -> dict[str, CardNeed]:
    """List what replicas need of a GPU to start, by who needs it; without those of unknown size."""
    needs = {}
    for name, deployment in deployments.items():
        if deployment.application is None and (need := _deployment_need(deployment)) is not None:
            needs[f"a replica of {name}"] = need
    return needs


def _deployment_need(deployment: Deployment) -> CardNeed | None:
    resources = dict(deployment.resources)
    match deployment:
        case VllmConfig(cpus=None):
            given = deployment.engine_kwargs
            if given.keys() & {"quantization", "load_format", "cpu_offload_gb", "enable_expert_parallel"}:
                return None  # its size on the GPU is not that of its files
            size, n = 4 if given.get("dtype") == "float32" else 2, deployment.workers_per_engine
            share, way_out = deployment.memory_share, "raise tensor_parallel"
            if deployment.accelerator:
                resources[f"accelerator_type:{deployment.accelerator}"] = 0.001
        case TransformersConfig(load_in_4bit=False) if deployment.gpus:
            saved = {"float32": 4, "float16": 2, "bfloat16": 2}
            size, n = saved.get(deployment.dtype, 0), math.ceil(deployment.gpus)
            share, way_out = min(deployment.gpus, 1.0), "raise gpus"
        case CrossEncoderConfig(base_url=None) if deployment.gpus:
            size, n = 4 if deployment.precision == "float32" else 2, 1
            share, way_out = min(deployment.gpus, 1.0), "raise gpus"
        case _:
            return None
    whole = weight_bytes(deployment.model, deployment.revision, size)
    if whole is None:
        return None
    what = "its weights" if n == 1 else f"its part of {whole / 2**30:.1f} GiB of weights on {n} GPUs"
    return CardNeed(whole // n, what, share, way_out, resources)


def encoder_need(config: Config, encoder: EncoderConfig) -> CardNeed | None:
    """Return what an encoder of the index job needs of a GPU; None: its size is not known."""
    size = 4 if encoder.precision == "float32" else 2
    n_bytes, index = weight_bytes(encoder.model, encoder.revision, size), config.index
    if n_bytes is None:
        return None
    share, way_out = min(index.encoder_gpus, 1.0), "raise index.encoder_gpus or set index.encoder.precision to bfloat16"
    return CardNeed(n_bytes, "its weights", share, way_out, index.resources)


def weight_bytes(model: str, revision: str | None, size: int = 0) -> int | None:
    """Sum the bytes of a model's weights from its safetensors' headers; None: they are not here.

    ``size`` is the bytes per number of those that are loaded in another format than they are saved in; 0: as saved.
    """
    try:
        directory = model_directory(model, revision)
        parts = directory / "model.safetensors.index.json"
        if parts.is_file():
            files = [directory / name for name in sorted(set(json.loads(parts.read_text())["weight_map"].values()))]
        else:
            files = sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))
        return sum(_tensor_bytes(file, size) for file in files) or None
    except (KohakuRayError, OSError, ValueError, KeyError, struct.error):  # another check says what is wrong with it
        return None


def _tensor_bytes(path: Path, size: int) -> int:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(length, _HEADER_BYTES)))
    total = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        first, last = tensor["data_offsets"]
        saved = _BYTES.get(tensor["dtype"])
        total += last - first if not (size and saved) else (last - first) // saved * size
    return total


def too_small(needs: Mapping[str, CardNeed], nodes: Sequence[Mapping[str, float]]) -> str:
    """Say who needs more of a GPU than the largest that it may get has; empty: all fit, or their GPUs are unknown."""
    for who, need in needs.items():
        fitting = [node for node in nodes if node.get("GPU") and all(node.get(kind, 0.0) for kind in need.resources)]
        sizes = [gib for node in fitting for gib in _card_gib(node)]
        if not sizes or None in sizes:
            continue
        largest = max(size for size in sizes if size is not None)
        if need.n_bytes > need.share * largest * 2**30:
            return (
                f"{who} needs {need.n_bytes / 2**30:.1f} GiB of a GPU for {need.what} but of the largest GPU, of at "
                f"most {largest:g} GiB, it gets at most {need.share * largest:.1f} GiB: {need.way_out}, or use larger "
                "GPUs"
            )
    return ""


def _card_gib(node: Mapping[str, float]) -> list[float | None]:
    """Return the memory of a node's types of GPUs; ``[None]``: it names none."""
    kinds = {kind.partition(":")[2] for kind in node if kind.startswith("accelerator_type:")}
    if kinds & {"A100-40G", "A100-80G"}:  # set by hand beside Ray's own A100
        kinds.discard("A100")
    return [CARD_GIB.get(kind) for kind in kinds] or [None]
