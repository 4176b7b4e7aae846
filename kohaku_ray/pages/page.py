"""What all pages share: the templates, and parts that stay compressed until a reader opens them."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from kohaku_ray.pages.tables import as_html
from kohaku_ray.pages.text import cut, list_link, visible, write_number
from kohaku_ray.records import pluralize

MAX_BYTES = 28_000_000
"""A browser opens a page of this size in less than two seconds: see benchmarks/page.py."""

CHUNK_CHARS = 400_000
"""Characters of HTML per packed chunk: a browser unpacks it in some milliseconds; longer ones are hardly smaller."""

_TEMPLATES = Path(__file__).parent / "templates"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_BETWEEN = "\0"  # in no part: ``visible`` removes it from every text


def page_environment(n_chars: int = 200) -> jinja2.Environment:
    """Open the templates: every text is escaped, and invisible characters in it are shown.

    Pages state a content policy that runs the script of ``page.js`` by its digest and no other, loads nothing and sends
    nothing: a text that got past the escaping would still do nothing. The filter ``cut`` leaves ``n_chars`` characters.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda n: f"{n:,}"
    environment.filters["plural"] = pluralize
    environment.filters["cut"] = lambda text, n=n_chars: cut(text, n)
    environment.filters["table"] = as_html
    environment.filters["prose"] = _prose
    environment.filters["number"] = write_number
    environment.globals["list_link"] = list_link
    environment.globals["facts"] = _facts
    environment.globals["numbers"] = _numbers
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment.globals["script"] = Markup(script)  # noqa: S704 - ours
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment.globals["policy"] = f"{_POLICY}; script-src 'sha256-{digest}'"
    return environment


def _facts(row: Mapping[str, Any]) -> Markup:
    """Write what a step says of an item besides its text; no macro, as pages show it tens of thousands of times."""
    shown = (None if row["node_id"] else row["doc_id"], row["kind"], row["note"])
    parts = [f'<span class="number">{escape(visible(cut(fact, 80)))}</span> ' for fact in shown if fact]
    return Markup(f"{''.join(parts)}{_numbers(row['scores'])}\n")  # noqa: S704 - escaped


def _numbers(named: Mapping[str, float]) -> Markup:
    """Write named numbers."""
    written = (
        f'<span class="number"><span class="dim">{_label(name)}</span> {write_number(number)}</span> '
        for name, number in named.items()
    )
    return Markup("".join(written))  # noqa: S704 - escaped


@functools.lru_cache(maxsize=1024)
def _label(name: str) -> Markup:
    return escape(visible(cut(name, 40).replace("_", " ")))


def _prose(text: str) -> Markup:
    """Escape a sentence; what stands between backticks in it is code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(visible(text)))))  # noqa: S704 - escaped


class PackedPart(NamedTuple):
    """Where a packed part is: the number of its chunk, and its number in it."""

    chunk: int
    number: int


class Packed:
    """Collects parts of a page's HTML; ``page.js`` unpacks one when it is opened.

    A chunk is deflated and written in base64, so it is plain letters inside its ``<script type="text/plain">``: nothing
    in it can end the element, and no browser runs it. ``n_bytes`` counts the finished chunks.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._parts: list[str] = []
        self._n_chars = self.n_bytes = 0

    def add(self, html: str) -> PackedPart:
        """Add a part: HTML whose texts are escaped, without a NUL, which no text on a page has."""
        part = PackedPart(len(self._chunks), len(self._parts))
        self._parts.append(html)
        self._n_chars += len(html)
        if self._n_chars >= CHUNK_CHARS:
            self._finish()
        return part

    def n_bytes_so_far(self) -> int:
        """Count the bytes that all parts take so far, those of the unfinished chunk too."""
        return self.n_bytes + (_base64_bytes(_pack(self._parts)) if self._parts else 0)

    def elements(self) -> Iterator[Markup]:
        """Write each chunk as an element of the page; they stand before its script."""
        if self._parts:
            self._finish()
        for number, chunk in enumerate(self._chunks):
            text = base64.b64encode(chunk).decode()
            yield Markup(f'<script type="text/plain" id="chunk-{number}">{text}</script>\n')  # noqa: S704 - base64

    def _finish(self) -> None:
        self._chunks.append(_pack(self._parts))
        self.n_bytes += _base64_bytes(self._chunks[-1])
        self._parts, self._n_chars = [], 0


def _pack(parts: list[str]) -> bytes:
    return zlib.compress(_BETWEEN.join(parts).encode(), 6)


def _base64_bytes(chunk: bytes) -> int:
    return 4 * -(-len(chunk) // 3)  # in base64
