"""Columns of a node table, read value by value."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

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
