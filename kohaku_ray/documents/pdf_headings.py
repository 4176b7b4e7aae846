"""Lines that look like headings: bold ones at the size of the text are, entries of a table of contents are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from kohaku_ray.documents.pdf_blocks import BULLETS, CAPTION, Block

MAX_CHARS = 70
"""Longest such heading."""

MAX_BOLD_SHARE = 0.25
"""Largest share of bold characters in a document whose bold lines are headings."""

MAX_HEADING_SHARE = 0.45
"""Largest share of such headings among a document's texts; more are labels, as in a form."""

MIN_GAP = 0.3
"""Least distance from the text above, in font sizes, beyond the line's own height: 0.1 within a paragraph."""

MIN_MARGIN_SHARE = 0.08
"""Least share of a document's characters that begin at a margin."""

MAX_HANGING = 12.0
"""Largest indent of a hanging paragraph, in font sizes; what is farther to the right is another column."""

_BEGINS = re.compile(r"(?:\d{1,2}[.)]?\s+)?[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]{2}")


def bold_headings(blocks: Sequence[Block], body: float) -> set[int]:
    """Find the lines in bold that stand alone above their text.

    One stands out to the left of the text, as in a manual page, or at its margin. The label of a hanging paragraph,
    such as an option in a list, stands at the margin too, but its text is indented below it: that is no heading.

    Args:
        blocks: In reading order, without entries of a table of contents.
        body: Median font size.

    Returns:
        ``id`` of each such block.
    """
    texts = [block for block in blocks if block.kind == "text"]
    chars: Counter[float] = Counter()
    n_bold = 0
    for block in texts:
        n = len(block.text)
        n_bold += n if block.bold else 0
        if not block.bold and abs(block.size - body) < 0.1 * body:
            chars[round(block.box[0])] += n
    if not chars or n_bold > MAX_BOLD_SHARE * sum(len(block.text) for block in texts):
        return set()
    margins = _margins(chars)
    found: set[int] = set()
    below: Block | None = None  # the next text that is no candidate itself
    for i in reversed(range(len(blocks))):
        block = blocks[i]
        if not _is_candidate(block, blocks[i - 1] if i else None, body):
            below = block
        elif below is not None and _is_set_out(block, below, margins):
            found.add(id(block))
    return found if len(found) <= MAX_HEADING_SHARE * len(texts) else set()


def _margins(chars: Counter[float]) -> list[float]:
    """Left edges at which much of the text begins, from left to right."""
    near = {left: chars[left - 1] + chars[left] + chars[left + 1] for left in list(chars)}
    return sorted(left for left, n in near.items() if n >= MIN_MARGIN_SHARE * chars.total())


def _is_candidate(block: Block, before: Block | None, body: float) -> bool:
    """Whether a block is one short line in bold, apart from what is above it."""
    if block.kind != "text" or not block.bold or len(block.lines) > 1 or not 0.9 < block.size / body < 1.2:
        return False
    text = block.text
    if len(text) > MAX_CHARS or text[-1] in ".,;:!?" or text[0] in BULLETS or CAPTION.match(text):
        return False
    if not _BEGINS.match(text) or not _WORD.search(text) or _first_letter(text).islower():
        return False
    if before is None or before.page != block.page or before.box[1] >= block.box[3]:
        return True  # the first of its page or column
    return block.box[1] - before.box[3] > (MIN_GAP if not before.bold else 0.0) * block.size


def _first_letter(text: str) -> str:
    return next(char for char in text if char.isalpha())


def _is_set_out(block: Block, below: Block, margins: Sequence[float]) -> bool:
    """Whether it stands left of all margins, or at one without a hanging paragraph below it."""
    left, tolerance = block.box[0], 0.3 * block.size
    if left < margins[0] - tolerance:
        return True
    is_at_margin = any(abs(left - margin) <= tolerance + 1 for margin in margins)
    is_hanging = below.kind == "text" and 1.5 * block.size <= below.box[0] - left < MAX_HANGING * block.size
    return is_at_margin and not is_hanging


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
