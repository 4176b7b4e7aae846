"""A sweep's tables: their layout and statistics, and what they are as Markdown, CSV, LaTeX and for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy.typing as npt

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.paired import Interval, bounded_interval
from kohaku_ray.evaluation.selection import EFFECT, Selection
from kohaku_ray.evaluation.statistics import STAR_LEVELS, average_ranks, mean_sd, ranks
from kohaku_ray.pages.score_text import split_tables
from kohaku_ray.pages.tables import as_csv, as_latex, as_markdown, as_text, escape_latex, escape_markdown
from kohaku_ray.pages.text import cut, one_line, visible
from kohaku_ray.run.record.summary import pluralize
from kohaku_ray.sweep.compare import (
    FEW_QUESTIONS,
    FEW_SEEDS,
    SCORE,
    Comparison,
    SweepCell,
    SweepGroups,
    SweepRecord,
    SweepRun,
    SweepTable,
    compare_column,
    fixed_text,
    select_best,
)
from kohaku_ray.table import Column, MarkedText, Table, TableRow
from kohaku_ray.values.read import parse_number

THIN = "†"
"""Marks a figure from few questions or seeds."""

ONLY_COLUMN = "score"
"""Head of the only column of a table with one axis: its labels become the rows, which are compared."""

RowLabels = tuple[str, ...]
GridPosition = tuple[RowLabels, str]
Mark = Literal["best", "second", ""]

_DECIMAL = "z.6f"
_FORMATS = dict.fromkeys(("rank", "rank_low", "rank_high", "column_rank"), "g")

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
        return row_name(self.row_axes)

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The columns as numbers, where all of them are."""
        numbers = tuple(number for label in self.columns if (number := parse_number(label)) is not None)
        return numbers if len(numbers) == len(self.columns) else None

    def turned(self) -> CellGrid:
        """Exchange rows and columns."""
        cells: dict[GridPosition, SweepCell] = {
            ((column,), row_name(row)): cell for (row, column), cell in self.cells.items()
        }
        rows = tuple((column,) for column in self.columns)
        columns = tuple(map(row_name, self.rows))
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


def compute_stats(table: SweepTable, metric: Metric | None = None) -> TableStats:
    """Lay a table out, and compare its cells; the metric's parts come before those of the cells."""
    grid = lay_out(table)
    comparisons: dict[GridPosition, Comparison] = {}
    ranked: dict[GridPosition, float] = {}
    for column in grid.columns:
        scored = [(row, column) for row in grid.rows if (cell := grid.cells.get((row, column))) and cell.is_scored]
        compared = compare_column([grid.cells[position] for position in scored])
        comparisons |= dict(zip(scored, compared, strict=True))
        if compared:
            ranked |= dict(zip(scored, ranks([comparison.mean for comparison in compared]).tolist(), strict=True))
    reasons = dict.fromkeys(_reason(cell) for cell in grid.cells.values() if _reason(cell))
    names = dict.fromkeys([*(metric.parts if metric else ()), *(name for cell in table.cells for name in cell.parts)])
    selection = select_best(table.cells, metric)
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
    return [compute_stats(table, sweep.metric) for table in sweep.tables]


def lay_out(table: SweepTable) -> CellGrid:
    """Arrange a table's cells; the labels of a single axis become rows."""
    names, (*others, last) = axis_names(table), table.axes
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
    names = zip(axis_names(table), table.axes, strict=True)
    return ", ".join(f"{name} = {cell.labels[axis.name]}" for name, axis in names)


def row_name(row: RowLabels) -> str:
    """Name a row in one line."""
    return " · ".join(row)


def axis_names(table: SweepTable) -> tuple[str, ...]:
    """Name a table's axes by the fewest last parts of their keys that distinguish them."""
    keys = [axis.name.split(".") for axis in table.axes]
    for n_parts in range(1, max(map(len, keys), default=0) + 1):
        names = tuple(".".join(key[-n_parts:]) for key in keys)
        if len(set(names)) == len(names) and all(names):
            return names
    return tuple(axis.name for axis in table.axes)


def score_of(cell: SweepCell) -> Spread:
    """Average a scored cell."""
    return Spread.of(cell.scores)


def score_field(stats: TableStats, position: GridPosition, anchors: Mapping[str, str]) -> MarkedText:
    """Write a field of the score table: mean and deviation with their marks, or the state of a cell without scores."""
    cell = stats.grid.cells.get(position)
    if cell is None:
        return MarkedText("")
    reason = _reason(cell)
    footnote = 1 + stats.reasons.index(reason) if reason else 0
    comparison = stats.comparisons.get(position)
    if cell.state == "dropped":
        return MarkedText(f"({score_of(cell).write()})", footnote=footnote)
    if comparison is None:
        return MarkedText("no scores" if cell.state == "finished" else cell.state, footnote=footnote)
    is_alone = sum(column == position[1] for _, column in stats.comparisons) == 1
    mark: Mark = "" if is_alone else "best" if comparison.is_best else "second" if comparison.is_second else ""
    is_marked = cell.is_thin and not all(stats.grid.cells[other].is_thin for other in stats.comparisons)
    raised = comparison.stars + (THIN if is_marked else "")
    link = f"#{anchors[cell.cell_id]}" if cell.cell_id in anchors else ""
    return MarkedText(score_of(cell).write(), mark, raised, footnote, _paper(cell, SCORE, 3), link)


def _paper(cell: SweepCell, name: str, digits: int) -> str:
    """Write the paper's figure of a cell; empty where it has none of this setting."""
    return f"paper {cell.paper[name]:,.{digits}f}" if name in cell.paper else ""


def write_measure(stats: TableStats, name: str) -> dict[GridPosition, str]:
    """Write a measure of every cell that has it, with digits by its size."""
    cells = stats.grid.cells.items()
    spreads = {
        position: spread for position, cell in cells if (spread := measure_of(stats.table, cell, name)) is not None
    }
    largest = max((abs(spread.mean) for spread in spreads.values()), default=0.0)
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2 if largest >= 1 else 3
    paper = {position: _paper(stats.grid.cells[position], name, digits) for position in spreads}
    return {
        position: f"{spread.write(digits)} ({paper[position]})" if paper[position] else spread.write(digits)
        for position, spread in spreads.items()
    }


def measure_of(table: SweepTable, cell: SweepCell, name: str) -> Spread | None:
    """Average a measure of a cell, with the deviation that its table asks for; None where it has none."""
    values = cell.question_measures.get(name) if table.spread == "questions" else None
    values = cell.measures.get(name) if values is None else values
    return Spread.of(values) if values is not None and values.size else None


def score_meaning(stats: TableStats) -> str:
    """Say what a score of the table is."""
    n = max((comparison.n_seeds for comparison in stats.comparisons.values()), default=1)
    repeats = stats.table.repeats
    return f"Mean ± standard deviation over {repeats}." if n > 1 else f"Scores of one {repeats.removesuffix('s')}."


def legend(stats: TableStats, *, is_marked: bool = True) -> list[str]:
    """Explain the marks in a table; ``is_marked``: the best are marked by their looks."""
    marks_of_cells = {score_field(stats, position, {}).mark for position in stats.grid.cells}
    cells = [stats.grid.cells[position] for position in stats.comparisons]
    repeats = stats.table.repeats
    lines = []
    if cells:
        lines.append(score_meaning(stats))
    if stats.table.show and stats.table.spread == "questions" and lines:
        lines.append("Measures of the context: mean ± standard deviation over questions.")
    if is_marked and "best" in marks_of_cells:
        second = "; underlined: the second" if "second" in marks_of_cells else ""
        lines[0] = f"{lines[0]} Bold: the best of its column{second}."
    if any(comparison.stars for comparison in stats.comparisons.values()):
        levels = ", ".join(f"{mark} p < {level:g}" for mark, level in reversed(STAR_LEVELS.items()))
        lines.append(f"Stars: differs from the column's best by Welch's t over {repeats}, not corrected: {levels}.")
        if repeats == "subsamples":
            lines.append("Subsamples of one pool share members: these stars overstate significance.")
    if any(cell.is_thin for cell in cells):
        few = {
            f"{FEW_QUESTIONS} questions": any(len(cell.question_ids) < FEW_QUESTIONS for cell in cells),
            f"{FEW_SEEDS} {repeats}": any(len(cell.seeds) < FEW_SEEDS and not cell.is_exact for cell in cells),
        }
        who = "Every cell is" if all(cell.is_thin for cell in cells) else THIN
        named = " or ".join(name for name, is_so in few.items() if is_so)
        lines.append(f"{who} from fewer than {named}: a difference may be chance.")
    if any(cell.paper for cell in stats.grid.cells.values()):
        lines.append("paper: the paper's own figure of the same setting, not a figure of this sweep.")
    if stats.average:
        lines.append("Average rank: over the columns in which every row has a score; 1 is best.")
    n_asked = {compared.n_questions for compared in stats.comparisons.values()}
    if len(n_asked) > 1:
        lines.append(
            f"Cells have {min(n_asked):,} to {max(n_asked):,} questions; each is compared with the best of its column "
            "on those that both have."
        )
    return lines


@dataclass(frozen=True, slots=True)
class Best:
    """The best cell of a table, and those that are not told from it, among the cells that can be compared."""

    cell: SweepCell
    interval: Interval  # of its score, over the questions
    tied: tuple[SweepCell, ...]  # others of the same mean
    contenders: tuple[SweepCell, ...]  # further cells whose rank may be that of the best


def best_of(stats: TableStats, metric: Metric) -> Best | None:
    """Find the best cell of a table, the first on a tie; None without scores."""
    scored = {cell.cell_id: cell for cell in stats.table.cells if cell.is_scored}
    if not scored:
        return None
    selection = stats.selection
    means = {key: round(score_of(cell).mean, 12) for key, cell in scored.items()}
    cell = scored[selection.best if selection else max(means, key=lambda key: means[key])]
    others = [key for key in (selection.ranks if selection else ()) if key != cell.cell_id]
    contenders = frozenset(selection.contenders if selection else ())
    return Best(
        cell,
        bounded_interval(metric, cell.by_question),
        tuple(scored[key] for key in others if means[key] == means[cell.cell_id]),
        tuple(scored[key] for key in others if means[key] < means[cell.cell_id] and key in contenders),
    )


def verdict(selection: Selection | None, name: str = "") -> list[tuple[str, str]]:
    """Say what a selection can tell and what not, each by what it is; ``name`` names the best cell."""
    if selection is None:
        return []
    n = pluralize(selection.n_questions, "question")
    facts = []
    if selection.detectable is not None and selection.detectable_best is not None:
        seen, best = f"{selection.detectable:.2f}", f"{selection.detectable_best:.2f}"
        other = f" among the best ({seen} between all cells, median pair)" if seen != best else ""
        facts = [
            (
                "smallest difference that can be seen",
                f"{best}{other}: {n}, 80 % power, two-sided 5 %, paired by question",
            ),
            (f"questions that a difference of {EFFECT:g} needs", f"{selection.n_needed:,}"),
        ]
    else:
        cells = pluralize(selection.n_cells, "cell")
        why = "two are needed" if selection.n_questions < 2 else f"all {cells} differ by the same on each"
        facts = [("smallest difference that can be seen", f"none: {n}, {why}")]
    low, high = selection.rank_intervals[selection.best]
    is_equal, tied = selection.n_distinct < selection.n_cells, selection.n_tied[selection.best]
    among = pluralize(selection.n_distinct, "result" if is_equal else "cell")
    first = f"{low:g} to {high:g} of {among}; {selection.n_first:,} of them may be the first"
    others = f"; tied with {pluralize(tied, 'other cell')}" if tied else ""
    facts.append((f"rank of the best{f' ({name})' if name else ''}, 95 %", first + others))
    if is_equal:
        equal = f"{pluralize(selection.n_cells, 'cell')}: those that are equal on every question have one result"
        facts.append(("cells behind these results", equal))
    if selection.expected is None or selection.low is None or selection.high is None:
        facts.append(("score corrected for its selection", f"unknown: {n}, three are needed"))
    else:
        facts.append(
            (
                "score corrected for its selection",
                f"{selection.expected:.3f} instead of {selection.score:.3f}; {selection.low:.2f} to "
                f"{selection.high:.2f} (95 %) on {n} of the same kind",
            )
        )
    if selection.n_left_out:
        facts.append(("left out here", f"{pluralize(selection.n_left_out, 'cell')} with scores of other questions"))
    return facts


def table_verdict(stats: TableStats) -> list[tuple[str, str]]:
    """Say what a table can tell, with the name of its best cell."""
    best = stats.selection.best if stats.selection else ""
    cell = next((cell for cell in stats.table.cells if cell.cell_id == best), None)
    return verdict(stats.selection, name_cell(stats.table, cell) if cell else "")


def sweep_verdict(sweep: SweepRecord) -> list[tuple[str, str]]:
    """Say what a sweep of several tables can tell over all its distinct cells."""
    cells = [cell for table in sweep.tables for cell in table.cells]
    return verdict(select_best(cells, sweep.metric)) if len(sweep.tables) > 1 else []


def verdict_table(facts: Sequence[tuple[str, str]], title: str = "What these questions can tell") -> Table:
    """Lay a verdict out."""
    return Table.of((Column("", align="left"), Column("", align="left")), facts, title)


def _verdict_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name[0].upper()}{name[1:]}: {text}." for name, text in facts]


def footnotes(stats: TableStats) -> list[str]:
    """List the reasons of unfinished cells, numbered."""
    return [f"[{number}] {cut(reason, REASON_CHARS)}" for number, reason in enumerate(stats.reasons, 1)]


def score_table(stats: TableStats, anchors: Mapping[str, str] | None = None) -> Table:
    """Lay out the scores, with links to the cells that have ``anchors`` on a page, and the rows' average ranks."""
    grid = stats.grid
    head = column_heads(stats)
    rows: list[TableRow] = [
        (*row, *(score_field(stats, (row, column), anchors or {}) for column in grid.columns)) for row in grid.rows
    ]
    if stats.average:
        head.append(Column("average rank", ".2f"))
        rows = [(*fields, stats.average.get(row)) for row, fields in zip(grid.rows, rows, strict=True)]
    return Table.of(head, rows, stats.table.title, len(grid.row_axes))


def measure_tables(stats: TableStats) -> Iterator[Table]:
    """Lay out the measures that a table shows beside its scores."""
    for name in stats.table.show:
        written = write_measure(stats, name)
        rows = [(*row, *(written.get((row, column)) for column in stats.grid.columns)) for row in stats.grid.rows]
        yield Table.of(column_heads(stats, name), rows, name, len(stats.grid.row_axes))


def column_heads(stats: TableStats, score: str = ONLY_COLUMN) -> list[str | Column]:
    """Name a table's columns; ``score`` is the only one of a table with one axis."""
    grid = stats.grid
    columns = [f"{grid.column_axis} = {label}" for label in grid.columns] if grid.column_axis else [score]
    return [*grid.row_axes, *columns]


def _reason(cell: SweepCell) -> str:
    if cell.state == "finished":
        return ""
    return f"{cell.state}: {cell.reason or 'no reason is known'}"


@dataclass(frozen=True, slots=True)
class CellRuns:
    """The questions behind a figure."""

    anchor: str  # its id on the page
    names: list[str]  # table and labels, for every table that has it
    cell: SweepCell
    runs: list[tuple[int, SweepRun]]  # row of the cell's arrays, and its run


def list_cell_runs(sweep: SweepRecord) -> list[CellRuns]:
    """List every scored cell once, in the order of the tables."""
    runs = {run.run_id: run for run in sweep.runs}
    listed: dict[str, CellRuns] = {}
    for table in sweep.tables:
        for cell in table.cells:
            if not cell.total.size:
                continue
            name = name_cell(table, cell)
            name = f"{table.title}: {name}" if len(sweep.tables) > 1 else name
            if cell.cell_id in listed:
                listed[cell.cell_id].names.append(name)
                continue
            of_cell = [(seed, runs[run_id]) for seed, run_id in enumerate(cell.run_ids) if run_id in runs]
            listed[cell.cell_id] = CellRuns(f"cell-{len(listed) + 1}", [name], cell, of_cell)
    return list(listed.values())


_STATE = ("table", "cell_id", "state", "reason", "repeats", "n_seeds", "n_questions", "is_thin", "mean", "sd")
_STATISTICS = (
    *(
        "rank",
        "rank_low",
        "rank_high",
        "n_tied",
        "column_rank",
        "is_best",
        "n_common",
        "difference",
        "ci_low",
        "ci_high",
    ),
    *("welch_p", "welch_p_holm", "stars", "permutation_p", "permutation_p_holm", "hedges_g", "d_z", "runs"),
)


def describe_sweep(sweep: SweepRecord, stats: Sequence[TableStats] | None = None) -> str:
    """Write a sweep for a terminal: the score tables first, then its notes; ``stats`` saves computing them again."""
    parts = [one_line(f"{sweep.title} ({sweep.name})")]
    for table_stats in compute_sweep_stats(sweep) if stats is None else stats:
        tables = score_table(table_stats), *measure_tables(table_stats)
        parts += [f"{one_line(table.title)}\n\n{as_text(table)}" for table in tables]
        if lines := _below(table_stats, legend(table_stats, is_marked=False)):
            parts.append("\n".join(map(one_line, lines)))
    if sweep.groups is not None:
        parts.append(
            "\n\n".join(split_tables(sweep.groups.names, order_of(sweep.groups), sweep.groups.split, "settings"))
        )
    over_all = sweep_verdict(sweep)
    about = ["Over all tables:", *_verdict_lines(over_all)] if over_all else []
    fixed = [f"Fixed in {name}: {fixed_text(settings)}." for name, settings in sweep.fixed.items()]
    spent = [f"{name}: {text}" for name, text in sweep.spending.items()]
    blocks = about, [*fixed, *sweep.notes], spent
    return "\n\n".join(parts + ["\n".join(map(one_line, lines)) for lines in blocks if lines])


def write_markdown(stats: TableStats) -> str:
    """Write the score table and its measures as Markdown."""
    scores, *measures = score_table(stats), *measure_tables(stats)
    parts = [f"# {escape_markdown(scores.title)}", as_markdown(scores)]
    for table in measures:
        parts += [f"## {escape_markdown(table.title)}", as_markdown(table)]
    return "\n\n".join([*parts, *map(escape_markdown, _below(stats, legend(stats)))]) + "\n"


def write_csv(stats: TableStats) -> str:
    """Write a line per cell with all its figures, see ``cells_table``."""
    return as_csv(cells_table(stats))


def write_latex(stats: TableStats) -> str:
    r"""Write the score table and its measures as LaTeX, for ``\input`` into a document that uses booktabs."""
    scores, *measures = score_table(stats), *measure_tables(stats)
    parts = [
        "% needs \\usepackage{booktabs}; letters beyond the Latin ones need LuaLaTeX or XeLaTeX",
        f"% {one_line(scores.title)}",
        as_latex(scores),
    ]
    for table in measures:
        parts += [f"\\par\\medskip\\noindent {escape_latex(table.title)}\\par\\noindent", as_latex(table)]
    below = (f"\\par\\noindent {escape_latex(line)}" for line in _below(stats, legend(stats)))
    return "\n".join([*parts, *below]) + "\n"


def _below(stats: TableStats, explained: Sequence[str]) -> list[str]:
    return [*footnotes(stats), *explained, *_verdict_lines(table_verdict(stats)), *stats.table.notes]


def order_of(groups: SweepGroups) -> list[int]:
    """Order the settings by their rank on the first group."""
    ranks = groups.split.ranks[groups.split.labels[0]]
    return sorted(range(len(ranks)), key=lambda number: (ranks[number], number))


def group_scores_table(groups: SweepGroups) -> Table:
    """Lay out a row per setting: its score on every group, its ranks, and what both change from the first group."""
    split, later = groups.split, groups.split.labels[1:]
    columns = [
        Column("setting", align="left"),
        *(Column(label, _DECIMAL) for label in split.labels),
        *(Column(f"rank {label}", "g") for label in split.labels),
        *(Column(f"difference {label}", _DECIMAL) for label in later),
        *(Column(f"move {label}", "g") for label in later),
    ]
    rows: list[TableRow] = [
        (
            groups.names[number],
            *(split.scores[label][number].score for label in split.labels),
            *(split.ranks[label][number] for label in split.labels),
            *(split.differences[label][number] for label in later),
            *(split.moves[label][number] for label in later),
        )
        for number in order_of(groups)
    ]
    return Table.of(columns, rows)


def cells_table(stats: TableStats) -> Table:
    """Lay out a row per cell with all its figures; an unknown figure is None.

    Where cells have the setting of a paper, its figures are in columns ``paper score`` and ``paper MEASURE``.

    A part of the score, an axis or a measure with the name of a figure is written with ``part``, ``axis`` or
    ``measure`` before its name.
    """
    cells = stats.grid.cells
    parts = {name: _column("part", name, [*_STATE, *_STATISTICS]) for name in stats.parts}
    figures = [*_STATE, *parts.values(), *_STATISTICS]
    axes = {axis.name: _column("axis", axis.name, figures) for axis in stats.table.axes}
    names = dict.fromkeys(name for cell in cells.values() for name in cell.measures)
    measures = {name: _column("measure", name, [*figures, *axes.values()]) for name in names}
    is_spread = stats.table.spread == "questions"
    spreads = {name: f"{column} sd" for name, column in measures.items() if is_spread and name in stats.table.show}
    papers = {name: f"paper {name}" for cell in cells.values() for name in cell.paper}
    labels = [*axes.values(), *figures, *measures.values(), *spreads.values(), *papers.values()]
    rows = []
    for position, cell in cells.items():
        record: dict[str, object] = {column: cell.labels[name] for name, column in axes.items()}
        record |= _figures(stats, position, cell)
        if cell.is_scored:
            record |= {column: float(cell.parts[name].mean()) for name, column in parts.items()}
        means = {name: Spread.of(values).mean for name, values in cell.measures.items() if values.size}
        record |= {column: means.get(name) for name, column in measures.items()}
        deviations = {name: measure_of(stats.table, cell, name) for name in spreads}
        record |= {spreads[name]: spread.sd for name, spread in deviations.items() if spread is not None}
        record |= {column: cell.paper.get(name) for name, column in papers.items()}
        rows.append([None if value != value else value for value in map(record.get, labels)])
    return Table.of([Column(label, _FORMATS.get(label, _DECIMAL)) for label in labels], rows)


def _figures(stats: TableStats, position: GridPosition, cell: SweepCell) -> dict[str, object]:
    record: dict[str, object] = {
        "table": stats.table.name,
        "cell_id": cell.cell_id,
        "state": cell.state,
        "reason": cell.reason,
        "repeats": stats.table.repeats,
        "n_seeds": len(cell.seeds),
        "n_questions": len(cell.question_ids),
        "runs": " ".join(cell.run_ids),
    }
    comparison = stats.comparisons.get(position)
    if comparison is None:
        return record | ({"mean": score_of(cell).mean} if cell.total.size else {})
    chosen = stats.selection
    if chosen is not None and cell.cell_id in chosen.ranks:
        record |= {"rank": chosen.ranks[cell.cell_id], "n_tied": chosen.n_tied[cell.cell_id]}
        record["rank_low"], record["rank_high"] = chosen.rank_intervals[cell.cell_id]
    return record | {
        "is_thin": str(cell.is_thin).lower(),
        "mean": comparison.mean,
        "sd": comparison.sd,
        "column_rank": stats.ranks[position],
        "is_best": str(comparison.is_best).lower(),
        "n_common": comparison.n_common,
        "difference": comparison.interval.mean,
        "ci_low": comparison.interval.low,
        "ci_high": comparison.interval.high,
        "welch_p": comparison.welch.p,
        "welch_p_holm": comparison.welch_holm,
        "stars": comparison.stars,
        "permutation_p": comparison.permutation.p,
        "permutation_p_holm": comparison.permutation_holm,
        "hedges_g": comparison.welch.g,
        "d_z": comparison.d_z,
    }


def _column(kind: str, name: str, taken: Sequence[str]) -> str:
    name = visible(name)
    return f"{kind} {name}" if name in taken else name


def write_tables(sweep: SweepRecord) -> dict[str, str]:
    """Write every table of a sweep as CSV and as Markdown: texts by file name."""
    stats = compute_sweep_stats(sweep)
    writers = (("csv", write_csv), ("md", write_markdown))
    return {f"{table.table.name}.{suffix}": write(table) for table in stats for suffix, write in writers}
