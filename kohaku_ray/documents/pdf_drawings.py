"""Vector figures on a page: clusters of strokes with a caption ``Figure n`` below or above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kohaku_ray.documents.model import Box
from kohaku_ray.documents.pdf_blocks import CAPTION, caption_gap
from kohaku_ray.documents.pdf_page import Line, Page

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

CELL_POINTS = 8.0
"""Strokes in the same square of this side, or in adjacent ones, are one drawing."""

MIN_STROKES = 3
"""Fewest strokes of a figure; fewer are a frame or a rule."""

MIN_POINTS = 40.0
"""Shortest side of a figure."""

MAX_SHARE = 0.8
"""Largest share of a page that a stroke or a figure covers; a larger one is the background."""

RASTER_SHARE = 0.6
"""An embedded image that covers a larger share of a drawing is the figure itself, and the strokes are its frame."""

LABEL_POINTS = 16.0
"""Largest distance of an axis label from its drawing."""

LABEL_CHARS = 60
"""Longest axis label."""


def drawn_figures(page: Page) -> list[Box]:
    """Find the vector figures of a page that is not turned.

    An embedded image inside such a figure is a part of it: it is removed from ``page.images``.

    Args:
        page: Its lines, strokes, grids, and the images that are kept.

    Returns:
        Their places, axis labels included, from top to bottom.
    """
    captions = [line for line in page.lines if _is_figure(line)]
    free = [line for line in captions if not any(caption_gap(box, line.box) is not None for box in page.images)]
    inside = [line for line in captions if line not in free]
    if not captions or not page.strokes:
        return []
    drawings = [box for box in _clusters(page) if not any(_share(box, table) > 0.5 for table, _ in page.grids)]
    drawings = [_with_labels(box, page.lines) for box in drawings]
    figures = []
    for caption in [*free, *inside]:
        near = [(gap, box) for box in drawings if (gap := caption_gap(box, caption.box)) is not None]
        if not near:
            continue
        # the caption of a figure is usually below it
        box = min(near, key=lambda found: (found[1][1] > caption.y0, found[0]))[1]
        parts = [image for image in page.images if _share(image, box) > 0.5]
        if caption in inside and not parts:
            continue  # its figure is an embedded image
        if any(_area(image) > RASTER_SHARE * _area(box) for image in parts):
            continue
        page.images = [image for image in page.images if image not in parts]
        drawings.remove(box)
        figures.append(box)
    return sorted(figures, key=lambda box: (box[1], box[0]))


def _is_figure(line: Line) -> bool:
    found = CAPTION.match(line.text) if line.kind == "text" else None
    return found is not None and found["kind"].lower().startswith("f")


def _clusters(page: Page) -> list[Box]:
    """Boxes round strokes that touch, of a figure's size."""
    import numpy as np

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
    labels = _labels(covered)
    own = labels[cells[:, 1], cells[:, 0]]
    found = []
    for label in np.unique(own).tolist():
        members = strokes[own == label]
        x0, y0 = members[:, :2].min(axis=0).tolist()
        x1, y1 = members[:, 2:].max(axis=0).tolist()
        is_large = min(x1 - x0, y1 - y0) >= MIN_POINTS
        if len(members) >= MIN_STROKES and is_large and (x1 - x0) * (y1 - y0) <= MAX_SHARE * area:
            found.append((x0, y0, x1, y1))
    return found


def _labels(covered: Mask) -> I64:
    """Number the connected regions of a grid, corners included."""
    import numpy as np

    labels = np.full(covered.shape, -1, np.int64)
    n_y, n_x = covered.shape
    for start, seed in enumerate(np.argwhere(covered).tolist()):
        if labels[tuple(seed)] >= 0:
            continue
        waiting = [tuple(seed)]
        labels[waiting[0]] = start
        while waiting:
            y, x = waiting.pop()
            for ny in range(max(y - 1, 0), min(y + 2, n_y)):
                for nx in range(max(x - 1, 0), min(x + 2, n_x)):
                    if covered[ny, nx] and labels[ny, nx] < 0:
                        labels[ny, nx] = start
                        waiting.append((ny, nx))
    return labels


def _with_labels(box: Box, lines: Sequence[Line]) -> Box:
    """Extend a drawing by the axis labels around it."""
    x0, y0, x1, y1 = box
    for line in lines:
        is_label = line.kind == "text" and len(line.text) <= LABEL_CHARS and CAPTION.match(line.text) is None
        x, y = (line.x0 + line.x1) / 2, (line.y0 + line.y1) / 2
        is_near = (
            box[0] - LABEL_POINTS <= x <= box[2] + LABEL_POINTS and box[1] - LABEL_POINTS <= y <= box[3] + LABEL_POINTS
        )
        if is_label and is_near and line.x1 - line.x0 <= box[2] - box[0]:
            x0, y0, x1, y1 = min(x0, line.x0), min(y0, line.y0), max(x1, line.x1), max(y1, line.y1)
    return x0, y0, x1, y1


def _area(box: Box) -> float:
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def _share(box: Box, other: Box) -> float:
    """Share of a box that another one covers."""
    common = max(box[0], other[0]), max(box[1], other[1]), min(box[2], other[2]), min(box[3], other[3])
    return _area(common) / max(_area(box), 1e-9)
