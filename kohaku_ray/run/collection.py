"""Which files an index was made from, and whether they are those that a configuration names now."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.errors import DataError
from kohaku_ray.index.store import SOURCES_SCHEMA, Index
from kohaku_ray.run.sources import find_sources, resolve
from kohaku_ray.storage import without_options

MOST_NAMED = 3
"""Most items named in a line."""


def sources_of(config: Config, files: Sequence[str]) -> pa.Table:
    """Describe the files that ``find_sources`` lists (``SOURCES_SCHEMA``), sorted by name.

    Names are relative to the configured directory: a collection that has moved is still the same.
    """
    roots = [without_options(resolve(path)).rstrip("/") for path in config.documents.paths]
    rows = []
    for file in map(without_options, files):
        root = next((one for one in roots if file.startswith(f"{one}/")), os.path.dirname(file))
        size = os.path.getsize(file) if os.path.exists(file) else None  # None: on an object store
        rows.append({"name": file.removeprefix(f"{root}/"), "bytes": size})
    return pa.Table.from_pylist(sorted(rows, key=lambda row: str(row["name"])), schema=SOURCES_SCHEMA)


def difference(index: Index, config: Config) -> str:
    """Say how the configured documents differ from those an index was made from; empty where they do not.

    Empty too where they cannot be compared: an index may be used without its documents.
    """
    if index.sources is None:
        return ""
    try:
        now = dict(zip(*sources_of(config, find_sources(config)).to_pydict().values(), strict=True))
    except DataError:
        return ""
    then = dict(zip(*index.sources.to_pydict().values(), strict=True))
    common = now.keys() & then.keys()
    parts = [
        _named(sorted(now.keys() - common), "of the configured files are not in it"),
        _named(sorted(then.keys() - common), "of its files are not there now"),
        _named(
            sorted(name for name in common if None not in (now[name], then[name]) and now[name] != then[name]),
            "have changed since",
        ),
    ]
    if not any(parts):
        return ""
    said = ", ".join(filter(None, parts))
    return (
        f"the index at {config.index.path} was made from other documents than {', '.join(config.documents.paths)}: "
        f"{said}; run `kohaku-ray index` with this configuration, or set index.path"
    )


def _named(names: list[str], what: str) -> str:
    return f"{len(names)} {what} ({first_of(names)})" if names else ""


def first_of(names: Sequence[str]) -> str:
    """Name the first items of a list, and say when there are more."""
    return ", ".join([*names[:MOST_NAMED], *(["…"] if len(names) > MOST_NAMED else [])])
