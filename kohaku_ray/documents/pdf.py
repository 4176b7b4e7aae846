"""Read a PDF: headings by font size and number, columns in reading order, whole tables, no running heads.

`Furniture` is what is printed on a page and is no text: running heads, numbers of pages and lines, watermarks.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import floor
from statistics import median
from typing import Any

from kohaku_ray.documents.bounded import out_of_memory
from kohaku_ray.documents.content import default_doc_id, well_formed
from kohaku_ray.documents.figures import SET_IMAGES, no_image
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.pdf_blocks import Block, blocks_of
from kohaku_ray.documents.pdf_images import PdfImages
from kohaku_ray.documents.pdf_page import Line, Page, join_lines, read_page
from kohaku_ray.documents.pdf_tree import (
    body_size,
    contents_entries,
    describe_contents,
    is_deck,
    sections_of,
    slide_sections,
    title_blocks,
)
from kohaku_ray.documents.tables import is_number
from kohaku_ray.errors import DataError

MARGIN_SHARE = 0.12  # share of a page's height, at the top and at the bottom, in which running lines are looked for
MOST_SHOWN = 3  # most texts of a kind of furniture that are named
MAX_PAGES_APART = 3  # most pages from one with a running line to the next
MIN_PAGES = 3  # fewest pages that repeat a running line; two in a short document, or beside a page number
SIDE_SHARE = 0.28  # share of a slide's width, left and right, in which a sidebar is looked for
_LOWEST = re.compile(r"(?:\d{1,2}[.-])?(\d{1,4})")  # a page's number, perhaps after its chapter's
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
            if page.upright:
                self.dropped.setdefault("upright text", Counter()).update(page.upright)
        lowest = []  # a page's last line, where it is a number by itself: many pages end high above the margin
        for page in pages:
            if page.lines:
                line = max(page.lines, key=lambda line: line.y0)
                number = _LOWEST.fullmatch(line.text)
                if number and sum(other.y1 > line.y0 + 0.3 * line.size for other in page.lines) == 1:
                    lowest.append((page.number, line, int(number[1])))
        self._steps.update(shown - page_number for page_number, _, shown in lowest)
        for page_number, line, shown in lowest:
            if self._steps[shown - page_number] >= MIN_PAGES:
                self._remove(pages[page_number - pages[0].number], "page number", [line])
        marginal: list[list[tuple[Line, str]]] = []  # the outermost lines at the top and the bottom of each page
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
        self._drop_sidebars(pages)

    def _drop_sidebars(self, pages: Sequence[Page]) -> None:
        """Remove what stands at the same place beside the text of most slides: a list of sections, a number."""
        slides = [page for page in pages if page.width > page.height]
        beside: list[list[Line]] = []  # lines at the side of each slide, a figure only in a corner
        for page in slides:
            left, right = SIDE_SHARE * page.width, (1 - SIDE_SHARE) * page.width
            top, bottom = MARGIN_SHARE * page.height, (1 - MARGIN_SHARE) * page.height
            aside = [line for line in page.lines if line.x1 < left or line.x0 > right]
            beside.append(
                [line for line in aside if line.y1 <= top or line.y0 >= bottom or any(map(str.isalpha, line.text))]
            )
        keys = [[(_without_digits(line), round(line.x0 / 4), round(line.y0 / 4)) for line in lines] for lines in beside]
        counts = Counter(key for its_keys in keys for key in set(its_keys))
        needed = max(MIN_PAGES, 0.5 * len(slides))
        for page, lines, its_keys in zip(slides, beside, keys, strict=True):
            self._remove(
                page, "sidebar line", [line for line, key in zip(lines, its_keys, strict=True) if counts[key] >= needed]
            )

    def describe(self) -> tuple[str, ...]:
        """Say what was removed, and how much of it."""
        described = []
        for what, texts in self.dropped.items():
            n = texts.total()
            often = [f"{text[:60]!r}{f' × {k}' * (k > 1)}" for text, k in texts.most_common(MOST_SHOWN)]
            more = f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else ""
            noun, of, rest = what.partition(" of ")
            described.append(f"{n:,} {noun}{'s' * (n > 1)}{of}{rest}: {', '.join(often)}{more}")
        if self.n_marks:
            described.append(f"{self.n_marks:,} mark{'s' * (self.n_marks > 1)} of notes, set apart in brackets")
        return tuple(described)

    def _remove(self, page: Page, what: str, lines: Sequence[Line]) -> None:
        if lines:
            self.dropped.setdefault(what, Counter()).update(line.text for line in lines)
            gone = set(map(id, lines))
            page.lines = [line for line in page.lines if id(line) not in gone]

    def _is_running(self, line: Line, text: str, page: Page, numbers: Sequence[Line]) -> bool:
        if _is_page_number(line, text, page):
            return True
        if not any(map(str.isalpha, line.text)):
            return False  # a row of figures at the same height of several pages belongs to a table
        beside_number = any(abs(number.y0 - line.y0) < 0.5 * line.size for number in numbers)
        needed = 2 if beside_number else self._needed
        repeated = False
        for numbers_of in (self._pages[key] for key in _keys(line, text, page)):
            # half of its pages are close together, which those whose text begins alike seldom are
            close = [after - number <= MAX_PAGES_APART for number, after in pairwise(numbers_of)]
            n_close = sum(map(max, [False, *close], [*close, False]))
            repeated = repeated or (len(numbers_of) >= needed and 2 * n_close >= len(numbers_of))
        return repeated and not _is_in_table(line, page)


def _is_page_number(line: Line, text: str, page: Page) -> bool:
    if line.size > MAX_NUMBER_SHARE * page.height or _PAGE_NUMBER.fullmatch(text) is None:
        return False
    return text != "#" or not _is_among_numbers(line, page)


def _is_among_numbers(number: Line, page: Page) -> bool:
    """Whether a number stands right over or under another one, or in a row of three, as cells and axis labels do."""
    reach, n_beside = MAX_ROW_GAP * number.size, 0
    for line in page.lines:
        gap = max(line.y0 - number.y1, number.y0 - line.y1)
        is_over = line.x0 < number.x1 and number.x0 < line.x1 and -reach < gap < reach
        is_beside = abs(line.y0 - number.y0) < 0.5 * number.size
        if (is_over or is_beside) and line is not number and is_number(line.text):
            if is_over:
                return True
            n_beside += 1
    return n_beside > 1


def _is_in_table(line: Line, page: Page) -> bool:
    """Whether a line is one of several in a row, right above or below as many in the same columns."""
    rows: list[list[Line]] = [[], [], []]  # beside it, right above, right below
    for other in page.lines:
        distance = (other.y0 - line.y0) / line.size
        if abs(distance) < MAX_ROW_STEP and other.size:
            rows[0 if abs(distance) < 0.5 else 1 if distance < 0 else 2].append(other)
    for pieces in rows:
        pieces.sort(key=lambda piece: piece.x0)
    row, *others = rows
    return len(row) >= MIN_CELLS and any(
        len(other) == len(row) and all(a.x0 < b.x1 and b.x0 < a.x1 for a, b in zip(row, other, strict=True))
        for other in others
    )


def _first_rows(lines: Sequence[Line]) -> list[Line]:
    """Lines of the first rows, the sorted lines given from the edge inwards."""
    rows: list[list[Line]] = []
    for line in lines:
        if rows and abs(line.y0 - rows[-1][0].y0) <= 0.5 * line.size:
            rows[-1].append(line)
        elif len(rows) < _OUTERMOST:
            rows.append([line])
        else:
            break
    return [line for row in rows for line in row]


def _without_digits(line: Line) -> str:
    return _DIGITS.sub("#", line.text).casefold()


def _keys(line: Line, text: str, page: Page) -> tuple[tuple[str, int], tuple[str, int]]:
    """Text without digits, and height on the page, from the bottom in its lower half, since pages differ in height.

    Heights are rounded to two scales, half a step apart: lines at nearly the same height share at least one of the two.
    """
    height = line.y0 if line.y0 < page.height / 2 else line.y0 - page.height
    steps = height / _BUCKET
    return (text, 2 * floor(steps)), (text, 2 * round(steps) + 1)


MIN_WATERMARK = 2.0  # least font size of a watermark, in font sizes of the text
MIN_COVERED = 2  # fewest lines that a watermark lies across
MAX_WATERMARKS = 20  # most lines on a page that are looked at; more large ones are a poster


def _watermarks(lines: Sequence[Line]) -> list[Line]:
    """Large words that lie across lines of text: smaller ones run through their middle."""
    if len(lines) <= MIN_COVERED:
        return []
    sizes = sorted([line.size for line in lines])
    if sizes[-1] < MIN_WATERMARK * sizes[len(sizes) // 2]:
        return []
    least = MIN_WATERMARK * sizes[len(sizes) // 2]
    watermarks = []
    for large in [line for line in lines if line.size >= least][:MAX_WATERMARKS]:
        margin = 0.2 * (large.y1 - large.y0)
        n_covered = sum(
            large.y0 + margin < (line.y0 + line.y1) / 2 < large.y1 - margin
            and line.x0 < large.x1
            and line.x1 > large.x0
            and line.size * MIN_WATERMARK <= large.size
            for line in lines
        )
        if n_covered >= MIN_COVERED:
            watermarks.append(large)
    return watermarks


MIN_SYMBOLS = 20  # fewest times that the same characters stand in a cloud
MIN_SPREAD = 10  # fewest heights, and left edges, at which they do


def _plot_symbols(lines: Sequence[Line]) -> list[Line]:
    """The points of a plot, drawn as characters: the same one or two, no letters, all over a part of the page."""
    short: dict[str, list[Line]] = {}
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
MAX_LINE_NUMBER_SIZE = 0.87  # largest font size of a line number, as a share of the text's, but beside prose
MIN_EVEN_SHARE = 0.6  # least share of line numbers at the usual distance from the next
MIN_OUTSIDE_SHARE = 0.95  # least share of lines that are on the inner side of their numbers


def _line_numbers(lines: Sequence[Line]) -> list[Line]:
    """Numbers that count the lines of a page, in its left or right margin: 001, 002 and so on, or 5, 10."""
    numbers = [line for line in lines if line.text.isdecimal() and len(line.text) < 6]
    if len(numbers) < MIN_LINE_NUMBERS:
        return []
    ids = set(map(id, numbers))
    rest = [line for line in lines if id(line) not in ids]
    if not rest:
        return []
    counting: dict[int, Line] = {}
    for is_left in (True, False):
        for column in (*_columns(numbers, lambda line: line.x1), *_columns(numbers, lambda line: line.x0)):
            edge = max(line.x1 for line in column) if is_left else min(line.x0 for line in column)
            n_inside = sum(line.x0 >= edge if is_left else line.x1 <= edge for line in rest)
            if n_inside >= MIN_OUTSIDE_SHARE * len(rest) and _counts_lines(column, rest):
                counting.update((id(line), line) for line in column)
    return list(counting.values())


def _columns(numbers: Sequence[Line], edge: Callable[[Line], float]) -> Iterator[list[Line]]:
    """Numbers whose edges lie one below the other, each column from top to bottom."""
    column: list[Line] = []
    for line in [*sorted(numbers, key=edge), None]:
        if line is not None and (not column or edge(line) - edge(column[-1]) < 1.0):
            column.append(line)
            continue
        if len(column) >= MIN_LINE_NUMBERS:
            yield sorted(column, key=lambda line: line.y0)
        column = [] if line is None else [line]


def _counts_lines(column: Sequence[Line], rest: Sequence[Line]) -> bool:
    """Whether numbers, from top to bottom, grow evenly at even distances, and stand beside prose or in small print."""
    values = [int(line.text) for line in column]
    steps = Counter(after - value for value, after in pairwise(values))
    step, n = steps.most_common(1)[0]
    if not 1 <= step <= MAX_NUMBER_STEP or n < 0.9 * (len(column) - 1):
        return False
    gaps = [after.y0 - line.y0 for line, after in pairwise(column)]
    usual = median(gaps)
    if sum(abs(gap - usual) < 0.15 * usual for gap in gaps) < MIN_EVEN_SHARE * len(gaps):
        return False
    if median(line.size for line in column) <= MAX_LINE_NUMBER_SIZE * median(line.size for line in rest):
        return True
    return _is_prose(column, rest)


def _is_prose(column: Sequence[Line], rest: Sequence[Line]) -> bool:
    """Whether sentences run over the lines beside numbers: they are no column of a table, nor a numbered list."""
    heights = {round(line.y0 + line.y1) for line in column}
    beside = [line for line in rest if any(round(line.y0 + line.y1) + d in heights for d in range(-4, 5))]
    texts = [line.text for line in sorted(beside, key=lambda line: line.y0)]
    n_going_on = sum(after[:1].islower() and text[-1] not in ".!?:;" for text, after in pairwise(texts))
    return len(texts) > 0 and n_going_on >= 0.3 * len(texts) and median(map(len, texts)) >= 30


LITTLE_TEXT_CHARS = 40  # a page with less text is odd
UNREADABLE_SHARE = 0.05  # largest share of characters without a meaning in a text that is not odd
UNREADABLE = re.compile("[\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff\x00-\x08\x0e-\x1f]")
"""Characters without a meaning: a font that does not say which letters its shapes are."""

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
            f"{name} has {len(sizes):,} page{'s' * (len(sizes) > 1)} but no text on any of them: it is a scan; run OCR "
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
