"""Read what Docling writes as JSON, by its own model and its own HTML; importing that takes 0.9 s and brings pandas.

Pages count from 1; boxes are in points from the page's top left corner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape

from docling_core.transforms.serializer.html import HTMLDocSerializer, HTMLParams
from docling_core.types.doc import (
    ContentLayer,
    DocItem,
    DocItemLabel,
    DoclingDocument,
    FloatingItem,
    FormItem,
    FormulaItem,
    InlineGroup,
    KeyValueItem,
    ListGroup,
    NodeItem,
    PictureItem,
    SectionHeaderItem,
    TableItem,
    TextItem,
    TitleItem,
)
from pydantic import ValidationError

from kohaku_ray.documents.data.kohakurag import MAX_PAGE
from kohaku_ray.documents.data.sections import Sections
from kohaku_ray.documents.model import Box, Document
from kohaku_ray.documents.text.content import clean_print, default_doc_id, well_formed
from kohaku_ray.errors import DataError

_MARKER = re.compile(r"<li style=\"list-style-type: '(.*?) ';\"([^>]*)>")  # how Docling's HTML gives an item's own mark
_NUMBER = re.compile(r"\d{1,9}[.)]?")


def parse_docling(name: str, data: bytes) -> Document:
    """Parse a DoclingDocument of any version that the installed docling-core reads."""
    try:
        document = DoclingDocument.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
    except (IndexError, AttributeError, KeyError) as error:  # as Docling resolves references
        reason = f"an item refers to one that is not there ({error})"
    else:
        return _Reader(name, document).read()
    raise DataError(
        f"{name} is no DoclingDocument that the installed docling-core reads: {clean_print(reason)[:300]}: upgrade "
        "docling-core, or export the file again, or as Markdown."
    )


class _Reader:
    """Reads the items of a document's body, in their order."""

    def __init__(self, name: str, document: DoclingDocument) -> None:
        self._document, self._sections = document, Sections(name)
        params = HTMLParams(formula_to_mathml=False, allowed_meta_names=set())  # its notes are of models
        self._serializer = HTMLDocSerializer(doc=document, params=params)
        self._visited: set[str] = set()

    def read(self) -> Document:
        sections, document = self._sections, self._document
        titles = [item.text for item in document.texts if isinstance(item, TitleItem) and item.text.strip()]
        sections.title = " ".join(well_formed(titles[0]).split()) if titles else ""
        self._count_dropped()
        self._read_children(document.body)
        return sections.document(default_doc_id(sections.name), len(document.pages))

    def _count_dropped(self) -> None:
        document, dropped = self._document, self._sections.dropped
        for item in (*document.texts, *document.tables, *document.pictures):
            if item.label in (DocItemLabel.PAGE_HEADER, DocItemLabel.PAGE_FOOTER):
                dropped[item.label.replace("_", " ")] += 1
            elif item.content_layer != ContentLayer.BODY:
                dropped[f"{item.content_layer.value} item"] += 1
            elif item.label == DocItemLabel.DOCUMENT_INDEX:
                dropped["contents page"] += 1
        for picture in document.pictures:
            beside = {reference.cref for reference in (*picture.captions, *picture.footnotes)}
            if n_inside := len({child.cref for child in picture.children} - beside):
                dropped["text block inside a picture"] += n_inside

    def _read_children(self, owner: NodeItem) -> None:
        sections = self._sections
        for reference in owner.children:
            item = reference.resolve(self._document)
            if item.self_ref in self._visited or item.content_layer != ContentLayer.BODY:
                continue
            if isinstance(item, TitleItem | SectionHeaderItem):
                level = item.level + 1 if isinstance(item, SectionHeaderItem) else 1
                sections.add_heading(level, well_formed(item.text or self._text_below(item)))
                self._visited.add(item.self_ref)
                self._read_children(item)
            elif isinstance(item, FormulaItem):
                sections.add_text(f"$${item.text}$$" if item.text else item.orig, *self._place([item]))
            elif isinstance(item, PictureItem):
                self._read_picture(item)
            elif isinstance(item, TextItem | ListGroup | InlineGroup | TableItem | KeyValueItem | FormItem):
                if item.label != DocItemLabel.DOCUMENT_INDEX:
                    self._read_html(item)
            else:
                if item.name.startswith("sheet: "):
                    sections.add_heading(1, well_formed(item.name.removeprefix("sheet: ")))
                self._visited.add(item.self_ref)
                self._read_children(item)

    def _read_html(self, item: NodeItem) -> None:
        """Read an item with what is below it as Docling writes it in HTML, at the page of its first part."""
        part = self._serializer.serialize(item=item, visited=self._visited)
        if not part.text:
            return
        page, box = self._place(span.item for span in part.spans)
        self._sections.add_html(_numbered(well_formed(part.text)), page, box)
        if isinstance(item, FloatingItem):
            self._read_notes(item, page)

    def _read_picture(self, item: PictureItem) -> None:
        """Read a picture's caption, a model's description of it, and the values of a chart; not what is drawn in it."""
        sections, (page, box) = self._sections, self._place([item])
        caption = item.caption_text(self._document)
        description = item.meta.description.text if item.meta and item.meta.description else ""
        if caption.strip() or description.strip():
            sections.add_image(None, well_formed(caption.strip() or description), page, box)
        else:
            sections.dropped["uncaptioned picture"] += 1
        if caption.strip():
            sections.add_text(well_formed(description), page, box)
        if item.meta and item.meta.tabular_chart:
            chart = DoclingDocument(name=sections.name)
            table = chart.add_table(item.meta.tabular_chart.chart_data)
            sections.add_html(well_formed(table.export_to_html(chart)), page, box)
        self._read_notes(item, page)

    def _read_notes(self, item: FloatingItem, page: int | None) -> None:
        for note in item.footnotes:  # which Docling's HTML leaves out
            self._sections.add_text(well_formed(note.resolve(self._document).text), page)

    def _text_below(self, item: NodeItem) -> str:
        below = (node for node, _ in self._document.iterate_items(root=item) if isinstance(node, TextItem))
        return " ".join(node.text for node in below)

    def _place(self, items: Iterable[DocItem]) -> tuple[int | None, Box | None]:
        """The first page that items are on, and the box round them there, from the page's top left corner."""
        on_pages = [provenance for item in items for provenance in item.prov[:1]]
        if not on_pages:
            return None, None
        page = self._document.pages.get(on_pages[0].page_no)
        if page is None or not 0 < page.page_no <= MAX_PAGE:
            return None, None
        boxes = [
            provenance.bbox.to_top_left_origin(page.size.height).as_tuple()
            for provenance in on_pages
            if provenance.page_no == page.page_no
        ]
        left, top, right, bottom = zip(*boxes, strict=True)
        return page.page_no, (min(left), min(top), max(right), max(bottom))


def _numbered(source: str) -> str:
    """Give the items of lists their own numbers, or where one has another mark, all theirs as text."""
    marks = [unescape(mark) for mark, _ in _MARKER.findall(source)]
    if all(map(_NUMBER.fullmatch, marks)):
        return _MARKER.sub(lambda match: f'<li value="{match[1].rstrip(".)")}"{match[2]}>', source)
    source = source.replace("<ol>", "<ul>").replace("</ol>", "</ul>")
    return _MARKER.sub(lambda match: f"<li{match[2]}>{match[1] if any(map(str.isalnum, match[1])) else ''} ", source)
