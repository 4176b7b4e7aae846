"""Find tables without borders: rows whose pieces stand in columns, and the names of these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise, zip_longest
from statistics import median

from kohaku_ray.documents.model import Box
from kohaku_ray.documents.pdf.page import TextLine, around
from kohaku_ray.documents.text.sentences import LEADERS
from kohaku_ray.documents.text.tables import Cells, Hints, as_grid, header_rows, is_number, join_names, write_rows

MAX_CELL_CHARS = 40  # longest median cell of a table; longer ones are columns of prose
MIN_ALIGNED_ROWS = 3  # fewest aligned rows that are a table
MAX_ALIGNED_ROWS = 200  # most rows that are searched at a time
MAX_NAME_CHARS = 30  # longest line of a name in a header of several rows
MAX_HEADER_ROWS = 4  # most lines of names above the first row of values
MAX_LINE_CHARS = 80  # longest line of a cell
TextRow = Sequence[TextLine]
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe]")


def aligned_rows(rows: Sequence[TextRow], start: int) -> list[TextRow]:
    """Take the rows from ``start`` on whose pieces stand in columns; none where they are too few to be a table."""
    end = start + 1
    while end < min(len(rows), start + MAX_ALIGNED_ROWS):
        above, row = rows[end - 1], rows[end]
        is_prose = len(row) == 1 and len(row[0].text) > MAX_LINE_CHARS
        if row[0].kind != "text" or row[0].y0 - above[0].y0 > 3 * row[0].size or is_prose:
            break
        end += 1
    for n_columns in sorted({len(row) for row in rows[start:end] if len(row) > 1}, reverse=True):
        taken = _rows_in_columns(rows[start:end], n_columns)
        if taken:
            return taken
    return []


def _rows_in_columns(window: Sequence[TextRow], n_columns: int) -> list[TextRow]:
    """The rows from the first on that are a table of so many columns, or none."""
    last = next(i for i, row in enumerate(window) if len(row) == n_columns)
    if last > MAX_HEADER_ROWS:
        return []
    columns = _find_columns([row for row in window if len(row) == n_columns])
    rows = [_divided(row, columns) for row in window[: last + 1]]
    first = next(i for i, row in enumerate(rows) if len(row) == n_columns)
    # a lone name over several columns stands right of the first
    is_aside = len(rows[0]) < 2 and rows[0][0].x0 < columns[0].x1
    if is_aside or not all(_may_be_names(row, columns) for row in rows[:first]):
        return []
    del rows[first + 1 :]
    has_numbers = False
    for row in window[first + 1 :]:
        divided = _divided(row, columns)
        n_numbers = sum(is_number(piece.text) for piece in divided)
        # names of what stands below, as R prints a vector that takes several lines
        are_names = has_numbers and not n_numbers and len(divided) == n_columns
        if are_names or not _is_in_columns(divided, columns):
            break
        has_numbers = n_numbers == n_columns
        rows.append(divided)
    return rows if _is_table(rows, n_columns) else []


def _find_columns(rows: Sequence[TextRow]) -> list[TextLine]:
    """Columns from left to right, as wide as the pieces of rows down to one that does not fit: another table's."""
    columns = list(rows[0])
    for row in rows[1:]:
        wider = [_column_around(pair) for pair in zip(columns, row, strict=True)]
        if any(left.x1 > right.x0 for left, right in pairwise(wider)):
            break
        columns = wider
    return columns


def _divided(row: TextRow, columns: Sequence[TextLine]) -> TextRow:
    """A row of pieces whose words stand under several columns, a space apart, where all then have their cell."""
    if len(row) == len(columns):
        return row
    parts: list[TextLine] = []
    for piece in row:
        texts = piece.text.split()
        if len(texts) != len(piece.words):
            return row
        words = [(text, x0, x1) for text, (x0, x1) in zip(texts, piece.words, strict=True)]
        for _, group in groupby(words, key=lambda word: _column((word[1], word[2]), columns)):
            inside, lefts, rights = zip(*group, strict=True)
            parts.append(replace(piece, x0=lefts[0], x1=rights[-1], text=" ".join(inside), words=()))
    may_be_row = len(row) > 1 or row[0].x0 > columns[0].x1  # or names right of the first column, which has none
    return parts if may_be_row and len(row) < len(parts) and 0 <= len(columns) - len(parts) <= 1 else row


def _column(ends: tuple[float, float], columns: Sequence[TextLine]) -> int:
    """The column that a piece overlaps most in width, else the nearest."""
    return max(range(len(columns)), key=lambda i: min(ends[1], columns[i].x1) - max(ends[0], columns[i].x0))


def _may_be_names(row: TextRow, columns: Sequence[TextLine]) -> bool:
    """Whether a row above the first full one holds names, of which one may span columns."""
    spans = [_columns_under(piece, columns) for piece in row]
    are_apart = all(a and b and a[-1] < b[0] for a, b in pairwise(spans))
    return are_apart and all(len(piece.text) <= MAX_NAME_CHARS and not is_number(piece.text) for piece in row)


def _is_in_columns(row: TextRow, columns: Sequence[TextLine]) -> bool:
    """Whether each of several pieces of a row is in a column of its own."""
    under = [_columns_under(piece, columns) for piece in row]
    return len(row) > 1 and all(len(places) == 1 for places in under) and all(a != b for a, b in pairwise(under))


def _is_table(rows: Sequence[TextRow], n_columns: int) -> bool:
    several = [row for row in rows if len(row) > 1]
    cells = [piece.text for row in rows for piece in row]
    if len(several) < MIN_ALIGNED_ROWS or median(map(len, cells)) > MAX_CELL_CHARS:
        return False
    if any(LEADERS.search(cell) for cell in cells):
        return False  # entries of a table of contents
    values = [piece.text for row in several for piece in row[1:]]
    is_full = n_columns > 2 and all(len(row) == n_columns for row in rows)
    return is_full or 2 * sum(map(is_number, values)) >= len(values)


def _column_around(pieces: Sequence[TextLine]) -> TextLine:
    left, right = min(piece.x0 for piece in pieces), max(piece.x1 for piece in pieces)
    return TextLine(left, pieces[0].y0, right, pieces[-1].y1, "", pieces[0].size)


def _columns_under(piece: TextLine, columns: Sequence[TextLine]) -> list[int]:
    """Which columns a piece stands under or over; else the nearest."""
    gaps = [max(column.x0 - piece.x1, piece.x0 - column.x1) for column in columns]
    return [i for i, gap in enumerate(gaps) if gap < 0] or [gaps.index(min(gaps))]


def rows_of(region: Sequence[TextLine]) -> list[list[TextLine]]:
    """Group lines, given from top to bottom, into rows from left to right; pictures and tables are single rows."""
    rows: list[list[TextLine]] = []
    for line in region:
        last = rows[-1][0] if rows else None
        is_beside = False
        if last is not None and last.kind == line.kind == "text":
            overlap = min(last.y1, line.y1) - max(last.y0, line.y0)
            # half of the lower one: of 26 files 0.35 changes paragraphs in 8, where lines are set tight, 0.65 in 10
            is_beside = overlap / max(min(last.y1 - last.y0, line.y1 - line.y0), 0.1) > 0.5
        if is_beside:
            rows[-1].append(line)
        else:
            rows.append([line])
    # Hebrew and Arabic from right to left
    return [sorted(row, key=lambda line: -line.x1 if _RIGHT_TO_LEFT.search(row[0].text) else line.x0) for row in rows]


def table_line(cells: Cells, box: Box, header: int) -> TextLine:
    """Make one line of kind ``table`` of a table's cells, empty ones included; ``header`` as in `write_rows`."""
    return TextLine(*box, "\n".join(write_rows(cells, header)), kind="table")


def aligned_table(rows: Sequence[TextRow]) -> TextLine:
    """Make a table of rows whose pieces stand in columns."""
    has_number = (any(is_number(piece.text) for piece in row[1:]) for row in rows)
    n_header = min(next((i for i, has in enumerate(has_number) if has), 0), MAX_HEADER_ROWS)
    body = rows[n_header:]
    n_columns = max(map(len, body))
    columns = _find_columns([row for row in rows if len(row) == n_columns])
    cells: Cells = []
    for row in body:
        cells.append([""] * len(columns))
        for piece in row:
            column = _column((piece.x0, piece.x1), columns)
            cells[-1][column] = f"{cells[-1][column]} {piece.text}".strip()
    is_bold = all(piece.bold for piece in rows[0]) and not any(piece.bold for row in rows[1:] for piece in row[1:])
    names = _names(rows[:n_header], columns) if n_header else []
    cells = [names, *cells] if any(names) else cells
    header = header_rows(as_grid(cells), Hints(n_apart=int(n_header > 1 or is_bold))) - 1
    return table_line(cells, around([cell.box for row in rows for cell in row]), min(header, 0))


def _names(rows: Sequence[TextRow], columns: Sequence[TextLine]) -> list[str]:
    """Names of columns from the rows of a header, each name at all columns that it spans."""
    stacked: list[list[tuple[str, bool]]] = []
    for row, below in zip_longest(rows, rows[1:]):
        cells = [("", False)] * len(columns)
        for piece in row:
            under = _columns_under(piece, columns)
            if not below:  # a name is wider than its column
                under = [_column((piece.x0, piece.x1), columns)]
            for i in under:
                cells[i] = (f"{cells[i][0]} {piece.text}".strip(), len(under) > 1)
        stacked.append(cells)
    return join_names(stacked)
