"""A sweep's plots: of its tables, its errors (KohakuRAG's Table 12, Figures 19 to 22) and its costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

import numpy as np

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.pages.difference_plots import named_points, row_bars
from kohaku_ray.pages.plots import (
    MOST_BANDS,
    PALETTE,
    Band,
    Chart,
    banded_lines,
    error_bars,
    frontier,
    heat_map,
    share_bars,
)
from kohaku_ray.pages.sweep_tables import (
    CellGrid,
    CellRuns,
    GridPosition,
    TableStats,
    name_cell,
    row_name,
    score_meaning,
    score_of,
)
from kohaku_ray.pages.text import cut, write_number
from kohaku_ray.sweep.compare import ErrorRate, SweepRecord, SweepRun, error_rates
from kohaku_ray.values.read import parse_number

MOST_LINES = 8
"""Most lines in a plot; of more, the best are drawn."""

MOST_DRAWN = 30
"""Most labels in a plot with a line each."""

LIKE_BEST = "≈"
"""Marks a cell that may be as good as the best of its table."""

_SCORE = "score (0 to 1)"
_ERROR_COLOURS = tuple(PALETTE[index] for index in (5, 7, 1, 6, 0, 3, 2, 4))
_LABEL_CHARS = 1500
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Predictions of the runs that share a label: how many, and how many in each class of errors."""

    label: str
    n: int
    counts: Counter[str]
    rate: ErrorRate | None = None  # of those that a cell scores

    @property
    def n_right(self) -> int:
        """Number of predictions without an error."""
        return self.n - self.counts.total()

    def share(self, name: str) -> float:
        """Share of a class in all predictions."""
        return self.counts[name] / self.n if self.n else 0.0


@dataclass(frozen=True, slots=True)
class CostPoint:
    """A setting with its cost per question and its score."""

    of: CellRuns
    group: str  # colours its point
    cost: float  # mean over its runs
    score: float  # mean over its seeds


def table_charts(stats: TableStats) -> list[Chart]:
    """Draw a table: a heat map of rows and columns, lines over numbers, error bars where it has one axis.

    Heat maps mark the cells that may be as good as the best one; their colours span the smallest difference that the
    questions show (``Selection.detectable``) at least. What would say one number is left out.
    """
    grid = stats.grid
    if len({round(score_of(cell).mean, 12) for cell in grid.cells.values() if cell.is_scored}) < 2:
        return []
    flat = grid if len(grid.columns) == 1 else grid.turned() if len(grid.rows) == 1 else None
    across = grid if len(grid.columns) > 1 else grid.turned()
    meaning = score_meaning(stats)
    drawn = [_heat(stats)] if flat is None else []
    if across.numbers is not None and len(across.columns) > 1:
        if (lines := _lines(across, across.numbers, meaning)) is not None:
            drawn.append(lines)
    elif flat is not None:
        scored = [(row_name(row), score_of(cell)) for (row, _), cell in flat.cells.items() if cell.is_scored]
        names, scores = zip(*scored, strict=True)
        means, deviations = [score.mean for score in scores], [score.sd for score in scores]
        svg = error_bars(names, means, deviations, x_label=_SCORE, y_label=flat.row_axis, label=_describe_scores(flat))
        drawn.append(Chart("Scores", meaning, svg))
    return drawn


def _heat(stats: TableStats) -> Chart:
    grid, selection = stats.grid, stats.selection
    scores = {position: score_of(cell).mean for position, cell in grid.cells.items() if cell.is_scored}
    partial = {position: score_of(cell).mean for position, cell in grid.cells.items() if cell.state == "dropped"}
    open_cells = selection.contenders if selection else ()
    alike = {position for position in scores if grid.cells[position].cell_id in open_cells}

    def text(position: GridPosition) -> str:
        if position in partial:
            return f"({partial[position]:.3f})"
        return f"{scores[position]:.3f}{f' {LIKE_BEST}' if position in alike else ''}" if position in scores else "–"

    smallest_visible = (selection and selection.detectable) or 0.0
    svg = heat_map(
        list(map(row_name, grid.rows)),
        grid.columns,
        np.array([[scores.get((row, column), np.nan) for column in grid.columns] for row in grid.rows]),
        [[text((row, column)) for column in grid.columns] for row in grid.rows],
        x_label=grid.column_axis,
        y_label=grid.row_axis,
        label=_describe_scores(grid),
        least_span=smallest_visible,
    )
    notes = ["Mean score; the brighter, the better, as the scale says."]
    if max(scores.values()) - min(scores.values()) < smallest_visible:
        notes.append(f"The scale spans {smallest_visible:.2f}, the smallest difference that these questions show.")
    if len(alike) == len(scores):
        notes.append(f"{LIKE_BEST}: may be the best (its 95 % interval of ranks): no cell is told from it here.")
    elif alike:
        notes.append(f"{LIKE_BEST}: may be the best (its 95 % interval of ranks), {len(alike)} of {len(scores)} cells.")
    if partial:
        notes.append("In brackets, without colour: left the race, the mean of the questions until then.")
    return Chart("Heat map", " ".join(notes), svg)


def _lines(grid: CellGrid, numbers: Sequence[float], meaning: str) -> Chart | None:
    columns = sorted(zip(numbers, grid.columns, strict=True), key=lambda pair: pair[0])
    bands = []
    for row in grid.rows:
        cells = [(x, grid.cells.get((row, column))) for x, column in columns]
        points = [(x, score_of(cell)) for x, cell in cells if cell is not None and cell.is_scored]
        if points:
            xs, scores = zip(*points, strict=True)
            bands.append(Band(row_name(row), xs, [score.mean for score in scores], [score.sd for score in scores]))
    if max(len(band.x) for band in bands) < 2:
        return None
    best = sorted(range(len(bands)), key=lambda number: (-float(np.mean(bands[number].mean)), number))[:MOST_LINES]
    drawn = [bands[number] for number in sorted(best)]
    svg = banded_lines(drawn, x_label=grid.column_axis, y_label=_SCORE, label=_describe_scores(grid))
    title = "Ensemble-size curves" if grid.table.repeats == "subsamples" else "Score along the axis"
    note = meaning
    if len(drawn) > MOST_BANDS:
        note += " Grey: the other rows."
    if len(drawn) < len(bands):
        note += f" The {len(drawn)} best of {len(bands)} rows."
    return Chart(title, note, svg)


def _describe_scores(grid: CellGrid) -> str:
    scored = [cell for cell in grid.cells.values() if cell.is_scored]
    scores = (f"{name_cell(grid.table, cell)}: {score_of(cell).mean:.3f}" for cell in scored)
    return cut(f"{grid.table.title}. {'; '.join(scores)}", _LABEL_CHARS)


def error_chart(counts: Sequence[ErrorCounts], fact: str, classes: Sequence[str]) -> Chart:
    """Draw the distribution of errors over the labels of a fact."""
    counts = counts[:MOST_DRAWN]
    described = "; ".join(
        f"{label_counts.label}: {1 - label_counts.n_right / label_counts.n:.1%} of {label_counts.n:,}"
        for label_counts in counts
        if label_counts.n
    )
    svg = share_bars(
        [label_counts.label for label_counts in counts],
        {name: [label_counts.share(name) for label_counts in counts] for name in classes},
        dict(zip(classes, cycle(_ERROR_COLOURS), strict=False)),
        x_label="share of all predictions",
        label=cut(f"Errors by {fact}: {described}", _LABEL_CHARS),
    )
    return Chart(f"Errors by {fact}", "Numbers in the bars: per cent of all predictions.", svg)


def cost_points(behind: Sequence[CellRuns], cost: Callable[[SweepRun], float]) -> list[CostPoint]:
    """List every setting with runs and a cost (of a whole run) that was scored on the questions of most settings."""
    asked = Counter(cell_runs.cell.question_ids for cell_runs in behind if cell_runs.cell.run_ids)
    usual = asked.most_common(1)[0][0] if asked else ()
    points = []
    for cell_runs in behind:
        prices = [cost(run) / max(len(run.predictions), 1) for _, run in cell_runs.runs]
        if any(prices) and cell_runs.cell.question_ids == usual:
            group = next(iter(cell_runs.runs[0][1].facts.values()), _OTHERS)
            points.append(CostPoint(cell_runs, group, float(np.mean(prices)), score_of(cell_runs.cell).mean))
    return points


def pareto_frontier(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Keep the Pareto frontier: settings that score more than all others that cost no more, the cheapest first."""
    kept: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.score)):
        if not kept or point.score > kept[-1].score:
            kept.append(point)
    return kept


def cost_chart(points: Sequence[CostPoint], unit: str) -> Chart:
    """Draw scores against costs; at least one point."""
    usual = [name for name, _ in Counter(point.group for point in points).most_common(len(PALETTE) - 1)]
    groups: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault(point.group if point.group in usual else _OTHERS, []).append((point.cost, point.score))
    steps = pareto_frontier(points)
    described = "; ".join(f"{step.of.names[0]} {step.score:.3f} at {write_number(step.cost)}" for step in steps)
    svg = frontier(
        groups,
        [(step.cost, step.score, str(number)) for number, step in enumerate(steps, 1)],
        x_label=f"{unit} per question",
        y_label=_SCORE,
        label=cut(f"Score against {unit} per question. Pareto frontier: {described}", _LABEL_CHARS),
    )
    note = "One point per setting, mean over its runs; the line joins those that score more than all that cost no more."
    return Chart(f"Score against {unit}", note, svg)


MOST_ROWS = 30
"""Most labels in a plot of error rates, of each of two facts that vary, the second at most as many as colours."""

MOST_POINTS = 16
"""Most points in a plot with a legend."""


class ErrorClass(NamedTuple):
    """A class of errors in all runs."""

    name: str
    n: int
    share: float  # of all errors
    note: str  # what the class means


def list_classes(sweep: SweepRecord) -> tuple[ErrorClass, ...]:
    """Count the classes over all runs, the most frequent first; classes without an error are left out."""
    given = [answer.error for run in sweep.runs for answer in run.predictions.values()]
    counts = {name: given.count(name) for name in sweep.metric.classes}
    n = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return tuple(
        ErrorClass(name, count, count / n, sweep.metric.class_notes.get(name, "")) for name, count in ordered if count
    )


def class_chart(classes: Sequence[ErrorClass]) -> Chart:
    """Draw each class's share of all errors, of at least two."""
    described = "; ".join(f"{error_class.name}: {error_class.share:.1%}" for error_class in classes)
    svg = row_bars(
        [error_class.name for error_class in classes],
        {"": [error_class.share for error_class in classes]},
        x_label="share of all errors",
        label=f"Classes of errors. {described}",
    )
    return Chart("Classes of errors", "Over the predictions of all runs.", svg)


def rate_charts(sweep: SweepRecord) -> Iterator[Chart]:
    """Draw error rates by the facts that differ among the runs, and wrong values against wrong references by each."""
    facts = dict.fromkeys(fact for run in sweep.runs for fact in run.facts)
    rates = {fact: fact_rates for fact in facts if len(fact_rates := error_rates(sweep, fact)) > 1}
    if rates:
        yield _rate_bars(sweep, list(rates))
    both = scored_parts(sweep.metric)[:2]
    if len(both) == 2:
        for fact, fact_rates in rates.items():
            yield _rate_points(sweep.metric, fact, fact_rates, both)


def scored_parts(metric: Metric) -> list[str]:
    """Name the parts of a score that count, those with the greatest weight first."""
    weighed = [name for name, part in metric.parts.items() if part.weight]
    return sorted(weighed, key=lambda name: -metric.parts[name].weight)


def _rate_bars(sweep: SweepRecord, facts: Sequence[str]) -> Chart:
    first, *more = facts
    second = next((fact for fact in more if len(error_rates(sweep, fact)) <= len(PALETTE)), None)
    shown = (first,) if second is None else (first, second)
    rate_of = {rate.labels: rate.score for rate in error_rates(sweep, *shown)}
    rows = [rate.labels[0] for rate in error_rates(sweep, first)][:MOST_ROWS]
    columns = [rate.labels for rate in error_rates(sweep, second)] if second else [()]
    series = {
        f"{second} = {column[0]}" if column else "": [rate_of.get((row, *column), math.nan) for row in rows]
        for column in columns
    }
    described = "; ".join(f"{', '.join(labels)}: {rate:.1%}" for labels, rate in rate_of.items())
    names = " and ".join(shown)
    label = cut(f"Error rate by {names}. {described}", _LABEL_CHARS)
    svg = row_bars(rows, series, x_label="error rate (1 − score)", y_label=first, label=label)
    return Chart(f"Error rate by {names}", "1 − score, mean over the runs.", svg)


def _rate_points(metric: Metric, fact: str, rates: Sequence[ErrorRate], parts: Sequence[str]) -> Chart:
    value, refs = (metric.label(name) for name in parts)
    shown = sorted(rates, key=lambda rate: rate.score)[:MOST_POINTS]
    points = {}
    for rate in (rate for rate in rates if rate in shown):
        [label] = rate.labels
        name = label if parse_number(label) is None else f"{fact} = {label}"
        points[name] = rate.parts[parts[1]], rate.parts[parts[0]]
    described = "; ".join(f"{name}: {value} {y:.1%}, {refs} {x:.1%}" for name, (x, y) in points.items())
    svg = named_points(
        points,
        x_label=f"{refs} wrong (1 − mean)",
        y_label=f"{value} wrong (1 − mean)",
        label=cut(f"Errors of {value} against {refs} by {fact}. {described}", _LABEL_CHARS),
    )
    left_out = f" The {len(points)} best of {len(rates)}." if len(points) < len(rates) else ""
    return Chart(f"Errors of {value} against {refs} by {fact}", f"Mean over the runs.{left_out}", svg)
