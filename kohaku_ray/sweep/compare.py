"""The tables of a sweep, cells with the score of every question under every seed, and comparisons of the cells.

Each cell is compared with the best of its column; rows are ranked over all columns, settings on groups of questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.compare import FEW_QUESTIONS as FEW_QUESTIONS
from kohaku_ray.evaluation.compare import Split, split_of
from kohaku_ray.evaluation.metrics import Metric, Score
from kohaku_ray.evaluation.paired import (
    Interval,
    Permutation,
    paired_bootstrap,
    paired_differences,
    paired_effect,
    paired_permutation,
)
from kohaku_ray.evaluation.report import labels_of
from kohaku_ray.evaluation.selection import Selection, select
from kohaku_ray.evaluation.statistics import Welch, average_ranks, holm, mean_sd, stars, welch
from kohaku_ray.evaluation.submissions import Submission
from kohaku_ray.index.arrays import F64, I64

FEW_SEEDS = 3
"""A cell over fewer seeds, or than `FEW_QUESTIONS`, is marked: its differences may be chance."""

State = Literal["finished", "partial", "failed", "skipped", "unfinished"]
"""State of a cell: all of its seeds finished, some of them, none because of an error, none because something is
missing, none so far."""


@dataclass(frozen=True, slots=True)
class SweepQuestion:
    """One question of the sweep and its truth.

    Attributes:
        question_id: Unique in the sweep.
        text: The question.
        answer_value: The true value; ``is_blank`` where there is none.
        answer_unit: Its unit.
        refs: The true references, as written.
    """

    question_id: str
    text: str
    answer_value: str
    answer_unit: str
    refs: str


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """One run's answer to one question, as its submission has it.

    Attributes:
        answer_value: The value as written; ``is_blank`` for an abstention.
        refs: The references as written.
        error: Its error class, one of the metric's ``classes``; None where nothing is wrong.
    """

    answer_value: str
    refs: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run: one setting under one seed. Cells of several tables may share a run.

    Attributes:
        run_id: Digest of the setting and its seed.
        path: Its directory; empty where there is none.
        seed: Base of its seeds.
        facts: Settings by which errors are counted, such as ``model`` and ``k``.
        predictions: By question id.
        n_calls: Model calls requested.
        tokens: Prompt and generated tokens of these calls, whichever run made them.
        service_s: Seconds of these calls in the backend, whichever run made them.
        n_answers: Answers of its members.
        n_errors: Answers with an error.
    """

    run_id: str
    path: str
    seed: int
    facts: Mapping[str, str]
    predictions: Mapping[str, SweepAnswer]
    n_calls: int
    tokens: int
    service_s: float
    n_answers: int = 0
    n_errors: int = 0


@dataclass(frozen=True, slots=True)
class TableCell:
    """One setting of a table, over its seeds (or over the subsamples of a pool).

    Attributes:
        cell_id: Digest of the setting without the seed: equal in every table and every sweep.
        at: Label by axis.
        state: Its ``State``.
        reason: Why it is not finished; empty where it is.
        seeds: Seeds of the finished runs, or the numbers of the subsamples.
        question_ids: Columns of the arrays: questions that every finished run answered.
        parts: Parts of the score by name, in the metric's order: shape ``(n_seeds, n_questions)`` each.
        total: Share of each question in the score: the same shape; see ``Metric.shares``.
        run_ids: Finished runs, one per seed; empty for subsamples.
        measures: Shape ``(n_seeds,)`` each; other measures by name: means over questions, such as
            ``matches``, ``snippets`` and ``characters`` of the context.
        question_measures: Shape ``(n_questions,)`` each; the system's measures by name: means over seeds.
        is_exact: The one row is the exact expectation over all subsamples.
    """

    cell_id: str
    at: Mapping[str, str]
    state: State
    reason: str = ""
    seeds: tuple[int, ...] = ()
    question_ids: tuple[str, ...] = ()
    parts: Mapping[str, F64] = field(default_factory=dict)
    total: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    run_ids: tuple[str, ...] = ()
    measures: Mapping[str, F64] = field(default_factory=dict)
    question_measures: Mapping[str, F64] = field(default_factory=dict)
    is_exact: bool = False

    @property
    def right(self) -> F64:
        """Score of the first part, which says whether the answer itself is right: the shape of ``total``."""
        return next(iter(self.parts.values()), self.total)

    @property
    def scores(self) -> F64:
        """Score under every seed: shape ``(n_seeds,)``."""
        return self.total.mean(axis=1) if self.total.size else np.zeros(0)

    @property
    def by_question(self) -> F64:
        """Score of every question, mean over seeds: shape ``(n_questions,)``."""
        return self.total.mean(axis=0) if self.total.size else np.zeros(0)

    @property
    def is_scored(self) -> bool:
        """Whether it has scores."""
        return self.total.size > 0

    @property
    def is_thin(self) -> bool:
        """Whether it has too few questions or seeds for a reliable figure."""
        is_seldom = len(self.seeds) < FEW_SEEDS and not self.is_exact
        return self.is_scored and (len(self.question_ids) < FEW_QUESTIONS or is_seldom)


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a table.

    Attributes:
        name: A configuration key, or a name of its own.
        labels: Its values in order, as text.
    """

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A grid of cells shown together.

    Attributes:
        name: Unique in the sweep, fit for a file's name.
        title: What it compares.
        axes: Its axes; the last one makes the columns, combinations of the others the rows.
        cells: Every combination there is, in order.
        repeats: Name of the repetitions of a cell, such as seeds.
        show: Names of ``TableCell.measures`` to be tabulated beside the score.
        spread: What the standard deviation of those measures is over.
        notes: Warnings for the reader, such as axis values that were skipped, and why.
    """

    name: str
    title: str
    axes: tuple[Axis, ...]
    cells: tuple[TableCell, ...]
    repeats: Literal["seeds", "subsamples"] = "seeds"
    show: tuple[str, ...] = ()
    spread: Literal["seeds", "questions"] = "seeds"
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Labels of each row, one for each axis but the last, in order of appearance."""
        return tuple(dict.fromkeys(self.row_of(cell) for cell in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        """Labels of the columns that have cells."""
        there = {self.column_of(cell) for cell in self.cells}
        return tuple(label for label in self.axes[-1].labels if label in there)

    def row_of(self, cell: TableCell) -> tuple[str, ...]:
        """Labels of a cell's row."""
        return tuple(cell.at[axis.name] for axis in self.axes[:-1])

    def column_of(self, cell: TableCell) -> str:
        """Label of a cell's column."""
        return cell.at[self.axes[-1].name]

    def column(self, label: str) -> tuple[TableCell, ...]:
        """Cells of a column, row by row."""
        return tuple(cell for cell in self.cells if self.column_of(cell) == label)


@dataclass(frozen=True, slots=True)
class SweepGroups:
    """The scores of a sweep's settings on groups of the questions.

    Attributes:
        names: The settings, each with its table's title.
        split: Their scores by group.
    """

    names: tuple[str, ...]
    split: Split


@dataclass(frozen=True, slots=True)
class Sweep:
    """A whole sweep, ready for display.

    Attributes:
        name: Name of its directory.
        title: Its subject.
        tables: In the order they are shown.
        questions: All questions of all runs, in order.
        runs: Every finished run once, in order.
        metric: Metric of all scores.
        notes: Warnings about the whole sweep.
        provenance: Versions, files and digests it ran with, by name.
        groups: Scores on groups of the questions; None: not asked for.
        spending: Its cost by name, as text: calls requested and made, tokens, seconds; differs from start to start.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    questions: tuple[SweepQuestion, ...]
    runs: tuple[Run, ...]
    metric: Metric
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    spending: Mapping[str, str] = field(default_factory=dict)
    groups: SweepGroups | None = None


_Tests = tuple[Welch, Interval, Permutation, float | None]

_ITSELF = "it is the best of its column"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a scored cell with the best cell of its column.

    Tests over seeds say whether the difference would recur on the same questions (``welch``, as in the paper), tests
    over questions whether it would on other questions like these (``interval``, ``permutation``, ``d_z``).

    Attributes:
        cell_id: The cell.
        at: Its labels by axis.
        best_id: The best cell of the column, the first on a tie: it is compared with itself by no test.
        mean: Mean of its score over seeds, on all its own questions.
        sd: Standard deviation of its score over seeds; None with one seed.
        n_questions: Number of questions in its mean.
        n_seeds: Number of seeds in its mean.
        is_best: It has the highest mean, alone or on a tie: bold in tables.
        is_second: It has the highest mean below that, alone or on a tie: underlined.
        n_common: Questions that it and the best both have: all fields below use only these.
        welch: This cell less the best over seeds: below 0 where the cell is worse.
        welch_holm: Its p, corrected for the number of comparisons in the column; None where there is none.
        interval: The same difference, paired by question, and its bootstrap interval.
        permutation: Sign-flip test of that difference.
        permutation_holm: The p of that test, corrected in the same way.
        d_z: Effect size of the paired difference; None where it is not defined.
    """

    cell_id: str
    at: Mapping[str, str]
    best_id: str
    mean: float
    sd: float | None
    n_questions: int
    n_seeds: int
    is_best: bool
    is_second: bool
    n_common: int
    welch: Welch
    interval: Interval
    permutation: Permutation
    d_z: float | None
    welch_holm: float | None = None
    permutation_holm: float | None = None

    @property
    def stars(self) -> str:
        """The paper's stars: levels of Welch's p over seeds, not corrected."""
        return stars(self.welch.p)


def compare_column(cells: Sequence[TableCell]) -> list[Comparison]:
    """Compare every scored cell with the best cell of its column; cells without scores are left out.

    The best has the highest mean on its own questions, the mean that tables show. Cells over different question sets
    are compared on the questions that both have; ``n_common`` is their number.

    Args:
        cells: The cells of one column, in order.

    Returns:
        One comparison for each scored cell, in order.

    Raises:
        DataError: A score is not finite.
    """
    scored = [_checked(cell) for cell in cells if cell.is_scored]
    if not scored:
        return []
    means = [float(np.round(cell.scores.mean(), 12)) for cell in scored]
    best = scored[means.index(max(means))]
    highest = [*sorted(set(means), reverse=True), None]
    found = [
        replace(_compare(cell, best), is_best=mean == highest[0], is_second=mean == highest[1])
        for cell, mean in zip(scored, means, strict=True)
    ]
    welch_holm = holm([comparison.welch.p for comparison in found])
    permutation_holm = holm([comparison.permutation.p for comparison in found])
    return [
        replace(comparison, welch_holm=by_seeds, permutation_holm=by_questions)
        for comparison, by_seeds, by_questions in zip(found, welch_holm, permutation_holm, strict=True)
    ]


def average_rank(table: Table) -> dict[tuple[str, ...], float]:
    """Mean rank of every row over the table's columns, by mean score: 1 is best, ties share their mean rank.

    Rows without any scored cell are left out, and so are columns that lack a scored cell of another row: ranks among
    fewer rows would not be comparable. Empty where no column is complete.

    Raises:
        DataError: A score is not finite.
    """
    score = {
        (table.row_of(cell), table.column_of(cell)): float(_checked(cell).scores.mean())
        for cell in table.cells
        if cell.is_scored
    }
    rows = [row for row in table.rows if any((row, column) in score for column in table.columns)]
    blocks = [
        [score[row, column] for row in rows] for column in table.columns if all((row, column) in score for row in rows)
    ]
    return dict(zip(rows, average_ranks(blocks).tolist(), strict=True)) if rows and blocks else {}


def select_best(cells: Sequence[TableCell], metric: Metric | None = None) -> Selection | None:
    """Describe the selection of the best distinct cell; cells with other questions than most are left out.

    Args:
        cells: Cells of one table or several; a setting counts once.
        metric: Their metric, whose lowest and highest scores bound the interval.

    Returns:
        None where fewer than two scored cells have the same questions.
    """
    scored = {cell.cell_id: _checked(cell) for cell in cells if cell.is_scored}
    asked = Counter(frozenset(cell.question_ids) for cell in scored.values())
    usual = asked.most_common(1)[0][0] if asked else frozenset()
    kept = [cell for cell in scored.values() if {*cell.question_ids} == usual]
    if len(kept) < 2:
        return None
    scores = {cell.cell_id: cell.by_question[_common(cell, kept[0])[0]] for cell in kept}
    return select(scores, metric.ends if metric else (0.0, 1.0), len(scored) - len(kept))


def _compare(cell: TableCell, best: TableCell) -> Comparison:
    mean, sd = mean_sd(cell.scores)
    mine, theirs = _common(cell, best)
    tests = _undefined(0.0, _ITSELF) if cell is best else _tests(cell.total[:, mine], best.total[:, theirs])
    return Comparison(
        cell_id=cell.cell_id,
        at=cell.at,
        best_id=best.cell_id,
        mean=mean,
        sd=sd,
        n_questions=len(cell.question_ids),
        n_seeds=len(cell.seeds),
        is_best=False,
        is_second=False,
        n_common=mine.size,
        welch=tests[0],
        interval=tests[1],
        permutation=tests[2],
        d_z=tests[3],
    )


def _tests(total: F64, best: F64) -> _Tests:
    """Compare two arrays of shape ``(n_seeds, n_questions)``, over the same questions and any number of seeds."""
    if not total.shape[1]:
        return _undefined(None, "no question that both have")
    difference = paired_differences(total.mean(axis=0), best.mean(axis=0))
    return (
        welch(total.mean(axis=1), best.mean(axis=1)),
        paired_bootstrap(difference),
        paired_permutation(difference),
        paired_effect(difference),
    )


def _undefined(difference: float | None, reason: str) -> _Tests:
    return Welch(difference, reason=reason), Interval(difference, reason=reason), Permutation(None, reason=reason), None


def _common(cell: TableCell, best: TableCell) -> tuple[I64, I64]:
    """Columns in each of the questions that both have, in the best's order."""
    place = {question_id: i for i, question_id in enumerate(cell.question_ids)}
    pairs = [(place[key], i) for i, key in enumerate(best.question_ids) if key in place]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _checked(cell: TableCell) -> TableCell:
    wrong = np.argwhere(~np.isfinite(cell.total))
    if wrong.size:
        seed, question = wrong[0]
        labels = ", ".join(f"{name}={label}" for name, label in cell.at.items())
        raise DataError(
            f"cell {cell.cell_id} ({labels}): the score of {cell.question_ids[question]} under seed {cell.seeds[seed]} "
            f"is {cell.total[seed, question]}: every score must be a finite number."
        )
    return cell


def group_scores(
    by: str, tables: Sequence[Table], truths: Sequence[Submission], metric: Metric
) -> tuple[SweepGroups | None, tuple[str, ...]]:
    """Score every distinct setting on each group of the questions; returns the scores, and notes for the reader.

    Args:
        by: Column of the gold answers that makes the groups.
        tables: The sweep's tables; settings that were scored on other questions than most are left out.
        truths: The gold answers.
        metric: The metric of the sweep.
    """
    named = [truth for truth in truths if by in truth.header]
    label = {key: one for truth in named for key, one in zip(truth.rows, labels_of(truth, by), strict=True)}
    is_blank = {key: metric.unanswerable(row) for truth in named for key, row in truth.rows.items()}
    cells: dict[str, tuple[str, TableCell]] = {}
    for table in tables:
        for cell in table.cells:
            if cell.is_scored and all(key in label for key in cell.question_ids):
                name = ", ".join(f"{axis.rpartition('.')[2]} {label}" for axis, label in cell.at.items())
                cells.setdefault(cell.cell_id, (name, cell))
    asked = Counter(cell.question_ids for _, cell in cells.values())
    if not asked:
        there = ", ".join(truths[0].header) if truths else "none"
        return None, (f"Scores are not shown by {by}: the gold answers have no such column; they have {there}.",)
    usual = asked.most_common(1)[0][0]
    kept = [(name, cell) for name, cell in cells.values() if cell.question_ids == usual]
    groups: dict[str, list[int]] = {}
    for at, key in enumerate(usual):
        groups.setdefault(label[key], []).append(at)
    blank = np.array([is_blank[key] for key in usual])
    scores = {one: tuple(_score(cell, at, blank, metric) for _, cell in kept) for one, at in groups.items()}
    left_out = len(cells) - len(kept)
    notes = (f"By {by}: {left_out} settings were scored on other questions than most and are left out.",)
    return SweepGroups(tuple(name for name, _ in kept), split_of(by, scores)), notes if left_out else ()


def _score(cell: TableCell, at: Sequence[int], blank: np.ndarray, metric: Metric) -> Score:
    parts: Mapping[str, np.ndarray] = {name: part[:, at] for name, part in cell.parts.items()}
    total = metric.shares(parts, blank[at])
    return Score(float(total.mean()), {name: float(part.mean()) for name, part in parts.items()}, len(at), 0)
