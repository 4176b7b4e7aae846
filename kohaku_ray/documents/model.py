"""What every parser returns: a document as sections, paragraphs and sentence spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in points, as seen on the page."""


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
class Attachment:
    """An image or table that came with a paragraph.

    Attributes:
        kind: ``image`` or ``table``.
        path: Its path, or its name inside the source file.
        caption: Its caption; without one the paragraph is not searchable.
    """

    kind: str
    path: str | None = None
    caption: str | None = None


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
    """

    doc_id: str
    title: str
    sections: tuple[Section, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
