"""Data sets and files of the Hugging Face hub, by URI.

``hf://datasets/OWNER/NAME?split=train`` is a data set, read by the package ``datasets`` as JSON lines, one per row;
``name`` (its configuration) and ``revision`` may be given too, and a slice with the split: ``split=train[:100]``.
``hf://datasets/OWNER/NAME/FILE`` is one file of its repository, read as it is.
"""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kohaku_ray.documents.row_files import HUB
from kohaku_ray.errors import ConfigError, DataError

_OPTIONS = ("split", "name", "revision")
_MEDIA = frozenset({"Image", "Audio", "Video", "Pdf"})


def check_hub(uri: str) -> None:
    """Check what can be known of a URI without the network.

    Raises:
        ConfigError: It is written otherwise, or the package that reads it is not installed.
    """
    _, file, _ = _parts(uri)
    package = "huggingface_hub" if file else "datasets"
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{uri} needs the package {package}, which is not installed: pip install {package}")


@lru_cache(maxsize=4)
def read_hub(uri: str) -> bytes:
    """Read a data set as JSON lines, without its pictures and sounds, or a file as it is.

    Raises:
        ConfigError: See `check_hub`.
        DataError: It cannot be read, or has several splits and the URI names none.
    """
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

    found: Any = load_dataset(repository, **options)
    if "split" not in options:
        if len(found) != 1:
            raise DataError(
                f"{uri} has the splits {', '.join(found)}: name one, such as {uri}?split={next(iter(found))}"
            )
        (found,) = found.values()
    media = [name for name, feature in (found.features or {}).items() if type(feature).__name__ in _MEDIA]
    rows = found.remove_columns(media) if media else found
    return b"".join(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n" for row in rows)
