"""Find where each document's node rows are in an index of several shards."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kohaku_ray.index.arrays import I64
from kohaku_ray.index.vectors import Ranges

LAYOUT_SCHEMA = pa.schema([("doc_id", pa.string()), ("shard", pa.int32()), ("n_nodes", pa.int64())])
"""One row per document, by id: the place of its shard among the shards, and its number of nodes."""


def shard_number(doc_id: str, n_shards: int) -> int:
    """Assign a document to a shard by its id alone: a new document changes no other's shard."""
    return int.from_bytes(hashlib.blake2b(doc_id.encode(), digest_size=8).digest(), "big") % n_shards


@dataclass(frozen=True)
class ShardLayout:
    """The rows of every document: in the whole index, whose documents are ordered by id, and in its shard.

    Attributes:
        doc_ids: Every document's id, shape ``(n,)``; sorted.
        shard: Shape ``(n,)``; place of each document's shard.
        first: Shape ``(n + 1,)``; first row of each document in the whole index, then the number of rows.
        first_in_shard: Shape ``(n,)``; first row of each document in its shard.
    """

    doc_ids: npt.NDArray[np.object_]
    shard: npt.NDArray[np.int32]
    first: I64
    first_in_shard: I64

    @classmethod
    def of(cls, table: pa.Table) -> ShardLayout:
        """Read a layout from its ``LAYOUT_SCHEMA`` table."""
        shard, n_nodes = table["shard"].to_numpy(), table["n_nodes"].to_numpy()
        inside = np.zeros(len(shard), np.int64)
        for number in np.unique(shard):
            of_shard = shard == number
            inside[of_shard] = np.cumsum(n_nodes[of_shard]) - n_nodes[of_shard]
        doc_ids = table["doc_id"].to_numpy(zero_copy_only=False)
        return cls(doc_ids, shard, np.r_[0, np.cumsum(n_nodes)].astype(np.int64), inside)

    @functools.cached_property
    def shards(self) -> list[int]:
        """All shards."""
        return [int(shard) for shard in np.unique(self.shard)]

    @functools.cached_property
    def number_of(self) -> dict[str, int]:
        """Number of each document among all."""
        return {doc_id: number for number, doc_id in enumerate(self.doc_ids)}

    def ranges(self, doc_ids: Iterable[str], shard: int | None = None) -> Ranges:
        """List the rows of documents in the whole index; with ``shard``, of those that it holds, its own rows."""
        numbers = (self.number_of[doc_id] for doc_id in doc_ids)
        documents = np.array([row for row in numbers if shard is None or self.shard[row] == shard], np.int64)
        first = (self.first if shard is None else self.first_in_shard)[documents]
        last = first + self.first[documents + 1] - self.first[documents]
        return tuple(zip(first.tolist(), last.tolist(), strict=True))

    def shard_of(self, rows: I64) -> npt.NDArray[np.int32]:
        """Find the shard of rows of the whole index: shape ``(k,)``."""
        return self.shard[self._document(rows)]

    def to_shard(self, rows: I64) -> I64:
        """Turn rows of the whole index into rows of their shard: shape ``(k,)``."""
        if len(self.shards) == 1:
            return rows
        document = self._document(rows)
        return rows - self.first[document] + self.first_in_shard[document]

    def to_whole(self, shard: int, rows: I64) -> I64:
        """Turn rows of a shard into rows of the whole index: shape ``(k,)``; their order stays."""
        if len(self.shards) == 1:
            return rows
        of_shard = self._documents_of[shard]
        document = of_shard[np.searchsorted(self.first_in_shard[of_shard], rows, side="right") - 1]
        return rows - self.first_in_shard[document] + self.first[document]

    def _document(self, rows: I64) -> I64:
        return np.searchsorted(self.first, rows, side="right") - 1

    @functools.cached_property
    def _documents_of(self) -> dict[int, I64]:
        return {shard: np.flatnonzero(self.shard == shard) for shard in self.shards}
