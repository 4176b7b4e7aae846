"""Read the files of a run for pages and comparisons."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.errors import ConfigError, DataError, did_you_mean
from kohaku_ray.evaluation.submissions import Submission, read_submission
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.storage import is_directory, join_path, read_file, without_options
from kohaku_ray.store.tables import SCHEMAS, grouped

if TYPE_CHECKING:
    import polars as pl

RunRow = dict[str, Any]
"""A row of one of a run's tables, by column."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's files: small ones in memory; its tables are read a few questions, or a few columns, at a time.

    Attributes:
        facts: ``run.json``.
        config: ``config.yaml``.
        submission: ``submission.csv``.
        n_questions: Rows of votes.parquet.
    """

    path: str
    facts: Mapping[str, Any]
    config: Mapping[str, Any]
    submission: Submission
    n_questions: int

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

    def columns(self, table: str, *names: str) -> pl.DataFrame:
        """Read columns of a table whole: of numbers and short words, no texts."""
        import polars as pl

        return pl.DataFrame(RunDirectory(self.path).read_table(table, names))

    def batches(self, table: str, *names: str) -> Iterator[pl.DataFrame]:
        """Read columns of a table a few thousand rows at a time."""
        import polars as pl

        return map(pl.DataFrame, RunDirectory(self.path).stream_table(table, names))

    def rows_by_question(self, table: str, *names: str) -> RowsByQuestion:
        """Read a table question by question; without names, all its columns."""
        return RowsByQuestion(self.path, table, names or None)


class RowsByQuestion:
    """The rows of one of a run's tables, taken question by question in the order of votes.parquet."""

    def __init__(self, run: str, table: str, columns: Sequence[str] | None = None) -> None:
        """Open a table of a run."""
        self._file = f"{table}.parquet of {run}"
        batches = RunDirectory(run).stream_table(table, columns)
        self._rows = (row for batch in batches for row in rows_of(batch))
        self._next = next(self._rows, None)

    def next_row(self) -> RunRow:
        """Return the next row, of a table with one per question."""
        assert self._next is not None, "votes.parquet has a row per question"
        row, self._next = self._next, next(self._rows, None)
        return row

    def take(self, question_id: str) -> list[RunRow]:
        """Return the rows of the next question: none where it has none."""
        rows = []
        while self._next is not None and self._next["question_id"] == question_id:
            rows.append(self._next)
            self._next = next(self._rows, None)
        return rows

    def check_taken(self) -> None:
        """Check that every row was taken, else ``DataError``: rows of a question do not stand where they should."""
        if self._next is not None:
            raise DataError(
                f"{self._file}: the rows of question {self._next['question_id']} do not stand together in the order of "
                "votes.parquet: repeat `kohaku-ray answer`"
            )


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
    """Open a run's directory; raises a ``DataError`` that says which file is missing or damaged."""
    directory = _existing(run)
    directory.check_tables()
    facts = _mapping(directory.path, "run.json", json.loads)
    from kohaku_ray.config.yaml_text import read_yaml

    config = _mapping(directory.path, "config.yaml", read_yaml)
    n_questions = directory.read_table("votes", ["question_id"]).num_rows
    return RunFiles(directory.path, facts, config, read_submission(directory.file("submission.csv")), n_questions)


def question_rows(run: str, question_id: str) -> dict[str, list[RunRow]]:
    """Read one question's rows of every table; raises a ``DataError`` where the run, finished, has none."""
    directory = _existing(run)
    mine = pc.field("question_id") == question_id
    rows = {name: rows_of(directory.read_table(name, filters=mine)) for name in SCHEMAS}
    if not rows["votes"]:
        known = directory.read_table("votes", columns=["question_id"])["question_id"].to_pylist()
        listed = f"; it has {len(known)} questions, from {known[0]} on: `kohaku-ray show {run}` lists them"
        hint = did_you_mean(question_id, known) or listed
        raise DataError(f"{directory.path} has no question {question_id}{hint}")
    return rows


def voted_questions(run: str) -> list[RunRow]:
    """Read the vote on every question of a finished run, in order."""
    return rows_of(_existing(run).read_table("votes"))


def _existing(run: str) -> RunDirectory:
    if not is_directory(run):
        raise DataError(f"{run}: there is no such directory: give that of a run, such as runs/demo")
    return RunDirectory(run)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[RunRow]:
    """Turn a run's table into rows, maps into dicts; if a map has a name twice, the last value wins.

    Column by column: Arrow's own ``to_pylist`` wraps every cell, which takes ten times as long.
    """
    columns = [_cells(column) for column in table.columns]
    names = table.schema.names
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _cells(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    import polars as pl

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if not pa.types.is_map(column.type):
        return [cell for chunk in chunks for cell in pl.Series(values=chunk).to_list()]
    maps: list[Any] = []
    for chunk in chunks:
        offsets, valid = chunk.offsets.to_pylist(), chunk.is_valid().to_pylist()
        first = offsets[0] if offsets else 0
        keys, items = (pl.Series(values=part.slice(first)).to_list() for part in (chunk.keys, chunk.items))
        for (start, stop), is_there in zip(pairwise(offsets), valid, strict=True):
            span = slice(start - first, stop - first)
            maps.append(dict(zip(keys[span], items[span], strict=True)) if is_there else None)
    return maps


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
