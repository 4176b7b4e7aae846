"""Tables on a page: grids, text between rules, and aligned cells; each becomes rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise, zip_longest
from statistics import median

from kohaku_ray.documents.model import Box
from kohaku_ray.documents.pdf_columns import (
    MAX_CELL_CHARS,
    aligned_rows,
    columns_under,
    count_header,
    fill_labels,
    find_columns,
    rows_of_cells,
)
from kohaku_ray.documents.pdf_grids import MAX_HEADER_ROWS
from kohaku_ray.documents.pdf_page import Line, Page, around
from kohaku_ray.documents.pdf_text import join_lines
from kohaku_ray.documents.tables import Cells, is_number, join_names, names_columns, write_rows

MAX_RULES = 400  # most rules on a page with tables; one with more is a drawing or ruled paper
MAX_LINES = 3000  # most lines on a page that is searched for tables between rules
MAX_SPAN = 5  # most columns that one name spans without a rule below it


def ruled_tables(page: Page) -> list[Line]:
    """Replace the lines of grids, and those between rules, by one line of kind ``table`` per table."""
    lines = page.lines
    for (box, cells), header in zip(page.grids, page.headers, strict=True):
        rest = [line for line in lines if not is_inside(line, box)]
        if len(rest) < len(lines):
            lines = [*rest, table_line(cells, box, header)]
    if len(page.rules) > MAX_RULES or len(lines) > MAX_LINES:
        return lines
    for left, right, heights in _stacks(page.rules):
        lines = _between(page, lines, left, right, heights)
    return lines


def table_line(cells: Cells, box: Box, header: int) -> Line:
    """Make one line of kind ``table`` of a table's cells, empty ones included; ``header`` as in `write_rows`."""
    return Line(*box, "\n".join(write_rows(cells, header)), kind="table", cells=cells, header=header)


def rows_of(region: Sequence[Line]) -> list[list[Line]]:
    """Group lines, given from top to bottom, into rows from left to right; pictures and tables are single rows."""
    rows: list[list[Line]] = []
    for line in region:
        last = rows[-1][0] if rows else None
        if last is not None and last.kind == line.kind == "text" and _overlap(last, line) > 0.5:
            rows[-1].append(line)
        else:
            rows.append([line])
    for row in rows:
        if len(row) > 1:
            row.sort(key=lambda line: line.x0)
    return rows


def aligned_table(page: Page, rows: Sequence[Sequence[Line]]) -> Line:
    """Make a table of rows whose pieces stand in columns."""
    n_header = count_header(rows, find_columns(rows))
    is_bold = all(line.bold for line in rows[0]) and not any(line.bold for row in rows[n_header:] for line in row[1:])
    is_apart = n_header > 1 or is_bold
    cells, header = _cells(page, rows, n_header, is_apart, is_ruled=False)
    return table_line(cells, around([cell.box for row in rows for cell in row]), header)


def _overlap(a: Line, b: Line) -> float:
    """Share of the lower one's height that two lines have in common."""
    bottom, top = a.y1 if a.y1 < b.y1 else b.y1, a.y0 if a.y0 > b.y0 else b.y0
    return (bottom - top) / max(min(a.y1 - a.y0, b.y1 - b.y0), 0.1)


def is_inside(line: Line, box: Box, margin: float = 2.0) -> bool:
    """Whether the middle of a line of text is in a box with a margin, in points."""
    x, y = (line.x0 + line.x1) / 2, (line.y0 + line.y1) / 2
    is_within = box[0] - margin <= x <= box[2] + margin and box[1] - margin <= y <= box[3] + margin
    return line.kind == "text" and is_within


def _stacks(rules: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, list[float]]]:
    """Rules with the same ends, at least three of them: (left, right, heights from top to bottom)."""
    stacks: dict[tuple[int, int], tuple[float, float, list[float]]] = {}
    for left, right, height in rules:
        stack = stacks.setdefault((round(left / 4), round(right / 4)), (left, right, []))
        if not stack[2] or height - stack[2][-1] > 2:
            stack[2].append(height)
    return [stack for stack in stacks.values() if len(stack[2]) >= 3]


def _between(page: Page, lines: list[Line], left: float, right: float, heights: Sequence[float]) -> list[Line]:
    """Replace the lines between a stack of rules by tables: runs of the spaces that hold rows of cells."""
    spaces: list[list[list[Line]]] = []
    for top, bottom in pairwise(heights):
        inside = [line for line in lines if is_inside(line, (left, top, right, bottom))]
        spaces.append(rows_of(sorted(inside, key=lambda line: (line.y0, line.x0))))
    all_rows = [row for rows in spaces for row in rows]
    is_aligned = len(all_rows) > 1 and aligned_rows(all_rows, 0) == len(all_rows)
    are_cells = [bool(rows) and (is_aligned or _are_cells(rows)) for rows in spaces]
    for i, rows in enumerate(spaces[:-1]):  # a header may have fewer pieces than columns
        are_cells[i] = are_cells[i] or (are_cells[i + 1] and not (i and are_cells[i - 1]) and _may_be_header(rows))
    for is_table, run in groupby(range(len(spaces)), key=are_cells.__getitem__):
        numbers = list(run)
        rows = [row for i in numbers for row in spaces[i]]
        if not is_table or len(rows) < 2:
            continue
        bottom = heights[numbers[-1] + 1]
        if numbers[-1] == len(spaces) - 1:
            below = _rows_below(lines, (left, bottom, right, page.height), rows)
            rows += below
            bottom = max([bottom, *(line.y1 for row in below for line in row)])
        taken = {id(line) for row in rows for line in row}
        # a rule below the first rows sets them apart where other rows have none
        n_header = len(spaces[numbers[0]]) if len(numbers) > 1 and len(rows) > len(numbers) else 0
        cells, header = _cells(page, rows, n_header, set_apart=True)
        table = table_line(cells, (left, heights[numbers[0]], right, bottom), header)
        lines = [*(line for line in lines if id(line) not in taken), table]
    return lines


def _rows_below(lines: Sequence[Line], box: Box, rows: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """The rows that go on below the last rule at the same distance, as where every second row has a background."""
    taken = {id(line) for row in rows for line in row}
    inside = [line for line in lines if is_inside(line, box, 4) and id(line) not in taken]
    columns, found = find_columns(rows), [rows[-1]]
    step = max((after[-1].y0 - row[-1].y0 for row, after in pairwise(rows)), default=0.0)
    for row in rows_of(sorted(inside, key=lambda line: (line.y0, line.x0))):
        places = [columns_under(line, columns) for line in row]
        if places != [[i] for i in range(len(columns) - len(row), len(columns))] or len(row) < len(columns) - 1:
            break
        if row[-1].y0 - found[-1][-1].y0 > 1.05 * step:
            break
        found.append(row)
    return [list(row) for row in found[1:]]


def _are_cells(rows: Sequence[Sequence[Line]]) -> bool:
    """Whether most rows have several cells, and short ones."""
    n_several = sum(len(row) > 1 for row in rows)
    lengths = [len(line.text) for row in rows for line in row]
    return n_several * 2 > len(rows) and median(lengths) <= MAX_CELL_CHARS


def _may_be_header(rows: Sequence[Sequence[Line]]) -> bool:
    texts = [line.text for row in rows for line in row]
    return 0 < len(rows) <= MAX_HEADER_ROWS and len(texts) > 1 and max(map(len, texts)) <= MAX_CELL_CHARS


def _cells(
    page: Page, rows: Sequence[Sequence[Line]], n_header: int, set_apart: bool, is_ruled: bool = True
) -> tuple[Cells, int]:
    """Put every piece under a column; the rows of a header are one, and so are those of a cell.

    ``set_apart``: whether the first ``n_header`` rows differ from the others by a rule below them, type or spans.
    """
    columns = find_columns(rows[n_header:] or rows)
    if max(map(len, rows[:n_header]), default=0) > len(columns):
        columns = find_columns(rows)
    full = [row for row in rows[:n_header] if len(row) == len(columns)]
    names = _names(page, rows[:n_header], find_columns([*full, *rows[n_header:]])) if n_header else []
    bold = all(line.bold for line in rows[0]) and not all(line.bold for row in rows[1:] for line in row)
    table = _body(rows[n_header:], columns, is_ruled)
    if names and names_columns([names, *table], set_apart):
        return [names, *table], 0
    if names:
        return [*([names] if any(names) else []), *table], -1
    return table, 0 if names_columns(table, set_apart=bold) else -1


def _body(rows: Sequence[Sequence[Line]], columns: Sequence[Line], is_ruled: bool) -> Cells:
    """The cells of rows below a header."""
    rows = fill_labels(rows_of_cells(rows, columns), columns)
    tops = [max(line.y0 for line in row[1:] or row) for row in rows]
    steps = [after - top for top, after in pairwise(tops)]
    tight = 1.25 * min(steps) if is_ruled and steps and max(steps) > 1.6 * min(steps) > 0 else 0.0
    table: Cells = []
    for i, row in enumerate(rows):
        places = [_column(line, columns) for line in row]
        step = steps[i - 1] if i else 0.0
        if not table or not _goes_on(row, places, table[-1], step, tight):
            table.append([""] * len(columns))
        for line, place in zip(row, places, strict=True):
            cell = table[-1][place]
            table[-1][place] = join_lines([cell, line.text], ()) if cell else line.text
    return table


def _goes_on(row: Sequence[Line], places: Sequence[int], above: Sequence[str], step: float, tight: float) -> bool:
    """Whether a row is the next line of the cells above: a lone piece right of the first column, or text set tight.

    ``tight`` is the largest distance of two lines of a cell, where rows are farther apart than these; else 0.
    """
    if len(row) == 1 and places[0] > 0:
        return True
    if not 0 < step <= tight or any(is_number(line.text) for line in row):
        return False
    return len(row) < len(above) and all(above[place] for place in places)


def _names(page: Page, rows: Sequence[Sequence[Line]], columns: Sequence[Line]) -> list[str]:
    """Names of columns from the rows of a header, each name at all columns that it spans."""
    stacked: list[list[tuple[str, bool]]] = []
    lines: list[list[Line]] = []
    for row in rows:  # a name in the middle of the header's rows belongs to the upper one
        is_label = bool(lines) and len(row) == 1 and not _column(row[0], columns) and _column(lines[-1][0], columns)
        if is_label:
            lines[-1].insert(0, row[0])
        else:
            lines.append(list(row))
    for row, below in zip_longest(lines, lines[1:]):
        cells = [("", False)] * len(columns)
        spans = [_span(page, line, row, below, columns) for line in row]
        if below is not None and not any(text for above in stacked for text, _ in above):
            spans = _spread(row, spans, below, columns)
        for line, (first, last) in zip(row, spans, strict=True):
            for place in range(first, last + 1):
                cells[place] = (f"{cells[place][0]} {line.text}".strip(), last > first)
        stacked.append(cells)
    return join_names(stacked)


def _spread(
    row: Sequence[Line], spans: Sequence[tuple[int, int]], below: Sequence[Line], columns: Sequence[Line]
) -> list[tuple[int, int]]:
    """Let names also span the columns beside them that have a name in the row below alone.

    Only below a row with a name of the first column, which the row below lacks: else these are names of two lines.
    """
    lower = {_column(line, columns): line for line in below}
    if spans[0][0] or 0 in lower:
        return list(spans)
    spread = list(spans)
    for i, (line, (first, last)) in enumerate(zip(row, spans, strict=True)):
        if not i:
            continue
        middle = (line.x0 + line.x1) / 2
        after = spans[i + 1][0] if i + 1 < len(spans) else len(columns)
        own = lower.get(first, columns[first])
        is_left = abs(line.x0 - own.x0) < 0.5 * line.size
        while last + 1 < after and last + 1 in lower and (is_left or middle > (own.x0 + own.x1) / 2):
            last += 1
        if not is_left and middle < (own.x0 + own.x1) / 2:
            while first - 1 > spread[i - 1][1] and first - 1 in lower:
                first -= 1
        spread[i] = first, last
    return spread


def _span(
    page: Page, line: Line, row: Sequence[Line], below: Sequence[Line] | None, columns: Sequence[Line]
) -> tuple[int, int]:
    """First and last column that a name spans: by the rule below it, by its width, or as the middle of several."""
    place = _column(line, columns)
    if below is None:
        return place, place
    middles = [(column.x0 + column.x1) / 2 for column in columns]
    middle = (line.x0 + line.x1) / 2
    for left, right, height in page.rules:
        if left <= middle <= right and line.y1 - 0.4 * line.size <= height <= below[0].y0 + 0.6 * line.size:
            over = [i for i, x in enumerate(middles) if left - 2 <= x <= right + 2]
            return (over[0], over[-1]) if over else (place, place)
    over = [i for i, column in enumerate(columns) if min(line.x1, column.x1) - max(line.x0, column.x0) > 0]
    if len(over) > 1:
        return over[0], over[-1]
    others = {_column(other, columns) for other in row if other is not line}
    for first in range(place, max(place - MAX_SPAN, -1), -1):
        for last in range(max(place, first + 1), min(place + MAX_SPAN, len(columns))):
            is_free = not others.intersection(range(first, last + 1))
            if is_free and abs((columns[first].x0 + columns[last].x1) / 2 - middle) < 0.5 * line.size:
                return first, last
    return place, place


def _column(line: Line, columns: Sequence[Line]) -> int:
    """The column that a cell overlaps most in width, else the nearest."""

    def common(i: int) -> float:
        return min(line.x1, columns[i].x1) - max(line.x0, columns[i].x0)

    return max(range(len(columns)), key=common)
