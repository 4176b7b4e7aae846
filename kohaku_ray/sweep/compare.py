"""The tables of a sweep, cells with the score of every question under every seed, and comparisons of the cells.

Each cell is compared with the best of its column, settings by their scores on groups of questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    permute_against_best,
)
from kohaku_ray.evaluation.race import Racer
from kohaku_ray.evaluation.report import labels_of
from kohaku_ray.evaluation.selection import Selection, select
from kohaku_ray.evaluation.statistics import Welch, mean_sd, stars, welch
from kohaku_ray.evaluation.submissions import Submission
from kohaku_ray.index.arrays import F64, I64
from kohaku_ray.records import pluralize

FEW_SEEDS = 3
"""A cell over fewer seeds, or than `FEW_QUESTIONS`, is marked: its differences may be chance."""

SCORE = "score"
"""Name of the score among a paper's figures."""

State = Literal["finished", "partial", "failed", "skipped", "unfinished", "dropped"]
"""State of a cell: all of its seeds finished, some of them, none because of an error, none because something is
missing, none so far, none since it has left a race: its scores are of the questions until then."""


@dataclass(frozen=True, slots=True)
class SweepQuestion:
    """One question of the sweep and its truth."""

    question_id: str  # unique in the sweep
    text: str
    answer_value: str  # ``is_blank`` where there is no answer
    answer_unit: str
    refs: str  # as written


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """One run's answer to one question, as its submission has it."""

    answer_value: str  # ``is_blank`` for an abstention
    refs: str  # as written
    error: str | None  # one of the metric's ``classes``; None where nothing is wrong


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One finished run: one setting under one seed. Cells of several tables may share a run."""

    run_id: str  # digest of the setting and its seed
    path: str  # its directory; empty where there is none
    seed: int  # base of its seeds
    facts: Mapping[str, str]  # settings by which errors are counted, such as ``model`` and ``k``
    predictions: Mapping[str, SweepAnswer]  # by question id
    tokens: int  # prompt and generated tokens of its calls, whichever run made them
    service_s: float  # seconds of these calls in the backend, whichever run made them
    n_answers: int = 0  # of its members
    n_errors: int = 0  # answers with an error


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One setting of a table, over its seeds (or over the subsamples of a pool)."""

    cell_id: str  # digest of the setting without the seed: equal in every table and every sweep
    labels: Mapping[str, str]  # label by axis
    state: State
    reason: str = ""  # why it is not finished
    seeds: tuple[int, ...] = ()  # of the finished runs, or the numbers of the subsamples
    question_ids: tuple[str, ...] = ()  # columns of the arrays: questions that every finished run answered
    parts: Mapping[str, F64] = field(default_factory=dict)  # of the score, by name: (n_seeds, n_questions) each
    total: F64 = field(default_factory=lambda: np.zeros((0, 0)))  # same shape: each share, see ``Metric.shares``
    run_ids: tuple[str, ...] = ()  # finished runs, one per seed; empty for subsamples
    measures: Mapping[str, F64] = field(default_factory=dict)  # other means over questions, by name: (n_seeds,) each
    question_measures: Mapping[str, F64] = field(default_factory=dict)  # means over seeds: (n_questions,) each
    is_exact: bool = False  # the one row is the exact expectation over all subsamples
    paper: Mapping[str, float] = field(default_factory=dict)  # the paper's figures of this very setting, by measure

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
        """Whether it has scores that can be compared: not of the first questions alone, as a cell that was dropped."""
        return self.total.size > 0 and self.state != "dropped"

    @property
    def is_thin(self) -> bool:
        """Whether it has too few questions or seeds for a reliable figure."""
        is_seldom = len(self.seeds) < FEW_SEEDS and not self.is_exact
        return self.is_scored and (len(self.question_ids) < FEW_QUESTIONS or is_seldom)


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a table."""

    name: str  # a configuration key, or a name of its own
    labels: tuple[str, ...]  # its values in order, as text


@dataclass(frozen=True, slots=True)
class SweepTable:
    """Cells shown together; the last axis makes the columns, combinations of the others the rows."""

    name: str  # unique in the sweep, fit for a file's name
    title: str
    axes: tuple[Axis, ...]
    cells: tuple[SweepCell, ...]  # every combination there is, in order
    repeats: Literal["seeds", "subsamples"] = "seeds"  # what a cell is repeated over
    show: tuple[str, ...] = ()  # names of ``SweepCell.measures`` that are tabulated beside the score
    spread: Literal["seeds", "questions"] = "seeds"  # what the standard deviation of those measures is over
    notes: tuple[str, ...] = ()  # such as axis values that were skipped, and why


@dataclass(frozen=True, slots=True)
class SweepGroups:
    """The scores of a sweep's settings on groups of the questions."""

    names: tuple[str, ...]  # of the settings
    split: Split


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell of a race, as shown."""

    name: str
    racer: Racer
    state: str
    curve: tuple[tuple[int, float, float, float], ...]  # after each shard: questions, mean, ends of its interval


@dataclass(frozen=True, slots=True)
class RaceView:
    """A race as it stands: all that pages and the terminal show of it."""

    title: str
    rule: str
    n_questions: int
    n_seen: int
    tables: Mapping[str, tuple[CellView, ...]]  # by title, cells from the best to the worst
    drops: tuple[str, ...] = ()  # a line per cell that was dropped, the last first
    notes: tuple[str, ...] = ()
    n_asked: int = 0  # by the cells so far
    n_saved: int = 0  # what the cells that left would ask for, as much per question as before
    unit: str = "model calls"  # what is counted
    seconds_left: float | None = None  # if nobody leaves any more
    is_running: bool = False


@dataclass(frozen=True, slots=True)
class FixedSetting:
    """A setting that is the same in all cells of a table, or a fact like one."""

    key: str
    value: str = ""
    meaning: str = ""  # what the setting is; empty where its key says it


def write_fixed(fixed: Sequence[FixedSetting], rest: str = "; all else by default") -> str:
    """Write what a table holds fixed in one line."""
    return ", ".join(f"{setting.key} {setting.value}".strip() for setting in fixed) + rest


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """A whole sweep, ready for display."""

    name: str  # of its directory
    title: str
    tables: tuple[SweepTable, ...]  # in the order they are shown
    questions: tuple[SweepQuestion, ...]  # of all runs, in order
    runs: tuple[SweepRun, ...]  # every finished run once, in order
    metric: Metric
    notes: tuple[str, ...] = ()  # about the whole sweep
    provenance: Mapping[str, str] = field(default_factory=dict)  # versions, files and digests, by name
    spending: Mapping[str, str] = field(default_factory=dict)  # calls, tokens, seconds; differ from start to start
    groups: SweepGroups | None = None  # None: not asked for
    cluster: str = ""  # column of the gold answers whose equal values were resampled together
    clusters: Mapping[str, str] | None = None  # its clusters, by question id; None: questions count as independent
    race: RaceView | None = None  # None: it was not raced
    fixed: Mapping[str, tuple[FixedSetting, ...]] = field(default_factory=dict)  # by the table's name


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a scored cell with the best cell of its column, the first on a tie.

    Tests over seeds say whether the difference would recur on the same questions (``welch``, as in the paper), tests
    over questions whether it would on other questions like these (``interval``, ``permutation``, ``d_z``). All tests
    use only the questions that both cells have; the best is not tested against itself. ``corrected_p`` alone allows
    for the choice of the best, see ``permute_against_best``.
    """

    cell_id: str
    mean: float  # of its score over seeds, on all its own questions
    sd: float | None  # of its score over seeds; None with one seed
    n_questions: int
    n_seeds: int
    n_common: int  # questions that it and the best both have
    welch: Welch  # this cell less the best over seeds: below 0 where the cell is worse
    interval: Interval  # the same difference, paired by question, and its bootstrap interval
    permutation: Permutation  # sign-flip test of that difference
    d_z: float | None  # effect size of the paired difference; None where it is not defined
    is_best: bool = False  # it has the highest mean, alone or on a tie: bold in tables
    is_second: bool = False  # the highest mean below that, alone or on a tie, if another one is below: underlined
    corrected_p: float | None = None  # of ``permutation``, among all pairs of the column's cells

    @property
    def stars(self) -> str:
        """Level of the corrected p."""
        return stars(self.corrected_p)


def compare_column(cells: Sequence[SweepCell], clusters: Mapping[str, str] | None = None) -> list[Comparison]:
    """Compare every scored cell of a column with the best, which has the highest mean on its own questions.

    ``clusters``: Names by question id; questions of one are resampled and flipped together.

    Raises:
        DataError: A score is not finite.
    """
    scored = [_check_scores(cell) for cell in cells if cell.is_scored]
    if not scored:
        return []
    means = [float(np.round(cell.scores.mean(), 12)) for cell in scored]
    highest, second, third, *_ = [*sorted(set(means), reverse=True), None, None]
    best = scored[means.index(max(means))]
    comparisons = [_compare_cell(cell, best, clusters) for cell in scored]
    corrected = _correct_column(scored, scored.index(best), clusters)
    return [
        replace(comparison, is_best=mean == highest, is_second=mean == second and third is not None, corrected_p=p)
        for comparison, mean, p in zip(comparisons, means, corrected, strict=True)
    ]


def _correct_column(cells: Sequence[SweepCell], best: int, clusters: Mapping[str, str] | None) -> list[float | None]:
    """Correct each cell's p for the choice of the best; None for the best itself."""
    questions = {key: column for column, key in enumerate(dict.fromkeys(key for c in cells for key in c.question_ids))}
    scores = np.full((len(cells), len(questions)), np.nan)
    for row, cell in zip(scores, cells, strict=True):
        row[[questions[key] for key in cell.question_ids]] = cell.by_question
    corrected = permute_against_best(scores, best, clusters_by_question(questions, clusters))
    return [None if cell is cells[best] else p for cell, p in zip(cells, corrected, strict=True)]


def clusters_by_question(question_ids: Iterable[str], clusters: Mapping[str, str] | None) -> list[str] | None:
    """Name the cluster of each question; None: questions are taken as independent."""
    return None if clusters is None else [clusters[key] for key in question_ids]


def select_best(
    cells: Sequence[SweepCell], metric: Metric | None = None, clusters: Mapping[str, str] | None = None
) -> Selection | None:
    """Describe the selection of the best distinct cell; cells with other questions than most are left out.

    Args:
        cells: Cells of one table or several; a setting counts once.
        metric: Their metric, whose lowest and highest scores bound the interval.
        clusters: Names by question id; questions of one are resampled and flipped together.

    Returns:
        None where fewer than two scored cells have the same questions.
    """
    scored = {cell.cell_id: _check_scores(cell) for cell in cells if cell.is_scored}
    asked = Counter(frozenset(cell.question_ids) for cell in scored.values())
    usual = asked.most_common(1)[0][0] if asked else frozenset()
    kept = [cell for cell in scored.values() if {*cell.question_ids} == usual]
    if len(kept) < 2:
        return None
    scores = {cell.cell_id: cell.by_question[_common_columns(cell, kept[0])[0]] for cell in kept}
    n_left_out = len({cell.cell_id for cell in cells if cell.total.size}) - len(kept)
    ends = metric.ends if metric else (0.0, 1.0)
    return select(scores, ends, n_left_out, clusters_by_question(kept[0].question_ids, clusters))


def _compare_cell(cell: SweepCell, best: SweepCell, clusters: Mapping[str, str] | None) -> Comparison:
    mean, sd = mean_sd(cell.scores)
    mine, theirs = _common_columns(cell, best)
    about = (cell.cell_id, mean, sd, len(cell.question_ids), len(cell.seeds), mine.size)
    if cell is best or not mine.size:
        difference = 0.0 if cell is best else None
        reason = "it is the best of its column" if cell is best else "no question that both have"
        untested = Welch(reason=reason), Interval(difference, reason=reason)
        return Comparison(*about, *untested, Permutation(None, reason=reason), None)
    total, other = cell.total[:, mine], best.total[:, theirs]
    paired = paired_differences(total.mean(axis=0), other.mean(axis=0))
    over_seeds = welch(total.mean(axis=1), other.mean(axis=1))
    together = clusters_by_question((best.question_ids[column] for column in theirs), clusters)
    interval = paired_bootstrap(paired, clusters=together)
    permutation = paired_permutation(paired, clusters=together)
    return Comparison(*about, over_seeds, interval, permutation, paired_effect(paired))


def _common_columns(cell: SweepCell, best: SweepCell) -> tuple[I64, I64]:
    """Columns in each of the questions that both have, in the best's order."""
    column_of = {question_id: i for i, question_id in enumerate(cell.question_ids)}
    pairs = [(column_of[key], i) for i, key in enumerate(best.question_ids) if key in column_of]
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _check_scores(cell: SweepCell) -> SweepCell:
    wrong = np.argwhere(~np.isfinite(cell.total))
    if wrong.size:
        seed, question = wrong[0]
        labels = ", ".join(f"{name}={label}" for name, label in cell.labels.items())
        raise DataError(
            f"cell {cell.cell_id} ({labels}): the score of {cell.question_ids[question]} under seed {cell.seeds[seed]} "
            f"is {cell.total[seed, question]}: every score must be a finite number."
        )
    return cell


def explain_no_groups(by: str, header: Sequence[str]) -> str:
    """Say that scores are not shown by a column, as the gold answers' ``header`` lacks it."""
    columns = ", ".join(header) or "none"
    return f"Scores are not shown by {by}: the gold answers have no such column; they have {columns}."


def group_scores(
    by: str, tables: Sequence[SweepTable], truths: Sequence[Submission], metric: Metric
) -> tuple[SweepGroups | None, tuple[str, ...]]:
    """Score every distinct setting on each group of the questions; returns the scores, and notes for the reader.

    Groups are the values of column ``by`` of the gold answers. Settings that were scored on other questions than most
    are left out.
    """
    named = [truth for truth in truths if by in truth.header]
    label = {key: group for truth in named for key, group in labels_of(truth, by).items()}
    is_blank = {key: metric.unanswerable(row) for truth in named for key, row in truth.rows.items()}
    cells: dict[str, tuple[str, SweepCell]] = {}
    for table in tables:
        for cell in table.cells:
            if cell.is_scored and all(key in label for key in cell.question_ids):
                name = ", ".join(f"{axis.rpartition('.')[2]} {label}" for axis, label in cell.labels.items())
                cells.setdefault(cell.cell_id, (name, cell))
    asked = Counter(cell.question_ids for _, cell in cells.values())
    if not asked:
        return None, (explain_no_groups(by, truths[0].header if truths else ()),)
    usual = asked.most_common(1)[0][0]
    kept = [(name, cell) for name, cell in cells.values() if cell.question_ids == usual]
    groups: dict[str, list[int]] = {}
    for column, key in enumerate(usual):
        groups.setdefault(label[key], []).append(column)
    blank = np.array([is_blank[key] for key in usual])
    scores = {
        group: tuple(_score_group(cell, columns, blank, metric) for _, cell in kept)
        for group, columns in groups.items()
    }
    left_out = len(cells) - len(kept)
    notes = (f"By {by}: {pluralize(left_out, 'setting')} left out, scored on other questions than most.",)
    return SweepGroups(tuple(name for name, _ in kept), split_of(by, scores)), notes if left_out else ()


def _score_group(cell: SweepCell, columns: Sequence[int], blank: np.ndarray, metric: Metric) -> Score:
    parts: Mapping[str, np.ndarray] = {name: part[:, columns] for name, part in cell.parts.items()}
    total = metric.shares(parts, blank[columns])
    return Score(float(total.mean()), {name: float(part.mean()) for name, part in parts.items()}, len(columns), 0)
