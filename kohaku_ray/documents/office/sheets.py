"""Read Excel workbooks (.xlsx): a section per sheet, its cells written as HTML, which is read as any other."""

from __future__ import annotations

import datetime as dt
import io
import re
import zipfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby
from typing import Any

from kohaku_ray.documents.markup.html import read_fragment
from kohaku_ray.documents.model import Document, Paragraph, Section
from kohaku_ray.documents.office.archive import describe_images, html_table, open_office, plain_number
from kohaku_ray.documents.text.content import clean_print, default_doc_id
from kohaku_ray.documents.text.sentences import split_lines
from kohaku_ray.records import pluralize

MAX_PART_CHARS = 2000  # longest part of a table, in characters, that is one paragraph
_NO_VALUE = re.compile(rb"(?:</f>|<f\b[^>]*/>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>")
_FORMAT_PART = re.compile(
    r'"([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|_.|\*.|([$€£¥%])|([#0?][#0?.,/ ]*)|(E\+0+|.)'
)

Cells = Mapping[tuple[int, int], Any]  # the cells that hold something, by row and column


def parse_xlsx(name: str, data: bytes) -> Document:
    """Parse a workbook: its values, also of formulas, with the sign or unit that their format shows.

    An empty row or column ends a table; lines of one cell above it are its caption. Left out, and named, are hidden
    sheets, rows, columns and cells, and images.
    """
    file = open_office(name, data, "openpyxl", "load_workbook", data_only=True, rich_text=True)
    sections, odd, hidden = [], [], []
    for sheet in file.worksheets:
        if sheet.sheet_state != "visible":
            hidden.append(f"sheet {sheet.title!r}: hidden")
            continue
        visible = _Visible(sheet)
        cells = {
            visible.place(*position): cell
            for position, cell in sheet._cells.items()
            if cell.value is not None and str(cell.value).strip() and visible.shows(cell)
        }
        hidden += [f"sheet {sheet.title!r}: {what}" for what in visible.describe_hidden()]
        source = "".join(_blocks(cells, sheet, visible))
        paragraphs = [
            part
            for draft in read_fragment(name, source)
            for paragraph in draft.paragraphs
            for part in _parts(paragraph)
        ]
        if paragraphs:
            sections.append(Section(clean_print(sheet.title).strip() or "Sheet", tuple(paragraphs)))
        else:
            odd.append(f"sheet {sheet.title!r}: empty")
    odd += [f"sheet {chart.title!r}: a chart alone" for chart in file.chartsheets]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [part for part in archive.namelist() if part.startswith("xl/worksheets/") and part.endswith(".xml")]
        n_images = sum(part.startswith("xl/media/") for part in archive.namelist())
        n_unknown = sum(len(_NO_VALUE.findall(archive.read(part))) for part in names)
    if n_unknown:
        odd.append(
            f"{pluralize(n_unknown, 'formula')} without a value: open and save the file in a spreadsheet program"
        )
    title = clean_print(str(file.properties.title or "")).strip() or default_doc_id(name)
    return Document(
        default_doc_id(name), title, tuple(sections), odd=tuple(odd), dropped=(*hidden, *describe_images(n_images))
    )


def _parts(paragraph: Paragraph) -> Iterator[Paragraph]:
    """Cut a long table into parts of whole rows."""
    if paragraph.attachment is None or len(paragraph.text) <= MAX_PART_CHARS:
        yield paragraph
        return
    lines: list[str] = []
    n_chars = 0
    for line in [*paragraph.text.split("\n"), None]:
        if lines and (line is None or n_chars + len(line) >= MAX_PART_CHARS):
            text = "\n".join(lines)
            yield replace(paragraph, text=text, sentences=split_lines(text))
            lines, n_chars = [], 0
        if line is not None:
            lines.append(line)
            n_chars += len(line) + 1


_WHITE = (("rgb", "FFFFFFFF"), ("rgb", "00FFFFFF"), ("theme", 0), ("indexed", 9))
_MAX_NAMED = 10  # most hidden rows, columns or cells of a sheet that are named one by one


class _Visible:
    """Which cells of a sheet a reader sees, and where: hidden rows and columns are closed up."""

    def __init__(self, sheet: Any) -> None:
        self._rows = sorted(row for row, size in sheet.row_dimensions.items() if size.hidden)
        groups = [range(size.min, size.max + 1) for size in sheet.column_dimensions.values() if size.hidden]
        self._columns = sorted(set[int]().union(*groups))
        self._hidden = frozenset(self._rows), frozenset(self._columns)
        self._is_shown: dict[int, bool] = {}  # by a cell's style
        self._unseen: dict[str, dict[str, None]] = {}

    def place(self, row: int, column: int) -> tuple[int, int]:
        return row - bisect_left(self._rows, row), column - bisect_left(self._columns, column)

    def shows(self, cell: Any) -> bool:
        """Whether a cell is in no hidden row or column, not white on white, and not of the format ``;;;``."""
        if cell.row in self._hidden[0]:
            unseen = "row", str(cell.row)
        elif cell.column in self._hidden[1]:
            unseen = "column", cell.column_letter
        elif cell.has_style and not self._shows_text(cell):
            unseen = "cell", cell.coordinate
        else:
            return True
        self._unseen.setdefault(unseen[0], {})[unseen[1]] = None
        return False

    def _shows_text(self, cell: Any) -> bool:
        style = cell.style_id
        if style not in self._is_shown:
            color = cell.font.color
            is_white = color is not None and (color.type, color.value) in _WHITE and cell.fill.fill_type is None
            self._is_shown[style] = not is_white and cell.number_format != ";;;"
        return self._is_shown[style]

    def describe_hidden(self) -> Iterator[str]:
        for noun, names in self._unseen.items():
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            yield f"hidden {noun} {', '.join(list(names)[:_MAX_NAMED])}{more}"


def _blocks(cells: Cells, sheet: Any, visible: _Visible) -> Iterator[str]:
    """Yield the HTML of the tables and texts of a sheet, then of the notes of its cells."""
    spans = {}
    covered = set[tuple[int, int]]()
    for merged in sheet.merged_cells.ranges:
        position, end = (
            visible.place(merged.min_row, merged.min_col),
            visible.place(merged.max_row + 1, merged.max_col + 1),
        )
        size = end[1] - position[1], end[0] - position[0]
        if position in cells and size[0] * size[1] <= len(cells) * 100:
            spans[position] = size
            covered |= {(position[0] + i, position[1] + j) for j in range(size[0]) for i in range(size[1])}
    filled = sorted(covered | set(cells))
    rows = sorted({row for row, _ in filled})
    by_row = {row: {column for _, column in group} for row, group in groupby(filled, key=lambda position: position[0])}
    for run in _runs(rows):
        for columns in _runs(sorted(set().union(*(by_row[row] for row in run)))):
            yield from _block(cells, spans, covered, run, columns)
    for cell in cells.values():
        if cell.comment is not None and cell.comment.text.strip():
            yield f"<p>{cell.coordinate}: {escape(cell.comment.text)}</p>"


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Cut sorted numbers where one is left out."""
    return [[n for _, n in group] for _, group in groupby(enumerate(numbers), key=lambda item: item[1] - item[0])]


def _block(
    cells: Cells,
    spans: Mapping[tuple[int, int], tuple[int, int]],
    covered: set[tuple[int, int]],
    rows: Sequence[int],
    columns: Sequence[int],
) -> Iterator[str]:
    """Yield the HTML of cells without an empty row or column between them."""
    filled = [(row, [(row, column) for column in columns if (row, column) in cells]) for row in rows]
    lines = [(row, positions) for row, positions in filled if positions]
    several = [i for i, (_, positions) in enumerate(lines) if len(positions) > 1]
    if not several:
        for _, positions in lines:
            yield from (f"<p>{_text(cells[position])}</p>" for position in positions)
        return
    head, body = lines[: several[0]], lines[several[0] : several[-1] + 1]
    is_names = True
    table = []
    for i, (row, positions) in enumerate(body):
        is_names = is_names and i < len(body) - 1 and all(bool(cells[position].font.b) for position in positions)
        line = []
        for column in columns:
            position = row, column
            if position in cells:
                line.append((_text(cells[position]), *spans.get(position, (1, 1)), is_names))
            elif position not in covered:
                line.append(("", 1, 1, is_names))
        table.append(line)
    yield html_table(table, "<br>".join(_text(cells[position]) for _, positions in head for position in positions))
    for _, positions in lines[several[-1] + 1 :]:
        yield from (f"<p>{_text(cells[position])}</p>" for position in positions)


def _text(cell: Any) -> str:
    """What a cell holds, as HTML."""
    value = cell.value
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, dt.datetime) and value.time() == dt.time():
        value = value.date()
    if isinstance(value, dt.timedelta):  # of a format such as [h]:mm
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}" + (f":{seconds:02}" if seconds else "")
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
    if isinstance(value, int | float):
        return escape(write_value(value, cell.number_format or "General"))
    parts = value if isinstance(value, list) else [value]  # a text whose parts have fonts of their own is a list
    return "".join(map(_run, parts)).replace("\n", "<br>")


def _run(part: Any) -> str:
    """Write a part of a text, raised or lowered as its font says."""
    text, place = escape(str(part)), getattr(getattr(part, "font", None), "vertAlign", None)
    tag = {"superscript": "sup", "subscript": "sub"}.get(place or "")
    return text if tag is None or not text.strip() else f"<{tag}>{text}</{tag}>"


def write_value(value: float, number_format: str) -> str:
    """Write a number with what its format puts around it: ``25.3 %`` as 25.3%, ``0.0" MWh"``, ``"$"#,##0``.

    No digit is rounded away; a format's percent and thousands change the number as they do in the sheet, and its zeros
    in front of a whole number are shown: ``00000`` of 501 is 00501.
    """
    sections = number_format.split(";")
    shown = sections[1] if value < 0 and len(sections) > 1 else sections[0]
    around = ["", ""]
    has_digits, n_digits = False, 1
    for match in _FORMAT_PART.finditer(shown):
        quoted, escaped, currency, sign, digits, other = match.groups()
        if digits:
            has_digits = True
            n_digits = max(n_digits, digits.partition(".")[0].count("0"))
            value /= 1000 ** (len(digits.rstrip()) - len(digits.rstrip().rstrip(",")))
            around[1] += " " * digits.endswith(" ")
            continue
        if sign == "%":
            value *= 100
        literal = next((part for part in (quoted, escaped, currency, sign) if part), "")
        around[has_digits] += literal or (" " if other == " " else "")
    if not has_digits:
        return plain_number(value)
    return (
        f"{'-' if value < 0 else ''}{around[0].strip()}{plain_number(abs(value)).zfill(n_digits)}{around[1].rstrip()}"
    )
