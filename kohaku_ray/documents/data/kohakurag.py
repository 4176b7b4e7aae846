"""Read KohakuRAG's JSON: documents that a tool has already cut into sections, paragraphs and, mostly, sentences.

`write_kohakurag` writes what `parse_kohakurag` reads to the same tree. Beside the format's own keys a paragraph's
``metadata`` may hold ``bbox`` and ``attributes``, and ``verbatim``: text, attachment and the sentences' ``start`` and
``end`` are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section, Sentence
from kohaku_ray.documents.text.content import decode_text, default_doc_id, flat_metadata, unique_keys, well_formed
from kohaku_ray.documents.text.plain import text_sections
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.errors import DataError
from kohaku_ray.removed import removed_parser

MAX_PAGE = 2**31 - 1  # largest page number the node table can hold
_PLACEHOLDER = re.compile(
    r"\s*\[(?:image\s+page=\d+\s+idx=\d+\s+name=[^\]]*|img:[^\]]*)\](?:\s*size:\s*\d+x\d+,?\s*data:\s*\d+\s*bytes)?",
    re.IGNORECASE,
)
"""``[Image page=1 idx=1 name=Im0.jpg] Size: 9x9, Data: 9 bytes``; once captioned, ``[img:Fig1 9x9] A bar chart …``."""
_NAME = re.compile(r"\s*\[image\s+page=\d+\s+idx=\d+\s+name=([^\]]+)\]", re.IGNORECASE)

_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
    bool: "a boolean",
    float: "a number",
}


def parse_kohakurag(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a KohakuRAG document.

    A null is an absent value. Sentences that the file gives are kept where their paragraph's text holds them, in order;
    otherwise the paragraph is split here. An image paragraph becomes an attachment whose only text is its caption. A
    file with a text but no sections is read as plain text. With ``images`` a placeholder without a path has its name as
    its path.
    """
    root = _load_json(name, data)
    if parser := _parser_of(root):
        raise DataError(f"{name} is {removed_parser(parser)}.")
    if not isinstance(root, dict):
        rows = " (rows of texts are read from .jsonl: an object per line)" if isinstance(root, list) else ""
        raise DataError(f"{name} is {_shown(root)}, expected an object with document_id, title and sections{rows}.")
    return _Reader(name, images).document(root)


def _load_json(name: str, data: bytes) -> Any:
    """Read a file of JSON."""
    text, _ = decode_text(name, data)
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{name} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except ValueError as error:  # an integer of thousands of digits
        raise DataError(f"{name} is not valid JSON: {error}.") from None


def _parser_of(root: Any) -> str:
    """The parser of documents that wrote a file; empty where none of those did whose files are often at hand."""
    if isinstance(root, list):
        blocks = [block for page in root for block in (page if isinstance(page, list) else [page])]
        return "MinerU" if blocks and all(isinstance(block, dict) and "bbox" in block for block in blocks) else ""
    keys = root if isinstance(root, dict) else {}
    if keys.get("schema_name") == "DoclingDocument":
        return "Docling"
    return "MinerU" if "pdf_info" in keys else "Marker" if {"block_type", "page_stats"} & keys.keys() else ""


def write_kohakurag(document: Document) -> str:
    """Write a document as KohakuRAG JSON, which `parse_kohakurag` reads to the same tree."""
    texts = [paragraph.text for section in document.sections for paragraph in section.paragraphs]
    root = {
        "document_id": document.doc_id,
        "title": document.title,
        "text": "\n\n".join(filter(None, texts)),
        "metadata": dict(document.metadata),
        "sections": [
            {
                "title": section.title,
                "paragraphs": [_written(paragraph, section.page) for paragraph in section.paragraphs],
                "metadata": _present({"page": section.page}),
            }
            for section in document.sections
        ],
    }
    return json.dumps(root, ensure_ascii=False, indent=1) + "\n"


def _written(paragraph: Paragraph, section_page: int | None) -> dict[str, Any]:
    attachment = paragraph.attachment and replace(paragraph.attachment, image=None)
    paragraph = replace(paragraph, attachment=attachment)
    metadata = _present(
        {
            "page": paragraph.page,
            "bbox": None if paragraph.bbox is None else list(paragraph.bbox),
            "attributes": dict(paragraph.attributes) or None,
            "attachment_type": attachment and attachment.kind,
            "image_path": attachment and attachment.path,
            "caption": attachment and attachment.caption,
        }
    )
    sentences = [{"text": paragraph.text[span.start : span.end]} for span in paragraph.sentences]
    plain = {"text": paragraph.text, "sentences": sentences, "metadata": metadata}
    if _Reader("").paragraph(plain, "", section_page) == paragraph:
        return plain
    spans = [
        {**sentence, "metadata": {"start": span.start, "end": span.end}}
        for sentence, span in zip(sentences, paragraph.sentences, strict=True)
    ]
    return {**plain, "sentences": spans, "metadata": {**metadata, "verbatim": True}}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


class _Reader:
    """Walks the JSON, remembering the file's name for messages."""

    def __init__(self, name: str, images: bool = False) -> None:
        self.name, self.images = name, images

    def document(self, root: Mapping[str, Any]) -> Document:
        doc_id = self.string(root, "document_id", "") or default_doc_id(self.name)
        title = self.string(root, "title", "").strip() or doc_id
        sections = tuple(self.section(item, path) for item, path in self.items(root, "sections", ""))
        if not sections:
            sections = text_sections(self.string(root, "text", ""), title)
        metadata = flat_metadata(self.value(root, "metadata", "", dict) or {})
        return Document(doc_id, title, sections, metadata)

    def section(self, item: Any, path: str) -> Section:
        section = self.typed(item, path, dict)
        page = self.page(section, path, None)
        paragraphs = (
            self.paragraph(child, child_path, page) for child, child_path in self.items(section, "paragraphs", path)
        )
        title = self.string(section, "title", path).strip()
        return Section(title, tuple(paragraph for paragraph in paragraphs if paragraph is not None), page)

    def paragraph(self, item: Any, path: str, section_page: int | None) -> Paragraph | None:
        """Read a paragraph; None when there is nothing in it."""
        paragraph = self.typed(item, path, dict)
        text = self.string(paragraph, "text", path)
        given = self.sentences(paragraph, path)
        metadata = self.value(paragraph, "metadata", path, dict) or {}
        if self.value(metadata, "verbatim", f"{path}.metadata", bool):
            return self.verbatim(paragraph, metadata, path)
        page = self.page(paragraph, path, section_page)
        kind = self.string(metadata, "attachment_type", f"{path}.metadata") or None
        if kind != "table" and (kind or _PLACEHOLDER.match(text)):
            return replace(self.image(text, metadata, page, path), **self.columns_of(metadata, path))
        attachment = None if kind is None else self.attachment("table", metadata, path, None)
        text = text if text.strip() else " ".join(given)
        if not text and attachment is None:
            return None
        text = text or (attachment.caption if attachment else None) or ""
        return Paragraph(text, _spans(text, given), page=page, attachment=attachment, **self.columns_of(metadata, path))

    def verbatim(self, paragraph: Mapping[str, Any], metadata: Mapping[str, Any], path: str) -> Paragraph:
        """Read a paragraph that `write_kohakurag` wrote because the usual rules would change it."""
        text, inner = self.string(paragraph, "text", path), f"{path}.metadata"
        kind = self.value(metadata, "attachment_type", inner, str)
        image_path, caption = (self.value(metadata, key, inner, str) for key in ("image_path", "caption"))
        spans = []
        for item, where in self.items(paragraph, "sentences", path):
            span = self.value(self.typed(item, where, dict), "metadata", where, dict) or {}
            ends = [self.value(span, key, f"{where}.metadata", int) for key in ("start", "end")]
            if None in ends or not 0 <= ends[0] <= ends[1] <= len(text):
                raise DataError(
                    f"{self.name}: {where}.metadata is not a span of the {len(text)} characters of its text."
                )
            spans.append(Sentence(*ends))
        attachment = None if kind is None else Attachment(kind, image_path, caption)
        page = self.page(paragraph, path, None)
        return Paragraph(text, tuple(spans), page, attachment=attachment, **self.columns_of(metadata, path))

    def columns_of(self, metadata: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Read the box on the page and the attributes of a paragraph, where it has any."""
        inner = f"{path}.metadata"
        columns: dict[str, Any] = {}
        box = self.value(metadata, "bbox", inner, list)
        if box is not None:
            if len(box) != 4 or not all(type(side) in (int, float) for side in box):
                raise DataError(f"{self.name}: {inner}.bbox is {_shown(box)}, expected 4 numbers.")
            columns["bbox"] = tuple(map(float, box))
        attributes = self.value(metadata, "attributes", inner, dict)
        if attributes is not None:
            columns["attributes"] = {
                well_formed(key): well_formed(value) if isinstance(value, str) else value
                for key, value in attributes.items()
                if value is None or type(value) in (str, int, float)
            }
        return columns

    def image(self, text: str, metadata: Mapping[str, Any], page: int | None, path: str) -> Paragraph:
        written = _PLACEHOLDER.sub("", text, count=1).strip()
        attachment = self.attachment("image", metadata, path, written or None)
        named = _NAME.match(text) if self.images and attachment.path is None else None
        if named:
            attachment = replace(attachment, path=named[1].strip())
        caption = attachment.caption or ""
        return Paragraph(caption, split_sentences(caption), page=page, attachment=attachment)

    def attachment(self, kind: str, metadata: Mapping[str, Any], path: str, written: str | None) -> Attachment:
        """Describe an attachment; a caption in the metadata precedes one after the placeholder."""
        path = f"{path}.metadata"
        keys = ("image_path", "image_storage_key", "image_name")
        image_paths = [image_path for key in keys if (image_path := self.string(metadata, key, path).strip())]
        caption = self.string(metadata, "caption", path).strip()
        return Attachment(kind, image_paths[0] if image_paths else None, caption or written)

    def sentences(self, paragraph: Mapping[str, Any], path: str) -> list[str]:
        """The sentences given for a paragraph, each an object with a text or a bare string, without empty ones."""
        texts = [
            well_formed(item) if isinstance(item, str) else self.string(self.typed(item, inner, dict), "text", inner)
            for item, inner in self.items(paragraph, "sentences", path)
        ]
        return [text.strip() for text in texts if text.strip()]

    def page(self, owner: Mapping[str, Any], path: str, default: int | None) -> int | None:
        metadata = self.value(owner, "metadata", path, dict) or {}
        inner = _join(path, "metadata")
        page = self.value(metadata, "page", inner, int)
        if page is not None and not 0 <= page <= MAX_PAGE:
            raise DataError(f"{self.name}: {inner}.page is {_shown(page)}, expected 0 to {MAX_PAGE}.")
        return default if page is None else page

    def string(self, owner: Mapping[str, Any], key: str, path: str) -> str:
        return well_formed(self.value(owner, key, path, str) or "")

    def items(self, owner: Mapping[str, Any], key: str, path: str) -> Sequence[tuple[Any, str]]:
        """A list's items, each with its JSON path."""
        inner = _join(path, key)
        return [(item, f"{inner}[{i}]") for i, item in enumerate(self.value(owner, key, path, list) or [])]

    def value(self, owner: Mapping[str, Any], key: str, path: str, kind: type) -> Any:
        """The value of a key, of the given type; None when it is null or absent."""
        value = owner.get(key)
        return None if value is None else self.typed(value, _join(path, key), kind)

    def typed(self, value: Any, path: str, kind: type) -> Any:
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        raise DataError(f"{self.name}: {path} is {_shown(value)}, expected {_KINDS[kind]}.")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(value: Any) -> str:
    """A JSON value for a message: short ones in full, long ones by their kind."""
    written = json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float | None) else ""
    return written if 0 < len(written) <= 60 else _KINDS[type(value)]


def _spans(text: str, given: Sequence[str]) -> tuple[Sentence, ...]:
    """Spans of the given sentences; of our own where none are given, or one does not follow the one before."""
    spans = []
    position = 0
    for sentence in given:
        start = text.find(sentence, position)
        if start < 0:
            return split_sentences(text)
        position = start + len(sentence)
        spans.append(Sentence(start, position))
    return tuple(spans) or split_sentences(text)
