"""Read what other document parsers write: Docling's JSON, MinerU's content lists, Marker's JSON, olmOCR's Dolma.

The file's content says which it is. Pages count from 1; boxes are in points from the page's top left corner as the
parser gives them, but MinerU's, which are in thousandths of the page's width and height.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

from kohaku_ray.documents.data.kohakurag import MAX_PAGE, load_json, parse_kohakurag
from kohaku_ray.documents.markup.html import MAX_SPAN, read_fragment
from kohaku_ray.documents.markup.markdown import paged_markdown
from kohaku_ray.documents.model import Attachment, Box, Document, Paragraph, Section
from kohaku_ray.documents.office.archive import html_table
from kohaku_ray.documents.text.content import default_doc_id, flat_metadata, well_formed
from kohaku_ray.documents.text.plain import Draft, finish, heading_path
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize

_KEYS = (b'_content"', b'"DoclingDocument"', b'"page_idx"', b'"block_type"', b'"pdf_info"', b'"page_stats"')
_CONTENT_LIST = re.compile(r"_content_list(?:_v2)?$")
_INLINE_TEX = re.compile(r"(?<![\\$])\$(?=[^$\n]*[\\^_={}])([^$\n]+?)(?<!\\)\$(?![\d$])")
_TABLE_START = re.compile(r"<table\b[^>]*>", re.IGNORECASE)
_REFERENCE = re.compile(r"<content-ref\b[^>]*?src=[\"']([^\"']*)[\"'][^>]*>(?:\s*</content-ref>)?", re.IGNORECASE)
_PAGE_ID = re.compile(r"/page/(\d{1,9})/")
_SPACED_SCRIPT = re.compile(r" (?=<su[bp]>)")
_TAG = re.compile(r"<[^>]*>")
MAX_TABLE_CELLS = 1_000_000  # most cells of a table by its own count of rows and columns


def parse_json(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a file of JSON: what a document parser wrote, else a KohakuRAG document."""
    if any(key in data for key in _KEYS):
        root = load_json(name, data)
        if isinstance(root, dict) and root.get("schema_name") == "DoclingDocument":
            return _Docling(name, root).document()
        if isinstance(root, list) and root and all(isinstance(item, dict) and "page_idx" in item for item in root):
            return parse_content_list(name, root)
        if isinstance(root, list) and root and all(isinstance(page, list) for page in root):
            return parse_content_list(name, [_older_block(block, i) for i, page in enumerate(root) for block in page])
        if isinstance(root, dict) and "block_type" in (next(iter(_marker_blocks(root)), None) or {}):
            return parse_marker(name, root)
        if isinstance(root, dict) and ("pdf_info" in root or "page_stats" in root):
            beside = (
                "MinerU writes beside NAME_content_list.json" if "pdf_info" in root else "Marker writes beside its JSON"
            )
            raise DataError(f"{name} is what {beside}: give that file, and leave this one out.")
    return parse_kohakurag(name, data, images)


class _Tree:
    """Sections of a document, built from the blocks that a parser found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.drafts = [Draft(())]
        self.title = ""
        self.dropped: Counter[str] = Counter()

    def add_heading(self, level: int, text: str) -> None:
        if text := " ".join(text.split()):
            self.drafts.append(Draft(heading_path(self.drafts[-1].headings, min(max(level, 1), 9), text)))

    def add_html(self, source: str, page: int | None, box: Box | None = None) -> None:
        for draft in read_fragment(self.name, source):
            if draft.headings:
                self.add_heading(len(draft.headings), draft.headings[-1])
            self.drafts[-1].paragraphs += [replace(paragraph, page=page, bbox=box) for paragraph in draft.paragraphs]

    def add_text(self, text: str, page: int | None, box: Box | None = None, tag: str = "p") -> None:
        if text.strip():
            self.add_html(f"<{tag}>{escape(text)}</{tag}>", page, box)

    def add_image(self, path: str | None, caption: str, page: int | None, box: Box | None) -> None:
        caption = " ".join(caption.split())
        if caption:
            attachment = Attachment("image", path, caption)
            paragraph = Paragraph(caption, split_sentences(caption), page, box, attachment)
            self.drafts[-1].paragraphs.append(paragraph)

    def document(self, doc_id: str, n_pages: int) -> Document:
        first = next((draft.headings[0] for draft in self.drafts if len(draft.headings) == 1), "")
        title = self.title or first or doc_id
        sections = finish(self.drafts, title)
        sections = tuple(replace(item, page=item.paragraphs[0].page) if item.paragraphs else item for item in sections)
        dropped = tuple(pluralize(n, noun) for noun, n in self.dropped.items())
        return Document(doc_id, title, sections, dropped=dropped, n_pages=n_pages)


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


_DOCLING_FURNITURE = {
    "page_header": "page header",
    "page_footer": "page footer",
    "document_index": "contents page",
}


class _Docling:
    """Reads a DoclingDocument of version 1: its body's items, in their order."""

    def __init__(self, name: str, root: Mapping[str, Any]) -> None:
        version = _get(root, "version", str)
        if version.partition(".")[0] != "1":
            raise DataError(
                f"{name} is a DoclingDocument of version {version or '(none)'}; versions 1.x are read: "
                "export it by a release of Docling that writes one, or as Markdown."
            )
        self._root, self._tree = root, _Tree(name)
        self._seen: set[str] = set()

    def document(self) -> Document:
        tree = self._tree
        self._read_children(_get(self._root, "body", dict))
        if n_beside := sum(1 for _ in self._items(_get(self._root, "furniture", dict))):
            tree.dropped["furniture item"] += n_beside
        titles = [_text(item) for item in _get(self._root, "texts", list) if _get(item, "label", str) == "title"]
        tree.title = " ".join(next(filter(str.strip, titles), "").split())
        return tree.document(default_doc_id(tree.name), len(_get(self._root, "pages", dict)))

    def _resolve(self, reference: Any) -> dict[str, Any]:
        path = _get(reference, "$ref", str)
        node: Any = self._root
        for key in path.removeprefix("#/").split("/"):
            if isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                node = node.get(key) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise DataError(f"{self._tree.name}: {path or reference!r} is no item of the document: export it again.")
        return node

    def _items(self, owner: Mapping[str, Any], key: str = "children") -> Iterator[dict[str, Any]]:
        """Yield the items that a list refers to, each once in the document, but what is furniture."""
        for reference in _get(owner, key, list):
            path = _get(reference, "$ref", str)
            if path in self._seen:
                continue
            self._seen.add(path)
            item = self._resolve(reference)
            label, layer = _get(item, "label", str), _get(item, "content_layer", str)
            if label in _DOCLING_FURNITURE:
                self._tree.dropped[_DOCLING_FURNITURE[label]] += 1
            elif layer in ("furniture", "background", "invisible"):
                self._tree.dropped[f"{layer} item"] += 1
            else:
                yield item

    def _read_children(self, owner: Mapping[str, Any]) -> None:
        tree = self._tree
        for item in self._items(owner):
            label = _get(item, "label", str)
            page, box = self._place(item)
            text = _text(item) or _text(item, "orig")
            if _text(item, "name").startswith("sheet: "):
                tree.add_heading(1, _text(item, "name").removeprefix("sheet: "))
            if label in ("list", "ordered_list"):
                page, box, source = self._list(item)
                tree.add_html(source, page, box)
            elif label in ("title", "section_header"):
                tree.add_heading(1 if label == "title" else max(_get(item, "level", int), 1) + 1, text)
                self._read_children(item)
            elif label == "table" or "table_cells" in _get(item, "data", dict):
                self._read_table(item, page, box)
            elif label in ("picture", "chart"):
                self._read_picture(item, page, box)
            elif label == "inline":
                pages_and_boxes = (self._place(self._resolve(child)) for child in _get(item, "children", list))
                first_place = next(
                    (page_and_box for page_and_box in pages_and_boxes if page_and_box[0] is not None), (None, None)
                )
                tree.add_html(f"<p>{_SPACED_SCRIPT.sub('', ' '.join(self._pieces(item)))}</p>", *first_place)
            elif label == "list_item":
                tree.add_html(f"<ul>{self._list_item(item)}</ul>", page, box)
            elif label == "formula":
                tree.add_text(f"$${text}$$" if _text(item) else text, page, box)
            elif "graph" in item:
                tree.add_html("".join(f"<p>{escape(line)}</p>" for line in _graph_lines(item)), page, box)
            else:
                tag = "pre" if label == "code" else "p"
                tree.add_html(f"<{tag}>{_formatted(item)}</{tag}>" if text.strip() else "", page, box)
                self._read_children(item)

    def _read_picture(self, item: Mapping[str, Any], page: int | None, box: Box | None) -> None:
        """Read a picture's caption, notes, description and, of a chart, the values; what is drawn in it is dropped."""
        tree = self._tree
        caption, notes = (" ".join(_text(part) for part in self._items(item, key)) for key in ("captions", "footnotes"))
        annotations = [part for part in _get(item, "annotations", list) if isinstance(part, dict)]
        annotations += [part for part in _get(item, "meta", dict).values() if isinstance(part, dict)]
        description = " ".join(filter(None, map(_text, annotations)))
        if caption.strip() or description.strip():
            tree.add_image(None, caption or description, page, box)
        else:
            tree.dropped["uncaptioned picture"] += 1
        if caption.strip():
            tree.add_text(description, page, box)
        tree.add_text(notes, page)
        for part in annotations:
            if data := _get(part, "chart_data", dict):
                tree.add_html(self._table(data, escape(_text(part, "title"))), page, box)
        if n_inside := sum(1 for _ in self._items(item)):
            tree.dropped["text block inside a picture"] += n_inside

    def _pieces(self, owner: Mapping[str, Any]) -> Iterator[str]:
        """Yield the texts below an item as HTML."""
        for item in self._items(owner):
            yield _formatted(item)
            yield from self._pieces(item)

    def _list(self, group: Mapping[str, Any]) -> tuple[int | None, Box | None, str]:
        """The first page of a list, the box round its items there, and its HTML."""
        items = list(self._items(group))
        pages_and_boxes = [self._place(item) for item in items]
        page = next((number for number, _ in pages_and_boxes if number is not None), None)
        boxes = [box for number, box in pages_and_boxes if number == page and box is not None]
        box = None
        if boxes:
            left, top, right, bottom = zip(*boxes, strict=True)
            box = min(left), min(top), max(right), max(bottom)
        is_ordered = _get(group, "label", str) == "ordered_list" or any(
            _get(item, "enumerated", bool) for item in items
        )
        is_ordered = is_ordered and all(_number(item).isdecimal() or not _number(item) for item in items)
        tag = "ol" if is_ordered else "ul"
        return page, box, f"<{tag}>{''.join(self._list_item(item, is_ordered) for item in items)}</{tag}>"

    def _list_item(self, item: Mapping[str, Any], is_ordered: bool = False) -> str:
        number = _number(item)
        parts = ["" if is_ordered else escape(_text(item, "marker").strip() if number else ""), _formatted(item)]
        for child in self._items(item):
            if _get(child, "label", str) in ("list", "ordered_list"):
                parts.append(self._list(child)[2])
            else:
                parts += [_formatted(child), *self._pieces(child)]
        value = f' value="{number}"' if is_ordered and number else ""
        return f"<li{value}>{' '.join(filter(None, parts))}</li>"

    def _read_table(self, item: Mapping[str, Any], page: int | None, box: Box | None) -> None:
        caption = " ".join(_text(part) for part in self._items(item, "captions"))
        notes = [_text(part) for part in self._items(item, "footnotes")]
        data = _get(item, "data", dict)
        self._tree.add_html(self._table(data, escape(caption)), page, box)
        for note in notes:
            self._tree.add_text(note, page)
        # the content of a cell, which its text repeats
        self._seen |= {_get(_get(cell, "ref", dict), "$ref", str) for cell in _get(data, "table_cells", list)}
        self._read_children(item)

    def _table(self, data: Mapping[str, Any], caption: str) -> str:
        """Write a table as HTML: as large as its cells need, no text of theirs lost where they overlap."""
        cells = [cell for cell in _get(data, "table_cells", list) if isinstance(cell, dict)]
        positions = [
            (max(_get(cell, "start_row_offset_idx", int), 0), max(_get(cell, "start_col_offset_idx", int), 0))
            for cell in cells
        ]
        n_rows = max(_get(data, "num_rows", int), *(row + 1 for row, _ in positions), 0)
        n_columns = max(_get(data, "num_cols", int), *(column + 1 for _, column in positions), 0)
        if n_rows * n_columns > MAX_TABLE_CELLS:
            raise DataError(
                f"{self._tree.name}: a table has {n_rows:,} × {n_columns:,} cells, at most {MAX_TABLE_CELLS:,} are "
                "allowed: split it."
            )
        rows: list[dict[int, tuple[str, int, int, bool]]] = [{} for _ in range(n_rows)]
        starts, covered = set(positions), set[tuple[int, int]]()
        for (row, column), cell in zip(positions, cells, strict=True):
            height = min(max(_get(cell, "end_row_offset_idx", int) - row, 1), n_rows - row, MAX_SPAN)
            width = min(max(_get(cell, "end_col_offset_idx", int) - column, 1), n_columns - column, MAX_SPAN)
            inside = {(row + i, column + j) for i in range(height) for j in range(width)} - {(row, column)}
            if inside & starts or inside & covered:
                height, width, inside = 1, 1, set()
            covered |= inside
            is_name = any(_get(cell, key, bool) for key in ("column_header", "row_header"))
            above = f"{rows[row][column][0]} " if column in rows[row] else ""
            rows[row][column] = above + escape(_text(cell)), width, height, is_name
        table = [
            [
                line.get(column, ("", 1, 1, False))
                for column in range(n_columns)
                if column in line or (i, column) not in covered
            ]
            for i, line in enumerate(rows)
        ]
        return html_table(table, caption)

    def _place(self, item: Mapping[str, Any]) -> tuple[int | None, Box | None]:
        """An item's page, and its box there from the page's top left corner."""
        first = next(iter(_get(item, "prov", list)), None)
        page = _get(first, "page_no", int)
        if not 0 < page <= MAX_PAGE:
            return None, None
        given = _get(first, "bbox", dict)
        box = _box([given.get(key) for key in ("l", "t", "r", "b")])
        if box is not None and given.get("coord_origin") == "BOTTOMLEFT":
            size = _get(_get(_get(self._root, "pages", dict), str(page), dict), "size", dict)
            height = size.get("height")
            box = (box[0], height - box[1], box[2], height - box[3]) if isinstance(height, int | float) else None
        return page, box


def _formatted(item: Mapping[str, Any]) -> str:
    """An item's text as HTML: raised, lowered or struck through as it is formatted."""
    formatting = _get(item, "formatting", dict)
    script = {"super": "sup", "sub": "sub"}.get(_get(formatting, "script", str), "")
    text = escape(_text(item) or _text(item, "orig"))
    for tag in filter(None, (script, "s" if _get(formatting, "strikethrough", bool) else "")):
        text = f"<{tag}>{text}</{tag}>"
    return text


def _number(item: Mapping[str, Any]) -> str:
    """The number or letter that a list item is marked with; empty for a bullet."""
    return "".join(filter(str.isalnum, _text(item, "marker"))) and _text(item, "marker").strip().rstrip(".)")


def _graph_lines(item: Mapping[str, Any]) -> list[str]:
    """The fields of a form: ``key: value`` where a cell links to its value, other cells by themselves."""
    graph = _get(item, "graph", dict)
    cells = {_get(cell, "cell_id", int): cell for cell in _get(graph, "cells", list) if isinstance(cell, dict)}
    values: dict[int, list[str]] = {}
    linked = set()
    for link in _get(graph, "links", list):
        source, target = _get(link, "source_cell_id", int), _get(link, "target_cell_id", int)
        if _get(link, "label", str) == "to_value" and target in cells:
            values.setdefault(source, []).append(_text(cells[target]))
            linked.add(target)
    return [
        ": ".join([_text(cell), *([", ".join(values[number])] if number in values else [])])
        for number, cell in cells.items()
        if number not in linked or number in values
    ]


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
    tree = _Tree(name)
    for block in blocks:
        kind, page, box = _get(block, "type", str), _get(block, "page_idx", int) + 1, _box(block.get("bbox"))
        page = page if 0 < page <= MAX_PAGE else None
        if kind in _MINERU_FURNITURE:
            tree.dropped[_MINERU_FURNITURE[kind]] += 1
            continue
        level = _get(block, "text_level", int)
        captions = [_lines(block, f"{prefix}_caption") for prefix in ("table", "image", "img", "chart", "code")]
        notes = [_lines(block, f"{prefix}_footnote") for prefix in ("table", "image", "img", "chart")]
        caption = " ".join(filter(None, captions))
        if kind == "table" and _text(block, "table_body").strip():
            tree.add_html(_captioned(_text(block, "table_body"), _with_tex(caption)), page, box)
        elif kind in ("image", "chart", "table"):
            tree.add_image(_text(block, "img_path") or None, caption, page, box)
            tree.add_text(_text(block, "content"), page, box)
        elif kind == "list" and _get(block, "list_items", list):
            items = [well_formed(item) for item in block["list_items"] if isinstance(item, str)]
            tree.add_html("".join(f"<p>{_with_tex(item)}</p>" for item in items), page, box)
        elif kind == "code":
            tree.add_text(caption, page)
            tree.add_text(_text(block, "code_body"), page, box, "pre")
        elif level > 0:
            tree.add_heading(level, _text(block))
        else:
            text = _text(block) or _text(block, "content")
            tree.add_html(f"<p>{_with_tex(text)}</p>" if text.strip() else "", page, box)
        for note in filter(None, notes):
            tree.add_html(f"<p>{_with_tex(note)}</p>", page)
    doc_id = _CONTENT_LIST.sub("", default_doc_id(name))
    return tree.document(doc_id, 1 + max((_get(block, "page_idx", int) for block in blocks), default=-1))


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


def _marker_blocks(root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of Marker's JSON page by page, or of its chunks."""
    return [block for block in _get(root, "children", list) or _get(root, "blocks", list) if isinstance(block, dict)]


_MARKER_FURNITURE = {
    "PageHeader": "page header",
    "PageFooter": "page footer",
    "TableOfContents": "contents page",
}


def parse_marker(name: str, root: Mapping[str, Any]) -> Document:
    """Parse Marker's JSON: blocks of HTML, which refer to the blocks inside them; or its chunks."""
    tree = _Tree(name)
    n_pages = 0
    for top in _marker_blocks(root):
        is_page = top.get("block_type") == "Page"
        for block in [child for child in _get(top, "children", list) if isinstance(child, dict)] if is_page else [top]:
            match = _PAGE_ID.match(_text(block, "id"))
            page = int(match[1]) + 1 if match else None
            page = page if page is None or page <= MAX_PAGE else None
            n_pages = max(n_pages, page or 0)
            _read_marker_block(tree, block, page)
    return tree.document(default_doc_id(name), n_pages)


def _read_marker_block(tree: _Tree, block: Mapping[str, Any], page: int | None) -> None:
    kind, source, box = _text(block, "block_type"), _marker_html(block), _box(block.get("bbox"))
    if kind in _MARKER_FURNITURE:
        tree.dropped[_MARKER_FURNITURE[kind]] += 1
    elif kind in ("TableGroup", "FigureGroup", "PictureGroup"):
        parts = [child for child in _get(block, "children", list) if isinstance(child, dict)]
        captions = [_TAG.sub("", _marker_html(child)) for child in parts if child.get("block_type") == "Caption"]
        for part in parts:
            if part.get("block_type") == "Table" and captions:
                table = _captioned(_marker_html(part), " ".join(captions.pop().split()))
                tree.add_html(table, page, _box(part.get("bbox")) or box)
            elif part.get("block_type") in ("Picture", "Figure") and captions:
                tree.add_html(f"<figcaption>{captions.pop()}</figcaption>", page, box)
            elif part.get("block_type") != "Caption":
                _read_marker_block(tree, part, page)
        for caption in captions:
            tree.add_html(f"<p>{caption}</p>", page, box)
    else:
        tree.add_html(source, page, box)


def _marker_html(block: Mapping[str, Any]) -> str:
    """A block's HTML with that of the blocks it refers to."""
    children = {child.get("id"): child for child in _get(block, "children", list) if isinstance(child, dict)}
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
