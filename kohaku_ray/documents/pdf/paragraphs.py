"""Find the paragraphs, tables and pictures of a PDF's page, in reading order, and join their lines and captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.pdf.order import reading_order
from kohaku_ray.documents.pdf.page import Page, TextLine, around
from kohaku_ray.documents.pdf.tables import aligned_rows, aligned_table, rows_of, table_line
from kohaku_ray.documents.pdf.unseen import is_over
from kohaku_ray.documents.pdf.words import CAPTION, ends_sentence

SAME_SIZE = 0.1  # largest difference of font sizes in one text, as a share: of 26 files 0.07 changes none, 0.13 three
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

    @property
    def text(self) -> str:
        """Its lines joined by spaces, hyphens as they are."""
        return " ".join(self.lines)


def blocks_of(page: Page) -> list[Block]:
    """Cut a page without running heads into blocks."""
    images = [TextLine(*box, "", kind="image") for box in page.images]
    lines = page.lines
    for box, cells, header in page.grids:
        rest = [line for line in lines if line.kind != "text" or not is_over(line.box, box, 2.0)]
        if len(rest) < len(lines):
            lines = [*rest, table_line(cells, box, header)]
    blocks = [block for region in reading_order([*lines, *images]) for block in _group(page, region)]
    for kind, short in (("image", "img"), ("table", "table")):
        for i, block in enumerate((block for block in blocks if block.kind == kind), 1):
            block.name = f"p{block.page}-{short}{i}"
    for caption in [block for block in blocks if block.kind == "text"]:
        match = CAPTION.match(caption.lines[0])
        if match is None:
            continue
        kind = "table" if match["kind"].lower().startswith("t") else "image"
        free = [block for block in blocks if block.kind == kind and block.caption is None]
        near = [(gap, i) for i, block in enumerate(free) if (gap := caption_gap(block.box, caption.box)) is not None]
        if near:  # it takes the caption's place in the text
            owner = free[min(near)[1]]
            owner.caption = caption.lines
            blocks.remove(owner)
            blocks[blocks.index(caption)] = owner
    return blocks


def _group(page: Page, region: Sequence[TextLine]) -> list[Block]:
    """The blocks of a region, from top to bottom."""
    rows = rows_of(region)
    singles = []  # the pieces of each row as one line
    for row in rows:
        longest = max(row, key=lambda line: len(line.text))
        box = around([line.box for line in row])
        text = " ".join(line.text for line in row)
        singles.append(row[0] if len(row) == 1 else TextLine(*box, text, longest.size, longest.bold))
    steps = [
        (after.y0 - line.y0) / line.size
        for line, after in pairwise(singles)
        if line.size and abs(after.size - line.size) < SAME_SIZE * line.size
    ]
    # steps of lines set solid to double spaced: of 26 files 0.6 changes none, 1.0 three, 2.0 two, 3.2 one
    likely = sorted(step for step in steps if 0.8 < step < 2.5)
    # usual distance of two lines, in font sizes: where paragraphs are short, half of the steps are gaps between them
    leading = likely[len(likely) // 4] if likely else 1.2
    # a quarter more than usual: of 26 files a seventh changes 4 and a third 13; at least 1.5 line heights, for where
    # few lines tell the leading: 1.4 changes 5, 1.6 ten
    reach = max(1.5, 1.25 * leading)
    left = min((line.x0 for line in singles), default=0.0)
    blocks: list[Block] = []
    members: list[TextLine] = []

    def close() -> None:
        if members:
            blocks.append(_block(page, members))
            members.clear()

    i = 0
    while i < len(rows):
        table = aligned_rows(rows, i) if max(map(len, rows[i : i + 2])) > 1 else []
        if table or (members and not _belongs(members, singles[i], reach, left)):
            close()
        if table:
            blocks.append(_block(page, [aligned_table(table)]))
        else:
            members.append(singles[i])
        i += len(table) or 1
    close()
    return blocks


def _belongs(members: Sequence[TextLine], line: TextLine, reach: float, left: float) -> bool:
    """Whether a line goes on with the paragraph above it, no more than ``reach`` font sizes below its last line."""
    last = members[-1]
    if last.kind != "text" or line.kind != "text":
        return False
    size = last.size
    if abs(line.size - size) > SAME_SIZE * size or line.bold != last.bold:
        return False
    # a line beside the last one begins less than half a letter above it: -0.2 to -0.8 decide alike
    if not -0.5 * size < line.y0 - last.y0 < reach * size:
        return False
    if line.x0 > last.x1 or line.x1 < last.x0:
        return False
    # a line may open a new paragraph by its indent alone, as in books and LaTeX articles:
    # of 26 files 0.5 changes none, 1 three; from 4 on it is a column or a list (3 and 6 change 3 each)
    is_indented = 0.7 * line.size < line.x0 - left < 4 * line.size and line.x0 - last.x0 > -0.3 * line.size
    # boxes of italics begin a little aside: of 26 files 0.15 changes none, 0.5 one
    is_flush = last.x0 - left < 0.3 * line.size or len(members) == 1
    return not (is_indented and is_flush and ends_sentence(last.text))


def _block(page: Page, members: Sequence[TextLine]) -> Block:
    first = members[0]
    lines = first.text.split("\n") if first.kind == "table" else [line.text for line in members]
    lengths = [len(line.text) for line in members]
    size = members[lengths.index(max(lengths))].size
    bold = sum([n for n, line in zip(lengths, members, strict=True) if line.bold]) * 2 > sum(lengths)
    box = page.on_paper(around([line.box for line in members]))
    image = page.extracted.get(first.box) if first.kind == "image" else None
    return Block(first.kind, page.number, box, lines, size, bold, image=image)


def caption_gap(box: Box, caption: Box) -> float | None:
    """Points between a box and a caption above or below it; None where it is neither."""
    if min(box[2], caption[2]) <= max(box[0], caption[0]):
        return None
    gap = max(caption[1] - box[3], box[1] - caption[3])
    return gap if -4 < gap <= MAX_CAPTION_GAP else None
