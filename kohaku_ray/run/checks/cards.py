"""Check that a job's models and its index fit the memory of the GPUs it would get."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.gpu import temporary_bytes
from kohaku_ray.index.identity import model_directory
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.index.store import Index
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.run.collection.indexes import searched_views

CARD_GIB = {
    **{"K80": 11.2, "P4": 7.4, "P100": 15.9, "V100": 15.8, "T4": 15.0, "A10G": 22.5, "L4": 22.5, "L40S": 45.0},
    **{"A100": 39.4, "A100-40G": 39.4, "A100-80G": 79.2, "H20": 95.6, "H100": 79.2, "H200": 139.8},
    **{"RTX-PRO-6000": 95.0, "B200": 178.0, "B300": 268.0},
}
"""Memory of a GPU that programs see, by Ray's accelerator type; of a type with several sizes, the smallest."""

# NVIDIA's data sheets: V100 16 or 32 GB, A100 40 or 80, H100 80 or (NVL) 94, H20 96 or (H20-3e) 141.
LARGEST_CARD_GIB = CARD_GIB | {"V100": 32.0, "A100": 79.2, "H100": 94.0, "H20": 139.8}
"""The same, but of a type with several sizes the largest: Ray does not tell them apart, so a refusal needs it."""

ENGINE_BYTES = 3 << 29
"""Memory of a GPU that vLLM takes beside weights and KV cache: CUDA's own, graphs, activations of 8,192 tokens."""

WINDOW_STEP = 1024
"""A smaller window that would fit is said in whole multiples."""

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of the numbers that a model loads in another format than they are saved in, by safetensors' names."""

_HEADER_BYTES = 100_000_000
"""Longest header that safetensors allows: a damaged file may claim any."""


@dataclass(frozen=True, slots=True)
class CardNeed:
    """What somebody needs of one GPU.

    Attributes:
        n_bytes: Memory, without a window's keys and values.
        what: What it holds.
        share: Part of the GPU's memory that is there for it.
        way_out: What else to do than to take a larger GPU.
        resources: What a node must have for it besides.
        token_bytes: Keys and values of one token, of which the GPU must hold those of a ``window``.
        window: Tokens.
        setting: The key of the window.
    """

    n_bytes: int
    what: str
    share: float
    way_out: str
    resources: Mapping[str, float]
    token_bytes: int = 0
    window: int = 0
    setting: str = ""


def deployment_needs(deployments: Mapping[str, Deployment]) -> dict[str, CardNeed]:
    """List what replicas need of a GPU to start, by who needs it; without those of unknown size."""
    needs = {}
    for name, deployment in deployments.items():
        if deployment.application is None and (need := _deployment_need(name, deployment)) is not None:
            needs[f"a replica of {name}"] = need
    return needs


def _deployment_need(name: str, deployment: Deployment) -> CardNeed | None:
    resources = dict(deployment.resources)
    beside = token_bytes = window = 0
    match deployment:
        case VllmConfig(cpus=None):
            given = deployment.engine_kwargs
            if given.keys() & {"quantization", "load_format", "cpu_offload_gb", "enable_expert_parallel"}:
                return None  # its size on the GPU is not that of its files
            size, n = 4 if given.get("dtype") == "float32" else 2, deployment.workers_per_engine
            share, way_out = deployment.memory_share, "raise tensor_parallel"
            beside, window = ENGINE_BYTES, deployment.window_tokens
            token_bytes = bytes_per_token(deployment)
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
    if beside:
        what += f" and {beside / 2**30:.1f} GiB of the engine's own"
    setting = f"deployments.{name}.window_tokens"
    return CardNeed(whole // n + beside, what, share, way_out, resources, token_bytes, window, setting)


def bytes_per_token(deployment: VllmConfig) -> int:
    """Compute the keys and values of one token on each GPU of an engine, by the model's config.json; 0: not known.

    Layers that attend to a sliding window keep next to nothing of a long one. Latent attention (DeepSeek) keeps one
    vector per layer on every GPU.
    """
    try:
        directory = model_directory(deployment.model, deployment.revision)
        config = json.loads((directory / "config.json").read_text())
        config = config.get("text_config") or config
        kinds = config.get("layer_types")
        has_window = config.get("sliding_window") and config.get("use_sliding_window", True)  # Qwen2.5's is not used
        if not kinds and (has_window or config.get("full_attention_interval")):
            return 0  # which layers keep all tokens stands in the library's code (Gemma 3, Qwen3-Next)
        n_layers = kinds.count("full_attention") if kinds else config["num_hidden_layers"]
        if rank := config.get("kv_lora_rank"):
            n_numbers = rank + config["qk_rope_head_dim"]
        else:
            n_heads = config["num_attention_heads"]
            size = config.get("head_dim") or config["hidden_size"] // n_heads
            n_kv_heads = config.get("num_key_value_heads") or n_heads
            n_numbers = 2 * max(n_kv_heads // deployment.tensor_parallel, 1) * size
    except (KohakuRayError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
    is_byte = str(deployment.engine_kwargs.get("kv_cache_dtype", "")).startswith("fp8")
    wide = 4 if deployment.engine_kwargs.get("dtype") == "float32" else 2
    return int(math.ceil(n_layers / deployment.pipeline_parallel) * n_numbers * (1 if is_byte else wide))


def encoder_need(config: Config, encoder: EncoderConfig) -> CardNeed | None:
    """Return what an encoder of the index job needs of a GPU; None: its size is not known."""
    size = 4 if encoder.precision == "float32" else 2
    n_bytes, index = weight_bytes(encoder.model, encoder.revision, size), config.index
    if n_bytes is None:
        return None
    share, way_out = min(index.encoder_gpus, 1.0), "raise index.encoder_gpus or set index.encoder.precision to bfloat16"
    return CardNeed(n_bytes, "its weights", share, way_out, index.resources)


def retriever_need(config: Config, index: Index) -> CardNeed | None:
    """Return what a retriever needs of its GPU for a shard of the index; None: it may search on the CPU."""
    gpus = config.cluster.retriever.n_gpus
    if not gpus or config.index.search_device != "cuda":
        return None
    return CardNeed(
        largest_shard_bytes(index, config) + temporary_bytes(24 << 30),
        "a shard of the index and FAISS's temporary memory",
        min(gpus, 1.0),
        "raise index.shards or cluster.retriever.gpus, set index.search_float16, or index.search_device to auto",
        {},
    )


def largest_shard_bytes(index: Index, config: Config) -> int:
    """Sum what FAISS holds of the largest shard for a run's searches, from the sizes of its files."""
    views = searched_views(config)
    sizes = [sum(_bytes_of(shard.files, view.key, index.manifest["dim"]) for view in views) for shard in index.shards]
    halves = config.index.search_float16 and config.index.factory == "Flat"
    return int(max(sizes, default=0)) // (2 if halves else 1)


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
        sizes = [gib for node in fitting for gib in _card_gib(node, LARGEST_CARD_GIB)]
        if not sizes or None in sizes:
            continue
        largest = max(size for size in sizes if size is not None)
        left = need.share * largest * 2**30 - need.n_bytes
        of_window = need.token_bytes * need.window
        if left >= of_window:
            continue
        what, way_out = need.what, need.way_out
        if of_window:
            what = f"{what}, and for a window of {need.window:,} tokens {of_window / 2**30:.1f} GiB of it"
        if need.token_bytes and (fits := int(left // need.token_bytes) // WINDOW_STEP * WINDOW_STEP) > 0:
            way_out = f"lower {need.setting} to at most {fits}, {way_out}"
        return (
            f"{who} needs {(need.n_bytes + of_window) / 2**30:.1f} GiB of a GPU for {what} but of the largest GPU, of "
            f"at most {largest:g} GiB, it gets at most {need.share * largest:.1f} GiB: {way_out}, or use larger GPUs"
        )
    return ""


def card_bytes(nodes: Iterable[Mapping[str, float]]) -> int | None:
    """Return the memory of the smallest GPU of these nodes; None: a type is unknown."""
    sizes = [size for node in nodes if node.get("GPU") for size in _card_gib(node, CARD_GIB)]
    known = [size for size in sizes if size is not None]
    return int(min(known) * 2**30) if known and len(known) == len(sizes) else None


def _card_gib(node: Mapping[str, float], sizes: Mapping[str, float]) -> list[float | None]:
    """Return the memory of a node's types of GPUs; ``[None]``: it names none."""
    kinds = {kind.partition(":")[2] for kind in node if kind.startswith("accelerator_type:")}
    if kinds & {"A100-40G", "A100-80G"}:  # set by hand beside Ray's own A100
        kinds.discard("A100")
    return [sizes.get(kind) for kind in kinds] or [None]


def _bytes_of(files: Mapping[str, Mapping[str, Any]], view: str, dim: int) -> int:
    """Return what FAISS holds of a view of a shard: its file, or the vectors that a flat index searches."""
    if f"faiss-{view}" in files:
        return int(files[f"faiss-{view}"]["bytes"])
    if f"{view}-vectors" in files:  # images in a space of their own
        return int(files[f"{view}-vectors"]["bytes"])
    return int(files[f"places-{view}"]["rows"] * dim * 4) if f"places-{view}" in files else 0
