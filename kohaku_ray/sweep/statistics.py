"""The statistics of a sweep's tables: cells by row and column, means, ranks, the best cell, what all of it can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy.typing as npt

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.paired import Interval, bounded_interval
from kohaku_ray.evaluation.selection import EFFECT, Selection
from kohaku_ray.evaluation.statistics import average_ranks, mean_sd, ranks
from kohaku_ray.records import pluralize
from kohaku_ray.sweep.compare import (
    Comparison,
    SweepCell,
    SweepGroups,
    SweepRecord,
    SweepTable,
    clusters_by_question,
    compare_column,
    select_best,
)
from kohaku_ray.values.read import parse_number

ONLY_COLUMN = "score"
"""Head of the only column of a table with one axis: its labels become the rows, which are compared."""


RowLabels = tuple[str, ...]


GridPosition = tuple[RowLabels, str]


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds or subsamples with its standard deviation, which is NaN where there is only one."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread:
        """Average at least one value."""
        mean, sd = mean_sd(values)
        return cls(mean, math.nan if sd is None else sd)


@dataclass(frozen=True, slots=True)
class CellGrid:
    """The cells of a sweep's table by row and column: charts read their scores, and each ``Table`` is made of them."""

    table: SweepTable
    row_axes: RowLabels
    column_axis: str  # empty where there is none
    rows: tuple[RowLabels, ...]
    columns: RowLabels
    cells: Mapping[GridPosition, SweepCell]

    @property
    def row_axis(self) -> str:
        """Names of the row axes, in one line."""
        return name_row(self.row_axes)

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The columns as numbers, where all of them are."""
        numbers = tuple(number for label in self.columns if (number := parse_number(label)) is not None)
        return numbers if len(numbers) == len(self.columns) else None

    def transpose(self) -> CellGrid:
        """Exchange rows and columns."""
        cells: dict[GridPosition, SweepCell] = {
            ((column,), name_row(row)): cell for (row, column), cell in self.cells.items()
        }
        rows = tuple((column,) for column in self.columns)
        columns = tuple(map(name_row, self.rows))
        return CellGrid(self.table, (self.column_axis,), self.row_axis, rows, columns, cells)


@dataclass(frozen=True, slots=True)
class TableStats:
    """A table with its statistics."""

    grid: CellGrid
    comparisons: Mapping[GridPosition, Comparison]  # of the scored cells
    ranks: Mapping[GridPosition, float]  # of each of them in its column
    average: Mapping[RowLabels, float]  # mean rank over the columns; empty without two of either or a complete column
    reasons: tuple[str, ...]  # why cells are not finished, each once; numbered from 1
    parts: tuple[str, ...]  # names of the score's parts
    selection: Selection | None = None  # None where fewer than two cells have the same questions

    @property
    def table(self) -> SweepTable:
        """The table."""
        return self.grid.table


def compute_stats(
    table: SweepTable, metric: Metric | None = None, clusters: Mapping[str, str] | None = None
) -> TableStats:
    """Lay a table out, and compare its cells; the metric's parts come before those of the cells.

    ``clusters``: Names by question id; questions of one are resampled and flipped together.
    """
    grid = arrange_cells(table)
    comparisons: dict[GridPosition, Comparison] = {}
    ranked: dict[GridPosition, float] = {}
    for column in grid.columns:
        scored = [(row, column) for row in grid.rows if (cell := grid.cells.get((row, column))) and cell.is_scored]
        compared = compare_column([grid.cells[position] for position in scored], clusters)
        comparisons |= dict(zip(scored, compared, strict=True))
        if compared:
            ranked |= dict(zip(scored, ranks([comparison.mean for comparison in compared]).tolist(), strict=True))
    reasons = dict.fromkeys(explain_state(cell) for cell in grid.cells.values() if explain_state(cell))
    names = dict.fromkeys([*(metric.parts if metric else ()), *(name for cell in table.cells for name in cell.parts)])
    selection = select_best(table.cells, metric, clusters)
    return TableStats(grid, comparisons, ranked, _average(grid, comparisons), tuple(reasons), tuple(names), selection)


def _average(grid: CellGrid, comparisons: Mapping[GridPosition, Comparison]) -> dict[RowLabels, float]:
    """Mean rank of each row over the columns: 1 is best, ties share their mean rank.

    Rows without any scored cell are left out, and so are columns that lack a scored cell of another row: ranks among
    fewer rows would not be comparable.
    """
    rows = [row for row in grid.rows if any((row, column) in comparisons for column in grid.columns)]
    complete = [column for column in grid.columns if all((row, column) in comparisons for row in rows)]
    if not rows or not complete or len(grid.rows) < 2 or len(grid.columns) < 2:
        return {}
    means = [[comparisons[row, column].mean for row in rows] for column in complete]
    return dict(zip(rows, average_ranks(means).tolist(), strict=True))


def compute_sweep_stats(sweep: SweepRecord) -> list[TableStats]:
    """Compute the statistics of all tables of a sweep; slow for many questions."""
    return [compute_stats(table, sweep.metric, sweep.clusters) for table in sweep.tables]


def arrange_cells(table: SweepTable) -> CellGrid:
    """Arrange a table's cells; the labels of a single axis become rows."""
    names, (*others, last) = name_axes(table), table.axes
    cell_at = {(tuple(cell.labels[axis.name] for axis in others), cell.labels[last.name]): cell for cell in table.cells}
    present = {column for _, column in cell_at}
    columns = tuple(label for label in last.labels if label in present)
    if not others:
        alone: dict[GridPosition, SweepCell] = {((column,), ONLY_COLUMN): cell for (_, column), cell in cell_at.items()}
        return CellGrid(table, names, "", tuple((label,) for label in columns), (ONLY_COLUMN,), alone)
    rows = tuple(dict.fromkeys(row for row, _ in cell_at))
    return CellGrid(table, names[:-1], names[-1], rows, columns, cell_at)


def name_cell(table: SweepTable, cell: SweepCell) -> str:
    """Name a cell by its labels in one line."""
    names = zip(name_axes(table), table.axes, strict=True)
    return ", ".join(f"{name} = {cell.labels[axis.name]}" for name, axis in names)


def name_row(row: RowLabels) -> str:
    """Name a row in one line."""
    return " · ".join(row)


def name_axes(table: SweepTable) -> tuple[str, ...]:
    """Name a table's axes by the fewest last parts of their keys that distinguish them."""
    keys = [axis.name.split(".") for axis in table.axes]
    for n_parts in range(1, max(map(len, keys), default=0) + 1):
        names = tuple(".".join(key[-n_parts:]) for key in keys)
        if len(set(names)) == len(names) and all(names):
            return names
    return tuple(axis.name for axis in table.axes)


def average_score(cell: SweepCell) -> Spread:
    """Average a scored cell."""
    return Spread.of(cell.scores)


def average_measure(table: SweepTable, cell: SweepCell, name: str) -> Spread | None:
    """Average a measure of a cell, with the deviation that its table asks for; None where it has none."""
    values = cell.question_measures.get(name) if table.spread == "questions" else None
    values = cell.measures.get(name) if values is None else values
    return Spread.of(values) if values is not None and values.size else None


@dataclass(frozen=True, slots=True)
class Best:
    """The best cell of a table, and those that are not told from it, among the cells that can be compared."""

    cell: SweepCell
    interval: Interval  # of its score, over the questions
    tied: tuple[SweepCell, ...]  # others of the same mean
    contenders: tuple[SweepCell, ...]  # further cells that are not told from it


def find_best(stats: TableStats, metric: Metric, clusters: Mapping[str, str] | None = None) -> Best | None:
    """Find the best cell of a table, the first on a tie; None without scores. ``clusters``: see ``compute_stats``."""
    scored = {cell.cell_id: cell for cell in stats.table.cells if cell.is_scored}
    if not scored:
        return None
    selection = stats.selection
    means = {key: round(average_score(cell).mean, 12) for key, cell in scored.items()}
    cell = scored[selection.best if selection else max(means, key=lambda key: means[key])]
    others = [key for key in (selection.ranks if selection else ()) if key != cell.cell_id]
    contenders = frozenset(selection.contenders if selection else ())
    return Best(
        cell,
        bounded_interval(metric, cell.by_question, clusters_by_question(cell.question_ids, clusters)),
        tuple(scored[key] for key in others if means[key] == means[cell.cell_id]),
        tuple(scored[key] for key in others if means[key] < means[cell.cell_id] and key in contenders),
    )


def describe_selection(selection: Selection | None, name: str = "") -> list[tuple[str, str]]:
    """Say what a selection can tell and what not, each by what it is; ``name`` names the best cell."""
    if selection is None:
        return []
    n = pluralize(selection.n_questions, "question")
    if selection.n_clusters is not None:
        n += f" in {pluralize(selection.n_clusters, 'cluster')}"
    if selection.detectable is not None and selection.detectable_best is not None:
        seen, best = f"{selection.detectable:.3f}", f"{selection.detectable_best:.3f}"
        other = f" among the best ({seen} between all cells, median pair)" if seen != best else ""
        facts = [
            (
                "smallest difference that can be seen",
                f"{best}{other}: {n}, 80 % power, two-sided 5 %, paired by question",
            ),
            (f"questions that a difference of {EFFECT:.3f} needs", f"{selection.n_needed:,}"),
        ]
    else:
        cells = pluralize(selection.n_cells, "cell")
        why = "two are needed" if selection.n_questions < 2 else f"all {cells} differ by the same on each"
        facts = [("smallest difference that can be seen", f"none: {n}, {why}")]
    n_tied, n_others = selection.n_tied[selection.best], selection.n_cells - 1
    tied = f"; it ties with {pluralize(n_tied, 'other')}" if n_tied else ""
    told = f"{selection.n_cells - len(selection.contenders)} of the {pluralize(n_others, 'other cell')}{tied}"
    facts.append((f"told from the best{f' ({name})' if name else ''} at 5 %, its choice allowed for", told))
    what = "score of the best on other questions"
    if selection.expected is None or selection.low is None or selection.high is None:
        facts.append((what, f"unknown: {n}, three are needed"))
    else:
        shift = selection.expected - selection.score
        how = "less, for it was chosen on these" if shift < 0 else "no less: its choice on these shows no optimism"
        facts.append(
            (
                what,
                f"{selection.expected:.3f} ({selection.score:.3f} here; {how}); {selection.low:.3f} to "
                f"{selection.high:.3f} (95 %) on {n} of the same kind",
            )
        )
    if selection.n_left_out:
        facts.append(("left out here", f"{pluralize(selection.n_left_out, 'cell')} with scores of other questions"))
    return facts


def describe_table_selection(stats: TableStats) -> list[tuple[str, str]]:
    """Say what a table can tell, with the name of its best cell."""
    best = stats.selection.best if stats.selection else ""
    cell = next((cell for cell in stats.table.cells if cell.cell_id == best), None)
    return describe_selection(stats.selection, name_cell(stats.table, cell) if cell else "")


def describe_sweep_selection(sweep: SweepRecord) -> list[tuple[str, str]]:
    """Say what a sweep of several tables can tell over all its distinct cells."""
    cells = [cell for table in sweep.tables for cell in table.cells]
    return describe_selection(select_best(cells, sweep.metric, sweep.clusters)) if len(sweep.tables) > 1 else []


def explain_state(cell: SweepCell) -> str:
    """Say why a cell is not finished; empty: it is."""
    if cell.state == "finished":
        return ""
    return f"{cell.state}: {cell.reason or 'no reason is known'}"


def rank_settings(groups: SweepGroups) -> list[int]:
    """Order the settings by their rank on the first group."""
    ranks = groups.split.ranks[groups.split.labels[0]]
    return sorted(range(len(ranks)), key=lambda number: (ranks[number], number))
