"""Array types, vector keys and hits, and arrays as columns of Arrow tables, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KEY_BYTES = 16
"""Bytes of a vector key: with 128 bits, a collision among 10¹² texts has a probability of about 10⁻¹⁵."""

Keys = npt.NDArray[np.void]
"""Vector keys, shape ``(n,)`` of ``V16``: they sort, compare and convert as whole bytes, trailing zeros included."""


@dataclass(frozen=True, slots=True)
class Hits:
    """The nodes one query found, best first.

    Attributes:
        rows: Shape ``(k,)``; row of each node in the node table.
        scores: Shape ``(k,)``; cosine similarity or BM25 score, never increasing.
    """

    rows: I64
    scores: F64

    def __len__(self) -> int:
        """Count the hits."""
        return len(self.rows)

    def prefix(self, k: int) -> Hits:
        """Keep the ``k`` best: the same list a search for ``k`` would have returned."""
        return Hits(self.rows[:k], self.scores[:k])


def as_keys(keys: npt.NDArray[np.void] | npt.NDArray[np.bytes_]) -> Keys:
    """View an array of 16-byte strings as keys."""
    seen: Keys = np.ascontiguousarray(keys).view(f"V{KEY_BYTES}")
    return seen


def no_keys() -> Keys:
    """Make an array of no keys."""
    return np.empty(0, dtype=f"V{KEY_BYTES}")


def matrix_column(vectors: F32) -> pa.FixedSizeListArray:
    """Wrap a float32 matrix as an Arrow column of fixed-size lists."""
    flat = np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def column_matrix(column: pa.ChunkedArray) -> F32:
    """View a column of fixed-size lists as a float32 matrix; only several chunks are copied."""
    d = column.type.list_size
    parts = [chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, d) for chunk in column.chunks]
    if len(parts) == 1:
        only: F32 = parts[0]
        return only
    return np.concatenate([np.empty((0, d), dtype=np.float32), *parts])


def key_column(keys: Keys) -> pa.FixedSizeBinaryArray:
    """Wrap vector keys as an Arrow column of 16-byte strings."""
    data = pa.py_buffer(np.ascontiguousarray(keys))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(keys), [None, data])


def column_keys(column: pa.ChunkedArray) -> Keys:
    """Copy a column of 16-byte strings as vector keys."""
    parts = [
        np.frombuffer(chunk.buffers()[1], f"V{KEY_BYTES}")[chunk.offset :][: len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([no_keys(), *parts])
