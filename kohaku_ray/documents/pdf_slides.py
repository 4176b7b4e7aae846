"""Slide decks: landscape pages with little text in a large font; every slide is a section."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from kohaku_ray.documents.model import Section
from kohaku_ray.documents.pdf_blocks import Block
from kohaku_ray.documents.pdf_text import compounds_in, join_lines
from kohaku_ray.documents.pdf_tree import MAX_HEADING_CHARS, paragraph_of

MIN_LANDSCAPE_SHARE = 0.8
"""Least share of a deck's pages that are wider than high."""

MIN_ASPECT = 1.2
"""Least width over height of a landscape page."""

MIN_PRINT = 0.024
"""Least median font size over page height of a deck: 13 points on a slide of 540, 6.5 on one of 272."""

MAX_CHARS = 900
"""Largest median of characters per page of a deck."""


def is_deck(sizes: Sequence[tuple[float, float]], n_chars: Sequence[int], body: float) -> bool:
    """Whether a document is a slide deck.

    Args:
        sizes: Each page's width and height.
        n_chars: Characters of text on each page.
        body: Median font size.
    """
    n_landscape = sum(width > MIN_ASPECT * height for width, height in sizes)
    if n_landscape < MIN_LANDSCAPE_SHARE * len(sizes):
        return False
    height = median(height for _, height in sizes)
    return body >= MIN_PRINT * height and median(n_chars) <= MAX_CHARS


def slide_sections(blocks: Sequence[Block]) -> tuple[Section, ...]:
    """Make every slide a section titled by its largest text.

    Args:
        blocks: In reading order.

    Returns:
        One section per slide that is not empty. The only text of a slide is both its title and its paragraph.
    """
    compounds = compounds_in(line for block in blocks for line in block.lines)
    sections = []
    for page, members in groupby(blocks, key=lambda block: block.page):
        slide = list(members)
        heading = _heading(slide)
        rest = [block for block in slide if block is not heading]
        body = rest if any(block.kind == "text" or block.caption for block in rest) or heading is None else slide
        title = join_lines(heading.lines, compounds).replace("\n", " ") if heading else f"Slide {page}"
        sections.append(Section(title, tuple(paragraph_of(block, compounds) for block in body), page))
    return tuple(sections)


def _heading(slide: Sequence[Block]) -> Block | None:
    """The first of the largest texts on a slide."""
    texts = [block for block in slide if block.kind == "text" and len(block.text) <= MAX_HEADING_CHARS]
    return max(texts, key=lambda block: (round(block.size), -block.box[1]), default=None)
