"""Turn the bytes of an untrusted file into well-formed text, plain metadata and valid document ids."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize
from kohaku_ray.store.storage import is_uri
from kohaku_ray.values.read import is_blank

UNREADABLE_SHARE = 0.05  # largest share of characters without a meaning in a text that is not odd
UNREADABLE = re.compile("[\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff\x00-\x08\x0e-\x1f]")
"""Characters without a meaning: a font that does not say which letters its shapes are."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_PRINT = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SPACES = re.compile(r"\s+")
_LIGATURES = str.maketrans({"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"})
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode_text(name: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    r"""Decode a file's bytes by its byte order mark (UTF-8, UTF-16), else as UTF-8.

    Bytes that are no UTF-8 are read as Windows-1252, in which spreadsheets save in western Europe, where they are few
    among UTF-8 (as in WattBot's metadata.csv), or where the whole looks like text in it.

    Returns:
        The text, in which every line end is ``\n``, and what is odd about its bytes, if anything.

    Raises:
        DataError: The bytes hold a NUL or are text in neither encoding; the message gives the byte's offset.
    """
    mark, encoding = next(((m, e) for m, e in _BYTE_ORDER_MARKS if data.startswith(m)), (b"", "utf-8"))
    body = data[len(mark) :]
    odd: tuple[str, ...] = ()
    if encoding == "utf-8" and b"\0" in body:
        raise _not_text(name, len(mark) + body.index(b"\0"))
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        western = _decode_western(body) if encoding == "utf-8" else None
        if western is None:
            offset = len(mark) + error.start
            raise DataError(
                f"{name} is not valid {encoding.upper()}: byte 0x{data[offset]:02x} at offset {offset}: "
                "save it as UTF-8."
            ) from None
        text, n_stray = western
        odd = (f"{pluralize(n_stray, 'byte')} not in UTF-8: read as Windows-1252",)
    if "\0" in text:
        raise _not_text(name, len(mark) + len(text[: text.index("\0")].encode(encoding)))
    return even_line_ends(text), odd


_ASCII, _NO_LETTERS = bytes(range(128)), re.compile(rb"[^A-Za-z]+")
CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))
"""Bytes that no text has."""

_NOT_WESTERN = re.compile(
    # four accented letters in a row, as in Cyrillic; a sign or capital in a word, where another code page has a letter
    rb"[\xc0-\xff]{4}|[a-z\xe0-\xff][\x80-\x84\x86-\x91\x93-\x95\x98-\x9f\xa1-\xa9\xac-\xaf\xb1-\xb6\xb8\xb9\xbc-\xde]"
    rb"[a-z\xe0-\xff]"
)


def _decode_western(body: bytes) -> tuple[str, int] | None:
    """Decode what is no UTF-8 as Windows-1252, and count its bytes; None: it is something else."""
    n_ascii, as_utf8 = len(body) - len(body.translate(None, _ASCII)), body.decode("utf-8", "ignore")
    n_stray, n_letters = len(body) - len(as_utf8.encode()), len(as_utf8) - n_ascii
    is_western = 2 * (len(body) - n_ascii) <= len(_NO_LETTERS.sub(b"", body)) and not _NOT_WESTERN.search(body)
    if len(body.translate(None, CONTROLS)) < len(body) or not (is_western or n_stray <= n_letters):
        return None
    try:
        return body.decode("utf-8", "windows-1252"), n_stray
    except UnicodeDecodeError:  # Windows-1252 has no such byte
        return None


def _take_western(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("cp1252"), error.end


codecs.register_error("windows-1252", _take_western)


def even_line_ends(text: str) -> str:
    r"""Make every line end in ``\n``."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _not_text(name: str, offset: int) -> DataError:
    return DataError(
        f"{name} is not text: NUL byte at offset {offset}: give it the suffix of what it is, or remove it."
    )


def well_formed(text: str) -> str:
    """Replace lone surrogates, which JSON and YAML escapes can hold and no file can store."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def clean_print(text: str) -> str:
    """Spell out ligatures, remove control and formatting characters, turn every space into a plain one.

    Soft hyphens stay: at a line's end they mark a divided word.
    """
    return _SPACES.sub(" ", _NOT_PRINT.sub("", well_formed(text.translate(_LIGATURES))))


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON (``object_pairs_hook``), none of whose keys is there twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        doubled = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise DataError(f"the key {doubled[:40]!r} is there twice: rename or remove one")
    return values


def flat_metadata(values: Mapping[Any, Any]) -> dict[str, str]:
    """Write a document's metadata as text: lists of scalars joined by commas, nulls and nested values left out."""
    flat = {}
    for key, value in values.items():
        parts = value if isinstance(value, list) else [value]
        written = [
            json.dumps(part) if isinstance(part, bool | float) else well_formed(str(part)).strip()
            for part in parts
            if part is not None and not isinstance(part, list | dict)
        ]
        if any(written):
            flat[well_formed(str(key))] = ", ".join(part for part in written if part)
    return flat


MAX_ID_CHARS = 200  # longest ``doc_id``, in characters
ID_DIGEST_CHARS = 8  # hexadecimal digits at the end of an id that is not written as given


def file_name(name: str) -> str:
    """The last part of a path or URI; a URI is decoded and loses its query."""
    if is_uri(name):
        name = unquote(name.split("?")[0])
    return name.rstrip("/").rpartition("/")[2]


def default_doc_id(name: str) -> str:
    """The default id of a document: its file's name without the suffix, its letters composed (NFC)."""
    return unicodedata.normalize("NFC", PurePosixPath(file_name(name)).stem)


def valid_doc_id(doc_id: str, name: str) -> str:
    """Return an id that may be part of a node id (``doc:sec0:p2``) and of a citation (``[ref_id=doc]``).

    Letters, digits, ``.``, ``_``, ``-`` and single spaces between them are kept. Every run of other characters becomes
    a hyphen, and a digest of the whole id follows, so that two ids stay two. Accents, which macOS writes apart, are
    composed (NFC).

    Raises:
        DataError: The id is blank or longer than `MAX_ID_CHARS`.
    """
    doc_id = unicodedata.normalize("NFC", doc_id)
    fault = "is empty" if not doc_id.strip() else ""
    if len(doc_id) > MAX_ID_CHARS:
        fault = f"has {len(doc_id)} characters, at most {MAX_ID_CHARS} are allowed"
    if fault:
        shown = doc_id if len(doc_id) <= MAX_ID_CHARS else doc_id[:40] + "…"
        raise DataError(
            f"{name}: doc_id {shown!r} {fault}: rename the file, or give the document an id of its own "
            "(document_id in JSON, id in the front matter of Markdown)."
        )
    kept = "".join(char if char in "._- " or unicodedata.category(char)[0] in "LMN" else "\0" for char in doc_id)
    shown = re.sub("\0+| {2,}", "-", kept.strip(" \0"))
    if shown == doc_id and not is_blank(doc_id):  # a citation of a document called "nan" would be none
        return doc_id
    digest = hashlib.sha256(doc_id.encode("utf-8", "surrogatepass")).hexdigest()[:ID_DIGEST_CHARS]
    return f"{shown[: MAX_ID_CHARS - ID_DIGEST_CHARS - 1]}-{digest}".lstrip("-")
