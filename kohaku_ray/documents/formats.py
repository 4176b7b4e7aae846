"""Which parser reads a file: that of its suffix, or that of the format which the configuration names.

A suffix is one line in `FORMATS`. A format of a system, or of your own, is a `DocumentFormat` found by name (see
``kohaku_ray.extensions``): it replaces the parsers of its suffixes, and may add suffixes that nothing else reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

from kohaku_ray.documents.data.rows import HUB, parse_csv, suffix_of
from kohaku_ray.documents.model import Document, Parsed
from kohaku_ray.documents.text.content import file_name
from kohaku_ray.documents.text.plain import parse_plain, parse_text
from kohaku_ray.extensions import find_registered

Parser = Callable[..., Document]


@dataclass(frozen=True, slots=True)
class OnDemand:
    """A parser that is imported when a file is read: every actor imports `FORMATS`, all parsers take half a second."""

    module: str
    name: str

    def load(self) -> Parser:
        """Import it."""
        parser: Parser = getattr(import_module(f"kohaku_ray.documents.{self.module}"), self.name)
        return parser

    def __call__(self, *arguments: Any, **options: Any) -> Document:
        """Import it and call it."""
        return self.load()(*arguments, **options)


_MARKDOWN, _HTML = OnDemand("markup.markdown", "parse_markdown"), OnDemand("markup.html", "parse_html")

FORMATS: Mapping[str, Parser] = {
    ".json": OnDemand("data.kohakurag", "parse_kohakurag"),
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".txt": parse_text,
    ".text": parse_text,
    ".rst": OnDemand("markup.restructured", "parse_restructured"),
    ".pdf": OnDemand("pdf.document", "parse_pdf"),
    ".html": _HTML,
    ".htm": _HTML,
    ".csv": parse_csv,
    ".tsv": parse_csv,
    ".docx": OnDemand("office.word", "parse_docx"),
    ".pptx": OnDemand("office.slides", "parse_pptx"),
    ".xlsx": OnDemand("office.sheets", "parse_xlsx"),
}
"""Parser of a file, by the suffix of its name in lower case."""

BINARY_FORMATS = frozenset({".pdf", ".docx", ".pptx", ".xlsx"})
"""Suffixes of `FORMATS` whose files are no text."""


@dataclass(frozen=True, slots=True)
class DocumentFormat:
    """How files of some suffixes are read where ``documents.format`` names it; all others are read by their suffix.

    Attributes:
        suffixes: Suffixes with their point, in lower case. Directories are searched for them, too.
        parse: ``(doc_id, data) -> Document``, or ``Parsed`` of a file that holds many documents; ``doc_id`` is the id
            of a file's one document, the same on every machine. `DataError` where a file cannot be read: it becomes a
            reject with that reason, in which an id at the start becomes the file's name. Its time must be linear in the
            file's size.
        digest: Digests what makes a document: of two files with equal digests, one is a reject. None: their ids alone
            are compared.
    """

    suffixes: tuple[str, ...] = ()
    parse: Callable[..., Document | Parsed] = parse_plain
    digest: Callable[[Document], str] | None = None


AUTO = DocumentFormat()
"""Every file by its suffix."""

TEXT = DocumentFormat(tuple(suffix for suffix in FORMATS if suffix not in BINARY_FORMATS))
"""Every file that is no binary one as plain text."""


@functools.cache
def find_format(name: str) -> DocumentFormat:
    """Load a format: ``auto``, ``text``, one of a system or an installed package, or your own as ``module:NAME``.

    Raises:
        ConfigError: There is no such format.
    """
    return find_registered("formats", name, DocumentFormat)


def suffix(name: str) -> str:
    """Return a file's suffix with its point, in small letters."""
    return f".{suffix_of(name)}" if name.startswith(HUB) else PurePosixPath(file_name(name)).suffix.lower()


def known_suffixes(document_format: DocumentFormat = AUTO) -> str:
    """List the suffixes that are read, those of `FORMATS` and the format's own."""
    return ", ".join(sorted({*FORMATS, *document_format.suffixes}))
