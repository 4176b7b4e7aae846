"""Read PowerPoint presentations (.pptx): a section per slide, written as HTML, which is read as any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from kohaku_ray.documents.markup.html import read_fragment
from kohaku_ray.documents.model import Document, Section
from kohaku_ray.documents.office.archive import (
    alternative_text,
    chart_table,
    core_title,
    describe_images,
    html_table,
    image_html,
    local,
    open_office,
    outermost,
    related_parts,
    write_maths,
)
from kohaku_ray.documents.text.content import clean_print, default_doc_id
from kohaku_ray.records import pluralize

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_SEEN_BY = {"ln", "highlight", "effectLst", "effectDag"}
"""What shows a run of whatever colour: an outline, a marker, a shadow."""
_FURNITURE = ("sldNum", "dt", "ftr", "hdr")  # types of placeholders: number, date, footer, header
_BODIES = ("body", "obj", None)  # types of placeholders whose paragraphs have bullets


def parse_pptx(name: str, data: bytes) -> Document:
    """Parse a presentation: texts from top to bottom, lists, tables, the values of charts, and the speaker's notes.

    A paragraph's page is its slide. Hidden slides and shapes, text in white on a white slide, slide numbers, dates,
    footers, and images but for their alternative texts, are left out.
    """
    file = open_office(name, data, "pptx", "Presentation")
    sections, odd, hidden = [], [], []
    n_slides, n_images = len(file.slides), 0
    for number, slide in enumerate(file.slides, 1):
        if slide.element.get("show") in ("0", "false"):
            hidden.append(f"slide {number}: hidden")
            continue
        if n_white := _remove_white_runs(slide):
            hidden.append(f"slide {number}: {pluralize(n_white, 'hidden run')}")
        title = slide.shapes.title
        heading = clean_print(title.text_frame.text).strip() if title is not None else ""
        if n_hidden := sum(map(_is_hidden, slide.shapes)):
            hidden.append(f"slide {number}: {pluralize(n_hidden, 'hidden shape')}")
        shapes = [shape for shape in slide.shapes if title is None or shape.shape_id != title.shape_id]
        source = "".join(_shapes(shapes))
        n_pictures = sum(local(blip) == "blip" for blip in outermost(slide.element, ("blip", "buBlip")))
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
    first = sections[0].title if sections and sections[0].title != "Slide 1" else ""
    return Document(
        default_doc_id(name),
        core_title(file) or first or default_doc_id(name),
        tuple(sections),
        odd=tuple(odd),
        dropped=(*hidden, *describe_images(n_images)),
        n_pages=n_slides,
    )


def _shapes(shapes: Sequence[Any]) -> Iterator[str]:
    """Yield the HTML of shapes from top to bottom, then from left to right."""
    from pptx.oxml import parse_xml

    for shape in sorted(shapes, key=lambda drawn: (drawn.top or 0, drawn.left or 0)):
        holder = next(outermost(shape.element, ("ph",)), None)
        kind = holder.get("type") if holder is not None else ""
        if kind in _FURNITURE or _is_hidden(shape):
            continue
        if local(shape.element) == "grpSp":
            yield from _shapes(list(shape.shapes))
        elif local(shape.element) == "pic":
            if text := alternative_text(shape.element):
                yield image_html(text)
        elif shape.has_text_frame:
            yield _paragraphs(shape.text_frame._txBody, holder is not None and kind in _BODIES)
        elif getattr(shape, "has_table", False):
            yield _table(shape.table)
        elif getattr(shape, "has_chart", False):
            yield chart_table(shape.chart._chartSpace)
        elif local(shape.element) == "graphicFrame":
            # the texts of a diagram (SmartArt) are in a part of their own
            ids = {value for element in outermost(shape.element, ("relIds",)) for value in element.attrib.values()}
            related = [shape.part.related_part(i) for i in ids]
            for part in related_parts(shape.part, "diagramData"):
                for paragraph in outermost(parse_xml(part.blob), ("p",)) if part in related else ():
                    if source := _inline(paragraph):
                        yield f"<p>{source}</p>"


def _remove_white_runs(slide: Any) -> int:
    """Remove the runs that are white on a white slide, where nothing else is painted; returns how many there were.

    As in HTML, any other ground on the slide, its layout or its master may lie below the text: then all of it is kept.
    """
    white = [
        run
        for properties in slide.element.iter(f"{_A}rPr")
        if _is_white(properties.find(f"{_A}solidFill")) and not _SEEN_BY & {local(child) for child in properties}
        if local(run := properties.getparent()) in ("r", "fld") and (run.findtext(f"{_A}t") or "").strip()
    ]
    if not white or not _is_white_slide(slide):
        return 0
    for run in white:
        run.getparent().remove(run)
    return len(white)


def _is_white_slide(slide: Any) -> bool:
    """Whether a slide's background is white, and no shape, table or picture is painted on it."""
    elements = [slide.element, slide.slide_layout.element, slide.slide_layout.slide_master.element]
    trees = [element.cSld.spTree for element in elements]
    shapes = [properties for tree in trees for properties in outermost(tree, ("spPr", "grpSpPr"))]
    is_painted = (
        any(True for tree in trees for _ in outermost(tree, ("pic", "graphicFrame")))
        or any(reference.get("idx") != "0" for tree in trees for reference in outermost(tree, ("fillRef",)))
        or any(local(fill).endswith("Fill") and local(fill) != "noFill" for shape in shapes for fill in shape)
    )
    return not is_painted and _has_white_background(elements, slide.slide_layout.slide_master.part)


def _has_white_background(elements: Sequence[Any], master_part: Any) -> bool:
    """Whether the first background of slide, layout and master is white; where none has one it is."""
    from pptx.oxml import parse_xml

    ground = next((found for each in elements if (found := each.cSld.find(f"{_P}bg")) is not None), None)
    if ground is None:
        return True
    paint = next(outermost(ground, ("bgRef", "solidFill")), None)
    if paint is None or not len(paint) or paint[0].get("val") not in ("bg1", "lt1"):
        return _is_white(paint)
    # The theme's colours under the master's names; a slide that has names of its own is taken as seen.
    colors = next(outermost(elements[-1], ("clrMap",)))
    themes = [parse_xml(part.blob) for part in related_parts(master_part, "theme")]
    values = {value for theme in themes for color in outermost(theme, ("lt1",)) for value in color[0].attrib.values()}
    is_renamed = any(local(each) == "overrideClrMapping" for element in elements for each in element.iter())
    is_plain = paint.get("idx", "1001") == "1001" and not len(paint[0])  # the theme's first fill, in the plain colour
    return is_plain and colors.get("bg1") == "lt1" and "FFFFFF" in values and not is_renamed


def _is_white(paint: Any) -> bool:
    return paint is not None and len(paint) == 1 and not len(paint[0]) and paint[0].get("val", "").upper() == "FFFFFF"


def _is_hidden(shape: Any) -> bool:
    """Whether a shape is switched off in the selection pane."""
    return next((part.get("hidden") in ("1", "true") for part in outermost(shape.element, ("cNvPr",))), False)


def _paragraphs(body: Any, has_bullets: bool) -> str:
    """Write the paragraphs of a text frame; ``has_bullets``: a paragraph that does not say otherwise has one."""
    sources = [(paragraph, _inline(paragraph)) for paragraph in body.iterfind(f"{_A}p")]
    sources = [(paragraph, source) for paragraph, source in sources if source.strip()]
    written, depth, tag = [], 0, "ul"
    for paragraph, source in sources:
        properties = paragraph.find(f"{_A}pPr")
        marks = {local(child) for child in properties} if properties is not None else set()
        level = int(properties.get("lvl", 0)) if properties is not None else 0
        is_item = bool(marks & {"buChar", "buAutoNum", "buBlip"}) or (
            has_bullets and len(sources) > 1 and "buNone" not in marks
        )
        wanted = level + 1 if is_item else 0
        kind = "ol" if "buAutoNum" in marks else "ul"
        while depth > wanted or (depth and depth == wanted == 1 and kind != tag):
            depth -= 1
            written.append(f"</{tag if not depth else 'ul'}>")
        while depth < wanted:
            tag = kind if not depth else tag
            written.append(f"<{kind if not depth else 'ul'}>")
            depth += 1
        written.append(f"<li>{source}</li>" if is_item else f"<p>{source}</p>")
    return "".join([*written, "</ul>" * max(depth - 1, 0), f"</{tag}>" if depth else ""])


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
            baseline = properties.get("baseline", "0") if properties is not None else "0"
            raised = float(baseline.rstrip("%") or 0)
            tag = "sup" if raised > 0 else "sub"
            parts.append(f"<{tag}>{text}</{tag}>" if raised and text.strip() else text)
        elif kind == "AlternateContent" or kind == "m":
            parts += [escape(write_maths(maths)) for maths in outermost(child, ("oMath",))]
    return "".join(parts)


def _table(table: Any) -> str:
    rows = []
    for i, row in enumerate(table.rows):
        rows.append(
            [
                (
                    "<br>".join(map(_inline, cell.text_frame._txBody.iterfind(f"{_A}p"))),
                    cell.span_width if cell.is_merge_origin else 1,
                    cell.span_height if cell.is_merge_origin else 1,
                    i == 0 and bool(table.first_row),
                )
                for cell in row.cells
                if not cell.is_spanned
            ]
        )
    return html_table(rows)
