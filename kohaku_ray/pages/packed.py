"""Parts of a page that stay compressed until a reader opens them."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

from markupsafe import Markup

CHUNK_CHARS = 400_000
"""Characters of HTML per chunk: a browser unpacks it in some milliseconds; longer ones would be hardly smaller."""

_LEVEL = 6
_BETWEEN = "\0"  # in no part: ``visible`` removes it from every text


@dataclass(frozen=True, slots=True)
class Part:
    """Where a part is.

    Attributes:
        chunk: Number of its chunk.
        at: Its place in the chunk.
    """

    chunk: int
    at: int


class Packed:
    """Collects parts of a page's HTML; ``page.js`` unpacks one when it is opened.

    A chunk is deflated and written in base64, so it is plain letters inside its ``<script type="text/plain">``: nothing
    in it can end the element, and no browser runs it.
    """

    def __init__(self) -> None:
        """Begin without parts."""
        self._chunks: list[str] = []
        self._parts: list[str] = []
        self._n_chars = 0
        self.n_bytes = 0
        """Bytes of the chunks that are finished."""

    def add(self, html: str) -> Part:
        """Add a part: HTML whose texts are escaped.

        Args:
            html: Without a NUL, which no text on a page has.
        """
        part = Part(len(self._chunks), len(self._parts))
        self._parts.append(html)
        self._n_chars += len(html)
        if self._n_chars >= CHUNK_CHARS:
            self._finish()
        return part

    def elements(self) -> Markup:
        """Write all chunks as elements of the page; they stand before its script."""
        if self._parts:
            self._finish()
        lines = (f'<script type="text/plain" id="chunk-{at}">{text}</script>\n' for at, text in enumerate(self._chunks))
        return Markup("".join(lines))  # noqa: S704 - base64

    def _finish(self) -> None:
        raw = _BETWEEN.join(self._parts).encode()
        self._chunks.append(base64.b64encode(zlib.compress(raw, _LEVEL)).decode())
        self.n_bytes += len(self._chunks[-1])
        self._parts, self._n_chars = [], 0


def unpack(text: str) -> list[str]:
    """Return the parts of a chunk, as the page's script does."""
    return zlib.decompress(base64.b64decode(text)).decode().split(_BETWEEN)
