"""From the lines of a page to its paragraphs, tables and pictures, in reading order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.pdf_columns import aligned_rows
from kohaku_ray.documents.pdf_page import Line, Page, around
from kohaku_ray.documents.pdf_tables import aligned_table, rows_of, ruled_tables
from kohaku_ray.documents.pdf_text import CAPTION, begins_item, ends_sentence
from kohaku_ray.documents.tables import Cells

MIN_COLUMN_LINES = 3  # fewest lines side by side that are columns, where the page before has no gutter there
MIN_COLUMN_CHARS = 18  # shortest mean line, in characters, of a column of prose; shorter ones are a table's cells
MAX_LINES = 5000  # most pieces on a page that is searched for columns; one with more is read from top to bottom
_N_BINS = 200
_MARGIN_BINS = 24
_MAX_DEPTH = 4
_DOWNWARDS = attrgetter("y0", "x0")


def reading_order(
    lines: Sequence[Line], gutter: float | None = None, depth: int = 0
) -> tuple[list[list[Line]], float | None]:
    """Cut a page into regions with one column each, in reading order, each from top to bottom.

    ``gutter`` is the middle of the previous page's gutter, in points; that of this page, if any, is returned too.
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
    if known is not None:
        n_left, n_right = bisect_right(rights, known), len(lines) - bisect_left(lefts, known)
        if n_left > 0 and n_right > 0 and len(lines) - n_left - n_right <= 0.3 * len(lines):
            return known  # few lines cross it
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


def _bands(ordered: Sequence[Line], gutter: float) -> list[list[Line]]:
    """The lines between two that cross the gutter, and each that does, from top to bottom."""
    crossing = [line for line in ordered if line.x0 < gutter < line.x1]
    if not crossing:
        return [list(ordered)]
    crossing.sort(key=_middle)
    heights = list(map(_middle, crossing))
    bands: list[list[Line]] = [[] for _ in range(2 * len(crossing) + 1)]
    bands[1::2] = ([line] for line in crossing)
    for line in ordered:
        if not line.x0 < gutter < line.x1:
            bands[2 * bisect_left(heights, _middle(line))].append(line)
    return [band for band in bands if band]


def _middle(line: Line) -> float:
    """Twice the height of a line's middle on the page."""
    return line.y0 + line.y1


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


MAX_CAPTION_GAP = 40.0  # largest distance of a caption from its picture or table, in points


@dataclass(slots=True)
class Block:
    """A paragraph, heading, table or picture on a page."""

    kind: str  # ``text``, ``image`` or ``table``
    page: int  # from 1
    box: Box
    lines: list[str]  # for a table, its rows
    size: float = 0.0  # font size in points
    bold: bool = False
    caption: list[str] | None = None  # lines of a picture's or table's caption
    name: str = ""  # of a picture or table inside the file: ``p3-img1``
    image: Image | None = None  # pixels of a picture, where images are extracted
    cells: Cells = field(default_factory=list)  # of a table
    header: int = -1  # which of its rows names the columns
    last_page: int = 0  # on which a table ends that goes on over pages

    @property
    def text(self) -> str:
        """Its lines joined by spaces, hyphens as they are."""
        return " ".join(self.lines)

    @property
    def text_of_caption(self) -> str:
        """The lines of its caption joined by spaces."""
        return " ".join(self.caption or ())


def blocks_of(page: Page, gutter: float | None = None) -> tuple[list[Block], float | None]:
    """Cut a page without running heads into blocks; gutters as in `reading_order`."""
    images = [Line(*box, "", kind="image") for box in page.images]
    regions, gutter = reading_order([*ruled_tables(page), *images], gutter)
    blocks = [block for region in regions for block in _group(page, region)]
    for kind, short in (("image", "img"), ("table", "table")):
        for i, block in enumerate((block for block in blocks if block.kind == kind), 1):
            block.name = f"p{block.page}-{short}{i}"
    return _with_captions(blocks), gutter


def _group(page: Page, region: Sequence[Line]) -> list[Block]:
    """The blocks of a region, from top to bottom."""
    rows = rows_of(region)
    singles = [row[0] if len(row) == 1 else _one_line(row) for row in rows]
    # 1.5 line heights, or a quarter more than usual where lines are spaced wider
    reach = max(1.5, 1.25 * _leading(singles))
    left = min((line.x0 for line in singles), default=0.0)
    blocks: list[Block] = []
    members: list[Line] = []

    def close() -> None:
        if members:
            blocks.append(_block(page, members))
            members.clear()

    i = 0
    while i < len(rows):
        n_table = aligned_rows(rows, i) if max(map(len, rows[i : i + 2])) > 1 else 0
        if n_table or (members and not _belongs(members, singles[i], reach, left)):
            close()
        if n_table:
            blocks.append(_block(page, [aligned_table(page, rows[i : i + n_table])]))
        else:
            members.append(singles[i])
        i += n_table or 1
    close()
    return blocks


def _one_line(row: Sequence[Line]) -> Line:
    """Pieces of one row as one line."""
    longest = max(row, key=lambda line: len(line.text))
    return Line(*around([line.box for line in row]), " ".join(line.text for line in row), longest.size, longest.bold)


def _leading(lines: Sequence[Line]) -> float:
    """The usual distance between two lines of text, in font sizes."""
    steps = [
        (after.y0 - line.y0) / line.size
        for line, after in pairwise(lines)
        if line.size and abs(after.size - line.size) < 0.1 * line.size
    ]
    likely = [step for step in steps if 0.8 < step < 2.5]
    # the lower quartile: where paragraphs are short, half of the steps are gaps between them
    return sorted(likely)[len(likely) // 4] if likely else 1.2


def _belongs(members: Sequence[Line], line: Line, reach: float, left: float) -> bool:
    """Whether a line goes on with the paragraph above it, no more than ``reach`` font sizes below its last line."""
    last = members[-1]
    if last.kind != "text" or line.kind != "text" or line.is_note:
        return False
    size = last.size
    if abs(line.size - size) > 0.1 * size or line.bold != last.bold:
        return False
    # in bold, a line heads another one if it is a little larger, or in capitals and the other is indented
    is_indented = line.x0 - last.x0 > 2 * line.size and last.text.isupper() and not line.text.isupper()
    if last.bold and (last.size - line.size > 0.05 * line.size or is_indented):
        return False
    if not -0.5 * size < line.y0 - last.y0 < reach * size:
        return False
    if line.x0 > last.x1 or line.x1 < last.x0:
        return False
    return not _is_indented(members, line, left)


def _is_indented(members: Sequence[Line], line: Line, left: float) -> bool:
    """Whether a line opens a new paragraph by its indent alone, as in books and LaTeX articles."""
    size, last = line.size, members[-1]
    if not 0.7 * size < line.x0 - left < 4 * size:
        return False
    last_flush = last.x0 - left < 0.3 * size or len(members) == 1
    hangs = begins_item(members[0].text)
    return last_flush and not hangs and line.x0 - last.x0 > -0.3 * size and ends_sentence(last.text)


def _block(page: Page, members: Sequence[Line]) -> Block:
    first = members[0]
    lines = first.text.split("\n") if first.kind == "table" else [line.text for line in members]
    lengths = [len(line.text) for line in members]
    size = members[lengths.index(max(lengths))].size
    bold = sum([n for n, line in zip(lengths, members, strict=True) if line.bold]) * 2 > sum(lengths)
    box = page.on_paper(around([line.box for line in members]))
    image = page.extracted.get(first.box) if first.kind == "image" else None
    block = Block(first.kind, page.number, box, lines, size, bold, image=image)
    block.cells, block.header = first.cells, first.header
    return block


def _with_captions(blocks: list[Block]) -> list[Block]:
    """Give pictures and tables the captions next to them, and let them take the captions' place in the text."""
    for caption in [block for block in blocks if block.kind == "text"]:
        match = CAPTION.match(caption.lines[0])
        if match is None:
            continue
        kind = "table" if match["kind"].lower().startswith("t") else "image"
        free = [block for block in blocks if block.kind == kind and block.caption is None]
        near = [(gap, i) for i, block in enumerate(free) if (gap := caption_gap(block.box, caption.box)) is not None]
        if near:
            owner = free[min(near)[1]]
            owner.caption = caption.lines
            blocks.remove(owner)
            blocks[blocks.index(caption)] = owner
    return blocks


def caption_gap(box: Box, caption: Box) -> float | None:
    """Points between a box and a caption above or below it; None where it is neither."""
    if min(box[2], caption[2]) <= max(box[0], caption[0]):
        return None
    gap = max(caption[1] - box[3], box[1] - caption[3])
    return gap if -4 < gap <= MAX_CAPTION_GAP else None
