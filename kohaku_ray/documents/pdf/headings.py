"""Find the title and the headings of a PDF, and make sections of its paragraphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kohaku_ray.documents.images import image_name
from kohaku_ray.documents.model import Attachment, Paragraph, Section
from kohaku_ray.documents.pdf.paragraphs import SAME_SIZE, Block
from kohaku_ray.documents.pdf.words import BULLETS, CAPTION, ends_sentence, join_lines
from kohaku_ray.documents.text.plain import MAX_HEADINGS, PATH
from kohaku_ray.documents.text.sentences import LEADERS, split_lines, split_sentences

HEADING_RATIO = 1.2  # text set larger than the document's median by this factor is a heading
MAX_HEADING_CHARS = 160  # longest heading of any font size
LOOK_BACK = 8  # how many blocks, such as a picture and footnotes, may stand between two parts of a paragraph
MIN_LISTED = 0.5  # least share of a file's own contents list that is found, for it to tell the headings
Contents = Sequence[tuple[int, str, int]]  # a file's own contents list: level, title and page from 1, as PyMuPDF has it
_HAS_WORD = re.compile(r"[^\W\d_]{2}")
_NUMBER = re.compile(r"(?:\d{1,2}(?:\.\d{1,2}){0,3}|[A-Z](?:\.\d{1,2}){1,3}|[IVX]{1,5}(?=[.)]))[.)]?\s+(?=[^\W\d_])")


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
    depth: int  # 0 where it is not known


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
    """The largest text of the first page: the title, in one or several consecutive blocks."""
    first = [block for block in blocks if block.page == blocks[0].page and block.kind == "text"]
    if not first:
        return []
    largest = max(block.size for block in first)
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


def sections_of(blocks: Sequence[Block], title: str, body: float, contents: Contents) -> tuple[Section, ...]:
    """Cut blocks, without the title's, into sections titled with the headings that lead to them."""
    listed = _listed_headings(blocks, contents)
    path: list[_Heading] = []
    drafts = [_Draft((), 1)]
    for block in blocks:
        heading = listed.get(id(block)) if listed else _heading(block, body)
        if heading is None:
            _add(drafts[-1].blocks, block)
            continue
        while path and not _stands_over(path[-1], heading):
            path.pop()
        path.append(heading)
        drafts.append(_Draft(tuple(above.text for above in path[-MAX_HEADINGS:]), block.page))
    following = [*drafts[1:], _Draft((), 0)]
    return tuple(
        Section(PATH.join(draft.headings) or title, tuple(map(paragraph_of, draft.blocks)), draft.page)
        for draft, after in zip(drafts, following, strict=True)
        if draft.blocks or (draft.headings and after.headings[: len(draft.headings)] != draft.headings)
    )


def paragraph_of(block: Block) -> Paragraph:
    """One block as a paragraph: a table row by row, a picture as its caption."""
    caption = join_lines(block.caption) if block.caption else None
    if block.kind == "text":
        text = join_lines(block.lines)
        return Paragraph(text, split_sentences(text), block.page, block.box)
    path = block.name if block.image is None else image_name(block.image.digest)
    attachment = Attachment(block.kind, path, caption, block.image)
    if block.kind == "image":
        sentences = split_sentences(caption) if caption else ()
        return Paragraph(caption or "", sentences, block.page, block.box, attachment)
    text = "\n".join([caption, *block.lines] if caption else block.lines)
    return Paragraph(text, split_lines(text), block.page, block.box, attachment)


def _listed_headings(blocks: Sequence[Block], contents: Contents) -> dict[int, _Heading]:
    """The blocks that the file's own contents list names, by their ``id``; none where most of it is not found."""
    levels = {(page, letters): level for level, title, page in contents if (letters := _letters(title))}
    found: dict[tuple[int, str], Block] = {}
    for block in blocks:
        key = block.page, _letters(block.text[: 2 * MAX_HEADING_CHARS])
        if block.kind == "text" and key in levels and key not in found:
            found[key] = block
    if len(found) < MIN_LISTED * len(levels):
        return {}
    return {id(block): _Heading(join_lines(block.lines), block.size, levels[key]) for key, block in found.items()}


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text.casefold()))


def _heading(block: Block, body: float) -> _Heading | None:
    """Read a block as a heading by its size, weight and number; None where it is not one."""
    text = block.text
    if block.kind != "text" or len(block.lines) > 3 or len(text) > MAX_HEADING_CHARS or not _HAS_WORD.search(text):
        return None
    if text[:1] in BULLETS or CAPTION.match(text) or LEADERS.search(text):
        return None
    match = _NUMBER.match(text)
    number = match[0].strip(" .)") if match else ""
    # a numbered line in the font size of the text is one, too, in bold or with a number of two parts
    is_numbered = bool(number) and text[-1] not in ".,;:!?" and block.size >= 0.9 * body
    if block.size < HEADING_RATIO * body and not (is_numbered and (block.bold or "." in number)):
        return None
    return _Heading(join_lines(block.lines), block.size, number.count(".") + 1 if number else 0)


def _stands_over(upper: _Heading, lower: _Heading) -> bool:
    """Whether one heading contains the other: by their levels, else by their font sizes."""
    if upper.depth and lower.depth:
        return upper.depth < lower.depth
    return upper.size > 1.03 * lower.size


def _add(blocks: list[Block], block: Block) -> None:
    """Append a block, or its lines to the paragraph that it continues across a column or a page."""
    first = block.lines[0]
    if block.kind == "text" and first[:1].islower():  # in the midst of a sentence
        for before in reversed(blocks[-LOOK_BACK:]):
            # a picture, a table or a footnote in a smaller font may interrupt a paragraph
            # notes of 9 points below a text of 10 are passed over: 0.92 to 0.95 decide alike
            if before.kind != "text" or before.size < 0.93 * block.size or CAPTION.match(before.lines[0]):
                continue
            if abs(before.size - block.size) <= SAME_SIZE * block.size and not ends_sentence(before.lines[-1]):
                before.lines.extend(block.lines)
                return
            break
    blocks.append(block)
