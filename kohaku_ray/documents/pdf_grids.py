"""Tables drawn as a grid: a border round every cell."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from kohaku_ray.documents.content import clean_print
from kohaku_ray.documents.model import Box

Edge = tuple[float, float, float]  # a straight stroke: its position across, its start and its end

MAX_STROKES = 1500
"""Most strokes on a page that is searched for grids; one with more is a drawing and would take seconds."""

MAX_COMPARISONS = 40_000_000  # most comparisons of the search for grids on one page: about three seconds
MAX_GRIDS = 50  # grids read on one page; more are the boxes of a form or drawing, whose text is read as lines
_THICKNESS = 3.0
_SNAP = 3.0  # PyMuPDF joins strokes up to this far apart, in points


def grids(page: Any, strokes: Sequence[Box], n_chars: int) -> list[tuple[Box, list[list[str]]]]:
    """Find the grids on a `pymupdf.Page`: where each is, and its rows of cells.

    A grid has at least two rows and two columns, most cells filled, which a chart's frame has not. Nothing is found
    where the search would take more than `MAX_COMPARISONS`.
    """
    if not _may_hold_grid(strokes) or _n_comparisons(page.get_cdrawings(), n_chars) > MAX_COMPARISONS:
        return []
    # use_layout would run a neural network over the page: two hundred times as long, and quadratic in its text
    finder = page.find_tables(strategy="lines_strict", use_layout=False)
    found = []
    for table in finder.tables[:MAX_GRIDS] if finder is not None else ():
        words = _Words(page.get_text("words", clip=table.bbox))
        rows = [[words.inside(cell) for cell in row.cells] for row in table.rows]
        rows = [row for row in rows if any(row)]
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


def _n_comparisons(paths: Sequence[dict[str, Any]], n_chars: int) -> int:
    """About how many comparisons `Page.find_tables` makes: paths, edges and crossings are compared in pairs."""
    upright: list[Edge] = []
    level: list[Edge] = []
    for path in paths:
        for kind, *points in path["items"]:
            if kind == "l":
                (x0, y0), (x1, y1) = points
            elif kind == "re":
                x0, y0, x1, y1 = points[0]
            elif kind == "qu":
                (x0, y0), *_, (x1, y1) = points[0]
            else:
                continue
            x0, x1, y0, y1 = min(x0, x1), max(x0, x1), min(y0, y1), max(y0, y1)
            is_line = kind == "l"
            if not is_line or x1 - x0 <= _SNAP:
                upright.extend(((x0, y0, y1), (x1, y0, y1)))
            if not is_line or y1 - y0 <= _SNAP:
                level.extend(((y0, x0, x1), (y1, x0, x1)))
    upright, level = _joined(upright), _joined(level)
    cost = 4 * len(upright) * len(level) + 4 * len(paths) * (len(paths) + n_chars)
    if cost > MAX_COMPARISONS:
        return cost
    n_crossings = _n_crossings(upright, level)
    return cost + n_crossings * (n_crossings + n_chars // 6)  # a grid has six crossings or more


def _joined(edges: Iterable[Edge]) -> list[Edge]:
    """Edges brought into line and joined end to end, as PyMuPDF does before it compares them."""
    snapped: list[Edge] = []
    last = place = float("-inf")
    for at, start, end in sorted(edges):
        place = at if at - last > _SNAP else place
        last = at
        snapped.append((place, start, end))
    joined: list[Edge] = []
    for at, start, end in sorted(snapped):
        if joined and joined[-1][0] == at and start <= joined[-1][2] + _SNAP:
            joined[-1] = (at, joined[-1][1], max(end, joined[-1][2]))
        else:
            joined.append((at, start, end))
    return joined


def _n_crossings(upright: Sequence[Edge], level: Sequence[Edge]) -> int:
    import numpy as np

    if not upright or not level:
        return 0
    x, top, bottom = np.array(upright).T[:, :, None]
    y, left, right = np.array(level).T
    crosses = (top <= y + _SNAP) & (bottom >= y - _SNAP) & (x >= left - _SNAP) & (x <= right + _SNAP)
    return int(crosses.sum())


class _Words:
    """Words of a table, found by the middle of each: `Table.extract` removes spaces and commas from numbers."""

    def __init__(self, words: Sequence[tuple[Any, ...]]) -> None:
        """Take words as ``(x0, y0, x1, y1, text, …)`` in reading order."""
        middles = ((word[1] + word[3], (word[0] + word[2]) / 2, i, word[4]) for i, word in enumerate(words))
        self._downwards = sorted((y / 2, x, i, text) for y, x, i, text in middles)
        self._bands: dict[tuple[float, float], list[tuple[float, int, str]]] = {}

    def inside(self, cell: Box | None) -> str:
        """Text of a cell, in reading order; empty where the grid has a gap."""
        if cell is None:
            return ""
        x0, y0, x1, y1 = cell
        if (y0, y1) not in self._bands:
            band = self._downwards[bisect_left(self._downwards, (y0,)) : bisect_left(self._downwards, (y1,))]
            self._bands[y0, y1] = sorted((x, i, text) for _, x, i, text in band)
        band_words = self._bands[y0, y1]
        found = band_words[bisect_left(band_words, (x0,)) : bisect_left(band_words, (x1,))]
        return clean_print(" ".join(text for _, _, text in sorted(found, key=lambda word: word[1]))).strip()
