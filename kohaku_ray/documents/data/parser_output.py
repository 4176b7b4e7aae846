"""Read what other document parsers write: Docling's JSON, MinerU's content lists, Marker's JSON, olmOCR's Dolma.

The file's content says which it is. Pages count from 1; boxes are in points from the page's top left corner as the
parser gives them, but MinerU's, which are in thousandths of the page's width and height. What these parsers write as
Markdown, with tables in HTML, is read as Markdown; the forms here are those that give pages.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

from kohaku_ray.documents.data.kohakurag import MAX_PAGE, load_json, parse_kohakurag
from kohaku_ray.documents.data.sections import Sections
from kohaku_ray.documents.markup.markdown import paged_markdown
from kohaku_ray.documents.model import Box, Document, Section
from kohaku_ray.documents.text.content import default_doc_id, flat_metadata, well_formed
from kohaku_ray.errors import DataError

_KEYS = (b'_content"', b'"DoclingDocument"', b'"page_idx"', b'"block_type"', b'"pdf_info"', b'"page_stats"')
_CONTENT_LIST = re.compile(r"_content_list(?:_v2)?$")
_INLINE_TEX = re.compile(r"(?<![\\$])\$(?=[^$\n]*[\\^_={}])([^$\n]+?)(?<!\\)\$(?![\d$])")
_TABLE_START = re.compile(r"<table\b[^>]*>", re.IGNORECASE)
_REFERENCE = re.compile(r"<content-ref\b[^>]*?src=[\"']([^\"']*)[\"'][^>]*>(?:\s*</content-ref>)?", re.IGNORECASE)
_PAGE_ID = re.compile(r"/page/(\d{1,9})/")
_TAG = re.compile(r"<[^>]*>")


def parse_json(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a file of JSON: what a document parser wrote, else a KohakuRAG document."""
    if any(key in data for key in _KEYS):
        root = load_json(name, data)
        if isinstance(root, dict) and root.get("schema_name") == "DoclingDocument":
            return _parse_docling(name, data)
        if isinstance(root, list) and root and all(isinstance(item, dict) and "page_idx" in item for item in root):
            return parse_content_list(name, root)
        if isinstance(root, list) and root and all(isinstance(page, list) for page in root):
            return parse_content_list(name, [_older_block(block, i) for i, page in enumerate(root) for block in page])
        if isinstance(root, dict) and root.get("block_type") == "Document":
            return parse_marker(name, root)
        if isinstance(root, dict) and ("pdf_info" in root or "page_stats" in root):
            beside = (
                "MinerU writes beside NAME_content_list.json" if "pdf_info" in root else "Marker writes beside its JSON"
            )
            raise DataError(f"{name} is what {beside}: give that file, and leave this one out.")
    return parse_kohakurag(name, data, images)


def _parse_docling(name: str, data: bytes) -> Document:
    try:
        from kohaku_ray.documents.data.docling import parse_docling  # takes 0.9 s and brings pandas
    except ModuleNotFoundError as error:
        raise DataError(
            f"{name} is a DoclingDocument and needs the package {error.name}: pip install 'kohaku-ray[docling]', or "
            "export it as Markdown."
        ) from None
    return parse_docling(name, data)


def _get(owner: Any, key: str, kind: type) -> Any:
    """The value of a key, or an empty one of that type where it has another."""
    value = owner.get(key) if isinstance(owner, dict) else None
    return value if isinstance(value, kind) and not (kind is int and isinstance(value, bool)) else kind()


def _text(owner: Any, key: str = "text") -> str:
    return well_formed(_get(owner, key, str))


def _box(values: Any) -> Box | None:
    """A box of four numbers."""
    if isinstance(values, list) and len(values) == 4 and all(type(number) in (int, float) for number in values):
        left, top, right, bottom = map(float, values)
        return left, top, right, bottom
    return None


_MINERU_FURNITURE = {
    "header": "page header",
    "footer": "page footer",
    "page_number": "page number",
    "aside_text": "side note",
    "discarded": "text block discarded by MinerU",
    "index": "contents page",
}


def parse_content_list(name: str, blocks: Sequence[Mapping[str, Any]]) -> Document:
    """Parse the blocks of MinerU's ``NAME_content_list.json``; the document's id is NAME."""
    sections = Sections(name)
    for block in blocks:
        kind, page, box = _get(block, "type", str), _get(block, "page_idx", int) + 1, _box(block.get("bbox"))
        page = page if 0 < page <= MAX_PAGE else None
        if kind in _MINERU_FURNITURE:
            sections.dropped[_MINERU_FURNITURE[kind]] += 1
            continue
        level = _get(block, "text_level", int)
        captions = [_lines(block, f"{prefix}_caption") for prefix in ("table", "image", "img", "chart", "code")]
        notes = [_lines(block, f"{prefix}_footnote") for prefix in ("table", "image", "img", "chart")]
        caption = " ".join(filter(None, captions))
        if kind == "table" and _text(block, "table_body").strip():
            body = _text(block, "table_body").replace(
                "\\%", "%"
            )  # 4.5\\% in its own test_rearch_report_content_list.json
            sections.add_html(_captioned(body, _with_tex(caption)), page, box)
        elif kind in ("image", "chart", "table"):
            sections.add_image(_text(block, "img_path") or None, caption, page, box)
            sections.add_text(_text(block, "content"), page, box)
        elif kind == "list" and _get(block, "list_items", list):
            items = [well_formed(item) for item in block["list_items"] if isinstance(item, str)]
            sections.add_html("".join(f"<p>{_with_tex(item)}</p>" for item in items), page, box)
        elif kind == "code":
            sections.add_text(caption, page)
            sections.add_text(_text(block, "code_body"), page, box, "pre")
        elif level > 0:
            sections.add_heading(level, _text(block))
        else:
            text = _text(block) or _text(block, "content")
            sections.add_html(f"<p>{_with_tex(text)}</p>" if text.strip() else "", page, box)
        for note in filter(None, notes):
            sections.add_html(f"<p>{_with_tex(note)}</p>", page)
    doc_id = _CONTENT_LIST.sub("", default_doc_id(name))
    return sections.document(doc_id, 1 + max((_get(block, "page_idx", int) for block in blocks), default=-1))


_OLDER_KINDS = {
    "page_header": "header",
    "page_footer": "footer",
    "page_aside_text": "aside_text",
    "algorithm": "code",
}


def _older_block(block: Any, page_index: int) -> dict[str, Any]:
    """Write a block of MinerU 3's ``NAME_content_list_v2.json``, a list of blocks per page, as older releases do."""
    content, kind = _get(block, "content", dict), _get(block, "type", str)
    texts = {key: _join_spans(value) for key, value in content.items() if isinstance(value, list)}
    text = next((value for key, value in texts.items() if key.endswith("_content")), "")
    chart = _text(content, "content")
    older = {
        "type": _OLDER_KINDS.get(kind, kind),
        "page_idx": page_index,
        "bbox": block.get("bbox") if isinstance(block, dict) else None,
        "text": f"$${_text(content, 'math_content')}$$" if kind == "equation_interline" else text,
        "text_level": max(_get(content, "level", int), 1) if kind == "title" else 0,
        "list_items": [_join_spans(_get(item, "item_content", list)) for item in _get(content, "list_items", list)],
        "table_body": _text(content, "html"),
        "code_body": text,
        "content": chart,
        "img_path": _text(_get(content, "image_source", dict), "path"),
        **{key: value for key, value in texts.items() if key.endswith(("_caption", "_footnote"))},
    }
    return {**older, "type": "table", "table_body": chart} if kind == "chart" and "<table" in chart else older


def _join_spans(spans: Sequence[Any]) -> str:
    """The texts and formulas of a line."""
    return "".join(
        rf"\({_text(span, 'content')}\)" if _get(span, "type", str) == "equation_inline" else _text(span, "content")
        for span in spans
    )


def _lines(block: Mapping[str, Any], key: str) -> str:
    """A caption or note, which is a list of lines or a text."""
    value = block.get(key)
    lines = value if isinstance(value, list) else [value]
    return " ".join(well_formed(line).strip() for line in lines if isinstance(line, str) and line.strip())


def _with_tex(text: str) -> str:
    r"""Text as HTML, its formulas between ``\(`` and ``\)``: in HTML a dollar is money."""
    return _INLINE_TEX.sub(r"\\(\1\\)", escape(text, quote=False))


def _captioned(source: str, caption: str) -> str:
    """A table in HTML with a caption in HTML."""
    return _TABLE_START.sub(lambda match: f"{match[0]}<caption>{caption}</caption>", source, count=1)


def _marker_children(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [child for child in _get(block, "children", list) if isinstance(child, dict)]


_MARKER_FURNITURE = {
    "PageHeader": "page header",
    "PageFooter": "page footer",
    "TableOfContents": "contents page",
}


def parse_marker(name: str, root: Mapping[str, Any]) -> Document:
    """Parse Marker's JSON: blocks of HTML page by page, which refer to the blocks inside them."""
    sections = Sections(name)
    n_pages = 0
    for top in _marker_children(root):
        match = _PAGE_ID.match(_text(top, "id"))
        page = int(match[1]) + 1 if match and int(match[1]) < MAX_PAGE else None
        n_pages = max(n_pages, page or 0)
        for block in _marker_children(top):
            _read_marker_block(sections, block, page)
    return sections.document(default_doc_id(name), n_pages)


def _read_marker_block(sections: Sections, block: Mapping[str, Any], page: int | None) -> None:
    kind, source, box = _text(block, "block_type"), _marker_html(block), _box(block.get("bbox"))
    if kind in _MARKER_FURNITURE:
        sections.dropped[_MARKER_FURNITURE[kind]] += 1
    elif kind in ("TableGroup", "FigureGroup", "PictureGroup"):
        parts = _marker_children(block)
        captions = [_TAG.sub("", _marker_html(child)) for child in parts if child.get("block_type") == "Caption"]
        for part in parts:
            if part.get("block_type") == "Table" and captions:
                table = _captioned(_marker_html(part), " ".join(captions.pop().split()))
                sections.add_html(table, page, _box(part.get("bbox")) or box)
            elif part.get("block_type") in ("Picture", "Figure") and captions:
                sections.add_html(f"<figcaption>{captions.pop()}</figcaption>", page, box)
            elif part.get("block_type") != "Caption":
                _read_marker_block(sections, part, page)
        for caption in captions:
            sections.add_html(f"<p>{caption}</p>", page, box)
    else:
        sections.add_html(source, page, box)


def _marker_html(block: Mapping[str, Any]) -> str:
    """A block's HTML with that of the blocks it refers to."""
    children = {child.get("id"): child for child in _marker_children(block)}
    inside: Callable[[re.Match[str]], str] = lambda match: (  # noqa: E731
        _marker_html(children[match[1]]) if match[1] in children else ""
    )
    return _REFERENCE.sub(inside, _text(block, "html"))


def olmocr_id(row: Mapping[str, Any]) -> str:
    """The name of the PDF that a line of olmOCR is from, without its suffix; empty where it is no such line."""
    if not isinstance(_get(row, "attributes", dict).get("pdf_page_numbers"), list):
        return ""
    source = _get(row, "metadata", dict).get("Source-File")
    return PurePosixPath(source).stem if isinstance(source, str) and source else _text(row, "id") or "olmocr"


def parse_olmocr(doc_id: str, row: Mapping[str, Any]) -> Document:
    """Parse a line of olmOCR: Markdown, of which ``pdf_page_numbers`` says where each page begins and ends."""
    text = _text(row)
    spans = [
        (span[0], span[1], span[2])
        for span in row["attributes"]["pdf_page_numbers"]
        if isinstance(span, list) and len(span) == 3 and all(type(item) is int for item in span)
    ]
    spans = [(start, end, page) for start, end, page in spans if 0 <= start < end and 0 < page <= MAX_PAGE]
    pages = [(text[start:end].strip("\n"), page) for start, end, page in sorted(spans)] or [(text, 1)]
    parts: list[str] = []
    for (part, _), (after, _) in zip(pages, [*pages[1:], ("", 0)], strict=True):
        # a sentence that goes on over the page is in one paragraph; else a page ends one
        goes_on = part[-1:].isalnum() or part[-1:] in ",;-"
        parts.append(part + ("\n" if goes_on and after[:1].islower() else "\n\n"))
    starts = list(accumulate((part.count("\n") for part in parts), initial=0))[:-1]
    title, sections = paged_markdown(
        doc_id, "".join(parts), lambda line: pages[max(bisect_right(starts, line) - 1, 0)][1]
    )
    sections = tuple(
        Section(item.title, item.paragraphs, item.paragraphs[0].page if item.paragraphs else None) for item in sections
    )
    metadata = flat_metadata(_get(row, "metadata", dict))
    return Document(doc_id, title, sections, metadata, n_pages=max((page for _, page in pages), default=0))
