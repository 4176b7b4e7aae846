"""Embedded images as they lie on a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kohaku_ray.documents.model import Box


@dataclass(slots=True)
class Picture:
    """An embedded image where it is drawn.

    Attributes:
        image: A ``pymupdf.mupdf.FzImage``, not decoded.
        axes: Its horizontal and its vertical axis on the page as it is read.
    """

    image: Any
    axes: tuple[float, float, float, float]

    @property
    def axes_signs(self) -> tuple[bool, bool, bool]:
        """Whether it lies on its side, and then whether it is mirrored left to right, and top to bottom."""
        a, b, c, d = self.axes
        across = abs(b) + abs(c) > abs(a) + abs(d)
        return (True, c < 0, b < 0) if across else (False, a < 0, d < 0)


def turned_box(box: Box, turn: int, width: float, height: float) -> Box:
    """A box of a page as it lies, on the page as it is read.

    Args:
        box: Left, top, right, bottom.
        turn: 1 where the text runs upwards, 3 where it runs downwards.
        width: Of the page as it is read.
        height: Likewise.
    """
    x0, y0, x1, y1 = box
    if turn == 1:
        return width - y1, x0, width - y0, x1
    return y0, height - x1, y1, height - x0
