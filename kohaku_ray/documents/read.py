"""Read a document's file, local, on an object store or on the hub."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Any

from kohaku_ray.documents.hub import read_hub
from kohaku_ray.documents.row_files import HUB
from kohaku_ray.errors import DataError
from kohaku_ray.storage import asking, name_a_file, open_filesystem, refusal


def read_bytes(path: str) -> bytes:
    """Read a whole file, local, on any pyarrow filesystem or on the hub.

    Raises:
        ConfigError: A URI of the hub cannot be used here.
        DataError: It does not exist, is not a regular file, or cannot be read.
    """
    if path.startswith(HUB):
        return read_hub(path)
    filesystem, inner = filesystem_of(path)
    try:
        if filesystem is None:
            _check_regular(path, os.stat(inner).st_mode)
            with open(inner, "rb") as file:
                return file.read()
        with asking(path, "cannot read"), filesystem.open_input_file(inner) as stream:
            return bytes(stream.read())
    except IsADirectoryError:
        raise name_a_file(path if filesystem is None else inner) from None
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


def filesystem_of(path: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a URI and the path in it; None and the path for local files."""
    if "://" not in path:
        return None, os.path.expanduser(path)
    import pyarrow as pa
    from pyarrow import fs

    try:
        filesystem, inner = open_filesystem(path)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
            raise refusal(path, "cannot open", error) from None
        raise DataError(f"{path} cannot be opened: {error}: write spaces as %20, or give a local path.") from None
    return (None, inner) if isinstance(filesystem, fs.LocalFileSystem) else (filesystem, inner)
