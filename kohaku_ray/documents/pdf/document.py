"""Read a PDF as a document: page by page, then headings and sections; say what was dropped and what is odd."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kohaku_ray.documents.bounded import out_of_memory
from kohaku_ray.documents.figures import SET_IMAGES, no_image
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.pdf.furniture import Furniture
from kohaku_ray.documents.pdf.headings import Contents, body_size, sections_of, title_blocks
from kohaku_ray.documents.pdf.images import PdfImages
from kohaku_ray.documents.pdf.page import Page, read_page
from kohaku_ray.documents.pdf.paragraphs import Block, blocks_of
from kohaku_ray.documents.pdf.words import join_lines
from kohaku_ray.documents.text.content import UNREADABLE, UNREADABLE_SHARE, default_doc_id, well_formed
from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize

LITTLE_TEXT_CHARS = 40  # a page with less text is odd
WINDOW_PAGES = 64  # pages held in memory at a time; running heads are found by these and the pages before
MAX_TITLE_BLOCKS = 12  # blocks at the beginning among which the metadata's title is looked for
MIN_PAGES_ODD = 8  # fewest pages of a document whose only section is odd
_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?")
_NO_AUTHOR = re.compile(r"(?:unknown|anonymous|author|admin(?:istrator)?|user\d*|owner|[^a-z]*)", re.IGNORECASE)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running: it takes a sixth of the time, and pages leave no reference cycles."""
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

    The file's own contents list tells the headings, where it has one that its pages show; else size, weight and number
    do. Sections are titled with the headings that lead to them: ``2 Results › 2.1 Energy``. Columns are read one after
    the other between full-width lines. Running heads and page numbers are dropped, words divided at line ends joined,
    paragraphs joined across columns and pages. A table is one paragraph, each row a sentence. A picture is an
    attachment with the caption next to it. Scripts and embedded files are not touched. With ``images`` embedded images
    are extracted.

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
        extractor = PdfImages() if images else None
        furniture = Furniture(file.page_count)
        blocks, seen = _read(name, file, furniture, extractor)
        contents = _contents(file)
    if not any(page.n_chars for page in seen) and not any(block.image for block in blocks):
        if extractor is not None and (extractor.rejects or extractor.left_out):
            raise no_image(name, extractor.rejects, extractor.left_out)
        with_images = "" if extractor else f", or {SET_IMAGES} to index its images"
        raise DataError(
            f"{name} has {pluralize(len(seen), 'page')} but no text on any of them: it is a scan; run OCR "
            f"on it (such as ocrmypdf) and give the result{with_images}."
        )
    body = body_size(blocks)
    heads = title_blocks(blocks, body)
    shown = " ".join(join_lines(block.lines).replace("\n", " ") for block in heads)
    title = " ".join(info.get("title", "").split())
    on_page = _letters(" ".join(block.text for block in blocks[:MAX_TITLE_BLOCKS]))
    if not 4 <= len(title) <= 300 or _letters(title) not in on_page:
        title = shown or default_doc_id(name)  # what page 1 shows, unless the metadata's stands there, too
    # the title is not repeated as a heading; one that differs from the title in the metadata is kept as text
    dropped = {id(block) for block in heads} if _letters(shown) == _letters(title) else set()
    sections = sections_of([block for block in blocks if id(block) not in dropped], title, body, contents)
    oddities = ((number, page.odd()) for number, page in enumerate(seen, 1))
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
        furniture.describe(),
        len(seen),
    )


def _contents(file: Any) -> Contents:
    """The file's own contents list; empty where it has none, or a damaged one."""
    import pymupdf

    try:
        contents: Contents = file.get_toc()
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase):
        return []
    return contents


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

    n_chars: int
    n_unreadable: int
    is_turned: bool
    is_pictured: bool

    @classmethod
    def of(cls, page: Page) -> _Seen:
        texts = [line.text for line in page.lines]
        n_unreadable = sum(len(UNREADABLE.findall(text)) for text in texts)
        return cls(sum(map(len, texts)), n_unreadable, page.is_turned, page.is_pictured)

    def odd(self) -> str:
        """Say what is odd about the page; empty where nothing is."""
        oddities = []
        if not self.n_chars:
            oddities.append("no text, but a picture: a scan without OCR" if self.is_pictured else "blank")
        elif self.n_chars < LITTLE_TEXT_CHARS:
            oddities.append(f"little text ({self.n_chars} characters)")
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
    for first in range(0, file.page_count, WINDOW_PAGES):
        numbers = range(first, min(first + WINDOW_PAGES, file.page_count))
        window = [_page(name, file, number, extractor is not None) for number in numbers]
        seen.extend(map(_Seen.of, window))
        furniture.drop(window)
        if extractor is not None:
            extractor.extract(window)
        for page in window:
            blocks.extend(blocks_of(page))
    return blocks, seen


def _page(name: str, file: Any, number: int, images: bool) -> Page:
    import pymupdf

    try:
        return read_page(file.load_page(number), images)
    except (RuntimeError, ValueError, MemoryError, SystemError, pymupdf.mupdf.FzErrorBase) as error:
        # MuPDF's malloc or calloc, Python's, or that within PyMuPDF's C code, which goes on after it
        if "alloc (" in str(error) or MemoryError in (type(error), type(error.__cause__)):
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
