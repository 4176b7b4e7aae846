"""Tell what kind of file some bytes are, and refuse one that is not what its name says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from kohaku_ray.documents.text.content import CONTROLS, file_name
from kohaku_ray.errors import DataError

_HEAD_BYTES = 8192  # that are looked at, as filetype does
_MAX_JSON_BYTES = 2**24  # largest file that is parsed to see whether it is JSON
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_TEXTS = frozenset({".html", ".htm", ".md", ".markdown", ".txt", ".text", ".rst"})
_TABLES = frozenset({".csv", ".tsv"})
_OFFICE = frozenset({".docx", ".xlsx", ".pptx"})
_BINARY = _OFFICE | {".pdf", ".parquet"}
_JSON = frozenset({".json", ".jsonl", ".ndjson"})
_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*|<!--.{0,1000}?-->\s*)*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE | re.DOTALL
)
_HTML_TABLE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*<html>\s*<body>\s*<table\b", re.IGNORECASE
)  # as parsers of PDFs write one
_XML = re.compile(rb"\s*<\?xml\s")

OLD_SUFFIXES: Mapping[str, str] = {".doc": ".docx", ".xls": ".xlsx", ".ppt": ".pptx"}
"""Suffix of an old Office file, and of what it is to be saved as."""


def check_kind(name: str, suffix: str, data: bytes, also: str = "") -> None:
    """Raise DataError where a file is empty, or surely not what its suffix says; ``also``: a kind that is asked for."""
    if not data.strip():
        raise DataError(f"{name} has no text: the file is empty.")
    if suffix not in _TEXTS | _TABLES | _BINARY | _JSON:
        return
    kind = content_kind(data)
    if not kind and suffix in (_BINARY | _TABLES | _TEXTS & {".html", ".htm"}) and _is_json(data):
        kind = "JSON"
    if not kind and suffix == ".pdf" and _is_text(data):
        kind = "plain text"
    wanted = {".htm": "HTML"}.get(suffix, suffix[1:].upper())
    if kind in ("", wanted, also) or (kind == "XML" and suffix in _TEXTS) or (kind == "ZIP" and suffix in _OFFICE):
        return
    if kind == "HTML" and suffix in (".md", ".markdown") and _HTML_TABLE.match(data[:_HEAD_BYTES]):
        return
    if kind == "OLE":
        raise DataError(
            f"{name} is an old Office file, or one with a password: save a copy without one, as "
            f"{suffix if suffix in _OFFICE else '.docx, .xlsx or .pptx'}."
        )
    raise DataError(
        f"{name} is {kind}, not {wanted}: fetch the file again, or give {file_name(name)} the suffix of what it is."
    )


def content_kind(data: bytes) -> str:
    """What the first bytes say that a file is, such as ``HTML``, ``PDF`` or ``PNG``; empty where they do not say it."""
    head = data[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf")
    if b"%PDF-" in head[:1024]:
        return "PDF"
    if head.startswith(_OLD_OFFICE):
        return "OLE"
    if head.startswith(b"PAR1"):
        return "PARQUET"
    if _HTML.match(head):
        return "HTML"
    if _XML.match(head):
        return "XML"
    if _is_text(data) and not head.startswith((b"{\\rtf", b"%!PS")):  # a text may begin with BM, as bitmaps do
        return ""
    import filetype

    guess = filetype.guess(head)
    return guess.extension.upper() if guess is not None else ""


def _is_json(data: bytes) -> bool:
    if len(data) > _MAX_JSON_BYTES or data[:2048].lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        return isinstance(json.loads(data), dict | list)
    except (ValueError, RecursionError):
        return False


def _is_text(data: bytes) -> bool:
    """Whether the first bytes hold none that no text has."""
    head = data[:_HEAD_BYTES]
    return len(head.translate(None, CONTROLS)) == len(head)
