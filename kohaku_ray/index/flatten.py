"""Turn a parsed document into rows of the node table and of the document table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.errors import TreeError
from kohaku_ray.index.chunks import PARAGRAPH_BREAK, Chunks, TokenCounter

NODE_SCHEMA = pa.schema(
    [
        pa.field("node_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("parent_id", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("ordinal", pa.int32(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("n_chars", pa.int64(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("page", pa.int32()),
        pa.field("bbox", pa.list_(pa.float32())),
        pa.field("attachment_kind", pa.string()),
        pa.field("attachment_path", pa.string()),
        pa.field("start", pa.int32()),
        pa.field("end", pa.int32()),
        pa.field("attributes", pa.string()),
    ]
)
"""One row per node, in preorder; documents and sections hold a title, all others a text.

``start`` and ``end`` are a sentence's span of its paragraph, and a chunk's of its parent's rejoined paragraphs.
``attributes`` is a JSON object: a paragraph's own columns, a chunk's index and total.
"""

DOCUMENT_SCHEMA = pa.schema(
    [pa.field("doc_id", pa.string(), nullable=False), pa.field("title", pa.string(), nullable=False)]
    + [pa.field(name, pa.string()) for name in ("url", "type", "year", "netloc", "date", "citation")]
    + [pa.field("metadata", pa.string(), nullable=False)]
)
"""One row per document; ``metadata`` is JSON of all metadata of its source."""


def flatten(document: Document, chunks: Chunks | None = None, count: TokenCounter | None = None) -> pa.Table:
    """Lay a document out as node rows in preorder; chunks are the last children of their parent.

    ``count`` counts the tokens per text, where the chunks are measured in tokens.

    Returns:
        A table of ``NODE_SCHEMA``; ``n_tokens`` is 0 until tokens are counted.

    Raises:
        TreeError: A sentence's span does not lie inside its paragraph.
    """
    rows = [_row(document.doc_id, document.doc_id, None, "document", 0, title=document.title)]
    for ordinal, section in enumerate(document.sections):
        head, *body = _section(document, ordinal, section)
        rows += [head, *body]
        if chunks is not None and chunks.over == "section":
            rows += _chunks(document, head["node_id"], section.paragraphs, chunks, count)
    if chunks is not None and chunks.over == "document":
        paragraphs = [paragraph for section in document.sections for paragraph in section.paragraphs]
        rows += _chunks(document, document.doc_id, paragraphs, chunks, count)
    return pa.Table.from_pylist(rows, schema=NODE_SCHEMA)


def document_table(documents: Iterable[Document]) -> pa.Table:
    """Make the document table, in the given order; ``netloc`` is that of the url where the metadata has none."""
    rows = []
    for document in documents:
        known = dict(document.metadata)
        row: dict[str, Any] = {name: known.get(name) or None for name in DOCUMENT_SCHEMA.names}
        with contextlib.suppress(ValueError):  # such as an unclosed [ of an IPv6 host: a bad link loses no document
            row["netloc"] = row["netloc"] or urlsplit(known.get("url", "")).netloc or None
        row["metadata"] = _json(known)
        rows.append(row | {"doc_id": document.doc_id, "title": document.title})
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


def _section(document: Document, ordinal: int, section: Section) -> list[dict[str, Any]]:
    node_id = f"{document.doc_id}:sec{ordinal}"
    body = [
        row
        for number, paragraph in enumerate(section.paragraphs)
        for row in _paragraph(document, node_id, number, paragraph)
    ]
    texts = [section.title, *(row["text"] for row in body if row["kind"] == "paragraph")]
    head = _row(document.doc_id, node_id, document.doc_id, "section", ordinal, title=section.title, page=section.page)
    head["n_chars"] = len(PARAGRAPH_BREAK.join(text for text in texts if text))
    return [head, *body]


def _paragraph(document: Document, section_id: str, ordinal: int, paragraph: Paragraph) -> list[dict[str, Any]]:
    node_id = f"{section_id}:p{ordinal}"
    attachment, text = paragraph.attachment, _text(paragraph)
    head = _row(document.doc_id, node_id, section_id, "paragraph", ordinal, text=text, page=paragraph.page)
    head["bbox"] = None if paragraph.bbox is None else list(paragraph.bbox)
    if attachment is not None:
        head |= {"attachment_kind": attachment.kind, "attachment_path": attachment.path}
    if paragraph.attributes:
        head["attributes"] = _json(paragraph.attributes)
    rows = [head]
    for number, span in enumerate(paragraph.sentences):
        if not 0 <= span.start < span.end <= len(text):
            raise TreeError(
                f"{node_id}:s{number} spans characters {span.start} to {span.end} of a paragraph of {len(text)}: "
                "a sentence must lie inside its paragraph and not be empty"
            )
        sentence = text[span.start : span.end]
        row = _row(
            document.doc_id, f"{node_id}:s{number}", node_id, "sentence", number, text=sentence, page=paragraph.page
        )
        rows.append(row | {"start": span.start, "end": span.end})
    return rows


def _chunks(
    document: Document, parent_id: str, paragraphs: Sequence[Paragraph], chunks: Chunks, count: TokenCounter | None
) -> list[dict[str, Any]]:
    """Cut the paragraphs that have a text; one without sentences counts as one."""
    with_text = [
        Paragraph(text, paragraph.sentences or (Sentence(0, len(text)),))
        for paragraph in paragraphs
        if (text := _text(paragraph))
    ]
    text, windows = chunks.cut(with_text, count)
    rows = []
    for index, (start, end) in enumerate(windows):
        row = _row(document.doc_id, f"{parent_id}:c{index}", parent_id, "chunk", index, text=text[start:end])
        attributes = _json({"index": index, "total": len(windows)})
        rows.append(row | {"start": start, "end": end, "attributes": attributes})
    return rows


def _text(paragraph: Paragraph) -> str:
    """A paragraph's own text; for an attachment without one, its caption."""
    return paragraph.text or (paragraph.attachment.caption if paragraph.attachment else None) or ""


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), sort_keys=True, ensure_ascii=False)


def _row(doc_id: str, node_id: str, parent_id: str | None, kind: str, ordinal: int, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "node_id": node_id,
        "doc_id": doc_id,
        "parent_id": parent_id,
        "kind": kind,
        "ordinal": ordinal,
    }
    row |= {"title": "", "text": "", "n_tokens": 0, **more}
    return row | {"n_chars": len(row["text"] or row["title"])}
