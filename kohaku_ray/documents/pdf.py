"""PDF: headings by font size and number, columns in reading order, whole tables, no running heads."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kohaku_ray.documents.bounded import out_of_memory
from kohaku_ray.documents.content import default_doc_id, well_formed
from kohaku_ray.documents.figures import SET_IMAGES, no_image
from kohaku_ray.documents.model import Document, Section
from kohaku_ray.documents.pdf_blocks import Block, blocks_of
from kohaku_ray.documents.pdf_furniture import Furniture
from kohaku_ray.documents.pdf_images import PdfImages
from kohaku_ray.documents.pdf_join import join_lines
from kohaku_ray.documents.pdf_page import Page, read_page
from kohaku_ray.documents.pdf_tree import (
    body_size,
    contents_entries,
    describe_contents,
    is_deck,
    sections_of,
    slide_sections,
    title_blocks,
)
from kohaku_ray.errors import DataError

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
        raise _scan(name, len(sizes), extractor)
    body = body_size(blocks)
    heads = title_blocks(blocks, body)
    shown = " ".join(join_lines(block.lines, ()).replace("\n", " ") for block in heads)
    title = _sane_title(info.get("title", ""))
    if shown and not (
        title and _letters(title) in _letters(" ".join(block.text for block in blocks[:MAX_TITLE_BLOCKS]))
    ):
        title = shown  # what page 1 shows, unless the metadata's stands there, too
    title = title or default_doc_id(name)
    if is_deck(sizes, n_chars, body):
        sections, said = slide_sections(blocks)
    else:
        # the title is not repeated as a heading; one that differs from the title in the metadata is kept as text
        dropped = {id(block) for block in heads} if _letters(shown) == _letters(title) else set()
        rest = [block for block in blocks if id(block) not in dropped]
        entries = contents_entries(rest)
        said = describe_contents(rest, entries)
        sections = sections_of([block for block in rest if id(block) not in entries], title, body)
    return Document(
        default_doc_id(name),
        title,
        sections,
        _metadata(info),
        tuple(extractor.rejects) if extractor else (),
        dict(extractor.left_out) if extractor else {},
        _odd(seen, sections),
        (*furniture.describe(), *said),
        len(seen),
    )


def _scan(name: str, n_pages: int, extractor: PdfImages | None) -> DataError:
    if extractor is not None and (extractor.rejects or extractor.left_out):
        return no_image(name, extractor.rejects, extractor.left_out)
    images = "" if extractor else f", or {SET_IMAGES} to index its images"
    return DataError(
        f"{name} has {n_pages:,} page{'s' * (n_pages > 1)} but no text on any of them: it is a scan; run OCR on it "
        f"(such as ocrmypdf) and give the result{images}."
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
        found = []
        if not self.n_chars:
            found.append("no text, but a picture: a scan without OCR" if self.is_pictured else "blank")
        elif self.n_chars < LITTLE_TEXT_CHARS:
            found.append(f"little text ({self.n_chars} characters)")
        elif n_paragraphs and n_tables == n_paragraphs:
            found.append("all tables")
        if self.is_turned:
            found.append("rotated")
        if self.n_unreadable > UNREADABLE_SHARE * self.n_chars:
            found.append(f"unreadable characters ({self.n_unreadable} of {self.n_chars})")
        return ", ".join(found)


def _odd(pages: Sequence[_Seen], sections: Sequence[Section]) -> tuple[str, ...]:
    paragraphs = [paragraph for section in sections for paragraph in section.paragraphs]
    n_all = Counter(paragraph.page for paragraph in paragraphs)
    n_tables = Counter(one.page for one in paragraphs if one.attachment is not None and one.attachment.kind == "table")
    said = [(number, page.odd(n_all[number], n_tables[number])) for number, page in enumerate(pages, 1)]
    odd = [f"page {number}: {what}" for number, what in said if what]
    if len(sections) == 1 and len(pages) >= MIN_PAGES_ODD:
        odd.append(f"one section on {len(pages)} pages: no heading was found")
    return tuple(odd)


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
            found, gutter = blocks_of(page, gutter)
            blocks.extend(found)
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


def _sane_title(title: str) -> str:
    """The title in the file's metadata; empty where a program generated it."""
    title = " ".join(title.split())
    return "" if len(title) < 4 or len(title) > 300 or _NO_TITLE.fullmatch(title) else title


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _metadata(info: dict[str, str]) -> dict[str, str]:
    found = {}
    author = " ".join(info.get("author", "").split())
    if author and not _NO_AUTHOR.fullmatch(author):
        found["author"] = author
    date = _DATE.match(info.get("creationDate", ""))
    if date and "1970" < date[1] < "2100":
        found["date"] = "-".join(filter(None, date.groups()))
    return found
