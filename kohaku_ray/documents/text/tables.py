"""Write tables as text: find the rows that name the columns, and write each other row with these names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

Cells = list[list[str]]  # the rows of a table; a row of one cell is as wide as the table

_YEAR = re.compile(r"(?:FY|Q[1-4]|H[12])?\s*'?(?:19|20)\d\d(?:\s*[/–-]\s*\d{2,4})?\*?", re.IGNORECASE)


TableCell = tuple[str, int, int, bool]  # text, columns and rows spanned, whether the format marks it as a name
Grid = Sequence[Sequence[TableCell | None]]  # cells by row and column, one that spans several at each of them
MAX_HEADER_ROWS = 8  # most rows that name the columns of a table


@dataclass(frozen=True)
class Hints:
    """What a format says of a table's rows beside their cells."""

    marked: Sequence[bool] = ()  # which rows it marks as names of columns: ``<th>`` alone, ``<thead>``
    n_apart: int = 0  # how many of the first rows differ from the others, by type or by a rule below them


def header_rows(grid: Grid, hints: Hints = Hints()) -> int:
    """Count the first rows that name the columns: the one rule, whatever the format.

    Rows that are marked do; so does a row below names that span its columns. A row that nothing sets apart does if some
    column holds numbers under a word, or under a year; but not where each row begins with its own name (`is_headed`).
    """
    n = 0
    while n < min(len(hints.marked), MAX_HEADER_ROWS) and hints.marked[n]:
        n += 1
    is_marked = n > 0
    if not is_marked and len(grid) > 1 and is_headed(grid[0]) and is_headed(grid[1]):
        return 0
    n = max(n, hints.n_apart, 1)
    while n < min(MAX_HEADER_ROWS, len(grid) - 1) and _stands_over(grid[n - 1], grid[n]):
        n += 1
    if is_marked:
        return n
    names = name_columns(grid[:n])
    below = [[row[0][0]] if row[0] is not None and is_wide(row) else cell_texts(row, names) for row in grid[n:]]
    return n if _name_columns([names, *below], set_apart=n > 1 or hints.n_apart > 0) else 0


def write_table(rows: Sequence[Sequence[TableCell]], n_head: int = 0) -> list[str]:
    """Write a table, a line per row, under the names of its columns; a row of names further down begins another header.

    Args:
        rows: Its cells, at least one of which has a text.
        n_head: How many of the first rows the format marks as names, beside those whose cells all are so marked.
    """
    filled = fill_spans(rows)
    kept = [i for i, row in enumerate(rows) if any(cell[0] for cell in row)]
    width = max(len(filled[i]) for i in kept)
    grid = [[*filled[i], *[None] * (width - len(filled[i]))] for i in kept]
    marked = [not is_wide(row) and (i < n_head or _names_all(row)) for i, row in zip(kept, grid, strict=True)]
    if all(marked):
        marked[1:] = [False] * (len(marked) - 1)
    i = n_title = next((i for i, row in enumerate(grid) if not is_wide(row)), len(grid))
    lines = [row[0][0] for row in grid[:i] if row[0]]
    names: list[str] = []
    while i < len(grid):
        n = header_rows(grid[i:], Hints(marked[i : i + MAX_HEADER_ROWS])) if marked[i] or i == n_title else 0
        if n:
            names = name_columns(grid[i : i + n])
            i += n
            if i == len(grid):  # a header without rows
                lines += written_rows([names], has_header=False)
        else:
            lines += _write_row(grid[i], names)
            i += 1
    return lines


def _names_all(row: Sequence[TableCell | None]) -> bool:
    """Whether a row of several cells has names alone."""
    return sum(map(bool, row)) > 1 and all(cell[3] for cell in row if cell)


def _write_row(row: Sequence[TableCell | None], names: Sequence[str]) -> list[str]:
    texts = cell_texts(row, names)
    if row[0] and is_wide(row):
        return [row[0][0]]
    if names:
        return written_rows([names, texts], has_header=True)
    n = 1 if is_headed(row) else 0
    return [": ".join(filter(None, [*texts[:n], " | ".join(filter(None, texts[n:]))]))]


def as_grid(rows: Sequence[Sequence[str]]) -> Grid:
    """Make a grid of texts; a row of one is as wide as the table."""
    width = max(map(len, rows), default=0)
    grid: list[list[TableCell | None]] = []
    for row in rows:
        cells: list[TableCell | None] = [(text, 1, 1, False) for text in row]
        grid.append([(row[0], width, 1, False)] * width if len(row) == 1 else cells + [None] * (width - len(row)))
    return grid


def is_headed(row: Sequence[TableCell | None]) -> bool:
    """Whether the first cell of a row names the row: it is marked as a name, and none of the others is."""
    first, *others = row
    return bool(others and first and first[3] and first[0]) and not any(cell[3] for cell in others if cell)


def is_wide(row: Sequence[TableCell | None]) -> bool:
    """Whether one cell spans the whole row."""
    first = row[0]
    if first is None or first[1] < 2:
        return False
    return all(cell is None or cell is first for cell in row)


def cell_texts(row: Sequence[TableCell | None], names: Sequence[str]) -> list[str]:
    """Texts of a row; a cell that spans columns of one name, or of none, occurs once."""
    return [
        "" if cell is None or (i and cell is row[i - 1] and (not names or names[i] == names[i - 1])) else cell[0]
        for i, cell in enumerate(row)
    ]


def name_columns(grid: Grid) -> list[str]:
    """Names of columns from the rows of a header."""
    return join_names([[(cell[0] if cell else "", True) for cell in row] for row in grid])


def _stands_over(above: Sequence[TableCell | None], row: Sequence[TableCell | None]) -> bool:
    """Whether a row names the parts of names over it, and nothing else: all other columns have theirs above."""
    is_over = False
    for upper, cell in zip(above, row, strict=True):
        if upper is not None and upper[0] and upper[1] > 1 and cell is not upper:
            is_over = is_over or (cell is not None and cell[0] != "" and not is_number(cell[0]))
            if cell is not None and is_number(cell[0]):
                return False
        elif cell is not upper and cell is not None and cell[0] and (upper is not None and upper[0]):
            return False
    return is_over and not all(cell is row[0] for cell in row)


def _name_columns(cells: Sequence[Sequence[str]], set_apart: bool) -> bool:
    """Whether the first row names the columns; ``set_apart``: by its type, a rule below it, or spans."""
    names = [f"year {name}" if _YEAR.fullmatch(name) else name for name in cells[0]]
    if names[0] != cells[0][0] and not set_apart:
        return False  # a row of years: the first is a value itself
    body = [row for row in cells[1:] if len(row) > 1]
    given = list(filter(None, names))
    # one empty name is common: over the column of row labels
    if not body or len(given) < max(2, len(names) - 1) or any(map(is_number, given)):
        return False
    return set_apart or any(sum(is_number(row[i]) for row in body) * 2 >= len(body) for i in range(1, len(names)))


def join_names(rows: Sequence[Sequence[tuple[str, bool]]]) -> list[str]:
    """Names of columns from the rows of a header: ``Energy`` over ``MWh`` is ``Energy, MWh``.

    Each name comes with whether it stands over the next row, as a name that spans columns does; else it is the first
    line of a name that the next row goes on with.
    """
    names = [text for text, _ in rows[0]]
    for above, row in pairwise(rows):
        for column, (text, _) in enumerate(row):
            if text and text != names[column].rpartition(", ")[2]:
                joint = ", " if above[column][1] else " "
                names[column] = f"{names[column]}{joint}{text}" if names[column] else text
    return names


def write_rows(cells: Sequence[Sequence[str]], header: int) -> list[str]:
    """Write a table's rows, under the names in the row ``header``, -1 where there is none."""
    if header < 0:
        return written_rows(cells, has_header=False)
    names = cells[header]
    written = written_rows(cells[:header], has_header=False)
    for row in cells[header + 1 :]:
        written += written_rows([names, row] if len(row) > 1 else [row], has_header=len(row) > 1)
    return written or written_rows([names], has_header=False)


_NUMERIC = re.compile(r"[\s\d.,:%±+×~≈<>=()^/−–-]*\d[\s\d.,:%±+×~≈<>=()^/−–-]*[^\W\d]{0,4}%?")


def written_rows(cells: Sequence[Sequence[str]], has_header: bool) -> list[str]:
    """Write a table's rows, empty cells left out.

    Under a header a row reads ``column: value; …``, else its cells are joined by bars. A header without rows is a row.
    """
    if has_header and len(cells) > 1:
        names, *body = cells
        rows = [
            "; ".join(
                f"{name}: {value}" if name else value for name, value in zip_longest(names, row, fillvalue="") if value
            )
            for row in body
        ]
    else:
        rows = [" | ".join(filter(None, row)) for row in cells]
    return [row for row in rows if row]


def is_number(text: str) -> bool:
    """Whether a cell holds a number, perhaps with a unit of a few letters."""
    return _NUMERIC.fullmatch(text) is not None


_FILLED = 4  # most characters of a table with its spans filled, per character without
_FREE_CHARS = 100_000  # of any table, likewise


def fill_spans(rows: Sequence[Sequence[TableCell]]) -> list[list[TableCell | None]]:
    """Cells by row and column; one that spans several is at each of them, a later one where two overlap.

    Spans that would repeat a table's text many times are not filled.
    """
    carried: dict[int, tuple[TableCell, int]] = {}  # column → cell of a row above, and how many rows it still covers
    table: list[list[TableCell | None]] = []
    budget = _FREE_CHARS + (_FILLED + 1) * sum(len(cell[0]) + 1 for row in rows for cell in row)

    def take(column: int) -> TableCell | None:
        cell, n = carried.pop(column, (None, 0))
        if cell is not None and n > 1:
            carried[column] = cell, n - 1
        return cell

    for row in rows:
        cells: list[TableCell | None] = []
        for cell in row:
            while len(cells) in carried:
                cells.append(take(len(cells)))
            for _ in range(cell[1]):
                take(len(cells))
                if cell[2] > 1:
                    carried[len(cells)] = cell, cell[2] - 1
                cells.append(cell)
        cells += [take(column) for column in range(len(cells), max(carried, default=-1) + 1)]
        budget -= sum(len(cell[0]) + 1 if cell else 1 for cell in cells)
        if budget < 0:
            return [list(row) for row in rows]
        table.append(cells)
    return table
