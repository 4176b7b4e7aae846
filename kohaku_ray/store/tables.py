"""The tables of a run: their columns, and what joins those of its blocks, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

_STRINGS = pa.list_(pa.string())
_NUMBERS = pa.map_(pa.string(), pa.float64())

SCHEMAS: dict[str, pa.Schema] = {
    "answers": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("attempt", pa.int32()),
            ("seed", pa.int64()),
            ("answer", pa.string()),
            ("answer_value", pa.string()),
            ("answer_unit", pa.string()),
            ("ref_ids", _STRINGS),
            ("explanation", pa.string()),
            ("is_blank", pa.bool_()),
            ("n_foreign_refs", pa.int32()),
            ("flags", _STRINGS),
            ("measures", _NUMBERS),
            ("reply", pa.string()),
            ("details", pa.string()),
            ("error", pa.string()),
        ]
    ),
    "votes": pa.schema(
        [
            ("question_id", pa.string()),
            ("question", pa.string()),
            ("asked_unit", pa.string()),
            ("answer", pa.string()),
            ("answer_value", pa.string()),
            ("answer_unit", pa.string()),
            ("ref_ids", _STRINGS),
            ("explanation", pa.string()),
            ("is_blank", pa.bool_()),
            ("winner", pa.int32()),
            ("groups", _STRINGS),
            ("group_weights", pa.list_(pa.float64())),
            ("n_members", pa.int32()),
            ("n_blank", pa.int32()),
            ("n_errors", pa.int32()),
        ]
    ),
    "trace": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("attempt", pa.int32()),
            ("step", pa.string()),
            ("rank", pa.int32()),
            ("node_id", pa.string()),
            ("doc_id", pa.string()),
            ("kind", pa.string()),
            ("text", pa.string()),
            ("scores", _NUMBERS),
            ("note", pa.string()),
            ("error", pa.string()),
        ]
    ),
    "usage": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("key", pa.string()),
            ("role", pa.string()),
            ("attempt", pa.int32()),
            ("source", pa.string()),
            ("deployment", pa.string()),
            ("replica", pa.string()),
            ("prompt_tokens", pa.int64()),
            ("cached_tokens", pa.int64()),
            ("completion_tokens", pa.int64()),
            ("wait_s", pa.float64()),
            ("queue_s", pa.float64()),
            ("service_s", pa.float64()),
            ("gpu_s", pa.float64()),
            ("joules", pa.float64()),
            ("dollars", pa.float64()),
            ("finish_reason", pa.string()),
        ]
    ),
}
"""Columns of a run's Parquet files; all but usage are identical after every resume."""

LATER_COLUMNS = frozenset({"finish_reason"})
"""Columns that runs of older versions do not have: read as null."""

ANSWER_FILES = ("submission.csv", "answers.jsonl")
"""The voted answers, which every run writes beside its tables."""

SHARED = -1
"""Member number of steps shared by all members: the evidence with ``scope: answer``."""

SPENT = ("prompt_tokens", "cached_tokens", "completion_tokens", "queue_s", "service_s", "gpu_s", "joules", "dollars")
"""Columns of usage that can be summed."""


AnyRow = TypeVar("AnyRow")
Key = TypeVar("Key")


def grouped(rows: Iterable[AnyRow], key: Callable[[AnyRow], Key]) -> dict[Key, list[AnyRow]]:
    """Group rows by a key, in order of appearance."""
    groups: dict[Key, list[AnyRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


Tables = dict[str, pa.Table]
"""A block's tables, by the names of ``SCHEMAS``."""

ROW_GROUP_BYTES = 64 * 2**20
"""Size in memory at which a row group of a table is written: what the joining process holds of it."""


class TableWriter:
    """Writes tables one after the other to a Parquet file, in row groups of ``ROW_GROUP_BYTES``.

    A smaller whole is one row group. The file's bytes depend on the rows and on the tables' sizes alone.
    """

    def __init__(self, file: str, schema: pa.Schema) -> None:
        """Open a file."""
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._held: list[pa.Table] = []
        self._held_bytes = 0

    def __enter__(self) -> TableWriter:
        """Write while the block runs."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Write what is held, unless the block failed."""
        if kind is None:
            self._write()
        self._writer.close()

    def add(self, table: pa.Table) -> None:
        """Take the next table."""
        self._held.append(table)
        self._held_bytes += table.nbytes  # a small table's row group has thousands of them: each is asked once
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held))
            self._held, self._held_bytes = [], 0
