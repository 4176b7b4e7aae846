"""Read Excel workbooks (.xlsx): a section per sheet, its cells written as HTML, which is read as any other."""

from __future__ import annotations

import datetime as dt
import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from html import escape
from typing import Any

from kohaku_ray.documents.markup.html import read_fragment
from kohaku_ray.documents.model import Document, Section
from kohaku_ray.documents.office.archive import html_table, open_office, plain_number
from kohaku_ray.documents.text.content import clean_print, default_doc_id
from kohaku_ray.records import pluralize

Cells = Mapping[tuple[int, int], Any]  # the cells that hold something and are seen, by row and column

_NO_VALUE = re.compile(rb"(?:</f>|<f\b[^>]*/>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>")

_CURRENCY = re.compile(r"\[\$([^\]-]+)|([$€£¥￥])(?!-)")  # of a format: "$"#,##0 or [$€-407] #,##0


def parse_xlsx(name: str, data: bytes) -> Document:
    """Parse a workbook: its values, also of formulas, with the percent sign or currency that their format shows.

    An empty row ends a table; lines of one cell above it are its caption. Left out, and named, are hidden sheets, rows
    and columns, and images.
    """
    file = open_office(name, data, "openpyxl", "load_workbook", data_only=True, rich_text=True)
    sections, odd, hidden = [], [], []
    for sheet in file.worksheets:
        if sheet.sheet_state != "visible":
            hidden.append(f"sheet {sheet.title!r}: hidden")
            continue
        rows = {row for row, size in sheet.row_dimensions.items() if size.hidden}
        groups = [range(size.min, size.max + 1) for size in sheet.column_dimensions.values() if size.hidden]
        unseen = rows, set[int]().union(*groups)
        filled = {
            place: cell for place, cell in sheet._cells.items() if str(cell.value or "").strip() or cell.value == 0
        }
        cells = {
            (row, column): cell
            for (row, column), cell in filled.items()
            if row not in unseen[0] and column not in unseen[1]
        }
        if n_hidden := len(filled) - len(cells):
            hidden.append(f"sheet {sheet.title!r}: {pluralize(n_hidden, 'cell')} in hidden rows or columns")
        source = "".join(_blocks(cells, sheet, *unseen))
        paragraphs = [paragraph for draft in read_fragment(name, source) for paragraph in draft.paragraphs]
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
        default_doc_id(name),
        title,
        tuple(sections),
        odd=tuple(odd),
        dropped=(*hidden, *([pluralize(n_images, "image")] if n_images else [])),
    )


def _blocks(cells: Cells, sheet: Any, hidden_rows: Set[int], hidden_columns: Set[int]) -> Iterator[str]:
    """Yield the HTML of the tables and texts of a sheet, then of the notes of its cells."""
    spans = {}
    by_row: dict[int, set[int]] = defaultdict(set)
    for row, column in cells:
        by_row[row].add(column)
    for merged in sheet.merged_cells.ranges:
        place, size = (merged.min_row, merged.min_col), merged.size
        if place in cells and size["columns"] * size["rows"] <= len(cells) * 100:
            columns = set(range(merged.min_col, merged.max_col + 1)) - hidden_columns
            rows = set(range(merged.min_row, merged.max_row + 1)) - hidden_rows
            spans[place] = len(columns), len(rows)
            for row in rows:
                by_row[row] |= columns
    for run in _runs(by_row, hidden_rows):
        for block in _runs(set().union(*(by_row[row] for row in run)), hidden_columns):
            yield from _block(cells, spans, {row: by_row[row] for row in run}, block)
    for cell in cells.values():
        if cell.comment is not None and cell.comment.text.strip():
            yield f"<p>{cell.coordinate}: {escape(cell.comment.text)}</p>"


def _runs(numbers: Iterable[int], hidden: Set[int]) -> list[list[int]]:
    """Sort numbers, and cut them where one that is not hidden is left out."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and all(between in hidden for between in range(runs[-1][-1] + 1, number)):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _block(
    cells: Cells, spans: Mapping[tuple[int, int], tuple[int, int]], by_row: Mapping[int, Set[int]], columns: list[int]
) -> Iterator[str]:
    """Yield the HTML of cells without an empty row or column between them."""
    lines = [(row, [column for column in columns if (row, column) in cells]) for row in by_row]
    lines = [(row, filled) for row, filled in lines if filled]
    several = [i for i, (_, filled) in enumerate(lines) if len(filled) > 1]
    above, last = (several[0], several[-1]) if several else (0, -1)
    caption = "<br>".join(_text(cells[row, column]) for row, filled in lines[:above] for column in filled)
    if several:
        table = [
            [
                (_text(cells[row, column]), *spans.get((row, column), (1, 1)), False)
                if column in filled
                else ("", 1, 1, False)
                for column in columns
                if column in filled or column not in by_row[row]
            ]
            for row, filled in lines[above : last + 1]
        ]
        yield html_table(table, caption)
    for row, filled in lines[last + 1 :]:
        yield from (f"<p>{_text(cells[row, column])}</p>" for column in filled)


def _text(cell: Any) -> str:
    """What a cell holds, as HTML."""
    source = _value(cell)
    return f"<b>{source}</b>" if cell.font.b else source


def _value(cell: Any) -> str:
    value = cell.value
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, dt.datetime) and value.time() == dt.time():
        value = value.date()
    if isinstance(value, int | float):
        return write_value(value, cell.number_format or "General")
    # a text whose parts have fonts of their own is a list
    return "".join(map(_run, value if isinstance(value, list) else [value])).replace("\n", "<br>")


def write_value(value: float, number_format: str) -> str:
    """Write a number as its format shows it, in percent or with its currency; no digit is rounded away."""
    if "%" in number_format:
        return f"{plain_number(value * 100)}%"
    currency = _CURRENCY.search(number_format)
    if currency is None:
        return plain_number(value)
    return f"{'-' if value < 0 else ''}{currency[1] or currency[2]}{plain_number(abs(value))}"


def _run(part: Any) -> str:
    """Write a part of a text, raised or lowered as its font says."""
    text, place = escape(str(part)), getattr(getattr(part, "font", None), "vertAlign", None)
    tag = {"superscript": "sup", "subscript": "sub"}.get(place or "")
    return text if tag is None or not text.strip() else f"<{tag}>{text}</{tag}>"
