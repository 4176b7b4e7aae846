"""The results of a sweep: tables of cells, each with the score of every question under every seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.splits import Split
from kohaku_ray.index.arrays import F64

FEW_QUESTIONS, FEW_SEEDS = 20, 3
"""A cell over fewer questions or seeds says little, and is marked."""

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
