"""From a parsed document to rows: the node table and the document table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from kohaku_ray.documents.model import Document, Paragraph, Section
from kohaku_ray.errors import TreeError

PARAGRAPH_BREAK = "\n\n"
"""What stands between a section's title and its paragraphs when they are read as one text."""

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
    ]
)
"""One row a node, in preorder; documents and sections hold a title, paragraphs and sentences a text."""

DOCUMENT_SCHEMA = pa.schema(
    [pa.field("doc_id", pa.string(), nullable=False), pa.field("title", pa.string(), nullable=False)]
    + [pa.field(name, pa.string()) for name in ("url", "type", "year", "netloc", "date", "citation")]
    + [pa.field("metadata", pa.string(), nullable=False)]
)
"""One row a document; ``metadata`` is JSON of everything its source said."""


def flatten(document: Document) -> pa.Table:
    """Lay a document out as node rows in preorder.

    Returns:
        A table of ``NODE_SCHEMA``; ``n_tokens`` is 0 until somebody counts.

    Raises:
        TreeError: A sentence's span does not lie inside its paragraph.
    """
    body = [row for ordinal, section in enumerate(document.sections) for row in _section(document, ordinal, section)]
    root = _row(document.doc_id, document.doc_id, None, "document", 0, title=document.title)
    return pa.Table.from_pylist([root, *body], schema=NODE_SCHEMA)


def document_table(documents: Iterable[Document]) -> pa.Table:
    """Tabulate what is known of each document, in the order given; ``netloc`` is the url's where not said."""
    rows = []
    for document in documents:
        known = dict(document.metadata)
        row: dict[str, Any] = {name: known.get(name) or None for name in DOCUMENT_SCHEMA.names}
        row["netloc"] = row["netloc"] or _host(known.get("url", ""))
        row["metadata"] = json.dumps(known, sort_keys=True, ensure_ascii=False)
        rows.append(row | {"doc_id": document.doc_id, "title": document.title})
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).netloc or None
    except ValueError:  # such as an unclosed [ of an IPv6 host: a bad link is no reason to lose a document
        return None


def _section(document: Document, ordinal: int, section: Section) -> list[dict[str, Any]]:
    node_id = f"{document.doc_id}:sec{ordinal}"
    body = [
        row for at, paragraph in enumerate(section.paragraphs) for row in _paragraph(document, node_id, at, paragraph)
    ]
    texts = [section.title, *(row["text"] for row in body if row["kind"] == "paragraph")]
    head = _row(document.doc_id, node_id, document.doc_id, "section", ordinal, title=section.title, page=section.page)
    head["n_chars"] = len(PARAGRAPH_BREAK.join(text for text in texts if text))
    return [head, *body]


def _paragraph(document: Document, section_id: str, ordinal: int, paragraph: Paragraph) -> list[dict[str, Any]]:
    node_id = f"{section_id}:p{ordinal}"
    attachment = paragraph.attachment
    text = paragraph.text or (attachment.caption if attachment else None) or ""
    head = _row(document.doc_id, node_id, section_id, "paragraph", ordinal, text=text, page=paragraph.page)
    head["bbox"] = None if paragraph.bbox is None else list(paragraph.bbox)
    if attachment is not None:
        head |= {"attachment_kind": attachment.kind, "attachment_path": attachment.path}
    rows = [head]
    for at, span in enumerate(paragraph.sentences):
        if not 0 <= span.start < span.end <= len(text):
            raise TreeError(
                f"{node_id}:s{at} spans characters {span.start} to {span.end} of a paragraph of {len(text)}: "
                "a sentence must lie inside its paragraph and not be empty"
            )
        sentence = text[span.start : span.end]
        row = _row(document.doc_id, f"{node_id}:s{at}", node_id, "sentence", at, text=sentence, page=paragraph.page)
        rows.append(row | {"start": span.start, "end": span.end})
    return rows


def _row(
    doc_id: str,
    node_id: str,
    parent_id: str | None,
    kind: str,
    ordinal: int,
    *,
    title: str = "",
    text: str = "",
    page: int | None = None,
) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "doc_id": doc_id,
        "parent_id": parent_id,
        "kind": kind,
        "ordinal": ordinal,
        "title": title,
        "text": text,
        "n_chars": len(text or title),
        "n_tokens": 0,
        "page": page,
    }
