"""Read the format ``novel``: plain text, one section per chapter, without the distributor's header and footer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from kohaku_ray.documents.formats import DocumentFormat
from kohaku_ray.documents.model import Attributes, Document, Paragraph, Section
from kohaku_ray.documents.text.content import decode_text
from kohaku_ray.documents.text.plain import PATH
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.errors import DataError
from kohaku_ray.records import digest_text

_UNITS = re.findall(
    r"\w+",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"} | {
    "twelve": "twelfth"
}
_ROMAN = re.compile(r"(?=[IVXLCDM])M{0,3}(CM|CD|D?C{0,4})(XC|XL|L?X{0,4})(IX|IV|V?I{0,4})", re.IGNORECASE)
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_GAPS = re.compile(r"[\s-]+")


def number_of(text: str) -> int | None:
    """Read digits, a roman numeral, or a cardinal or ordinal below 400 in words, in any case; None: it is none."""
    text = text.strip()
    if text.isdecimal():
        return int(text)
    return roman(text) or _words().get(_GAPS.sub(" ", text.lower().replace("hundred and", "hundred")))


def roman(text: str) -> int | None:
    """Read a roman numeral below 4000, in capitals or small letters; None when it is none (``IC``, ``IVI``)."""
    if _ROMAN.fullmatch(text) is None:
        return None
    values = [_ROMAN_VALUES[letter] for letter in text.upper()]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


@cache
def _words() -> dict[str, int]:
    """Cardinals and ordinals from 1 to 399; parts are joined by one space."""
    below: dict[str, int] = {}
    for value, word in enumerate(_UNITS, 1):
        below[word] = below[_ordinal(word)] = value
    for value, word in zip(range(20, 100, 10), _TENS, strict=True):
        below[word] = below[_ordinal(word)] = value
        below |= {f"{word} {text}": value + unit for text, unit in list(below.items()) if unit < 10}
    words = dict(below)
    for prefix, value in (("a", 100), ("one", 100), ("two", 200), ("three", 300)):
        words[f"{prefix} hundred"] = words[f"{prefix} hundredth"] = value
        words |= {f"{prefix} hundred {text}": value + rest for text, rest in below.items()}
    return words


def _ordinal(word: str) -> str:
    return _ORDINALS.get(word) or (word[:-1] + "ieth" if word.endswith("y") else word + "th")


MAX_TITLE_CHARS = 120  # longest line that is a heading
PREAMBLE = "Preamble"  # title of the section before the first chapter
_START = re.compile(r"^\*{3}\s*START OF TH.*?\*{3}[ \t]*$|^\*END\*?THE SMALL PRINT.*$", re.MULTILINE | re.IGNORECASE)
_END = re.compile(
    r"^\*{3}\s*END OF TH|^End of (?:the |this )?Project Gutenberg|^\s*\*{3}\s*START: FULL LICENSE",
    re.MULTILINE | re.IGNORECASE,
)
_FIELD = re.compile(r"^(Title|Author|Translator|Language):[ \t]*(\S.*(?:\n[ \t]+\S.*)*)", re.MULTILINE | re.IGNORECASE)
_FIELDS_ABOVE = re.compile(
    r"\s*(?=Title:)(?:(?:Title|Author|Translator|Language):[ \t]*\S.*(?:\n[ \t]+\S.*)*(?:\n\s*|\Z))+",
    re.IGNORECASE,
)
_JOIN = {"title": " ", "author": ", ", "translator": ", ", "language": ", "}
_CREDIT = re.compile(
    r"(?:E-text prepared by|(?:This e-?text was )?produced by|Transcribed (?:from|by))\b", re.IGNORECASE
)
_HEADING = re.compile(
    r"[ \t]*_?(?P<kind>CHAPTER|Chapter|PART|Part|BOOK|Book|VOLUME|Volume)[ \t]+(?:(?:THE|The|the)[ \t]+)?"
    r"(?P<number>\d+|[A-Za-z]+(?:[ \t-]+[A-Za-z]+){0,4})(?P<rest>.*)"
)
_NAMED_HEADING = re.compile(r"[ \t]*_?(?P<kind>CHAPTER|PART|BOOK|VOLUME)[ \t]+[A-Z][A-Z \t'’-]*")
_BARE_NUMBER = re.compile(r"\s*(?P<number>\d{1,3}|[IVXLC]+)\.?\s*")
_BARE_WORD = re.compile(r"\s*_?(?:PROLOGUE|EPILOGUE|Prologue|Epilogue)[.]?_?\s*")
_TITLE = re.compile(r"[ \t]*(?:[.:;,\]—–-]+[ \t]*(?P<marked>.*)|[ \t](?P<plain>.*)|)")
_TITLE_START = re.compile(r"[^\W\da-z]|[\d“‘\"'([_—]")
_LONE_TITLE = re.compile(r"[“‘\"'_]?[^\W\da-z].*[\w_]")
_SENTENCE_END = re.compile(r"[.!?:][”’\"')\]_]*\Z")
_PROSE_WORDS = 4


@dataclass(slots=True)
class _Heading:
    """A line that may head a division, and the paragraphs before the next one."""

    kind: str  # empty: a division as the book's chapters are
    number: int | str  # or the word in place of one
    line: str
    bare: bool
    paragraphs: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, int | str]:
        """Equal to that of its line in a table of contents, however number and title are written there."""
        return self.kind, self.number


def parse_novel(doc_id: str, data: bytes) -> Document:
    """Parse a novel.

    Chapters begin at CHAPTER, PART, BOOK or VOLUME with a roman, arabic or spelled-out number, or words in capitals, at
    the start of a paragraph; at PROLOGUE and EPILOGUE; and, in a book without CHAPTER, at numbers on lines of their own
    that count on after whole sentences, as page numbers do not. A division above chapters comes first in their titles
    (``PART ONE › CHAPTER II THE STORM``). A table of contents is dropped. Text before the first chapter is kept when it
    has prose. Without chapters the whole book is one section. Lines stay as they are wrapped. Bytes that are not UTF-8,
    nor UTF-16 with its mark, are read as Windows-1252, a superset of Latin-1. Each paragraph's attributes are ``book``,
    ``chapter`` (the section's title), ``chapter_number`` (counted through the book, 0 before the first) and
    ``progress_pct`` (100 · number / chapters).
    """
    text, odd = decode_text(doc_id, data)
    header, body = _book(text)
    if not header and (match := _FIELDS_ABOVE.match(body)):
        header, body = match[0], body[match.end() :]
    fields = {
        match[1].lower(): re.sub(r"\s*\n\s*", _JOIN[match[1].lower()], match[2]) for match in _FIELD.finditer(header)
    }
    title = fields.pop("title", doc_id)
    sections = novel_sections(body, title)
    if not sections:
        raise DataError(f"{doc_id} has no text: the book is empty between its header and footer: give the whole file.")
    return Document(doc_id, title, sections, fields, odd=odd)


def novel_sections(text: str, book: str) -> tuple[Section, ...]:
    """Cut a novel's text, without an e-text's header and footer, into chapters; see `parse_novel`."""
    front, headings = _read(text)
    headings, extra = _without_contents(headings)
    front += extra
    if not headings:
        return _section(book, front, book, 1, 100.0)
    counts = Counter(heading.kind for heading in reversed(headings) if heading.kind)
    leaf = max(counts, key=lambda kind: counts[kind], default="")
    for heading in headings:
        heading.kind = heading.kind or leaf
    n_chapters = sum(heading.kind == leaf for heading in headings)
    sections = _section(PREAMBLE, front, book, 0, 0.0) if any(map(_is_prose, front)) else ()
    above: list[_Heading] = []
    number = 0
    for heading in headings:
        kinds = [upper.kind for upper in above]
        if heading.kind in kinds:
            del above[kinds.index(heading.kind) :]
        paragraphs = heading.paragraphs
        if heading.kind == leaf:
            number += 1
            paragraphs = paragraphs or [heading.line]  # a chapter without text stays one
        elif not any(map(_is_prose, paragraphs)):
            paragraphs = []
        title = PATH.join(part.line for part in (*above, heading))
        sections += _section(title, paragraphs, book, number, round(100 * number / n_chapters, 2))
        if heading.kind != leaf:
            above.append(heading)
    return sections


def words_digest(book: Document) -> str:
    """Hash a book's words, whatever its file's name, header, footer and line breaks."""
    words = (word for section in book.sections for part in section.paragraphs for word in part.text.split())
    return digest_text(" ".join(words))


def _book(text: str) -> tuple[str, str]:
    """An e-text's header, empty without one, and the book between header and footer."""
    start = max((match.end() for match in _START.finditer(text)), default=0)
    end = _END.search(text, start)
    return text[:start], text[start : end.start() if end else len(text)]


def _read(text: str) -> tuple[list[str], list[_Heading]]:
    """The paragraphs before the first heading, and every heading with those under it."""
    front: list[str] = []
    headings: list[_Heading] = []
    lines = [line.rstrip() for line in text.replace("\f", "\n\n").split("\n")]
    blocks = [block.strip("\n") for block in re.split(r"\n{2,}", "\n".join(lines))]
    numbers = _bare_numbers(blocks)
    for position, block in enumerate(blocks):
        if position in numbers:
            opened, body = [_Heading("chapter", numbers[position], block.strip(), bare=True)], ""
        else:
            opened, body = _split_block(block)
        headings += opened
        under = headings[-1].paragraphs if headings else front
        if body.strip() and not (not headings and _CREDIT.match(body.strip())):
            under.append(body)
    for heading in headings:  # a title on a line of its own under a bare "CHAPTER I" joins it
        first, *rest = heading.paragraphs or [""]
        line = first.strip()
        is_alone = heading.bare and rest and "\n" not in first and 0 < len(line) <= MAX_TITLE_CHARS
        if is_alone and (line.isupper() or _LONE_TITLE.fullmatch(line)):
            heading.line += " " + line
            del heading.paragraphs[0]
    return front, headings


def _bare_numbers(blocks: Sequence[str]) -> dict[int, int]:
    """Numbers that are chapters' whole headings, by block: they count on, or begin anew, after whole sentences."""
    numbers: dict[int, int] = {}
    for position, block in enumerate(blocks):
        match = _BARE_NUMBER.fullmatch(block)
        if match is None:
            heading = _heading(block.partition("\n")[0])
            if heading is not None and heading.kind == "chapter":
                return {}
            continue
        number, last = number_of(match["number"]), next(reversed(numbers.values()), None)
        before = blocks[position - 1].rstrip() if position else ""
        ends = position - 1 in numbers or not before or _SENTENCE_END.search(before) or _heading(before) is not None
        if number is None or not ends or (last is not None and number not in (1, last + 1)):
            return {}
        numbers[position] = number
    return numbers if len(numbers) > 1 else {}


def _split_block(block: str) -> tuple[list[_Heading], str]:
    """The headings that a block of lines begins with, and the text that is left of it."""
    lines = block.split("\n")
    headings: list[_Heading] = []
    for i, line in enumerate(lines):
        heading = _heading(line)
        if heading is None:
            rest = lines[i:]
            if headings and _continues(headings[-1], rest):
                headings[-1].line = " ".join([headings[-1].line, *(part.strip() for part in rest)])
                return headings, ""
            if headings and rest[0][:1].islower():
                return [], block  # "Chapter V. The captain said that he" begins a paragraph
            return headings, "\n".join(rest)
        headings.append(heading)
    return headings, ""


def _heading(line: str) -> _Heading | None:
    """A line as a heading: kind, number, and after it nothing or the beginning of a title."""
    if _BARE_WORD.fullmatch(line):
        return _Heading("", line.strip(" \t_.").upper(), line.strip().strip("_"), bare=True)
    match = _HEADING.fullmatch(line)
    if match is None or len(line.strip()) > MAX_TITLE_CHARS:
        return None
    words = re.split(r"([ \t-]+)", match["number"])
    for n in range(len(words), 0, -2):  # the longest number: FORTY-TWO before FORTY
        number = number_of("".join(words[:n]))
        if number is None:
            continue
        title = _TITLE.fullmatch("".join(words[n:]) + match["rest"])
        text = (title["marked"] or title["plain"] or "").strip() if title else ""
        if title is not None and (not text or _TITLE_START.match(text)):
            return _Heading(match["kind"].lower(), number, line.strip().strip("_"), bare=not text)
    if (named := _NAMED_HEADING.fullmatch(line)) is not None:
        return _Heading(named["kind"].lower(), line.strip(" \t_"), line.strip().strip("_"), bare=True)
    return None


def _continues(heading: _Heading, rest: Sequence[str]) -> bool:
    """Whether the lines right under a heading are its title, or the rest of a wrapped one."""
    text = " ".join(rest).strip()
    if len(rest) > 2 or len(text) > MAX_TITLE_CHARS:
        return False
    shouted = heading.line.isupper() or heading.line.startswith(heading.kind.upper())
    return text.isupper() or not _SENTENCE_END.search(text) or (text[0].islower() and shouted)


def _without_contents(headings: Sequence[_Heading]) -> tuple[list[_Heading], list[str]]:
    """Drop tables of contents: two or more headings of one kind without text, most of which occur again later.

    Text under the last line of a table, such as a preface, goes to the division before it, else it is returned apart.
    """
    kept: list[_Heading] = []
    extra: list[str] = []
    start = 0
    while start < len(headings):
        texts = (i for i in range(start, len(headings)) if any(map(_SENTENCE_END.search, headings[i].paragraphs)))
        last = next(texts, len(headings) - 1)
        end = _contents_end(headings[start : last + 1]) + start
        again = {heading.key for heading in headings[end:]}
        table = headings[start:end]
        kinds = Counter(heading.kind for heading in table)
        if max(kinds.values(), default=0) > 1 and 2 * sum(heading.key in again for heading in table) > len(table):
            left = table[-1].paragraphs if end > last else []
            (kept[-1].paragraphs if kept else extra).extend(left)
        else:
            kept += table
        kept += headings[end : last + 1]
        start = last + 1
    return kept, extra


def _contents_end(run: Sequence[_Heading]) -> int:
    """Where a table of contents would end in a run of headings of which only the last has text.

    The last heading is the book's first chapter, and the divisions directly above belong to it, when its number is that
    of the first heading of its kind in the run; else it is the table's last line.
    """
    last = run[-1]
    if len(run) == 1 or next(heading for heading in run if heading.kind == last.kind).key != last.key:
        return len(run)
    return max((i for i, heading in enumerate(run[:-1], 1) if heading.kind == last.kind), default=0)


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph is text rather than a line of a title page."""
    words = paragraph.split()
    small = sum(word[0].islower() for word in words)
    return len(words) >= _PROSE_WORDS and 2 * small >= len(words) and _SENTENCE_END.search(paragraph) is not None


def _section(title: str, texts: Iterable[str], book: str, number: int, progress_pct: float) -> tuple[Section, ...]:
    """One section, or none when it has no paragraphs."""
    attributes: Attributes = {"book": book, "chapter": title, "chapter_number": number, "progress_pct": progress_pct}
    paragraphs = tuple(Paragraph(text, split_sentences(text), attributes=attributes) for text in texts)
    return (Section(title, paragraphs),) if paragraphs else ()


NOVEL = DocumentFormat((".txt", ".text"), parse_novel, digest=words_digest)
