"""Write tables as text: find the rows that name the columns, and write each other row with these names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, zip_longest

Cells = list[list[str]]  # the rows of a table; a row of one cell is as wide as the table

_YEAR = re.compile(r"(?:FY|Q[1-4]|H[12])?\s*'?(?:19|20)\d\d(?:\s*[/–-]\s*\d{2,4})?\*?", re.IGNORECASE)
_MARKS = re.compile(r" \[[^\]]{1,9}\]$")  # of the footnotes of a cell


def names_columns(cells: Sequence[Sequence[str]], set_apart: bool) -> bool:
    """Whether the first row names the columns; ``set_apart``: by its type, a rule below it, or spans.

    A row that nothing sets apart does if some column holds numbers under a word, or under a year.
    """
    first = [f"year {name}" if _YEAR.fullmatch(name) else name for name in cells[0]]
    if first[0] != cells[0][0] and not set_apart:
        return False  # a row of years: the first is a value itself
    body = [[_MARKS.sub("", cell) for cell in row] for row in cells[1:] if len(row) > 1]
    return looks_like_header([first, *body], set_apart)


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


def looks_like_header(cells: Sequence[Sequence[str]], ruled: bool) -> bool:
    """Whether the first row names the columns, in a table that marks no header.

    Without rules or a grid, some column must hold numbers under a word.
    """
    header, *body = cells
    names = [name for name in header if name]
    # one empty name is common: over the column of row labels
    if not body or len(names) < max(2, len(header) - 1) or any(map(is_number, names)):
        return False
    if any(len(row) != len(header) for row in body):
        return False
    return ruled or any(sum(is_number(row[i]) for row in body) * 2 >= len(body) for i in range(1, len(header)))


def is_number(text: str) -> bool:
    """Whether a cell holds a number, perhaps with a unit of a few letters."""
    return _NUMERIC.fullmatch(text) is not None


TableCell = tuple[str, int, int, bool]  # text, columns and rows spanned, whether it names others
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
