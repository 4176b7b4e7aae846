"""Documents in the rows of JSON lines or Parquet: one per row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kohaku_ray.documents.content import flat_metadata, well_formed
from kohaku_ray.documents.ids import check_doc_id, default_doc_id
from kohaku_ray.documents.kohakurag import parse_kohakurag
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.row_files import cell_of, read_rows
from kohaku_ray.documents.text import text_sections
from kohaku_ray.errors import DataError

ROW_FORMATS = (".jsonl", ".ndjson", ".parquet")
"""Suffixes of files with a document per row; they are read where they are named, not found in directories."""

IDS = ("document_id", "doc_id", "id")
"""Columns of a document's id; the first one present is read. Default: the file's name and the row's number."""

TEXTS = ("text", "content", "body")
"""Columns of its text, likewise."""


def parse_rows(name: str, data: bytes) -> tuple[list[Document], list[tuple[str, str]]]:
    """Parse a file with a document per row.

    A row has a text, and may have an id, a title and metadata in all other columns; or it is a KohakuRAG document, with
    ``sections``.

    Args:
        name: The file, for messages and default ids.
        data: Its content.

    Returns:
        The documents, and rows that cannot be used, each with its place and the reason.

    Raises:
        DataError: The file cannot be read, or has no column of texts.
    """
    rows = read_rows(name, data, "documents")
    columns = dict.fromkeys(column for row in rows for column in row)
    if not {*TEXTS, "sections"} & columns.keys():
        shown = ", ".join(list(columns)[:12]) or "none"
        raise DataError(f"{name} has no column {' or '.join(TEXTS)}; its columns are {shown}: rename that of the text.")
    documents: list[Document] = []
    rejects: list[tuple[str, str]] = []
    for number, row in enumerate(rows):
        try:
            documents.append(_document(f"{default_doc_id(name)}-{number}", row))
        except DataError as error:
            rejects.append((f"{name}: row {number}", str(error)))
    return documents, rejects


def _document(default: str, row: Mapping[str, Any]) -> Document:
    doc_id = check_doc_id(_first(row, IDS) or default, "row")
    if row.get("sections"):
        root = {**row, "document_id": doc_id}
        return parse_kohakurag(default, json.dumps(root, default=str).encode())
    text = _first(row, TEXTS)
    if not text:
        raise DataError(
            f"{' and '.join(name for name in TEXTS if name in row) or TEXTS[0]} is empty: fill in or remove it"
        )
    title = well_formed(cell_of(row.get("title"))).strip() or doc_id
    metadata = flat_metadata(
        {key: value for key, value in row.items() if key not in {*IDS, *TEXTS, "title", "sections"}}
    )
    return Document(doc_id, title, text_sections(text, title), metadata)


def _first(row: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    found = next((row[column] for column in columns if row.get(column) is not None), None)
    return well_formed(cell_of(found)).strip()
