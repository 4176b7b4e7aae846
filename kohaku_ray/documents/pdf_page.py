"""One page of a PDF as PyMuPDF sees it: lines of text, images, rules, and grids with a border round every cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kohaku_ray.documents.content import well_formed

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in points, as seen on the page."""

MIN_IMAGE_POINTS = 30.0
"""A picture with a shorter side is an icon or a bullet and left out."""

MAX_IMAGE_SHARE = 0.9
"""A picture that covers more of a page with text is its background and left out."""

MAX_IMAGES = 50
"""More pictures on one page are the tiles of one, and left out."""

MAX_GRID_LINES = 1500
"""A page with more strokes is a drawing: looking for grids in it would take seconds."""

_RULE_THICKNESS = 3.0
_MIN_RULE = 20.0
_BOLD_NAME = re.compile(r"bold|black|heavy|cmbx|sfbx|-bd|\bmedi$", re.IGNORECASE)
_NOT_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SPACES = re.compile(r"\s+")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe]")
_LIGATURES = str.maketrans({"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"})

_SUPERSCRIPT, _BOLD = 1, 16
"""PyMuPDF's span flags."""


@dataclass(slots=True)
class Line:
    """What stands on one line between two wide gaps; or a whole image or table, which flows with the lines.

    Attributes:
        x0: Left edge, in points.
        y0: Top edge.
        x1: Right edge.
        y1: Bottom edge.
        text: Readable; of a table its rows, a line each.
        size: Of the font that most of it is set in, in points.
        bold: Whether most of it is.
        kind: ``text``, ``image`` or ``table``.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    size: float = 0.0
    bold: bool = False
    kind: str = "text"

    @property
    def box(self) -> Box:
        """Left, top, right, bottom."""
        return self.x0, self.y0, self.x1, self.y1


@dataclass(slots=True)
class Page:
    """A page read.

    Attributes:
        number: From 1.
        width: In points; of a page printed sideways, as its text is read.
        height: Likewise.
        lines: In the order they were drawn.
        images: Where pictures are.
        rules: Horizontal rules as (left, right, height on the page).
        grids: Tables with a border round every cell: where they are, and their rows of cells.
        turn: 0; 1 where the text runs upwards, 3 where it runs downwards.
    """

    number: int
    width: float
    height: float
    lines: list[Line]
    images: list[Box] = field(default_factory=list)
    rules: list[tuple[float, float, float]] = field(default_factory=list)
    grids: list[tuple[Box, list[list[str]]]] = field(default_factory=list)
    turn: int = 0

    def on_paper(self, box: Box) -> Box:
        """A box on the page as it lies, rounded to a tenth of a point."""
        x0, y0, x1, y1 = box
        if self.turn == 1:
            x0, y0, x1, y1 = y0, self.width - x1, y1, self.width - x0
        elif self.turn == 3:
            x0, y0, x1, y1 = self.height - y1, x0, self.height - y0, x1
        return round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)


def read_page(page: Any) -> Page:
    """Read a `pymupdf.Page`.

    Args:
        page: The page; its images are located, never decoded.

    Returns:
        Its lines with ligatures spelt out, and what else stands there.
    """
    import pymupdf

    # without PRESERVE_LIGATURES and PRESERVE_WHITESPACE MuPDF itself writes "fi" and plain spaces
    flags = pymupdf.TEXT_MEDIABOX_CLIP | pymupdf.TEXT_COLLECT_VECTORS
    found = page.get_text("dict", flags=flags)
    turn = _turn(found["blocks"])
    width, height = float(found["width"]), float(found["height"])
    read = Page(page.number + 1, width, height, [])
    strokes: list[Box] = []
    for block in found["blocks"]:
        if block["type"] == 0:
            _read_lines(block["lines"], turn, read)
        elif block["type"] == 3:
            strokes.append(block["bbox"])
    if turn:
        read.turn, read.width, read.height = turn, height, width
        return read  # a page printed sideways: rules and images would have to be turned as well, and are rare there
    if strokes:
        read.rules = _rules(strokes)
        if _may_hold_grid(strokes):
            read.grids = _grids(page)
    if page.get_images():
        read.images = _images(page, bool(read.lines))
    return read


def _turn(blocks: Sequence[Mapping[str, Any]]) -> int:
    """Which way most lines run: 0 across the page, 1 upwards, 3 downwards."""
    counts = [0, 0, 0, 0]
    for block in blocks:
        if block["type"] == 0:
            for line in block["lines"]:
                counts[_direction(*line["dir"])] += 1
    return max(range(4), key=counts.__getitem__)


def _direction(dx: float, dy: float) -> int:
    """Which way a line runs, counted as turns are."""
    return 0 if abs(dx) >= abs(dy) else 1 if dy < 0 else 3


def _read_lines(lines: Sequence[Mapping[str, Any]], turn: int, page: Page) -> None:
    """Append the lines that run in the page's direction; others are margin stamps and axis labels."""
    found = page.lines
    last = found[-1] if found else None
    for line in lines:
        x0, y0, x1, y1 = line["bbox"]
        dx, dy = line["dir"]
        if dx != 1.0 or turn:
            if _direction(dx, dy) != turn:
                continue
            if turn == 1:
                x0, y0, x1, y1 = page.height - y1, x0, page.height - y0, x1
            elif turn == 3:
                x0, y0, x1, y1 = y0, page.width - x1, y1, page.width - x0
        spans = line["spans"]
        if len(spans) == 1:
            span = spans[0]
            text, size, bold = span["text"], span["size"], _is_bold(span["flags"], span["font"])
        else:
            text, size, bold = _join_spans(spans)
        if not (text.isascii() and text.isprintable()):
            text = _clean(text)
        text = text.strip()
        if not text:
            continue
        if last is not None and _goes_on(last, x0, y0, x1, y1, size):
            _append(last, text, x0, x1, y0, y1)
        else:
            last = Line(x0, y0, x1, y1, text, size, bold)
            found.append(last)


def _is_bold(flags: int, font: str) -> bool:
    return bool(flags & _BOLD) or _is_bold_name(font)


@cache
def _is_bold_name(font: str) -> bool:
    return _BOLD_NAME.search(font) is not None


def _join_spans(spans: Sequence[Mapping[str, Any]]) -> tuple[str, float, bool]:
    """Text of a line of several fonts, with the size and weight that most of its characters have."""
    pieces: list[str] = []
    sizes: dict[float, int] = {}
    n_bold = n_all = 0
    for span in spans:
        text = span["text"]
        n = len(text.strip())
        sizes[span["size"]] = sizes.get(span["size"], 0) + n
        n_all += n
        if _is_bold(span["flags"], span["font"]):
            n_bold += n
        if span["flags"] & _SUPERSCRIPT and text[:1] in "0123456789-−–" and pieces and pieces[-1].endswith("10"):
            pieces.append("^")  # 10⁶ must not read as 106
        pieces.append(text)
    return "".join(pieces), max(sizes, key=sizes.__getitem__), 2 * n_bold > n_all


def _clean(text: str) -> str:
    """Spell ligatures out, take control and formatting characters out, turn every space into a plain one.

    Soft hyphens stay: at a line's end they say that a word goes on.
    """
    return _SPACES.sub(" ", _NOT_TEXT.sub("", well_formed(text.translate(_LIGATURES))))


def _goes_on(last: Line, x0: float, y0: float, x1: float, y1: float, size: float) -> bool:
    """Whether a piece stands on the same line as the last, with no more than a letter's width between."""
    if abs(y1 - last.y1) > 0.4 * size or abs(y0 - last.y0) > 0.6 * size:
        return False
    gap = x0 - last.x1 if x0 >= last.x0 else last.x0 - x1
    return -0.5 * size < gap < 0.9 * size


def _append(last: Line, text: str, x0: float, x1: float, y0: float, y1: float) -> None:
    is_before = x0 < last.x0
    rtl = _RIGHT_TO_LEFT.search(text) is not None or _RIGHT_TO_LEFT.search(last.text) is not None
    close = (last.x0 - x1 if is_before else x0 - last.x1) < 0.12 * last.size
    pieces = (text, last.text) if is_before and not rtl else (last.text, text)
    last.text = ("" if close and not rtl else " ").join(pieces)
    last.x0, last.x1 = min(last.x0, x0), max(last.x1, x1)
    last.y0, last.y1 = min(last.y0, y0), max(last.y1, y1)


def _rules(strokes: Sequence[Box]) -> list[tuple[float, float, float]]:
    """Horizontal rules from top to bottom; of a filled or framed box its upper and lower edge."""
    found: set[tuple[float, float, float]] = set()
    for x0, y0, x1, y1 in strokes:
        if x1 - x0 >= _MIN_RULE:
            left, right = round(x0, 1), round(x1, 1)
            heights = ((y0 + y1) / 2,) if y1 - y0 <= _RULE_THICKNESS else (y0, y1)
            found.update((left, right, round(height, 1)) for height in heights)
    return sorted(found, key=lambda rule: (rule[2], rule[0]))


def _may_hold_grid(strokes: Sequence[Box]) -> bool:
    """Whether there are upright strokes or boxes enough for two cells side by side on two rows."""
    if len(strokes) > MAX_GRID_LINES:
        return False
    upright = {round(x0) for x0, y0, x1, y1 in strokes if x1 - x0 <= _RULE_THICKNESS and y1 - y0 > 8}
    level = {round(y0) for x0, y0, x1, y1 in strokes if y1 - y0 <= _RULE_THICKNESS and x1 - x0 > 8}
    boxes = [(round(x0), round(y0)) for x0, y0, x1, y1 in strokes if x1 - x0 > 8 and 8 < y1 - y0 < 200]
    has_lines = len(upright) >= 3 and len(level) >= 3
    return has_lines or (len({x for x, _ in boxes}) >= 2 and len({y for _, y in boxes}) >= 2)


def _grids(page: Any) -> list[tuple[Box, list[list[str]]]]:
    """Tables drawn as a grid: at least two rows and two columns, most cells filled, so no chart's frame."""
    found = []
    for table in page.find_tables(strategy="lines_strict").tables:
        words = page.get_text("words", clip=table.bbox)
        rows = [[_words_in(cell, words) for cell in row.cells] for row in table.rows]
        rows = [row for row in rows if any(row)]
        n_cells = sum(map(len, rows))
        n_filled = sum(bool(cell) for row in rows for cell in row)
        if len(rows) >= 2 and min(map(len, rows)) >= 2 and 2 * n_filled >= n_cells:
            found.append((tuple(table.bbox), rows))
    return found


def _words_in(cell: Box | None, words: Sequence[tuple[Any, ...]]) -> str:
    """Text of a cell: `Table.extract` takes spaces and commas out of figures."""
    if cell is None:
        return ""
    x0, y0, x1, y1 = cell
    inside = (word for word in words if x0 <= (word[0] + word[2]) / 2 < x1 and y0 <= (word[1] + word[3]) / 2 < y1)
    return _clean(" ".join(word[4] for word in inside)).strip()


def _images(page: Any, has_text: bool) -> list[Box]:
    """Where pictures stand that may carry content, top to bottom."""
    area = page.rect.width * page.rect.height
    boxes = []
    for image in page.get_image_info():
        x0, y0, x1, y1 = image["bbox"]
        is_small = min(x1 - x0, y1 - y0) < MIN_IMAGE_POINTS
        is_background = has_text and (x1 - x0) * (y1 - y0) > MAX_IMAGE_SHARE * area
        if not is_small and not is_background:
            boxes.append((x0, y0, x1, y1))
    return sorted(set(boxes), key=lambda box: (box[1], box[0])) if len(boxes) <= MAX_IMAGES else []
