"""FAISS on a GPU: whether there is one, and an index cloned to it."""

from __future__ import annotations

import functools
from typing import Any

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F32, I64

MOST_NEIGHBOURS = 2048
"""Most neighbours that FAISS finds on a GPU."""

TEMPORARY_BYTES = 1536 << 20
"""Temporary memory that FAISS takes of a GPU of more than 8 GiB (StandardGpuResources)."""


def missing() -> str:
    """Say why FAISS cannot use a GPU in this process; empty: it can."""
    import faiss

    if not hasattr(faiss, "StandardGpuResources"):
        return "the FAISS that is installed is the one for CPUs: pip install 'kohaku-ray[gpu]'"
    if faiss.get_num_gpus() == 0:
        return "this process sees no GPU: set cluster.retriever.gpus, on a cluster with GPUs"
    return ""


class Clone:
    """A FAISS index on the GPU that this process sees, and the one of ``ntotal`` vectors it was cloned from."""

    def __init__(self, index: Any) -> None:
        """Copy an index to the GPU; the one on the CPU is kept for searches of more than ``MOST_NEIGHBOURS``.

        Raises:
            ConfigError: There is no GPU, it is too small, or FAISS has no such index for GPUs.
        """
        import faiss

        if reason := missing():
            raise ConfigError(f"index.search_device needs a GPU, but {reason}; or set it to cpu")
        self.ntotal, self._on_cpu = index.ntotal, index
        try:
            _check_room(index)
            self._on_gpu = faiss.index_cpu_to_gpu(_resources(), 0, index)
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


@functools.cache
def _resources() -> Any:
    """Return this process's only resources: each takes its own temporary memory."""
    import faiss

    return faiss.StandardGpuResources()


def _check_room(index: Any) -> None:
    """Refuse an index larger than what is free: its codes, and 8 bytes of norm or id per vector."""
    memory = _memory()
    need = index.ntotal * (index.sa_code_size() + 8)
    temporary = 0 if _resources.cache_info().currsize else TEMPORARY_BYTES
    if memory is not None and need + temporary > memory:
        also = f" beside {temporary / 2**30:,.1f} GiB of temporary memory" if temporary else ""
        raise ConfigError(
            f"the vectors need {need / 2**30:,.1f} GiB{also} but the GPU has {memory / 2**30:,.1f} GiB free: raise "
            "index.shards so that each retriever holds a part, give the retriever a larger share "
            "(cluster.retriever.gpus), or set index.search_device to cpu"
        )


def _memory() -> int | None:
    """Free bytes of the first visible GPU; None: unknown."""
    import torch

    return torch.cuda.mem_get_info(0)[0] if torch.cuda.is_available() else None
