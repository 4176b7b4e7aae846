"""Find documents and parse each into sections, paragraphs and sentences.

A new format is one module with a function ``parse_X(name, data) -> Document`` and one line in `FORMATS`. Readers that a
suffix cannot choose, and the configuration must, are in `_READERS`. Only a news CSV and the files of `ROW_FORMATS` hold
many documents.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar

from kohaku_ray.documents.attached import ImageSource, attach_images
from kohaku_ray.documents.bounded import UnfinishedError, parse_in_child, parse_in_time
from kohaku_ray.documents.figures import images_of, with_mentions
from kohaku_ray.documents.french import SentenceSplit
from kohaku_ray.documents.html import parse_html
from kohaku_ray.documents.hub import check_hub, read_hub
from kohaku_ray.documents.ids import check_doc_id, file_name
from kohaku_ray.documents.kohakurag import parse_kohakurag
from kohaku_ray.documents.markdown import parse_markdown
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.news import parse_news
from kohaku_ray.documents.novel import parse_novel
from kohaku_ray.documents.pdf import parse_pdf
from kohaku_ray.documents.rows import ROW_FORMATS, parse_rows
from kohaku_ray.documents.searchable import has_sentences, names_images, no_image, no_text
from kohaku_ray.documents.table_csv import parse_csv
from kohaku_ray.documents.text import parse_text
from kohaku_ray.errors import DataError
from kohaku_ray.row_files import HUB, suffix_of
from kohaku_ray.storage import asking, below, open_filesystem

Parser = Callable[..., Document]

FORMATS: Mapping[str, Parser] = {
    ".json": parse_kohakurag,
    ".md": parse_markdown,
    ".markdown": parse_markdown,
    ".txt": parse_text,
    ".text": parse_text,
    ".pdf": parse_pdf,
    ".html": parse_html,
    ".htm": parse_html,
    ".csv": parse_csv,
}
"""Parser of a file, by the suffix of its name in lower case."""

Format = Literal["auto", "text", "novel", "news"]

_READERS: Mapping[Format, Mapping[str, Parser]] = {
    "auto": {},
    "text": dict.fromkeys((suffix for suffix in FORMATS if suffix != ".pdf"), parse_text),
    "novel": {".txt": parse_novel, ".text": parse_novel},
    "news": {},
}
"""Parsers by format, which replace those of `FORMATS`."""

_WITH_IMAGES = {".json", ".md", ".markdown", ".pdf", ".html", ".htm"}
"""Formats whose parser takes ``images``."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a file.

    Attributes:
        documents: Each with a valid ``doc_id`` of its own and at least one searchable sentence or image.
        rejects: Per rejected part, its place and the reason.
    """

    documents: tuple[Document, ...]
    rejects: tuple[tuple[str, str], ...] = ()


CHILD_MIN_BYTES: Mapping[str, int] = {".pdf": 0, ".html": 2**18, ".htm": 2**18}
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
    """Parse one file that may hold many documents.

    Args:
        name: See `parse_file`.
        data: See `parse_file`.
        timeout_s: See `parse_file`.
        file_format: ``news`` reads a ``.csv`` as articles, a paragraph per row; for the others see `parse_file`.
        sentence_split: Splits news into sentences by Punkt, or at every full stop.
        images: How images are extracted; None: they are not.

    Returns:
        At least one document or reject; one document of any file but a news CSV and those of `ROW_FORMATS`.

    Raises:
        DataError: The whole file cannot be used, see `parse_file`.
    """
    has_rows = _suffix(name) in ROW_FORMATS
    if not has_rows and (file_format != "news" or _suffix(name) != ".csv"):
        if images is None:
            return Parsed((parse_file(name, data, timeout_s, file_format),))
        return Parsed((_with_images(name, data, timeout_s, file_format, images),))
    _check_not_empty(name, data)
    read = partial(
        _guarded, name, lambda: _read_rows(name, data) if has_rows else _read_news(name, data, sentence_split)
    )
    parsed: Parsed = _in_time(read, name, data, timeout_s)
    return parsed


def _read_news(name: str, data: bytes, sentence_split: SentenceSplit) -> Parsed:
    news = parse_news(name, data, sentence_split)
    if not (news.documents or news.rejects):
        raise DataError(f"{name} has no text: there is no row below its header.")
    return _searchable(name, news.documents, news.rejects)


def _read_rows(name: str, data: bytes) -> Parsed:
    documents, rejects = parse_rows(name, data)
    if not (documents or rejects):
        raise DataError(f"{name} has no text: there is no row in it.")
    return _searchable(name, documents, rejects)


def _searchable(name: str, documents: Sequence[Document], rejects: Sequence[tuple[str, str]]) -> Parsed:
    silent = [document for document in documents if not has_sentences(document)]
    more = [(f"{name}: {document.doc_id}", "its paragraphs have no sentence to search") for document in silent]
    return Parsed(tuple(filter(has_sentences, documents)), (*rejects, *more))


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
    if _suffix(name) == ".pdf":
        return with_mentions(document)
    is_placeholder = _suffix(name) == ".json"
    attach = partial(attach_images, document, name, read_bytes, source, is_placeholder)
    try:
        in_time = timeout_s is not None and _in_main_thread()
        document = parse_in_time(attach, name, len(data), timeout_s or 0) if in_time else attach()
    except UnfinishedError as error:
        document = replace(document, image_rejects=(("all images", f"not read: {error}"),))
    if not (has_sentences(document) or images_of(document)):
        raise no_image(name, document.image_rejects, document.images_left_out)
    return with_mentions(document)


def parse_file(
    name: str, data: bytes, timeout_s: float | None = None, file_format: Format = "auto", images: bool = False
) -> Document:
    """Parse one file that holds one document.

    Args:
        name: Its path or URI; the suffix chooses the parser, the stem is the default ``doc_id``.
        data: Its whole content.
        timeout_s: Time limit in seconds, above 0; None: no limit.
        file_format: ``text`` reads all but PDF as plain text; ``novel`` reads ``.txt`` as a novel in chapters.
        images: Whether images are extracted, or kept with their address for ``attach_images``.

    Returns:
        The document, with a valid ``doc_id`` and at least one searchable sentence, or, with ``images``, one image.

    Raises:
        DataError: The suffix is unknown, the content cannot be read, the id is not allowed, nothing is searchable, or
            it takes longer than ``timeout_s``.
    """
    suffix = _suffix(name)
    if suffix not in FORMATS:
        raise DataError(f"{name}: unknown suffix {suffix or '(none)'}, known: {_known()}: rename or convert the file.")
    _check_not_empty(name, data)
    asked = _READERS[file_format].get(suffix)
    # only the main thread can be interrupted by a timer
    in_child = asked is None and (len(data) >= CHILD_MIN_BYTES.get(suffix, len(data) + 1) or not _in_main_thread())
    if timeout_s is not None and in_child:
        return parse_in_child(name, data, timeout_s, images)
    reader = FORMATS[suffix] if asked is None else asked
    if images and asked is None and suffix in _WITH_IMAGES:
        reader = partial(reader, images=True)
    document: Document = _in_time(lambda: _parsed(reader, name, data, images), name, data, timeout_s)
    return document


def _check_not_empty(name: str, data: bytes) -> None:
    if not data.strip():
        raise DataError(f"{name} has no text: the file is empty.")


def _in_time(read: Callable[[], Any], name: str, data: bytes, timeout_s: float | None) -> Any:
    """Call a reader written in pure Python; in the main thread only where a time is set."""
    if timeout_s is None:
        return read()
    if not _in_main_thread():  # the child has only the readers of `FORMATS`
        raise DataError(f"{name}: a time limit on this format needs the main thread: call it there, or set no limit.")
    return parse_in_time(read, name, len(data), timeout_s)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _parsed(reader: Parser, name: str, data: bytes, images: bool) -> Document:
    document = _guarded(name, lambda: reader(name, data))
    check_doc_id(document.doc_id, name)
    if not has_sentences(document) and not (images and names_images(document)):
        raise no_text(name, images)
    return document


def _guarded(name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except RecursionError:
        raise DataError(f"{name} is nested too deep to be read: flatten it.") from None
    except DataError:
        raise
    except Exception as error:  # a defect of ours or of a library: one bad file is one reject
        raise DataError(
            f"{name} cannot be parsed ({type(error).__name__}: {str(error)[:200]}): report it, and leave the file out."
        ) from error


def find_files(paths: Sequence[str]) -> list[str]:
    """List the files that paths stand for.

    Args:
        paths: Files, kept whatever their suffix, and directories, searched recursively for `FORMATS`; local
            paths, URIs of any pyarrow filesystem (``s3://``, ``gs://``, ``file://``), or of the hub (``hf://``).

    Returns:
        Paths for `read_bytes`, which refuses a pipe, socket or device; sorted, each once. Inside a directory, names
        that begin with a dot are left out.

    Raises:
        ConfigError: A URI of the hub cannot be used here.
        DataError: A path does not exist or cannot be listed, or a directory holds no document.
    """
    return sorted({found for path in paths for found in _expand(path)})


def read_bytes(path: str) -> bytes:
    """Read a whole file, local, on any pyarrow filesystem or on the hub.

    Raises:
        ConfigError: A URI of the hub cannot be used here.
        DataError: It does not exist, is not a regular file, or cannot be read.
    """
    if path.startswith(HUB):
        return read_hub(path)
    filesystem, inner = _resolve(path)
    try:
        if filesystem is None:
            _check_regular(path, os.stat(inner).st_mode)
            with open(inner, "rb") as file:
                return file.read()
        with asking(path, "cannot read"), filesystem.open_input_file(inner) as stream:
            return bytes(stream.read())
    except IsADirectoryError:
        there = sorted(name for name in os.listdir(inner) if os.path.isfile(os.path.join(inner, name)))
        such = f", such as {os.path.join(path, there[0])}" if there else ""
        raise DataError(f"{path} is a directory and no file: name a file{such}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _check_regular(path: str, mode: int) -> None:
    """Reject pipes, sockets and devices, whose reading may never end; opening a directory fails by itself."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no regular file")
        raise DataError(f"{path} is {kind}, and only regular files are read: copy its content to a file, or remove it.")


_KINDS: Sequence[tuple[Callable[[int], bool], str]] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _known() -> str:
    return ", ".join(sorted(FORMATS))


def _suffix(name: str) -> str:
    return f".{suffix_of(name)}" if name.startswith(HUB) else PurePosixPath(file_name(name)).suffix.lower()


def _resolve(path: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a URI and the path in it; None and the path for local files."""
    if "://" not in path:
        return None, os.path.expanduser(path)
    import pyarrow as pa
    from pyarrow import fs

    try:
        filesystem, inner = open_filesystem(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be opened: {error}: write spaces as %20, or give a local path.") from None
    return (None, inner) if isinstance(filesystem, fs.LocalFileSystem) else (filesystem, inner)


def _expand(path: str) -> list[str]:
    """Expand one of the user's paths into files."""
    if path.startswith(HUB):
        check_hub(path)
        return [path]
    filesystem, inner = _resolve(path)
    if filesystem is None:
        return _expand_local(path, os.path.normpath(inner) if inner else "")
    return _expand_remote(path, filesystem, inner)


def _expand_local(path: str, inner: str) -> list[str]:
    if not os.path.exists(inner):
        raise _missing(path)
    if not os.path.isdir(inner):
        return [inner]
    return _some(path, (os.path.join(inner, relative) for relative in _walk(inner)))


def _walk(directory: str) -> Iterator[str]:
    """Yield the relative paths of the visible files below a directory; links are followed, each directory once."""
    seen = {os.path.realpath(directory)}

    def is_new(folder: str) -> bool:
        n_seen = len(seen)
        seen.add(os.path.realpath(folder))
        return len(seen) > n_seen

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}.")

    for folder, folders, files in os.walk(directory, followlinks=True, onerror=fail):
        folders[:] = [name for name in sorted(folders) if not _hidden(name) and is_new(os.path.join(folder, name))]
        for name in files:
            if not _hidden(name):
                yield os.path.relpath(os.path.join(folder, name), directory)


def _expand_remote(path: str, filesystem: Any, inner: str) -> list[str]:
    from pyarrow import fs

    try:
        with asking(path, "cannot list"):
            info = filesystem.get_file_info(inner)
            if info.type == fs.FileType.File:
                return [path]
            if info.type == fs.FileType.NotFound:
                raise _missing(path)
            entries = filesystem.get_file_info(fs.FileSelector(inner, recursive=True))
    except FileNotFoundError:
        raise _missing(path) from None
    relatives = (entry.path[len(inner) :].strip("/") for entry in entries if entry.type == fs.FileType.File)
    return _some(path, (below(path, relative) for relative in relatives if not _hidden(relative)))


def _hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))


def _some(path: str, files: Iterable[str]) -> list[str]:
    """Those files that have a known suffix; a directory without any is an error."""
    known = [file for file in files if _suffix(file) in FORMATS]
    if not known:
        raise DataError(
            f"{path} holds no documents: files with these suffixes are read: {_known()}; and, given by name, "
            f"{', '.join(ROW_FORMATS)}."
        )
    return known


def _missing(path: str) -> DataError:
    return DataError(
        f"{path or '(empty path)'} does not exist: give a directory, or a file with one of these suffixes: {_known()}, "
        f"{', '.join(ROW_FORMATS)}."
    )
