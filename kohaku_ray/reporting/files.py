"""What a run left behind, read back; and files written in one step."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from kohaku_ray.errors import DataError
from kohaku_ray.submissions import Submission, read_submission

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "answers": (
        *("question_id", "member", "attempt", "seed", "answer", "answer_value", "answer_unit", "ref_ids"),
        *("explanation", "is_blank", "n_foreign_refs", "n_context_tokens", "is_cut", "overflowed", "reply", "error"),
    ),
    "votes": (
        *("question_id", "question", "asked_unit", "answer", "answer_value", "answer_unit", "ref_ids", "explanation"),
        *("is_blank", "winner", "groups", "group_weights"),
    ),
    "plans": ("question_id", "member", "queries", "error"),
    "evidence": (
        *("question_id", "member", "attempt", "rank", "node_id", "doc_id", "kind", "source", "score", "frequency"),
        *("similarity", "n_tokens", "text"),
    ),
    "usage": (
        *("question_id", "member", "role", "attempt", "source", "deployment", "prompt_tokens", "cached_tokens"),
        *("completion_tokens", "queue_s", "service_s", "gpu_s", "joules", "dollars"),
    ),
}
"""Columns the page reads from each of a run's tables."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's files in memory.

    Attributes:
        path: The directory.
        facts: ``run.json``.
        config: ``config.yaml`` as plain values.
        tables: Rows of every table of ``COLUMNS``, in the file's order.
        submission: ``submission.csv``.
    """

    path: str
    facts: Mapping[str, Any]
    config: Mapping[str, Any]
    tables: Mapping[str, list[Row]]
    submission: Submission

    @property
    def name(self) -> str:
        """Last part of the directory's path."""
        return os.path.basename(self.path)

    def setting(self, *keys: str) -> Any:
        """Look a key of the configuration up; None where it is not said."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def by_question(self, table: str) -> dict[str, list[Row]]:
        """Rows of a table by question, in the file's order."""
        rows: dict[str, list[Row]] = {}
        for row in self.tables[table]:
            rows.setdefault(row["question_id"], []).append(row)
        return rows


def read_run(run: str) -> RunFiles:
    """Read a run's directory.

    Raises:
        DataError: A file is missing or damaged; the text says which.
    """
    path = os.path.abspath(run)
    tables = {name: _read_table(path, name) for name in COLUMNS}
    facts = _mapping(path, "run.json", json.loads)
    config = _mapping(path, "config.yaml", yaml.safe_load)
    return RunFiles(path, facts, config, tables, read_submission(f"{path}/submission.csv"))


def publish(path: str, data: bytes) -> None:
    """Write a file in one step: a reader finds the old one or the whole new one.

    Raises:
        DataError: It cannot be written.
    """
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        Path(temporary).write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be written ({reason}): free the disk or choose another output.") from error


def _read_table(path: str, name: str) -> list[Row]:
    file = f"{path}/{name}.parquet"
    wanted = COLUMNS[name]
    try:
        have = pq.read_schema(file).names
        lacking = [column for column in wanted if column not in have]
        if lacking:
            raise DataError(
                f"{file}: has no column {', '.join(lacking)}; its columns are {', '.join(have)}: it is of another "
                "version, repeat `kohaku-ray answer`"
            )
        rows: list[Row] = pq.read_table(file, columns=list(wanted)).to_pylist()
    except FileNotFoundError:
        raise DataError(
            f"{path} holds no {name}.parquet: the run has not finished (repeat `kohaku-ray answer`), or this is no "
            "run's directory"
        ) from None
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{file} cannot be read ({error}): repeat `kohaku-ray answer`") from error
    return rows


def _mapping(path: str, name: str, parse: Any) -> Mapping[str, Any]:
    file = f"{path}/{name}"
    try:
        value = parse(Path(file).read_bytes())
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise DataError(f"{file} cannot be read ({error}): repeat `kohaku-ray answer`") from error
    if not isinstance(value, dict):
        raise DataError(f"{file} holds a {type(value).__name__}, not keys with values: repeat `kohaku-ray answer`")
    return value
