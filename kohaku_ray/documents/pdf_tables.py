"""Tables on a page: grids, text between rules, and aligned cells; each becomes rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import median

from kohaku_ray.documents.model import Box
from kohaku_ray.documents.pdf_page import Line, Page
from kohaku_ray.documents.text import looks_like_header, written_rows

MAX_CELL_CHARS = 40  # longest median cell of a table; longer ones are columns of prose
MAX_RULES = 400  # most rules on a page with tables; one with more is a drawing or ruled paper
MAX_LINES = 3000  # most lines on a page that is searched for tables between rules
MIN_ALIGNED_ROWS = 3  # fewest aligned rows that are a table without rules


def ruled_tables(page: Page) -> list[Line]:
    """Replace the lines of grids, and those between rules, by one line of kind ``table`` per table."""
    lines = page.lines
    for box, cells in page.grids:
        rest = [line for line in lines if not is_inside(line, box)]
        if len(rest) < len(lines):
            lines = [*rest, write_table(cells, box)]
    if len(page.rules) > MAX_RULES or len(lines) > MAX_LINES:
        return lines
    for left, right, heights in _stacks(page.rules):
        lines = _between(lines, left, right, heights)
    return lines


def write_table(cells: Sequence[Sequence[str]], box: Box, ruled: bool = True) -> Line:
    """Make one line of kind ``table`` of a table's cells, empty ones included; ``ruled``: with rules or a grid."""
    rows = written_rows(cells, looks_like_header(cells, ruled))
    return Line(*box, "\n".join(rows), kind="table")


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


def aligned_rows(rows: Sequence[Sequence[Line]], start: int) -> int:
    """Count the rows from ``start`` on whose cells line up; 0 where they are too few to be a table."""
    first = rows[start]
    n = 1
    while start + n < len(rows) and _lines_up(first, rows[start + n], rows[start + n - 1]):
        n += 1
    cells = [cell.text for row in rows[start : start + n] for cell in row]
    return n if n >= MIN_ALIGNED_ROWS and median(map(len, cells)) <= MAX_CELL_CHARS else 0


def _lines_up(first: Sequence[Line], row: Sequence[Line], above: Sequence[Line]) -> bool:
    """Whether a row has as many cells as the first, each under or over its own, right below the row above."""
    if len(row) != len(first) or row[0].y0 - above[0].y0 > 3 * row[0].size:
        return False
    return all(min(a.x1, b.x1) > max(a.x0, b.x0) for a, b in zip(first, row, strict=True))


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


def _between(lines: list[Line], left: float, right: float, heights: Sequence[float]) -> list[Line]:
    """Replace the lines between a stack of rules by tables: runs of the spaces that hold rows of cells."""
    spaces = []
    for top, bottom in pairwise(heights):
        inside = [line for line in lines if is_inside(line, (left, top, right, bottom))]
        rows = rows_of(sorted(inside, key=lambda line: (line.y0, line.x0)))
        spaces.append((_are_cells(rows), top, bottom, rows))
    for are_cells, run in groupby(spaces, key=lambda space: space[0]):
        of_run = list(run)
        rows = [row for *_, rows in of_run for row in rows]
        if not are_cells or len(rows) < 2:
            continue
        taken = {id(line) for row in rows for line in row}
        table = write_table(_cells(rows), (left, of_run[0][1], right, of_run[-1][2]))
        lines = [*(line for line in lines if id(line) not in taken), table]
    return lines


def _are_cells(rows: Sequence[Sequence[Line]]) -> bool:
    """Whether most rows have several cells, and short ones."""
    n_several = sum(len(row) > 1 for row in rows)
    lengths = [len(line.text) for row in rows for line in row]
    return n_several * 2 > len(rows) and median(lengths) <= MAX_CELL_CHARS


def _cells(rows: Sequence[Sequence[Line]]) -> list[list[str]]:
    """Put every piece under a column of the fullest row.

    A lone piece right of the first column is the rest of a wrapped cell.
    """
    columns = max(rows, key=len)
    table: list[list[str]] = []
    for row in rows:
        places = [_column(line, columns) for line in row]
        if len(row) == 1 and places[0] > 0 and table:
            cell = table[-1][places[0]]
            table[-1][places[0]] = f"{cell} {row[0].text}".strip()
            continue
        cells = [""] * len(columns)
        for line, place in zip(row, places, strict=True):
            cells[place] = f"{cells[place]} {line.text}".strip()
        table.append(cells)
    return table


def _column(line: Line, columns: Sequence[Line]) -> int:
    """The column that a cell overlaps most in width, else the nearest."""

    def common(i: int) -> float:
        return min(line.x1, columns[i].x1) - max(line.x0, columns[i].x0)

    return max(range(len(columns)), key=common)
