"""Find the files of documents, local, on an object store or on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kohaku_ray.documents.data.rows import HUB, ROW_FORMATS
from kohaku_ray.documents.formats import AUTO, FORMATS, DocumentFormat, known_suffixes, suffix
from kohaku_ray.documents.read import check_hub, filesystem_of
from kohaku_ray.errors import DataError
from kohaku_ray.store.storage import asking, is_uri, join_path


def find_files(paths: Sequence[str], follow_links: bool = False, document_format: DocumentFormat = AUTO) -> list[str]:
    """List the files that paths stand for, sorted, each once.

    Args:
        paths: Files, kept whatever their suffix, and directories, searched recursively for `FORMATS` without names that
            begin with a dot; local, URIs of any pyarrow filesystem (``s3://``, ``file://``), or of the hub (``hf://``).
        follow_links: Whether links that lead out of a directory are followed.
        document_format: Its suffixes are searched for, too.

    Raises:
        ConfigError: A URI of the hub cannot be used here.
        DataError: A path does not exist or cannot be listed, or a directory holds no document.
    """
    files, errors = set[str](), list[DataError]()
    for path in paths:
        try:
            files |= set(_expand(path, follow_links, document_format))
        except DataError as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else DataError(" ".join(map(str, errors)))
    return sorted(files)


def passed_over(paths: Sequence[str], document_format: DocumentFormat = AUTO) -> list[str]:
    """List the visible files of local directories that ``find_files`` leaves out: of no known suffix, or rows."""
    names = (os.path.join(folder, name) for folder in _local(paths) for name in _walk(folder))
    return sorted(name for name in names if not _is_known(name, document_format))


def shown_name(path: str) -> str:
    r"""Write a path as text; bytes that are not UTF-8 become ``\\xff``, under which no file can be opened."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def links_out(paths: Sequence[str]) -> list[str]:
    """List the links in local directories that lead out of them, which ``find_files`` does not follow unasked."""
    links: list[str] = []
    for folder in _local(paths):
        list(_walk(folder, links))
    return sorted(links)


def _local(paths: Sequence[str]) -> list[str]:
    """The local directories among paths."""
    folders = [os.path.normpath(os.path.expanduser(path)) for path in paths if not is_uri(path)]
    return [folder for folder in folders if os.path.isdir(folder)]


def _expand(path: str, follow_links: bool, document_format: DocumentFormat) -> list[str]:
    """Expand one of the user's paths into files."""
    if path.startswith(HUB):
        check_hub(path)
        return [path]
    filesystem, inner = filesystem_of(path)
    if filesystem is not None:
        return _expand_remote(path, filesystem, inner, document_format)
    inner = os.path.normpath(inner) if inner else ""
    if not os.path.exists(inner):
        raise _missing(path, document_format)
    if not os.path.isdir(inner):
        return [inner]
    links: list[str] = []
    relatives = _walk(inner, None if follow_links else links)
    return _known(path, (os.path.join(inner, relative) for relative in relatives), document_format, links)


def _walk(directory: str, links: list[str] | None = None) -> Iterator[str]:
    """Yield the relative paths of the visible files below a directory; links are followed, each directory once.

    ``links`` takes the links that lead out of it, which are not followed then.
    """
    root = os.path.realpath(directory)
    seen = {root}

    def is_new(folder: str) -> bool:
        n_seen = len(seen)
        seen.add(os.path.realpath(folder))
        return len(seen) > n_seen

    def leads_out(path: str) -> bool:
        if links is None or not os.path.islink(path):
            return False
        is_out = os.path.commonpath([root, os.path.realpath(path)]) != root
        links.extend([shown_name(path)] if is_out else [])
        return is_out

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}.")

    for folder, folders, files in os.walk(directory, followlinks=True, onerror=fail):
        visible = {name: os.path.join(folder, name) for name in sorted(folders) if not _hidden(name)}
        folders[:] = [name for name, path in visible.items() if not leads_out(path) and is_new(path)]
        for name in files:
            path = os.path.join(folder, name)
            if not _hidden(name) and not leads_out(path):
                yield shown_name(os.path.relpath(path, directory))


def _expand_remote(path: str, filesystem: Any, inner: str, document_format: DocumentFormat) -> list[str]:
    from pyarrow import fs

    try:
        with asking(path, "cannot list"):
            info = filesystem.get_file_info(inner)
            if info.type == fs.FileType.File:
                return [path]
            if info.type == fs.FileType.NotFound:
                raise _missing(path, document_format)
            entries = filesystem.get_file_info(fs.FileSelector(inner, recursive=True))
    except FileNotFoundError:
        raise _missing(path, document_format) from None
    relatives = (entry.path[len(inner) :].strip("/") for entry in entries if entry.type == fs.FileType.File)
    return _known(path, (join_path(path, relative) for relative in relatives if not _hidden(relative)), document_format)


def _hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))


def _is_known(file: str, document_format: DocumentFormat) -> bool:
    return suffix(file) in FORMATS or suffix(file) in document_format.suffixes


def _known(path: str, files: Iterable[str], document_format: DocumentFormat, links: Sequence[str] = ()) -> list[str]:
    """Those files that have a known suffix; a directory without any is an error."""
    known = [file for file in files if _is_known(file, document_format)]
    if not known:
        left = (
            f" Links that lead out of it: {len(links):,}; documents.follow_links: true follows them." if links else ""
        )
        raise DataError(
            f"{path} holds no documents: files with these suffixes are read: {known_suffixes(document_format)}; and, "
            f"given by name, {', '.join(ROW_FORMATS)}.{left}"
        )
    return known


def _missing(path: str, document_format: DocumentFormat) -> DataError:
    return DataError(
        f"{path or '(empty path)'} does not exist: give a directory, or a file with one of these suffixes: "
        f"{known_suffixes(document_format)}, {', '.join(ROW_FORMATS)}."
    )
