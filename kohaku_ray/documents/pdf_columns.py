"""Reading order: full-width lines cut a page into bands, and inside a band the left column comes first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kohaku_ray.documents.pdf_page import Line

MIN_COLUMN_LINES = 3
"""Fewest lines side by side that are columns, unless the document's other pages have a gutter there."""

MIN_COLUMN_CHARS = 18
"""Shortest mean line, in characters, of a column of prose; shorter ones are a table's cells."""

MAX_LINES = 5000
"""Most pieces on a page that is searched for columns; one with more is read from top to bottom."""

_N_BINS = 200
_MARGIN_BINS = 24
_MAX_DEPTH = 4
_DOWNWARDS = attrgetter("y0", "x0")


def reading_order(
    lines: Sequence[Line], gutter: float | None = None, depth: int = 0
) -> tuple[list[list[Line]], float | None]:
    """Cut a page into regions with one column each.

    Args:
        lines: Lines, images and tables of a page, in any order.
        gutter: Middle of the previous page's gutter, in points; None: it had none.
        depth: How many gutters have been found around these lines.

    Returns:
        Regions in reading order, each from top to bottom, and the middle of this page's gutter, or None.
    """
    ordered = lines if depth else sorted(lines, key=_DOWNWARDS)  # inside a column they are in order already
    found = _gutter(ordered, gutter) if len(ordered) <= MAX_LINES and depth < _MAX_DEPTH else None
    if found is None:
        return ([list(ordered)] if ordered else []), None
    known = gutter is not None
    regions: list[list[Line]] = []
    full: list[Line] = []
    has_columns = False
    for band in _bands(ordered, found):
        left = [line for line in band if line.x1 <= found]
        right = [line for line in band if line.x0 >= found] if left else []
        if not _are_columns(left, right, known):
            full.extend(band)
            continue
        has_columns = True
        while left and _ends_paragraph_above(left[0], full, right):
            full.append(left.pop(0))
        if full:
            regions.append(full)
            full = []
        for side in (left, right):
            regions.extend(reading_order(side, None, depth + 1)[0])
    if full:
        regions.append(sorted(full, key=_DOWNWARDS))
    return (regions, found) if has_columns else ([list(ordered)], None)


def _gutter(lines: Sequence[Line], known: float | None) -> float | None:
    """The middle of the strip with most lines on both sides of it and fewest across; None where there is none."""
    if len(lines) < 2:
        return None
    lefts, rights = sorted([line.x0 for line in lines]), sorted([line.x1 for line in lines])
    left = lefts[0]
    width = rights[-1] - left
    if width <= 0:
        return None
    if known is not None and _is_crossed_by_few(lines, known):
        return known
    return _best_strip(lefts, rights, left, _N_BINS / width) if len(lines) >= 2 * MIN_COLUMN_LINES else None


def _best_strip(lefts: Sequence[float], rights: Sequence[float], left: float, scale: float) -> float | None:
    """The middle of the best strip, from the sorted ends of lines, the left edge and the width of a bin."""

    def end(x: float) -> int:
        return int((x - left) * scale + 0.999)

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
        score = min(n_left, n_right) - 0.25 * (n - n_left - n_right)
        if score > best:
            best, first, last = score, b, b
        elif score == best and b == last + 1:
            last = b
    return left + (first + last) / 2 / scale if first >= 0 else None


def _is_crossed_by_few(lines: Sequence[Line], gutter: float) -> bool:
    n_left = sum(line.x1 <= gutter for line in lines)
    n_right = sum(line.x0 >= gutter for line in lines)
    return n_left > 0 and n_right > 0 and len(lines) - n_left - n_right <= 0.3 * len(lines)


def _bands(ordered: Sequence[Line], gutter: float) -> list[list[Line]]:
    """The lines between two that cross the gutter, and each that does, from top to bottom."""
    crossing = [line for line in ordered if line.x0 < gutter < line.x1]
    if not crossing:
        return [list(ordered)]
    heights = [line.y0 + line.y1 for line in crossing]
    heights.sort()
    between: list[list[Line]] = [[] for _ in range(len(crossing) + 1)]
    for line in ordered:
        if not line.x0 < gutter < line.x1:
            between[bisect_left(heights, line.y0 + line.y1)].append(line)
    bands = [between[0]]
    for line, below in zip(sorted(crossing, key=lambda line: line.y0 + line.y1), between[1:], strict=True):
        bands.extend(([line], below))
    return [band for band in bands if band]


def _are_columns(left: Sequence[Line], right: Sequence[Line], known: bool) -> bool:
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


def _ends_paragraph_above(line: Line, full: Sequence[Line], right: Sequence[Line]) -> bool:
    """Whether a short line under a full-width one is that paragraph's last, and not the left column's first."""
    if not full or full[-1].kind != "text" or line.kind != "text":
        return False
    above = full[-1]
    is_next = -0.3 * line.size < line.y0 - above.y1 < 0.6 * line.size
    return is_next and abs(above.size - line.size) < 0.05 * line.size and line.y1 <= right[0].y0 + 1
