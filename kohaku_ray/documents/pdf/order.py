"""Put the lines of a PDF's page in reading order: columns one after the other between lines as wide as the page."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kohaku_ray.documents.pdf.page import TextLine

MIN_COLUMN_LINES = 3  # fewest lines side by side that are columns
MIN_COLUMN_CHARS = 18  # shortest mean line, in characters, of a column of prose; shorter ones are a table's cells
MAX_LINES = 5000  # most pieces on a page that is searched for columns; one with more is read from top to bottom
_N_BINS = 200
_MARGIN_BINS = 24
_DOWNWARDS = attrgetter("y0", "x0")


def reading_order(lines: Sequence[TextLine]) -> list[list[TextLine]]:
    """Cut a page into regions with one column each, in reading order, each from top to bottom."""
    ordered = sorted(lines, key=_DOWNWARDS)
    gutter = _gutter(ordered) if len(ordered) <= MAX_LINES else None
    if gutter is None:
        return [ordered] if ordered else []
    regions: list[list[TextLine]] = []
    full: list[TextLine] = []
    for band in _bands(ordered, gutter):
        left = [line for line in band if line.x1 <= gutter]
        right = [line for line in band if line.x0 >= gutter]
        if not _are_columns(left, right):
            full.extend(band)
            continue
        if full:
            regions.append(sorted(full, key=_DOWNWARDS))
            full = []
        regions += [left, right]
    if full:
        regions.append(sorted(full, key=_DOWNWARDS))
    return regions


def _gutter(lines: Sequence[TextLine]) -> float | None:
    """The middle of the strip with most lines on both sides of it and fewest across; None where there is none."""
    if len(lines) < 2 * MIN_COLUMN_LINES:
        return None
    lefts, rights = sorted([line.x0 for line in lines]), sorted([line.x1 for line in lines])
    left, n = lefts[0], len(lines)
    width = rights[-1] - left
    best, first, last = 0.0, -1, -1
    for b in range(_MARGIN_BINS, _N_BINS - _MARGIN_BINS + 1):
        x = left + b * width / _N_BINS
        n_left, n_right = bisect_right(rights, x), n - bisect_left(lefts, x)
        # four lines across weigh as much as one beside: 0.1 and 0.5 change one of 26 files each
        score = min(n_left, n_right) - 0.25 * (n - n_left - n_right)
        if score > best and min(n_left, n_right) >= MIN_COLUMN_LINES:
            best, first, last = score, b, b
        elif score == best and b == last + 1:
            last = b
    return left + (first + last) / 2 * width / _N_BINS if first >= 0 else None


def _bands(ordered: Sequence[TextLine], gutter: float) -> list[list[TextLine]]:
    """The lines between two that cross the gutter, and each that does, from top to bottom."""
    crossing = sorted((line for line in ordered if line.x0 < gutter < line.x1), key=_middle)
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


def _are_columns(left: Sequence[TextLine], right: Sequence[TextLine]) -> bool:
    """Whether two sides of a band are prose side by side, rather than a table's cells or one side's short lines."""
    if min(len(left), len(right)) < MIN_COLUMN_LINES or max(left[0].y0, right[0].y0) > min(left[-1].y1, right[-1].y1):
        return False
    return all(
        sum(len(line.text) if line.kind == "text" else MIN_COLUMN_CHARS for line in side)
        >= MIN_COLUMN_CHARS * len(side)
        for side in (left, right)
    )
