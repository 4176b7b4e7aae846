"""Read the format ``news``: a CSV of many articles, one paragraph per row."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kohaku_ray.documents.data.rows import csv_rows, say_short
from kohaku_ray.documents.formats import DocumentFormat
from kohaku_ray.documents.model import Attributes, Document, Paragraph, Parsed, Section
from kohaku_ray.documents.text.content import decode_text, valid_doc_id
from kohaku_ray.errors import DataError
from kohaku_ray.systems.hybrid.french import split_french
from kohaku_ray.values.read import is_blank, parse_number

COLUMNS = (
    "par_id",
    "doc_id",
    "document_url",
    "document_date",
    "document_netloc",
    "document_title",
    "paragraph_text",
    "paragraph_order",
    "paragraph_score",
    "document_score",
)
"""All are required; the cells of a url, date, netloc, title or score may be empty."""

_NUMBERS = ("paragraph_score", "document_score")
_ORDER = re.compile(r"([+-]?\d{1,9})(?:\.0*)?", re.ASCII)
_YEAR = re.compile(r"(?<!\d)(?:1[89]|20)\d\d(?!\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Row:
    doc_id: str
    text: str
    order: int
    attributes: Attributes


def parse_news(file_id: str, data: bytes) -> Parsed:
    """Parse a CSV of news paragraphs into articles, in order of first occurrence; every row is a paragraph or a reject.

    An article is one section; its paragraphs are sorted by ``paragraph_order`` (ties: file order). Their attributes are
    the row's columns except ``doc_id`` and ``paragraph_text``; ``prev_par_id`` and ``next_par_id`` are the neighbour
    whose order is one less or one more, else None. Empty cells are None. Each key of the metadata (url, date, year,
    netloc) has the first value that a paragraph gives.
    """
    rejects: list[tuple[str, str]] = []
    articles: dict[str, list[_Row]] = {}
    first_lines: dict[str, int] = {}
    short_of: dict[str, list[int]] = {}
    way_out = "add them (cells may be empty) and separate columns by commas"
    if not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.replace(b"\0", b"")  # one costs no other article
    text, _ = decode_text(file_id, data)
    rows, lines = csv_rows(file_id, text, COLUMNS, way_out)
    short = frozenset(lines)
    for line, row in rows:
        try:
            if isinstance(row, str):
                raise DataError(row)
            read = _row(row)
            par_id = row["par_id"]
            if par_id in first_lines:
                raise DataError(
                    f"par_id {par_id!r} is already used at line {first_lines[par_id]}: give each row its own"
                )
        except DataError as error:
            reason = f"{error} (the row has fewer cells than the header)" if line in short else str(error)
            rejects.append((f"{file_id}: line {line}", reason))
            continue
        if line in short:
            short_of.setdefault(read.doc_id, []).append(line)
        first_lines[par_id] = line
        articles.setdefault(read.doc_id, []).append(read)
    documents = (
        replace(_document(doc_id, paragraphs), odd=say_short(short_of.get(doc_id, ())))
        for doc_id, paragraphs in articles.items()
    )
    return Parsed(tuple(documents), tuple(rejects))


def _document(doc_id: str, rows: Sequence[_Row]) -> Document:
    rows = sorted(rows, key=lambda row: row.order)
    for row, following in pairwise(rows):
        if following.order == row.order + 1:
            row.attributes["next_par_id"] = following.attributes["par_id"]
            following.attributes["prev_par_id"] = row.attributes["par_id"]
    paragraphs = tuple(Paragraph(row.text, split_french(row.text), attributes=row.attributes) for row in rows)
    known = {
        name: next((str(row.attributes[f"document_{name}"]) for row in rows if row.attributes[f"document_{name}"]), "")
        for name in ("title", "url", "date", "netloc")
    }
    title = known.pop("title") or doc_id
    year = _YEAR.search(known["date"])
    metadata = {"type": "news", **known, "year": year[0] if year else ""}
    return Document(
        doc_id, title, (Section(title, paragraphs),), {key: value for key, value in metadata.items() if value}
    )


def _row(row: Mapping[str, str]) -> _Row:
    """Convert a row's cells; DataError with the reason where one cannot be used."""
    empty = [column for column in ("par_id", "doc_id", "paragraph_text") if not row[column]]
    if empty:
        raise DataError(f"{' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty: fill in or remove the row")
    if not row["par_id"].isprintable():
        raise DataError(f"par_id {row['par_id'][:40]!r} holds a line break or control character: remove it")
    order = _ORDER.fullmatch(row["paragraph_order"])
    if order is None:
        raise DataError(f"paragraph_order is {row['paragraph_order'][:40]!r}, expected a whole number such as 0")
    attributes: Attributes = {
        column: cell or None for column, cell in row.items() if column not in ("doc_id", "paragraph_text")
    }
    attributes |= {column: _number(column, row[column]) for column in _NUMBERS}
    attributes |= {"paragraph_order": int(order[1]), "prev_par_id": None, "next_par_id": None}
    return _Row(valid_doc_id(row["doc_id"], "news row"), row["paragraph_text"], int(order[1]), attributes)


def _number(column: str, cell: str) -> float | None:
    number = parse_number(cell)
    if number is None and not is_blank(cell):
        raise DataError(f"{column} is {cell[:40]!r}, expected a number or nothing")
    return number


NEWS = DocumentFormat((".csv",), parse_news)
