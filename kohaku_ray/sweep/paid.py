"""What a sweep has paid, over all its starts: a line of its log per run that ended, summed when a job starts."""

from __future__ import annotations

import glob
import json
import os
import time
from collections import Counter
from collections.abc import Mapping

from kohaku_ray.errors import DataError
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.storage import is_uri, write_error
from kohaku_ray.sweep.plan import SweepPlan

LOG = "sweep.jsonl"
"""File of a sweep's directory: one JSON object per line, what a run has paid; lines of older releases say more."""

SHARDS = "race"
"""Directory of a sweep's of what its runs answered shard by shard: one per run, in it one per shard."""

_ACT, _NAMES = "paid", ("tokens", "dollars")


class SweepPaid:
    """Tokens and dollars that the runs of a sweep have paid, and the shards of questions that they answered apart.

    The log has them by directory. Only a directory that no line names is looked into, once: it is of a version that
    logged no payments, of another sweep or job, or of a start that was killed.
    """

    def __init__(self, plan: SweepPlan) -> None:
        self._output = plan.output
        self._log = os.path.join(self._output, LOG)
        shards = glob.glob(os.path.join(glob.escape(self._output), SHARDS, "*", "*"))
        directories = [*(config.run for config in plan.runs.values()), *shards]
        logged = _read_log(self._log)
        self._paid = {
            directory: logged[name] if (name := self._name(directory)) in logged else _read(directory)
            for directory in directories
        }

    def add(self, directory: str, paid: Mapping[str, float]) -> None:
        """Log what a run that has ended paid over all its starts; nothing: another job has made it."""
        known = self._paid.get(directory)
        self._paid[directory] = _amounts(paid) if paid else _read(directory)
        if self._paid[directory] != known:
            _append_to_log(self._log, {"run": self._name(directory), **self._paid[directory]})

    def total(self) -> Counter[str]:
        """Sum it over all runs."""
        total: Counter[str] = Counter()
        for paid in self._paid.values():
            total.update(paid)
        return total

    def _name(self, directory: str) -> str:
        return directory if is_uri(directory) else os.path.relpath(directory, self._output)


def _read(directory: str) -> dict[str, float]:
    return _amounts(RunDirectory(directory).paid())


def _amounts(paid: Mapping[str, object]) -> dict[str, float]:
    return {name: amount for name in _NAMES if isinstance(amount := paid.get(name), int | float)}


def _read_log(path: str) -> dict[str, dict[str, float]]:
    """Return the amounts of the last line of each run; lines that are none are passed over."""
    logged = {}
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _log_fault(path, "read", error) from None
    for line in filter(None, lines):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and entry.get("act") == _ACT and isinstance(entry.get("run"), str):
            logged[entry["run"]] = _amounts(entry)
    return logged


def _append_to_log(path: str, values: Mapping[str, object]) -> None:
    """Append a line in one write; a line that a killed process left torn stays one of its own."""
    line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "act": _ACT, **values})
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab+") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            torn = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(torn + line.encode() + b"\n")
    except OSError as error:
        raise _log_fault(path, "written", error) from None


def _log_fault(path: str, done: str, error: OSError) -> DataError:
    way_out = "see whose it is, or give -o for another directory"
    return write_error(f"{path}: cannot be {done} ({error.strerror}): {way_out}", error)
