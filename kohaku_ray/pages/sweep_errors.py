"""Errors in the predictions of a sweep: counted by the settings in which the runs differ, with examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kohaku_ray.evaluation.grid import Run, Sweep, SweepAnswer, SweepQuestion
from kohaku_ray.values.read import parse_number

N_EXAMPLES = 3
"""Most examples per class, each of another question."""

ALL = "all runs"


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Predictions of the runs that share a label.

    Attributes:
        label: Their label.
        n: Number of predictions.
        counts: Number of predictions in each class of the metric.
    """

    label: str
    n: int
    counts: Counter[str]

    @property
    def n_right(self) -> int:
        """Number of predictions without an error."""
        return self.n - self.counts.total()

    def share(self, name: str) -> float:
        """Share of a class in all predictions."""
        return self.counts[name] / self.n if self.n else 0.0


@dataclass(frozen=True, slots=True)
class Example:
    """A wrong prediction.

    Attributes:
        question: The question, with its truth.
        given: The answer.
        run: The run that gave it.
    """

    question: SweepQuestion
    given: SweepAnswer
    run: Run


def count_all(sweep: Sweep) -> ErrorCounts:
    """Count the classes over all predictions of all runs."""
    return _count(ALL, sweep.runs, sweep.metric.classes)


def count_by(sweep: Sweep, fact: str) -> list[ErrorCounts]:
    """Count the classes by a fact of the runs; numbers ascend, other labels keep their order."""
    groups: dict[str, list[Run]] = {}
    for run in sweep.runs:
        if fact in run.facts:
            groups.setdefault(run.facts[fact], []).append(run)
    labels = list(groups)
    numbers = {label: parse_number(label) for label in labels}
    labels.sort(key=lambda label: (numbers[label] is None, numbers[label] or 0.0))
    return [_count(label, groups[label], sweep.metric.classes) for label in labels]


def facts_of(runs: Sequence[Run]) -> list[str]:
    """Name the facts in which runs differ, in order of appearance."""
    return list(dict.fromkeys(fact for run in runs for fact in run.facts))


def examples(sweep: Sweep) -> dict[str, list[Example]]:
    """Pick up to ``N_EXAMPLES`` of each class, each of another question, and of other runs where possible."""
    asked = {question.question_id: question for question in sweep.questions}
    found: dict[str, dict[str, Example]] = {name: {} for name in sweep.metric.classes}
    spare: dict[str, dict[str, Example]] = {name: {} for name in sweep.metric.classes}
    for run in sweep.runs:
        had = set()
        for question_id, given in run.predictions.items():
            name = given.error
            if name not in found or question_id not in asked or question_id in found[name]:
                continue
            into = spare[name] if name in had else found[name]
            if len(into) < N_EXAMPLES:
                into.setdefault(question_id, Example(asked[question_id], given, run))
                had.add(name)
    return {name: list((of_class | spare[name] | of_class).values())[:N_EXAMPLES] for name, of_class in found.items()}


def _count(label: str, runs: Sequence[Run], classes: Sequence[str]) -> ErrorCounts:
    counts = Counter(given.error for run in runs for given in run.predictions.values())
    n = counts.total()
    return ErrorCounts(label, n, Counter({name: counts[name] for name in classes}))
