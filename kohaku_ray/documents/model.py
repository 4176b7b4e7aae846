"""What every parser returns: a document as sections, paragraphs and sentence spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Box = tuple[float, float, float, float]  # left, top, right, bottom in points, as seen on the page


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as a span of its paragraph's text.

    Attributes:
        start: First character.
        end: One past the last character.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Image:
    """The pixels of an image paragraph.

    Attributes:
        digest: First 32 hexadecimal digits of the SHA-256 of ``data``.
        data: PNG, RGB or grey, without transparency.
        width: In pixels.
        height: In pixels.
        caption: Printed caption, or alternative text; None: it has none.
        mentions: Sentences of the document that name its figure.
    """

    digest: str
    data: bytes
    width: int
    height: int
    caption: str | None = None
    mentions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image or table that came with a paragraph.

    Attributes:
        kind: ``image`` or ``table``.
        path: Its path, or its name inside the source file.
        caption: Its caption; without one the paragraph is not searchable.
        image: Its pixels, where images are extracted; ``path`` is then ``images/DIGEST.png``.
    """

    kind: str
    path: str | None = None
    caption: str | None = None
    image: Image | None = None


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph and the spans of its sentences, in reading order, without overlap.

    Attributes:
        text: Its own text; for an attachment, its caption or empty.
        sentences: Spans into ``text``.
        page: Page in the source, from 1.
        bbox: Left, top, right, bottom on that page, in points.
        attachment: Set when the paragraph stands for an image or a table.
        attributes: The paragraph's own columns, such as a news row's ``par_id`` or a novel's ``chapter``.
    """

    text: str
    sentences: tuple[Sentence, ...] = ()
    page: int | None = None
    bbox: Box | None = None
    attachment: Attachment | None = None
    attributes: Mapping[str, str | float | int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive paragraphs under one title."""

    title: str
    paragraphs: tuple[Paragraph, ...]
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document.

    Attributes:
        doc_id: Without colon, slash or control characters.
        title: Shown to readers.
        sections: In reading order.
        metadata: Url, type, year and so on, as text.
        image_rejects: Per image that cannot be used, its place in the document and the reason.
        images_left_out: Number of images left out, by reason.
        odd: What is odd about its pages, such as a scan without OCR, each with its place.
        n_pages: Pages of its file; 0: its format has none.
    """

    doc_id: str
    title: str
    sections: tuple[Section, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    image_rejects: tuple[tuple[str, str], ...] = ()
    images_left_out: Mapping[str, int] = field(default_factory=dict)
    odd: tuple[str, ...] = field(default=(), compare=False)
    n_pages: int = field(default=0, compare=False)
