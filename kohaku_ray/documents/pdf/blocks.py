"""Find the paragraphs, tables and pictures of a PDF's page, in reading order, and extract the pictures as images.

A range beside a threshold is that in which it decides alike in all but at most one of 131 files, searched from 0.4 to
1.6 times the value by benchmarks/pdf_rules.py --thresholds. Where near values decide otherwise, the comment says in how
many of 26 of these files a paragraph changes.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, zip_longest
from operator import attrgetter
from statistics import median
from typing import Any

from kohaku_ray.documents.images import (
    MIN_PIXELS,
    BadImageError,
    SmallImageError,
    as_image,
    check_pixels,
    on_white,
)
from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.pdf.page import (
    CAPTION,
    MAX_GRID_HEADER,
    Page,
    Picture,
    TextLine,
    around,
    begins_item,
    ends_sentence,
    join_lines,
)
from kohaku_ray.documents.text.sentences import LEADERS
from kohaku_ray.documents.text.tables import Cells, Hints, as_grid, header_rows, is_number, join_names, write_rows

MAX_CELL_CHARS = 40  # longest median cell of a table; longer ones are columns of prose
MIN_ALIGNED_ROWS = 3  # fewest aligned rows that are a table without rules
MAX_ALIGNED_ROWS = 200  # most rows that are searched at a time
MAX_NAME_CHARS = 30  # longest line of a name in a header of several rows
MAX_HEADER_ROWS = 4  # most lines of names above the first row of values
SAME_SIZE = 0.1  # largest difference of font sizes in one text, as a share: of 26 files 0.07 changes none, 0.13 three
MAX_LINE_CHARS = 80  # longest line of a wrapped cell
MAX_NAME_GAP = 4.0  # farthest that a name over several columns stands from one of them, in font sizes
TextRow = Sequence[TextLine]
_DRAWN = re.compile(
    r"(?:[-+\d.,]+ )?[-+_=.:*'` ]*[|/\\\u2500-\u257f][-+_=.:*'`|/\\ \u2500-\u257f]*$"  # of these characters alone
    r"|[|+`'\\\u2500-\u257f][|`\\ ]*(?:--|[\u2500-\u257f])|[+|]-[+-]"
)
"""A piece that is a line or branch of a plot or tree: ``|``, ``0.8 |``, ``/ \\``, ``|-- bin``, ``+-+``."""


def find_columns(rows: Sequence[TextRow]) -> list[TextLine]:
    """Columns from left to right, as wide as all pieces of the fullest rows; of these the longest, if they overlap."""
    n = max(map(len, rows))
    full = [row for row in rows if len(row) == n]
    columns = [_column_around([row[i] for row in full]) for i in range(n)]
    if any(left.x1 > right.x0 for left, right in pairwise(columns)):
        return list(full[0])
    is_sparse = 2 * len(full) < len(rows)  # then perhaps no row has all columns
    for piece in sorted((piece for row in rows for piece in row), key=lambda piece: piece.x0) if is_sparse else ():
        if not columns_under(piece, columns):
            columns = sorted([*columns, piece], key=lambda column: column.x0)
    return columns


def _column_around(pieces: Sequence[TextLine]) -> TextLine:
    left, right = min(piece.x0 for piece in pieces), max(piece.x1 for piece in pieces)
    return TextLine(left, pieces[0].y0, right, pieces[-1].y1, "", pieces[0].size)


def columns_under(piece: TextLine, columns: Sequence[TextLine], reach: float = 1.0) -> list[int]:
    """Which columns a piece stands under or over; else the nearest, if it is within so many font sizes."""
    overlapping = [i for i, column in enumerate(columns) if min(piece.x1, column.x1) - max(piece.x0, column.x0) > 0]
    if overlapping:
        return overlapping
    gaps = [max(column.x0 - piece.x1, piece.x0 - column.x1) for column in columns]
    nearest = min(range(len(columns)), key=gaps.__getitem__)
    return [nearest] if gaps[nearest] < reach * piece.size else []


def aligned_rows(rows: Sequence[TextRow], start: int) -> int:
    """Count the rows from ``start`` on whose pieces stand in columns; 0 where they are too few to be a table."""
    end = start + 1
    while end < min(len(rows), start + MAX_ALIGNED_ROWS):
        above, row = rows[end - 1], rows[end]
        is_prose = len(row) == 1 and len(row[0].text) > MAX_LINE_CHARS
        if row[0].kind != "text" or row[0].y0 - above[0].y0 > 3 * row[0].size or is_prose:
            break
        end += 1
    window = rows[start:end]
    n_even = 0  # rows with as many cells as the first, several, each under its own
    for row in window:
        is_even = len(row) == len(window[0]) > 1
        if not (is_even and all(min(a.x1, b.x1) > max(a.x0, b.x0) for a, b in zip(window[0], row, strict=True))):
            break
        n_even += 1
    if n_even < MIN_ALIGNED_ROWS or not _is_table(window[:n_even], len(window[0]), is_even=True):
        n_even = 0
    for n_columns in sorted({len(row) for row in window if len(row) > 1}, reverse=True):
        n = _n_in_columns(window, n_columns)
        if n:
            return max(n, n_even)
    return n_even or _n_in_bands(window)


def _n_in_columns(window: Sequence[TextRow], n_columns: int) -> int:
    """How many rows from the first on are a table of so many columns, or 0."""
    first = next(i for i, row in enumerate(window) if len(row) == n_columns)
    if first > MAX_HEADER_ROWS:
        return 0
    columns, n_full = list(window[first]), 1
    for row in window[first + 1 :]:
        if len(row) != n_columns:
            continue
        wider = [_column_around(pair) for pair in zip(columns, row, strict=True)]
        if any(left.x1 > right.x0 for left, right in pairwise(wider)):
            break  # another table, or prose, below this one
        columns, n_full = wider, n_full + 1
    if n_full < 2:
        return 0
    if len(window[0]) < 2 or not all(_may_be_names(row, columns) for row in window[:first]):
        return 0
    n = first + 1
    while n < len(window) and _is_in_columns(window, n, columns):
        n += 1
    return (
        n if _is_table(window[:n], n_columns, n_columns > 2 and all(len(row) == n_columns for row in window[:n])) else 0
    )


def _n_in_bands(window: Sequence[TextRow]) -> int:
    """How many rows from the first on are a table whose labels and values stand in the middle of longer cells.

    No row of pieces is full there: columns are what no piece bridges, and rows of cells what white space parts.
    """
    columns: list[TextLine] = []
    n_lines: list[int] = []
    rows: list[TextRow] = []
    for row in window:
        columns_of_pieces = [
            [i for i, column in enumerate(columns) if piece.x0 < column.x1 and column.x0 < piece.x1] for piece in row
        ]
        if any(len(under) > 1 for under in columns_of_pieces):
            break
        for piece, under in zip(row, columns_of_pieces, strict=True):
            if under:
                columns[under[0]] = _column_around([columns[under[0]], piece])
                n_lines[under[0]] += 1
            else:
                columns.append(piece)
                n_lines.append(1)
        rows.append(row)
    order = sorted(range(len(columns)), key=lambda i: columns[i].x0)
    columns = [columns[i] for i in order]
    if len(columns) < 3 or min(n_lines) < 3 or _are_drawn(rows):
        return 0
    n_header = count_header(rows, columns)
    bands = rows_of_cells(rows[n_header:], columns)
    if len(bands) < 2 or 2 * len(bands) > len(rows) - n_header:
        return 0
    if not all({columns_under(piece, columns)[0] for piece in band} >= set(range(len(columns))) for band in bands):
        return 0
    lengths = [len(piece.text) for row in rows for piece in row]
    return len(rows) if any(is_number(piece.text) for band in bands for piece in band) and max(lengths) < 100 else 0


def _may_be_names(row: TextRow, columns: Sequence[TextLine]) -> bool:
    """Whether a row above the first full one holds names, of which one may span columns."""
    columns_of_pieces = [columns_under(piece, columns, MAX_NAME_GAP) for piece in row]
    are_apart = all(a and b and a[-1] < b[0] for a, b in pairwise(columns_of_pieces))
    are_names = all(len(piece.text) <= MAX_NAME_CHARS and not is_number(piece.text) for piece in row)
    return all(columns_of_pieces) and are_apart and are_names


def _is_in_columns(window: Sequence[TextRow], i: int, columns: Sequence[TextLine]) -> bool:
    """Whether each piece of a row is in a column of its own."""
    row = window[i]
    columns_of_pieces = [columns_under(piece, columns) for piece in row]
    if not all(len(under) == 1 for under in columns_of_pieces) or any(a == b for a, b in pairwise(columns_of_pieces)):
        return False
    if len(row) > 1:
        return True
    if len(columns) < 3:
        return False
    is_label = columns_of_pieces[0] == [0]  # between the rows that it labels, or the second line of a label
    below = window[i + 1] if i + 1 < len(window) else ()
    if is_label:  # the row that it labels follows no farther than the one above: 1.01 to 2.0 decide alike
        return bool(below) and len(below) > 1 and below[0].y0 - row[0].y0 < 1.3 * (row[0].y0 - window[i - 1][0].y0)
    return row[0].y0 - window[i - 1][0].y0 < 2 * row[0].size


def _is_table(rows: Sequence[TextRow], n_columns: int, is_even: bool) -> bool:
    if _are_drawn(rows):
        return False
    several = [row for row in rows if len(row) > 1]
    cells = [piece.text for row in rows for piece in row]
    names, *body = rows  # below names in bold, two rows of numbers are enough
    numbers = [piece for row in body for piece in row[1:] if is_number(piece.text)]
    are_names = len(names) > 2 and len(numbers) > 1 and all(piece.bold for piece in names)
    n_least = 2 if are_names and not any(piece.bold for piece in numbers) else MIN_ALIGNED_ROWS
    if len(several) < n_least or median(map(len, cells)) > MAX_CELL_CHARS:
        return False
    n_leaders = sum(LEADERS.search(cell) is not None for cell in cells)
    if 2 * n_leaders > len(rows) or (n_leaders and not is_even):
        return False  # entries of a table of contents
    if is_even:
        return True
    # gaps and wrapped cells are those of a table where numbers stand in a column, or nearly all rows are full
    values = [piece.text for row in several for piece in row[1:]]
    n_last = sum(is_number(row[-1].text) for row in several)
    if 2 * sum(map(is_number, values)) >= len(values) or n_last >= max(2, len(several) - 1):
        return True
    n_full = sum(len(row) == n_columns for row in several)
    return n_columns > 2 and n_full >= MIN_ALIGNED_ROWS and 2 * n_full > len(rows) == len(several)


def _are_drawn(rows: Sequence[TextRow]) -> bool:
    """Whether at least half of the rows begin with a line drawn in characters, or hold no letter or digit at all."""
    n_drawn = sum(
        _DRAWN.match(row[0].text) is not None or not any(char.isalnum() for piece in row for char in piece.text)
        for row in rows
    )
    return 2 * n_drawn >= len(rows)


def count_header(rows: Sequence[TextRow], columns: Sequence[TextLine]) -> int:
    """How many of the first rows name the columns: those in bold, else those above the first with a number."""
    are_bold = (all(piece.bold and not _is_value(piece) for piece in row) for row in rows)
    bold = next((i for i, is_bold in enumerate(are_bold) if not is_bold), len(rows))
    if 0 < bold <= MAX_HEADER_ROWS and bold < len(rows):
        return bold if _are_parts(rows[:bold], columns) else 1
    first = next((i for i, row in enumerate(rows) if any(is_number(piece.text) for piece in row[1:])), 0)
    above = rows[:first]
    return first if first <= MAX_HEADER_ROWS and _are_parts(above, columns) else min(first, 1)


def _are_parts(rows: Sequence[TextRow], columns: Sequence[TextLine]) -> bool:
    """Whether rows of names are parts of one header: short, and of two one lacks names."""
    are_short = all(len(piece.text) <= MAX_NAME_CHARS for row in rows for piece in row)
    return are_short and all(min(len(upper), len(row)) < len(columns) for upper, row in pairwise(rows))


def rows_of_cells(rows: Sequence[TextRow], columns: Sequence[TextLine]) -> list[list[TextLine]]:
    """Put the lines of one row of cells together, where less lies between them than between rows of cells.

    Nothing is put together unless each row then has one label, and one piece in another column, too.
    """
    gaps, bottom = [], max((piece.y1 for piece in rows[0]), default=0.0) if rows else 0.0
    for row in rows[1:]:
        gaps.append(min(piece.y0 for piece in row) - bottom)
        bottom = max(bottom, *(piece.y1 for piece in row))
    bands = [list(row) for row in rows]
    # less is rounding: 0.15 and 0.4 change no paragraph of 26 files
    if not gaps or max(gaps) - min(gaps) < 0.25 * rows[0][0].size:
        return bands
    widest = (min(gaps) + max(gaps)) / 2
    for i in range(len(gaps) - 1, -1, -1):
        if gaps[i] < widest:
            bands[i] += bands.pop(i + 1)
    single = set(range(len(columns)))  # columns with one piece in each row
    for band in bands:
        first_columns = [column for piece in band for column in columns_under(piece, columns)[:1]]
        single &= {column for column in first_columns if first_columns.count(column) == 1}
        numbers = [columns_under(piece, columns)[:1] for piece in band if is_number(piece.text)]
        if any(numbers.count(column) > 1 for column in numbers):
            return [list(row) for row in rows]
    return bands if 0 in single and len(single) > 1 else [list(row) for row in rows]


def fill_labels(rows: Sequence[TextRow], columns: Sequence[TextLine]) -> list[list[TextLine]]:
    """Give rows without a label that of the rows beside it, where its place says which it labels.

    A label stands at the first of its rows, or in the middle of them, perhaps between two. Rows with one label have
    different keys in the second column, words or years: a sum below a table has none.
    """
    filled = [list(row) for row in rows]
    labels: list[tuple[float, TextLine]] = []
    entries: list[list[TextLine]] = []
    for row in filled:
        if columns_under(row[0], columns) == [0]:
            labels.append((row[0].y0, row[0]))
        if len(row) > 1 or columns_under(row[0], columns) != [0]:
            entries.append(row)
    are_keyed = all(len(row) >= len(columns) - 1 and _key(row, columns) for row in entries)
    if len(columns) < 3 or not labels or len(labels) >= len(entries) or not are_keyed:
        return filled
    tops = [row[-1].y0 for row in entries]
    keys = [_key(row, columns) for row in entries]
    heights = [top for top, _ in labels]
    starts = [next((i for i, top in enumerate(tops) if abs(top - height) < 1), -1) for height in heights]
    from_first = [] if starts[0] or -1 in starts else list(zip(starts, [*starts[1:], len(tops)], strict=True))
    for groups in (from_first, _in_the_middle(tops, heights)):
        if groups and all(len(set(keys[a:b])) == b - a for a, b in groups):
            for (a, b), (_, label) in zip(groups, labels, strict=True):
                for row in entries[a:b]:
                    if row[0] is not label:
                        row.insert(0, label)
            return entries
    return filled


def _key(row: TextRow, columns: Sequence[TextLine]) -> str:
    """The text in the second column, if it may tell rows apart."""
    key = next((piece for piece in row if columns_under(piece, columns) == [1]), None)
    return "" if key is None or _is_value(key) else key.text


def _is_value(piece: TextLine) -> bool:
    """Whether it is a number, and no year."""
    is_year = len(piece.text) == 4 and piece.text.isdigit() and piece.text[:2] in ("19", "20")
    return is_number(piece.text) and not is_year


def _in_the_middle(tops: Sequence[float], labels: Sequence[float]) -> list[tuple[int, int]]:
    groups, start = [], 0
    step = min((after - top for top, after in pairwise(tops)), default=0.0)
    for label in labels:
        middles = [(abs((tops[start] + tops[end]) / 2 - label), end) for end in range(start, len(tops))]
        # nearer to the middle of other rows than a third of a row, it labels these: 0.14 to 0.5 decide alike
        if not middles or min(middles)[0] > 0.35 * step:
            return []
        end = min(middles)[1]
        groups.append((start, end + 1))
        start = end + 1
    return groups if start == len(tops) else []


MAX_RULES = 400  # most rules on a page with tables; one with more is a drawing or ruled paper
MAX_TABLE_LINES = 3000  # most lines on a page that is searched for tables between rules
MAX_SPAN = 5  # most columns that one name spans without a rule below it


def ruled_tables(page: Page) -> list[TextLine]:
    """Replace the lines of grids, and those between rules, by one line of kind ``table`` per table."""
    lines = page.lines
    for (box, cells), header in zip(page.grids, page.headers, strict=True):
        rest = [line for line in lines if not is_inside(line, box)]
        if len(rest) < len(lines):
            lines = [*rest, table_line(cells, box, header)]
    if len(page.rules) > MAX_RULES or len(lines) > MAX_TABLE_LINES:
        return lines
    stacks: dict[tuple[int, int], tuple[float, float, list[float]]] = {}  # rules with the same ends: their heights
    for left, right, height in page.rules:
        stack = stacks.setdefault((round(left / 4), round(right / 4)), (left, right, []))
        if not stack[2] or height - stack[2][-1] > 2:
            stack[2].append(height)
    for left, right, heights in stacks.values():
        if len(heights) >= 3:
            lines = _between(page, lines, left, right, heights)
    return lines


def table_line(cells: Cells, box: Box, header: int) -> TextLine:
    """Make one line of kind ``table`` of a table's cells, empty ones included; ``header`` as in `write_rows`."""
    return TextLine(*box, "\n".join(write_rows(cells, header)), kind="table", cells=cells, header=header)


def rows_of(region: Sequence[TextLine]) -> list[list[TextLine]]:
    """Group lines, given from top to bottom, into rows from left to right; pictures and tables are single rows."""
    rows: list[list[TextLine]] = []
    for line in region:
        last = rows[-1][0] if rows else None
        is_beside = False
        if last is not None and last.kind == line.kind == "text":
            bottom, top = last.y1 if last.y1 < line.y1 else line.y1, last.y0 if last.y0 > line.y0 else line.y0
            # half of the lower one: of 26 files 0.35 changes paragraphs in 8, where lines are set tight, 0.65 in 10
            is_beside = (bottom - top) / max(min(last.y1 - last.y0, line.y1 - line.y0), 0.1) > 0.5
        if is_beside:
            rows[-1].append(line)
        else:
            rows.append([line])
    for row in rows:
        if len(row) > 1:
            row.sort(key=lambda line: line.x0)
    return rows


def aligned_table(page: Page, rows: Sequence[Sequence[TextLine]]) -> TextLine:
    """Make a table of rows whose pieces stand in columns."""
    n_header = count_header(rows, find_columns(rows))
    is_bold = all(line.bold for line in rows[0]) and not any(line.bold for row in rows[n_header:] for line in row[1:])
    is_apart = n_header > 1 or is_bold
    cells, header = _cells(page, rows, n_header, is_apart, is_ruled=False)
    return table_line(cells, around([cell.box for row in rows for cell in row]), header)


def is_inside(line: TextLine, box: Box, margin: float = 2.0) -> bool:
    """Whether the middle of a line of text is in a box with a margin, in points."""
    x, y = (line.x0 + line.x1) / 2, (line.y0 + line.y1) / 2
    is_within = box[0] - margin <= x <= box[2] + margin and box[1] - margin <= y <= box[3] + margin
    return line.kind == "text" and is_within


def _between(page: Page, lines: list[TextLine], left: float, right: float, heights: Sequence[float]) -> list[TextLine]:
    """Replace the lines between a stack of rules by tables: runs of the spaces that hold rows of cells."""
    spaces: list[list[list[TextLine]]] = []
    for top, bottom in pairwise(heights):
        inside = [line for line in lines if is_inside(line, (left, top, right, bottom))]
        spaces.append(rows_of(sorted(inside, key=lambda line: (line.y0, line.x0))))
    all_rows = [row for rows in spaces for row in rows]
    is_aligned = len(all_rows) > 1 and aligned_rows(all_rows, 0) == len(all_rows)
    lengths = [[len(line.text) for row in rows for line in row] for rows in spaces]
    are_cells = []
    for rows, n_chars in zip(spaces, lengths, strict=True):  # most rows have several cells, and short ones
        are_several = 2 * sum(len(row) > 1 for row in rows) > len(rows)
        are_cells.append(bool(rows) and (is_aligned or (are_several and median(n_chars) <= MAX_CELL_CHARS)))
    for i, (rows, n_chars) in enumerate(zip(spaces[:-1], lengths, strict=False)):
        # a header may have fewer pieces than columns
        may_be_header = 0 < len(rows) <= MAX_GRID_HEADER and len(n_chars) > 1 and max(n_chars) <= MAX_CELL_CHARS
        are_cells[i] = are_cells[i] or (are_cells[i + 1] and not (i and are_cells[i - 1]) and may_be_header)
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


def _rows_below(lines: Sequence[TextLine], box: Box, rows: Sequence[Sequence[TextLine]]) -> list[list[TextLine]]:
    """The rows that go on below the last rule at the same distance, as where every second row has a background."""
    taken = {id(line) for row in rows for line in row}
    inside = [line for line in lines if is_inside(line, box, 4) and id(line) not in taken]
    columns, taken_rows = find_columns(rows), [rows[-1]]
    step = max((after[-1].y0 - row[-1].y0 for row, after in pairwise(rows)), default=0.0)
    for row in rows_of(sorted(inside, key=lambda line: (line.y0, line.x0))):
        columns_of_lines = [columns_under(line, columns) for line in row]
        if columns_of_lines != [[i] for i in range(len(columns) - len(row), len(columns))]:
            break
        if row[-1].y0 - taken_rows[-1][-1].y0 > 1.05 * step:  # 0.05 for rounding
            break
        taken_rows.append(row)
    return [list(row) for row in taken_rows[1:]]


def _cells(
    page: Page, rows: Sequence[Sequence[TextLine]], n_header: int, set_apart: bool, is_ruled: bool = True
) -> tuple[Cells, int]:
    """Put every piece under a column; the rows of a header are one, and so are those of a cell.

    ``set_apart``: whether the first ``n_header`` rows differ from the others by a rule below them, type or spans.
    """
    columns = find_columns(rows[n_header:] or rows)
    full = [row for row in rows[:n_header] if len(row) == len(columns)]
    names = _names(page, rows[:n_header], find_columns([*full, *rows[n_header:]])) if n_header else []
    bold = all(line.bold for line in rows[0]) and not all(line.bold for row in rows[1:] for line in row)
    table = _body(rows[n_header:], columns, is_ruled)
    if names and header_rows(as_grid([names, *table]), Hints(n_apart=int(set_apart))):
        return [names, *table], 0
    if names:
        return [*([names] if any(names) else []), *table], -1
    return table, header_rows(as_grid(table), Hints(n_apart=int(bold))) - 1


def _body(rows: Sequence[Sequence[TextLine]], columns: Sequence[TextLine], is_ruled: bool) -> Cells:
    """The cells of rows below a header."""
    rows = fill_labels(rows_of_cells(rows, columns), columns)
    tops = [max(line.y0 for line in row[1:] or row) for row in rows]
    steps = [after - top for top, after in pairwise(tops)]
    # rows lie farther apart than the lines of a cell: 1.5 to 1.83 decide alike; 1.1 and 1.4
    # change no paragraph of 26 files
    tight = 1.25 * min(steps) if is_ruled and steps and max(steps) > 1.6 * min(steps) > 0 else 0.0
    table: Cells = []
    for i, row in enumerate(rows):
        columns_of_lines = [_column(line, columns) for line in row]
        step = steps[i - 1] if i else 0.0
        if not table or not _goes_on(row, columns_of_lines, table[-1], step, tight):
            table.append([""] * len(columns))
        for line, column in zip(row, columns_of_lines, strict=True):
            cell = table[-1][column]
            table[-1][column] = join_lines([cell, line.text], ()) if cell else line.text
    return table


def _goes_on(
    row: Sequence[TextLine], columns_of_lines: Sequence[int], above: Sequence[str], step: float, tight: float
) -> bool:
    """Whether a row is the next line of the cells above: a lone piece right of the first column, or text set tight.

    ``tight`` is the largest distance of two lines of a cell, where rows are farther apart than these; else 0.
    """
    if len(row) == 1 and columns_of_lines[0] > 0:
        return True
    if not 0 < step <= tight or any(is_number(line.text) for line in row):
        return False
    return len(row) < len(above) and all(above[column] for column in columns_of_lines)


def _names(page: Page, rows: Sequence[Sequence[TextLine]], columns: Sequence[TextLine]) -> list[str]:
    """Names of columns from the rows of a header, each name at all columns that it spans."""
    stacked: list[list[tuple[str, bool]]] = []
    lines: list[list[TextLine]] = []
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
            for column in range(first, last + 1):
                cells[column] = (f"{cells[column][0]} {line.text}".strip(), last > first)
        stacked.append(cells)
    return join_names(stacked)


def _spread(
    row: Sequence[TextLine], spans: Sequence[tuple[int, int]], below: Sequence[TextLine], columns: Sequence[TextLine]
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
        column = lower.get(first, columns[first])
        is_left = abs(line.x0 - column.x0) < 0.5 * line.size  # half a letter: 0.2 to 0.8 decide alike
        while last + 1 < after and last + 1 in lower and (is_left or middle > (column.x0 + column.x1) / 2):
            last += 1
        spread[i] = first, last
    return spread


def _span(
    page: Page, line: TextLine, row: Sequence[TextLine], below: Sequence[TextLine] | None, columns: Sequence[TextLine]
) -> tuple[int, int]:
    """First and last column that a name spans: by the rule below it, by its width, or as the middle of several."""
    column_index = _column(line, columns)
    if below is None:
        return column_index, column_index
    middles = [(column.x0 + column.x1) / 2 for column in columns]
    middle = (line.x0 + line.x1) / 2
    for left, right, height in page.rules:
        # from the name's lower half to the next row's: 0.28 to 0.5, and 0.24 to 0.9, decide alike
        if left <= middle <= right and line.y1 - 0.4 * line.size <= height <= below[0].y0 + 0.6 * line.size:
            over = [i for i, x in enumerate(middles) if left - 2 <= x <= right + 2]
            return (over[0], over[-1]) if over else (column_index, column_index)
    over = [i for i, column in enumerate(columns) if min(line.x1, column.x1) - max(line.x0, column.x0) > 0]
    if len(over) > 1:
        return over[0], over[-1]
    others = {_column(other, columns) for other in row if other is not line}
    for first in range(column_index, max(column_index - MAX_SPAN, -1), -1):
        for last in range(max(column_index, first + 1), min(column_index + MAX_SPAN, len(columns))):
            is_free = not others.intersection(range(first, last + 1))
            # half a letter: 0.2 to 0.8 decide alike
            if is_free and abs((columns[first].x0 + columns[last].x1) / 2 - middle) < 0.5 * line.size:
                return first, last
    return column_index, column_index


def _column(line: TextLine, columns: Sequence[TextLine]) -> int:
    """The column that a cell overlaps most in width, else the nearest."""

    def common(i: int) -> float:
        return min(line.x1, columns[i].x1) - max(line.x0, columns[i].x0)

    return max(range(len(columns)), key=common)


MIN_COLUMN_LINES = 3  # fewest lines side by side that are columns, where the page before has no gutter there
MIN_COLUMN_CHARS = 18  # shortest mean line, in characters, of a column of prose; shorter ones are a table's cells
MAX_LINES = 5000  # most pieces on a page that is searched for columns; one with more is read from top to bottom
_N_BINS = 200
_MARGIN_BINS = 24
_MAX_DEPTH = 4
_DOWNWARDS = attrgetter("y0", "x0")


def reading_order(
    lines: Sequence[TextLine], gutter: float | None, depth: int = 0
) -> tuple[list[list[TextLine]], float | None]:
    """Cut a page into regions with one column each, in reading order, each from top to bottom.

    ``gutter`` is the middle of the previous page's gutter, in points; that of this page, if any, is returned too.
    """
    ordered = lines if depth else sorted(lines, key=_DOWNWARDS)  # inside a column they are in order already
    middle = _gutter(ordered, gutter) if len(ordered) <= MAX_LINES and depth < _MAX_DEPTH else None
    if middle is None:
        return ([list(ordered)] if ordered else []), None
    known = gutter is not None
    regions: list[list[TextLine]] = []
    full: list[TextLine] = []
    has_columns = False
    for band in _bands(ordered, middle):
        left = [line for line in band if line.x1 <= middle]
        right = [line for line in band if line.x0 >= middle] if left else []
        if not _are_columns(left, right, known):
            full.extend(band)
            continue
        has_columns = True
        while left and full and left[0].kind == full[-1].kind == "text":
            # a short line under a full-width one may be that paragraph's last, and not the left column's first
            line, above = left[0], full[-1]
            # line spacing: -0.17 to -0.3 and 0.39 to 0.8 decide alike; of equal size but for rounding: 0.02 to 0.08
            is_next = -0.3 * line.size < line.y0 - above.y1 < 0.6 * line.size and line.y1 <= right[0].y0 + 1
            if not (is_next and abs(above.size - line.size) < 0.05 * line.size):
                break
            full.append(left.pop(0))
        if full:
            regions.append(full)
            full = []
        for side in (left, right):
            regions.extend(reading_order(side, None, depth + 1)[0])
    if full:
        regions.append(sorted(full, key=_DOWNWARDS))
    return (regions, middle) if has_columns else ([list(ordered)], None)


def _gutter(lines: Sequence[TextLine], known: float | None) -> float | None:
    """The middle of the strip with most lines on both sides of it and fewest across; None where there is none."""
    if len(lines) < 2:
        return None
    lefts, rights = sorted([line.x0 for line in lines]), sorted([line.x1 for line in lines])
    left = lefts[0]
    width = rights[-1] - left
    if width <= 0:
        return None
    if known is not None:
        n_left, n_right = bisect_right(rights, known), len(lines) - bisect_left(lefts, known)
        if n_left > 0 and n_right > 0 and len(lines) - n_left - n_right <= 0.3 * len(lines):
            return known  # few lines cross it: 0.21 to 0.41 decide alike
    return _best_strip(lefts, rights, left, _N_BINS / width) if len(lines) >= 2 * MIN_COLUMN_LINES else None


def _best_strip(lefts: Sequence[float], rights: Sequence[float], left: float, scale: float) -> float | None:
    """The middle of the best strip, from the sorted ends of lines, the left edge and the width of a bin."""

    def end(x: float) -> int:
        return int((x - left) * scale + 0.999)  # rounded up

    def start(x: float) -> int:
        return int((x - left) * scale)

    # only where enough lines have ended and enough are still to begin
    first_bin = max(_MARGIN_BINS, end(rights[MIN_COLUMN_LINES - 1]))
    last_bin = min(_N_BINS - _MARGIN_BINS, start(lefts[-MIN_COLUMN_LINES]))
    if first_bin > last_bin:
        return None
    best, first, last = 0.0, -1, -1
    n = len(lefts)
    for b in range(first_bin, last_bin + 1):
        n_left, n_right = bisect_right(rights, b, key=end), n - bisect_left(lefts, b, key=start)
        # four lines across weigh as much as one beside: 0.1 and 0.5 change one of 26 files each
        score = min(n_left, n_right) - 0.25 * (n - n_left - n_right)
        if score > best:
            best, first, last = score, b, b
        elif score == best and b == last + 1:
            last = b
    return left + (first + last) / 2 / scale if first >= 0 else None


def _bands(ordered: Sequence[TextLine], gutter: float) -> list[list[TextLine]]:
    """The lines between two that cross the gutter, and each that does, from top to bottom."""
    crossing = [line for line in ordered if line.x0 < gutter < line.x1]
    if not crossing:
        return [list(ordered)]
    crossing.sort(key=_middle)
    heights = list(map(_middle, crossing))
    bands: list[list[TextLine]] = [[] for _ in range(2 * len(crossing) + 1)]
    bands[1::2] = ([line] for line in crossing)
    for line in ordered:
        if not line.x0 < gutter < line.x1:
            bands[2 * bisect_left(heights, _middle(line))].append(line)
    return [band for band in bands if band]


def _middle(line: TextLine) -> float:
    """Twice the height of a line's middle on the page."""
    return line.y0 + line.y1


def _are_columns(left: Sequence[TextLine], right: Sequence[TextLine], known: bool) -> bool:
    """Whether two sides of a band are prose side by side, rather than a table's cells or one side's short lines."""
    if not left or not right:
        return False
    if min(len(left), len(right)) < (1 if known else MIN_COLUMN_LINES):
        return False
    if max(left[0].y0, right[0].y0) > min(left[-1].y1, right[-1].y1) and not known:
        return False
    return all(
        sum(len(line.text) if line.kind == "text" else MIN_COLUMN_CHARS for line in side)
        >= MIN_COLUMN_CHARS * len(side)
        for side in (left, right)
    )


MAX_CAPTION_GAP = 40.0  # largest distance of a caption from its picture or table, in points


@dataclass(slots=True)
class Block:
    """A paragraph, heading, table or picture on a page."""

    kind: str  # ``text``, ``image`` or ``table``
    page: int  # from 1
    box: Box
    lines: list[str]  # for a table, its rows
    size: float = 0.0  # font size in points
    bold: bool = False
    caption: list[str] | None = None  # lines of a picture's or table's caption
    name: str = ""  # of a picture or table inside the file: ``p3-img1``
    image: Image | None = None  # pixels of a picture, where images are extracted
    cells: Cells = field(default_factory=list)  # of a table
    header: int = -1  # which of its rows names the columns
    last_page: int = 0  # on which a table or paragraph ends that goes on over pages

    @property
    def text(self) -> str:
        """Its lines joined by spaces, hyphens as they are."""
        return " ".join(self.lines)


def blocks_of(page: Page, gutter: float | None) -> tuple[list[Block], float | None]:
    """Cut a page without running heads into blocks; gutters as in `reading_order`."""
    images = [TextLine(*box, "", kind="image") for box in page.images]
    regions, gutter = reading_order([*ruled_tables(page), *images], gutter)
    blocks = [block for region in regions for block in _group(page, region)]
    for kind, short in (("image", "img"), ("table", "table")):
        for i, block in enumerate((block for block in blocks if block.kind == kind), 1):
            block.name = f"p{block.page}-{short}{i}"
    for caption in [block for block in blocks if block.kind == "text"]:
        match = CAPTION.match(caption.lines[0])
        if match is None:
            continue
        kind = "table" if match["kind"].lower().startswith("t") else "image"
        free = [block for block in blocks if block.kind == kind and block.caption is None]
        near = [(gap, i) for i, block in enumerate(free) if (gap := caption_gap(block.box, caption.box)) is not None]
        if near:  # it takes the caption's place in the text
            owner = free[min(near)[1]]
            owner.caption = caption.lines
            blocks.remove(owner)
            blocks[blocks.index(caption)] = owner
    return blocks, gutter


def _group(page: Page, region: Sequence[TextLine]) -> list[Block]:
    """The blocks of a region, from top to bottom."""
    rows = rows_of(region)
    singles = []  # the pieces of each row as one line
    for row in rows:
        longest = max(row, key=lambda line: len(line.text))
        box = around([line.box for line in row])
        text = " ".join(line.text for line in row)
        singles.append(row[0] if len(row) == 1 else TextLine(*box, text, longest.size, longest.bold))
    steps = [
        (after.y0 - line.y0) / line.size
        for line, after in pairwise(singles)
        if line.size and abs(after.size - line.size) < SAME_SIZE * line.size
    ]
    # steps of lines set solid to double spaced: of 26 files 0.6 changes none, 1.0 three, 2.0 two, 3.2 one
    likely = sorted(step for step in steps if 0.8 < step < 2.5)
    # usual distance of two lines, in font sizes: where paragraphs are short, half of the steps are gaps between them
    leading = likely[len(likely) // 4] if likely else 1.2
    # a quarter more than usual: of 26 files a seventh changes 4 and a third 13; at least 1.5 line heights, for where
    # few lines tell the leading: 1.4 changes 5, 1.6 ten
    reach = max(1.5, 1.25 * leading)
    left = min((line.x0 for line in singles), default=0.0)
    blocks: list[Block] = []
    members: list[TextLine] = []

    def close() -> None:
        if members:
            blocks.append(_block(page, members))
            members.clear()

    i = 0
    while i < len(rows):
        n_table = aligned_rows(rows, i) if max(map(len, rows[i : i + 2])) > 1 else 0
        if n_table or (members and not _belongs(members, singles[i], reach, left)):
            close()
        if n_table:
            blocks.append(_block(page, [aligned_table(page, rows[i : i + n_table])]))
        else:
            members.append(singles[i])
        i += n_table or 1
    close()
    return blocks


def _belongs(members: Sequence[TextLine], line: TextLine, reach: float, left: float) -> bool:
    """Whether a line goes on with the paragraph above it, no more than ``reach`` font sizes below its last line."""
    last = members[-1]
    if last.kind != "text" or line.kind != "text" or line.is_note:
        return False
    size = last.size
    if abs(line.size - size) > SAME_SIZE * size or line.bold != last.bold:
        return False
    if last.bold and last.size - line.size > 0.05 * line.size:  # a little larger, it heads the other one: 0.02 to 0.08
        return False
    # a line beside the last one begins less than half a letter above it: -0.2 to -0.8 decide alike
    if not -0.5 * size < line.y0 - last.y0 < reach * size:
        return False
    if line.x0 > last.x1 or line.x1 < last.x0:
        return False
    # a line may open a new paragraph by its indent alone, as in books and LaTeX articles:
    # of 26 files 0.5 changes none, 1 three; from 4 on it is a column or a list (3 and 6 change 3 each)
    is_indented = 0.7 * line.size < line.x0 - left < 4 * line.size and line.x0 - last.x0 > -0.3 * line.size
    # boxes of italics begin a little aside: of 26 files 0.15 changes none, 0.5 one
    is_flush = last.x0 - left < 0.3 * line.size or len(members) == 1
    return not (is_indented and is_flush and not begins_item(members[0].text) and ends_sentence(last.text))


def _block(page: Page, members: Sequence[TextLine]) -> Block:
    first = members[0]
    lines = first.text.split("\n") if first.kind == "table" else [line.text for line in members]
    lengths = [len(line.text) for line in members]
    size = members[lengths.index(max(lengths))].size
    bold = sum([n for n, line in zip(lengths, members, strict=True) if line.bold]) * 2 > sum(lengths)
    box = page.on_paper(around([line.box for line in members]))
    image = page.extracted.get(first.box) if first.kind == "image" else None
    block = Block(first.kind, page.number, box, lines, size, bold, image=image)
    block.cells, block.header = first.cells, first.header
    return block


def caption_gap(box: Box, caption: Box) -> float | None:
    """Points between a box and a caption above or below it; None where it is neither."""
    if min(box[2], caption[2]) <= max(box[0], caption[0]):
        return None
    gap = max(caption[1] - box[3], box[1] - caption[3])
    return gap if -4 < gap <= MAX_CAPTION_GAP else None


CELL_POINTS = 8.0  # strokes in the same square of this side, or in adjacent ones, are one drawing
MIN_STROKES = 3  # fewest strokes of a figure; fewer are a frame or a rule
MIN_POINTS = 40.0  # shortest side of a figure
MAX_SHARE = 0.8  # largest share of a page that a stroke or a figure covers; a larger one is the background
LABEL_POINTS = 16.0  # largest distance of an axis label from its drawing
LABEL_CHARS = 60  # longest axis label


def drawn_figures(page: Page) -> list[Box]:
    """Find the vector figures of a page that is not turned: places, axis labels included, from top to bottom."""
    captions = []
    for line in page.lines:
        match = CAPTION.match(line.text) if line.kind == "text" else None
        if match is not None and match["kind"].lower().startswith("f"):
            captions.append(line)
    # the others are those of embedded images
    captions = [line for line in captions if not any(caption_gap(box, line.box) is not None for box in page.images)]
    if not captions or not page.strokes:
        return []
    drawings = [box for box in _clusters(page) if not any(_share(box, table) > 0.5 for table, _ in page.grids)]
    drawings = [_with_labels(box, page.lines) for box in drawings]
    figures = []
    for caption in captions:
        near = [(gap, box) for box in drawings if (gap := caption_gap(box, caption.box)) is not None]
        if not near:
            continue
        # the caption of a figure is usually below it
        box = min(near, key=lambda gap_and_box: (gap_and_box[1][1] > caption.y0, gap_and_box[0]))[1]
        parts = [image for image in page.images if _share(image, box) > 0.5]
        page.images = [image for image in page.images if image not in parts]
        drawings.remove(box)
        figures.append(box)
    return sorted(figures, key=lambda box: (box[1], box[0]))


def _clusters(page: Page) -> list[Box]:
    """Boxes round strokes that touch, of a figure's size."""
    import numpy as np
    from scipy.ndimage import label

    area = page.width * page.height
    shown = [
        (max(x0, 0.0), max(y0, 0.0), min(x1, page.width), min(y1, page.height))
        for x0, y0, x1, y1 in page.strokes
        if (x1 - x0) * (y1 - y0) <= MAX_SHARE * area
    ]
    strokes = np.array([box for box in shown if box[0] <= box[2] and box[1] <= box[3]], np.float64)
    if len(strokes) < MIN_STROKES:
        return []
    cells = (strokes // CELL_POINTS).astype(np.int64)
    n_x, n_y = (cells[:, 2:].max(axis=0) + 1).tolist()
    covered = np.zeros((n_y, n_x), bool)
    for left, top, right, bottom in np.unique(cells, axis=0).tolist():
        covered[top : bottom + 1, left : right + 1] = True
    labels, _ = label(covered, np.ones((3, 3)))  # corners connect as well
    labels_of_strokes = labels[cells[:, 1], cells[:, 0]]
    drawings = []
    for number in np.unique(labels_of_strokes).tolist():
        members = strokes[labels_of_strokes == number]
        x0, y0 = members[:, :2].min(axis=0).tolist()
        x1, y1 = members[:, 2:].max(axis=0).tolist()
        is_large = min(x1 - x0, y1 - y0) >= MIN_POINTS
        if len(members) >= MIN_STROKES and is_large and (x1 - x0) * (y1 - y0) <= MAX_SHARE * area:
            drawings.append((x0, y0, x1, y1))
    return drawings


def _with_labels(box: Box, lines: Sequence[TextLine]) -> Box:
    """Extend a drawing by the axis labels around it."""
    boxes = [box]
    for line in lines:
        is_label = len(line.text) <= LABEL_CHARS and CAPTION.match(line.text) is None
        if is_label and is_inside(line, box, LABEL_POINTS) and line.x1 - line.x0 <= box[2] - box[0]:
            boxes.append(line.box)
    return around(boxes)


def _area(box: Box) -> float:
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def _share(box: Box, other: Box) -> float:
    """Share of a box that another one covers."""
    common = max(box[0], other[0]), max(box[1], other[1]), min(box[2], other[2]), min(box[3], other[3])
    return _area(common) / max(_area(box), 1e-9)


FIGURE_DPI = 150  # resolution of vector figures
MIN_LOGO_PAGES = 3  # fewest pages of a logo (marker#433): two may be a figure and its repetition
LOGO_SHARE = 0.5  # an image on a larger share of the pages is a logo
_BROKEN = ("truncated", "ignoring zlib error", "decode error", "premature end", "corrupt", "cannot decode")
"""What MuPDF warns of when it fills the rest of a broken image."""


class PdfImages:
    """Extracts the images of one open ``pymupdf.Document``, window by window."""

    def __init__(self, file: Any) -> None:
        self.left_out: Counter[str] = Counter()  # number of images left out, by reason
        self.rejects: list[tuple[str, str]] = []  # images that cannot be used: place and reason
        self._file = file
        self._pages: Counter[bytes] = Counter()
        self._n_pages = 0
        self._known: set[bytes] = set()

    def extract(self, window: Sequence[Page]) -> None:
        """Decode the images of the next pages; ``page.images`` keeps the places of those that are used.

        An image on most of the pages so far is a logo.
        """
        keys = {id(picture): _digest_of(picture) for page in window for picture in page.pictures.values()}
        self._n_pages += len(window)
        for page in window:
            self._pages.update({keys[id(picture)] for picture in page.pictures.values()})
            self.left_out.update(page.left_out)
        for page in window:
            kept = []
            for box in page.images:
                key = keys[id(page.pictures[box])]
                if self._pages[key] >= MIN_LOGO_PAGES and self._pages[key] > LOGO_SHARE * self._n_pages:
                    self.left_out["logo"] += 1
                elif key in self._known:
                    self.left_out["repeated"] += 1
                else:
                    self._known.add(key)
                    kept.append(box)
            page.images = kept
            figures = [] if page.turn else drawn_figures(page)
            self._decode(page)
            for box in figures:
                self._draw(page, box)
            page.images.sort(key=lambda box: (box[1], box[0]))

    def _decode(self, page: Page) -> None:
        for number, box in enumerate(list(page.images), 1):
            try:
                page.extracted[box] = _decoded(page.pictures[box])
            except SmallImageError:
                self.left_out["small"] += 1
                page.images.remove(box)
            except BadImageError as error:
                self.rejects.append((f"page {page.number}, image {number}", str(error)))
        page.pictures.clear()

    def _draw(self, page: Page, box: Box) -> None:
        try:
            image = _drawn(self._file.load_page(page.number - 1), box)
        except BadImageError as error:
            self.rejects.append((f"page {page.number}, drawing at {box[0]:.0f}, {box[1]:.0f}", str(error)))
            return
        page.images.append(box)
        page.extracted[box] = image


def _digest_of(picture: Picture) -> bytes:
    """Digest of an image's compressed bytes and of its mask's: the same image under two numbers is one."""
    from pymupdf import mupdf

    hashed = hashlib.blake2b(repr(picture.axes_signs).encode(), digest_size=16)
    for image in (picture.image, picture.image.mask()):
        if image is None or not image.m_internal:
            continue
        hashed.update(f"{image.w()}x{image.h()}".encode())
        stream = mupdf.fz_compressed_image_buffer(image)
        if stream.m_internal:
            buffer = mupdf.FzBuffer(mupdf.ll_fz_keep_buffer(stream.m_internal.buffer))
            hashed.update(mupdf.fz_buffer_extract_copy(buffer))
        else:
            hashed.update(str(id(picture)).encode())
    return hashed.digest()


def _decoded(picture: Picture) -> Image:
    """Decode an embedded image as it is seen on the page; BadImageError where it cannot be used."""
    import pymupdf
    from PIL import Image as Pillow

    check_pixels(picture.image.w(), picture.image.h())
    pymupdf.TOOLS.reset_mupdf_warnings()
    try:
        pixels = _pixels(picture.image)
        mask = picture.image.mask()
        if mask is not None and mask.m_internal:
            check_pixels(max(mask.w(), MIN_PIXELS), max(mask.h(), MIN_PIXELS))
            pixels = on_white(pixels, _pixels(mask, is_mask=True))
    except (RuntimeError, ValueError, MemoryError, pymupdf.mupdf.FzErrorBase) as error:
        raise BadImageError(f"broken ({str(error)[:120]})") from None
    warned = pymupdf.TOOLS.mupdf_warnings()
    if any(warning in warned for warning in _BROKEN):
        raise BadImageError(f"broken ({' '.join(warned.split())[:120]})")
    across, mirrored, flipped = picture.axes_signs
    if across:
        pixels = pixels.transpose(Pillow.Transpose.TRANSPOSE)
    if mirrored:
        pixels = pixels.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT)
    if flipped:
        pixels = pixels.transpose(Pillow.Transpose.FLIP_TOP_BOTTOM)
    return as_image(pixels)


def _pixels(image: Any, is_mask: bool = False) -> Any:
    """Decode an image to RGB or grey; transparent pixels, as of a stencil or a colour key, become white.

    A mask is grey: white where its image is opaque.
    """
    import pymupdf
    from PIL import Image as Pillow
    from pymupdf import mupdf

    pixels = image.fz_get_unscaled_pixmap_from_image()
    space = pixels.colorspace()
    n_colours = pixels.n() - pixels.alpha()
    if space.m_internal and (n_colours not in (1, 3) or "Lab" in space.fz_colorspace_name()):
        pixels, n_colours = pymupdf.Pixmap(pymupdf.csRGB, pixels).this, 3
    mode = {(1, 0): "L", (3, 0): "RGB", (3, 1): "RGBA", (1, 1): "LA", (0, 1): "L"}[n_colours, pixels.alpha()]
    size = pixels.w(), pixels.h()
    samples = mupdf.fz_pixmap_samples_memoryview(pixels)
    made = Pillow.frombytes(mode, size, samples, "raw", mode, pixels.stride(), 1)
    if is_mask:
        return made.convert("L")
    if n_colours == 0:  # a stencil: what it covers is painted
        return Pillow.eval(made, lambda value: 255 - value)
    return on_white(made.convert(mode[:-1]), made.getchannel("A")) if pixels.alpha() else made


def _drawn(page: Any, box: Box) -> Image:
    """Draw a part of a page; BadImageError: it cannot be drawn."""
    import pymupdf
    from PIL import Image as Pillow

    page.set_rotation(0)  # boxes are those of the page as it lies
    check_pixels(*(round(side * FIGURE_DPI / 72) for side in (box[2] - box[0], box[3] - box[1])))
    try:
        pixels = page.get_pixmap(dpi=FIGURE_DPI, clip=pymupdf.Rect(*box), alpha=False, annots=False)
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase) as error:
        raise BadImageError(f"cannot be drawn ({str(error)[:120]})") from None
    drawn = Pillow.frombuffer("RGB", (pixels.width, pixels.height), pixels.samples_mv, "raw", "RGB", pixels.stride, 1)
    return as_image(drawn)
