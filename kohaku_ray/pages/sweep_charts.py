"""A sweep's plots: of its tables, its errors, its costs and its groups, with their titles and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

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
from kohaku_ray.pages.sweep_questions import Behind
from kohaku_ray.pages.sweep_stats import Place, TableGrid, name_cell, row_name, score_of
from kohaku_ray.pages.text import cut, write_number
from kohaku_ray.sweep.compare import Comparison, ErrorRate, Run

MOST_LINES = 8
"""Most lines in a plot; of more, the best are drawn."""

MOST_DRAWN = 30
"""Most labels in a plot with a line each."""

LIKE_BEST = "≈"
"""Marks a cell that is not told apart from the best of its column."""

_SCORE = "score (0 to 1)"
_ERROR_COLOURS = tuple(PALETTE[at] for at in (5, 7, 1, 6, 0, 3, 2, 4))
_SAID_CHARS = 1500
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
class Paid:
    """A setting with its cost per question and its score."""

    of: Behind
    group: str  # colours its point
    cost: float  # mean over its runs
    score: float  # mean over its seeds


def table_charts(grid: TableGrid, comparisons: Mapping[Place, Comparison] | None = None) -> list[Chart]:
    """Draw a table: a heat map of rows and columns, lines over numbers, error bars where it has one axis.

    Heat maps mark the cells that ``comparisons`` do not tell apart from the best of their column.
    """
    if not any(cell.is_scored for cell in grid.cells.values()):
        return []
    flat = grid if len(grid.columns) == 1 else grid.turned() if len(grid.rows) == 1 else None
    across = grid if len(grid.columns) > 1 else grid.turned()
    drawn = [_heat(grid, comparisons or {})] if flat is None else []
    if across.numbers is not None and len(across.columns) > 1:
        drawn.append(_lines(across, across.numbers))
    elif flat is not None:
        drawn.append(_bars(flat))
    return drawn


def _heat(grid: TableGrid, comparisons: Mapping[Place, Comparison]) -> Chart:
    scores = {place: score_of(cell).mean for place, cell in grid.cells.items() if cell.is_scored}
    noisy = {place for place, one in comparisons.items() if is_noise(one)}

    def text(place: Place) -> str:
        return f"{scores[place]:.3f}{f' {LIKE_BEST}' if place in noisy else ''}" if place in scores else "–"

    svg = heat_map(
        list(map(row_name, grid.rows)),
        grid.columns,
        np.array([[scores.get((row, column), np.nan) for column in grid.columns] for row in grid.rows]),
        [[text((row, column)) for column in grid.columns] for row in grid.rows],
        x_label=grid.column_axis,
        y_label=grid.row_axis,
        label=_said(grid),
    )
    return Chart("Heat map", f"Mean score; the brighter, the better, as the scale says.{_noise(comparisons)}", svg)


def is_noise(one: Comparison) -> bool:
    """Whether a cell is not told apart from the best of its column: the interval of their difference holds 0."""
    low, high = one.interval.low, one.interval.high
    return not one.is_best and low is not None and high is not None and low <= 0 <= high


def _noise(comparisons: Mapping[Place, Comparison]) -> str:
    tested = [one for one in comparisons.values() if not one.is_best and one.interval.low is not None]
    n = sum(map(is_noise, tested))
    if not n:
        return ""
    what = "the difference from the best of its column is within noise (its 95 % interval, paired by question, holds 0)"
    how_many = ". This holds for every cell: the colours alone tell nothing apart."
    return f" {LIKE_BEST}: {what}{how_many if n == len(tested) else f', {n:,} of {len(tested):,}.'}"


def _lines(grid: TableGrid, numbers: Sequence[float]) -> Chart:
    columns = sorted(zip(numbers, grid.columns, strict=True), key=lambda pair: pair[0])
    bands = []
    for row in grid.rows:
        cells = [(x, grid.cells.get((row, column))) for x, column in columns]
        points = [(x, score_of(cell)) for x, cell in cells if cell is not None and cell.is_scored]
        if points:
            xs, scores = zip(*points, strict=True)
            bands.append(Band(row_name(row), xs, [one.mean for one in scores], [one.sd for one in scores]))
    best = sorted(range(len(bands)), key=lambda at: (-float(np.mean(bands[at].mean)), at))[:MOST_LINES]
    drawn = [bands[at] for at in sorted(best)]
    svg = banded_lines(drawn, x_label=grid.column_axis, y_label=_SCORE, label=_said(grid))
    title = "Ensemble-size curves" if grid.table.repeats == "subsamples" else "Score along the axis"
    note = f"Line: mean; band: ± one standard deviation over {grid.table.repeats}."
    if len(drawn) > MOST_BANDS:
        note += " Grey: the other rows."
    if len(drawn) < len(bands):
        note += f" The {len(drawn)} best of {len(bands)} rows."
    return Chart(title, note, svg)


def _bars(grid: TableGrid) -> Chart:
    scored = [(row_name(row), score_of(cell)) for (row, _), cell in grid.cells.items() if cell.is_scored]
    names, scores = zip(*scored, strict=True)
    means, deviations = [one.mean for one in scores], [one.sd for one in scores]
    svg = error_bars(names, means, deviations, x_label=_SCORE, y_label=grid.row_axis, label=_said(grid))
    return Chart("Scores", f"Point: mean; bar: ± one standard deviation over {grid.table.repeats}.", svg)


def _said(grid: TableGrid) -> str:
    scored = [cell for cell in grid.cells.values() if cell.is_scored]
    scores = (f"{name_cell(grid.table, cell)}: {score_of(cell).mean:.3f}" for cell in scored)
    return cut(f"{grid.table.title}. {'; '.join(scores)}", _SAID_CHARS)


def error_chart(counts: Sequence[ErrorCounts], fact: str, classes: Sequence[str]) -> Chart:
    """Draw the distribution of errors over the labels of a fact."""
    counts = counts[:MOST_DRAWN]
    said = "; ".join(f"{one.label}: {1 - one.n_right / one.n:.1%} of {one.n:,}" for one in counts if one.n)
    svg = share_bars(
        [one.label for one in counts],
        {name: [one.share(name) for one in counts] for name in classes},
        dict(zip(classes, cycle(_ERROR_COLOURS), strict=False)),
        x_label="share of all predictions",
        label=cut(f"Errors by {fact}: {said}", _SAID_CHARS),
    )
    return Chart(f"Errors by {fact}", "Numbers in the bars: per cent of all predictions.", svg)


def paid(behind: Sequence[Behind], cost: Callable[[Run], float]) -> list[Paid]:
    """List every setting with runs and a cost (of a whole run) that was scored on the questions of most settings."""
    asked = Counter(one.cell.question_ids for one in behind if one.cell.run_ids)
    usual = asked.most_common(1)[0][0] if asked else ()
    found = []
    for one in behind:
        prices = [cost(run) / max(len(run.predictions), 1) for _, run in one.runs]
        if any(prices) and one.cell.question_ids == usual:
            group = next(iter(one.runs[0][1].facts.values()), _OTHERS)
            found.append(Paid(one, group, float(np.mean(prices)), score_of(one.cell).mean))
    return found


def stair(points: Sequence[Paid]) -> list[Paid]:
    """Keep the Pareto frontier: settings that score more than all others that cost no more, the cheapest first."""
    kept: list[Paid] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.score)):
        if not kept or point.score > kept[-1].score:
            kept.append(point)
    return kept


def cost_chart(points: Sequence[Paid], unit: str) -> Chart:
    """Draw scores against costs; at least one point."""
    usual = [name for name, _ in Counter(point.group for point in points).most_common(len(PALETTE) - 1)]
    groups: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault(point.group if point.group in usual else _OTHERS, []).append((point.cost, point.score))
    steps = stair(points)
    said = "; ".join(f"{step.of.names[0]} {step.score:.3f} at {write_number(step.cost)}" for step in steps)
    svg = frontier(
        groups,
        [(step.cost, step.score, str(at)) for at, step in enumerate(steps, 1)],
        x_label=f"{unit} per question (log scale)",
        y_label=_SCORE,
        label=cut(f"Score against {unit} per question. Pareto frontier: {said}", _SAID_CHARS),
    )
    note = "One point per setting, mean over its runs; the line joins those that score more than all that cost no more."
    return Chart(f"Score against {unit}", note, svg)
