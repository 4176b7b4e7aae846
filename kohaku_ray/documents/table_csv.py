"""Paragraph CSV: a document that another tool has already cut into paragraphs, one per row."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from kohaku_ray.documents.content import decode_text
from kohaku_ray.documents.ids import default_doc_id
from kohaku_ray.documents.kohakurag import MAX_PAGE
from kohaku_ray.documents.model import Document, Paragraph, Section
from kohaku_ray.documents.sentences import split_sentences
from kohaku_ray.errors import DataError

COLUMNS = ("text", "doc_id", "section", "page", "title")
"""Columns read; other columns are metadata where all rows hold one value."""

MAX_CELL_CHARS = 10_000_000
"""Longest cell, in characters."""


def parse_csv(name: str, data: bytes) -> Document:
    """Parse a CSV of one paragraph per row.

    The column ``text`` is required. ``section`` titles a run of rows, ``page`` counts from 1, ``title`` and ``doc_id``
    are the document's and the same in every row that has them. Rows without a text are left out.

    Args:
        name: The file, for messages and the default ``doc_id``.
        data: Its content.

    Returns:
        The document; any other column that holds a single value is its metadata.

    Raises:
        DataError: A row has more or fewer cells than the header, a page is not a number, the file holds several
            documents, or has no column ``text``.
    """
    rows = _rows(name, decode_text(name, data))
    doc_id = _only(name, rows, "doc_id") or default_doc_id(name)
    title = _only(name, rows, "title") or doc_id
    sections = []
    texts = [(line, row) for line, row in rows if row["text"]]
    for section, members in groupby(texts, key=lambda item: item[1].get("section", "")):
        paragraphs = tuple(
            Paragraph(row["text"], split_sentences(row["text"]), _page(name, line, row.get("page", "")))
            for line, row in members
        )
        sections.append(Section(section or title, paragraphs, paragraphs[0].page))
    return Document(doc_id, title, tuple(sections), _metadata(rows))


def _rows(name: str, text: str) -> list[tuple[int, dict[str, str]]]:
    """Rows with the line they begin on, cells trimmed, column names in lower case."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(MAX_CELL_CHARS)
    rows: list[tuple[int, dict[str, str]]] = []
    header: list[str] | None = None
    try:
        line = 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                if header is None:
                    header = _header(name, cells)
                else:
                    rows.append((line, _row(name, line, header, cells)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{name} is not CSV: {error} at line {reader.line_num}: quote texts and double quotes in them."
        ) from None
    finally:
        csv.field_size_limit(limit)
    return rows


def _header(name: str, cells: Sequence[str]) -> list[str]:
    header = [cell.strip().lower() for cell in cells]
    if "text" not in header:
        raise DataError(
            f"{name} has no column text, its columns are {', '.join(map(repr, header[:10]))}: "
            f"rename the column of the paragraphs to text (also read: {', '.join(COLUMNS[1:])})."
        )
    repeated = next((column for column, n in Counter(header).items() if column and n > 1), None)
    if repeated:
        raise DataError(f"{name} has two columns called {repeated!r}: rename or remove one.")
    return header


def _row(name: str, line: int, header: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise DataError(
            f"{name}: line {line} has {len(cells)} cells, the header has {len(header)}: "
            "put texts with commas or line breaks in double quotes."
        )
    return {column: cell.strip() for column, cell in zip(header, cells, strict=True)}


def _only(name: str, rows: Sequence[tuple[int, Mapping[str, str]]], column: str) -> str:
    """The one value of a column; empty where it has none."""
    first = ""
    for line, row in rows:
        value = row.get(column, "")
        if first and value and value != first:
            raise DataError(
                f"{name} holds several documents: {column} is {first!r}, then {value!r} at line {line}: "
                "write one file per document."
            )
        first = first or value
    return first


def _page(name: str, line: int, page: str) -> int | None:
    if not page:
        return None
    if not (page.isascii() and page.isdigit() and len(page) <= 10 and int(page) <= MAX_PAGE):
        raise DataError(f"{name}: line {line}: page is {page[:40]!r}, expected a whole number from 0 to {MAX_PAGE}.")
    return int(page)


def _metadata(rows: Sequence[tuple[int, Mapping[str, str]]]) -> dict[str, str]:
    """Columns beside `COLUMNS` in which all rows hold one value."""
    others = [column for column in (rows[0][1] if rows else {}) if column and column not in COLUMNS]
    values = {column: {row[column] for _, row in rows} - {""} for column in others}
    return {column: next(iter(found)) for column, found in values.items() if len(found) == 1}
