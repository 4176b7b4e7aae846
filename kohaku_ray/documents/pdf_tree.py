"""From blocks to sections: which are headings, which heading contains which, which paragraphs continue; slides."""

# Over 400 lines: headings, contents, continued paragraphs and slides decide about the same list of blocks.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, takewhile
from statistics import median

from kohaku_ray.documents.images import image_name
from kohaku_ray.documents.model import Attachment, Paragraph, Section
from kohaku_ray.documents.pdf_blocks import Block
from kohaku_ray.documents.pdf_page import (
    BULLETS,
    CAPTION,
    begins_item,
    compounds_in,
    ends_sentence,
    join_lines,
    without_leaders,
)
from kohaku_ray.documents.sentences import LEADERS, join_labels, split_lines, split_sentences
from kohaku_ray.documents.tables import write_rows
from kohaku_ray.documents.text import MAX_HEADINGS, PATH

MAX_BOLD_CHARS = 70  # longest such heading
MAX_BOLD_SHARE = 0.25  # largest share of bold characters in a document whose bold lines are headings
MAX_HEADING_SHARE = 0.45  # largest share of such headings among a document's texts; more are labels, as in a form
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
        if not block.bold and abs(block.size - body) < 0.1 * body:
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
            is_middle = abs(left + right - start - end) < 2 * block.size
            if is_middle and below.page == block.page and end - start > 1.5 * (right - left):
                centred.add(id(block))
    if len(bold) + len(centred) > MAX_HEADING_SHARE * len(texts):
        return set(), set()
    return bold | centred, centred


def _is_candidate(block: Block, before: Block | None, body: float) -> bool:
    """Whether a block is one short line in bold, apart from what is above it."""
    if block.kind != "text" or not block.bold or len(block.lines) > 1 or not 0.85 < block.size / body < 1.2:
        return False
    text = block.text
    if len(text) > MAX_BOLD_CHARS or text[-1] in ".,;:!?" or text[0] in BULLETS or CAPTION.match(text):
        return False
    if not _BEGINS.match(text) or not _HAS_WORD.search(text) or next(filter(str.isalpha, text)).islower():
        return False
    if before is None or before.page != block.page or before.box[1] >= block.box[3]:
        return True  # the first of its page or column
    return block.box[1] - before.box[3] > (MIN_GAP if not before.bold else 0.0) * block.size


def _is_set_out(block: Block, below: Block, margins: Sequence[float]) -> bool:
    """Whether it stands left of all margins, or at one without a hanging paragraph below it."""
    left, tolerance = block.box[0], 0.3 * block.size
    if left < margins[0] - tolerance:
        return True
    is_at_margin = any(abs(left - margin) <= tolerance + 1 for margin in margins)
    is_hanging = below.kind == "text" and 1.5 * block.size <= below.box[0] - left < MAX_HANGING * block.size
    return is_at_margin and not is_hanging


MAX_ENTRY_BLOCKS = 200  # most blocks below the title of a table of contents without leaders
MAX_BACK_SHARE = 0.25  # largest share of page numbers that are less than the one before
_LED = re.compile(rf"{LEADERS.pattern}\s*(\d{{1,4}}|[ivxlc]{{1,7}}|[A-Z]-\d{{1,3}})\s*$")
_END_NUMBER = re.compile(r"\s(\d{1,4})$")
MIN_ENTRIES = 3  # fewest lines with leaders on the first page of a table of contents
_TITLE = re.compile(r"(?:table of )?contents|list of (?:figures|tables|listings|abbreviations)", re.IGNORECASE)
_PAGE_NUMBER = re.compile(r"\s(?:\d{1,4}|[ivxl]{1,7}|[A-Z]-\d{1,3})$")


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
                return abs(block.box[2] - edge) < 0.5 * block.size and _PAGE_NUMBER.search(block.lines[-1]) is not None

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
        if 2 * len(numbers) <= len(matches) or not matches or numbers != sorted(numbers) or numbers[0] < last:
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
    return (f"{n:,} lines of contents on {where}, from {first[:40].strip()!r} to {last[-40:].strip()!r}",)


HEADING_RATIO = 1.2  # text set larger than the document's median by this factor is a heading
MAX_HEADING_CHARS = 160  # longest heading of any font size
MAX_NUMBERED_CHARS = 90  # longest numbered heading in the font size of the text
MAX_SHIFT = 8.0  # farthest that the parts of a table on two pages lie apart sideways, in points
LOOK_BACK = 8  # how many blocks, such as a picture and footnotes, may stand between two parts of a paragraph
_NUMBER = re.compile(
    r"(?:(?P<digits>\d{1,2}(?:\.\d{1,2}){0,3})|(?P<letter>[A-Z](?:\.\d{1,2}){1,3})|(?P<roman>[IVX]{1,5}(?=[.)])))[.)]?\s+"
    r"(?=[^\W\d_])"
)
_REPORT_NUMBER = re.compile(r"(?:arXiv:\d.*|(?=(?:[^-/]*[-/]){2})(?=.*\d\d)[A-Z][A-Z0-9]+(?:[-/.:]+[A-Za-z0-9]+)+)")
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
        if len(block.text) <= 2 * MAX_HEADING_CHARS
        and block.text[-1] not in ".,;"
        and not _REPORT_NUMBER.fullmatch(block.text)
        and _HAS_WORD.search(block.text)
    ]
    if not titles:
        return []
    largest = max(block.size for block in titles)
    if largest < 1.15 * body or (len(first) > 1 and largest == min(block.size for block in first)):
        return []
    start = next(i for i, block in enumerate(first) if block.size == largest)
    title_parts: list[Block] = []
    for block in first[start:]:
        if block.size < 0.97 * largest or (title_parts and _number(block.text)):
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
    if CAPTION.match(text) or LEADERS.search(text) or _REPORT_NUMBER.fullmatch(text):
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
    if len(text) > MAX_NUMBERED_CHARS or len(block.lines) > 2 or block.size < 0.9 * body:
        return False
    if _KNOWN.fullmatch(text.rstrip(":.")) and (block.bold or text.isupper() or block.size > 1.05 * body):
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
    if block.kind == "text" and block.lines[0][:1].islower() and not begins_item(block.lines[0]):
        for before in reversed(blocks[-LOOK_BACK:]):
            # a picture, a table or a footnote in a smaller font may interrupt a paragraph
            if before.kind != "text" or before.size < 0.93 * block.size or CAPTION.match(before.lines[0]):
                continue
            if abs(before.size - block.size) <= 0.1 * block.size and not ends_sentence(before.lines[-1]):
                before.lines.extend(block.lines)
                return
            break
    blocks.append(block)


_CONTINUED = re.compile(r"\W*\(?cont(?:inued|d|\.|'d)\b", re.IGNORECASE)
_LABEL = re.compile(r"[^\d.]*[\d.]+")


def _continues_table(table: Block, block: Block) -> bool:
    """Whether a table goes on from the page before: the same left edge, as many columns, no other names nor caption."""
    if table.kind != "table" or block.page != (table.last_page or table.page) + 1:
        return False
    if len(table.cells[max(table.header, 0)]) != max(map(len, block.cells)):
        return False
    # between rules a part is as wide as these, else as its cells
    may_be_narrower = table.header >= 0 > block.header and block.box[2] < table.box[2]
    if abs(table.box[0] - block.box[0]) > MAX_SHIFT:
        return False
    if abs(table.box[2] - block.box[2]) > MAX_SHIFT and not may_be_narrower:
        return False
    if block.caption is not None:
        label, other = _LABEL.match(block.text_of_caption), _LABEL.match(table.text_of_caption)
        is_same = label is not None and other is not None and label[0].strip(" .") == other[0].strip(" .")
        if not (is_same or _CONTINUED.search(block.text_of_caption)):
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
    note = f"{len(steps):,} slide{'s' * (len(steps) > 1)} whose text is a part of the next one's: {pages}{more}"
    return tuple(sections), (note,) if steps else ()


MAX_STEPS_SHOWN = 10  # most steps of slides that are named


def _slide_heading(slide: Sequence[Block]) -> Block | None:
    """The first of the largest texts on a slide."""
    texts = [block for block in slide if block.kind == "text" and len(block.text) <= MAX_HEADING_CHARS]
    return max(texts, key=lambda block: (round(block.size), -block.box[1]), default=None)
