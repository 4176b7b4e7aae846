"""A sweep's tables: their layout and statistics, and what they are as Markdown, CSV, LaTeX and for a terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy.typing as npt

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.selection import EFFECT, Selection
from kohaku_ray.evaluation.statistics import STAR_LEVELS, average_ranks, mean_sd, ranks
from kohaku_ray.pages.score_text import split_tables
from kohaku_ray.pages.score_text import table as aligned
from kohaku_ray.pages.text import cut, one_line, visible
from kohaku_ray.run.summary import counted
from kohaku_ray.sweep.compare import (
    FEW_QUESTIONS,
    FEW_SEEDS,
    SCORE,
    Comparison,
    Sweep,
    SweepCell,
    SweepGroups,
    SweepRun,
    SweepTable,
    compare_column,
    select_best,
)
from kohaku_ray.values.read import parse_number

THIN = "†"
"""Marks a figure from few questions or seeds."""

ONLY_COLUMN = "score"
"""Head of the only column of a table with one axis: its labels become the rows, which are compared."""

RowLabels = tuple[str, ...]
GridPosition = tuple[RowLabels, str]
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

    def turned(self) -> TableGrid:
        """Exchange rows and columns."""
        cells: dict[GridPosition, SweepCell] = {
            ((column,), row_name(row)): cell for (row, column), cell in self.cells.items()
        }
        rows = tuple((column,) for column in self.columns)
        columns = tuple(map(row_name, self.rows))
        return TableGrid(self.table, (self.column_axis,), self.row_axis, rows, columns, cells)


@dataclass(frozen=True, slots=True)
class TableStats:
    """A table with its statistics."""

    grid: TableGrid
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


@dataclass(frozen=True, slots=True)
class ScoreField:
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


def compute_stats(table: SweepTable, metric: Metric | None = None) -> TableStats:
    """Lay a table out, and compare its cells; the metric's parts come before those of the cells."""
    grid = lay_out(table)
    comparisons: dict[GridPosition, Comparison] = {}
    ranked: dict[GridPosition, float] = {}
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


def _average(grid: TableGrid, comparisons: Mapping[GridPosition, Comparison]) -> dict[RowLabels, float]:
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


def lay_out(table: SweepTable) -> TableGrid:
    """Arrange a table's cells; the labels of a single axis become rows."""
    names, (*others, last) = axis_names(table), table.axes
    places = {(tuple(cell.at[axis.name] for axis in others), cell.at[last.name]): cell for cell in table.cells}
    there = {column for _, column in places}
    columns = tuple(label for label in last.labels if label in there)
    if not others:
        alone: dict[GridPosition, SweepCell] = {((column,), ONLY_COLUMN): cell for (_, column), cell in places.items()}
        return TableGrid(table, names, "", tuple((label,) for label in columns), (ONLY_COLUMN,), alone)
    rows = tuple(dict.fromkeys(row for row, _ in places))
    return TableGrid(table, names[:-1], names[-1], rows, columns, places)


def name_cell(table: SweepTable, cell: SweepCell) -> str:
    """Name a cell by its labels in one line."""
    names = zip(axis_names(table), table.axes, strict=True)
    return ", ".join(f"{name} = {cell.at[axis.name]}" for name, axis in names)


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


def score_field(stats: TableStats, place: GridPosition) -> ScoreField:
    """Return the content of a field of the score table."""
    cell = stats.grid.cells.get(place)
    if cell is None:
        return ScoreField("")
    reason = _reason(cell)
    footnote = 1 + stats.reasons.index(reason) if reason else 0
    comparison = stats.comparisons.get(place)
    if comparison is None:
        return ScoreField("no scores" if cell.state == "finished" else cell.state, footnote=footnote)
    is_alone = sum(column == place[1] for _, column in stats.comparisons) == 1
    mark: Mark = "" if is_alone else "best" if comparison.is_best else "second" if comparison.is_second else ""
    text = score_of(cell).write()
    return ScoreField(text, comparison.stars, mark, cell.is_thin, footnote, True, cell.cell_id, _paper(cell, SCORE, 3))


def _paper(cell: SweepCell, name: str, digits: int) -> str:
    """Write the paper's figure of a cell; empty where it has none of this setting."""
    return f"paper {cell.paper[name]:,.{digits}f}" if name in cell.paper else ""


def write_measure(stats: TableStats, name: str) -> dict[GridPosition, str]:
    """Write a measure of every cell that has it, with digits by its size."""
    cells = stats.grid.cells.items()
    found = {place: one for place, cell in cells if (one := measure_of(stats.table, cell, name)) is not None}
    largest = max((abs(one.mean) for one in found.values()), default=0.0)
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2 if largest >= 1 else 3
    paper = {place: _paper(stats.grid.cells[place], name, digits) for place in found}
    return {
        place: f"{one.write(digits)} ({paper[place]})" if paper[place] else one.write(digits)
        for place, one in found.items()
    }


def measure_of(table: SweepTable, cell: SweepCell, name: str) -> Spread | None:
    """Average a measure of a cell, with the deviation that its table asks for; None where it has none."""
    values = cell.question_measures.get(name) if table.spread == "questions" else None
    values = cell.measures.get(name) if values is None else values
    return Spread.of(values) if values is not None and values.size else None


def legend(stats: TableStats, marks: str = "Bold: the best of its column; underlined: the second.") -> list[str]:
    """Explain the marks in a table; ``marks`` says how the best are marked."""
    fields = [score_field(stats, place) for place in stats.grid.cells]
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


def list_cell_runs(sweep: Sweep) -> list[CellRuns]:
    """List every scored cell once, in the order of the tables."""
    runs = {run.run_id: run for run in sweep.runs}
    found: dict[str, CellRuns] = {}
    for table in sweep.tables:
        for cell in table.cells:
            if not cell.is_scored:
                continue
            name = f"{table.title}: {name_cell(table, cell)}"
            if cell.cell_id in found:
                found[cell.cell_id].names.append(name)
                continue
            of_cell = [(seed, runs[run_id]) for seed, run_id in enumerate(cell.run_ids) if run_id in runs]
            found[cell.cell_id] = CellRuns(f"cell-{len(found) + 1}", [name], cell, of_cell)
    return list(found.values())


_STATE = ("table", "cell_id", "state", "reason", "repeats", "n_seeds", "n_questions", "is_thin", "mean", "sd")
_STATISTICS = (
    *("rank", "rank_low", "rank_high", "is_best", "n_common", "difference", "ci_low", "ci_high"),
    *("welch_p", "welch_p_holm", "stars", "permutation_p", "permutation_p_holm", "hedges_g", "d_z", "runs"),
)

Lines = list[list[str]]
"""A table as texts; its head comes first."""


def describe_sweep(sweep: Sweep, stats: Sequence[TableStats] | None = None) -> str:
    """Write a sweep for a terminal: the score tables first, then its notes; ``stats`` saves computing them again."""
    tables = compute_sweep_stats(sweep) if stats is None else stats
    parts = [one_line(f"{sweep.title} ({sweep.name})")]
    for one in tables:
        n_text = len(one.grid.row_axes)
        suffix = max([len(_suffix(score_field(one, place))) for place in one.grid.cells], default=0)
        head, *rows = _scores(one, one_line, _terminal(suffix))
        parts.append(f"{one_line(one.table.title)}\n\n{aligned(head, rows, n_text)}")
        for name in one.table.show:
            head, *rows = _measures(one, name, one_line)
            parts.append(f"{one_line(name)}\n\n{aligned(head, rows, n_text)}")
        if lines := _below(one, legend(one, marks="")):
            parts.append("\n".join(map(one_line, lines)))
    if sweep.groups is not None:
        names = [one_line(name) for name in sweep.groups.names]
        parts.append("\n\n".join(split_tables(names, order_of(sweep.groups), sweep.groups.split, "settings")))
    about = sweep_verdict(sweep)
    spent = [f"{name}: {text}" for name, text in sweep.spending.items()]
    return "\n\n".join(parts + ["\n".join(map(one_line, lines)) for lines in (about, sweep.notes, spent) if lines])


def order_of(groups: SweepGroups) -> list[int]:
    """Order the settings by their rank on the first group."""
    ranks = groups.split.ranks[groups.split.labels[0]]
    return sorted(range(len(ranks)), key=lambda at: (ranks[at], at))


def groups_csv(groups: SweepGroups) -> str:
    """Write one line per setting: its score on every group, its ranks, and what both change from the first group."""
    split, later = groups.split, groups.split.labels[1:]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    changes = [f"{change} {label}" for change in ("difference", "move") for label in later]
    writer.writerow(["setting", *split.labels, *(f"rank {label}" for label in split.labels), *changes])
    for at in order_of(groups):
        scores = [f"{split.scores[label][at].score:.6f}" for label in split.labels]
        ranks = [f"{split.ranks[label][at]:g}" for label in split.labels]
        differences = [_decimal(split.differences[label][at]) for label in later]
        moves = [f"{split.moves[label][at]:g}" for label in later]
        writer.writerow([visible(groups.names[at]), *scores, *ranks, *differences, *moves])
    return buffer.getvalue()


def as_markdown(stats: TableStats) -> str:
    """Write the score table and its measures as Markdown."""
    parts = [
        f"# {_markdown(stats.table.title)}",
        _markdown_table(stats, _scores(stats, _markdown, _markdown_field)),
    ]
    for name in stats.table.show:
        parts += [f"## {_markdown(name)}", _markdown_table(stats, _measures(stats, name, _markdown))]
    return "\n\n".join([*parts, *map(_markdown, _below(stats, legend(stats)))]) + "\n"


def as_latex(stats: TableStats) -> str:
    r"""Write the score table and its measures as LaTeX, for ``\input`` into a document that uses booktabs."""
    parts = [
        "% needs \\usepackage{booktabs}; letters beyond the Latin ones need LuaLaTeX or XeLaTeX",
        f"% {one_line(stats.table.title)}",
        _latex_table(stats, _scores(stats, _latex, _latex_field)),
    ]
    for name in stats.table.show:
        heading = f"\\par\\medskip\\noindent {_latex(name)}\\par\\noindent"
        parts += [heading, _latex_table(stats, _measures(stats, name, _latex))]
    return "\n".join([*parts, *(f"\\par\\noindent {_latex(line)}" for line in _below(stats, legend(stats)))]) + "\n"


def as_csv(stats: TableStats) -> str:
    """Write one line per cell with all its figures; an unknown figure is empty.

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
    buffer = io.StringIO()
    papers = {name: f"paper {visible(name)}" for cell in cells.values() for name in cell.paper}
    columns = [*axes.values(), *figures, *measures.values(), *spreads.values(), *papers.values()]
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for place, cell in cells.items():
        labels = {column: visible(cell.at[name]) for name, column in axes.items()}
        spread = {name: Spread.of(values) for name, values in cell.measures.items() if values.size}
        means = {column: _decimal(spread[name].mean) for name, column in measures.items() if name in spread}
        for name, column in spreads.items():
            one = measure_of(stats.table, cell, name)
            means[column] = _decimal(one.sd if one else None)
        scored = {column: _decimal(float(cell.parts[name].mean())) for name, column in parts.items() if cell.is_scored}
        paper = {column: _decimal(cell.paper.get(name)) for name, column in papers.items()}
        writer.writerow(labels | _record(stats, place, cell) | scored | means | paper)
    return buffer.getvalue()


def _record(stats: TableStats, place: GridPosition, cell: SweepCell) -> dict[str, str]:
    record = {
        "table": visible(stats.table.name),
        "cell_id": visible(cell.cell_id),
        "state": cell.state,
        "reason": visible(cell.reason),
        "repeats": stats.table.repeats,
        "n_seeds": str(len(cell.seeds)),
        "n_questions": str(len(cell.question_ids)),
        "runs": " ".join(map(visible, cell.run_ids)),
    }
    one = stats.comparisons.get(place)
    if one is None:
        return record
    between = stats.selection.rank_intervals.get(cell.cell_id) if stats.selection else None
    low, high = (f"{end:g}" for end in between) if between else ("", "")
    return record | {
        "rank_low": low,
        "rank_high": high,
        "is_thin": str(cell.is_thin).lower(),
        "mean": _decimal(one.mean),
        "sd": _decimal(one.sd),
        "rank": f"{stats.ranks[place]:g}",
        "is_best": str(one.is_best).lower(),
        "n_common": str(one.n_common),
        "difference": _decimal(one.interval.mean),
        "ci_low": _decimal(one.interval.low),
        "ci_high": _decimal(one.interval.high),
        "welch_p": _decimal(one.welch.p),
        "welch_p_holm": _decimal(one.welch_holm),
        "stars": one.stars,
        "permutation_p": _decimal(one.permutation.p),
        "permutation_p_holm": _decimal(one.permutation_holm),
        "hedges_g": _decimal(one.welch.g),
        "d_z": _decimal(one.d_z),
    }


def _column(kind: str, name: str, taken: Sequence[str]) -> str:
    name = visible(name)
    return f"{kind} {name}" if name in taken else name


def _decimal(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:z.6f}"


def _below(stats: TableStats, explained: Sequence[str]) -> list[str]:
    return [*footnotes(stats), *explained, *table_verdict(stats), *stats.table.notes]


def _scores(stats: TableStats, escape: Callable[[str], str], field: Callable[[ScoreField], str]) -> Lines:
    grid = stats.grid
    first = [*map(escape, head(stats)), *(["average rank"] if stats.average else [])]
    rows = [
        [*map(escape, row), *(field(score_field(stats, (row, column))) for column in grid.columns)]
        + ([write_rank(stats.average.get(row))] if stats.average else [])
        for row in grid.rows
    ]
    return [first, *rows]


def _measures(stats: TableStats, name: str, escape: Callable[[str], str]) -> Lines:
    grid, found = stats.grid, write_measure(stats, name)
    rows = [
        [*map(escape, row), *(escape(found.get((row, column), "")) for column in grid.columns)] for row in grid.rows
    ]
    return [[*map(escape, head(stats, name))], *rows]


def _suffix(field: ScoreField) -> str:
    return f" {field.raised}".rstrip() + (f" ({field.paper})" if field.paper else "")


def _terminal(width: int) -> Callable[[ScoreField], str]:
    names = {"best": "best ", "second": "2nd ", "": ""}

    def field(field: ScoreField) -> str:
        return f"{names[field.mark]}{field.text}{_suffix(field):<{width}}"

    return field


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|~&$#])", r"\\\1", one_line(text))


def _markdown_field(field: ScoreField) -> str:
    text = {"best": f"**{field.text}**", "second": f"<ins>{field.text}</ins>", "": field.text}[field.mark]
    return text + _markdown(_suffix(field)).replace("\\[", " \\[")


def _markdown_table(stats: TableStats, lines: Lines) -> str:
    n_text = len(stats.grid.row_axes)
    rule = ["---" if at < n_text else "---:" for at in range(len(lines[0]))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "·": r"$\cdot$",
    "–": r"\textendash{}",
    "…": r"\dots{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"{{{letter}}}" for letter in '[]*"'},  # no optional argument, no starred command
    **{chr(0x2400 + code): f"{{[}}U+{code:04X}{{]}}" for code in range(0x20)},  # symbols that few fonts have
}


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in one_line(text))
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)  # no ligature


def _latex_field(field: ScoreField) -> str:
    command = {"best": r"\textbf", "second": r"\underline", "": ""}[field.mark]
    text = f"{command}{{{_latex(field.text)}}}" if command else _latex(field.text)
    raised = field.stars + (r"\dagger" if field.is_thin else "")
    text += f"$^{{{raised}}}$" if raised else ""
    return (
        text + (f" {{[}}{field.footnote}{{]}}" if field.footnote else "") + (f" ({field.paper})" if field.paper else "")
    )


def _latex_table(stats: TableStats, lines: Lines) -> str:
    n_text = len(stats.grid.row_axes)
    first, *rows = (f"{' & '.join(line)} \\\\" for line in lines)
    columns = "l" * n_text + "r" * (len(lines[0]) - n_text)
    body = ["\\toprule", first, "\\midrule", *rows, "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *body, "\\end{tabular}"])
