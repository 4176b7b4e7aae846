"""The figures of a document: each image's printed caption, and the sentences that mention it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kohaku_ray.documents.model import Document, Image, Paragraph
from kohaku_ray.documents.sentences import split_sentences

MAX_MENTIONS = 6
"""Most sentences kept that mention one figure."""

MAX_RANGE = 20
"""Most figures that ``Figures 2–5`` may name."""

_NUMBER = r"(?:[A-Z]\.?)?\d{1,3}(?:\.\d{1,3})?"
_LABEL = re.compile(rf"fig(?:ure|\.)?\s*({_NUMBER})", re.IGNORECASE)
_MENTION = re.compile(
    rf"\bfig(?:ure)?s?\.?\s*({_NUMBER}[a-z]?\)?(?:\s*(?:,\s*and|,|and|&|or|to|–|-)\s*{_NUMBER}[a-z]?\b)*)",
    re.IGNORECASE,
)
_NAMED = re.compile(rf"({_NUMBER})[a-z]?(?:\s*(?:–|-|to)\s*({_NUMBER}))?", re.IGNORECASE)


def with_mentions(document: Document) -> Document:
    """Give each image its caption, and the sentences of the document that name its figure."""
    labels = {_label(paragraph) for paragraph in _images(document)} - {None}
    sentences: dict[str, list[str]] = defaultdict(list)
    if labels:
        for section in document.sections:
            for paragraph in section.paragraphs:
                own = _label(paragraph)
                for span in paragraph.sentences:
                    text = paragraph.text[span.start : span.end]
                    for number in figures_named(text):
                        if number in labels and number != own:
                            sentences[number].append(text)

    def finished(paragraph: Paragraph) -> Paragraph:
        mentions = tuple(dict.fromkeys(sentences.get(_label(paragraph) or "", ())))[:MAX_MENTIONS]
        caption = paragraph.attachment.caption if paragraph.attachment else None
        return with_image(paragraph, lambda image: replace(image, caption=caption, mentions=mentions))

    return map_images(document, finished)


def figures_named(text: str) -> list[str]:
    """List the numbers of the figures that a sentence names: ``Figs. 2–4 and A.1`` names 2, 3, 4 and A.1."""
    found: dict[str, None] = {}
    for mention in _MENTION.finditer(text):
        for first, last in _NAMED.findall(mention[1]):
            found[first.upper()] = None
            if first.isdigit() and last.isdigit() and 0 < int(last) - int(first) < MAX_RANGE:
                found |= dict.fromkeys(map(str, range(int(first), int(last) + 1)))
            elif last:
                found[last.upper()] = None
    return list(found)


def with_image(paragraph: Paragraph, change: Callable[[Image], Image]) -> Paragraph:
    """Copy an image paragraph with its image changed."""
    attachment = paragraph.attachment
    if attachment is None or attachment.image is None:
        return paragraph
    return replace(paragraph, attachment=replace(attachment, image=change(attachment.image)))


def recaptioned(paragraph: Paragraph, caption: str | None) -> Paragraph:
    """Copy an image paragraph with another caption, which is its text."""
    text = caption or ""
    attachment = paragraph.attachment and replace(paragraph.attachment, caption=caption)
    return replace(paragraph, text=text, sentences=split_sentences(text), attachment=attachment)


def map_images(document: Document, change: Callable[[Paragraph], Paragraph]) -> Document:
    """Copy a document with its image paragraphs changed, those whose pixels are known."""
    return map_named(document, lambda paragraph: change(paragraph) if _has_image(paragraph) else paragraph)


def map_named(document: Document, change: Callable[[Paragraph], Paragraph | None]) -> Document:
    """Copy a document with its paragraphs changed; None leaves one out."""
    sections = [
        replace(section, paragraphs=tuple(one for old in section.paragraphs if (one := change(old)) is not None))
        for section in document.sections
    ]
    return replace(document, sections=tuple(sections))


def images_of(document: Document) -> Sequence[tuple[str, Paragraph, Image]]:
    """List the images of a document: the id of each one's node, its paragraph and its pixels."""
    return [
        (f"{document.doc_id}:sec{at}:p{inner}", paragraph, paragraph.attachment.image)
        for at, section in enumerate(document.sections)
        for inner, paragraph in enumerate(section.paragraphs)
        if paragraph.attachment is not None and paragraph.attachment.image is not None
    ]


def _images(document: Document) -> Iterator[Paragraph]:
    return (paragraph for _, paragraph, _ in images_of(document))


def _has_image(paragraph: Paragraph) -> bool:
    return paragraph.attachment is not None and paragraph.attachment.image is not None


def _label(paragraph: Paragraph) -> str | None:
    """Number of an image's figure, as its caption gives it."""
    if not _has_image(paragraph) or paragraph.attachment is None:
        return None
    found = _LABEL.match(paragraph.attachment.caption or "")
    return found[1].upper() if found else None
