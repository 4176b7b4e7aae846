"""The text of an HTML page by its charset."""

from __future__ import annotations

import codecs
import re

from kohaku_ray.documents.content import decode_text
from kohaku_ray.errors import DataError

_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)


def decode_html(name: str, data: bytes) -> str:
    """Decode a page by its byte order mark, by its declared charset or as UTF-8.

    Raises:
        DataError: The charset is unknown, or the bytes are not text in it.
    """
    declared = _CHARSET.search(data[:4096])
    is_marked = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if declared is None or is_marked:
        return decode_text(name, data)
    charset = declared[1].decode("ascii", "replace")
    try:
        # browsers read declared Latin-1 as Windows-1252, and as UTF-8 a declared UTF-16 whose tags are ASCII
        codec = codecs.lookup({"iso-8859-1": "cp1252", "latin1": "cp1252"}.get(charset.lower(), charset))
    except LookupError:
        raise DataError(f"{name} says its charset is {charset!r}, which is unknown: save it as UTF-8.") from None
    if codec.name.startswith(("utf", "ascii")) or not _is_text_codec(codec):
        return decode_text(name, data)
    if b"\0" in data:
        return decode_text(name, data)  # names the byte
    return data.decode(codec.name, "replace").replace("\r\n", "\n").replace("\r", "\n")


def _is_text_codec(codec: codecs.CodecInfo) -> bool:
    """Whether it decodes bytes to text: Python also has codecs called hex and zip."""
    return bool(getattr(codec, "_is_text_encoding", True))
