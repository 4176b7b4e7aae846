"""Table cells that span rows and columns, spread to a plain grid."""

from __future__ import annotations

from collections.abc import Sequence


def spread(rows: Sequence[Sequence[tuple[str, int, int, bool]]]) -> list[list[str]]:
    """Cells at their columns: names and row labels that span several are repeated, other values occur once."""
    carried: dict[int, tuple[str, int]] = {}  # column → text from a row above, and how many rows it still covers
    table = []
    for row in rows:
        cells: list[str] = []

        def take_carried(cells: list[str] = cells) -> None:
            while len(cells) in carried:
                text, n = carried.pop(len(cells))
                if n > 1:
                    carried[len(cells)] = text, n - 1
                cells.append(text)

        for text, n_columns, n_rows, is_name in row:
            take_carried()
            for i in range(n_columns):
                shown = text if i == 0 or is_name else ""
                if n_rows > 1:
                    carried[len(cells)] = shown, n_rows - 1
                cells.append(shown)
        take_carried()
        table.append(cells)
    return table
