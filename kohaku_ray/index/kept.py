"""Documents of the index that is there: those of a file that has not changed are taken over, and not parsed again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.images import IMAGE_SCHEMA
from kohaku_ray.index.store import Index, read_table

PARSED_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("name", "doc_id", "digest")),
        ("par_ids", pa.list_(pa.string())),
        *((name, pa.string()) for name in ("words", "left_out")),
    ]
)
"""What parsing told of each document besides its tables, by the name of its file in ``SOURCES_SCHEMA``; see
``pending.ROW_SCHEMA``."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file as it was parsed: digest of its content, and of all else that its documents follow from."""

    digest: str
    made: str
    beside: str | None


@dataclass(frozen=True)
class KeptDocuments:
    """The documents of an index, by the file they were parsed from.

    Attributes:
        index: None: nothing is taken over.
    """

    index: Index | None = None

    @classmethod
    def open(cls, path: str, settings: Mapping[str, Any] | None = None) -> KeptDocuments:
        """Open those of an index of these settings (``IndexSettings``); none of another, a missing or a damaged one."""
        try:
            return cls(Index.open(path, settings))
        except StorageError:
            raise
        except DataError:
            return cls()

    @functools.cached_property
    def sources(self) -> Mapping[str, Source]:
        """The files whose documents are all in the index, by name."""
        table = None if self.index is None else self.index.sources
        if table is None or "made" not in table.column_names:  # of an earlier version
            return {}
        rows = zip(*(table[name].to_pylist() for name in ("name", "digest", "made", "beside")), strict=True)
        return {name: Source(digest, made, beside) for name, digest, made, beside in rows if digest and made}

    @functools.cached_property
    def documents(self) -> Mapping[str, list[dict[str, Any]]]:
        """Rows of ``PARSED_SCHEMA``, by name of the file."""
        rows: dict[str, list[dict[str, Any]]] = {}
        if self.index is not None and "parsed" in self.index.manifest["files"]:
            for row in read_table(self.index.directory, self.index.manifest["files"]["parsed"]).to_pylist():
                rows.setdefault(row["name"], []).append(row)
        return rows

    def tables(self, doc_ids: Sequence[str], kind: str) -> list[pa.Table]:
        """Read the rows of documents, a table each: of kind documents, nodes or images.

        Raises:
            DataError: A table is damaged.
        """
        assert self.index is not None, "documents are taken over from an index"
        if kind == "images":
            return [_of_documents(self._images, [doc_id]) for doc_id in doc_ids]
        layout = self.index.layout
        numbers = np.array([layout.number_of[doc_id] for doc_id in doc_ids], np.int64)
        if kind == "documents":
            place = {doc_id: row for row, doc_id in enumerate(self.index.documents["doc_id"].to_pylist())}
            return [self.index.documents.slice(place[doc_id], 1) for doc_id in doc_ids]
        shards = self.index.shards
        firsts, sizes = layout.first_in_shard[numbers], layout.first[numbers + 1] - layout.first[numbers]
        owners = layout.shard[numbers]
        return [
            shards[owner].node_rows.slice(first, size) for owner, first, size in zip(owners, firsts, sizes, strict=True)
        ]

    def n_nodes(self, doc_ids: Sequence[str]) -> int:
        """Count the nodes of documents."""
        if self.index is None or not doc_ids:
            return 0
        layout = self.index.layout
        numbers = np.array([layout.number_of[doc_id] for doc_id in doc_ids], np.int64)
        return int((layout.first[numbers + 1] - layout.first[numbers]).sum())

    @functools.cached_property
    def _images(self) -> pa.Table:
        assert self.index is not None
        entry = self.index.manifest["files"].get("images")
        return IMAGE_SCHEMA.empty_table() if entry is None else read_table(self.index.directory, entry)


def _of_documents(table: pa.Table, doc_ids: Sequence[str]) -> pa.Table:
    return table.filter(pc.is_in(table["doc_id"], pa.array(doc_ids, pa.string())))
