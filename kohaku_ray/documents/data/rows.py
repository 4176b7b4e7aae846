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
from typing import TYPE_CHECKING, Any, NamedTuple

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
from kohaku_ray.removed import removed_parser

if TYPE_CHECKING:
    import pyarrow.parquet as pq

HUB = "hf://"  # prefix of a data set on the Hugging Face hub, whose rows are read as JSON lines
JSON_LINES = ("jsonl", "ndjson")

RECORD_SUFFIXES = (*JSON_LINES, "parquet")  # of files of rows whose values have types
ROW_SUFFIXES = ("csv", "tsv", *RECORD_SUFFIXES)  # of all files of rows


def suffix_of(name: str) -> str:
    """Suffix of a path or URI in lower case, without its dot; ``jsonl`` for a whole data set on the hub."""
    last = file_name(name)
    suffix = last.rpartition(".")[2].lower() if "." in last else ""
    return "jsonl" if name.startswith(HUB) and suffix not in ROW_SUFFIXES else suffix


class RowTable(NamedTuple):
    """A file of rows.

    Attributes:
        columns: Their names, of JSON lines those of all rows.
        rows: By column; values of CSV are texts, and a cell that is missing at a row's end is empty.
        ragged: Numbers, from 0, of the rows with more cells than the header: the mark of an unquoted comma.
        odd: What is odd about its bytes and rows; whoever reads a person's file says it.
        lines: The line at which each row begins, as an editor shows it; of Parquet none.
    """

    columns: tuple[str, ...]
    rows: list[Mapping[str, Any]]
    ragged: tuple[int, ...] = ()
    odd: tuple[str, ...] = ()
    lines: Sequence[int] = ()


def read_rows(
    name: str, data: bytes, what: str = "rows", rejects: list[tuple[str, str]] | None = None
) -> list[Mapping[str, Any]]:
    """Read the rows of ``read_table``, of which none has more cells than the header."""
    return read_table(name, data, what, rejects, keep_ragged=False).rows


def read_table(
    name: str,
    data: bytes,
    what: str = "rows",
    rejects: list[tuple[str, str]] | None = None,
    *,
    keep_ragged: bool,
) -> RowTable:
    """Read a file of rows by its suffix: questions, gold answers, submissions, metadata, documents.

    Args:
        name: Its path or URI.
        data: Its content.
        what: What rows are called in messages.
        rejects: Takes the place and reason of every bad JSON line; None: the first one is an error.
        keep_ragged: Whether a row of a CSV may have more cells than the header; those are left out.

    Raises:
        DataError: It cannot be read in its format, has another suffix, or more than `MOST_COLUMNS`.
    """
    suffix = suffix_of(name)
    if suffix == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(io.BytesIO(data))
            _check_columns(name, file.schema_arrow.names)
            return RowTable(tuple(file.schema_arrow.names), _parquet_rows(name, file, len(data)))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{name} is not Parquet: {error}") from None
    if suffix in JSON_LINES:
        odd: list[str] = []
        columns: dict[str, None] = {}
        numbered: list[tuple[int, Mapping[str, Any]]] = []
        for line, row in _json_lines(name, data, rejects, odd):
            _check_number(name, len(row))  # before its names are gathered
            columns |= dict.fromkeys(row)
            _check_number(name, len(columns))
            numbered.append((line, row))
        return RowTable(tuple(columns), [row for _, row in numbered], (), tuple(odd), [line for line, _ in numbered])
    if suffix in ("csv", "tsv", ""):
        text, odd_bytes = decode_text(name, data)
        table = _read_cells(name, text, keep_ragged)
        return table._replace(odd=(*odd_bytes, *table.odd))
    raise DataError(f"{name}: {what} are read from .csv, .tsv, .jsonl or .parquet, not .{suffix}")


MOST_UNPACKED, MOST_UNPACKED_BYTES = 200, 2**28
"""How many times its bytes a Parquet file may hold in memory; as many bytes any file may."""

_CELL_BYTES = 64  # of a value in Python, beside its content
_BATCH_ROWS = (32, 4096)  # fewest, as reading row by row is slow, and most


def _parquet_rows(name: str, file: pq.ParquetFile, n_bytes: int) -> list[Mapping[str, Any]]:
    """Read the rows of a Parquet file in batches; a ``DataError`` where a small file makes gigabytes (B19)."""
    import pyarrow as pa

    most = max(MOST_UNPACKED * n_bytes, MOST_UNPACKED_BYTES)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    n_values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
    n_unpacked = max(sum(group.total_byte_size for group in groups), n_values * _CELL_BYTES)
    rows: list[Mapping[str, Any]] = []
    # a value that a group stores once may stand in all of its rows
    longest = max((group.total_byte_size for group in groups), default=0)
    fewest_rows, most_rows = _BATCH_ROWS
    batches = file.iter_batches(min(max(most // max(longest, 1), fewest_rows), most_rows))
    n_read = 0
    while n_unpacked <= most:
        batch = next(batches, None)
        if batch is None:
            return rows
        for column in batch.columns:
            decoded = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
            n_read += decoded.nbytes + batch.num_rows * _CELL_BYTES
        n_unpacked = max(n_unpacked, n_read)
        rows += batch.to_pylist() if n_unpacked <= most else []
    raise DataError(
        f"{name} has {n_bytes:,} bytes, and more than {most:,} in memory: write it without repeated values, or in parts"
    )


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


MAX_CELL_CHARS = 10_000_000  # longest cell, in characters


def _csv_lines(text: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the header and the rows of a CSV but blank lines: where each begins, and its cells, or why it is none."""
    separator, start = separator_of(text)
    n_above = text.count("\n", 0, start)
    reader = csv.reader(io.StringIO(text[start:], newline=""), delimiter=separator, strict=True)
    limit = csv.field_size_limit(MAX_CELL_CHARS)
    try:
        while True:
            line = n_above + reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield (
                    line,
                    f"is not CSV ({error} at line {n_above + reader.line_num}): close its quotes, and double the "
                    "quotes within a text",
                )
                continue
            if cells is None:
                return
            if cells:
                yield line, cells
    finally:
        csv.field_size_limit(limit)


def _miscount(cells: Sequence[str], header: Sequence[str]) -> str:
    return (
        f"has {pluralize(len(cells), 'cell')}, the header has {len(header)}: put texts with separators or line breaks "
        "in double quotes, or name each column in the header"
    )


def say_short(lines: Sequence[int]) -> tuple[str, ...]:
    """Say which rows of a CSV lack cells at their end, which are empty, as pandas and polars read them.

    A row that a line break without quotes cuts in two is among them.
    """
    rows = f"{pluralize(len(lines), 'row')} with fewer cells than the header, read as empty"
    return (f"{rows}: the first at line {lines[0]} (a line break within a text needs double quotes)",) if lines else ()


def _read_cells(name: str, text: str, keep_ragged: bool) -> RowTable:
    ragged: list[int] = []
    rows: list[Mapping[str, Any]] = []
    lines: list[int] = []
    short: list[int] = []
    header: list[str] | None = None
    for line, cells in _csv_lines(text):
        if isinstance(cells, str):
            raise DataError(f"{name}: line {line} {cells}")
        if header is None:
            header = [cell.strip() for cell in cells]
            _check_number(name, len(header))
            doubled = [(header.index(column), i) for i, column in enumerate(header) if column in header[:i]]
            continue
        if len(cells) > len(header):
            ragged.append(len(rows))
        elif len(cells) < len(header):
            short.append(line)
        if not keep_ragged and any(map(str.strip, cells[len(header) :])):
            raise DataError(f"{name}: line {line} {_miscount(cells, header)}")
        if any(cells[i : i + 1] not in ([], cells[first : first + 1]) for first, i in doubled if header[i]):
            _check_columns(name, header)  # columns that are equal lose nothing
        rows.append(dict(zip_longest(header, cells[: len(header)], fillvalue="")))
        lines.append(line)
    return RowTable(tuple(header or ()), rows, tuple(ragged), say_short(short), lines)


MOST_COLUMNS = 10_000  # of a file of rows, of which each row is held by column: a million took 25 s (B19)


def _check_number(name: str, n_columns: int) -> None:
    if n_columns > MOST_COLUMNS:
        raise DataError(f"{name} has {n_columns:,} columns, at most {MOST_COLUMNS:,} are read: leave out unused ones.")


def _check_columns(name: str, columns: Sequence[str]) -> None:
    _check_number(name, len(columns))
    doubled = next((column for column, n in Counter(columns).items() if column and n > 1), None)
    if doubled is not None:
        raise DataError(f"{name} has two columns called {doubled!r}: rename or remove one.")


def check_ids(name: str, table: RowTable, ids: Sequence[str | None], what: str, column: str = "id") -> None:
    """Raise ``DataError`` where ids, in the order of a table's rows, are missing, doubled or hold a NUL.

    None stands for a row that is empty.
    """
    known = [row_id for row_id in ids if row_id is not None]
    if all(known) and len({*known}) == len(known) and not any("\0" in row_id for row_id in known):
        return
    places_of_id: dict[str, list[str]] = {}
    places = [f"line {line}" for line in table.lines] or [f"row {number}" for number in range(1, len(ids) + 1)]
    for row_id, place in zip(ids, places, strict=True):
        if row_id is not None:
            places_of_id.setdefault(row_id, []).append(place)
    faults = []
    if missing := places_of_id.pop("", None):
        faults.append(f"{len(missing)} of {len(known)} {what} have no {column}, first at {missing[0]}: give each one")
    if doubled := {row_id: places for row_id, places in places_of_id.items() if len(places) > 1}:
        first, places = next(iter(doubled.items()))
        faults.append(
            f"{len(doubled)} id{'s are' if len(doubled) > 1 else ' is'} used more than once "
            f"(first {first!r}: {', '.join(places)}): make them unique"
        )
    if with_nul := [place for row_id, places in places_of_id.items() if "\0" in row_id for place in places]:
        faults.append(f"a NUL in the {column} of {', '.join(with_nul)}, which no CSV file can hold: remove it")
    raise DataError(f"{name}: {'; '.join(faults)}")


def cell_of(value: Any) -> str:
    """Write a value as the cell of a CSV that means the same: lists as JSON, null and NaN as nothing."""
    if value is None or value != value:  # NaN is not itself
        return ""
    if isinstance(value, bool | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _json_lines(
    name: str, data: bytes, rejects: list[tuple[str, str]] | None, odd: list[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = decode_text(name, data)[0].encode()
    n_western = 0
    # a line ends at \n alone: str.splitlines would cut at characters that a JSON text may hold
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            text, odd_bytes = decode_text("it", line)
            n_western += bool(odd_bytes)
            row = json.loads(text, object_pairs_hook=unique_keys)
            if isinstance(row, dict):
                yield number, row
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
    if n_western:
        odd.append(f"{pluralize(n_western, 'line')} not in UTF-8: read as Windows-1252")


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
    rejects: list[tuple[str, str]] = []
    rows = read_rows(name, data, "documents", rejects)
    columns = dict.fromkeys(column for row in rows for column in row)
    if rows and not {*TEXTS, "sections"} & columns.keys():
        shown = clean_print(", ".join(list(columns)[:12])) or "none"
        raise DataError(
            f"{name} has no column {' or '.join(TEXTS[:3])}; its columns are {shown}: rename that of the text."
        )
    documents: list[Document] = []
    for number, row in enumerate(rows):
        try:
            documents.append(_document(f"{default_doc_id(name)}-{number}", row))
        except DataError as error:
            rejects.append((f"{name}: row {number}", str(error)))
    return Parsed(tuple(documents), tuple(rejects))


def _document(default: str, row: Mapping[str, Any]) -> Document:
    doc_id = valid_doc_id(_first(row, IDS) or default, "row")
    if row.get("sections"):
        root = {**row, "document_id": doc_id}
        return parse_kohakurag(default, json.dumps(root, default=str).encode())
    text = _first(row, TEXTS)
    if not text:
        raise DataError(
            f"{' and '.join(name for name in TEXTS if name in row) or TEXTS[0]} is empty: fill in or remove it"
        )
    attributes = row.get("attributes")
    if isinstance(attributes, dict) and "pdf_page_numbers" in attributes:
        raise DataError(removed_parser("olmOCR"))
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


def parse_csv(name: str, data: bytes) -> Document:
    """Parse a CSV of one paragraph per row.

    ``section`` titles a run of rows, ``page`` counts from 1, ``title`` and ``doc_id`` are the document's and the same
    in every row that has them. Rows without a text are left out. Any other column with a single value is metadata.
    Without a column ``text`` the file is data: a row reads ``column: value; …``.
    """
    text, odd = decode_text(name, data)
    rows: list[tuple[int, dict[str, str]]] = []
    read_from_file, short = csv_rows(name, text)
    odd += say_short(short)
    for line, read in read_from_file:
        if isinstance(read, str):
            raise DataError(f"{name}: line {line} {read}.")
        rows.append((line, read))
    names = [column.lower() for column in rows[0][1]] if rows else []
    if "text" not in names:
        paragraphs = []
        for _, row in rows:
            cells = [" ".join(cell.split()) for cell in row.values()]
            for written in written_rows([list(row), cells], has_header=True):
                spans = split_lines(written) if len(written) <= MAX_ROW_CHARS else split_sentences(written)
                paragraphs.append(Paragraph(written, spans))
        doc_id = default_doc_id(name)
        return Document(doc_id, doc_id, (Section(doc_id, tuple(paragraphs)),) if paragraphs else (), odd=odd)
    _check_columns(name, names)
    rows = [(line, dict(zip(names, row.values(), strict=True))) for line, row in rows]
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


def csv_rows(
    name: str, text: str, required: Sequence[str] = (), way_out: str = ""
) -> tuple[list[tuple[int, dict[str, str] | str]], list[int]]:
    """Read the rows below a header: the line that each begins on, and its trimmed cells, or why it cannot be read.

    With required columns the header is read in lower case.

    Returns:
        The rows, and the lines of those that lack cells at their end, which are empty.

    Raises:
        DataError: The header lacks a required column (the message ends in ``way_out``), has one twice, or is not CSV.
    """
    rows: list[tuple[int, dict[str, str] | str]] = []
    short: list[int] = []
    header: list[str] = []
    for line, read in _csv_lines(text):
        if isinstance(read, str):
            if not header:
                raise DataError(f"{name} {read}.")
            rows.append((line, read))
            continue
        cells = [cell.strip() for cell in read]
        if not any(cells):
            continue
        if not header:
            header = [cell.lower() for cell in cells] if required else cells
            _check_columns(name, header)
        elif any(cells[len(header) :]):
            rows.append((line, _miscount(cells, header)))
        else:
            short += [line] * (len(cells) < len(header))
            padded = zip_longest(header, cells[: len(header)], fillvalue="")
            rows.append((line, {column: cell for column, cell in padded if column}))
    if missing := [column for column in required if column not in header]:
        shown = ", ".join(repr(column[:40]) for column in header[:12]) or "none"
        lacks = f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise DataError(f"{name} lacks {lacks}; its columns are {shown}: {way_out}.")
    return rows, short


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
