"""Find documents and parse each into sections, paragraphs and sentences.

A new format is one module with a function ``parse_X(name, data) -> Document``, which raises `DataError` where a file
cannot be read, and one line in `FORMATS`. Readers that a suffix cannot choose, and the configuration must, are in
`_READERS`. Only a news CSV and the files of `ROW_FORMATS` hold many documents.

Blocks that stand on most HTML files of a directory are what the pages of a site repeat: `without_repeated` drops them.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import Literal, TypeVar

from kohaku_ray.documents.bounded import UnfinishedError, in_time, late, out_of_memory, parse_in_child
from kohaku_ray.documents.content import file_name, valid_doc_id, well_formed
from kohaku_ray.documents.figures import (
    ImageSource,
    attach_images,
    has_sentences,
    images_of,
    map_named,
    names_images,
    no_image,
    no_text,
    with_mentions,
)
from kohaku_ray.documents.french import SentenceSplit
from kohaku_ray.documents.html import parse_html
from kohaku_ray.documents.kind import OLD_SUFFIXES, check_kind
from kohaku_ray.documents.markdown import parse_markdown
from kohaku_ray.documents.model import Document, Paragraph, Parsed
from kohaku_ray.documents.news import parse_news
from kohaku_ray.documents.novel import parse_novel
from kohaku_ray.documents.parser_output import parse_json
from kohaku_ray.documents.pdf import parse_pdf
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.documents.rows import HUB, ROW_FORMATS, parse_csv, parse_rows, suffix_of
from kohaku_ray.documents.sheets import parse_xlsx
from kohaku_ray.documents.slides import parse_pptx
from kohaku_ray.documents.text import parse_text
from kohaku_ray.documents.word import parse_docx
from kohaku_ray.errors import DataError

Parser = Callable[..., Document]

FORMATS: Mapping[str, Parser] = {
    ".json": parse_json,
    ".md": parse_markdown,
    ".markdown": parse_markdown,
    ".txt": parse_text,
    ".text": parse_text,
    ".pdf": parse_pdf,
    ".html": parse_html,
    ".htm": parse_html,
    ".csv": parse_csv,
    ".docx": parse_docx,
    ".pptx": parse_pptx,
    ".xlsx": parse_xlsx,
}
"""Parser of a file, by the suffix of its name in lower case."""

BINARY_FORMATS = frozenset({".pdf", ".docx", ".pptx", ".xlsx"})
"""Suffixes of `FORMATS` whose files are no text."""

Format = Literal["auto", "text", "novel", "news"]

_READERS: Mapping[Format, Mapping[str, Parser]] = {
    "auto": {},
    "text": dict.fromkeys((suffix for suffix in FORMATS if suffix not in BINARY_FORMATS), parse_text),
    "novel": {".txt": parse_novel, ".text": parse_novel},
    "news": {},
}
"""Parsers by format, which replace those of `FORMATS`."""

_WITH_IMAGES = {".json", ".md", ".markdown", ".pdf", ".html", ".htm"}  # formats whose parser takes ``images``
_SAYS_SOMETHING = re.compile(r"[^\W_]")
T = TypeVar("T")

CHILD_MIN_BYTES: Mapping[str, int] = {**dict.fromkeys(BINARY_FORMATS, 0), ".html": 2**18, ".htm": 2**18}
"""Formats that a C library reads, with the bytes above which a time limit needs a child process.

The pipe adds 5 % to a PDF of ten pages and 30 % to a long page of HTML; shorter ones take seconds at most.
"""


def parse_documents(
    name: str,
    data: bytes,
    timeout_s: float | None = None,
    file_format: Format = "auto",
    sentence_split: SentenceSplit = "punkt",
    images: ImageSource | None = None,
) -> Parsed:
    """Parse one file that may hold many documents: a news CSV, or one of `ROW_FORMATS`; any other holds one.

    See `parse_file`; the format ``news`` reads a ``.csv`` as articles, a paragraph per row.
    """
    is_news = file_format == "news" and suffix(name) == ".csv"
    if not is_news and suffix(name) not in ROW_FORMATS:
        if images is None:
            return Parsed((parse_file(name, data, timeout_s, file_format),))
        return Parsed((_with_images(name, data, timeout_s, file_format, images),))
    _check_not_empty(name, data)
    check_kind(name, suffix(name), data)
    read = partial(parse_news, name, data, sentence_split) if is_news else partial(parse_rows, name, data)
    return _in_time(lambda: _searchable(name, _guarded(name, read)), name, data, timeout_s)


def _searchable(name: str, parsed: Parsed) -> Parsed:
    """Leave out the documents without a sentence, as rejects."""
    if not (parsed.documents or parsed.rejects):
        raise DataError(f"{name} has no text: there is no row in it.")
    documents = list(map(without_noise, parsed.documents))
    silent = [document for document in documents if not has_sentences(document)]
    more = [(f"{name}: {document.doc_id}", "its paragraphs have no sentence to search") for document in silent]
    return Parsed(tuple(filter(has_sentences, documents)), (*parsed.rejects, *more))


def _with_images(name: str, data: bytes, timeout_s: float | None, file_format: Format, source: ImageSource) -> Document:
    """Parse one file and extract its images; where these take too long or crash, its text is kept without them."""
    try:
        document = parse_file(name, data, timeout_s, file_format, images=True)
    except UnfinishedError as error:
        try:
            document = parse_file(name, data, timeout_s, file_format)
        except DataError:  # it has no text: nothing is left without its images
            raise error from None
        return replace(document, image_rejects=(("all images", f"not extracted: {error}"),))
    if suffix(name) == ".pdf":
        return with_mentions(document)
    is_placeholder = suffix(name) == ".json"
    attach = partial(attach_images, document, name, read_bytes, source, is_placeholder)
    try:
        document = attach() if timeout_s is None or not _in_main_thread() else _in_time(attach, name, data, timeout_s)
    except UnfinishedError as error:
        document = replace(document, image_rejects=(("all images", f"not read: {error}"),))
    if not (has_sentences(document) or images_of(document)):
        raise no_image(name, document.image_rejects, document.images_left_out)
    return with_mentions(document)


def parse_file(
    name: str, data: bytes, timeout_s: float | None = None, file_format: Format = "auto", images: bool = False
) -> Document:
    """Parse one file that holds one document: with at least one searchable sentence, or, with ``images``, one image.

    Args:
        name: Its path or URI; the suffix chooses the parser, the stem is the default ``doc_id``.
        data: Its whole content.
        timeout_s: Time limit in seconds, above 0; None: no limit.
        file_format: ``text`` reads all but `BINARY_FORMATS` as plain text; ``novel`` reads ``.txt`` in chapters.
        images: Whether images are extracted, or kept with their address for ``attach_images``.

    Raises:
        DataError: The suffix is unknown, the content cannot be read, the id is not allowed, nothing is searchable, or
            it takes longer than ``timeout_s``.
    """
    ending = suffix(name)
    if ending in OLD_SUFFIXES:
        raise DataError(f"{name} is in an old Office format, which is not read: save it as {OLD_SUFFIXES[ending]}.")
    if ending not in FORMATS:
        raise DataError(
            f"{name}: unknown suffix {ending or '(none)'}, known: {known_suffixes()}: rename or convert the file."
        )
    _check_not_empty(name, data)
    check_kind(name, ending, data, "HTML" if file_format == "text" else "")
    asked = _READERS[file_format].get(ending)
    # only the main thread can be interrupted by a timer
    in_child = asked is None and (len(data) >= CHILD_MIN_BYTES.get(ending, len(data) + 1) or not _in_main_thread())
    if timeout_s is not None and in_child:
        return parse_in_child(name, data, timeout_s, images)
    reader = FORMATS[ending] if asked is None else asked
    if images and asked is None and ending in _WITH_IMAGES:
        reader = partial(reader, images=True)
    return _in_time(lambda: _parsed(reader, name, data, images), name, data, timeout_s)


MIN_REPETITIONS, REPEATED_SHARE = 50, 0.05
"""A sentence that occurs so often, and makes so large a share of its document's, is kept once."""


def without_noise(document: Document) -> Document:
    """Drop the sentences that say nothing: those without a letter or digit, and all but one of many equal ones."""
    paragraphs = [paragraph for section in document.sections for paragraph in section.paragraphs]
    sentences = [one.text[span.start : span.end] for one in paragraphs for span in one.sentences]
    least = max(MIN_REPETITIONS, REPEATED_SHARE * len(sentences))
    dropped = Counter(text for text in sentences if not (text[:1].isalnum() or _SAYS_SOMETHING.search(text)))
    repeated: dict[str, int] = {}
    if len(sentences) - len(set(sentences)) >= least - 1:
        repeated = {text: n for text, n in Counter(sentences).items() if n >= least and text not in dropped}
    if not dropped and not repeated:
        return document
    seen = set(dropped)

    def is_kept(text: str) -> bool:
        is_new = text not in seen
        if text in repeated:
            seen.add(text)
        return is_new

    def kept(paragraph: Paragraph) -> Paragraph:
        text = paragraph.text
        spans = tuple(span for span in paragraph.sentences if is_kept(text[span.start : span.end]))
        return paragraph if len(spans) == len(paragraph.sentences) else replace(paragraph, sentences=spans)

    odd = [f"{n - 1:,} repetitions of {text[:40]!r}, not indexed" for text, n in repeated.items()]
    if dropped:
        n, first = dropped.total(), next(iter(dropped))
        odd.append(f"{n:,} sentence{'s' * (n > 1)} without a letter or digit, such as {first[:20]!r}, not indexed")
    return replace(map_named(document, kept), odd=(*document.odd, *odd))


def _check_not_empty(name: str, data: bytes) -> None:
    if not data.strip():
        raise DataError(f"{name} has no text: the file is empty.")


def _in_time(read: Callable[[], T], name: str, data: bytes, timeout_s: float | None) -> T:
    """Call a reader written in pure Python; in the main thread only where a time is set."""
    if timeout_s is None:
        return read()
    if not _in_main_thread():  # the child has only the readers of `FORMATS`
        raise DataError(f"{name}: a time limit on this format needs the main thread: call it there, or set no limit.")
    return in_time(read, timeout_s, late(name, len(data), timeout_s))


def read_in_time(name: str, timeout_s: float) -> bytes:
    """Read a file; a local one under a time limit, where this is the main thread. See ``read_bytes``."""
    too_late = DataError(f"{name} is not read after {timeout_s:g} s: copy it to a local disk, or leave it out.")
    is_limited = _in_main_thread() and "://" not in name  # storage and hub have limits of their own
    return in_time(lambda: read_bytes(name), timeout_s, too_late) if is_limited else read_bytes(name)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _parsed(reader: Parser, name: str, data: bytes, images: bool) -> Document:
    document = without_noise(_guarded(name, lambda: reader(name, data)))
    doc_id = valid_doc_id(document.doc_id, name)
    document = replace(document, title=well_formed(document.title))
    if doc_id != document.doc_id:
        odd = f"the id {document.doc_id[:80]!r} is written {doc_id}"
        document = replace(document, doc_id=doc_id, odd=(*document.odd, odd))
    if not has_sentences(document) and not (images and names_images(document)):
        raise no_text(name, images)
    return document


def _guarded(name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except RecursionError:
        raise DataError(f"{name} is nested too deep to be read: flatten it.") from None
    except MemoryError:
        raise out_of_memory(name) from None
    except DataError:
        raise
    except Exception as error:  # a defect of ours or of a library: one bad file is one reject
        raise DataError(
            f"{name} cannot be parsed ({type(error).__name__}: {str(error)[:200]}): report it, and leave the file out."
        ) from error


def suffix(name: str) -> str:
    """Return a file's suffix with its point, in small letters."""
    return f".{suffix_of(name)}" if name.startswith(HUB) else PurePosixPath(file_name(name)).suffix.lower()


def known_suffixes() -> str:
    """List the suffixes of `FORMATS`."""
    return ", ".join(sorted(FORMATS))


MAX_PAGES = 12  # most pages of a directory that are compared
MIN_PAGES = 3  # fewest pages that repeat a block
MIN_SHARE = 0.5  # least share of the pages compared
_SUFFIXES = (".html", ".htm")


def without_repeated(document: Document, file: str, timeout_s: float) -> Document:
    """Drop the blocks that most pages of a local HTML file's directory repeat, but for the first page.

    A page that would have no block left stays whole.
    """
    if "://" in file or not file.lower().endswith(_SUFFIXES):
        return document
    folder = os.path.dirname(os.path.abspath(file))
    repeated = _repeated(folder, os.stat(folder).st_mtime_ns, timeout_s)
    gone = {text for text, first in repeated.items() if first != os.path.basename(file)}
    found = [paragraph.text for section in document.sections for paragraph in section.paragraphs]
    n_gone = sum(text in gone for text in found)
    if not n_gone or n_gone == len(found):
        return document
    kept = map_named(document, lambda paragraph: None if paragraph.text in gone else paragraph)
    sections = (new for old, new in zip(document.sections, kept.sections, strict=True) if new.paragraphs or old == new)
    odd = f"{n_gone:,} block{'s' * (n_gone > 1)} that other pages of its directory repeat, not indexed"
    return replace(kept, sections=tuple(sections), odd=(*document.odd, odd))


@lru_cache(maxsize=64)
def _repeated(folder: str, changed_ns: int, timeout_s: float) -> Mapping[str, str]:
    """Blocks that most pages of a directory repeat, each with the first of them; ``changed_ns`` renews the cache."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(_SUFFIXES) and name[0] != ".")
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    compared = names[:: -(-len(names) // MAX_PAGES) or 1]
    for name in compared if len(compared) >= MIN_PAGES else ():
        path = os.path.join(folder, name)
        try:
            page = parse_file(path, read_in_time(path, timeout_s), timeout_s)
        except DataError:
            continue
        texts = {paragraph.text for section in page.sections for paragraph in section.paragraphs if paragraph.text}
        counts.update(texts)
        first = dict.fromkeys(texts, name) | first
    return {text: first[text] for text, n in counts.items() if n >= max(MIN_PAGES, MIN_SHARE * len(compared))}
