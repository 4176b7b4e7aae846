"""A run's tables as parts, one per block; whoever joins them in the questions' order holds one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Tables = dict[str, pa.Table]
"""A block's tables, by the names of ``SCHEMAS``."""

ROW_GROUP_BYTES = 64 * 2**20
"""Size in memory at which a row group of a table is written: what the joining process holds of it."""


class Parts:
    """The tables of a run's blocks, in the questions' order; they can be read again."""

    def __init__(self, blocks: Sequence[Any], get: Callable[[Any], Tables]) -> None:
        """Name the blocks.

        Args:
            blocks: One value per block.
            get: Fetches the tables of one of them.
        """
        self._blocks, self._get = blocks, get
        self._votes: Sequence[pa.Table] | None = None

    def __iter__(self) -> Iterator[Tables]:
        """Fetch the tables of each block in turn."""
        for number, block in enumerate(self._blocks):
            tables = self._get(block)
            yield tables if self._votes is None else {**tables, "votes": self._votes[number]}

    def table(self, name: str) -> Iterator[pa.Table]:
        """Fetch one table of each block in turn."""
        return (tables[name] for tables in self)

    def replace_votes(self, votes: Iterable[pa.Table]) -> None:
        """Hold these votes, one table per block, instead of the blocks' own."""
        self._votes = list(votes)


def write_parquet(file: str, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Write tables one after the other, in row groups of ``ROW_GROUP_BYTES``; a smaller whole is one row group.

    The file's bytes depend on the rows and on the parts' sizes alone.
    """
    held: list[pa.Table] = []
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            held.append(part)
            if sum(table.nbytes for table in held) >= ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(held))
                held = []
        if held:
            writer.write_table(pa.concat_tables(held))
