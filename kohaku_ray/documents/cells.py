"""Table rows as text: each value stands beside its column's name, so that a row can be read alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMERIC = re.compile(r"[\s\d.,:%±+×~≈<>=()^/−–-]*\d[\s\d.,:%±+×~≈<>=()^/−–-]*[^\W\d]{0,4}%?")


def written_rows(cells: Sequence[Sequence[str]], has_header: bool) -> list[str]:
    """Write a table's rows.

    Args:
        cells: Rows, the empty cells with them.
        has_header: Whether the first row names the columns.

    Returns:
        ``column: value; …`` per row under a header, else its cells joined by bars; empty cells left out. A header
        without rows is written as a row.
    """
    if has_header and len(cells) > 1:
        names, *body = cells
        rows = [
            "; ".join(f"{name}: {value}" if name else value for name, value in zip(names, row, strict=False) if value)
            for row in body
        ]
    else:
        rows = [" | ".join(filter(None, row)) for row in cells]
    return [row for row in rows if row]


def looks_like_header(cells: Sequence[Sequence[str]], ruled: bool) -> bool:
    """Whether the first row names the columns, in a table that marks no header.

    Args:
        cells: Rows, the empty cells with them.
        ruled: Whether the table has rules or a grid; without them, some column must hold numbers under a word.
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
