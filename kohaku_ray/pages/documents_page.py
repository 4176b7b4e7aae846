"""A page that shows what the parser made of each document, beside pictures of a PDF's pages."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from kohaku_ray.documents.model import Box, Paragraph
from kohaku_ray.documents.pdf_view import PageView
from kohaku_ray.pages.page import page_environment
from kohaku_ray.pages.text import cut
from kohaku_ray.run.documents import Collection, DocumentView
from kohaku_ray.storage import publish

MAX_PARAGRAPHS = 5000
"""Most paragraphs on a page of documents."""

MAX_CHARS = 3000
"""Most characters shown of a paragraph."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A paragraph as it is shown.

    Attributes:
        node_id: Its id without the document's.
        anchor: Its anchor on the page.
        label: Its number within the document.
        heading: Title of its section, where it is the first shown of it on this page; else empty.
        kind: ``text``, ``table`` or ``image``.
        facts: Its own columns.
        parts: Sentences (True) and what stands between them (False), in order.
        box: Its place on the page.
    """

    node_id: str
    anchor: str
    label: int
    heading: str
    kind: str
    facts: str
    parts: list[tuple[bool, str]]
    box: Box | None


@dataclass(frozen=True, slots=True)
class _Row:
    """One page of a PDF, or a whole document without pages: its picture and its paragraphs."""

    page: PageView | None
    picture: Markup
    paragraphs: list[_Shown]


def write_documents_page(collection: Collection, target: str) -> str:
    """Write the page: one HTML file that needs nothing beside it and runs no script.

    Args:
        collection: The documents, their pages looked at.
        target: Path of the page.

    Returns:
        That path.

    Raises:
        DataError: It cannot be written.
    """
    left, documents = MAX_PARAGRAPHS, []
    for at, view in enumerate(collection.documents):
        rows, n_left_out = _rows(view, f"d{at}", left)
        left = max(0, left - view.counts["paragraphs"])
        documents.append((f"d{at}", view, rows, n_left_out))
    pages = [page for view in collection.documents for page in view.pages]
    environment = page_environment()
    html = environment.get_template("documents.html.j2").render(
        collection=collection,
        documents=documents,
        n_undrawn=sum(not page.picture for page in pages),
        n_pages=len(pages),
    )
    publish(target, html.encode())
    return target


def _rows(view: DocumentView, anchor: str, most: int) -> tuple[list[_Row], int]:
    """The rows of a document, and how many paragraphs they leave out."""
    every = list(_paragraphs(view, anchor))
    shown = every[:most]
    if not view.pages:
        return [_Row(None, Markup(), [one for _, one in shown])], len(every) - len(shown)
    by_page: dict[int, list[_Shown]] = {}
    for page, members in groupby(shown, key=lambda pair: pair[0]):
        by_page.setdefault(page or 1, []).extend(one for _, one in members)
    rows = [_Row(page, _picture(page), by_page.get(page.number, [])) for page in view.pages]
    return rows, len(every) - len(shown)


def _paragraphs(view: DocumentView, anchor: str) -> Iterator[tuple[int | None, _Shown]]:
    label = 0
    for at, section in enumerate(view.document.sections):
        last: object = ()
        for inner, paragraph in enumerate(section.paragraphs):
            label += 1
            attachment = paragraph.attachment
            heading = "" if paragraph.page == last else section.title or "(no title)"
            last = paragraph.page
            yield (
                paragraph.page,
                _Shown(
                    f"sec{at}:p{inner}",
                    f"{anchor}-{label}",
                    label,
                    heading,
                    attachment.kind if attachment is not None else "text",
                    ", ".join(f"{key} {value}" for key, value in paragraph.attributes.items() if value is not None),
                    list(_parts(paragraph)),
                    paragraph.bbox,
                ),
            )


def _parts(paragraph: Paragraph) -> Iterator[tuple[bool, str]]:
    """Sentences and what stands between them; overlapping ones in full, long paragraphs cut."""
    at, n_chars = 0, 0
    for span in paragraph.sentences:
        if span.start > at:
            yield False, paragraph.text[at : span.start]
        yield True, cut(paragraph.text[span.start : span.end], MAX_CHARS)
        at, n_chars = max(at, span.end), n_chars + span.end - span.start
        if n_chars > MAX_CHARS:
            break
    if at < len(paragraph.text):
        yield False, cut(paragraph.text[at:], max(MAX_CHARS - n_chars, 0))


def _picture(page: PageView) -> Markup:
    if not page.picture:
        return Markup()
    return Markup("data:image/webp;base64,") + base64.b64encode(page.picture).decode()


def describe_limits(views: Sequence[DocumentView]) -> str:
    """Say how many pages have no picture; empty where all have one."""
    pages = [page for view in views for page in view.pages]
    n_undrawn = sum(not page.picture for page in pages)
    return f"{n_undrawn} of {len(pages)} pages are shown without a picture (--pictures)" if n_undrawn else ""
