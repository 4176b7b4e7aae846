"""How the pages of a PDF look beside the tree that was made of them: their pictures, and what is odd about them."""

from __future__ import annotations

import io
import multiprocessing
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kohaku_ray.documents.pdf_page import read_page
from kohaku_ray.errors import DataError

PICTURE_PIXELS = 900
"""Longer side of a page's picture."""

LITTLE_TEXT_CHARS = 40
"""A page with less text is odd."""

UNREADABLE_SHARE = 0.05
"""Largest share of characters without a meaning on a page that is not odd."""

UNREADABLE = re.compile("[\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff\x00-\x08\x0e-\x1f]")
"""Characters without a meaning: a font that does not say which letters its shapes are."""

_QUALITY = 45


@dataclass(frozen=True, slots=True)
class PageView:
    """A page of a PDF.

    Attributes:
        number: From 1.
        width: In points, as the page lies.
        height: Likewise.
        n_chars: Characters of its text.
        n_unreadable: Those of them without a meaning.
        n_pictures: Pictures on it, icons included.
        is_turned: Its text runs upwards or downwards, or the page is turned by the viewer.
        picture: The page as WebP; empty: none was made.
    """

    number: int
    width: float
    height: float
    n_chars: int
    n_unreadable: int
    n_pictures: int
    is_turned: bool
    picture: bytes = b""

    def odd(self, n_paragraphs: int, n_tables: int) -> str:
        """Say what is odd about the page; empty where nothing is.

        Args:
            n_paragraphs: Paragraphs that were made of it.
            n_tables: Tables among them.
        """
        found = []
        if not self.n_chars:
            found.append("no text, but a picture: a scan without OCR" if self.n_pictures else "blank")
        elif self.n_chars < LITTLE_TEXT_CHARS:
            found.append(f"little text ({self.n_chars} characters)")
        elif n_paragraphs and n_tables == n_paragraphs:
            found.append("all tables")
        if self.is_turned:
            found.append("rotated")
        if self.n_unreadable > UNREADABLE_SHARE * self.n_chars:
            found.append(f"unreadable characters ({self.n_unreadable} of {self.n_chars})")
        return ", ".join(found)


class PdfViewer:
    """Looks at PDFs in a process of its own: MuPDF may not return, or crash, on a hostile file."""

    def __init__(self, timeout_s: float) -> None:
        """Start the process.

        Args:
            timeout_s: Longest time for one file.
        """
        self._timeout_s = timeout_s
        self._start()

    def look(self, name: str, data: bytes, n_pictures: int) -> tuple[PageView, ...]:
        """Look at all pages, and make pictures of the first ones.

        Raises:
            DataError: The file cannot be shown, takes too long, or ends the process.
        """
        said = f"its pages are not drawn after {self._timeout_s:g} s"
        try:
            self._pipe.send((name, data, n_pictures))
            if self._pipe.poll(self._timeout_s):
                pages: tuple[PageView, ...] | str = self._pipe.recv()
                if isinstance(pages, str):
                    raise DataError(pages)
                return pages
        except (EOFError, OSError):
            said = "drawing its pages ended the process"
        self.close()
        self._start()
        raise DataError(f"{name}: {said}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _start(self) -> None:
        # No multiprocessing.Pool: it can wait for ever for a worker that it ends while that one starts.
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(end,), daemon=True)
        self._process.start()
        end.close()


def _serve(pipe: Any) -> None:
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            name, data, n_pictures = pipe.recv()
            try:
                answer: tuple[PageView, ...] | str = view_pages(name, data, n_pictures)
            except DataError as error:
                answer = str(error)
            pipe.send(answer)


def view_pages(name: str, data: bytes, n_pictures: int) -> tuple[PageView, ...]:
    """Do what `PdfViewer.look` says, in this process."""
    import pymupdf

    pymupdf.TOOLS.mupdf_display_errors(False)
    pymupdf.TOOLS.mupdf_display_warnings(False)
    try:
        with pymupdf.open(stream=data, filetype="pdf") as file:
            return tuple(_view(page, page.number < n_pictures) for page in file)
    except (RuntimeError, ValueError, OSError, pymupdf.mupdf.FzErrorBase) as error:
        raise DataError(f"{name}: its pages cannot be drawn ({error})") from None


def _view(page: Any, drawn: bool) -> PageView:
    read = read_page(page)
    texts = [line.text for line in read.lines]
    is_turned = bool(read.turn or page.rotation)
    page.set_rotation(0)  # the boxes of the tree are those of the page as it lies
    rect = page.rect
    return PageView(
        number=read.number,
        width=float(rect.width),
        height=float(rect.height),
        n_chars=sum(map(len, texts)),
        n_unreadable=sum(len(UNREADABLE.findall(text)) for text in texts),
        n_pictures=len(page.get_images()),
        is_turned=is_turned,
        picture=_picture(page) if drawn else b"",
    )


def _picture(page: Any) -> bytes:
    zoom = PICTURE_PIXELS / max(page.rect.width, page.rect.height, 1)
    import pymupdf

    pixels = page.get_pixmap(matrix=pymupdf.Matrix(zoom, zoom), alpha=False)
    out = io.BytesIO()
    pixels.pil_save(out, format="WEBP", quality=_QUALITY)
    return out.getvalue()
