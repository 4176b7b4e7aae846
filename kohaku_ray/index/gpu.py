"""FAISS on a GPU: whether there is one, an index cloned to it, and training on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F32, I64

MOST_NEIGHBOURS = 2048
"""Most neighbours that FAISS finds on a GPU."""

FLOAT16_ERROR = 2.0**-9
"""Bound of the error of a product of two unit vectors, both rounded to float16: twice 2⁻¹¹, doubled for the sum."""

_ROOM = 1.1
"""Memory of an index on a GPU, relative to its vectors."""


def missing(setting: str = "cluster.retriever.gpus") -> str:
    """Say why FAISS cannot use a GPU in this process, and which setting gives it one; empty: it can."""
    import faiss

    if not hasattr(faiss, "StandardGpuResources"):
        return "the FAISS that is installed is the one for CPUs: pip install 'kohaku-ray[gpu]'"
    if faiss.get_num_gpus() == 0:
        return f"this process sees no GPU: set {setting}, on a cluster with GPUs"
    return ""


class Clone:
    """A FAISS index on the GPU that this process sees, and the one it was cloned from.

    Attributes:
        ntotal: Number of vectors.
    """

    def __init__(self, index: Any, float16: bool = False) -> None:
        """Copy an index to the GPU.

        Args:
            index: A FAISS index on the CPU; it is kept for searches of more than ``MOST_NEIGHBOURS``.
            float16: Store vectors in half the memory, as float16.

        Raises:
            ConfigError: There is no GPU, it is too small, or FAISS has no such index for GPUs.
        """
        import faiss

        if reason := missing():
            raise ConfigError(f"index.search_device needs a GPU, but {reason}; or set it to cpu")
        self.ntotal, self._on_cpu = index.ntotal, index
        self._resources = faiss.StandardGpuResources()
        options = faiss.GpuClonerOptions()
        options.useFloat16 = float16
        need = int(index.ntotal * index.d * (2 if float16 else 4) * _ROOM)
        _check_room(need, float16)
        try:
            self._on_gpu = faiss.index_cpu_to_gpu(self._resources, 0, index, options)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ConfigError(
                f"FAISS cannot put this index of {index.ntotal:,} vectors on the GPU ({reason}): set "
                "index.search_device to cpu, or index.factory to Flat or an IVF without refinement"
            ) from error

    def search(self, queries: F32, n: int) -> tuple[F32, I64]:
        """Find ``n`` neighbours per query: scores and places, shape ``(q, n)``; many of them on the CPU."""
        scores, places = (self._on_gpu if n <= MOST_NEIGHBOURS else self._on_cpu).search(queries, n)
        return scores, places


def train(index: Any, vectors: F32) -> None:
    """Train an index; the k-means of inverted lists runs on the GPU.

    Raises:
        ConfigError: There is no GPU.
    """
    import faiss

    check_trains()
    lists: Any = faiss.try_extract_index_ivf(index)
    resources = faiss.StandardGpuResources()  # lives as long as what it holds
    if lists is not None:
        centroids = faiss.index_cpu_to_gpu(resources, 0, faiss.IndexFlat(lists.d, lists.metric_type))
        lists.clustering_index = centroids
    try:
        index.train(np.ascontiguousarray(vectors))
    finally:
        if lists is not None:
            lists.clustering_index = None


def check_trains() -> None:
    """Check that FAISS can train an index on a GPU in this process.

    Raises:
        ConfigError: It cannot.
    """
    if reason := missing("index.build_gpus"):
        raise ConfigError(f"index.build_gpus is set, but {reason}; or set index.build_gpus to 0")


def _check_room(need: int, float16: bool) -> None:
    free = _free_bytes()
    if free is not None and need > free:
        halve = "" if float16 else "set index.search_float16 (half of it), "
        raise ConfigError(
            f"the vectors need {need / 2**30:,.1f} GiB but the GPU has {free / 2**30:,.1f} GiB free: {halve}"
            "raise index.shards so that each retriever holds a part, give the retriever a larger share "
            "(cluster.retriever.gpus), or set index.search_device to cpu"
        )


def _free_bytes() -> int | None:
    """Free memory of the first visible GPU; None: unknown."""
    import torch

    return int(torch.cuda.mem_get_info(0)[0]) if torch.cuda.is_available() else None
