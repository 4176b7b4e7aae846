"""Read plain text: paragraphs between blank lines, sections by lines that look like headings.

Also what formats that mark headings and tables share: paths of headings, rows of tables as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.documents.text.content import decode_text, default_doc_id
from kohaku_ray.documents.text.sentences import split_sentences

MAX_HEADING_CHARS = 80  # longest line that is a heading or a title
MAX_HEADINGS = 4  # most headings that one section's title is joined from
PATH = " › "  # separates, in a section's title, the headings that lead to it
_UNDERLINE = re.compile(r"(={3,}|-{3,}|~{3,})\s*")
_DIVISION = re.compile(
    r"((?i:chapter|book|part|volume|section|appendix|act|scene|letter))\s+"
    r"(?i:\d+|[ivxlcdm]+|[a-z]|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    r"the\s+(?:first|second|third|fourth|fifth|last))\b"
    r"(?:[.:—–-].*|\s+[^\W\da-z].*|\s+[“‘\"'(].*)?"
)
# without a full stop, a word must follow: "2 Methods" is a heading, "42 MW" and "1.5 GB" are quantities
_NUMBERED = re.compile(
    r"(\d{1,2}(?:\.\d{1,2}){0,3}|[IVX]{1,5})(?:[.)]\s+[A-Z]|\s+(?:[A-Z][a-z]{2}|[A-Z]{4}))[^.!?;]*\??"
)


@dataclass
class _Draft:
    """A section being read, with the headings directly over it; ``label`` of the last as `_label` gives it."""

    headings: list[str]
    label: str = ""
    paragraphs: list[str] = field(default_factory=list)


def parse_text(name: str, data: bytes) -> Document:
    """Parse plain text; the title is the first line that looks like one, else the file's stem; lines stay wrapped."""
    return parse_plain(default_doc_id(name), data, name)


def parse_plain(doc_id: str, data: bytes, name: str = "") -> Document:
    """Parse plain text under an id of its own; see `parse_text`."""
    text, odd = decode_text(name or doc_id, data)
    title = _title(text) or doc_id
    return Document(doc_id, title, text_sections(text, title), odd=odd)


def text_sections(text: str, title: str) -> tuple[Section, ...]:
    """Cut plain text into sections.

    A heading is a line underlined with ``===``, ``---`` or ``~~~``, or a short line by itself that is a division of a
    book (CHAPTER IV, with its title after it or on the next line), numbered (1.2 Title) or in capitals. A division or
    number directly over a heading of another kind becomes the first part of that one's title; any other heading without
    a body is an ordinary paragraph.
    """
    drafts = [_Draft([title])]
    for block in _blocks(text):
        heading, body = _split_heading(block)
        if heading:
            _open(drafts, heading)
        if body:
            drafts[-1].paragraphs.append(body)
    if len(drafts) > 1 and not drafts[-1].paragraphs:
        _demote(drafts)
    front = drafts[0].paragraphs
    if front[:1] == [title] and len(drafts) + len(front) > 2:
        del front[0]  # the title's own line would only repeat the section's title
    return _sections(drafts)


def _sections(drafts: list[_Draft]) -> tuple[Section, ...]:
    return tuple(
        Section(PATH.join(draft.headings), tuple(Paragraph(text, split_sentences(text)) for text in draft.paragraphs))
        for draft in drafts
        if draft.paragraphs
    )


def _blocks(text: str) -> list[str]:
    """Runs of lines between blank lines or page breaks, without trailing white space."""
    lines = [line.rstrip() for line in text.replace("\f", "\n\n").split("\n")]
    return [block.strip("\n") for block in re.split(r"\n{2,}", "\n".join(lines)) if block.strip()]


def _split_heading(block: str) -> tuple[str, str]:
    """A block's heading, or nothing, and the text that is left."""
    lines = block.split("\n")
    if len(lines) > 1 and _UNDERLINE.fullmatch(lines[1].strip()) and _is_short(lines[0]):
        return lines[0].strip(), "\n".join(lines[2:])
    line = " ".join(part.strip() for part in lines)
    if len(lines) == 2 and _DIVISION.fullmatch(lines[0].strip()):
        # the line under CHAPTER IV may be its title, or the rest of a wrapped one
        below = lines[1]
        if _is_short(below) and below[-1] not in ".,;:!?" and not _DIVISION.fullmatch(below.strip()):
            return line, ""
    if len(lines) == 1 and _is_short(line):
        # in capitals: mostly letters, none of them small, no table's header, no sentence's end
        n_letters = sum(map(str.isalpha, line))
        is_capitals = line.isupper() and line[0].isalnum() and n_letters >= 4 and 2 * n_letters > len(line)
        if _label(line) or (is_capitals and line[-1] not in ".!?;,:" and "  " not in line and "\t" not in line):
            return line, ""
    return "", block


def _label(line: str) -> str:
    """What kind of label a heading begins with: ``chapter``, ``1.2``, ``roman`` or none."""
    if match := _DIVISION.fullmatch(line):
        return match[1].lower()
    if match := _NUMBERED.fullmatch(line):
        return match[1] if match[1][0].isdigit() else "roman"
    return ""


def _is_short(line: str) -> bool:
    return 0 < len(line.strip()) <= MAX_HEADING_CHARS


def _open(drafts: list[_Draft], heading: str) -> None:
    """Begin a section; an empty one before it is joined to it, or becomes paragraphs."""
    label, last = _label(heading), drafts[-1]
    if len(drafts) > 1 and not last.paragraphs:
        if _stands_over(last.label, label) and len(last.headings) < MAX_HEADINGS:
            last.headings.append(heading)
            last.label = label
            return
        _demote(drafts)
    drafts.append(_Draft([heading], label))


def _stands_over(upper: str, lower: str) -> bool:
    """Whether one label may head another: VOLUME over Chapter, CHAPTER over THE STORM, 1 over 1.2, but not 1 over 2."""
    if upper[:1].isdigit() and lower[:1].isdigit():
        return lower.startswith(upper + ".")
    return upper not in ("", lower)


def _demote(drafts: list[_Draft]) -> None:
    """Make the last, empty section's headings paragraphs of the one before: no text is lost."""
    empty = drafts.pop()
    drafts[-1].paragraphs.extend(empty.headings)


def _title(text: str) -> str:
    """The first line, when it is short and reads like a title: by itself, or over a line that begins anew."""
    block = next(iter(_blocks(text)), "")
    first, *rest = [line.strip() for line in block.split("\n")]
    if not _is_short(first) or first[-1] in ".,;:!?-–—" or not any(map(str.isalnum, first)):
        return ""
    return first if not rest or rest[0][:1].isupper() or _UNDERLINE.fullmatch(rest[0]) else ""


@dataclass
class Draft:
    """A section being read: the headings that lead to it, and its paragraphs."""

    headings: tuple[str, ...]
    paragraphs: list[Paragraph] = field(default_factory=list)


def heading_path(above: Sequence[str], level: int, heading: str) -> tuple[str, ...]:
    """The headings that lead to a new one; a level left out (h1, h3) is an empty string."""
    return (*above[: level - 1], *[""] * (level - 1 - len(above)), heading)


def finish(drafts: Sequence[Draft], title: str) -> tuple[Section, ...]:
    """Make sections of drafts; leave out an empty one whose title the document's or the next section's repeats.

    A heading that is the document's title stays where headings are all that there is.
    """
    following = [*drafts[1:], Draft(())]
    has_text = any(draft.paragraphs for draft in drafts)
    return tuple(
        Section(_section_title(draft.headings, title), tuple(draft.paragraphs))
        for draft, after in zip(drafts, following, strict=True)
        if draft.paragraphs
        or (
            tuple(after.headings[: len(draft.headings)]) != tuple(draft.headings)
            and not (has_text and _section_title(draft.headings, title) == title)
        )
    )


def with_headings(document: Document) -> Document:
    """Give each section without paragraphs its heading as one, so that what it says is found."""
    if all(section.paragraphs for section in document.sections):
        return document
    sections = []
    for section in document.sections:
        heading = section.title.rpartition(PATH)[2]
        paragraph = Paragraph(heading, split_sentences(heading), section.page)
        sections.append(section if section.paragraphs else replace(section, paragraphs=(paragraph,)))
    return replace(document, sections=tuple(sections))


def _section_title(headings: Sequence[str], title: str) -> str:
    return PATH.join(heading for i, heading in enumerate(headings) if heading and (i, heading) != (0, title)) or title


MAX_PARAGRAPH_CHARS = 2000
"""Longest paragraph, in characters: the longest sentence, about the 512 tokens that common encoders read at once."""


def divide_long(document: Document) -> Document:
    """Divide longer paragraphs between sentences: before a line of its second half if there is one, else where it ends.

    Trees do not depend on the encoder that will read them, so the bound is in characters.
    """
    sections = []
    for section in document.sections:
        paragraphs: list[Paragraph] = []
        for paragraph in section.paragraphs:
            paragraphs += _divided(paragraph) if len(paragraph.text) > MAX_PARAGRAPH_CHARS else [paragraph]
        sections.append(replace(section, paragraphs=tuple(paragraphs)))
    return replace(document, sections=tuple(sections))


def _divided(paragraph: Paragraph) -> list[Paragraph]:
    text, spans = paragraph.text, paragraph.sentences
    parts, first = [], 0
    for last in range(len(spans)):
        if last > first and spans[last].end - spans[first].start > MAX_PARAGRAPH_CHARS:
            middle = spans[first].start + MAX_PARAGRAPH_CHARS // 2
            lines = [i for i in range(first + 1, last + 1) if "\n" in text[spans[i - 1].end : spans[i].start]]
            cut = lines[-1] if lines and spans[lines[-1]].start > middle else last
            parts.append(spans[first:cut])
            first = cut
    return [_part(paragraph, part) for part in (*parts, spans[first:])] if parts else [paragraph]


def _part(paragraph: Paragraph, spans: Sequence[Sentence]) -> Paragraph:
    start = spans[0].start
    sentences = tuple(Sentence(span.start - start, span.end - start) for span in spans)
    return replace(paragraph, text=paragraph.text[start : spans[-1].end], sentences=sentences)
