"""What parsing leaves for the reducers: typed tables beside an index, a part per parse task.

Documents need not fit into anybody's memory: a task writes what it parsed, a reducer maps the rows it needs.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from kohaku_ray.index.flatten import DOCUMENT_SCHEMA, NODE_SCHEMA
from kohaku_ray.index.identity import KEY_BYTES
from kohaku_ray.index.images import IMAGE_SCHEMA
from kohaku_ray.index.pending import FOLDER
from kohaku_ray.storage import Directory

Kind = Literal["documents", "nodes", "images", "texts"]

ROW_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("where", pa.string()),
        ("doc_id", pa.string()),
        ("reason", pa.string()),
        ("par_ids", pa.list_(pa.string())),
        ("words", pa.string()),
        ("digest", pa.string()),
        ("left_out", pa.string()),
        ("tree", pa.large_string()),
        *((f"n_{kind}", pa.int64()) for kind in ("documents", "nodes", "images", "texts")),
    ]
)
"""One row per document, and one per file or part of a file that cannot be used.

``where`` is the file, or which part of it; ``reason`` is null for a document; ``digest`` is of document and nodes;
``left_out`` a JSON object, the images that carry no content by reason; ``tree`` the document as ``bounded.packed``
writes it, where a model describes its images; ``n_KIND`` the document's rows of that table.
"""

NEW_TEXT_SCHEMA = pa.schema([("key", pa.binary(KEY_BYTES)), ("n_tokens", pa.int64())])
"""Texts of a document that have no vector yet, special tokens counted."""

_SCHEMAS: Mapping[Kind, pa.Schema] = {
    "documents": DOCUMENT_SCHEMA,
    "nodes": NODE_SCHEMA,
    "images": IMAGE_SCHEMA,
    "texts": NEW_TEXT_SCHEMA,
}


class ParsedParts:
    """The parts of one job; each is written whole or not at all, and by a repeated task under the same name."""

    def __init__(self, path: str, job: str) -> None:
        """Open the parts of a job, a unique name, beside the index at a path."""
        self._directory = Directory(path)
        self._prefix = f"{FOLDER}/parsed-{job}-"

    def write(self, part: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a part.

        Args:
            part: Its name; parts are read in the order of their names.
            rows: Columns of ``ROW_SCHEMA`` without the numbers, and for a document its tables: documents, nodes,
                images and texts (absent: empty).

        Raises:
            DataError: The directory cannot be written.
        """
        numbers: list[dict[str, int]] = [{} for _ in rows]
        for kind, schema in _SCHEMAS.items():
            tables = [schema.empty_table() if row.get(kind) is None else row[kind].select(schema.names) for row in rows]
            for number, table in zip(numbers, tables, strict=True):
                number[f"n_{kind}"] = len(table)
            self._write(f"{part}.{kind}", pa.concat_tables([schema.empty_table(), *tables]))
        columns = [name for name in ROW_SCHEMA.names if not name.startswith("n_")]
        plain = [{name: row.get(name) for name in columns} | number for row, number in zip(rows, numbers, strict=True)]
        self._write(f"{part}.rows", pa.Table.from_pylist(plain, ROW_SCHEMA))  # the last: now the part is whole

    def names(self) -> list[str]:
        """List the parts that are whole."""
        end = ".rows.arrow"
        return [name[len(self._prefix) : -len(end)] for name in self._files() if name.endswith(end)]

    def rows(self, *columns: str, parts: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Read what names the documents and rejects, and where their tables are (``at``).

        Args:
            columns: Further columns: ``left_out``, ``tree``.
            parts: Names of the parts to read. Default: all.
        """
        wanted = ["file", "where", "doc_id", "reason", "par_ids", "words", "digest", *columns]
        found: list[dict[str, Any]] = []
        for part in self.names() if parts is None else parts:
            table = self._directory.read_arrow(self._name(f"{part}.rows"))
            ends = {kind: np.cumsum(table[f"n_{kind}"].to_numpy()).tolist() for kind in _SCHEMAS}
            for number, row in enumerate(table.select(wanted).to_pylist()):
                spans = {kind: (end[number - 1] if number else 0, end[number]) for kind, end in ends.items()}
                found.append({**row, "at": (part, spans)})
        return found

    def table(self, rows: Sequence[Mapping[str, Any]], kind: Kind) -> pa.Table:
        """Join the tables of some documents, in the order of the rows; local files are mapped, not copied.

        Args:
            rows: Documents, as ``rows`` gives them.
            kind: Which of their tables.
        """
        return pa.concat_tables([_SCHEMAS[kind].empty_table(), *self.tables(rows, kind)])

    def tables(self, rows: Sequence[Mapping[str, Any]], kind: Kind) -> list[pa.Table]:
        """Read the tables of some documents, one each."""
        places: dict[str, list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            places[row["at"][0]].append(number)
        found: dict[int, pa.Table] = {}
        for part, numbers in places.items():
            whole = self._directory.read_arrow(self._name(f"{part}.{kind}"))
            for number in numbers:
                first, last = rows[number]["at"][1][kind]
                found[number] = whole.slice(first, last - first)
        return [found[number] for number in range(len(rows))]

    def clear(self) -> None:
        """Remove the job's parts."""
        for name in self._files():
            self._directory.remove(name)

    def _files(self) -> list[str]:
        return [name for name in self._directory.names(FOLDER) if name.startswith(self._prefix)]

    def _write(self, name: str, table: pa.Table) -> None:
        temporary = f"{self._name(name)}.{uuid.uuid4().hex[:8]}.tmp"
        self._directory.write_arrow(temporary, table)
        self._directory.rename(temporary, self._name(name))

    def _name(self, name: str) -> str:
        return f"{self._prefix}{name}.arrow"


def part_name(first: int, n_files: int) -> str:
    """Name a part by the files it is made of: their first number and how many they are."""
    return f"{first:09d}-{n_files:06d}"


def n_files_of(parts: Iterable[str]) -> int:
    """Count the files that parts are made of."""
    return sum(int(part.rpartition("-")[2]) for part in parts)
