"""The document that every parser returns: sections, paragraphs and the spans of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Box = tuple[float, float, float, float]  # left, top, right, bottom in points, as seen on the page
Attributes = dict[str, str | float | int | None]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as a span of its paragraph's text; ``end`` is one past its last character."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Image:
    """The pixels of an image paragraph, without transparency."""

    digest: str  # first 32 hexadecimal digits of the SHA-256 of ``data``
    data: bytes  # PNG, RGB or grey
    width: int
    height: int
    caption: str | None = None  # printed caption, or alternative text
    mentions: tuple[str, ...] = ()  # sentences of the document that name its figure


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image or table that came with a paragraph; without a caption an image is not searchable."""

    kind: str  # ``image`` or ``table``
    path: str | None = None  # its path, or its name inside the source file
    caption: str | None = None
    image: Image | None = None  # where images are extracted; ``path`` is then ``images/DIGEST.png``


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph and the spans of its sentences, in reading order, without overlap."""

    text: str  # of an attachment: its caption, or empty
    sentences: tuple[Sentence, ...] = ()
    page: int | None = None  # page in the source, from 1
    bbox: Box | None = None  # place on that page
    attachment: Attachment | None = None
    attributes: Mapping[str, str | float | int | None] = field(default_factory=dict)
    """Columns of its own, such as the id or the author that its format gives it."""


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive paragraphs under one title."""

    title: str
    paragraphs: tuple[Paragraph, ...]
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document, its sections in reading order."""

    doc_id: str  # without colon, slash or control characters
    title: str
    sections: tuple[Section, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)  # url, type, year and so on
    image_rejects: tuple[tuple[str, str], ...] = ()  # images that cannot be used: place in the document, reason
    images_left_out: Mapping[str, int] = field(default_factory=dict)  # number of images left out, by reason
    odd: tuple[str, ...] = field(default=(), compare=False)  # what is odd, such as a scan without OCR, with its place
    dropped: tuple[str, ...] = field(default=(), compare=False)  # what is no text of it, such as running heads
    n_pages: int = field(default=0, compare=False)  # 0: its format has no pages


@dataclass(frozen=True, slots=True)
class Parsed:
    """The documents of a file, each with a valid ``doc_id`` of its own, and its rejects: place and reason."""

    documents: tuple[Document, ...]
    rejects: tuple[tuple[str, str], ...] = ()
