"""A run's directory: what an answer job writes, and how it is read again."""

from __future__ import annotations

import functools
import json
import os
import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kohaku_ray import __version__
from kohaku_ray.config import Config, as_yaml, load_config
from kohaku_ray.errors import DataError
from kohaku_ray.files import publish_with
from kohaku_ray.runs.sources import resolve
from kohaku_ray.runs.tables import SCHEMAS


class RunDirectory:
    """The outputs of one answer job."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def check_writable(self) -> None:
        """Make the directory and check that it takes files; nothing in it is touched.

        Raises:
            DataError: It cannot be written.
        """
        probe = f"{self.path}/{uuid.uuid4().hex[:8]}.tmp"
        try:
            os.makedirs(self.path, exist_ok=True)
            Path(probe).touch()
            os.unlink(probe)
        except OSError as error:
            raise self._unwritable(error) from None

    def begin(self, config: Config) -> None:
        """Note that a run is under way: the last step before work starts, when nothing can refuse it any more.

        Raises:
            DataError: The directory cannot be written.
        """
        text = as_yaml(config)
        if self._read("config.yaml") not in (None, text):
            # Another configuration's outputs must not stand under this one's name.
            tables = (f"{table}.parquet" for table in SCHEMAS)
            for name in (*tables, "submission.csv", "report.html", *config.declaration.outputs):
                Path(self.path, name).unlink(missing_ok=True)
        self.write_text("config.yaml", text)
        self.write_text("run.json", json.dumps({"status": "running"}))

    def finish(self, config: Config, summary: Any) -> None:
        """Note that the run is done: its counts, what its system declared, and the versions it ran on."""
        facts = {
            "status": "finished",
            **asdict(summary),
            **facts_of(config),
            "versions": {"kohaku_ray": __version__, "ray": version("ray"), "python": platform.python_version()},
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
            self._publish(f"{name}.parquet", functools.partial(pq.write_table, table, compression="zstd"))

    def read_table(self, name: str, **options: Any) -> pa.Table:
        """Read one of ``SCHEMAS``.

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
        except (OSError, pa.ArrowException) as error:
            columns = set(options.get("columns", ()))
            lacking = ", ".join(sorted(columns - set(_columns_of(file))))
            if lacking:
                raise DataError(
                    f"{file}: has no column {lacking}: it is of another version, repeat `kohaku-ray answer`"
                ) from None
            raise DataError(f"{file} cannot be read ({error}): repeat `kohaku-ray answer`") from None

    def rows_in_error(self) -> frozenset[tuple[str, int]]:
        """Questions and members whose answers or evidence carry an error; none where the run has not finished."""
        found: set[tuple[str, int]] = set()
        for name in ("answers", "trace"):
            if os.path.exists(f"{self.path}/{name}.parquet"):
                rows = self.read_table(
                    name, columns=["question_id", "member", "error"], filters=~pc.field("error").is_null()
                )
                found |= set(zip(rows["question_id"].to_pylist(), rows["member"].to_pylist(), strict=True))
        return frozenset(found)

    def _publish(self, name: str, write: Callable[[str], object]) -> None:
        publish_with(f"{self.path}/{name}", write, _WAY_OUT)

    def _unwritable(self, error: OSError) -> DataError:
        return DataError(f"run is {self.path} and cannot be written ({error.strerror or error}): {_WAY_OUT}")


_WAY_OUT = "free the disk or its rights, or set run to another directory; model replies are safe in the ledger"


def _columns_of(file: Path) -> list[str]:
    try:
        return list(pq.read_schema(file).names)
    except (OSError, pa.ArrowException):
        return []


def facts_of(config: Config) -> dict[str, Any]:
    """Collect what pages say of a run without asking its system."""
    members, roles = range(config.ensemble.members), config.uses.roles
    asked = {role: dict.fromkeys(config.role(role, member).model for member in members) for role in roles}
    models = {role: [f"{name} ({config.deployments[name].kind})" for name in names] for role, names in asked.items()}
    answering = config.answering_deployments
    return {
        "system": config.declaration.name,
        "metrics": list(config.declaration.metrics),
        "models": models,
        "lead": config.declaration.lead,
        "n_answering": len(answering),
        "baselines": [name for name, deployment in answering.items() if deployment.kind == "extractive"],
        "limit": config.questions.limit,
    }


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


def own_truth(run: str) -> str | None:
    """Find the question file that a run answered, where it may hold gold answers: a CSV that is there."""
    if not os.path.isfile(f"{run}/config.yaml"):
        return None
    path = resolve(load_config(f"{run}/config.yaml").questions.path)
    return path if path.endswith(".csv") and os.path.exists(path) else None


def truth_of(runs: Sequence[str]) -> str:
    """Find gold answers: the question file of the first run that says which one it answered.

    Raises:
        DataError: No run does.
    """
    for run in runs:
        if os.path.isfile(f"{run}/config.yaml"):
            return resolve(load_config(f"{run}/config.yaml").questions.path)
    raise DataError(f"{', '.join(runs)}: no run's directory among them names its questions: say --truth CSV")
