"""Read a PDF as a document: drop running heads and page numbers, find headings, and make sections or slides.

`pdf_page` reads one page's lines, `pdf_blocks` makes paragraphs, tables and pictures of them.
"""

# Over 400 lines: furniture, headings, contents, continued paragraphs and slides decide about the same list of blocks.

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise, takewhile
from math import floor
from statistics import median
from typing import Any

from kohaku_ray.documents.bounded import out_of_memory
from kohaku_ray.documents.figures import SET_IMAGES, no_image
from kohaku_ray.documents.images import image_name
from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section
from kohaku_ray.documents.pdf.blocks import SAME_SIZE, Block, PdfImages, blocks_of
from kohaku_ray.documents.pdf.page import (
    BULLETS,
    CAPTION,
    SMALLER,
    Page,
    TextLine,
    begins_item,
    compounds_in,
    ends_sentence,
    join_lines,
    read_page,
    without_leaders,
)
from kohaku_ray.documents.text.content import UNREADABLE, UNREADABLE_SHARE, default_doc_id, well_formed
from kohaku_ray.documents.text.plain import MAX_HEADINGS, PATH
from kohaku_ray.documents.text.sentences import LEADERS, join_labels, split_lines, split_sentences
from kohaku_ray.documents.text.tables import is_number, write_rows
from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize

MARGIN_SHARE = 0.12  # share of a page's height, at the top and at the bottom, in which running lines are looked for
MOST_SHOWN = 3  # most texts of a kind of furniture that are named
MAX_PAGES_APART = 3  # most pages from one with a running line to the next
MIN_PAGES = 3  # fewest pages that repeat a running line; two in a short document, or beside a page number
_LOWEST = re.compile(r"(?:\d{1,2}[.-])?(\d{1,4})")  # a page's number, perhaps after its chapter's
SAME_LINE = 0.5  # largest distance of the tops of two texts on one line, in font sizes: 0.39 to 0.64 in tables
MAX_ROW_GAP = 1.6  # largest distance of two rows of a table, in font sizes
MAX_ROW_STEP = 3.0  # likewise, from top to top
MIN_CELLS = 3  # fewest cells of a row at a page's edge that is no running head
MAX_NUMBER_SHARE = 0.03  # largest font size of a page number, as a share of the page's height
_BUCKET = 6.0
_OUTERMOST = 2
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"(?:[-–—|]\s*)?(?:p(?:age|\.)?\s*)?(?:#|[ivxl]+)(?:\s*(?:of|/|von)\s*#)?(?:\s*[-–—|])?", re.IGNORECASE
)


class Furniture:
    """What is printed on pages and is no text: running heads, page and line numbers, watermarks.

    It counts lines in page margins as pages arrive, and keeps the counts of earlier pages.
    """

    def __init__(self, n_pages: int) -> None:
        self.dropped: dict[str, Counter[str]] = {}  # texts by what they are
        self._steps: Counter[int] = Counter()  # distance of the lowest number on a page from the page's own
        self.n_marks = 0  # marks of footnotes
        self._pages: dict[tuple[str, int], list[int]] = {}  # pages by what stands at which height of their margins
        self._needed = min(MIN_PAGES, max(2, (n_pages + 1) // 2))

    def drop(self, pages: Sequence[Page]) -> None:
        """Remove furniture from a window of pages, in place."""
        for page in pages:
            self.n_marks += page.n_marks
            self._remove(page, "watermark", _watermarks(page.lines))
            self._remove(page, "line number", _line_numbers(page.lines))
            self._remove(page, "symbol of a plot", _plot_symbols(page.lines))
            for what, texts in page.dropped.items():
                self.dropped.setdefault(what, Counter()).update(texts)
        lowest = []  # a page's last line, where it is a number by itself: many pages end high above the margin
        for page in pages:
            if page.lines:
                line = max(page.lines, key=lambda line: line.y0)
                number = _LOWEST.fullmatch(line.text)
                # beside it only letters hang below its middle: 0.12 to 0.48 decide alike
                if number and sum(other.y1 > line.y0 + 0.3 * line.size for other in page.lines) == 1:
                    lowest.append((page.number, line, int(number[1])))
        self._steps.update(shown - page_number for page_number, _, shown in lowest)
        for page_number, line, shown in lowest:
            if self._steps[shown - page_number] >= MIN_PAGES:
                self._remove(pages[page_number - pages[0].number], "page number", [line])
        marginal: list[list[tuple[TextLine, str]]] = []  # the outermost lines at the top and the bottom of each page
        for page in pages:
            top, bottom = page.height * MARGIN_SHARE, page.height * (1 - MARGIN_SHARE)
            above = sorted((line for line in page.lines if line.y1 <= top), key=lambda line: line.y0)
            below = sorted((line for line in page.lines if line.y0 >= bottom), key=lambda line: -line.y1)
            marginal.append([(line, _without_digits(line)) for line in (*_first_rows(above), *_first_rows(below))])
        for page, lines in zip(pages, marginal, strict=True):
            for key in {key for line, text in lines for key in _keys(line, text, page)}:
                self._pages.setdefault(key, []).append(page.number)
        for page, lines in zip(pages, marginal, strict=True):
            numbers = [line for line, text in lines if _is_page_number(line, text, page)]
            heads = [line for line, text in lines if self._is_running(line, text, page, numbers)]
            self._remove(page, "page number", [line for line in heads if line in numbers])
            self._remove(page, "running head", [line for line in heads if line not in numbers])

    def describe(self) -> tuple[str, ...]:
        """Say what was removed, and how much of it."""
        described = []
        for what, texts in self.dropped.items():
            n = texts.total()
            often = [f"{text[:60]!r}{f' × {k}' * (k > 1)}" for text, k in texts.most_common(MOST_SHOWN)]
            more = f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else ""
            noun, of, rest = what.partition(" of ")
            described.append(f"{pluralize(n, noun)}{of}{rest}: {', '.join(often)}{more}")
        if self.n_marks:
            described.append(f"{pluralize(self.n_marks, 'mark')} of notes, set apart in brackets")
        return tuple(described)

    def _remove(self, page: Page, what: str, lines: Sequence[TextLine]) -> None:
        if lines:
            self.dropped.setdefault(what, Counter()).update(line.text for line in lines)
            gone = set(map(id, lines))
            page.lines = [line for line in page.lines if id(line) not in gone]

    def _is_running(self, line: TextLine, text: str, page: Page, numbers: Sequence[TextLine]) -> bool:
        if _is_page_number(line, text, page):
            return True
        if not any(map(str.isalpha, line.text)):
            return False  # a row of figures at the same height of several pages belongs to a table
        beside_number = any(abs(number.y0 - line.y0) < SAME_LINE * line.size for number in numbers)
        needed = 2 if beside_number else self._needed
        repeated = False
        for numbers_of in (self._pages[key] for key in _keys(line, text, page)):
            # half of its pages are close together, which those whose text begins alike seldom are
            close = [after - number <= MAX_PAGES_APART for number, after in pairwise(numbers_of)]
            n_close = sum(map(max, [False, *close], [*close, False]))
            repeated = repeated or (len(numbers_of) >= needed and 2 * n_close >= len(numbers_of))
        return repeated and not _is_in_table(line, page)


def _is_page_number(line: TextLine, text: str, page: Page) -> bool:
    if line.size > MAX_NUMBER_SHARE * page.height or _PAGE_NUMBER.fullmatch(text) is None:
        return False
    return text != "#" or not _is_among_numbers(line, page)


def _is_among_numbers(number: TextLine, page: Page) -> bool:
    """Whether a number stands right over or under another one, or in a row of three, as cells and axis labels do."""
    reach, n_beside = MAX_ROW_GAP * number.size, 0
    for line in page.lines:
        gap = max(line.y0 - number.y1, number.y0 - line.y1)
        is_over = line.x0 < number.x1 and number.x0 < line.x1 and -reach < gap < reach
        is_beside = abs(line.y0 - number.y0) < SAME_LINE * number.size
        if (is_over or is_beside) and line is not number and is_number(line.text):
            if is_over:
                return True
            n_beside += 1
    return n_beside > 1


def _is_in_table(line: TextLine, page: Page) -> bool:
    """Whether a line is one of several in a row, right above or below as many in the same columns."""
    rows: list[list[TextLine]] = [[], [], []]  # beside it, right above, right below
    for other in page.lines:
        distance = (other.y0 - line.y0) / line.size
        if abs(distance) < MAX_ROW_STEP and other.size:
            rows[0 if abs(distance) < SAME_LINE else 1 if distance < 0 else 2].append(other)
    for pieces in rows:
        pieces.sort(key=lambda piece: piece.x0)
    row, *others = rows
    return len(row) >= MIN_CELLS and any(
        len(other) == len(row) and all(a.x0 < b.x1 and b.x0 < a.x1 for a, b in zip(row, other, strict=True))
        for other in others
    )


def _first_rows(lines: Sequence[TextLine]) -> list[TextLine]:
    """Lines of the first rows, the sorted lines given from the edge inwards."""
    rows: list[list[TextLine]] = []
    for line in lines:
        if rows and abs(line.y0 - rows[-1][0].y0) <= SAME_LINE * line.size:
            rows[-1].append(line)
        elif len(rows) < _OUTERMOST:
            rows.append([line])
        else:
            break
    return [line for row in rows for line in row]


def _without_digits(line: TextLine) -> str:
    return _DIGITS.sub("#", line.text).casefold()


def _keys(line: TextLine, text: str, page: Page) -> tuple[tuple[str, int], tuple[str, int]]:
    """Text without digits, and height on the page, from the bottom in its lower half, since pages differ in height.

    Heights are rounded to two scales, half a step apart: lines at nearly the same height share at least one of the two.
    """
    height = line.y0 if line.y0 < page.height / 2 else line.y0 - page.height
    steps = height / _BUCKET
    return (text, 2 * floor(steps)), (text, 2 * round(steps) + 1)


MIN_WATERMARK = 2.0  # least font size of a watermark, in font sizes of the text
MIN_COVERED = 2  # fewest lines that a watermark lies across
MAX_WATERMARKS = 20  # most lines on a page that are looked at; more large ones are a poster


def _watermarks(lines: Sequence[TextLine]) -> list[TextLine]:
    """Large words that lie across lines of text: smaller ones run through their middle."""
    if len(lines) <= MIN_COVERED:
        return []
    sizes = sorted([line.size for line in lines])
    if sizes[-1] < MIN_WATERMARK * sizes[len(sizes) // 2]:
        return []
    least = MIN_WATERMARK * sizes[len(sizes) // 2]
    watermarks = []
    for large in [line for line in lines if line.size >= least][:MAX_WATERMARKS]:
        # the letters in its box: a fifth above and below is white
        margin = 0.2 * (large.y1 - large.y0)
        n_covered = sum(
            large.y0 + margin < (line.y0 + line.y1) / 2 < large.y1 - margin
            and line.x0 < large.x1
            and line.x1 > large.x0
            and line.size * MIN_WATERMARK <= large.size
            for line in lines
        )
        # small ones all over the page: ragflow#18145
        if n_covered >= MIN_COVERED or (n_covered and sum(line.text == large.text for line in lines) > MIN_COVERED):
            watermarks.append(large)
    return watermarks


MIN_SYMBOLS = 20  # fewest times that the same characters stand in a cloud
MIN_SPREAD = 10  # fewest heights, and left edges, at which they do


def _plot_symbols(lines: Sequence[TextLine]) -> list[TextLine]:
    """The points of a plot, drawn as characters: the same one or two, no letters, all over a part of the page."""
    short: dict[str, list[TextLine]] = {}
    for line in lines:
        if len(line.text) < 3 and not any(map(str.isalnum, line.text)):
            short.setdefault(line.text, []).append(line)
    return [
        line
        for same in short.values()
        if len(same) >= MIN_SYMBOLS
        and min(len({round(line.x0) for line in same}), len({round(line.y0) for line in same})) >= MIN_SPREAD
        for line in same
    ]


MIN_LINE_NUMBERS = 5  # fewest numbers on a page that number its lines
MAX_NUMBER_STEP = 10  # every line, or every fifth or tenth one, has its number
MAX_LINE_NUMBER_SIZE = 0.87  # largest font size of a line number, as a share of the text's
MIN_EVEN_SHARE = 0.6  # least share of line numbers at the usual distance from the next
MIN_OUTSIDE_SHARE = 0.95  # least share of lines that are on the inner side of their numbers


def _line_numbers(lines: Sequence[TextLine]) -> list[TextLine]:
    """Numbers that count the lines of a page, in its left or right margin: 001, 002 and so on, or 5, 10."""
    numbers = [line for line in lines if line.text.rstrip(":").isdecimal() and len(line.text) < 6]
    if len(numbers) < MIN_LINE_NUMBERS:
        return []
    ids = set(map(id, numbers))
    rest = [line for line in lines if id(line) not in ids]
    if not rest:
        return []
    counting: dict[int, TextLine] = {}
    for is_left in (True, False):
        for column in (*_columns(numbers, lambda line: line.x1), *_columns(numbers, lambda line: line.x0)):
            edge = max(line.x1 for line in column) if is_left else min(line.x0 for line in column)
            n_inside = sum(line.x0 >= edge if is_left else line.x1 <= edge for line in rest)
            if n_inside >= MIN_OUTSIDE_SHARE * len(rest) and _counts_lines(column, rest):
                counting.update((id(line), line) for line in column)
    return list(counting.values())


def _columns(numbers: Sequence[TextLine], edge: Callable[[TextLine], float]) -> Iterator[list[TextLine]]:
    """Numbers whose edges lie one below the other, each column from top to bottom."""
    column: list[TextLine] = []
    for line in [*sorted(numbers, key=edge), None]:
        if line is not None and (not column or edge(line) - edge(column[-1]) < 1.0):
            column.append(line)
            continue
        if len(column) >= MIN_LINE_NUMBERS:
            yield sorted(column, key=lambda line: line.y0)
        column = [] if line is None else [line]


def _counts_lines(column: Sequence[TextLine], rest: Sequence[TextLine]) -> bool:
    """Whether numbers in small print, from top to bottom, grow evenly at even distances."""
    values = [int(line.text.rstrip(":")) for line in column]
    steps = Counter(after - value for value, after in pairwise(values))
    step, n = steps.most_common(1)[0]
    if not 1 <= step <= MAX_NUMBER_STEP or n < 0.9 * (len(column) - 1):  # one of ten may be another number
        return False
    gaps = [after.y0 - line.y0 for line, after in pairwise(column)]
    usual = median(gaps)  # evenly set but for raised letters: 0.14 to 0.16 decide alike
    if sum(abs(gap - usual) < 0.15 * usual for gap in gaps) < MIN_EVEN_SHARE * len(gaps):
        return False
    return median(line.size for line in column) <= MAX_LINE_NUMBER_SIZE * median(line.size for line in rest)


MAX_BOLD_CHARS = 70  # longest heading in bold that stands alone
MAX_BOLD_SHARE = 0.25  # largest share of bold characters in a document whose bold lines are headings
MIN_GAP = 0.3  # least distance from the text above, in font sizes, beyond the line's own height: 0.1 within a paragraph
MIN_MARGIN_SHARE = 0.08  # least share of a document's characters that begin at a margin
MAX_HANGING = 12.0
"""Largest indent of a hanging paragraph, in font sizes; what is farther to the right is another column."""

_BEGINS = re.compile(r"(?:\d{1,2}[.)]?\s+)?[^\W\d_]")
_HAS_WORD = re.compile(r"[^\W\d_]{2}")


def bold_headings(blocks: Sequence[Block], body: float) -> tuple[set[int], set[int]]:
    """Find the lines in bold that stand alone above their text: ``id`` of each block, and of those in the middle.

    One stands out to the left of the text, as in a manual page, or at its margin. The label of a hanging paragraph,
    such as an option in a list, stands at the margin too, but its text is indented below it: that is no heading.
    """
    texts = [block for block in blocks if block.kind == "text"]
    chars: Counter[float] = Counter()
    n_bold = 0
    for block in texts:
        n = len(block.text)
        n_bold += n if block.bold else 0
        if not block.bold and abs(block.size - body) < SAME_SIZE * body:
            chars[round(block.box[0])] += n
    if not chars or n_bold > MAX_BOLD_SHARE * sum(len(block.text) for block in texts):
        return set(), set()
    # left edges at which much of the text begins
    near = {left: chars[left - 1] + chars[left] + chars[left + 1] for left in list(chars)}
    margins = sorted(left for left, n in near.items() if n >= MIN_MARGIN_SHARE * chars.total())
    bold: set[int] = set()
    centred: set[int] = set()
    below: Block | None = None  # the next text that is no candidate itself
    for i in reversed(range(len(blocks))):
        block = blocks[i]
        if not _is_candidate(block, blocks[i - 1] if i else None, body):
            below = block
        elif below is not None and _is_set_out(block, below, margins):
            bold.add(id(block))
        elif below is not None:  # in the middle above wider text, as in REVTeX and APA style
            (left, *_, right, _), (start, _, end, _) = block.box, below.box
            # 1.01 to 2.4 decide alike
            is_middle = abs(left + right - start - end) < 2 * block.size
            if is_middle and below.page == block.page and end - start > 1.5 * (right - left):
                centred.add(id(block))
    return bold | centred, centred


def _is_candidate(block: Block, before: Block | None, body: float) -> bool:
    """Whether a block is one short line in bold, apart from what is above it."""
    if block.kind != "text" or not block.bold or len(block.lines) > 1:
        return False
    if not SMALLER < block.size / body < HEADING_RATIO:
        return False
    text = block.text
    if len(text) > MAX_BOLD_CHARS or text[-1] in ".,;:!?" or text[0] in BULLETS:
        return False
    if not _BEGINS.match(text) or not _HAS_WORD.search(text) or next(filter(str.isalpha, text)).islower():
        return False
    if before is None or before.page != block.page or before.box[1] >= block.box[3]:
        return True  # the first of its page or column
    return block.box[1] - before.box[3] > (MIN_GAP if not before.bold else 0.0) * block.size


def _is_set_out(block: Block, below: Block, margins: Sequence[float]) -> bool:
    """Whether it stands left of all margins, or at one without a hanging paragraph below it."""
    left, tolerance = block.box[0], 0.3 * block.size  # less than an indent; boxes of italics begin a little aside
    if left < margins[0] - tolerance:
        return True
    is_at_margin = any(abs(left - margin) <= tolerance + 1 for margin in margins)
    # an indent of a paragraph is one font size, of a list's text or of a definition more: 1.5 to 1.58 decide alike
    is_hanging = below.kind == "text" and 1.5 * block.size <= below.box[0] - left < MAX_HANGING * block.size
    return is_at_margin and not is_hanging


MAX_ENTRY_BLOCKS = 200  # most blocks below the title of a table of contents without leaders
MAX_BACK_SHARE = 0.25  # largest share of page numbers that are less than the one before
_LED = re.compile(rf"{LEADERS.pattern}\s*(\d{{1,4}}|[ivxlc]{{1,7}}|[A-Z]-\d{{1,3}})\s*$")
_END_NUMBER = re.compile(r"\s(\d{1,4})$")
MIN_ENTRIES = 3  # fewest lines with leaders on the first page of a table of contents
_TITLE = re.compile(r"(?:table of )?contents|list of (?:figures|tables|listings|abbreviations)", re.IGNORECASE)
_ENTRY_NUMBER = re.compile(r"\s(?:\d{1,4}|[ivxl]{1,7}|[A-Z]-\d{1,3})$")


def contents_entries(blocks: Sequence[Block]) -> set[int]:
    """Find the blocks of tables of contents, lists of figures and the like, with their titles: ``id`` of each.

    Nothing is found where no other text would be left.

    A page belongs to one if at least `MIN_ENTRIES` lines on it have leaders, or at least one after such a page. Between
    the first and the last of these lines stand entries alone. So are the lines above and below them, up to the title,
    whose page number ends at the same right edge: chapters are often printed without leaders.
    """
    entries: set[int] = set()
    goes_on = False
    for _, members in groupby(blocks, key=lambda block: block.page):
        page = [block for block in members if block.kind == "text"]
        led = [i for i, block in enumerate(page) if LEADERS.search(block.text)]
        matches = [match for i in led for line in page[i].lines if (match := _LED.search(line)) is not None]
        numbers = [int(match[1]) for match in matches if match[1].isdecimal()]
        n_back = sum(after < number for number, after in pairwise(numbers))  # figures of a list go up and down
        goes_on = len(matches) >= (1 if goes_on else MIN_ENTRIES) and n_back <= MAX_BACK_SHARE * len(numbers)
        if goes_on:
            led = [i for i in led if any(map(_LED.search, page[i].lines))]
            edge = max(page[i].box[2] for i in led)

            def is_unled(block: Block, edge: float = edge) -> bool:
                # half a digit: 0.2 to 0.8 decide alike
                return abs(block.box[2] - edge) < 0.5 * block.size and _ENTRY_NUMBER.search(block.lines[-1]) is not None

            entries.update(map(id, takewhile(is_unled, reversed(page[: led[0]]))))
            entries.update(map(id, page[led[0] : led[-1] + 1]))
            entries.update(map(id, takewhile(is_unled, page[led[-1] + 1 :])))
    for i, block in enumerate(blocks[:-1]):
        if _TITLE.fullmatch(block.text) and (id(blocks[i + 1]) in entries or _are_entries(blocks, i + 1)):
            entries.add(id(block))
            entries.update(map(id, blocks[i + 1 : i + 1 + _are_entries(blocks, i + 1)]))
    return entries if any(block.kind == "text" and id(block) not in entries for block in blocks) else set()


def _are_entries(blocks: Sequence[Block], start: int) -> int:
    """How many blocks below the title of a table of contents are lines that end with growing page numbers."""
    last = n = 0
    for block in blocks[start : start + MAX_ENTRY_BLOCKS]:
        matches = [_END_NUMBER.search(line) for line in block.lines] if block.kind != "image" else []
        numbers = [int(match[1]) for match in matches if match is not None]
        if 2 * len(numbers) <= len(matches) or numbers[0] < last:
            break
        last, n = numbers[-1], n + 1
    n_lines = sum(len(block.lines) for block in blocks[start : start + n])
    return n if n_lines >= MIN_ENTRIES else 0


def describe_contents(blocks: Sequence[Block], entries: Collection[int]) -> tuple[str, ...]:
    """Say which lines of tables of contents are dropped."""
    gone = [block for block in blocks if id(block) in entries]
    if not gone:
        return ()
    pages = sorted({block.page for block in gone})
    where = f"page {pages[0]}" if len(pages) == 1 else f"pages {pages[0]} to {pages[-1]}"
    n = sum(len(block.lines) for block in gone)
    first, last = map(without_leaders, (gone[0].lines[0], gone[-1].lines[-1]))
    return (f"{pluralize(n, 'contents line')} on {where}, from {first[:40].strip()!r} to {last[-40:].strip()!r}",)


HEADING_RATIO = 1.2  # text set larger than the document's median by this factor is a heading
MAX_HEADING_CHARS = 160  # longest heading of any font size
MAX_NUMBERED_CHARS = 90  # longest numbered heading in the font size of the text
MAX_SHIFT = 8.0  # farthest that the parts of a table on two pages lie apart sideways, in points
LOOK_BACK = 8  # how many blocks, such as a picture and footnotes, may stand between two parts of a paragraph
_NUMBER = re.compile(
    r"(?:(?P<digits>\d{1,2}(?:\.\d{1,2}){0,3})|(?P<letter>[A-Z](?:\.\d{1,2}){1,3})|(?P<roman>[IVX]{1,5}(?=[.)])))[.)]?\s+"
    r"(?=[^\W\d_])"
)
_KNOWN = re.compile(
    r"abstract|summary|introduction|conclusions?|discussion|references|bibliography|acknowledge?ments?|"
    r"appendix(?: [A-Z])?|contents|executive summary|limitations",
    re.IGNORECASE,
)


@dataclass
class _Draft:
    """A section being read: its headings, the page it begins on, and its blocks, joined ones together."""

    headings: tuple[str, ...]
    page: int
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class _Heading:
    """A heading, with what determines its level."""

    text: str
    size: float
    depth: int
    left: float


def body_size(blocks: Sequence[Block]) -> float:
    """Median font size, weighted by characters; 0 without text."""
    counts: Counter[float] = Counter()
    for block in blocks:
        if block.kind == "text":
            counts[round(block.size, 1)] += sum(map(len, block.lines))
    half = sum(counts.values()) / 2
    passed = 0
    for size in sorted(counts):
        passed += counts[size]
        if passed >= half:
            return size
    return 0.0


def title_blocks(blocks: Sequence[Block], body: float) -> list[Block]:
    """The largest text in the first page's upper blocks: the title, in one or several consecutive blocks."""
    first = [block for block in blocks if block.page == blocks[0].page and block.kind == "text"] if blocks else []
    titles = [
        block
        for block in first
        if len(block.text) <= 2 * MAX_HEADING_CHARS and block.text[-1] not in ".,;" and _HAS_WORD.search(block.text)
    ]
    if not titles:
        return []
    largest = max(block.size for block in titles)
    # below the ratio of a heading, as titles of reports: 1.09 to 1.2 decide alike
    if largest < 1.15 * body or (len(first) > 1 and largest == min(block.size for block in first)):
        return []
    start = next(i for i, block in enumerate(first) if block.size == largest)
    title_parts: list[Block] = []
    for block in first[start:]:
        if block.size < 0.97 * largest:  # of its size but for rounding: 0.84 to 0.99 decide alike
            break
        title_parts.append(block)
    return title_parts


def sections_of(blocks: Sequence[Block], title: str, body: float) -> tuple[Section, ...]:
    """Cut blocks, without the title's, into sections titled with the headings that lead to them."""
    compounds = compounds_in(line for block in blocks for line in block.lines)
    bold, centred = bold_headings(blocks, body)
    path: list[_Heading] = []
    drafts = [_Draft((), 1)]
    for block in blocks:
        heading = _heading(block, body, compounds, id(block) in bold, id(block) in centred)
        if heading is None:
            _add(drafts[-1].blocks, block)
            continue
        while path and not _stands_over(path[-1], heading):
            path.pop()
        path.append(heading)
        drafts.append(_Draft(tuple(above.text for above in path[-MAX_HEADINGS:]), block.page))
    following = [*drafts[1:], _Draft((), 0)]
    return tuple(
        Section(PATH.join(draft.headings) or title, tuple(paragraph_of(b, compounds) for b in draft.blocks), draft.page)
        for draft, after in zip(drafts, following, strict=True)
        if draft.blocks or (draft.headings and after.headings[: len(draft.headings)] != draft.headings)
    )


def paragraph_of(block: Block, compounds: Collection[str]) -> Paragraph:
    """One block as a paragraph: a table row by row, a picture as its caption."""
    caption = join_lines(block.caption, compounds) if block.caption else None
    if block.kind == "text":
        text = join_lines(block.lines, compounds)
        return Paragraph(text, join_labels(text, split_sentences(text)), block.page, block.box)
    path = block.name if block.image is None else image_name(block.image.digest)
    attachment = Attachment(block.kind, path, caption, block.image)
    if block.kind == "image":
        sentences = join_labels(caption, split_sentences(caption)) if caption else ()
        return Paragraph(caption or "", sentences, block.page, block.box, attachment)
    rows = list(map(without_leaders, block.lines))
    text = "\n".join([caption, *rows] if caption else rows)
    return Paragraph(text, split_lines(text), block.page, block.box, attachment)


def _heading(block: Block, body: float, compounds: Collection[str], is_bold: bool, is_centred: bool) -> _Heading | None:
    """Read a block as a heading; None where it is not one."""
    if block.kind != "text" or len(block.lines) > 3:
        return None
    text = block.text
    if text[:1] in BULLETS or len(text) > MAX_HEADING_CHARS or not _HAS_WORD.search(text):
        return None
    if CAPTION.match(text) or LEADERS.search(text):
        return None
    number = _number(text)
    is_large = block.size >= HEADING_RATIO * body
    if not (is_large or is_bold or _is_heading_at_body_size(block, text, number, body)):
        return None
    depth = number.count(".") + 1 if number else 0
    # of two in the middle of their column, the one in capitals contains the other
    left = (1.0 if text.isupper() else 1.0 + block.size) if is_centred else block.box[0] if is_bold else 0.0
    return _Heading(join_lines(block.lines, compounds), block.size, depth, left)


def _is_heading_at_body_size(block: Block, text: str, number: str, body: float) -> bool:
    # 9 points in a text of 10 may be one, notes are smaller; a little larger than the text: 1.01 to 1.1 decide alike
    if len(text) > MAX_NUMBERED_CHARS or len(block.lines) > 2 or block.size < 0.9 * body:
        return False
    if _KNOWN.fullmatch(text.rstrip(":")) and (block.bold or text.isupper()):
        return True
    if not number or text[-1] in ".,;:!?":
        return False
    return block.bold or block.size > 1.05 * body or "." in number or text.isupper()


def _number(text: str) -> str:
    """The number that a heading begins with, without a last full stop: ``1``, ``A.3``, ``IV``."""
    match = _NUMBER.match(text)
    return "" if match is None else match["digits"] or match["letter"] or match["roman"]


def _stands_over(upper: _Heading, lower: _Heading) -> bool:
    """Whether one heading contains the other: by their numbers, else by their font sizes, else by their indents."""
    if upper.depth and lower.depth:
        return upper.depth < lower.depth
    # equal but for rounding: 0.02 to 0.048 decide alike; half a letter further right: up to 0.5
    if abs(upper.size - lower.size) <= 0.03 * lower.size and upper.left and lower.left:
        return lower.left - upper.left > 0.5 * lower.size
    return upper.size > 1.03 * lower.size


def _add(blocks: list[Block], block: Block) -> None:
    """Append a block, or its lines to the paragraph or table that it continues across a column or a page."""
    if block.kind == "table" and blocks and _continues_table(blocks[-1], block):
        table = blocks[-1]
        table.cells += block.cells[block.header + 1 :]
        names = [table.cells[table.header]] if table.header >= 0 else []
        table.lines += write_rows([*names, *block.cells[block.header + 1 :]], len(names) - 1)
        table.last_page = block.page
        return
    first = block.lines[0]
    if block.kind == "text" and first[:1].islower() and not begins_item(first):  # in the midst of a sentence
        for before in reversed(blocks[-LOOK_BACK:]):
            # a picture, a table or a footnote in a smaller font may interrupt a paragraph
            # notes of 9 points below a text of 10 are passed over: 0.92 to 0.95 decide alike
            if before.kind != "text" or before.size < 0.93 * block.size or CAPTION.match(before.lines[0]):
                continue
            if abs(before.size - block.size) <= SAME_SIZE * block.size and not ends_sentence(before.lines[-1]):
                before.lines.extend(block.lines)
                before.last_page = block.page
                return
            break
    blocks.append(block)


def _continues_table(table: Block, block: Block) -> bool:
    """Whether a table goes on from the page before: the same left edge, as many columns, no caption nor other names."""
    if table.kind != "table" or block.page != (table.last_page or table.page) + 1:
        return False
    if len(table.cells[max(table.header, 0)]) != max(map(len, block.cells)):
        return False
    if max(abs(table.box[0] - block.box[0]), abs(table.box[2] - block.box[2])) > MAX_SHIFT or block.caption:
        return False
    return block.header < 0 or (table.header >= 0 and block.cells[block.header] == table.cells[table.header])


MIN_LANDSCAPE_SHARE = 0.8  # least share of a deck's pages that are wider than high
MIN_ASPECT = 1.2  # least width over height of a landscape page
MIN_PRINT = 0.024  # least median font size over page height of a deck: 13 points on a slide of 540, 6.5 on one of 272
MAX_CHARS = 900  # largest median of characters per page of a deck


def is_deck(sizes: Sequence[tuple[float, float]], n_chars: Sequence[int], body: float) -> bool:
    """Whether pages of such widths and heights, with so many characters and that median font size, are a slide deck."""
    n_landscape = sum(width > MIN_ASPECT * height for width, height in sizes)
    if n_landscape < MIN_LANDSCAPE_SHARE * len(sizes):
        return False
    height = median(height for _, height in sizes)
    return body >= MIN_PRINT * height and median(n_chars) <= MAX_CHARS


def slide_sections(blocks: Sequence[Block]) -> tuple[tuple[Section, ...], tuple[str, ...]]:
    """Make every slide that is not empty a section titled by its largest text; an only text is also its paragraph.

    A slide whose text is a part of the next one's is a step of that, and dropped; these are named, too.
    """
    compounds = compounds_in(line for block in blocks for line in block.lines)
    sections = []
    slides = [list(members) for _, members in groupby(blocks, key=lambda block: block.page)]
    # a list that appears item by item is a page per item: pandoc#7160
    steps = set()  # slides of which all that they say, title included, stands on the next one, which begins alike
    for i, (slide, after) in enumerate(pairwise(slides)):
        words, following_words = (
            Counter(word for block in part for word in block.text.split()) for part in (slide, after)
        )
        heading, following = _slide_heading(slide), _slide_heading(after)
        begin_alike = heading is not None and following is not None and heading.text == following.text
        if words and words <= following_words and begin_alike and all(block.image is None for block in slide):
            steps.add(i)
    for i, slide in enumerate(slides):
        if i in steps:
            continue
        page = slide[0].page
        heading = _slide_heading(slide)
        rest = [block for block in slide if block is not heading]
        body = rest if any(block.kind == "text" or block.caption for block in rest) or heading is None else slide
        title = join_lines(heading.lines, compounds).replace("\n", " ") if heading else f"Slide {page}"
        sections.append(Section(title, tuple(paragraph_of(block, compounds) for block in body), page))
    pages = ", ".join(str(slides[i][0].page) for i in sorted(steps)[:MAX_STEPS_SHOWN])
    more = f" and {len(steps) - MAX_STEPS_SHOWN} more" if len(steps) > MAX_STEPS_SHOWN else ""
    note = f"{pluralize(len(steps), 'slide')} whose text is a part of the next one's: {pages}{more}"
    return tuple(sections), (note,) if steps else ()


MAX_STEPS_SHOWN = 10  # most steps of slides that are named


def _slide_heading(slide: Sequence[Block]) -> Block | None:
    """The first of the largest texts on a slide."""
    texts = [block for block in slide if block.kind == "text" and len(block.text) <= MAX_HEADING_CHARS]
    return max(texts, key=lambda block: (round(block.size), -block.box[1]), default=None)


LITTLE_TEXT_CHARS = 40  # a page with less text is odd
WINDOW_PAGES = 64  # pages held in memory at a time; running heads are found by these and the pages before
MAX_TITLE_BLOCKS = 12  # blocks at the beginning among which the metadata's title is looked for
MIN_PAGES_ODD = 8  # fewest pages of a document whose only section is odd
_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?")
_NO_TITLE = re.compile(
    r"untitled.*|microsoft (?:word|powerpoint)\b.*|(?:power ?point )?presentation\d*|document\d*|slide \d+|title|"
    r".*\.(?:docx?|pptx?|xlsx?|tex|dvi|indd|qxd|pdf|rtf|odt|html?)|[^a-z]*|\S*_\S*",
    re.IGNORECASE,
)
_NO_AUTHOR = re.compile(r"(?:unknown|anonymous|author|admin(?:istrator)?|user\d*|owner|[^a-z]*)", re.IGNORECASE)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running: it takes a sixth of the time, and a PDF leaves no reference cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_collector_paused()
def parse_pdf(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a PDF: every paragraph with its page and place, author and date as metadata.

    Text at least 1.2 times the median size is a heading, and so is a numbered line in bold or with a number of several
    parts, and a line in bold alone above its text; entries of a table of contents are none. Sections are titled with
    the headings that lead to them: ``2 Results › 2.1 Energy``. Columns are read one after the other between full-width
    lines. Running heads and page numbers are dropped, words divided at line ends joined, paragraphs joined across
    columns and pages. A table is one paragraph, each row a sentence. A picture is an attachment with the caption next
    to it. In a slide deck every slide is a section. Scripts and embedded files are not touched. With ``images``
    embedded images are extracted, and vector figures with a caption.

    Raises:
        DataError: It is damaged, encrypted or a scan, or PyMuPDF is not installed.
    """
    try:
        import pymupdf
    except ImportError:
        raise DataError(
            f"{name} needs the package pymupdf, which reads PDFs (AGPL or a commercial licence): pip install pymupdf, "
            "or give the document in another format."
        ) from None
    pymupdf.TOOLS.mupdf_display_errors(False)
    pymupdf.TOOLS.mupdf_display_warnings(False)
    with _open(name, data) as file:
        info = {key: well_formed(str(value or "")).strip() for key, value in (file.metadata or {}).items()}
        extractor = PdfImages(file) if images else None
        furniture = Furniture(file.page_count)
        blocks, seen = _read(name, file, furniture, extractor)
    sizes, n_chars = [page.size for page in seen], [page.n_chars for page in seen]
    if not any(n_chars) and not any(block.image for block in blocks):
        if extractor is not None and (extractor.rejects or extractor.left_out):
            raise no_image(name, extractor.rejects, extractor.left_out)
        with_images = "" if extractor else f", or {SET_IMAGES} to index its images"
        raise DataError(
            f"{name} has {pluralize(len(sizes), 'page')} but no text on any of them: it is a scan; run OCR "
            f"on it (such as ocrmypdf) and give the result{with_images}."
        )
    body = body_size(blocks)
    heads = title_blocks(blocks, body)
    shown = " ".join(join_lines(block.lines, ()).replace("\n", " ") for block in heads)
    title = " ".join(info.get("title", "").split())
    if len(title) < 4 or len(title) > 300 or _NO_TITLE.fullmatch(title):
        title = ""  # a program generated it
    if shown and not (
        title and _letters(title) in _letters(" ".join(block.text for block in blocks[:MAX_TITLE_BLOCKS]))
    ):
        title = shown  # what page 1 shows, unless the metadata's stands there, too
    title = title or default_doc_id(name)
    if is_deck(sizes, n_chars, body):
        sections, described = slide_sections(blocks)
    else:
        # the title is not repeated as a heading; one that differs from the title in the metadata is kept as text
        dropped = {id(block) for block in heads} if _letters(shown) == _letters(title) else set()
        rest = [block for block in blocks if id(block) not in dropped]
        entries = contents_entries(rest)
        described = describe_contents(rest, entries)
        sections = sections_of([block for block in rest if id(block) not in entries], title, body)
    paragraphs = [paragraph for section in sections for paragraph in section.paragraphs]
    n_all = Counter(paragraph.page for paragraph in paragraphs)
    n_tables = Counter(
        paragraph.page
        for paragraph in paragraphs
        if paragraph.attachment is not None and paragraph.attachment.kind == "table"
    )
    oddities = [(number, page.odd(n_all[number], n_tables[number])) for number, page in enumerate(seen, 1)]
    odd = [f"page {number}: {what}" for number, what in oddities if what]
    if len(sections) == 1 and len(seen) >= MIN_PAGES_ODD:
        odd.append(f"one section on {len(seen)} pages: no heading was found")
    return Document(
        default_doc_id(name),
        title,
        sections,
        _metadata(info),
        tuple(extractor.rejects) if extractor else (),
        dict(extractor.left_out) if extractor else {},
        tuple(odd),
        (*furniture.describe(), *described),
        len(seen),
    )


def _open(name: str, data: bytes) -> Any:
    import pymupdf

    try:
        file = pymupdf.open(stream=data, filetype="pdf")
        if not file.is_pdf:
            raise _damaged(name, len(data), "MuPDF reads it as another format")
        if file.needs_pass:
            raise DataError(f"{name} is encrypted and needs a password: save a copy without one.")
        n_pages = file.page_count
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase) as error:
        raise _damaged(name, len(data), str(error)) from None
    if n_pages:
        return file
    if file.is_repaired:
        raise _damaged(name, len(data), "no page could be recovered")
    raise DataError(f"{name} has 0 pages: export the document again.")


def _damaged(name: str, n_bytes: int, reason: str) -> DataError:
    return DataError(
        f"{name} is not a PDF, or damaged or truncated after {n_bytes:,} bytes ({reason}): fetch or export it again."
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a page before running heads are dropped from it."""

    size: tuple[float, float]
    n_chars: int
    n_unreadable: int
    is_turned: bool
    is_pictured: bool

    @classmethod
    def of(cls, page: Page) -> _Seen:
        texts = [line.text for line in page.lines]
        n_unreadable = sum(len(UNREADABLE.findall(text)) for text in texts)
        size = page.width, page.height
        return cls(size, sum(map(len, texts)), n_unreadable, page.is_turned, page.is_pictured)

    def odd(self, n_paragraphs: int, n_tables: int) -> str:
        """Say what is odd about the page, of which so many paragraphs were made; empty where nothing is."""
        oddities = []
        if not self.n_chars:
            oddities.append("no text, but a picture: a scan without OCR" if self.is_pictured else "blank")
        elif self.n_chars < LITTLE_TEXT_CHARS:
            oddities.append(f"little text ({self.n_chars} characters)")
        elif n_paragraphs and n_tables == n_paragraphs:
            oddities.append("all tables")
        if self.is_turned:
            oddities.append("rotated")
        if self.n_unreadable > UNREADABLE_SHARE * self.n_chars:
            oddities.append(f"unreadable characters ({self.n_unreadable} of {self.n_chars})")
        return ", ".join(oddities)


def _read(
    name: str, file: Any, furniture: Furniture, extractor: PdfImages | None = None
) -> tuple[list[Block], list[_Seen]]:
    """Read every page's blocks, and what else is known of it."""
    blocks: list[Block] = []
    seen: list[_Seen] = []
    gutter: float | None = None
    for first in range(0, file.page_count, WINDOW_PAGES):
        numbers = range(first, min(first + WINDOW_PAGES, file.page_count))
        window = [_page(name, file, number, extractor is not None) for number in numbers]
        seen.extend(map(_Seen.of, window))
        furniture.drop(window)
        if extractor is not None:
            extractor.extract(window)
        for page in window:
            page_blocks, gutter = blocks_of(page, gutter)
            blocks.extend(page_blocks)
    return blocks, seen


def _page(name: str, file: Any, number: int, images: bool) -> Page:
    import pymupdf

    try:
        return read_page(file.load_page(number), images)
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase) as error:
        if "alloc (" in str(error):  # MuPDF's malloc or calloc
            raise out_of_memory(f"{name}: page {number + 1} of {file.page_count}") from None
        raise DataError(
            f"{name}: page {number + 1} of {file.page_count} cannot be read ({error}): export the document again."
        ) from None


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _metadata(info: dict[str, str]) -> dict[str, str]:
    metadata = {}
    author = " ".join(info.get("author", "").split())
    if author and not _NO_AUTHOR.fullmatch(author):
        metadata["author"] = author
    date = _DATE.match(info.get("creationDate", ""))
    if date and "1970" < date[1] < "2100":
        metadata["date"] = "-".join(filter(None, date.groups()))
    return metadata
