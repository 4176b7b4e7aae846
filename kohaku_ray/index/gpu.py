"""Use FAISS on a GPU: find one, clone an index to it, train on it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.settings import MOST_NEIGHBOURS
from kohaku_ray.records import pluralize

PQ_BITS, PQ_BYTES = 8, (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96)
"""Codes of product quantisation that FAISS searches on a GPU without cuVS, those from 56 bytes on with look-up tables
in 16 bits (faiss/gpu/GpuIndexIVFPQ, impl/IVFPQ)."""


def missing() -> str:
    """Say why FAISS cannot use a GPU in this process; empty: it can."""
    import faiss

    if reason := without_gpu_support():
        return reason
    if faiss.get_num_gpus() == 0:
        return "this process sees no GPU"
    return ""


def without_gpu_support() -> str:
    """Say that the FAISS of this environment is the one for CPUs, whatever GPUs there are; empty: it is not."""
    import faiss

    if hasattr(faiss, "StandardGpuResources"):
        return ""
    return (
        "the FAISS that is installed is the one for CPUs: pip uninstall faiss-cpu faiss-gpu, which write the same "
        "files, then pip install 'kohaku-ray[gpu]'"
    )


class Clone:
    """A FAISS index on the GPU that this process sees, and the one of ``ntotal`` vectors it was cloned from."""

    def __init__(self, index: Any) -> None:
        """Copy an index to the GPU; the one on the CPU is kept for searches of more than ``MOST_NEIGHBOURS``.

        Raises:
            ConfigError: There is no GPU, it is too small, or FAISS has no such index for GPUs.
        """
        import faiss

        if reason := missing():
            raise ConfigError(
                f"index.search_device needs a GPU, but {reason}; set cluster.retriever.gpus, on a cluster with "
                "GPUs, or index.search_device to cpu"
            )
        self.ntotal, self.on_cpu = index.ntotal, index
        _check_lists(index)
        try:
            _check_room(bytes_on_gpu(index))
            self._on_gpu = _flat(index) if isinstance(index, faiss.IndexFlat) else _clone(index)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ConfigError(
                f"FAISS cannot put this index of {index.ntotal:,} vectors on the GPU ({reason}): set "
                "index.search_device to cpu, or index.factory to Flat or an IVF without refinement"
            ) from error

    def search(self, queries: F32, n: int) -> tuple[F32, I64]:
        """Find ``n`` neighbours per query: scores and places, shape ``(q, n)``; many of them on the CPU."""
        scores, neighbours = (self._on_gpu if n <= MOST_NEIGHBOURS else self.on_cpu).search(queries, n)
        return scores, neighbours


def searches_in_batches(index: Any) -> bool:
    """Whether an index's candidates for a query do not depend on the others: it scans the lists of each alone.

    So do inverted lists of vectors or PQ codes, on a CPU and cloned to a GPU; ``IVF…,SQ8`` does not.
    """
    import faiss

    index = index.on_cpu if isinstance(index, Clone) else index
    return isinstance(index, (faiss.IndexIVFFlat, faiss.IndexIVFPQ))


def train_and_add(index: Any, vectors: F32) -> None:
    """Train an index and add the vectors; the GPU finds the centroids of inverted lists, and each vector's list."""
    import faiss

    check_trains()
    vectors = np.ascontiguousarray(vectors)
    lists: Any = faiss.try_extract_index_ivf(index)
    if lists is not None:
        centroids = faiss.index_cpu_to_gpu(_resources(), 0, faiss.IndexFlat(lists.d, lists.metric_type))
        lists.clustering_index = centroids
    try:
        index.train(vectors)
    finally:
        if lists is not None:
            lists.clustering_index = None
    quantizer: Any = None if lists is None else faiss.downcast_index(lists.quantizer)
    if isinstance(quantizer, faiss.IndexFlat):  # a graph over the centroids has no form for GPUs
        on_gpu = faiss.index_cpu_to_gpu(_resources(), 0, quantizer)  # the name keeps it: FAISS holds no reference
        lists.quantizer = on_gpu
    try:
        index.add(vectors)
    finally:
        if lists is not None:
            lists.quantizer = quantizer


def check_trains() -> None:
    """Check that FAISS can train an index on a GPU in this process, else ``ConfigError``."""
    if reason := missing():
        raise ConfigError(f"FAISS trains and fills no lists on a GPU: {reason}")


def bytes_on_gpu(index: Any) -> int:
    """Compute what an index takes of a GPU, beside FAISS's temporary memory.

    A flat index keeps its vectors and their norms, the old ones beside the new while it grows (faiss/gpu/impl/
    FlatIndex). A list keeps its codes, in blocks of 32 except PQ's, and ids of 8 bytes (IVFBase, IVFFlat), each rounded
    up to 256 bytes (StandardGpuResources).
    """
    import faiss

    lists = _lists_of(index)
    if lists is None:
        return int(index.ntotal * (index.sa_code_size() + 8))
    sizes = np.array([lists.invlists.list_size(number) for number in range(lists.nlist)])
    block = 1 if isinstance(lists, faiss.IndexIVFPQ) else 32
    codes, ids = -(-sizes // block) * block * lists.code_size, sizes * 8
    centroids = lists.nlist * (lists.d * 4 + 8)
    return int((-(-codes // 256) * 256 + -(-ids // 256) * 256).sum() + centroids)


def temporary_bytes(total: int) -> int:
    """Return the temporary memory that FAISS takes of a GPU of ``total`` bytes (StandardGpuResources)."""
    return 512 << 20 if total <= 4 << 30 else 1 << 30 if total <= 8 << 30 else 1536 << 20


@functools.cache
def _resources() -> Any:
    """Return this process's only resources: each takes its own temporary memory."""
    import faiss

    return faiss.StandardGpuResources()


def _flat(index: Any) -> Any:
    """Copy a flat index by pages."""
    import faiss

    on_gpu = faiss.GpuIndexFlat(_resources(), index.d, index.metric_type)
    if index.ntotal:
        # All in one call: it reserves their memory once, then copies pages; each further call would copy the others.
        on_gpu.add(faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(index.ntotal, index.d))
    return on_gpu


def _clone(index: Any) -> Any:
    import faiss

    options = faiss.GpuClonerOptions()
    # Look-up tables of PQ, which with 32 bits and 64 bytes are larger than a GPU's shared memory; it changes no other.
    options.useFloat16 = isinstance(_lists_of(index), faiss.IndexIVFPQ)
    return faiss.index_cpu_to_gpu(_resources(), 0, index, options)


def _lists_of(index: Any) -> Any:
    """Return the inverted lists of an index, of their own class; None: it has none."""
    import faiss

    lists: Any = faiss.try_extract_index_ivf(index)
    return None if lists is None else faiss.downcast_index(lists)


def _check_lists(index: Any) -> None:
    """Refuse inverted lists that FAISS does not search on a GPU."""
    import faiss

    lists = _lists_of(index)
    if lists is None:
        return
    if isinstance(lists, faiss.IndexIVFPQ):
        n_bytes, bits = lists.pq.M, lists.pq.nbits
        if bits != PQ_BITS or n_bytes not in PQ_BYTES:
            raise ConfigError(
                f"the index has PQ{n_bytes}x{bits}, {n_bytes} codes of {pluralize(bits, 'bit')}, but on a GPU FAISS "
                f"takes {PQ_BITS} bits and {', '.join(map(str, PQ_BYTES))} codes: set index.factory to an IVF with PQ "
                "of such a number, as IVF4096,PQ64, or index.search_device to cpu"
            )


def _check_room(need: int) -> None:
    import torch

    if not torch.cuda.is_available():
        return
    free, total = torch.cuda.mem_get_info(0)
    temporary = 0 if _resources.cache_info().currsize else temporary_bytes(total)
    if need + temporary > free:
        also = f" beside {temporary / 2**30:,.1f} GiB of temporary memory" if temporary else ""
        raise ConfigError(
            f"the vectors need {need / 2**30:,.1f} GiB{also} but the GPU has {free / 2**30:,.1f} GiB free: "
            "raise index.shards so that each retriever holds a part, give the retriever a larger share "
            "(cluster.retriever.gpus), or set index.search_device to cpu"
        )
