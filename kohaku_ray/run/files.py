"""Read the files of a run for pages and comparisons."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.errors import ConfigError, DataError, did_you_mean
from kohaku_ray.evaluation.submissions import Submission, read_submission
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.tables import SCHEMAS, grouped
from kohaku_ray.storage import is_directory, join_path, read_file, without_options

RunRow = dict[str, Any]
"""A row of one of a run's tables, by column."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's files in memory: ``run.json``, ``config.yaml``, the rows of every table in file order, the submission."""

    path: str
    facts: Mapping[str, Any]
    config: Mapping[str, Any]
    tables: Mapping[str, list[RunRow]]
    submission: Submission

    @property
    def name(self) -> str:
        """The last part of the directory's path."""
        return os.path.basename(without_options(self.path).rstrip("/"))

    def setting(self, *keys: str) -> Any:
        """Look up a key of the configuration; None if it is not set."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def fact(self, name: str, default: Any = None) -> Any:
        """Look up a fact in ``run.json`` (see ``facts_of``)."""
        return self.facts.get(name, default)

    def by_question(self, table: str) -> dict[str, list[RunRow]]:
        """Group a table's rows by question, in file order."""
        return grouped(self.tables[table], lambda row: str(row["question_id"]))


@dataclass(frozen=True, slots=True)
class StepRows:
    """One step of one member (``SHARED``: of all members) and attempt.

    Attributes:
        items: Its rows of trace.parquet, without rows that hold only an error, and without ``pool``.
        errors: Its distinct errors.
        pool: The first row, where it is no item but counts them by the scores ``in`` and ``out``.
    """

    name: str
    member: int
    attempt: int
    items: list[RunRow]
    errors: tuple[str, ...]
    pool: RunRow | None = None


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """A prompt of one or more calls.

    Attributes:
        members: Members that sent it; -1: the preparation that all members share.
        messages: ``(role, text)`` pairs; None: it is not what the run sent any more.
        n_images: Images that stood before the text.
    """

    role: str
    attempt: int
    members: tuple[int, ...]
    messages: tuple[tuple[str, str], ...] | None
    n_images: int = 0


def read_run(run: str) -> RunFiles:
    """Read a run's directory; raises a ``DataError`` that says which file is missing or damaged."""
    directory = _existing(run)
    tables = {name: rows_of(directory.read_table(name)) for name in SCHEMAS}
    facts = _mapping(directory.path, "run.json", json.loads)
    from kohaku_ray.config.yaml_text import read_yaml

    config = _mapping(directory.path, "config.yaml", read_yaml)
    return RunFiles(directory.path, facts, config, tables, read_submission(directory.file("submission.csv")))


def question_rows(run: str, question_id: str) -> dict[str, list[RunRow]]:
    """Read one question's rows of every table; raises a ``DataError`` where the run, finished, has none."""
    directory = _existing(run)
    mine = pc.field("question_id") == question_id
    rows = {name: rows_of(directory.read_table(name, filters=mine)) for name in SCHEMAS}
    if not rows["votes"]:
        known = directory.read_table("votes", columns=["question_id"])["question_id"].to_pylist()
        hint = did_you_mean(question_id, known) or f"; it has {len(known)} questions, from {known[0]} on"
        raise DataError(f"{directory.path} has no question {question_id}{hint}")
    return rows


def voted_questions(run: str) -> list[RunRow]:
    """Read the vote on every question of a finished run, in order."""
    return rows_of(_existing(run).read_table("votes"))


def _existing(run: str) -> RunDirectory:
    if not is_directory(run):
        raise DataError(f"{run}: there is no such directory: give that of a run, such as runs/demo")
    return RunDirectory(run)


def rows_of(table: pa.Table) -> list[RunRow]:
    """Turn a run's table into rows, maps into dicts; if a map has a name twice, the last value wins."""
    rows: list[RunRow] = table.to_pylist(maps_as_pydicts="lossy")
    return rows


def steps_of(trace: Sequence[RunRow]) -> list[StepRows]:
    """Group a question's rows of trace.parquet by step, member and attempt, in order of appearance."""
    steps = grouped(trace, lambda row: (row["step"], row["member"], row["attempt"]))
    return [_step(key, rows) for key, rows in steps.items()]


def _step(key: tuple[str, int, int], rows: list[RunRow]) -> StepRows:
    items = [row for row in rows if row["text"] or row["node_id"] or row["note"] or row["scores"]]
    errors = tuple(dict.fromkeys(row["error"] for row in rows if row["error"]))
    first = items[0] if items else None
    if first and first["node_id"] is None and not first["text"] and {"in", "out"} <= first["scores"].keys():
        return StepRows(*key, items[1:], errors, pool=first)
    return StepRows(*key, items, errors)


def _mapping(path: str, name: str, parse: Any) -> Mapping[str, Any]:
    file = join_path(path, name)
    try:
        value = parse(read_file(file))
    except (OSError, ValueError, ConfigError, RecursionError) as error:
        raise DataError(f"{file} cannot be read ({error}): repeat `kohaku-ray answer`") from error
    if not isinstance(value, dict):
        raise DataError(f"{file} holds a {type(value).__name__}, not keys with values: repeat `kohaku-ray answer`")
    return value
