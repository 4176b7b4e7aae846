"""A table of contents: its entries look like headings but are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from kohaku_ray.documents.pdf_blocks import Block

LEADERS = re.compile(r"(?:[.…·․‥⋅_]\s?){4,}")
"""Dots that lead from an entry to its page number."""

MIN_ENTRIES = 3
"""Fewest lines with leaders on the first page of a table of contents."""

_TITLE = re.compile(r"(?:table of )?contents|list of (?:figures|tables|listings|abbreviations)", re.IGNORECASE)
_PAGE_NUMBER = re.compile(r"\s(?:\d{1,4}|[ivxl]{1,7}|[A-Z]-\d{1,3})$")


def contents_entries(blocks: Sequence[Block]) -> set[int]:
    """Find the blocks of tables of contents, lists of figures and the like.

    A page belongs to one if at least `MIN_ENTRIES` lines on it have leaders, or at least one after such a page. Between
    the first and the last of these lines stand entries alone. So are the lines above and below them, up to the title,
    whose page number ends at the same right edge: chapters are often printed without leaders.

    Args:
        blocks: In reading order.

    Returns:
        ``id`` of each such block, the titles left out.
    """
    found: set[int] = set()
    goes_on = False
    for _, members in groupby(blocks, key=lambda block: block.page):
        page = [block for block in members if block.kind == "text"]
        led = [i for i, block in enumerate(page) if LEADERS.search(block.text)]
        n_lines = sum(LEADERS.search(line) is not None for i in led for line in page[i].lines)
        goes_on = n_lines >= (1 if goes_on else MIN_ENTRIES)
        if goes_on:
            edge = max(page[i].box[2] for i in led)
            found.update(id(block) for block in page[_first(page, led[0], edge) : _last(page, led[-1], edge)])
    return {key for key in found if key not in {id(block) for block in blocks if _TITLE.fullmatch(block.text)}}


def _first(page: Sequence[Block], first: int, edge: float) -> int:
    while first and _is_unled(page[first - 1], edge):
        first -= 1
    return first


def _last(page: Sequence[Block], last: int, edge: float) -> int:
    """One past the last entry."""
    while last + 1 < len(page) and _is_unled(page[last + 1], edge):
        last += 1
    return last + 1


def _is_unled(block: Block, edge: float) -> bool:
    return abs(block.box[2] - edge) < 0.5 * block.size and _PAGE_NUMBER.search(block.lines[-1]) is not None
