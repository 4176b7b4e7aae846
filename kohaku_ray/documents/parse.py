"""Finding documents and turning each into sections, paragraphs and sentences.

A new format is one module with a function ``parse_X(name, data) -> Document`` and one line in `FORMATS`.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from kohaku_ray.documents.bounded import parse_in_child, parse_in_time
from kohaku_ray.documents.html import parse_html
from kohaku_ray.documents.ids import check_doc_id, file_name
from kohaku_ray.documents.kohakurag import parse_kohakurag
from kohaku_ray.documents.markdown import parse_markdown
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.pdf import parse_pdf
from kohaku_ray.documents.table_csv import parse_csv
from kohaku_ray.documents.text import parse_text
from kohaku_ray.errors import DataError

Parser = Callable[[str, bytes], Document]

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
"""Which parser reads a file, by the suffix of its name in lower case."""


CHILD_MIN_BYTES: Mapping[str, int] = {".pdf": 0, ".html": 2**18, ".htm": 2**18}
"""Formats that a C library reads, and from how many bytes on it may take long: a time limit then needs a child process.

The pipe costs a PDF of ten pages 5 %, and a long page of HTML 30 %; shorter ones are read in seconds at most.
"""


def parse_file(name: str, data: bytes, timeout_s: float | None = None) -> Document:
    """Parse one file.

    Args:
        name: Its path or URI; the suffix chooses the parser, the stem is the default ``doc_id``.
        data: Its whole content.
        timeout_s: Most seconds that it may take, above 0; no limit by default.

    Returns:
        The document, with a valid ``doc_id`` and at least one searchable sentence.

    Raises:
        DataError: The suffix is unknown, the content cannot be read, the id is not allowed, nothing is searchable, or
            it takes longer than ``timeout_s``.
    """
    suffix = _suffix(name)
    if suffix not in FORMATS:
        raise DataError(f"{name}: unknown suffix {suffix or '(none)'}, known: {_known()}: rename or convert the file.")
    if not data.strip():
        raise DataError(f"{name} has no text: the file is empty.")
    if timeout_s is None:
        return _parsed(suffix, name, data)
    # only the main thread can be interrupted by a timer
    if len(data) >= CHILD_MIN_BYTES.get(suffix, len(data) + 1) or not _in_main_thread():
        return parse_in_child(name, data, timeout_s)
    return parse_in_time(lambda: _parsed(suffix, name, data), name, len(data), timeout_s)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _parsed(suffix: str, name: str, data: bytes) -> Document:
    try:
        document = FORMATS[suffix](name, data)
    except RecursionError:
        raise DataError(f"{name} is nested too deep to be read: flatten it.") from None
    except DataError:
        raise
    except Exception as error:  # a defect of ours or of a library: one bad file is one reject
        raise DataError(
            f"{name} cannot be parsed ({type(error).__name__}: {str(error)[:200]}): report it, and leave the file out."
        ) from error
    check_doc_id(document.doc_id, name)
    if not any(paragraph.sentences for section in document.sections for paragraph in section.paragraphs):
        raise DataError(f"{name} has no text: nothing in it can be searched (images count once they have a caption).")
    return document


def find_files(paths: Sequence[str]) -> list[str]:
    """List the files that paths stand for.

    Args:
        paths: Files, kept whatever their suffix, and directories, searched deep for the suffixes in `FORMATS`; local
            paths or URIs of any pyarrow filesystem (``s3://``, ``gs://``, ``file://``).

    Returns:
        Paths that `read_bytes` opens, or refuses where one is a pipe, socket or device; sorted, each once. Inside a
        directory, names that begin with a dot are left out.

    Raises:
        DataError: A path does not exist or cannot be listed, or a directory holds no document.
    """
    return sorted({found for path in paths for found in _expand(path)})


def read_bytes(path: str) -> bytes:
    """Read a whole file, local or on any pyarrow filesystem.

    Raises:
        DataError: It is not there, is no regular file, or cannot be read.
    """
    filesystem, inner = _resolve(path)
    try:
        if filesystem is None:
            _check_regular(path, os.stat(inner).st_mode)
            with open(inner, "rb") as file:
                return file.read()
        with filesystem.open_input_file(inner) as stream:
            return bytes(stream.read())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _check_regular(path: str, mode: int) -> None:
    """Reject what may never end, or never begin, when it is read; opening a directory names that by itself."""
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
    return PurePosixPath(file_name(name)).suffix.lower()


def _resolve(path: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a URI and the path in it; None and the path for local files."""
    if "://" not in path:
        return None, os.path.expanduser(path)
    import pyarrow as pa
    from pyarrow import fs

    try:
        filesystem, inner = fs.FileSystem.from_uri(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be opened: {error}: write spaces as %20, or give a local path.") from None
    return (None, inner) if isinstance(filesystem, fs.LocalFileSystem) else (filesystem, inner)


def _expand(path: str) -> list[str]:
    """One path of the user's as the files it stands for."""
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
        info = filesystem.get_file_info(inner)
        if info.type == fs.FileType.File:
            return [path]
        if info.type == fs.FileType.NotFound:
            raise _missing(path)
        entries = filesystem.get_file_info(fs.FileSelector(inner, recursive=True))
    except OSError as error:
        raise DataError(f"{path} cannot be listed: {error}.") from None
    relatives = (entry.path[len(inner) :].strip("/") for entry in entries if entry.type == fs.FileType.File)
    return _some(path, (_child_uri(path, relative) for relative in relatives if not _hidden(relative)))


def _child_uri(uri: str, relative: str) -> str:
    """A file below a URI, with the URI's own options (``?region=…``)."""
    query = urlsplit(uri).query
    return uri.split("?")[0].rstrip("/") + "/" + quote(relative) + (f"?{query}" if query else "")


def _hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))


def _some(path: str, files: Iterable[str]) -> list[str]:
    """Those files that have a known suffix; a directory without any is an error."""
    known = [file for file in files if _suffix(file) in FORMATS]
    if not known:
        raise DataError(f"{path} holds no documents: files with these suffixes are read: {_known()}.")
    return known


def _missing(path: str) -> DataError:
    return DataError(
        f"{path or '(empty path)'} does not exist: give a directory, or a file with one of these suffixes: {_known()}."
    )
