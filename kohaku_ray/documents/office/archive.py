"""Open Office files within bounds, and read what all their kinds have: formulas and charts.

Word, PowerPoint and Excel are each written as HTML and read as that is: lists and tables have one writer.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from html import escape
from importlib import import_module
from itertools import islice
from typing import Any

from kohaku_ray.documents.bounded import out_of_memory
from kohaku_ray.documents.markup.formulas import end_number
from kohaku_ray.documents.text.content import clean_print
from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize

MAX_UNPACKED_BYTES = 2**30  # most bytes of all parts of an Office file, unpacked
_GENERIC = re.compile(r"(?:powerpoint |word )?(?:presentation|document|untitled)?\d*", re.IGNORECASE)
_FILE_NAME = re.compile(r"\S[^\n]*\.(?:png|jpe?g|gif|bmp|tiff?|emf|wmf|svg|webp)", re.IGNORECASE)
_OPERAND = re.compile(r"[-−]?[\w.,]*")
_HEAD_BYTES = 2048  # in which a part declares its document type
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
_TRANSITIONAL = rb"http://schemas.openxmlformats.org/\1/2006/"
_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"


def open_office(name: str, data: bytes, package: str, opener: str, **options: Any) -> Any:
    """Open an Office file, also one in strict Open XML, by a library of the extra ``office``.

    Raises:
        DataError: The library is missing, the file is damaged, it unpacks to more than `MAX_UNPACKED_BYTES`, or one of
            its parts declares entities.
    """
    try:
        library = import_module(package)
    except ImportError:
        raise DataError(f"{name} needs the package {package}: pip install 'kohaku-ray[office]'.") from None
    try:
        return getattr(library, opener)(io.BytesIO(_check_parts(name, data)), **options)
    except MemoryError:
        pass  # what is raised here would keep the memory that is full
    except (DataError, RecursionError):
        raise
    except Exception as error:  # the libraries raise anything on a broken file
        raise DataError(
            f"{name} is no Office file, or damaged or truncated after {len(data):,} bytes "
            f"({type(error).__name__}: {str(error)[:120]}): fetch or export it again."
        ) from None
    raise out_of_memory(name)


def _check_parts(name: str, data: bytes) -> bytes:
    """Return an archive whose parts are bounded, and name elements as Office does where it saves no strict Open XML."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        n_bytes = sum(part.file_size for part in archive.infolist())
        if n_bytes > MAX_UNPACKED_BYTES:
            raise DataError(
                f"{name} unpacks from {len(data):,} to {n_bytes:,} bytes, at most {MAX_UNPACKED_BYTES:,} are allowed: "
                "split it or remove its media, or leave it out."
            )
        names = [part for part in archive.namelist() if part.endswith((".xml", ".rels"))]
        for part in names:
            with archive.open(part) as file:
                if b"<!DOCTYPE" in file.read(_HEAD_BYTES):
                    raise DataError(
                        f"{name}: its part {part} declares a document type, whose entities no Office file may have "
                        "(their text would be lost): open and save it in an Office program."
                    )
        if "_rels/.rels" not in names or not _STRICT.search(archive.read("_rels/.rels")):
            return data
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as written:
            for part in archive.namelist():
                content = archive.read(part)
                written.writestr(part, _STRICT.sub(_TRANSITIONAL, content) if part in names else content)
        return file.getvalue()


def core_title(file: Any) -> str:
    """The title in a file's properties; empty where there is none or a program wrote it."""
    title = clean_print(str(file.core_properties.title or "")).strip()
    return "" if _GENERIC.fullmatch(title) else title


def related_parts(part: Any, ending: str) -> list[Any]:
    """The parts that a part is related to, by the last word of the relation's type."""
    relations = [relation for relation in part.rels.values() if not relation.is_external]
    return [relation.target_part for relation in relations if relation.reltype.endswith(f"/{ending}")]


def local(element: Any) -> str:
    """The name of an XML element without its namespace; empty for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def html_table(rows: Sequence[Sequence[tuple[str, int, int, bool]]], caption: str = "") -> str:
    """Write a table of cells: their HTML, columns and rows spanned, and whether each names others."""
    parts = ["<table>", f"<caption>{caption}</caption>" if caption else ""]
    for row in rows:
        parts.append("<tr>")
        for source, n_columns, n_rows, is_name in row:
            tag = "th" if is_name else "td"
            spans = f' colspan="{n_columns}"' * (n_columns > 1) + f' rowspan="{n_rows}"' * (n_rows > 1)
            parts.append(f"<{tag}{spans}>{source}</{tag}>")
        parts.append("</tr>")
    return "".join([*parts, "</table>"])


def chart_table(chart: Any) -> str:
    """Write the values that a chart's XML holds as a table: a row per category, a column per series."""
    title = " ".join(
        part.text or "" for node in chart.iter(f"{_CHART}title") for part in node.iter() if local(part) == "t"
    )
    names: list[str] = []
    columns: list[dict[int, str]] = []
    labels: dict[int, str] = {}
    for series in chart.iter(f"{_CHART}ser"):
        names.append(" ".join(_points(series, "tx").values()))
        labels |= _points(series, "cat") or _points(series, "xVal")
        columns.append(_points(series, "val") or _points(series, "yVal"))
    positions = sorted(set(labels).union(*columns))
    if not positions:
        return f"<p>{escape(title)}</p>" if title.strip() else ""
    header = [("", 1, 1, True), *((escape(name), 1, 1, True) for name in names)]
    body = [
        [
            (escape(labels.get(position, "")), 1, 1, False),
            *((escape(column.get(position, "")), 1, 1, False) for column in columns),
        ]
        for position in positions
    ]
    return html_table([header, *body], escape(title.strip()))


def _points(series: Any, kind: str) -> dict[int, str]:
    """The texts or numbers of a series by their place, without the noise of binary fractions."""
    node = series.find(f"{_CHART}{kind}")
    points: dict[int, str] = {}
    for point in node.iter(f"{_CHART}pt") if node is not None else ():
        value = point.findtext(f"{_CHART}v") or ""
        points[int(point.get("idx", 0))] = plain_number(value) if local(point.getparent()) == "numCache" else value
    return points


def plain_number(value: str | float) -> str:
    """Write a number with the 15 digits that Office shows at most: 0.30000000000000004 is 0.3."""
    try:
        return str(value) if isinstance(value, int) else format(float(value), ".15g")
    except ValueError:
        return str(value)


def describe_images(n_images: int) -> list[str]:
    """Say that a file's images were left out; their alternative texts may have been read."""
    return [pluralize(n_images, "image")] if n_images else []


def alternative_text(picture: Any) -> str:
    """The alternative text of a picture, or of the drawing that it is part of; empty where it is a file's name."""
    for element in (picture, *picture.iterancestors()):
        if local(element) in ("r", "spTree"):
            break
        # the text is an attribute of a shape, of a drawing's docPr, or of a picture's nvPicPr/cNvPr
        holders = [element, *(holder for part in islice(element, 8) for holder in (part, *part[:1]))]
        for text in (holder.get("alt" if holder is element else "descr") for holder in holders):
            if text and text.strip():
                return "" if _FILE_NAME.fullmatch(text.strip()) else clean_print(text).strip()
    return ""


def image_html(text: str) -> str:
    """Write an image that has an alternative text; its pixels are not read."""
    return f'<img src="data:," alt="{escape(text)}">'


def write_maths(element: Any) -> str:
    """Write a formula of Office's maths as text: ``1.3 × 10^9``, ``a/b``, ``√(x)``."""
    kind = local(element)
    if kind == "r":
        return "".join(part.text or "" for part in element if local(part) == "t")
    if kind.endswith("Pr") or kind in ("del", "moveFrom"):
        return ""
    parts = {local(child): child for child in element if local(child)}

    def text(name: str) -> str:
        return write_maths(parts[name]) if name in parts else ""

    if kind == "f" and _property(parts.get("fPr"), "type", "bar") == "noBar":
        return f"{text('num')} choose {text('den')}"
    if kind == "f":
        return f"{_operand(text('num'))}/{_operand(text('den'))}"
    if kind in ("sSup", "sSub", "sSubSup"):
        raised = f"^{_operand(text('sup'))}" if "sup" in parts else ""
        return f"{text('e')}{text('sub')}{raised}"
    if kind == "rad":
        degree = text("deg")
        return f"√{f'[{degree}]' if degree else ''}({text('e')})"
    if kind == "nary":
        sign = _property(parts.get("naryPr"), "chr", "∫")
        bounds = "".join(
            f"{mark}{_operand(bound)}" for name, mark in (("sub", "_"), ("sup", "^")) if (bound := text(name))
        )
        return f"{sign}{bounds} {text('e')}"
    if kind == "d":
        properties = parts.get("dPr")
        inside = ", ".join(write_maths(child) for child in element if local(child) == "e")
        return f"{_property(properties, 'begChr', '(')}{inside}{_property(properties, 'endChr', ')')}"
    joint = " " if kind in ("func", "mr", "m", "eqArr") else ""
    pieces: list[str] = []
    for child in element:
        if local(child) == "f" and not joint:
            end_number(pieces)
        pieces.append(write_maths(child))
    return joint.join(filter(None, pieces))


def _operand(text: str) -> str:
    return text if _OPERAND.fullmatch(text) else f"({text})"


def _property(properties: Any, name: str, default: str) -> str:
    """The value of a property of a formula's sign, such as the bracket that opens."""
    for child in properties if properties is not None else ():
        if local(child) == name:
            return next((value for key, value in child.attrib.items() if key.endswith("}val")), "")
    return default


def outermost(element: Any, kinds: Sequence[str]) -> Iterator[Any]:
    """Yield the elements of some names below one, none inside another, and of two alternatives only the first."""
    for child in element:
        kind = local(child)
        if kind in kinds:
            yield child
        elif kind and kind != "Fallback":
            yield from outermost(child, kinds)
