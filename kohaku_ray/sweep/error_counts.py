"""The errors of a sweep's runs: by class, and by the facts of the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.sweep.compare import SweepRecord, SweepRun
from kohaku_ray.values.read import parse_number


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """What runs with the same facts lack to a full score: 1 less the score, and 1 less each part, means over the runs.

    A run is scored on the questions that its cell has.
    """

    labels: tuple[str, ...]  # of the facts
    score: float
    parts: Mapping[str, float]


def error_rates(sweep: SweepRecord, *facts: str) -> list[ErrorRate]:
    """Group the scored runs by their labels of some facts; numbers ascend, other labels keep their order."""
    scored: dict[str, tuple[float, dict[str, float]]] = {}
    for cell in (cell for table in sweep.tables for cell in table.cells if cell.is_scored):
        for row, run_id in enumerate(cell.run_ids):
            parts = {name: float(part[row].mean()) for name, part in cell.parts.items()}
            scored.setdefault(run_id, (float(cell.total[row].mean()), parts))
    groups: dict[tuple[str, ...], list[tuple[float, dict[str, float]]]] = {}
    for run in sweep.runs:
        if run.run_id in scored and all(fact in run.facts for fact in facts):
            groups.setdefault(tuple(run.facts[fact] for fact in facts), []).append(scored[run.run_id])
    rates = []
    for labels in sorted(groups, key=lambda labels: [by_number(label) for label in labels]):
        scores, parts_of_runs = zip(*groups[labels], strict=True)
        means = {name: 1 - float(np.mean([parts[name] for parts in parts_of_runs])) for name in parts_of_runs[0]}
        rates.append(ErrorRate(labels, 1 - float(np.mean(scores)), means))
    return rates


def by_number(label: str) -> tuple[bool, float]:
    """Sort labels: numbers ascend, then all others, in the order they have."""
    number = parse_number(label)
    return number is None, number or 0.0


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Predictions of the runs that share a label: how many, and how many in each class of errors."""

    label: str
    n: int
    counts: Counter[str]
    rate: ErrorRate | None = None  # of those that a cell scores

    @property
    def n_right(self) -> int:
        """Number of predictions without an error."""
        return self.n - self.counts.total()

    def share(self, name: str) -> float:
        """Share of a class in all predictions."""
        return self.counts[name] / self.n if self.n else 0.0


class ErrorClass(NamedTuple):
    """A class of errors in all runs."""

    name: str
    n: int
    share: float  # of all errors
    note: str  # what the class means


def list_classes(sweep: SweepRecord) -> tuple[ErrorClass, ...]:
    """Count the classes over all runs, the most frequent first; classes without an error are left out."""
    given = [answer.error for run in sweep.runs for answer in run.predictions.values()]
    counts = {name: given.count(name) for name in sweep.metric.classes}
    n = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return tuple(
        ErrorClass(name, count, count / n, sweep.metric.class_notes.get(name, "")) for name, count in ordered if count
    )


def scored_parts(metric: Metric) -> list[str]:
    """Name the parts of a score that count, those with the greatest weight first."""
    weighed = [name for name, part in metric.parts.items() if part.weight]
    return sorted(weighed, key=lambda name: -metric.parts[name].weight)


def count_errors(sweep: SweepRecord, fact: str | None = None) -> list[ErrorCounts]:
    """Count the classes by a fact of the runs, or over all runs; numbers ascend, other labels keep their order."""
    groups: dict[str, list[SweepRun]] = {}
    for run in sweep.runs:
        if fact is None or fact in run.facts:
            groups.setdefault("all runs" if fact is None else run.facts[fact], []).append(run)
    rates = {rate.labels: rate for rate in error_rates(sweep, *([] if fact is None else [fact]))}
    error_counts = []
    for label in sorted(groups, key=by_number):
        counts = Counter(given.error for run in groups[label] for given in run.predictions.values())
        of_class = Counter({name: counts[name] for name in sweep.metric.classes})
        rate = rates.get(() if fact is None else (label,))
        error_counts.append(ErrorCounts(label, counts.total(), of_class, rate))
    return error_counts
