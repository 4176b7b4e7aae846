"""Sections of a document, built from the blocks that another parser found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from html import escape

from kohaku_ray.documents.markup.html import read_fragment
from kohaku_ray.documents.model import Attachment, Box, Document, Paragraph
from kohaku_ray.documents.text.plain import Draft, finish, heading_path
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.records import pluralize


class Sections:
    """Sections of a document, built from the blocks that a parser found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.drafts = [Draft(())]
        self.title = ""
        self.dropped: Counter[str] = Counter()

    def add_heading(self, level: int, text: str) -> None:
        """Begin a section."""
        if text := " ".join(text.split()):
            self.drafts.append(Draft(heading_path(self.drafts[-1].headings, min(max(level, 1), 9), text)))

    def add_html(self, source: str, page: int | None, box: Box | None = None) -> None:
        """Add what a piece of HTML holds, at one place."""
        for draft in read_fragment(self.name, source):
            if draft.headings:
                self.add_heading(len(draft.headings), draft.headings[-1])
            self.drafts[-1].paragraphs += [replace(paragraph, page=page, bbox=box) for paragraph in draft.paragraphs]

    def add_text(self, text: str, page: int | None, box: Box | None = None, tag: str = "p") -> None:
        """Add a paragraph, or another element of text, at one place."""
        if text.strip():
            self.add_html(f"<{tag}>{escape(text)}</{tag}>", page, box)

    def add_image(self, path: str | None, caption: str, page: int | None, box: Box | None) -> None:
        """Add a picture by its caption."""
        caption = " ".join(caption.split())
        if caption:
            attachment = Attachment("image", path, caption)
            paragraph = Paragraph(caption, split_sentences(caption), page, box, attachment)
            self.drafts[-1].paragraphs.append(paragraph)

    def document(self, doc_id: str, n_pages: int) -> Document:
        """Make a document of what was added."""
        first = next((draft.headings[0] for draft in self.drafts if len(draft.headings) == 1), "")
        title = self.title or first or doc_id
        sections = finish(self.drafts, title)
        sections = tuple(replace(item, page=item.paragraphs[0].page) if item.paragraphs else item for item in sections)
        dropped = tuple(pluralize(n, noun) for noun, n in self.dropped.items())
        return Document(doc_id, title, sections, dropped=dropped, n_pages=n_pages)
