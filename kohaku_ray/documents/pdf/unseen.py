"""Tell which text of a PDF's page no reader sees: struck, not painted, or white on white paper."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from kohaku_ray.documents.model import Box
from kohaku_ray.documents.pdf.scripts import Span

_STRUCK, _PAINTED = 0x1, 0x10 | 0x20 | 0x40  # MuPDF's flags of a character: a line through it; filled, stroked, clip
MAX_VECTORS, MAX_LINES = 1500, 1500  # most strokes and lines of a page on which struck text is looked for
_WHITE = 0xF8  # least red, green and blue of text that white paper hides


def may_be_struck(lines: Sequence[Mapping[str, Any]], vectors: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a thin rule crosses the middle of a line of text: MuPDF compares lines in pairs to find struck ones."""
    boxes = [vector["bbox"] for vector in vectors] if len(vectors) <= MAX_VECTORS and len(lines) <= MAX_LINES else []
    rules = sorted(((y0 + y1) / 2, x0, x1) for x0, y0, x1, y1 in boxes if y1 - y0 <= 3 < x1 - x0)
    for x0, y0, x1, y1 in (line["bbox"] for line in lines if rules):
        crossing = rules[bisect_left(rules, (0.65 * y0 + 0.35 * y1,)) : bisect_left(rules, (0.35 * y0 + 0.65 * y1,))]
        if any(left < x1 and x0 < right for _, left, right in crossing):
            return True
    return False


def why_unseen(span: Span) -> str:
    """What hides a span of text; empty where nothing does."""
    if span["char_flags"] & _STRUCK and len(span["text"].strip()) > 1:  # a single sign with a bar is a root or a grid's
        return "struck text"
    if not (span["char_flags"] & _PAINTED and span["alpha"]):
        return "unpainted text"
    return "white text" if _is_white(span["color"]) else ""


def _is_white(colour: int) -> bool:
    return min(colour >> 16 & 255, colour >> 8 & 255, colour & 255) >= _WHITE


def unseen_spans(
    spans: Sequence[Span], pictures: Sequence[Box], vectors: Sequence[Mapping[str, Any]]
) -> dict[int, str]:
    """What hides each span that is not seen, by its ``id``; text over a picture or on a coloured area is seen.

    The text of a scan's recognition is not painted either, but lies over the scan or is all that there is: it stays.
    """
    hidden = {id(span): why for span in spans if span["text"].strip() and (why := why_unseen(span))}
    if not hidden or len(hidden) == sum(bool(span["text"].strip()) for span in spans):
        return {}
    areas = [vector["bbox"] for vector in vectors if not vector["stroked"] and not _is_white(vector["color"])]
    over = {"struck text": (), "unpainted text": pictures, "white text": (*pictures, *areas)}
    return {
        id(span): hidden[id(span)]
        for span in spans
        if id(span) in hidden and not any(is_over(span["bbox"], box) for box in over[hidden[id(span)]])
    }


def is_over(inner: Box, box: Box, margin: float = 0.0) -> bool:
    """Whether the middle of a box lies in another one with a margin, in points."""
    x, y = (inner[0] + inner[2]) / 2, (inner[1] + inner[3]) / 2
    return box[0] - margin <= x <= box[2] + margin and box[1] - margin <= y <= box[3] + margin
