"""Parse a file into sections, paragraphs and sentences, whatever it holds, under a time limit.

A new suffix is one module with a function ``parse_X(name, data) -> Document``, which raises `DataError` where a file
cannot be read, and one line in `FORMATS`. The files of `ROW_FORMATS`, and those that a `DocumentFormat` reads so, hold
many documents.

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
from typing import TypeVar

from kohaku_ray.documents.bounded import UnfinishedError, in_time, late, out_of_memory, parse_in_child
from kohaku_ray.documents.data.rows import ROW_FORMATS, parse_rows
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
from kohaku_ray.documents.formats import (
    AUTO,
    BINARY_FORMATS,
    FORMATS,
    TEXT,
    DocumentFormat,
    OnDemand,
    known_suffixes,
    suffix,
)
from kohaku_ray.documents.kind import OLD_SUFFIXES, check_kind
from kohaku_ray.documents.model import Document, Paragraph, Parsed
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.documents.text.content import default_doc_id, valid_doc_id, well_formed
from kohaku_ray.documents.text.plain import divide_long, with_headings
from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize
from kohaku_ray.store.storage import is_uri

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
    document_format: DocumentFormat = AUTO,
    images: ImageSource | None = None,
    default_id: str | None = None,
) -> Parsed:
    """Parse one file: into many documents where it is of `ROW_FORMATS` or the format reads it so, else into one.

    See `parse_file`; ``default_id`` is what a format is given as the document's id in place of the file's name without
    its suffix.
    """
    ending = suffix(name)
    read: Callable[[], object]
    if ending in document_format.suffixes:
        doc_id = valid_doc_id(default_doc_id(name) if default_id is None else default_id, name)
        read = partial(_read_by_format, document_format, name, doc_id, data)
    elif ending in ROW_FORMATS:
        read = partial(parse_rows, name, data)
    elif images is None:
        return Parsed((parse_file(name, data, timeout_s),))
    else:
        return Parsed((_with_images(name, data, timeout_s, images),))
    check_kind(name, ending, data, "HTML" if document_format is TEXT else "")

    def parse() -> Parsed:
        parsed: object = _guarded(name, read)
        if isinstance(parsed, Parsed):
            if not (parsed.documents or parsed.rejects):
                raise DataError(f"{name} has no text: there is no row in it.")
            documents = [without_noise(with_headings(_well_named(name, document))) for document in parsed.documents]
            silent = [document for document in documents if not has_sentences(document)]
            more = [(f"{name}: {document.doc_id}", "its paragraphs have no sentence to search") for document in silent]
            return Parsed(tuple(filter(has_sentences, documents)), (*parsed.rejects, *more))
        if not isinstance(parsed, Document):
            kind = type(parsed).__name__
            raise DataError(f"{name}: its format returned {kind}, expected Document or Parsed: correct its parse.")
        return Parsed((_checked(name, parsed, images is not None),))

    return _in_time(parse, name, data, timeout_s)


def _read_by_format(document_format: DocumentFormat, name: str, doc_id: str, data: bytes) -> object:
    """Call a format, which knows a file by its document's id alone, and name the file where it names that."""

    def with_name(text: str) -> str:
        return f"{name}{text[len(doc_id) :]}" if text.startswith(doc_id) else text

    try:
        parsed = document_format.parse(doc_id, data)
    except DataError as error:
        raise DataError(with_name(str(error))) from error
    if isinstance(parsed, Parsed):
        return replace(parsed, rejects=tuple((with_name(where), reason) for where, reason in parsed.rejects))
    return parsed


def _with_images(name: str, data: bytes, timeout_s: float | None, source: ImageSource) -> Document:
    """Parse one file and extract its images; where these take too long or crash, its text is kept without them."""
    try:
        document = parse_file(name, data, timeout_s, images=True)
    except UnfinishedError as error:
        try:
            document = parse_file(name, data, timeout_s)
        except DataError:  # it has no text: nothing is left without its images
            raise error from None
        return replace(document, image_rejects=(("all images", f"not extracted: {error}"),))
    if suffix(name) == ".pdf" or suffix(name) not in _WITH_IMAGES:
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


def parse_file(name: str, data: bytes, timeout_s: float | None = None, images: bool = False) -> Document:
    """Parse one file that holds one document: with at least one searchable sentence, or, with ``images``, one image.

    Args:
        name: Its path or URI; the suffix chooses the parser, the stem is the default ``doc_id``.
        data: Its whole content.
        timeout_s: Time limit in CPU seconds, above 0; None: no limit.
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
    check_kind(name, ending, data)
    # only the main thread can be interrupted by a timer
    in_child = len(data) >= CHILD_MIN_BYTES.get(ending, len(data) + 1) or not _in_main_thread()
    if timeout_s is not None and in_child:
        return parse_in_child(name, data, timeout_s, images)
    parser = FORMATS[ending]
    if isinstance(parser, OnDemand):
        parser = parser.load()  # here, so that it does not count against the file's time limit
    read = partial(parser, name, data, **({"images": True} if images and ending in _WITH_IMAGES else {}))

    def parse() -> Document:
        document = _guarded(name, read)
        if ending not in (".json", ".csv", ".tsv"):  # whose paragraphs are given
            document = divide_long(document)
        return _checked(name, document, images)

    return _in_time(parse, name, data, timeout_s)


def without_noise(document: Document) -> Document:
    """Drop the sentences that say nothing: those without a letter or digit."""
    silent: list[str] = []

    def says_something(text: str) -> bool:
        is_said = text[:1].isalnum() or _SAYS_SOMETHING.search(text) is not None
        silent.extend([] if is_said else [text])
        return is_said

    def kept(paragraph: Paragraph) -> Paragraph:
        text = paragraph.text
        spans = tuple(span for span in paragraph.sentences if says_something(text[span.start : span.end]))
        return paragraph if len(spans) == len(paragraph.sentences) else replace(paragraph, sentences=spans)

    changed = map_named(document, kept)
    if not silent:
        return document
    said = f"{pluralize(len(silent), 'sentence')} without a letter or digit, such as {silent[0][:20]!r}, not indexed"
    return replace(changed, odd=(*document.odd, said))


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
    is_limited = _in_main_thread() and not is_uri(name)  # storage and hub have limits of their own
    return in_time(lambda: read_bytes(name), timeout_s, too_late, cpu=False) if is_limited else read_bytes(name)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _checked(name: str, document: Document, images: bool) -> Document:
    """A file's one document; an error where nothing in it can be searched."""
    document = without_noise(with_headings(_well_named(name, document)))
    if not has_sentences(document) and not (images and names_images(document)):
        raise no_text(name, images)
    return document


def _well_named(name: str, document: Document) -> Document:
    """A document with a valid id and title."""
    doc_id, title = valid_doc_id(document.doc_id, name), well_formed(document.title)
    if (doc_id, title) == (document.doc_id, document.title):
        return document
    odd = [f"the id {document.doc_id[:80]!r} is written {doc_id}"] if doc_id != document.doc_id else []
    return replace(document, doc_id=doc_id, title=title, odd=(*document.odd, *odd))


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


MAX_PAGES = 12  # most pages of a directory that are compared
MIN_PAGES = 3  # fewest pages that repeat a block
MIN_SHARE = 0.5  # least share of the pages compared
_SUFFIXES = (".html", ".htm")


def without_repeated(document: Document, file: str, timeout_s: float) -> Document:
    """Drop the blocks that most pages of a local HTML file's directory repeat, but for the first page.

    A page that would have no block left stays whole.
    """
    repeated = repeated_blocks(file, timeout_s)
    gone = {text for text, first in repeated.items() if first != os.path.basename(file)}
    texts = [paragraph.text for section in document.sections for paragraph in section.paragraphs]
    n_gone = sum(text in gone for text in texts)
    if not n_gone or n_gone == len(texts):
        return document
    kept = map_named(document, lambda paragraph: None if paragraph.text in gone else paragraph)
    sections = (new for old, new in zip(document.sections, kept.sections, strict=True) if new.paragraphs or old == new)
    odd = f"{pluralize(n_gone, 'block')} that other pages of its directory repeat, not indexed"
    return replace(kept, sections=tuple(sections), odd=(*document.odd, odd))


def repeated_blocks(file: str, timeout_s: float) -> Mapping[str, str]:
    """Blocks that most pages of a local HTML file's directory repeat, each with the first of them; else none."""
    return _repeated(tuple((page, os.stat(page).st_mtime_ns) for page in compared_pages(file)), timeout_s)


def compared_pages(file: str) -> list[str]:
    """List the pages that ``repeated_blocks`` of a file follow from; none where there are none."""
    if is_uri(file) or not file.lower().endswith(_SUFFIXES):
        return []
    folder = os.path.dirname(os.path.abspath(file))
    return _compared(folder, os.stat(folder).st_mtime_ns)


@lru_cache(maxsize=64)
def _compared(folder: str, changed_ns: int) -> list[str]:
    """``changed_ns`` renews the cache."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(_SUFFIXES) and name[0] != ".")
    compared = names[:: -(-len(names) // MAX_PAGES) or 1]
    return [os.path.join(folder, name) for name in compared] if len(compared) >= MIN_PAGES else []


@lru_cache(maxsize=64)
def _repeated(pages: tuple[tuple[str, int], ...], timeout_s: float) -> Mapping[str, str]:
    """Compare pages, each with the time of its last change, which renews the cache."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for path, _ in pages:
        try:
            page = parse_file(path, read_in_time(path, timeout_s), timeout_s)
        except DataError:
            continue
        texts = {paragraph.text for section in page.sections for paragraph in section.paragraphs if paragraph.text}
        counts.update(texts)
        first = dict.fromkeys(texts, os.path.basename(path)) | first
    return {text: first[text] for text, n in counts.items() if n >= max(MIN_PAGES, MIN_SHARE * len(pages))}
