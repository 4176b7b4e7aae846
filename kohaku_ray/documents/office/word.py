"""Read Word documents (.docx): mammoth writes them as HTML, which is read as any other."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from kohaku_ray.documents.markup.html import fragment_title, read_fragment
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.office.archive import FILE_ALONE, local, open_office, write_maths
from kohaku_ray.documents.text.content import default_doc_id
from kohaku_ray.documents.text.plain import finish
from kohaku_ray.records import pluralize

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_V = "{urn:schemas-microsoft-com:vml}"
_BODY = re.compile(r"word/(?:document\d*|footnotes|endnotes)\.xml")
_FURNITURE = re.compile(r"word/(?:header|footer)\d*\.xml")
_STYLES = """
p[style-name='Title'] => h1:fresh
p[style-name^='toc '] => !
p[style-name='TOC Heading'] => !
p[style-name='table of figures'] => !
"""
_CONTENTS = re.compile(r"toc .*|table of figures", re.IGNORECASE)
_BACK = re.compile(r' ?<a href="#(?:foot|end)note-ref-[^"]*">↑</a>')
_FILE_ALONE = re.compile(f'alt="{FILE_ALONE.pattern}"', re.IGNORECASE)
_NUMBERED = re.compile(r'<li><a id="item-number-(\d+)"></a>')
_FORMULA = re.compile("\ue000\\d+\ue001")
_LEFT_OUT = {"chart": "chart", "relIds": "diagram", "altChunk": "embedded file", "object": "embedded file"}


def parse_docx(name: str, data: bytes) -> Document:
    """Parse a Word document.

    Styles make sections. Lists keep their numbers; notes and text boxes are paragraphs. Left out, and named: deleted,
    struck and hidden text, tables of contents, headers, footers, comments, charts, diagrams, and images but for their
    alternative texts.
    """
    counts: Counter[str] = Counter()
    formulas: dict[str, str] = {}

    def convert(file: io.BytesIO) -> Any:
        from mammoth import convert_to_html, images

        image = images.img_element(lambda image: {"src": "data:,"})
        return convert_to_html(_prepare(file, counts, formulas), style_map=_STYLES, convert_image=image).value

    source = open_office(name, data, "mammoth", convert)
    counts["image"] = source.count("<img ")
    source = _NUMBERED.sub(r'<li value="\1">', source)
    source = _FORMULA.sub(lambda mark: formulas.get(mark[0], mark[0]), _FILE_ALONE.sub('alt=""', _BACK.sub("", source)))
    drafts = read_fragment(name, source)
    title = fragment_title(drafts) or default_doc_id(name)
    dropped = tuple(pluralize(n, noun) for noun, n in counts.items() if n)
    return Document(default_doc_id(name), title, finish(drafts, title), dropped=dropped)


def _prepare(file: io.BytesIO, counts: Counter[str], formulas: dict[str, str]) -> io.BytesIO:
    """Copy a file as mammoth reads it whole: without hidden runs, a mark for each formula, items with their numbers.

    ``counts`` takes what is left out, ``formulas`` what is put in the place of each mark.
    """
    from lxml import etree

    written = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(written, "w") as target:
        names = archive.namelist()
        styles, numbering = (
            etree.fromstring(archive.read(part)) if part in names else etree.Element("none")
            for part in ("word/styles.xml", "word/numbering.xml")
        )
        by_id = {style.get(f"{_W}styleId"): style for style in styles.iter(f"{_W}style")}
        number = _numbers(numbering, by_id)
        for part in names:
            content = archive.read(part)
            if _FURNITURE.fullmatch(part):
                counts["header or footer"] += b"<w:t>" in content or b"<w:t " in content
            elif part == "word/comments.xml":
                counts["comment"] += content.count(b"<w:comment ")
            elif part == "word/styles.xml":
                for style in styles.findall(f"{_W}style"):
                    if not {f"{_W}styleId", f"{_W}type"} <= {*style.keys()}:  # mammoth fails (POI's 60329.docx)
                        styles.remove(style)
                content = etree.tostring(styles)
            elif _BODY.fullmatch(part):
                root = etree.fromstring(content)
                _remove_hidden(root, by_id, counts)
                for paragraph in root.iter(f"{_W}p"):
                    style = by_id.get(_value(paragraph, "pPr", "pStyle"))
                    counts["contents line"] += _CONTENTS.fullmatch(_value(style, "name")) is not None
                    if place := number(paragraph):
                        mark = etree.Element(f"{_W}bookmarkStart")
                        mark.set(f"{_W}name", f"item-number-{place}")
                        paragraph.insert(1 if paragraph.find(f"{_W}pPr") is not None else 0, mark)
                for oval in root.iter(f"{_V}oval"):  # mammoth reads the text of no other shape
                    oval.tag = f"{_V}shape"
                _mark_formulas(root, formulas, etree)
                content = etree.tostring(root)
            target.writestr(part, content)
    return written


def _numbers(numbering: Any, styles: Mapping[str, Any]) -> Callable[[Any], int]:
    """Make what counts the items of a file's lists, which go on over other paragraphs; 0 for a paragraph that is none.

    Mammoth begins anew behind each of them: step 2 of LibreOffice's fdo79668.docx was step 1.
    """
    kinds = {each.get(f"{_W}numId"): _value(each, "abstractNumId") for each in numbering.iter(f"{_W}num")}
    starts = {
        (each.get(f"{_W}abstractNumId"), level.get(f"{_W}ilvl")): int(_value(level, "start") or 1)
        for each in numbering.iter(f"{_W}abstractNum")
        for level in each.iter(f"{_W}lvl")
        if _value(level, "numFmt") not in ("bullet", "none")
    }
    counts: dict[str, dict[str, int]] = defaultdict(dict)

    def number(paragraph: Any) -> int:
        style = styles.get(_value(paragraph, "pPr", "pStyle"))
        holder = paragraph if _value(paragraph, "pPr", "numPr", "numId") else style
        list_id, depth = (_value(holder, "pPr", "numPr", name) for name in ("numId", "ilvl"))
        depth = depth or "0"
        start, count = starts.get((kinds.get(list_id, ""), depth)), counts[list_id]
        if start is None:
            return 0
        count[depth] = count.get(depth, start - 1) + 1
        for deeper in [other for other in count if other > depth]:
            del count[deeper]
        return count[depth]

    return number


def _value(element: Any, *names: str) -> str:
    """The value of a property; empty where there is none."""
    found = element.find("/".join(f"{_W}{name}" for name in names)) if element is not None else None
    return found.get(f"{_W}val", "") if found is not None else ""


def _remove_hidden(root: Any, styles: Mapping[str, Any], counts: Counter[str]) -> None:
    """Take hidden runs out, which mammoth would show, and count what it leaves out."""
    for element in root.iter():
        if noun := _LEFT_OUT.get(local(element)):
            counts[noun] += 1
    for run in list(root.iter(f"{_W}r")):
        properties = run.find(f"{_W}rPr")
        if local(run.getparent()) in ("del", "moveFrom"):
            counts["deleted or struck run"] += 1
        elif properties is not None:
            counts["deleted or struck run"] += any(local(each) in ("strike", "dstrike") for each in properties)
            style = styles.get(_value(run, "rPr", "rStyle"))
            if _is_hidden(run, style) and "".join(run.itertext(f"{_W}t")).strip():
                run.getparent().remove(run)
                counts["hidden run"] += 1


def _is_hidden(run: Any, style: Any) -> bool:
    switches = (holder.find(f"{_W}rPr/{_W}vanish") for holder in (run, style) if holder is not None)
    switch = next((each for each in switches if each is not None), None)
    return switch is not None and switch.get(f"{_W}val", "1") not in ("0", "false", "off")


def _mark_formulas(root: Any, formulas: dict[str, str], etree: Any) -> None:
    """Put a mark for each formula, which mammoth would drop; one on a line of its own may stand beside paragraphs."""
    for maths in [element for element in root.iter() if local(element) == "oMath"]:
        run = etree.Element(f"{_W}r")
        mark = f"\ue000{len(formulas)}\ue001"
        formulas[mark] = write_maths(maths)
        etree.SubElement(run, f"{_W}t").text = mark
        run.tail = maths.tail
        maths.getparent().replace(maths, run)
    for line in [element for element in root.iter() if local(element) == "oMathPara"]:
        line.tag = f"{_W}{'customXml' if local(line.getparent()) == 'p' else 'p'}"
