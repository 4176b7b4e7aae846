"""Metrics as data: the parts of a score, how they weigh, and how one question is scored; found by name.

::

    EXACT = Metric("exact", "Exact match", parts={"value": Part()}, rate=rate, unanswerable=unanswerable)

Your own metric is one such object, named as ``module:NAME`` or through the entry-point group ``kohaku_ray.metrics``.
Figures of a whole set of predictions, beside the mean of their scores, are numbers, tables and points to plot.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kohaku_ray.errors import ConfigError, DataError, KohakuRayError, MetricError, describe_raised
from kohaku_ray.evaluation import DEFAULT_METRIC as DEFAULT_METRIC
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.extensions import find_registered
from kohaku_ray.index.arrays import F64
from kohaku_ray.records import BLANK
from kohaku_ray.table import Table


@dataclass(frozen=True, slots=True)
class Number:
    """A named number with its 95 % interval, where it is computed, and a few words on it."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    note: str = ""

    @property
    def text(self) -> str:
        """The number with its interval."""
        ends = "" if self.interval is None else f" ({self.interval[0]:.4f} to {self.interval[1]:.4f})"
        return f"{self.value:.4f}{ends}"


@dataclass(frozen=True, slots=True)
class Points:
    """Shares against shares, each between 0 and 1, with the predictions behind them; on the diagonal they are equal."""

    title: str
    note: str
    x_label: str
    y_label: str
    points: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a set of predictions over ``n`` questions."""

    n: int
    numbers: tuple[Number, ...]
    tables: tuple[Table, ...] = ()
    plots: tuple[Points, ...] = ()


FiguresOf = Callable[[Submission, Submission], Figures | None]
"""Computes the figures of a submission from a truth and the submission; None: there is nothing to count."""


Scalar = TypeVar("Scalar", float, F64)
T = TypeVar("T")

_TAKEN = frozenset(
    {"file", "metric", "score", "n", "missing", "by", "label", "errors", "figures", "interval"}
)  # other columns of a score


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a score; of weight 0 it is shown beside it, and an empty title is its name.

    ``of_unanswerable``: averaged over the unanswerable questions alone; 1.0 where there is none.
    """

    weight: float = 1.0
    title: str = ""
    of_unanswerable: bool = False


@dataclass(frozen=True, slots=True)
class QuestionScore:
    """One question's score: its parts in the metric's order, and their weighted sum.

    The first part says whether the answer itself is right. Of a ``missing`` row, which the submission lacks, all are 0.
    """

    question_id: str
    parts: Mapping[str, float]
    total: float
    unanswerable: bool
    missing: bool = False

    @property
    def is_right(self) -> bool:
        """Whether the answer itself is right, whatever the other parts."""
        return next(iter(self.parts.values())) > 0.5


@dataclass(frozen=True, slots=True)
class Score:
    """A submission's score over ``n`` questions; ``missing`` are not in it. Parts are means."""

    score: float
    parts: Mapping[str, float]
    n: int
    missing: int


@dataclass(frozen=True, slots=True)
class OutcomeMarks:
    """Marks for the outcomes of votes: by part, functions of a question's index in the truth.

    They map the written value (an abstention writes the empty text), the cited references (lower-cased), or whether
    the ensemble abstains.
    """

    by_value: Mapping[str, Callable[[int, str], float]] = field(default_factory=dict)
    by_refs: Mapping[str, Callable[[int, frozenset[str]], float]] = field(default_factory=dict)
    by_blank: Mapping[str, Callable[[int, bool], float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric: how predictions are scored.

    Attributes:
        name: Name in configurations and tables.
        title: Its title, one line.
        parts: Parts of a score by name, in the order shown. The first says whether the answer itself is right.
        rate: Maps a question's truth and its prediction to every part, each between 0 and 1.
        unanswerable: Whether a question's truth says that there is no answer.
        marks: Marks of votes over recorded members, for studies without a new call; None: not supported.
        classify: Maps a question's truth and its prediction to the class of the error; None: nothing is wrong.
        classes: All classes, in the order shown.
        class_notes: What classes mean, in a few words, by name.
        truth_columns: Columns that a truth file must have beside ``id``; of a tuple, any one.
        filled_columns: Columns of a submission that must not be empty in any row.
        counts_missing: Whether a question that a submission lacks counts 0, or leaves its mean.
        oddity: Says what is odd about a question's gold answer and how it is read; empty: nothing.
        gold: A question's gold value as shown; empty: it has none.
        needs_gold: A question without a gold value is not scored.
        figures: Figures of a whole set of predictions.
        baseline: Describes, in a sentence, the score of predictions that ignore the question.
    """

    name: str
    title: str
    parts: Mapping[str, Part]
    rate: Callable[[SubmissionRow, SubmissionRow], Mapping[str, float]]
    unanswerable: Callable[[SubmissionRow], bool]
    marks: Callable[[Submission], OutcomeMarks] | None = None
    classify: Callable[[SubmissionRow, SubmissionRow], str | None] | None = None
    classes: tuple[str, ...] = ()
    class_notes: Mapping[str, str] = field(default_factory=dict)
    truth_columns: tuple[str | tuple[str, ...], ...] = ("answer_value", "ref_id")
    filled_columns: tuple[str, ...] = ()
    counts_missing: bool = True
    oddity: Callable[[SubmissionRow], str] = lambda truth: ""
    gold: Callable[[SubmissionRow], str] = lambda truth: truth.answer_value
    needs_gold: bool = False
    figures: FiguresOf | None = None
    baseline: Callable[[Submission], str] | None = None

    def __post_init__(self) -> None:
        """Check the names of the parts."""
        taken = ", ".join(sorted(_TAKEN & self.parts.keys()))
        if taken or not self.parts:
            what = f"a part is called {taken}, which is another column of a score" if taken else "it has no parts"
            raise ConfigError(f"metric {self.name}: {what}: name its parts otherwise, at least one.")
        for name in _CODE:
            if (function := getattr(self, name)) is not None:
                object.__setattr__(self, name, _naming_errors(self.name, function))

    @property
    def formula(self) -> str:
        """The formula of the score, one readable line."""
        weighed = {name: part for name, part in self.parts.items() if part.weight}
        if len(weighed) == 1:
            return self.label(*weighed)
        return " + ".join(f"{part.weight:.2f} {self.label(name)}" for name, part in weighed.items())

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest possible score."""
        return self.weigh(self.parts_at_end(0.0)), self.weigh(self.parts_at_end(1.0))

    def parts_at_end(self, end: float) -> dict[str, float]:
        """Parts of the lowest score (``end`` 0) or the highest (1): a part of negative weight takes points off."""
        return {name: end if part.weight >= 0 else 1.0 - end for name, part in self.parts.items()}

    def label(self, part: str) -> str:
        """Title of a part."""
        return self.parts[part].title or part

    def score_question(self, truth: SubmissionRow, given: SubmissionRow | None) -> QuestionScore:
        """Score one prediction; None, a missing row, scores 0 in every part, as a failed one does.

        Raises:
            ConfigError: The metric's ``rate`` returns other parts than it declares.
            MetricError: It returns something else than a number from 0 to 1.
        """
        is_unanswerable = self.unanswerable(truth)
        if given is None:
            return QuestionScore(truth.question_id, dict.fromkeys(self.parts, 0.0), 0.0, is_unanswerable, missing=True)
        if given.is_failed:
            return QuestionScore(truth.question_id, dict.fromkeys(self.parts, 0.0), 0.0, is_unanswerable)
        rated = self.rate(truth, given)
        if not isinstance(rated, Mapping) or rated.keys() != self.parts.keys():
            names = ", ".join(map(str, rated)) if isinstance(rated, Mapping) else repr(rated)
            raise ConfigError(
                f"metric {self.name} rates {names or 'nothing'} at question {truth.question_id} but its parts are "
                f"{', '.join(self.parts)}: make `rate` and `parts` agree."
            )
        parts = {}
        for name in self.parts:
            try:
                parts[name] = float(rated[name])
            except (TypeError, ValueError):
                parts[name] = math.nan
            if not 0.0 <= parts[name] <= 1.0:
                raise MetricError(
                    f"metric {self.name} rates {name} {rated[name]!r} at question {truth.question_id}: "
                    "let `rate` return a number from 0 to 1.",
                    self.name,
                )
        return QuestionScore(truth.question_id, parts, self.weigh(parts), is_unanswerable)

    def score(self, truth: Submission, predicted: Submission) -> list[QuestionScore]:
        """Score every question of the truth, in its order; rows that the truth lacks are ignored.

        Raises:
            DataError: The truth has no rows.
        """
        if not truth.rows:
            raise DataError(f"{truth.path}: has no rows with an id, so there is nothing to score against.")
        return [self.score_question(row, predicted.rows.get(key)) for key, row in truth.rows.items()]

    def aggregate(self, rows: Sequence[QuestionScore]) -> Score:
        """Aggregate per-question scores (at least one) to a submission's score; 0 where none of them counts."""
        counted = self.counted(rows)
        parts = {}
        for name, part in self.parts.items():
            scores = [row.parts[name] for row in counted if row.unanswerable or not part.of_unanswerable]
            parts[name] = sum(scores) / len(scores) if scores else float(bool(counted))
        return Score(self.weigh(parts), parts, len(counted), sum(row.missing for row in rows))

    def counted(self, rows: Sequence[QuestionScore]) -> list[QuestionScore]:
        """The per-question scores that enter the mean: without missing rows where those leave it."""
        return [row for row in rows if self.counts_missing or not row.missing]

    def aggregate_by(self, rows: Sequence[QuestionScore], by: Sequence[str]) -> dict[str, Score]:
        """Aggregate per-question scores to one score per label of ``by`` (one per row), in order of appearance."""
        groups: dict[str, list[QuestionScore]] = {}
        for row, label in zip(rows, by, strict=True):
            groups.setdefault(label, []).append(row)
        return {label: self.aggregate(group) for label, group in groups.items()}

    def shares(self, parts: Mapping[str, F64], unanswerable: npt.ArrayLike) -> F64:
        """Share of each question in the score; the mean over questions is the score of ``aggregate``.

        A part of the unanswerable questions alone counts n / u there and 0 elsewhere, for u of n questions; where
        there is none, every question has the metric's 1.0.

        Args:
            parts: Shape ``(..., n_questions)`` each, by name.
            unanswerable: Shape ``(n_questions,)``.
        """
        blank = np.asarray(unanswerable, dtype=bool)
        n_blank = int(blank.sum())
        counted = {}
        for name, part in self.parts.items():
            scores = np.asarray(parts[name], dtype=np.float64)
            if part.of_unanswerable:
                scores = np.where(blank, scores * (blank.size / n_blank), 0.0) if n_blank else np.ones_like(scores)
            counted[name] = scores
        return self.weigh(counted)

    def shares_of(self, rows: Sequence[QuestionScore]) -> F64:
        """Compute ``shares`` of one submission's questions: shape ``(n_questions,)``."""
        parts = {name: np.array([row.parts[name] for row in rows]) for name in self.parts}
        return self.shares(parts, [row.unanswerable for row in rows])

    def find_errors(self, truth: Submission, predicted: Submission) -> dict[str, list[str]]:
        """List the ids in each class, of questions that a submission answers: the scores count missing rows."""
        wrong: dict[str, list[str]] = {name: [] for name in self.classes}
        for key, row in truth.rows.items():
            given = predicted.rows.get(key)
            name = self.classify(row, given) if self.classify is not None and given is not None else None
            if name is not None:
                wrong[name].append(key)
        return wrong

    def check(self, truth: Submission) -> None:
        """Try the metric's code on gold answers, against themselves and against abstentions.

        Raises:
            MetricError: It raised; the message names the question, the file and the line.
        """
        blanks = {
            key: replace(row, answer=BLANK, answer_value=BLANK, ref_ids=(), refs_raw=BLANK)
            for key, row in truth.rows.items()
        }
        for submission in (truth, replace(truth, rows=blanks)):
            self.aggregate(self.score(truth, submission))
            self.find_errors(truth, submission)
            if self.figures is not None:
                self.figures(truth, submission)

    def weigh(self, parts: Mapping[str, Scalar]) -> Scalar:
        """Compute the weighted sum of the parts of a question, a submission or, as arrays, of many."""
        weighted = [part.weight * parts[name] for name, part in self.parts.items()]
        return sum(weighted[1:], start=weighted[0])


_CODE = ("rate", "unanswerable", "marks", "classify", "oddity", "gold", "figures", "baseline")


def _naming_errors(metric: str, function: Callable[..., T]) -> Callable[..., T]:
    """Make what a metric's function raises a ``MetricError`` with the question, the file and the line."""

    @functools.wraps(function)
    def call(*given: Any) -> T:
        try:
            return function(*given)
        except KohakuRayError:
            raise
        except Exception as error:  # a user's function may raise anything
            at = f" at question {given[0].question_id}" if isinstance(given[0], SubmissionRow) else ""
            raise MetricError(f"metric {metric} failed{at} with {describe_raised(error)}", metric) from error

    return call


def find_metric(name: str) -> Metric:
    """Load a metric: a built-in one, one of an installed package, or your own as ``module:NAME``.

    Raises:
        ConfigError: There is no such metric.
    """
    return find_registered("metrics", name, Metric)
