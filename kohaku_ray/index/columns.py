"""Columns of tables: read value by value, or as matrices and keys without a copy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kohaku_ray.index.arrays import F32
from kohaku_ray.index.identity import KEY_BYTES, Keys, no_keys

MOST_LISTED = 8192
"""Most rows of a table whose columns are read as lists: those of a question's evidence, not those of an index."""


class Columns:
    """A table's columns, looked up once: Arrow wraps a column at every access, which takes longer than reading it."""

    def __init__(self, table: pa.Table) -> None:
        """Hold a table."""
        self.table = table
        self._found: dict[str, pa.Array | pa.ChunkedArray] = {}
        self._lists: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> pa.Array | pa.ChunkedArray:
        """Return a column, unwrapped from its one chunk."""
        if name not in self._found:
            column = self.table[name]
            self._found[name] = column.chunk(0) if column.num_chunks == 1 else column
        return self._found[name]

    def value(self, name: str, row: int) -> Any:
        """Read a value; a small table's columns are lists, whose items are read in a hundredth of the time."""
        if self.table.num_rows > MOST_LISTED:
            return self[name][row].as_py()
        if name not in self._lists:
            self._lists[name] = self[name].to_pylist()
        return self._lists[name][row]


class Lists(NamedTuple):
    """The arrays of a ``NodeTable`` as lists: to read a few rows at a time, they are several times faster."""

    parent: list[int]
    kind: list[int]
    end: list[int]
    tokens: list[int]
    chars: list[int]


def matrix_column(vectors: npt.NDArray[np.float32]) -> pa.FixedSizeListArray:
    """Wrap a float32 matrix as an Arrow column of fixed-size lists, without a copy."""
    flat = np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def column_matrix(column: pa.ChunkedArray) -> F32:
    """View a column of fixed-size lists as a float32 matrix; one chunk is not copied."""
    d = column.type.list_size
    parts = [chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, d) for chunk in column.chunks]
    if len(parts) == 1:
        only: F32 = parts[0]
        return only
    return np.concatenate([np.empty((0, d), dtype=np.float32), *parts])


def column_keys(column: pa.ChunkedArray) -> Keys:
    """Copy a column of 16-byte strings as vector keys."""
    parts = [
        np.frombuffer(chunk.buffers()[1], f"V{KEY_BYTES}")[chunk.offset :][: len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([no_keys(), *parts])
