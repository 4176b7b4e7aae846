"""Read PowerPoint presentations (.pptx): a section per slide, written as HTML, which is read as any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from kohaku_ray.documents.markup.html import read_fragment
from kohaku_ray.documents.model import Document, Section
from kohaku_ray.documents.office.archive import (
    FILE_ALONE,
    chart_table,
    html_table,
    local,
    open_office,
    outermost,
    write_maths,
)
from kohaku_ray.documents.text.content import clean_print, default_doc_id
from kohaku_ray.records import pluralize

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_FURNITURE = ("sldNum", "dt", "ftr", "hdr")  # types of placeholders: number, date, footer, header
_BODIES = ("body", "obj", None)  # types of placeholders whose paragraphs have bullets
_GENERIC = re.compile(r"(?:powerpoint )?(?:presentation|untitled)?\d*", re.IGNORECASE)


def parse_pptx(name: str, data: bytes) -> Document:
    """Parse a presentation: texts from top to bottom, lists, tables, the values of charts, and the speaker's notes.

    A paragraph's page is its slide. Hidden slides and shapes, slide numbers, dates, footers, and images but for their
    alternative texts, are left out.
    """
    file = open_office(name, data, "pptx", "Presentation")
    sections, odd, hidden = [], [], []
    n_images = 0
    for number, slide in enumerate(file.slides, 1):
        if slide.element.get("show") in ("0", "false"):
            hidden.append(f"slide {number}: hidden")
            continue
        title = slide.shapes.title
        title = title if title is not None and title.has_text_frame else None  # a picture (POI's 2411-Performance_Up)
        heading = clean_print(title.text_frame.text).strip() if title is not None else ""
        if n_hidden := sum(map(_is_hidden, slide.shapes)):
            hidden.append(f"slide {number}: {pluralize(n_hidden, 'hidden shape')}")
        source = "".join(_shapes([each for each in slide.shapes if title is None or each.shape_id != title.shape_id]))
        n_pictures = sum(1 for _ in slide.element.iter("{*}pic"))
        n_images += n_pictures
        if not source and heading:
            source = f"<p>{escape(heading)}</p>"
        if not source:
            odd.append(f"slide {number}: {'no text, but a picture' if n_pictures else 'blank'}")
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            source += _paragraphs(slide.notes_slide.notes_text_frame._txBody, has_bullets=False)
        drafts = read_fragment(name, source)
        paragraphs = tuple(replace(paragraph, page=number) for draft in drafts for paragraph in draft.paragraphs)
        if paragraphs:
            sections.append(Section(heading or f"Slide {number}", paragraphs, number))
    given = clean_print(str(file.core_properties.title or "")).strip()
    first = sections[0].title if sections and sections[0].title != "Slide 1" else ""
    return Document(
        default_doc_id(name),
        ("" if _GENERIC.fullmatch(given) else given) or first or default_doc_id(name),
        tuple(sections),
        odd=tuple(odd),
        dropped=(*hidden, *([pluralize(n_images, "image")] if n_images else [])),
        n_pages=len(file.slides),
    )


def _shapes(shapes: Sequence[Any]) -> Iterator[str]:
    """Yield the HTML of shapes from top to bottom, then from left to right."""
    for shape in sorted(shapes, key=lambda drawn: (drawn.top or 0, drawn.left or 0)):
        holder = next(outermost(shape.element, ("ph",)), None)
        kind = holder.get("type") if holder is not None else ""
        if kind in _FURNITURE or _is_hidden(shape):
            continue
        if local(shape.element) == "grpSp":
            yield from _shapes(list(shape.shapes))
        elif local(shape.element) == "pic":
            text = clean_print(shape.element.nvPicPr.cNvPr.get("descr") or "").strip()
            if text and not FILE_ALONE.fullmatch(text):
                yield f'<img src="data:," alt="{escape(text)}">'  # its pixels are not read
        elif shape.has_text_frame:
            yield _paragraphs(shape.text_frame._txBody, holder is not None and kind in _BODIES)
        elif getattr(shape, "has_table", False):
            yield _table(shape.table)
        elif getattr(shape, "has_chart", False):
            yield chart_table(shape.chart._chartSpace)
        else:
            yield from _diagram(shape)


def _diagram(shape: Any) -> Iterator[str]:
    """Yield the texts of a diagram (SmartArt), which are in a part of their own."""
    from pptx.oxml import parse_xml

    for element in outermost(shape.element, ("relIds",)):
        for part in map(shape.part.related_part, element.attrib.values()):
            if str(part.content_type).endswith("diagramData+xml"):
                texts = map(_inline, outermost(parse_xml(part.blob), ("p",)))
                yield from (f"<p>{text}</p>" for text in texts if text.strip())


def _is_hidden(shape: Any) -> bool:
    """Whether a shape is switched off in the selection pane."""
    return next((part.get("hidden") in ("1", "true") for part in outermost(shape.element, ("cNvPr",))), False)


def _paragraphs(body: Any, has_bullets: bool) -> str:
    """Write the paragraphs of a text frame; ``has_bullets``: a paragraph that does not say otherwise has one."""
    sources = [(paragraph, _inline(paragraph)) for paragraph in body.iterfind(f"{_A}p")]
    sources = [(paragraph, source) for paragraph, source in sources if source.strip()]
    written: list[str] = []
    ends: list[str] = []  # of the open lists
    for paragraph, source in sources:
        properties = paragraph.find(f"{_A}pPr")
        marks = {local(child) for child in properties} if properties is not None else set()
        level = int(properties.get("lvl", 0)) if properties is not None else 0
        is_item = bool(marks & {"buChar", "buAutoNum", "buBlip"}) or (
            has_bullets and len(sources) > 1 and "buNone" not in marks
        )
        depth, tag = level + 1 if is_item else 0, "ol" if "buAutoNum" in marks else "ul"
        while len(ends) > depth or (depth and len(ends) == depth and ends[-1] != f"</{tag}>"):
            written.append(ends.pop())
        while len(ends) < depth:
            written.append(f"<{tag}>")
            ends.append(f"</{tag}>")
        written.append(f"<li>{source}</li>" if is_item else f"<p>{source}</p>")
    return "".join([*written, *reversed(ends)])


def _inline(paragraph: Any) -> str:
    parts = []
    for child in paragraph:
        kind = local(child)
        if kind == "br":
            parts.append("<br>")
        elif kind in ("r", "fld") and child.get("type") != "slidenum":
            properties = child.find(f"{_A}rPr")
            text = escape(child.findtext(f"{_A}t") or "")
            if properties is not None and properties.get("strike", "noStrike") != "noStrike":
                continue
            raised = float((properties.get("baseline", "0") if properties is not None else "0").rstrip("%") or 0)
            tag = "sup" if raised > 0 else "sub"
            parts.append(f"<{tag}>{text}</{tag}>" if raised and text.strip() else text)
        elif kind in ("AlternateContent", "m"):
            parts += [write_maths(maths) for maths in outermost(child, ("oMath",))]
    return "".join(parts)


def _table(table: Any) -> str:
    rows = []
    for i, row in enumerate(table.rows):
        is_name = i == 0 and bool(table.first_row)
        rows.append(
            [
                (
                    "<br>".join(map(_inline, cell.text_frame._txBody.iterfind(f"{_A}p"))),
                    cell.span_width if cell.is_merge_origin else 1,
                    cell.span_height if cell.is_merge_origin else 1,
                    is_name,
                )
                for cell in row.cells
                if not cell.is_spanned
            ]
        )
    return html_table(rows)
