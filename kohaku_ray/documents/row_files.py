"""Files of rows: CSV, JSON lines and Parquet, read alike."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from kohaku_ray.errors import DataError

HUB = "hf://"
"""Prefix of a data set on the Hugging Face hub, whose rows are read as JSON lines."""

JSON_LINES = ("jsonl", "ndjson")

ROW_SUFFIXES = ("csv", *JSON_LINES, "parquet")
"""Suffixes of files of rows."""


def suffix_of(name: str) -> str:
    """Suffix of a path or URI in lower case, without its dot; ``jsonl`` for a whole data set on the hub."""
    if "://" in name:
        name = unquote(name.split("?")[0])
    last = name.rpartition("/")[2]
    suffix = last.rpartition(".")[2].lower() if "." in last else ""
    return "jsonl" if name.startswith(HUB) and suffix not in ROW_SUFFIXES else suffix


def read_rows(name: str, data: bytes, what: str = "rows") -> list[Mapping[str, Any]]:
    """Read the rows of a file.

    Args:
        name: File name; its suffix decides the format.
        data: The file's bytes.
        what: What the rows are, for a message.

    Returns:
        Rows by column, in order; values of CSV are texts.

    Raises:
        DataError: It cannot be read in its format, or has another suffix.
    """
    suffix = suffix_of(name)
    if suffix == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows: list[Mapping[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{name} is not Parquet: {error}") from None
        return rows
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    if suffix in JSON_LINES:
        return list(_json_lines(name, text))
    if suffix == "csv":
        csv.field_size_limit(2**31 - 1)
        return list(csv.DictReader(io.StringIO(text, newline="")))
    raise DataError(f"{name}: {what} are read from .csv, .jsonl or .parquet, not .{suffix}")


def cell_of(value: Any) -> str:
    """Write a value as the cell of a CSV that means the same: lists as JSON, null as nothing."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return (
        json.dumps(value, ensure_ascii=False, default=str)
        if isinstance(value, bool | float | list | dict)
        else str(value)
    )


def _json_lines(name: str, text: str) -> Iterator[Mapping[str, Any]]:
    # a line ends at \n alone: str.splitlines would cut at characters that a JSON text may hold
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep"
            raise DataError(f"{name}, line {number}: not JSON ({reason})") from None
        if not isinstance(row, dict):
            raise DataError(f"{name}, line {number}: a {type(row).__name__}, expected an object")
        yield row
