"""A sweep's plots: of its tables, its errors and its costs, with their titles and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from markupsafe import Markup

from kohaku_ray.evaluation.comparing import Comparison
from kohaku_ray.evaluation.grid import Run, Sweep, TableCell
from kohaku_ray.pages.charts import Chart
from kohaku_ray.pages.plots import PALETTE
from kohaku_ray.pages.sweep_errors import ErrorCounts
from kohaku_ray.pages.sweep_plots import MOST_BANDS, Band, banded_lines, error_bars, frontier, heat_map, share_bars
from kohaku_ray.pages.sweep_stats import Place, TableGrid, name_cell, score_of
from kohaku_ray.pages.text import cut

ERROR_COLOURS = ("#d55e00", "#999999", "#e69f00", "#f0e442", "#0072b2", "#cc79a7", "#009e73", "#56b4e9")
"""Okabe and Ito's colours, in the order of the error classes."""

MOST_LINES = 8
"""Most lines in a plot; of more, the best are drawn."""

LIKE_BEST = "≈"
"""Marks a cell that is not told apart from the best of its column."""

_SCORE = "score (0 to 1)"
_SAID_CHARS = 1500
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Paid:
    """A setting with its cost per question and its score.

    Attributes:
        cell: The setting.
        name: Its table and labels.
        group: Colours its point.
        cost: Mean over its runs, per question.
        score: Mean over its seeds.
    """

    cell: TableCell
    name: str
    group: str
    cost: float
    score: float


def table_charts(grid: TableGrid, comparisons: Mapping[Place, Comparison] | None = None) -> list[Chart]:
    """Draw a table: a heat map of rows and columns, lines over numbers, error bars where it has one axis.

    Args:
        grid: The table.
        comparisons: Each cell with the best of its column: heat maps mark those that differ by no more than noise.
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


def error_chart(counts: Sequence[ErrorCounts], fact: str, classes: Sequence[str]) -> Chart:
    """Draw the distribution of errors."""
    said = "; ".join(f"{one.label}: {1 - one.n_right / one.n:.1%} of {one.n:,}" for one in counts if one.n)
    svg = share_bars(
        [one.label for one in counts],
        {name: [one.share(name) for one in counts] for name in classes},
        dict(zip(classes, cycle(ERROR_COLOURS), strict=False)),
        x_label="share of all predictions",
        label=cut(f"Errors by {fact}: {said}", _SAID_CHARS),
    )
    return _chart(f"Errors by {fact}", "Numbers in the bars: per cent of all predictions.", svg)


def paid(sweep: Sweep, cost: Callable[[Run], float]) -> list[Paid]:
    """List every distinct setting with runs and a cost, if it was scored on the questions of most settings.

    Args:
        sweep: The sweep of the cells.
        cost: Cost of a whole run.
    """
    runs = {run.run_id: run for run in sweep.runs}
    cells: dict[str, tuple[TableCell, str]] = {}
    for table in sweep.tables:
        for cell in table.cells:
            if cell.is_scored and cell.run_ids:
                cells.setdefault(cell.cell_id, (cell, f"{table.title}: {name_cell(table, cell)}"))
    asked = Counter(cell.question_ids for cell, _ in cells.values())
    usual = asked.most_common(1)[0][0] if asked else ()
    found = []
    for cell, name in cells.values():
        of_cell = [runs[run_id] for run_id in cell.run_ids if run_id in runs]
        price = float(np.mean([cost(run) / max(len(run.predictions), 1) for run in of_cell])) if of_cell else 0.0
        if price > 0 and cell.question_ids == usual:
            group = next(iter(of_cell[0].facts.values()), _OTHERS)
            found.append(Paid(cell, name, group, price, score_of(cell).mean))
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
        name = point.group if point.group in usual else _OTHERS
        groups.setdefault(name, []).append((point.cost, point.score))
    steps = stair(points)
    said = "; ".join(f"{step.name} {step.score:.3f} at {step.cost:,.4g}" for step in steps)
    svg = frontier(
        groups,
        [(step.cost, step.score, str(at)) for at, step in enumerate(steps, 1)],
        x_label=f"{unit} per question (log scale)",
        y_label=_SCORE,
        label=cut(f"Score against {unit} per question. Pareto frontier: {said}", _SAID_CHARS),
    )
    note = "One point per setting, mean over its runs; the line joins those that score more than all that cost no more."
    return _chart(f"Score against {unit}", note, svg)


def _heat(grid: TableGrid, comparisons: Mapping[Place, Comparison]) -> Chart:
    scores = {place: score_of(cell).mean for place, cell in grid.cells.items() if cell.is_scored}
    values = np.array([[scores.get((row, column), np.nan) for column in grid.columns] for row in grid.rows])
    noisy = {place for place, one in comparisons.items() if is_noise(one)}
    texts = [
        [
            "–" if np.isnan(value) else f"{value:.3f}{f' {LIKE_BEST}' if (row, column) in noisy else ''}"
            for column, value in zip(grid.columns, line, strict=True)
        ]
        for row, line in zip(grid.rows, values, strict=True)
    ]
    svg = heat_map(
        [grid.row_name(row) for row in grid.rows],
        grid.columns,
        values,
        texts,
        x_label=grid.column_axis,
        y_label=grid.row_axis,
        label=_said(grid),
    )
    return _chart("Heat map", f"Mean score; the brighter, the better, as the scale says.{_noise(comparisons)}", svg)


def is_noise(one: Comparison) -> bool:
    """Whether a cell is not told apart from the best of its column: the interval of their difference holds 0."""
    low, high = one.interval.low, one.interval.high
    return not one.is_best and low is not None and high is not None and low <= 0 <= high


def _noise(comparisons: Mapping[Place, Comparison]) -> str:
    tested = [one for one in comparisons.values() if not one.is_best and one.interval.low is not None]
    n = sum(map(is_noise, tested))
    if not tested or not n:
        return ""
    what = "the difference from the best of its column is within noise (its 95 % interval, paired by question, holds 0)"
    if n == len(tested):
        return f" {LIKE_BEST}: {what}. This holds for every cell: the colours alone tell nothing apart."
    return f" {LIKE_BEST}: {what}, {n:,} of {len(tested):,}."


def _lines(grid: TableGrid, numbers: Sequence[float]) -> Chart:
    order = np.argsort(numbers, kind="stable")
    bands = []
    for row in grid.rows:
        points = []
        for at in order:
            cell = grid.cells.get((row, grid.columns[at]))
            if cell is not None and cell.is_scored:
                points.append((numbers[at], score_of(cell)))
        if points:
            xs, scores = [x for x, _ in points], [score for _, score in points]
            bands.append(Band(grid.row_name(row), xs, [one.mean for one in scores], [one.sd for one in scores]))
    drawn = bands
    if len(bands) > MOST_LINES:
        best = sorted(range(len(bands)), key=lambda at: (-float(np.mean(bands[at].mean)), at))[:MOST_LINES]
        drawn = [bands[at] for at in sorted(best)]
    svg = banded_lines(drawn, x_label=grid.column_axis, y_label=_SCORE, label=_said(grid))
    is_pool = grid.table.repeats == "subsamples"
    title = "Ensemble-size curves" if is_pool else "Score along the axis"
    behind = " Grey: the other rows." if len(drawn) > MOST_BANDS else ""
    left_out = f" The {len(drawn)} best of {len(bands)} rows." if len(drawn) < len(bands) else ""
    return _chart(
        title, f"Line: mean; band: ± one standard deviation over {grid.table.repeats}.{behind}{left_out}", svg
    )


def _bars(grid: TableGrid) -> Chart:
    scored = [(row, cell) for (row, _), cell in grid.cells.items() if cell.is_scored]
    scores = [score_of(cell) for _, cell in scored]
    svg = error_bars(
        [grid.row_name(row) for row, _ in scored],
        [score.mean for score in scores],
        [score.sd for score in scores],
        x_label=_SCORE,
        y_label=grid.row_axis,
        label=_said(grid),
    )
    return _chart("Scores", f"Point: mean; bar: ± one standard deviation over {grid.table.repeats}.", svg)


def _said(grid: TableGrid) -> str:
    """Describe a table's scores in words."""
    scores = (
        f"{name_cell(grid.table, cell)}: {score_of(cell).mean:.3f}" for cell in grid.cells.values() if cell.is_scored
    )
    return cut(f"{grid.table.title}. {'; '.join(scores)}", _SAID_CHARS)


def _chart(title: str, note: str, svg: str) -> Chart:
    return Chart(title, note, Markup(svg))  # noqa: S704 - drawn by our plots, which escape every name
