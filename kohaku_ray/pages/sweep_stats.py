"""A sweep's tables with their statistics: the text of every field, and the notes below a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy.typing as npt

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.selection import EFFECT, Selection
from kohaku_ray.evaluation.statistics import STAR_LEVELS, average_ranks, mean_sd, ranks
from kohaku_ray.pages.text import cut
from kohaku_ray.run.summary import counted
from kohaku_ray.sweep.compare import (
    FEW_QUESTIONS,
    FEW_SEEDS,
    SCORE,
    Comparison,
    Sweep,
    Table,
    TableCell,
    compare_column,
    select_best,
)
from kohaku_ray.values.read import parse_number

THIN = "†"
"""Marks a figure from few questions or seeds."""

ONLY_COLUMN = "score"
"""Head of the only column of a table with one axis: its labels become the rows, which are compared."""

Row = tuple[str, ...]
Place = tuple[Row, str]
Mark = Literal["best", "second", ""]

REASON_CHARS = 600
"""Longest reason shown; longer ones are cut, but whole in the CSV."""


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

    def write(self, digits: int = 3) -> str:
        """Write the mean with its deviation."""
        mean = f"{self.mean:z,.{digits}f}"
        return mean if math.isnan(self.sd) else f"{mean} ± {self.sd:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class TableGrid:
    """The layout of a table."""

    table: Table
    row_axes: Row
    column_axis: str  # empty where there is none
    rows: tuple[Row, ...]
    columns: Row
    cells: Mapping[Place, TableCell]

    @property
    def row_axis(self) -> str:
        """Names of the row axes, in one line."""
        return row_name(self.row_axes)

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The columns as numbers, where all of them are."""
        numbers = tuple(number for label in self.columns if (number := parse_number(label)) is not None)
        return numbers if len(numbers) == len(self.columns) else None

    def turned(self) -> TableGrid:
        """Exchange rows and columns."""
        cells: dict[Place, TableCell] = {((column,), row_name(row)): cell for (row, column), cell in self.cells.items()}
        rows = tuple((column,) for column in self.columns)
        columns = tuple(map(row_name, self.rows))
        return TableGrid(self.table, (self.column_axis,), self.row_axis, rows, columns, cells)


@dataclass(frozen=True, slots=True)
class TableStats:
    """A table with its statistics."""

    grid: TableGrid
    comparisons: Mapping[Place, Comparison]  # of the scored cells
    ranks: Mapping[Place, float]  # of each of them in its column
    average: Mapping[Row, float]  # rank of a row over the columns; empty without two of either or a complete column
    reasons: tuple[str, ...]  # why cells are not finished, each once; numbered from 1
    parts: tuple[str, ...]  # names of the score's parts
    selection: Selection | None = None  # None where fewer than two cells have the same questions

    @property
    def table(self) -> Table:
        """The table."""
        return self.grid.table


@dataclass(frozen=True, slots=True)
class Shown:
    """The content of a field of a score table."""

    text: str  # mean and deviation, or the state of a cell without scores
    stars: str = ""
    mark: Mark = ""  # whether it is the column's best or second
    is_thin: bool = False
    footnote: int = 0  # number of its reason
    is_scored: bool = False  # the text is a figure
    cell_id: str = ""
    paper: str = ""  # the paper's figure of the same setting, marked as such

    @property
    def raised(self) -> str:
        """Its marks beside the figure."""
        return self.stars + (THIN if self.is_thin else "") + (f"[{self.footnote}]" if self.footnote else "")


def compute_stats(table: Table, metric: Metric | None = None) -> TableStats:
    """Lay a table out, and compare its cells; the metric's parts come before those of the cells."""
    grid = lay_out(table)
    comparisons: dict[Place, Comparison] = {}
    ranked: dict[Place, float] = {}
    for column in grid.columns:
        scored = [(row, column) for row in grid.rows if (cell := grid.cells.get((row, column))) and cell.is_scored]
        found = compare_column([grid.cells[place] for place in scored])
        comparisons |= dict(zip(scored, found, strict=True))
        if found:
            ranked |= dict(zip(scored, ranks([one.mean for one in found]).tolist(), strict=True))
    reasons = dict.fromkeys(_reason(cell) for cell in grid.cells.values() if _reason(cell))
    names = dict.fromkeys([*(metric.parts if metric else ()), *(name for cell in table.cells for name in cell.parts)])
    selection = select_best(table.cells, metric)
    return TableStats(grid, comparisons, ranked, _average(grid, comparisons), tuple(reasons), tuple(names), selection)


def _average(grid: TableGrid, comparisons: Mapping[Place, Comparison]) -> dict[Row, float]:
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


def compute_sweep_stats(sweep: Sweep) -> list[TableStats]:
    """Compute the statistics of all tables of a sweep; slow for many questions."""
    return [compute_stats(table, sweep.metric) for table in sweep.tables]


def lay_out(table: Table) -> TableGrid:
    """Arrange a table's cells; the labels of a single axis become rows."""
    names, (*others, last) = axis_names(table), table.axes
    places = {(tuple(cell.at[axis.name] for axis in others), cell.at[last.name]): cell for cell in table.cells}
    there = {column for _, column in places}
    columns = tuple(label for label in last.labels if label in there)
    if not others:
        alone: dict[Place, TableCell] = {((column,), ONLY_COLUMN): cell for (_, column), cell in places.items()}
        return TableGrid(table, names, "", tuple((label,) for label in columns), (ONLY_COLUMN,), alone)
    rows = tuple(dict.fromkeys(row for row, _ in places))
    return TableGrid(table, names[:-1], names[-1], rows, columns, places)


def name_cell(table: Table, cell: TableCell) -> str:
    """Name a cell by its labels in one line."""
    names = zip(axis_names(table), table.axes, strict=True)
    return ", ".join(f"{name} = {cell.at[axis.name]}" for name, axis in names)


def row_name(row: Row) -> str:
    """Name a row in one line."""
    return " · ".join(row)


def axis_names(table: Table) -> tuple[str, ...]:
    """Name a table's axes by the fewest last parts of their keys that distinguish them."""
    keys = [axis.name.split(".") for axis in table.axes]
    for n_parts in range(1, max(map(len, keys), default=0) + 1):
        names = tuple(".".join(key[-n_parts:]) for key in keys)
        if len(set(names)) == len(names) and all(names):
            return names
    return tuple(axis.name for axis in table.axes)


def score_of(cell: TableCell) -> Spread:
    """Average a scored cell."""
    return Spread.of(cell.scores)


def shown(stats: TableStats, place: Place) -> Shown:
    """Return the content of a field of the score table."""
    cell = stats.grid.cells.get(place)
    if cell is None:
        return Shown("")
    reason = _reason(cell)
    footnote = 1 + stats.reasons.index(reason) if reason else 0
    comparison = stats.comparisons.get(place)
    if comparison is None:
        return Shown("no scores" if cell.state == "finished" else cell.state, footnote=footnote)
    is_alone = sum(column == place[1] for _, column in stats.comparisons) == 1
    mark: Mark = "" if is_alone else "best" if comparison.is_best else "second" if comparison.is_second else ""
    text = score_of(cell).write()
    return Shown(text, comparison.stars, mark, cell.is_thin, footnote, True, cell.cell_id, _paper(cell, SCORE, 3))


def _paper(cell: TableCell, name: str, digits: int) -> str:
    """Write the paper's figure of a cell; empty where it has none of this setting."""
    return f"paper {cell.paper[name]:,.{digits}f}" if name in cell.paper else ""


def write_measure(stats: TableStats, name: str) -> dict[Place, str]:
    """Write a measure of every cell that has it, with digits by its size."""
    cells = stats.grid.cells.items()
    found = {place: one for place, cell in cells if (one := measured(stats.table, cell, name)) is not None}
    largest = max((abs(one.mean) for one in found.values()), default=0.0)
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2 if largest >= 1 else 3
    paper = {place: _paper(stats.grid.cells[place], name, digits) for place in found}
    return {
        place: f"{one.write(digits)} ({paper[place]})" if paper[place] else one.write(digits)
        for place, one in found.items()
    }


def measured(table: Table, cell: TableCell, name: str) -> Spread | None:
    """Average a measure of a cell, with the deviation that its table asks for; None where it has none."""
    values = cell.question_measures.get(name) if table.spread == "questions" else None
    values = cell.measures.get(name) if values is None else values
    return Spread.of(values) if values is not None and values.size else None


def legend(stats: TableStats, marks: str = "Bold: the best of its column; underlined: the second.") -> list[str]:
    """Explain the marks in a table; ``marks`` says how the best are marked."""
    fields = [shown(stats, place) for place in stats.grid.cells]
    repeats = stats.table.repeats
    lines = []
    if any(field.is_scored for field in fields):
        lines.append(f"Mean ± standard deviation over {repeats}.")
    if stats.table.show and stats.table.spread == "questions" and lines:
        lines.append("Measures of the context: mean ± standard deviation over questions.")
    if any(field.mark for field in fields):
        lines[0] = f"{lines[0]} {marks}".rstrip()
    if any(field.stars for field in fields):
        levels = ", ".join(f"{mark} p < {level:g}" for mark, level in reversed(STAR_LEVELS.items()))
        lines.append(f"Stars: differs from the column's best by Welch's t over {repeats}, not corrected: {levels}.")
        if repeats == "subsamples":
            lines.append("Subsamples of one pool share members: these stars overstate significance.")
    if any(field.is_thin for field in fields):
        few = f"fewer than {FEW_QUESTIONS} questions or {FEW_SEEDS} {repeats}"
        lines.append(f"{THIN} from {few}: a difference may be chance.")
    if any(cell.paper for cell in stats.grid.cells.values()):
        lines.append("paper: the paper's own figure of the same setting, not a figure of this sweep.")
    if stats.average:
        lines.append("Average rank: over the columns in which every row has a score; 1 is best.")
    n_asked = {one.n_questions for one in stats.comparisons.values()}
    if len(n_asked) > 1:
        lines.append(
            f"Cells have {min(n_asked):,} to {max(n_asked):,} questions; each is compared with the best of its column "
            "on those that both have."
        )
    return lines


def verdict(found: Selection | None, name: str = "") -> list[str]:
    """Say what a selection can tell and what not; ``name`` names the best cell."""
    if found is None:
        return []
    n, cells = counted(found.n_questions, "question"), f"{found.n_cells:,} cells"
    lines = []
    if found.detectable is not None and found.detectable_best is not None:
        seen, best = f"{found.detectable:.2f}", f"{found.detectable_best:.2f}"
        other = f" among the best (median pair of all {cells}: {seen})" if seen != best else f" among {cells}"
        lines.append(
            f"{n}: differences under {best} cannot be seen{other}; 80 % power, two-sided 5 %, paired by question. A "
            f"difference of {EFFECT:g} needs {found.n_needed:,} questions."
        )
    else:
        why = "two are needed" if found.n_questions < 2 else f"all {cells} differ by the same on each"
        lines.append(f"{n}: no difference can be seen, {why}.")
    low, high = found.rank_intervals[found.best]
    lines.append(
        f"Rank of the best{f' ({name})' if name else ''}, 95 %: {low:g} to {high:g} of {found.n_cells:,}; the interval "
        f"of {counted(found.n_first, 'cell')} reaches rank {found.first:g} (bootstrap over questions)."
    )
    if found.expected is None or found.low is None or found.high is None:
        lines.append(f"{n}: too few to correct the best score for its selection.")
    else:
        lines.append(
            f"The best of {cells} scores {found.score:.3f} here; corrected for its selection {found.expected:.3f} is "
            f"expected, and {found.low:.2f} to {found.high:.2f} (95 %) on {n} of the same kind."
        )
    if found.n_left_out:
        lines.append(f"{found.n_left_out:,} cells with other questions are left out of these figures.")
    return lines


def table_verdict(stats: TableStats) -> list[str]:
    """Say what a table can tell, with the name of its best cell."""
    best = stats.selection.best if stats.selection else ""
    cell = next((cell for cell in stats.table.cells if cell.cell_id == best), None)
    return verdict(stats.selection, name_cell(stats.table, cell) if cell else "")


def sweep_verdict(sweep: Sweep) -> list[str]:
    """Say what a sweep of several tables can tell over all its distinct cells."""
    cells = [cell for table in sweep.tables for cell in table.cells]
    lines = verdict(select_best(cells, sweep.metric)) if len(sweep.tables) > 1 else []
    return [f"All tables: {line[0].lower()}{line[1:]}" for line in lines]


def footnotes(stats: TableStats) -> list[str]:
    """List the reasons of unfinished cells, numbered."""
    return [f"[{at}] {cut(reason, REASON_CHARS)}" for at, reason in enumerate(stats.reasons, 1)]


def head(stats: TableStats, score: str = ONLY_COLUMN) -> list[str]:
    """Name a table's columns; ``score`` is the only one of a table with one axis."""
    grid = stats.grid
    columns = [f"{grid.column_axis} = {label}" for label in grid.columns] if grid.column_axis else [score]
    return [*grid.row_axes, *columns]


def write_rank(rank: float | None) -> str:
    """Write an average rank."""
    return "" if rank is None else f"{rank:.2f}"


def _reason(cell: TableCell) -> str:
    if cell.state == "finished":
        return ""
    return f"{cell.state}: {cell.reason or 'no reason is known'}"
