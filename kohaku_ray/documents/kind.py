"""Tell what kind of file some bytes are, and refuse one that is not what its name says."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping

from kohaku_ray.documents.content import file_name
from kohaku_ray.errors import DataError

_HEAD_BYTES = 2048
_MAX_JSON_BYTES = 2**24  # largest file that is parsed to see whether it is JSON
_ZIP, _OLE = "a ZIP archive", "an old Office file"
_MAGIC = (
    (b"PK\x03\x04", _ZIP),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!", "a RAR archive"),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _OLE),
    (b"{\\rtf", "RTF"),
    (b"%!PS", "PostScript"),
    (b"PAR1", "Parquet"),
    (b"SQLite format 3", "an SQLite database"),
)
_OFFICE = (("word/", "a Word document"), ("xl/", "an Excel workbook"), ("ppt/", "a PowerPoint presentation"))
_STREAMS = (
    ("EncryptedPackage", "an Office file with a password"),
    ("WordDocument", "an old Word document"),
    ("Workbook", "an old Excel workbook"),
    ("Book", "an old Excel workbook"),
    ("PowerPoint Document", "an old PowerPoint presentation"),
)
"""A stream of a file of kind `_OLE`, and what the file is."""

OLD_SUFFIXES: Mapping[str, str] = {".doc": ".docx", ".xls": ".xlsx", ".ppt": ".pptx"}
"""Suffix of an old Office file, and of what it is to be saved as."""

_WAYS_OUT = {
    "an Office file with a password": "save a copy without one",
    "an old Word document": "save it as .docx",
    "an old Excel workbook": "save it as .xlsx",
    "an old PowerPoint presentation": "save it as .pptx",
}
_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*|<!--.{0,1000}?-->\s*)*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE | re.DOTALL
)
_HTML_TABLE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*<html>\s*<body>\s*<table\b", re.IGNORECASE
)  # as parsers of PDFs write one
_XML = re.compile(rb"\s*<\?xml\s")

_NAMES: Mapping[str, str] = {
    ".pdf": "a PDF",
    ".html": "HTML",
    ".htm": "HTML",
    ".md": "Markdown",
    ".markdown": "Markdown",
    ".txt": "plain text",
    ".text": "plain text",
    ".json": "JSON",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".csv": "CSV",
    ".tsv": "CSV",
    ".parquet": "Parquet",
    ".docx": "a Word document",
    ".xlsx": "an Excel workbook",
    ".pptx": "a PowerPoint presentation",
}
"""What a file with a suffix should be."""

_MAY_BE_XML = frozenset({".html", ".htm", ".md", ".markdown", ".txt", ".text"})
_NEVER_JSON = frozenset({".pdf", ".html", ".htm", ".csv", ".tsv", ".parquet", ".docx", ".xlsx", ".pptx"})


def check_kind(name: str, suffix: str, data: bytes, also: str = "") -> None:
    """Raise DataError where a file is surely not what its suffix says; ``also`` is a kind that is asked for."""
    if suffix not in _NAMES:
        return
    kind = content_kind(data)
    if not kind and suffix in _NEVER_JSON and _is_json(data):
        kind = "JSON"
    if not kind and suffix == ".pdf" and _is_text(data):
        kind = "plain text"
    if kind in ("", _NAMES[suffix], also) or (kind == "XML" and suffix in _MAY_BE_XML):
        return
    if kind == "HTML" and suffix in (".md", ".markdown") and _HTML_TABLE.match(data[:_HEAD_BYTES]):
        return
    way_out = f"fetch the file again, or give {file_name(name)} the suffix of what it is"
    raise DataError(f"{name} is {kind}, not {_NAMES[suffix]}: {_WAYS_OUT.get(kind, way_out)}.")


def content_kind(data: bytes) -> str:
    """What the first bytes say that a file is, such as ``HTML`` or ``a PDF``; empty where they do not say it."""
    head = data[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf")
    if b"%PDF-" in head[:1024]:
        return "a PDF"
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return _office_kind(data, kind) or kind
    if _HTML.match(head):
        return "HTML"
    return "XML" if _XML.match(head) else ""


def _office_kind(data: bytes, kind: str) -> str | None:
    """What the parts of an archive, or the streams of an old Office file, say that it is."""
    if kind == _OLE:
        return next((what for stream, what in _STREAMS if stream.encode("utf-16-le") in data), None)
    if kind != _ZIP:
        return None
    try:
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    except (zipfile.BadZipFile, ValueError, OSError):
        return next((what for folder, what in _OFFICE if folder.encode() in data), None)
    return next((what for folder, what in _OFFICE if any(name.startswith(folder) for name in names)), None)


def _is_json(data: bytes) -> bool:
    if len(data) > _MAX_JSON_BYTES or data[:_HEAD_BYTES].lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        return isinstance(json.loads(data), dict | list)
    except (ValueError, RecursionError):
        return False


def _is_text(data: bytes) -> bool:
    """Whether the first bytes are text in UTF-8."""
    head = data[:_HEAD_BYTES]
    try:
        text = head.decode("utf-8", "strict" if len(head) == len(data) else "ignore")
    except UnicodeDecodeError:
        return False
    return "\0" not in text and sum(char.isprintable() or char.isspace() for char in text) > 0.97 * len(text)
