"""Read Word documents (.docx): they are written as HTML, which is read as any other.

The body's XML is walked, not the library's paragraphs: these leave out insertions, content controls and text boxes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from kohaku_ray.documents.markup.html import read_fragment
from kohaku_ray.documents.model import Document
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
from kohaku_ray.documents.text.plain import MAX_HEADING_CHARS, finish
from kohaku_ray.documents.text.raised import write_mark
from kohaku_ray.documents.text.sentences import words_of
from kohaku_ray.records import pluralize

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_WRAPPERS = words_of("sdt sdtContent customXml ins moveTo smartTag hyperlink fldSimple bdo dir")
_HEADING = re.compile(r"heading ([1-9])")
_CONTENTS = re.compile(r"toc \d|toc heading|table of figures")
_TABLE_CAPTION = re.compile(r"tab(?:le|elle|leau|la)?\b", re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")
_SYMBOLS = dict(zip("abgdeqlmpstfwDW\xb0\xb1\xb4\xa3\xb3\xb7\xa5\xbb", "αβγδεθλμπστφωΔΩ°±×≤≥·∞≈", strict=True))
"""Characters of the font Symbol, and what they show."""


def parse_docx(name: str, data: bytes) -> Document:
    """Parse a Word document.

    Styles and outline levels make sections; without any, short lines in bold do. Lists keep their numbers. A footnote
    is a paragraph below the one that refers to it, with its mark. Deleted and struck text, what is hidden or white on
    white, tables of contents, headers and footers are left out, and images but for their alternative texts.
    """
    file = open_office(name, data, "docx", "Document")
    reader = _Reader(file)
    reader.read_blocks(file.element.body)
    reader.end_block()
    title = reader.title or core_title(file) or default_doc_id(name)
    drafts = read_fragment(name, "".join(reader.written))
    return Document(default_doc_id(name), title, finish(drafts, title), dropped=tuple(reader.describe_dropped()))


class _Reader:
    """Writes a document's blocks as HTML."""

    def __init__(self, file: Any) -> None:
        self.written: list[str] = []
        self.title = ""
        from docx.oxml import parse_xml

        self._part, self._parse = file.part, parse_xml
        self._styles = {style.get(f"{_W}styleId"): style for style in file.styles.element.iter(f"{_W}style")}
        self._levels = _list_levels(file.part)
        self._counts: dict[str, dict[int, int]] = {}  # of every list, the last number of each level
        self._open: list[str] = []  # tags of the lists that are open
        self._caption = ""  # of a table that may follow
        self._notes: list[str] = []  # notes that the block being read refers to
        self._n_notes = self._depth = 0
        self._boxes: list[Any] = []  # text boxes, charts and pictures of the paragraph being read
        self._n_contents = self._n_deleted = self._n_hidden = self._n_images = 0
        self._note_elements = {
            kind: {
                note.get(f"{_W}id"): note
                for related in related_parts(file.part, f"{kind}s")
                for note in parse_xml(related.blob).iter(f"{_W}{kind}")
            }
            for kind in ("footnote", "endnote")
        }
        names = (self._style_name(paragraph) for paragraph in file.element.body.iter(f"{_W}p"))
        self._has_background = file.element.find(f"{_W}background") is not None
        self._has_headings = any(_HEADING.match(name) for name in names)

    def describe_dropped(self) -> list[str]:
        """Say what was left out."""
        parts = [part for kind in ("header", "footer") for part in related_parts(self._part, kind)]
        texts = dict.fromkeys(" ".join("".join(part.element.itertext(f"{_W}t")).split()) for part in parts)
        dropped = [f"header or footer {text[:40]!r}" for text in texts if text]
        counts = {
            "contents line": self._n_contents,
            "deleted or struck run": self._n_deleted,
            "hidden run": self._n_hidden,
        }
        return [*dropped, *(pluralize(n, noun) for noun, n in counts.items() if n), *describe_images(self._n_images)]

    def read_blocks(self, parent: Any) -> None:
        """Write the paragraphs and tables below an element."""
        for child in parent:
            kind = local(child)
            if kind == "p":
                self._read_paragraph(child)
            elif kind == "tbl":
                self._read_table(child)
            elif kind in _WRAPPERS:
                self.read_blocks(child)

    def end_block(self) -> None:
        """Close the lists that are open, and write a caption that no table followed."""
        while self._open:
            self.written.append(f"</{self._open.pop()}>")
        if self._caption:
            caption, self._caption = self._caption, ""
            self.written.append(f"<p>{caption}</p>")

    def _read_paragraph(self, paragraph: Any) -> None:
        style = self._style_name(paragraph)
        if _CONTENTS.match(style):
            self._n_contents += 1
            return
        outer_boxes, self._boxes = self._boxes, []
        source = self._inline(paragraph)
        boxes, self._boxes = self._boxes, outer_boxes
        text = clean_print(_TAG.sub("", source)).strip()
        if text:
            self._write_paragraph(paragraph, style, source, text)
        for box in boxes:
            kind = local(box)
            if kind == "txbxContent":
                self.read_blocks(box)
            elif kind == "chart":
                self.end_block()
                self.written.append(chart_table(self._parse(self._part.related_parts[box.get(f"{_R}id")].blob)))
            else:
                self._n_images += 1
                if alternative := alternative_text(box):
                    self.end_block()
                    self.written.append(f"<p>{escape(alternative)}</p>" if self._depth else image_html(alternative))
        self._end_notes()

    def _write_paragraph(self, paragraph: Any, style: str, source: str, text: str) -> None:
        level = self._heading_level(paragraph, style, text)
        if level and not self._depth:
            self.end_block()
            self.title = self.title or (text if style == "title" else "")
            self.written.append(f"<h{level}>{source}</h{level}>")
        elif style == "caption":
            last = self.written[-1] if self.written else ""
            if _TABLE_CAPTION.match(text) and last.startswith("<table>") and not last.startswith("<table><caption>"):
                self.written[-1] = f"<table><caption>{source}</caption>{last.removeprefix('<table>')}"
                return
            self.end_block()
            self._caption = source
        elif (item := self._list_item(paragraph)) is not None:
            depth, tag, number = item
            if not self._open:
                self.end_block()
            while len(self._open) > depth + 1 or (len(self._open) == depth + 1 and self._open[-1] != tag):
                self.written.append(f"</{self._open.pop()}>")
            while len(self._open) <= depth:
                self._open.append(tag)
                self.written.append(f'<{tag} start="{number}">')
            self.written.append(f"<li>{source}</li>")
        else:
            self.end_block()
            self.written.append(f"<p>{source}</p>")

    def _end_notes(self) -> None:
        if self._notes and not self._depth:
            self.end_block()
            self.written += self._notes
            self._notes = []

    def _properties(self, element: Any, kind: str = "p") -> list[Any]:
        """The properties of a paragraph or run, then those of its style and of the styles that this is based on."""
        sources = [element.find(f"{_W}{kind}Pr")]
        style_id, seen = _value(sources[0], f"{kind}Style"), set[str]()
        while style_id and style_id not in seen and style_id in self._styles:
            seen.add(style_id)
            style = self._styles[style_id]
            sources.append(style.find(f"{_W}{kind}Pr"))
            style_id = _value(style, "basedOn")
        return [properties for properties in sources if properties is not None]

    def _style_name(self, paragraph: Any) -> str:
        """The name of a paragraph's style, or of the heading or list of contents that its style is based on."""
        style_id, seen, first = _value(paragraph.find(f"{_W}pPr"), "pStyle"), set[str](), ""
        while style_id and style_id not in seen and style_id in self._styles:
            seen.add(style_id)
            name = _value(self._styles[style_id], "name").lower()
            if _HEADING.match(name) or _CONTENTS.match(name) or name in ("title", "caption"):
                return name
            first = first or name
            style_id = _value(self._styles[style_id], "basedOn")
        return first

    def _heading_level(self, paragraph: Any, style: str, text: str) -> int:
        if style == "title":
            return 1
        if match := _HEADING.match(style):
            return min(int(match[1]), 6)
        outline = next(
            (level for properties in self._properties(paragraph) if (level := _value(properties, "outlineLvl"))), "9"
        )
        if outline.isdigit() and int(outline) < 9:
            return min(int(outline) + 1, 6)
        is_line = not self._has_headings and len(text) <= MAX_HEADING_CHARS and text[-1] not in ".,;:!?"
        return 1 if is_line and _is_bold([paragraph]) else 0

    def _list_item(self, paragraph: Any) -> tuple[int, str, int] | None:
        """Depth, tag and number of a paragraph that is an item of a list."""
        numberings = [
            numbering for properties in self._properties(paragraph) for numbering in properties.findall(f"{_W}numPr")
        ]
        list_id = next((value for numbering in numberings if (value := _value(numbering, "numId"))), "0")
        if list_id not in self._levels:
            return None
        depth = next((int(value) for numbering in numberings if (value := _value(numbering, "ilvl")).isdigit()), 0)
        kind, start = self._levels[list_id].get(depth, ("bullet", 1))
        if kind == "none":
            return None
        counts = self._counts.setdefault(list_id, {})
        counts[depth] = counts.get(depth, start - 1) + 1
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        return min(depth, 8), "ul" if kind == "bullet" else "ol", counts[depth]

    def _read_table(self, table: Any) -> None:
        caption = "" if self._open else self._caption
        self._caption = "" if caption else self._caption
        self.end_block()
        rows = [
            row
            for row in outermost(table, ("tr",))
            if not any(local(element) == "del" for element in row.iterfind(f"{_W}trPr/*"))
        ]
        has_header = self._has_header(table)
        cells: list[list[tuple[int, int, str, str]]] = []  # first column, columns spanned, vertical merge, HTML
        for row in rows:
            column = int(_value(row.find(f"{_W}trPr"), "gridBefore") or 0)
            cells.append([])
            for cell in outermost(row, ("tc",)):
                properties = cell.find(f"{_W}tcPr")
                n_columns = max(int(_value(properties, "gridSpan") or 1), 1)
                merge = properties.find(f"{_W}vMerge") if properties is not None else None
                merged = "" if merge is None else merge.get(f"{_W}val", "continue")
                cells[-1].append((column, n_columns, merged, self._cell(cell)))
                column += n_columns
        written = []
        for i, row in enumerate(rows):
            is_name = row.find(f"{_W}trPr/{_W}tblHeader") is not None or (i == 0 and (has_header or _is_bold([row])))
            line = []
            for column, n_columns, merged, source in cells[i]:
                if merged == "continue" and i:
                    continue
                n_rows = 1
                while (
                    merged
                    and i + n_rows < len(cells)
                    and (column, "continue") in {(element[0], element[2]) for element in cells[i + n_rows]}
                ):
                    n_rows += 1
                line.append((source, n_columns, n_rows, is_name))
            gap = [("", cells[i][0][0], 1, is_name)] if cells[i] and cells[i][0][0] else []
            written.append([*gap, *line])
        self.written.append(html_table(written, caption))
        self._end_notes()

    def _has_header(self, table: Any) -> bool:
        """Whether the table's style sets its first row apart, and the table uses that."""
        properties = table.find(f"{_W}tblPr")
        look = properties.find(f"{_W}tblLook") if properties is not None else None
        if look is None or look.get(f"{_W}firstRow") not in ("1", "true"):
            return False
        style = self._styles.get(_value(properties, "tblStyle"))
        parts = style.iterfind(f"{_W}tblStylePr") if style is not None else ()
        return any(part.get(f"{_W}type") == "firstRow" for part in parts)

    def _cell(self, cell: Any) -> str:
        outside = self.written, self._open, self._caption
        self.written, self._open, self._caption = [], [], ""
        self._depth += 1
        self.read_blocks(cell)
        self.end_block()
        self._depth -= 1
        source = "".join(self.written)
        self.written, self._open, self._caption = outside
        return source

    def _inline(self, parent: Any) -> str:
        """The HTML of the runs below an element."""
        parts: list[str] = []
        for child in parent:
            kind = local(child)
            if kind == "r":
                parts.append(self._run(child, "".join(parts)))
            elif kind in _WRAPPERS:
                parts.append(self._inline(child))
            elif kind in ("oMath", "oMathPara"):
                parts.append(escape(write_maths(child)))
            elif kind in ("del", "moveFrom"):
                self._n_deleted += 1
        return "".join(parts)

    def _run(self, run: Any, before: str) -> str:
        properties = self._properties(run, "r")
        if _is_on(properties, "vanish") or self._is_white(run, properties):
            self._n_hidden += 1
            return ""
        if _is_on(properties, "strike") or _is_on(properties, "dstrike"):
            self._n_deleted += 1
            return ""
        parts = []
        for child in run:
            kind = local(child)
            if kind == "t":
                parts.append(escape(child.text or ""))
            elif kind in ("tab", "ptab"):
                parts.append(" ")
            elif kind in ("br", "cr"):
                parts.append(" " if child.get(f"{_W}type") else "<br>")
            elif kind == "noBreakHyphen":
                parts.append("-")
            elif kind == "sym":
                parts.append(_symbol(child))
            elif kind in ("footnoteReference", "endnoteReference"):
                # the mark of a note, which is kept for after the block
                note = self._note_elements[kind.removesuffix("Reference")].get(child.get(f"{_W}id"))
                if note is not None:
                    self._n_notes += 1
                    mark = f"[{self._n_notes}]"
                    text = " ".join(self._inline(paragraph) for paragraph in note.iter(f"{_W}p"))
                    self._notes.append(f"<p>{mark} {text}</p>")
                    parts.append(write_mark(before + "".join(parts), mark))
            elif kind in ("drawing", "pict", "object", "AlternateContent"):
                self._boxes += outermost(child, ("txbxContent", "chart", "blip", "imagedata"))
        source = "".join(parts)
        tag = next(filter(None, map(_script_tag, properties)), "")
        return f"<{tag}>{source}</{tag}>" if tag and source.strip() else source

    def _is_white(self, run: Any, properties: Sequence[Any]) -> bool:
        """Whether a run is white on a white page; a cell or text box may have a ground of another colour."""
        color = _first(properties, "color")
        if color is None or color.get(f"{_W}val", "").upper() != "FFFFFF" or self._has_background:
            return False
        outer = [run, *run.iterancestors()]
        if any(local(element) in ("tc", "txbxContent") for element in outer):
            return False
        paragraph = next(element for element in outer if local(element) == "p")
        grounds = [*properties, *self._properties(paragraph)]
        return _first(grounds, "shd") is None and _first(grounds, "highlight") is None


def _list_levels(part: Any) -> dict[str, dict[int, tuple[str, int]]]:
    """Of every list the kind and the first number of its levels."""
    levels_of_list: dict[str, dict[int, tuple[str, int]]] = {}
    for numbering in related_parts(part, "numbering"):
        abstract = {
            definition.get(f"{_W}abstractNumId"): definition
            for definition in numbering.element.iter(f"{_W}abstractNum")
        }
        for number in numbering.element.iter(f"{_W}num"):
            levels = abstract.get(_value(number, "abstractNumId"))
            levels_of_list[number.get(f"{_W}numId")] = {
                int(level.get(f"{_W}ilvl")): (_value(level, "numFmt") or "decimal", int(_value(level, "start") or 1))
                for level in (levels.iter(f"{_W}lvl") if levels is not None else ())
            }
    return levels_of_list


def _value(parent: Any, name: str) -> str:
    """The value of an element's property; empty where it has none."""
    child = parent.find(f"{_W}{name}") if parent is not None else None
    return "" if child is None else child.get(f"{_W}val", "")


def _script_tag(properties: Any) -> str:
    """``sup`` or ``sub`` of a run that is raised or lowered, by 1.5 points or more where a position says so.

    Empty where the properties say nothing of it.
    """
    position = _value(properties, "position")
    shift = int(position) if position.removeprefix("-").isdecimal() else 0
    tags = {"superscript": "sup", "subscript": "sub", "baseline": "span"}  # which ends the search
    return tags.get(_value(properties, "vertAlign")) or ("sup" if shift >= 3 else "sub" if shift <= -3 else "")


def _first(sources: Sequence[Any], name: str) -> Any:
    """The property of a name in the first place that has it."""
    return next((found for source in sources if (found := source.find(f"{_W}{name}")) is not None), None)


def _is_on(sources: Sequence[Any], name: str) -> bool:
    switch = _first(sources, name)
    return switch is not None and switch.get(f"{_W}val", "1") not in ("0", "false", "off")


def _is_bold(parents: list[Any]) -> bool:
    """Whether all runs that show something are bold."""
    runs = [run for parent in parents for run in parent.iter(f"{_W}r") if "".join(run.itertext(f"{_W}t")).strip()]
    return bool(runs) and all(_is_on(run.findall(f"{_W}rPr"), "b") for run in runs)


def _symbol(element: Any) -> str:
    try:
        code = int(element.get(f"{_W}char", ""), 16)
    except ValueError:
        return ""
    if code < 0xE000:
        return escape(chr(code))
    return _SYMBOLS.get(chr(code & 0xFF), "") if element.get(f"{_W}font") == "Symbol" else ""
