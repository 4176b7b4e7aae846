"""A run's directory: what an answer job writes, and how it is read again."""

from __future__ import annotations

import json
import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kohaku_ray import __version__
from kohaku_ray.config import Config, as_yaml, load_config
from kohaku_ray.runs.sources import resolve
from kohaku_ray.errors import DataError

TABLES = ("answers", "votes", "plans", "evidence", "usage")
"""Parquet files of a run; all but usage are the same after every resume."""


class RunDirectory:
    """The outputs of one answer job."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def begin(self, config: Config) -> None:
        """Make the directory, check that it takes files, and note that a run is under way.

        Raises:
            DataError: It cannot be written.
        """
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        text = as_yaml(config)
        if self._read("config.yaml") not in (None, text):
            # Another configuration's outputs must not stand under this one's name.
            for name in (*(f"{table}.parquet" for table in TABLES), "submission.csv", "report.html"):
                Path(self.path, name).unlink(missing_ok=True)
        self.write_text("config.yaml", text)
        self.write_text("run.json", json.dumps({"status": "running"}))

    def finish(self, summary: Any) -> None:
        """Note that the run is done, with its counts and the versions it ran on."""
        import ray

        facts = {
            "status": "finished",
            **asdict(summary),
            "versions": {"kohaku_ray": __version__, "ray": ray.__version__, "python": platform.python_version()},
        }
        self.write_text("run.json", json.dumps(facts, indent=2))

    def _read(self, name: str) -> str | None:
        try:
            return Path(self.path, name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write_text(self, name: str, text: str) -> None:
        """Write a small file in one step."""
        self._publish(name, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))

    def write_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Write tables in one step each, without anything that differs from run to run."""
        for name, table in tables.items():
            self._publish(
                f"{name}.parquet", lambda temporary, table=table: pq.write_table(table, temporary, compression="zstd")
            )

    def read_table(self, name: str, **options: Any) -> pa.Table:
        """Read one of ``TABLES``.

        Raises:
            DataError: The run has none (yet).
        """
        file = Path(self.path) / f"{name}.parquet"
        try:
            return pq.read_table(file, **options)
        except FileNotFoundError:
            raise DataError(
                f"{self.path} holds no {name}.parquet: the run has not finished (repeat `kohaku-ray answer`), or this "
                "is no run's directory"
            ) from None
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{file} cannot be read: {error}") from None

    def _publish(self, name: str, write: Any) -> None:
        target = os.path.join(self.path, name)
        temporary = f"{target}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            write(temporary)
            os.replace(temporary, target)
        except OSError as error:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> DataError:
        return DataError(
            f"run is {self.path} and cannot be written ({error.strerror or error}): free the disk or its rights, or "
            "set run to another directory; model replies are safe in the ledger"
        )


def submission_of(run: str) -> str:
    """Find the submission of a run's directory; a file is one itself.

    Raises:
        DataError: The run has not finished, or there is neither.
    """
    if not os.path.isdir(run):
        return run
    file = f"{run}/submission.csv"
    if not os.path.isfile(file):
        raise DataError(f"{run} holds no submission.csv: the run has not finished, or this is no run's directory")
    return file


def truth_of(runs: Sequence[str]) -> str:
    """Find gold answers: the question file of the first run that says which one it answered.

    Raises:
        DataError: No run does.
    """
    for run in runs:
        if os.path.isfile(f"{run}/config.yaml"):
            return resolve(load_config(f"{run}/config.yaml").questions.path)
    raise DataError(f"{', '.join(runs)}: no run's directory among them names its questions: say --truth CSV")
