"""Nearest nodes by cosine similarity: FAISS proposes, an exact rescoring decides."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from kohaku_ray.errors import ConfigError, IndexMismatchError
from kohaku_ray.index import gpu
from kohaku_ray.index.arrays import F32, F64, I64, Hits, Mask
from kohaku_ray.index.settings import MOST_NEIGHBOURS

LISTS_PER_QUERY = 16
"""Inverted lists that a query searches: FAISS's default is one, which finds little."""

_SLACK = 16
"""Least number of candidates beyond top_k; more are requested where scores tie at the border."""

_MORE = 8
"""Factor of the second request, where scores tie at the border: cheaper than to score all vectors."""

_FLOAT32_UNIT = 2.0**-24

_FEW_QUERIES = 4
"""Least number of queries that one matrix product searches faster than a scan of the vectors."""

_BLOCK_SCORES = 2**22
"""Most scores of one matrix product: 16 MiB."""

FLAT = "Flat"
"""The factory string of a flat index."""

Array = TypeVar("Array", F32, I64)

Ranges = tuple[tuple[int, int], ...]
"""Ranges of node rows: the first of each and one past its last."""


def in_ranges(rows: I64, ranges: Ranges) -> Mask:
    """Mark the rows that lie in one of the ranges: shape ``(n,)``."""
    bounds = np.array(sorted(ranges), dtype=np.int64).reshape(-1, 2)
    ends = np.r_[0, np.maximum.accumulate(bounds[:, 1])]
    mask: Mask = rows < ends[np.searchsorted(bounds[:, 0], rows, side="right")]
    return mask


def take_rows(array: Array, positions: I64) -> Array:
    """Take rows of an array at increasing places; no copy where they are contiguous."""
    if len(positions) and positions[-1] - positions[0] == len(positions) - 1:
        return array[positions[0] : positions[-1] + 1]
    return array[positions]


class FlatVectors:
    """A flat index over vectors that lie elsewhere, such as in a mapped file: it finds what ``faiss.IndexFlatIP`` does.

    That class searches by the same function, over a copy of its own.
    """

    def __init__(self, vectors: F32) -> None:
        """Search these rows, shape ``(m, d)``."""
        self.vectors = vectors

    def search(self, queries: F32, n: int) -> tuple[F32, I64]:
        """Find ``n`` neighbours per query: scores and places, shape ``(q, n)``."""
        import faiss

        scores, neighbours = faiss.knn(queries, self.vectors, n, metric=faiss.METRIC_INNER_PRODUCT)
        return scores, neighbours

    def copy(self) -> Any:
        """Copy them into a FAISS index, as a GPU takes it."""
        import faiss

        index = faiss.IndexFlatIP(self.vectors.shape[1])
        index.add(np.ascontiguousarray(self.vectors))
        return index


class VectorIndex:
    """Unit vectors of nodes and a FAISS index over them.

    Attributes:
        vectors: Shape ``(m, d)``; unit rows, possibly memory-mapped.
        rows: Shape ``(m,)``; the node-table row of each vector; several vectors may share a node.
        faiss_index: Proposes candidates; its ids are positions in ``vectors``.
        exact: The candidates are always the nearest (a flat index).
    """

    def __init__(self, vectors: F32, rows: I64, faiss_index: Any, *, exact: bool | None = None) -> None:
        """Combine the parts, made by ``build`` or read from a directory.

        ``exact`` is by default told from the type of the FAISS index.
        """
        self.vectors, self.rows, self.faiss_index = vectors, rows, faiss_index
        flat = ("FlatVectors", "IndexFlat", "IndexFlatIP")
        self.exact = type(faiss_index).__name__ in flat if exact is None else exact
        self._in_batches = gpu.searches_in_batches(faiss_index)

    @classmethod
    def build(cls, vectors: F32, rows: I64, factory: str = "Flat", *, train_on_gpu: bool = False) -> VectorIndex:
        """Train and fill a FAISS index.

        Args:
            vectors: Shape ``(m, d)``; unit rows.
            rows: Shape ``(m,)``; node-table row of each.
            factory: FAISS factory string; ``Flat`` is exact.
            train_on_gpu: Find the centroids of inverted lists and each vector's list on the GPU; centroids may differ
                in the last bits.

        Raises:
            ConfigError: FAISS cannot make or train such an index, or has no GPU.
        """
        return cls(vectors, rows, FlatVectors(vectors) if factory == FLAT else _filled(vectors, factory, train_on_gpu))

    def probe(self, n_lists: int = LISTS_PER_QUERY) -> None:
        """Let queries search so many inverted lists, if there are any."""
        import faiss

        if isinstance(self.faiss_index, FlatVectors):
            return
        lists = faiss.try_extract_index_ivf(self.faiss_index)
        if lists is not None:
            lists.nprobe = n_lists

    def on_gpu(self) -> VectorIndex:
        """Clone the FAISS index to the GPU this process sees; hits are the same, as they are scored again.

        See ``gpu.Clone`` for the errors.
        """
        index = self.faiss_index
        clone = gpu.Clone(index.copy() if isinstance(index, FlatVectors) else index)
        return VectorIndex(self.vectors, self.rows, clone, exact=self.exact)

    def write(self, file: Any) -> None:
        """Write the FAISS index to an open file; the same build gives the same bytes."""
        import faiss

        writer: Any = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]  # its stubs lack it
        faiss.write_index(self.faiss_index, writer)

    def query_ms(self) -> float:
        """Measure a query's CPU time in milliseconds, among as many as a busy run asks at once: of some own vectors."""
        if not len(self):
            return 0.0
        places = np.linspace(0, len(self) - 1, 64).astype(np.int64)
        queries = np.ascontiguousarray(self.vectors[places])
        self.search(queries[:1], 1)  # a file that is mapped is read from disk now
        began = time.process_time()
        self.search(queries, 16)
        return 1000 * (time.process_time() - began) / len(queries)

    def __len__(self) -> int:
        """Count the vectors."""
        return len(self.rows)

    def search(self, queries: F32, top_k: int, within: Ranges | None = None) -> list[Hits]:
        """Find each query's nearest nodes.

        Scores are float64 inner products of the stored float32 vectors, ties go to the earlier node row, and a node
        with several vectors counts once, by its best. Neither depends on the rest of the batch. With a flat index
        the result is exact; other indexes give the best of the candidates they propose.

        Args:
            queries: Shape ``(q, d)``; unit rows. Another dimension is an ``IndexMismatchError``.
            top_k: Most hits per query.
            within: Ranges of node rows to search, exactly with any index; None: all.
        """
        if not len(self):  # vectors of no length, such as a shard without images has
            return [_NO_HITS] * len(queries)
        if queries.ndim != 2 or queries.shape[1] != self.vectors.shape[1]:
            raise IndexMismatchError(
                f"queries of shape {queries.shape} but the index holds vectors of {self.vectors.shape[1]}: "
                "encode queries with the encoder and dim of the index"
            )
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if within is not None:
            # Every vector in the ranges is scored, gathered once for all queries.
            positions = np.flatnonzero(in_ranges(self.rows, within)).astype(np.int64)
            vectors, step = take_rows(self.vectors, positions), max(_BLOCK_SCORES // max(len(positions), 1), 1)
            blocks = (queries[first : first + step] for first in range(0, len(queries), step))
            return [
                self._among(query, rough, positions, top_k)
                for block in blocks
                for query, rough in zip(block, block @ vectors.T, strict=True)
            ]
        if self.exact:
            return self._search_flat(queries, top_k)
        n_candidates = min(top_k + max(top_k, _SLACK), len(self))
        if not n_candidates:
            return [_NO_HITS] * len(queries)
        # All at once where FAISS proposes the same for a query alone, else one at a time.
        parts = [queries] if self._in_batches else [query[None] for query in queries]
        proposed = [near for part in parts for near in self.faiss_index.search(part, n_candidates)[1]]
        return [self._rescore(query, near).prefix(top_k) for query, near in zip(queries, proposed, strict=True)]

    @functools.cached_property
    def _vectors_a_node(self) -> int:
        return int(np.unique(self.rows, return_counts=True)[1].max(initial=1))

    def _search_flat(self, queries: F32, top_k: int) -> list[Hits]:
        """Take FAISS's candidates if no other vector could score as high as their last; else score all vectors."""
        n_candidates = top_k * self._vectors_a_node + max(top_k, _SLACK)
        decided = self._decided(queries, top_k, n_candidates)
        tied = [number for number, hits in enumerate(decided) if hits is None]
        more = self._decided(queries[tied], top_k, max(min(_MORE * n_candidates, MOST_NEIGHBOURS), n_candidates))
        for number, hits in zip(tied, more, strict=True):
            decided[number] = (
                self._among(queries[number], self.vectors @ queries[number], None, top_k) if hits is None else hits
            )
        return [hits for hits in decided if hits is not None]

    def _decided(self, queries: F32, top_k: int, n_candidates: int) -> list[Hits | None]:
        """Search ``n_candidates`` candidates per query; None where another vector might belong to the top-k."""
        n_candidates = min(n_candidates, len(self))
        if not n_candidates or not len(queries):
            return [_NO_HITS] * len(queries)
        with _matrix_products(len(queries)):
            scores, neighbours = self.faiss_index.search(queries, n_candidates)
        decided: list[Hits | None] = []
        for query, floor, near in zip(queries, scores[:, -1], neighbours, strict=True):
            hits = self._rescore(query, near)
            is_sure = len(hits) >= top_k and hits.scores[top_k - 1] > floor + self._margin(query)
            decided.append(hits.prefix(top_k) if is_sure or n_candidates == len(self) else None)
        return decided

    def _among(self, query: F32, rough: F32, positions: I64 | None, top_k: int) -> Hits:
        """Rescore those of these vectors (None: all) that may be among the top-k, with all ties at the border.

        ``rough`` are their scores as float32 sums.
        """
        n = min(top_k * self._vectors_a_node, len(rough))
        if not n:
            return _NO_HITS
        border = np.partition(rough, len(rough) - n)[len(rough) - n]
        near = np.flatnonzero(rough >= border - self._margin(query)).astype(np.int64)
        return self._rescore(query, near if positions is None else positions[near]).prefix(top_k)

    def _margin(self, query: F32) -> float:
        """Bound the difference of two float32 sums of d products: each has at most d rounding errors."""
        return float(2 * len(query) * _FLOAT32_UNIT * np.linalg.norm(query))

    def _rescore(self, query: F32, positions: I64) -> Hits:
        positions = positions[positions >= 0]  # FAISS fills up with -1 when it finds fewer
        wide = np.asarray(self.vectors[positions], dtype=np.float64)
        return ranked(self.rows[positions], (wide * query.astype(np.float64)).sum(axis=-1))


@contextmanager
def _matrix_products(n_queries: int) -> Iterator[None]:
    """Make FAISS multiply matrices for a few queries too: by default it needs hundreds, and takes 7 × as long.

    It gets few large blocks of vectors: threads meet after each. The settings are the whole process's. They change
    speed and the last bits of scores, which are computed again anyway.
    """
    import faiss

    settings, few = faiss.cvar, n_queries < _FEW_QUERIES
    before = settings.distance_compute_blas_threshold, settings.distance_compute_blas_database_bs
    threshold, block = before if few else (1, max(before[1], _BLOCK_SCORES // n_queries))
    settings.distance_compute_blas_threshold, settings.distance_compute_blas_database_bs = threshold, block
    try:
        yield
    finally:
        settings.distance_compute_blas_threshold, settings.distance_compute_blas_database_bs = before


def ranked(rows: I64, scores: F64) -> Hits:
    """Order by decreasing score, ties to the earlier row, each row once by its best score."""
    order = np.lexsort((rows, -scores))
    _, first = np.unique(rows[order], return_index=True)
    order = order[np.sort(first)]
    return Hits(rows[order], scores[order])


def merge_hits(parts: Sequence[Hits], top_k: int) -> Hits:
    """Merge a query's hits in the shards of an index, each searched for at least ``top_k``: those of the whole."""
    rows = np.concatenate([hits.rows for hits in parts])
    scores = np.concatenate([hits.scores for hits in parts])
    return ranked(rows, scores).prefix(top_k)


_NO_HITS = Hits(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))


def _filled(vectors: F32, factory: str, train_on_gpu: bool) -> Any:
    import faiss

    try:
        index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(
            f"index.factory is {factory!r}, which FAISS does not know ({_reason(error)}): try Flat"
        ) from error
    if not len(vectors):
        return index
    threads = faiss.omp_get_max_threads()
    if "HNSW" in factory:
        faiss.omp_set_num_threads(1)  # with several threads the graph would differ from build to build
    try:
        if train_on_gpu:
            gpu.train_and_add(index, vectors)
        else:
            index.train(np.ascontiguousarray(vectors))
            index.add(np.ascontiguousarray(vectors))
    except RuntimeError as error:
        raise ConfigError(
            f"index.factory is {factory!r} but the index has {len(vectors):,} vectors, too few to train it "
            f"({_reason(error)}): use Flat or fewer lists"
        ) from error
    finally:
        faiss.omp_set_num_threads(threads)
    return index


def _reason(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[-1].strip()
