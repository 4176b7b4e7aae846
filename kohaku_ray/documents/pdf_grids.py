"""Tables drawn as a grid: a border round every cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kohaku_ray.documents.content import clean_print
from kohaku_ray.documents.model import Box

MAX_STROKES = 1500
"""Most strokes on a page that is searched for grids; one with more is a drawing and would take seconds."""

MAX_COMPARISONS = 40_000_000  # most comparisons of the search for grids on one page: about three seconds
MAX_GRIDS = 50  # grids read on one page; more are the boxes of a form or drawing, whose text is read as lines
_THICKNESS = 3.0


def grids(page: Any, strokes: Sequence[Box], n_chars: int) -> list[tuple[Box, list[list[str]]]]:
    """Find the grids on a `pymupdf.Page`: where each is, and its rows of cells.

    A grid has at least two rows and two columns, most cells filled, which a chart's frame has not. Nothing is found
    where the search would take more than `MAX_COMPARISONS`.
    """
    if not _may_hold_grid(strokes) or _n_comparisons(strokes, n_chars) > MAX_COMPARISONS:
        return []
    # use_layout would run a neural network over the page: two hundred times as long, and quadratic in its text
    finder = page.find_tables(strategy="lines_strict", use_layout=False)
    found = []
    for table in finder.tables[:MAX_GRIDS] if finder is not None else ():
        words = page.get_text("words", clip=table.bbox)
        rows = [row for one in table.rows if any(row := _cells(one, words))]
        n_cells = sum(map(len, rows))
        n_filled = sum(bool(cell) for row in rows for cell in row)
        if len(rows) >= 2 and min(map(len, rows)) >= 2 and 2 * n_filled >= n_cells:
            found.append((tuple(table.bbox), rows))
    return found


def _may_hold_grid(strokes: Sequence[Box]) -> bool:
    """Whether there are upright strokes or boxes enough for two cells side by side on two rows."""
    if len(strokes) > MAX_STROKES:
        return False
    upright = {round(x0) for x0, y0, x1, y1 in strokes if x1 - x0 <= _THICKNESS and y1 - y0 > 8}
    level = {round(y0) for x0, y0, x1, y1 in strokes if y1 - y0 <= _THICKNESS and x1 - x0 > 8}
    boxes = [(round(x0), round(y0)) for x0, y0, x1, y1 in strokes if x1 - x0 > 8 and 8 < y1 - y0 < 200]
    has_lines = len(upright) >= 3 and len(level) >= 3
    return has_lines or (len({x for x, _ in boxes}) >= 2 and len({y for _, y in boxes}) >= 2)


def _n_comparisons(strokes: Sequence[Box], n_chars: int) -> int:
    """At most about how many comparisons `Page.find_tables` makes: of strokes, crossings and words in pairs."""
    across = {round(x) for x0, y0, x1, y1 in strokes if y1 - y0 > _THICKNESS for x in (x0, x1)}
    down = {round(y) for x0, y0, x1, y1 in strokes if x1 - x0 > _THICKNESS for y in (y0, y1)}
    n_crossings = min(len(across) * len(down), len(strokes) ** 2)
    return 4 * len(strokes) * (len(strokes) + n_chars) + n_crossings * (n_crossings + n_chars // 6)


def _cells(row: Any, words: Sequence[tuple[Any, ...]]) -> list[str]:
    """Texts of a row's cells, by the middle of each word: `Table.extract` removes spaces and commas from numbers."""
    _, top, _, bottom = row.bbox
    placed = [((word[0] + word[2]) / 2, (word[1] + word[3]) / 2, word[4]) for word in words]
    inside = [word for word in placed if top <= word[1] < bottom]
    return [_cell(cell, inside) for cell in row.cells]


def _cell(cell: Box | None, words: Sequence[tuple[float, float, str]]) -> str:
    """Text of a cell; empty where the grid has a gap."""
    if cell is None:
        return ""
    x0, y0, x1, y1 = cell
    return clean_print(" ".join(text for x, y, text in words if x0 <= x < x1 and y0 <= y < y1)).strip()
