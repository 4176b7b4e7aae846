"""Whole files, local or on an object store; writes are atomic: a reader finds the old file or the whole new one."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kohaku_ray.errors import DataError
from kohaku_ray.storage import asking, is_uri, open_filesystem


def make_directory(path: str) -> None:
    """Make a directory for outputs, with those above it.

    Raises:
        DataError: It cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be made ({error.strerror}): choose another output") from error


def publish(path: str, data: bytes, way_out: str = "free the disk or choose another output") -> None:
    """Write a file in one step.

    Args:
        path: Path or URI of the file.
        data: Its whole content.
        way_out: What to do when writing fails, for the message.

    Raises:
        DataError: The file cannot be written.
    """
    publish_with(path, lambda temporary: Path(temporary).write_bytes(data), way_out)


def publish_with(path: str, write: Callable[[str], object], way_out: str) -> None:
    """Write a file in one step by a function that takes a temporary path; see ``publish``."""
    if is_uri(path):
        _upload(path, write)
        return
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and os.path.isdir(path):
            way_out = "name a file in it"
        if isinstance(error, OSError):
            raise DataError(f"{path}: cannot be written ({error.strerror or error}): {way_out}.") from error
        raise


def _upload(path: str, write: Callable[[str], object]) -> None:
    """Write a file here, then upload it: on an object store, it is there when the upload is complete."""
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/file")
        data = Path(folder, "file").read_bytes()
    with asking(path, "cannot write"):
        filesystem, inner = open_filesystem(path)
        with filesystem.open_output_stream(inner) as stream:
            stream.write(data)


def read_file(path: str) -> bytes:
    """Read a whole file.

    Raises:
        FileNotFoundError: There is none.
        OSError: A local file cannot be read.
        StorageError: A remote one cannot be read.
    """
    if not is_uri(path):
        return Path(path).read_bytes()
    with asking(path, "cannot read"):
        filesystem, inner = open_filesystem(path)
        with filesystem.open_input_file(inner) as stream:
            return bytes(stream.read())


def is_file(path: str) -> bool:
    """Return whether there is such a file."""
    return _kind(path) == "File" if is_uri(path) else os.path.isfile(path)


def is_directory(path: str) -> bool:
    """Return whether there is such a directory; on an object store, whether a file is below it."""
    return _kind(path) == "Directory" if is_uri(path) else os.path.isdir(path)


def name_a_file(directory: str) -> DataError:
    """Return the error of a directory where a file is needed; it names the first file in it."""
    there = sorted(name for name in os.listdir(directory) if os.path.isfile(os.path.join(directory, name)))
    such = f", such as {os.path.join(directory, there[0])}" if there else ""
    return DataError(f"{directory} is a directory and no file: name a file{such}.")


def remove(path: str) -> None:
    """Delete a file; a missing one is not an error."""
    if not is_uri(path):
        Path(path).unlink(missing_ok=True)
    elif is_file(path):
        with asking(path, "cannot delete"):
            filesystem, inner = open_filesystem(path)
            filesystem.delete_file(inner)


def _kind(path: str) -> str:
    with asking(path, "cannot look at"):
        filesystem, inner = open_filesystem(path)
        kind: str = filesystem.get_file_info(inner).type.name
        return kind
