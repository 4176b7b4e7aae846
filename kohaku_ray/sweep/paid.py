"""What a sweep has paid, over all its starts: a line of its log per run that ended, summed when a job starts."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Mapping

from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.storage import is_uri
from kohaku_ray.sweep.plan import SweepPlan
from kohaku_ray.sweep.race import SHARDS, SweepLog

_ACT, _NAMES = "paid", ("tokens", "dollars")


class SweepPaid:
    """Tokens and dollars that the runs of a sweep have paid, and the parts of questions that a race has made.

    The log has them by directory. Only a directory that no line names is looked into, once: it is of a version that
    logged no payments, of another sweep or job, or of a start that was killed.
    """

    def __init__(self, plan: SweepPlan) -> None:
        self._output = plan.output
        self._log = SweepLog(self._output)
        shards = glob.glob(os.path.join(glob.escape(self._output), SHARDS, "*", "*"))
        directories = [*(config.run for config in plan.runs.values()), *shards]
        entries, _ = self._log.read()
        logged = {entry.get("run"): _amounts(entry) for entry in entries if entry["act"] == _ACT}
        self._paid = {
            directory: logged[name] if (name := self._name(directory)) in logged else _read(directory)
            for directory in directories
        }

    def add(self, directory: str, paid: Mapping[str, float]) -> None:
        """Log what a run that has ended paid over all its starts; nothing: another job has made it."""
        known = self._paid.get(directory)
        self._paid[directory] = _amounts(paid) if paid else _read(directory)
        if self._paid[directory] != known:
            self._log.append(_ACT, run=self._name(directory), **self._paid[directory])

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
