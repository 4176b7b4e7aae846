"""A format of plain text whose last file is not read until another file is there."""

from __future__ import annotations

import time
from pathlib import Path

from kohaku_ray.documents.formats import DocumentFormat
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.text.plain import parse_plain

WAIT = "wait for "
LONGEST_S = 300.0


def parse_held(doc_id: str, data: bytes) -> Document:
    """Parse plain text; one that begins with ``wait for PATH`` when that file is there."""
    first, _, rest = data.decode().partition("\n")
    if not first.startswith(WAIT):
        return parse_plain(doc_id, data)
    path, end = Path(first.removeprefix(WAIT)), time.monotonic() + LONGEST_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)
    return parse_plain(doc_id, rest.encode())


HELD = DocumentFormat((".txt",), parse_held)
