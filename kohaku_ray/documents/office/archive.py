"""Open Office files within bounds, and read what all their kinds have: formulas and charts.

Word, PowerPoint and Excel are each written as HTML and read as that is: lists and tables have one writer.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib import import_module
from typing import Any

from kohaku_ray.documents.bounded import out_of_memory
from kohaku_ray.errors import DataError

MAX_UNPACKED_BYTES = 2**30  # most bytes of all parts of an Office file, unpacked
FILE_ALONE = re.compile(r"[^\"\n]*\.(?:png|jpe?g|gif|bmp|tiff?|emf|wmf|svg|webp)", re.IGNORECASE)
"""An alternative text that only repeats the picture's file."""

_HEAD_BYTES = 2048  # in which a part declares its document type
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
_TRANSITIONAL = rb"http://schemas.openxmlformats.org/\1/2006/"
_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"


def open_office(name: str, data: bytes, package: str, opener: str | Callable[..., Any], **options: Any) -> Any:
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
        open_file = getattr(library, opener) if isinstance(opener, str) else opener
        return open_file(io.BytesIO(_check_parts(name, data)), **options)
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


_MATHML = {
    "f": "mfrac",
    "sSup": "msup",
    "sSub": "msub",
    "sSubSup": "msubsup",
    "m": "mtable",
    "eqArr": "mtable",
    "mr": "mtr",
}


def write_maths(element: Any) -> str:
    """Write a formula of Office's maths as MathML."""
    return f"<math>{_mathml(element)}</math>"


def _mathml(element: Any) -> str:
    kind = local(element)
    if kind == "t":
        return f"<mtext>{escape(element.text or '')}</mtext>"
    if kind.endswith("Pr") or kind in ("del", "moveFrom"):
        return ""
    parts = [(local(child), _mathml(child)) for child in element]
    inside, of = "".join(part for _, part in parts), dict(parts)
    if kind == "f" and _property(element, "type", "bar") == "noBar":
        return f"{of.get('num')}<mtext> choose </mtext>{of.get('den')}"
    if kind == "nary":
        sign = _property(element, "chr", "∫")
        return f"<msubsup><mo>{escape(sign)}</mo>{of.get('sub')}{of.get('sup')}</msubsup>{of.get('e')}"
    if kind == "rad":
        has_degree = "mtext" in of.get("deg", "")
        return f"<mroot>{of.get('e')}{of['deg']}</mroot>" if has_degree else f"<msqrt>{inside}</msqrt>"
    if kind == "d":
        opened, closed = _property(element, "begChr", "("), _property(element, "endChr", ")")
        return f'<mfenced open="{escape(opened)}" close="{escape(closed)}">{inside}</mfenced>'
    tag = _MATHML.get(kind, "mrow")
    return f"<{tag}>{inside}</{tag}>"


def _property(element: Any, name: str, default: str) -> str:
    """The value of a property of a formula's sign, such as the bracket that opens."""
    values = (
        value for child in element.iterfind(f"{{*}}{local(element)}Pr/{{*}}{name}") for value in child.attrib.values()
    )
    return next(values, default)


def outermost(element: Any, kinds: Sequence[str]) -> Iterator[Any]:
    """Yield the elements of some names below one, none inside another, and of two alternatives only the first."""
    for child in element:
        kind = local(child)
        if kind in kinds:
            yield child
        elif kind and kind != "Fallback":
            yield from outermost(child, kinds)
