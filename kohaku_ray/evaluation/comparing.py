"""Compare cells of a sweep: each with the best of its column, and ranks over all columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.grid import Table, TableCell
from kohaku_ray.evaluation.paired import (
    Interval,
    Permutation,
    paired_bootstrap,
    paired_differences,
    paired_effect,
    paired_permutation,
)
from kohaku_ray.evaluation.statistics import Welch, average_ranks, holm, mean_sd, stars, welch
from kohaku_ray.index.arrays import F64, I64

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
        best_id: The best cell of the column; the cell itself where ``is_best``.
        mean: Mean of its score over seeds, on all its own questions.
        sd: Standard deviation of its score over seeds; None with one seed.
        n_questions: Number of questions in its mean.
        n_seeds: Number of seeds in its mean.
        is_best: It has the highest mean, the first on a tie: bold in tables.
        is_second: It has the highest mean of the rest: underlined.
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

    @property
    def paired_stars(self) -> str:
        """Stars of the paired test over questions, corrected for the number of comparisons in the column."""
        return stars(self.permutation_holm)


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
    order = sorted(range(len(scored)), key=lambda place: -means[place])
    best, second = order[0], order[1] if len(order) > 1 else None
    found = [_compare(cell, scored[best], is_second=place == second) for place, cell in enumerate(scored)]
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


def _compare(cell: TableCell, best: TableCell, is_second: bool) -> Comparison:
    is_best = cell is best
    mean, sd = mean_sd(cell.scores)
    mine, theirs = _common(cell, best)
    tests = _undefined(0.0, _ITSELF) if is_best else _tests(cell.total[:, mine], best.total[:, theirs])
    return Comparison(
        cell_id=cell.cell_id,
        at=cell.at,
        best_id=best.cell_id,
        mean=mean,
        sd=sd,
        n_questions=len(cell.question_ids),
        n_seeds=len(cell.seeds),
        is_best=is_best,
        is_second=is_second,
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
