"""Read files of documents, local, on an object store or on the hub; data sets of the hub by URI.

``hf://datasets/OWNER/NAME?split=train`` is a data set, read by the package ``datasets`` as JSON lines, one per row;
``name`` (its configuration) and ``revision`` may be given too, and a slice with the split: ``split=train[:100]``.
``hf://datasets/OWNER/NAME/FILE`` is one file of its repository, read as it is.
"""

from __future__ import annotations

import importlib.util
import json
import os
import stat
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kohaku_ray.documents.data.rows import HUB
from kohaku_ray.errors import ConfigError, DataError, did_you_mean
from kohaku_ray.store.storage import asking, checksum, is_uri, name_a_file, open_filesystem, refusal


def read_bytes(path: str) -> bytes:
    """Read a whole file, local, on any pyarrow filesystem or on the hub; ConfigError and DataError where it cannot."""
    if path.startswith(HUB):
        return read_hub(path)
    filesystem, inner = filesystem_of(path)
    try:
        if filesystem is None:
            status = os.stat(inner)
            # reading a pipe, socket or device may never end; opening a directory fails by itself
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise DataError(f"{path} is no regular file: copy its content to one, or remove it.")
            with open(inner, "rb") as file:
                # a file of the kernel has no size, and reading it may never end
                return file.read() if status.st_size else b""
        with asking(path, "cannot read"), filesystem.open_input_file(inner) as stream:
            return bytes(stream.read())
    except IsADirectoryError:
        raise name_a_file(path if filesystem is None else inner) from None
    except OSError as error:
        way_out = _near(inner) if filesystem is None and isinstance(error, FileNotFoundError) else "."
        raise DataError(f"{path} cannot be read: {error.strerror or error}{way_out}") from None


def _near(path: str) -> str:
    """Say how a missing local file is found: by the nearest name in its directory, or by another directory."""
    folder, name = os.path.split(os.path.abspath(path))
    if os.path.islink(path):
        return f": it is a link to {os.readlink(path)}."
    if not os.path.isdir(folder):
        return f": there is no directory {folder}, correct the path."
    with suppress(OSError):
        if guess := did_you_mean(name, os.listdir(folder)):
            return f"{guess}."
    return f": correct its name or its directory, {folder}."


def digest_of(path: str, data: bytes | None = None) -> str | None:
    """Digest a file's content: that of ``data``, where it is read; of an object on a store its ETag, unread.

    None: it has none, as a data set of the hub, or cannot be read.
    """
    if path.startswith(HUB):
        return None
    try:
        filesystem, inner = filesystem_of(path)
        if filesystem is None:
            return checksum(read_bytes(path) if data is None else data)
        with asking(path, "cannot look at"), filesystem.open_input_file(inner) as stream:
            etag = {name.lower(): value for name, value in (stream.metadata() or {}).items()}.get("etag")
    except (OSError, DataError):
        return None
    return None if not etag else f"ETag {etag.decode()}"


def filesystem_of(path: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a URI and the path in it; None and the path for local files."""
    if not is_uri(path):
        return None, os.path.expanduser(path)
    import pyarrow as pa
    from pyarrow import fs

    try:
        filesystem, inner = open_filesystem(path)
    except pa.ArrowException as error:
        raise DataError(f"{path} cannot be opened: {error}: write spaces as %20, or give a local path.") from None
    except OSError as error:
        raise refusal(path, "cannot open", error) from None
    return (None, inner) if isinstance(filesystem, fs.LocalFileSystem) else (filesystem, inner)


_OPTIONS = ("split", "name", "revision")
_MEDIA = frozenset({"Image", "Audio", "Video", "Pdf"})


def check_hub(uri: str) -> None:
    """Raise ConfigError where a URI is written otherwise, or the package that reads it is not installed."""
    _, file, _ = _parts(uri)
    package = "huggingface_hub" if file else "datasets"
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{uri} needs the package {package}, which is not installed: pip install {package}")


@lru_cache(maxsize=4)
def read_hub(uri: str) -> bytes:
    """Read a data set as JSON lines, without its pictures and sounds, or a file as it is."""
    check_hub(uri)
    repository, file, options = _parts(uri)
    try:
        return _file(repository, file, options) if file else _rows(uri, repository, options)
    except DataError:
        raise
    except Exception as error:  # of the network, of the hub and of every format that it holds
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"{uri} cannot be read from the hub ({type(error).__name__}: {reason}): check its name and options, the "
            "network (HF_HUB_OFFLINE) and, for a private one, `hf auth login`"
        ) from None


def _parts(uri: str) -> tuple[str, str, dict[str, str]]:
    """The repository, the file in it (empty: the whole data set) and the options of a URI."""
    split = urlsplit(uri)
    owner, _, rest = unquote(split.path).strip("/").partition("/")
    name, _, file = rest.partition("/")
    options = dict(parse_qsl(split.query))
    unknown = sorted(options.keys() - set(_OPTIONS))
    if split.netloc != "datasets" or not owner or not name or unknown:
        what = f"has the option {unknown[0]}" if unknown else "names no data set"
        raise ConfigError(
            f"{uri} {what}: write {HUB}datasets/OWNER/NAME?split=train, with the options {', '.join(_OPTIONS)}, or "
            f"{HUB}datasets/OWNER/NAME/FILE"
        )
    return f"{owner}/{name}", file, options


def _file(repository: str, file: str, options: dict[str, str]) -> bytes:
    from huggingface_hub import HfFileSystem

    with HfFileSystem().open(f"datasets/{repository}/{file}", "rb", revision=options.get("revision")) as stream:
        return bytes(stream.read())


def _rows(uri: str, repository: str, options: dict[str, str]) -> bytes:
    from datasets import load_dataset

    loaded: Any = load_dataset(repository, **options)
    if "split" not in options:
        if len(loaded) != 1:
            raise DataError(
                f"{uri} has the splits {', '.join(loaded)}: name one, such as {uri}?split={next(iter(loaded))}"
            )
        (loaded,) = loaded.values()
    media = [name for name, feature in (loaded.features or {}).items() if type(feature).__name__ in _MEDIA]
    rows = loaded.remove_columns(media) if media else loaded
    return b"".join(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n" for row in rows)
