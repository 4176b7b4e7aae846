"""Which rows of a table name its columns, and the rows as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from kohaku_ray.documents.text import looks_like_header, written_rows

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
