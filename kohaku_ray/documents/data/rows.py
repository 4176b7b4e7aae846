"""Read CSV, JSON lines and Parquet: a document per row, or a paragraph per row."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from kohaku_ray.documents.data.kohakurag import MAX_PAGE, parse_kohakurag
from kohaku_ray.documents.model import Document, Paragraph, Parsed, Section
from kohaku_ray.documents.text.content import (
    clean_print,
    decode_text,
    default_doc_id,
    file_name,
    flat_metadata,
    unique_keys,
    valid_doc_id,
    well_formed,
)
from kohaku_ray.documents.text.plain import text_sections
from kohaku_ray.documents.text.sentences import split_lines, split_sentences
from kohaku_ray.documents.text.tables import written_rows
from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize

HUB = "hf://"  # prefix of a data set on the Hugging Face hub, whose rows are read as JSON lines
JSON_LINES = ("jsonl", "ndjson")

RECORD_SUFFIXES = (*JSON_LINES, "parquet")  # of files of rows whose values have types
ROW_SUFFIXES = ("csv", "tsv", *RECORD_SUFFIXES)  # of all files of rows


def suffix_of(name: str) -> str:
    """Suffix of a path or URI in lower case, without its dot; ``jsonl`` for a whole data set on the hub."""
    last = file_name(name)
    suffix = last.rpartition(".")[2].lower() if "." in last else ""
    return "jsonl" if name.startswith(HUB) and suffix not in ROW_SUFFIXES else suffix


def read_rows(
    name: str, data: bytes, what: str = "rows", rejects: list[tuple[str, str]] | None = None
) -> list[Mapping[str, Any]]:
    """Read the rows of a file by its suffix, each by column; values of CSV are texts.

    ``what`` is what rows are called in messages. ``rejects`` takes the place and reason of every bad JSON line; without
    it the first one is an error.

    Raises:
        DataError: It cannot be read in its format, or has another suffix.
    """
    suffix = suffix_of(name)
    if suffix == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(io.BytesIO(data))
            _check_columns(name, table.column_names)
            rows: list[Mapping[str, Any]] = table.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{name} is not Parquet: {error}") from None
        return rows
    if suffix in JSON_LINES:
        return list(_json_lines(name, data, rejects))
    if suffix in ("csv", "tsv"):
        return read_cells(name, decode_text(name, data)[0])[1]
    raise DataError(f"{name}: {what} are read from .csv, .tsv, .jsonl or .parquet, not .{suffix}")


MAX_HEADER_CHARS = 100_000  # of a CSV, that are looked at for its separator
_SEPARATORS = ",;\t|"  # of columns; the one that makes the most of the header is read
_COMMENTS = re.compile(r"(?:#[^\n]*\n)+")
_SEPARATOR_LINE = re.compile(r"\"?sep=([^\w\s\"]|\t)\"?[^\S\t\n]*(?:\r\n?|\n)", re.IGNORECASE)


def separator_of(text: str) -> tuple[str, int]:
    """Which character separates the columns of a CSV, and where its header begins.

    Above it may be a line ``sep=;``, or lines of comments that begin with ``#``; the last of these is the header where
    it has as many cells as the line below it.
    """
    if match := _SEPARATOR_LINE.match(text):
        return match[1], match.end()
    comments = _COMMENTS.match(text)
    start = comments.end() if comments and comments.end() < len(text) else 0
    header = next((line for line in text[start : start + MAX_HEADER_CHARS].splitlines() if line.strip()), "")
    counts = {separator: len(next(csv.reader([header], delimiter=separator), ())) for separator in _SEPARATORS}
    separator = max(_SEPARATORS, key=counts.__getitem__)
    last = text[:start].rstrip("\n").rpartition("\n")[2]
    is_header = len(next(csv.reader([last], delimiter=separator), ())) == counts[separator]
    return separator, start - len(last) - 1 if is_header and counts[separator] > 1 else start


def read_cells(name: str, text: str) -> tuple[list[str], list[Mapping[str, Any]]]:
    """Read the header of a CSV, and its rows as texts by column; a missing cell at a row's end is None.

    Raises:
        DataError: A quote is not closed, a row has more cells than the header, or two columns of one name
            differ.
    """
    separator, start = separator_of(text)
    rows: list[Mapping[str, Any]] = []
    header: list[str] | None = None
    limit = csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(text[start:], newline=""), delimiter=separator, strict=True)
    n_above = text.count("\n", 0, start)
    try:
        while True:
            line = n_above + reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise DataError(
                    f"{name}: line {line} is not CSV ({error} at line {n_above + reader.line_num}): close its "
                    "quotes, and double the quotes within a text"
                ) from None
            if cells is None:
                return header or [], rows
            if header is None:
                header = [cell.strip() for cell in cells]
                doubled = [(header.index(column), i) for i, column in enumerate(header) if column in header[:i]]
            elif cells:
                if any(map(str.strip, cells[len(header) :])):
                    raise DataError(
                        f"{name}: line {line} has {pluralize(len(cells), 'cell')}, the header has {len(header)}: put "
                        f"texts with {'commas' if separator == ',' else repr(separator)} in double quotes, or name "
                        "each column in the header"
                    )
                row = dict(zip_longest(header, cells[: len(header)]))
                if any(cells[i : i + 1] not in ([], cells[first : first + 1]) for first, i in doubled if header[i]):
                    _check_columns(name, header)  # columns that are equal lose nothing
                rows.append(row)
    finally:
        csv.field_size_limit(limit)


def _check_columns(name: str, columns: Sequence[str]) -> None:
    doubled = next((column for column, n in Counter(columns).items() if column and n > 1), None)
    if doubled is not None:
        raise DataError(f"{name} has two columns called {doubled!r}: rename or remove one.")


def cell_of(value: Any) -> str:
    """Write a value as the cell of a CSV that means the same: lists as JSON, null as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _json_lines(name: str, data: bytes, rejects: list[tuple[str, str]] | None) -> Iterator[Mapping[str, Any]]:
    # a line ends at \n alone: str.splitlines would cut at characters that a JSON text may hold
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(decode_text("it", line)[0], object_pairs_hook=unique_keys)
            if isinstance(row, dict):
                yield row
                continue
            reason = f"a {type(row).__name__}, expected an object"
        except DataError as error:
            reason = str(error)
        except RecursionError:
            reason = "not JSON (nested too deep)"
        except ValueError as error:  # also an integer of thousands of digits
            reason = f"not JSON ({getattr(error, 'msg', error)})"
        if rejects is None:
            raise DataError(f"{name}, line {number}: {reason}")
        rejects.append((f"{name}: line {number}", reason))


ROW_FORMATS = (".jsonl", ".ndjson", ".parquet")
"""Suffixes of files with a document per row; they are read where they are named, not found in directories."""

IDS = ("document_id", "doc_id", "id", "_id", "docid")
"""Columns of a document's id; the first one present is read. Default: the file's name and the row's number."""

TEXTS = ("text", "content", "body", "contents", "page_content")  # columns of its text, likewise


def parse_rows(name: str, data: bytes) -> Parsed:
    """Parse a file with a document per row.

    A row has a text, and may have an id, a title and metadata in all other columns; or it is a KohakuRAG document, with
    ``sections``.
    """
    # Here: question files are read by this module, too, and the parsers of HTML and Markdown are slow to import.
    from kohaku_ray.documents.data.parser_output import olmocr_id

    rejects: list[tuple[str, str]] = []
    rows = read_rows(name, data, "documents", rejects)
    columns = dict.fromkeys(column for row in rows for column in row)
    if rows and not {*TEXTS, "sections"} & columns.keys():
        shown = clean_print(", ".join(list(columns)[:12])) or "none"
        raise DataError(
            f"{name} has no column {' or '.join(TEXTS[:3])}; its columns are {shown}: rename that of the text."
        )
    documents: list[Document] = []
    names = Counter(map(olmocr_id, rows))
    for number, row in enumerate(rows):
        try:
            source = olmocr_id(row)
            if source and names[source] == 1:
                row = {**row, "id": source}
            documents.append(_document(f"{default_doc_id(name)}-{number}", row))
        except DataError as error:
            rejects.append((f"{name}: row {number}", str(error)))
    return Parsed(tuple(documents), tuple(rejects))


def _document(default: str, row: Mapping[str, Any]) -> Document:
    from kohaku_ray.documents.data.parser_output import olmocr_id, parse_olmocr  # see ``parse_rows``

    doc_id = valid_doc_id(_first(row, IDS) or default, "row")
    if row.get("sections"):
        root = {**row, "document_id": doc_id}
        return parse_kohakurag(default, json.dumps(root, default=str).encode())
    text = _first(row, TEXTS)
    if not text:
        raise DataError(
            f"{' and '.join(name for name in TEXTS if name in row) or TEXTS[0]} is empty: fill in or remove it"
        )
    if olmocr_id(row):
        return parse_olmocr(doc_id, row)
    title = well_formed(cell_of(row.get("title"))).strip()
    if not title and "contents" in row and "doc_id" not in row and "\n" in text:  # FlashRAG: the title, then the text
        title, text = (part.strip() for part in text.split("\n", 1))
        title = title.strip('"')
    title = title or doc_id
    metadata = flat_metadata(
        {key: value for key, value in row.items() if key not in {*IDS, *TEXTS, "title", "sections"}}
    )
    return Document(doc_id, title, text_sections(text, title), metadata)


def _first(row: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    value = next((row[column] for column in columns if row.get(column) is not None), None)
    return well_formed(cell_of(value)).strip()


COLUMNS = ("text", "doc_id", "section", "page", "title")
"""Columns read; other columns are metadata where all rows hold one value."""

MAX_CELL_CHARS = 10_000_000  # longest cell, in characters


def parse_csv(name: str, data: bytes) -> Document:
    """Parse a CSV of one paragraph per row.

    ``section`` titles a run of rows, ``page`` counts from 1, ``title`` and ``doc_id`` are the document's and the same
    in every row that has them. Rows without a text are left out. Any other column with a single value is metadata.
    Without a column ``text`` the file is data: a row reads ``column: value; …``.
    """
    way_out = f"rename the column of the paragraphs to text (also read: {', '.join(COLUMNS[1:])})"
    rows = []
    text, odd = decode_text(name, data)
    try:
        read = csv_rows(name, text, ["text"], way_out)
    except MissingColumnError:
        paragraphs = []
        for line, row in csv_rows(name, text, [], way_out, fold_names=False):
            if isinstance(row, str):
                raise DataError(f"{name}: line {line} {row}.") from None
            cells = [" ".join(cell.split()) for cell in row.values()]
            for written in written_rows([list(row), cells], has_header=True):
                spans = split_lines(written) if len(written) <= MAX_ROW_CHARS else split_sentences(written)
                paragraphs.append(Paragraph(written, spans))
        doc_id = default_doc_id(name)
        return Document(doc_id, doc_id, (Section(doc_id, tuple(paragraphs)),) if paragraphs else (), odd=odd)
    for line, row in read:
        if isinstance(row, str):
            raise DataError(f"{name}: line {line} {row}.")
        rows.append((line, row))
    doc_id = _only(name, rows, "doc_id") or default_doc_id(name)
    title = _only(name, rows, "title") or doc_id
    sections = []
    texts = [(line, row) for line, row in rows if row["text"]]
    for section, members in groupby(texts, key=lambda item: item[1].get("section", "")):
        its_paragraphs = tuple(
            Paragraph(row["text"], split_sentences(row["text"]), _page(name, line, row.get("page", "")))
            for line, row in members
        )
        sections.append(Section(section or title, its_paragraphs, its_paragraphs[0].page))
    return Document(doc_id, title, tuple(sections), _metadata([row for _, row in rows]), odd=odd)


MAX_ROW_CHARS = 500  # longest row of data, in characters, that is one sentence


class MissingColumnError(DataError):
    """A CSV lacks a required column."""


def csv_rows(
    name: str, text: str, required: Sequence[str], way_out: str, fold_names: bool = True
) -> list[tuple[int, dict[str, str] | str]]:
    """Read the rows below a header: the line that each begins on, and its trimmed cells, or why it cannot be read.

    Without ``fold_names`` the header is kept as it is written.

    Raises:
        MissingColumnError: The header, read in lower case, lacks a required column (the message ends in ``way_out``).
        DataError: The header has a column twice, or is not CSV.
    """
    limit = csv.field_size_limit(MAX_CELL_CHARS)
    rows: list[tuple[int, dict[str, str] | str]] = []
    header: list[str] | None = None
    separator, start = separator_of(text)
    n_above = text.count("\n", 0, start)
    reader = csv.reader(io.StringIO(text[start:], newline=""), delimiter=separator, strict=True)
    try:
        while True:
            line = n_above + reader.line_num + 1
            try:
                cells = [cell.strip() for cell in next(reader)]
            except StopIteration:
                break
            except csv.Error as error:
                reason = (
                    f"is not CSV ({error} at line {n_above + reader.line_num}): quote texts and double quotes in them"
                )
                if header is None:
                    raise DataError(f"{name} {reason}.") from None
                rows.append((line, reason))
                continue
            if not any(cells):
                continue
            if header is None:
                header = _header(name, cells, required, way_out, fold_names)
            elif len(cells) != len(header):
                reason = f"has {pluralize(len(cells), 'cell')}, the header has {len(header)}"
                or_name = ", or name each column in the header" * (len(cells) > len(header))
                rows.append((line, f"{reason}: put texts with commas or line breaks in double quotes{or_name}"))
            else:
                rows.append((line, {column: cell for column, cell in zip(header, cells, strict=True) if column}))
    finally:
        csv.field_size_limit(limit)
    if header is None:
        _header(name, [], required, way_out)
    return rows


def _header(
    name: str, cells: Sequence[str], required: Sequence[str], way_out: str, fold_names: bool = True
) -> list[str]:
    header = [cell.lower() if fold_names else cell for cell in cells]
    missing = [column for column in required if column not in header]
    if missing:
        shown = ", ".join(repr(column[:40]) for column in header[:12]) or "none"
        lacks = f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise MissingColumnError(f"{name} lacks {lacks}; its columns are {shown}: {way_out}.")
    _check_columns(name, header)
    return header


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


def _metadata(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Columns beside `COLUMNS` in which all rows hold one value."""
    others = [column for column in (rows[0] if rows else {}) if column not in COLUMNS]
    values = {column: {row[column] for row in rows} - {""} for column in others}
    return {column: next(iter(distinct)) for column, distinct in values.items() if len(distinct) == 1}
