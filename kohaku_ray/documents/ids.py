"""Rules for document ids."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath
from urllib.parse import unquote

from kohaku_ray.errors import DataError

MAX_ID_CHARS = 200
"""Longest ``doc_id``, in characters."""

_UNSAFE = {":": "a colon", "/": "a slash", "\\": "a backslash"}
_UNSAFE_CATEGORIES = {
    "Cc": "a control character",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
    "Cs": "a byte that is not Unicode",
}


def file_name(name: str) -> str:
    """The last part of a path or URI; a URI is decoded and loses its query."""
    if "://" in name:
        name = unquote(name.split("?")[0])
    return name.rstrip("/").rpartition("/")[2]


def default_doc_id(name: str) -> str:
    """The default id of a document: its file's name without the suffix."""
    return PurePosixPath(file_name(name)).stem


def check_doc_id(doc_id: str, name: str) -> str:
    """Reject an id that cannot be part of a node id (``doc:sec0:p2``) or a citation.

    Args:
        doc_id: The id a document would get.
        name: Its file, for the message.

    Returns:
        The id unchanged.

    Raises:
        DataError: The id is blank, longer than `MAX_ID_CHARS`, begins or ends with white space, or holds a colon,
            slash, backslash or control character.
    """
    fault = _fault(doc_id)
    if fault is not None:
        shown = doc_id if len(doc_id) <= MAX_ID_CHARS else doc_id[:40] + "…"
        raise DataError(
            f"{name}: doc_id {shown!r} {fault}: rename the file, or give the document an id of its own "
            "(document_id in JSON, id in the front matter of Markdown)."
        )
    return doc_id


def _fault(doc_id: str) -> str | None:
    """What is wrong with an id, or None."""
    if not doc_id.strip():
        return "is empty"
    if len(doc_id) > MAX_ID_CHARS:
        return f"has {len(doc_id)} characters, at most {MAX_ID_CHARS} are allowed"
    for char in doc_id:
        unsafe = _UNSAFE.get(char) or _UNSAFE_CATEGORIES.get(unicodedata.category(char))
        if unsafe:
            return f"holds {unsafe}"
    return "begins or ends with a space" if doc_id != doc_id.strip() else None
