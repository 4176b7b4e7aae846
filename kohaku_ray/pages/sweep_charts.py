"""A sweep's plots: of its tables, its errors (KohakuRAG's Table 12, Figures 19 to 22) and its costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import cycle, product

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
from kohaku_ray.pages.sweep_tables import DECIMAL, score_meaning
from kohaku_ray.pages.text import cut, write_number
from kohaku_ray.sweep.compare import SweepRecord
from kohaku_ray.sweep.costs import OTHERS, CostPoint, pareto_frontier
from kohaku_ray.sweep.error_counts import ErrorClass, ErrorCounts, ErrorRate, error_rates, scored_parts
from kohaku_ray.sweep.statistics import CellGrid, GridPosition, TableStats, average_score, name_cell, name_row
from kohaku_ray.table import Column, Table, TableRow
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


def table_charts(stats: TableStats) -> list[Chart]:
    """Draw a table: a heat map of rows and columns, lines over numbers, error bars where it has one axis.

    Heat maps mark the cells that may be as good as the best one; their colours span the smallest difference that the
    questions show (``Selection.detectable``) at least. What would say one number is left out.
    """
    grid = stats.grid
    if len({round(average_score(cell).mean, 12) for cell in grid.cells.values() if cell.is_scored}) < 2:
        return []
    flat = grid if len(grid.columns) == 1 else grid.transpose() if len(grid.rows) == 1 else None
    across = grid if len(grid.columns) > 1 else grid.transpose()
    meaning = score_meaning(stats)
    drawn = [_heat(stats)] if flat is None else []
    if across.numbers is not None and len(across.columns) > 1:
        if (lines := _lines(across, across.numbers, meaning)) is not None:
            drawn.append(lines)
    elif flat is not None:
        scored = [(name_row(row), average_score(cell)) for (row, _), cell in flat.cells.items() if cell.is_scored]
        names, scores = zip(*scored, strict=True)
        means, deviations = [score.mean for score in scores], [score.sd for score in scores]
        svg = error_bars(names, means, deviations, x_label=_SCORE, y_label=flat.row_axis, label=_describe_scores(flat))
        drawn.append(Chart("Scores", meaning, svg, _tabulate_scores(flat)))
    return drawn


def _heat(stats: TableStats) -> Chart:
    grid, selection = stats.grid, stats.selection
    scores = {position: average_score(cell).mean for position, cell in grid.cells.items() if cell.is_scored}
    partial = {position: average_score(cell).mean for position, cell in grid.cells.items() if cell.state == "dropped"}
    open_cells = selection.contenders if selection else ()
    alike = {position for position in scores if grid.cells[position].cell_id in open_cells}

    def text(position: GridPosition) -> str:
        if position in partial:
            return f"({partial[position]:.3f})"
        return f"{scores[position]:.3f}{f' {LIKE_BEST}' if position in alike else ''}" if position in scores else "–"

    smallest_visible = (selection and selection.detectable) or 0.0
    svg = heat_map(
        list(map(name_row, grid.rows)),
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
        notes.append(f"The scale spans {smallest_visible:.3f}, the smallest difference that these questions show.")
    if len(alike) == len(scores):
        notes.append(f"{LIKE_BEST}: not told from the best; here no cell is.")
    elif alike:
        notes.append(f"{LIKE_BEST}: the best and what is not told from it, {len(alike)} of {len(scores)} cells.")
    if partial:
        notes.append("In brackets, without colour: left the race, the mean of the questions until then.")
    return Chart("Heat map", " ".join(notes), svg, _tabulate_scores(grid, alike))


def _lines(grid: CellGrid, numbers: Sequence[float], meaning: str) -> Chart | None:
    columns = sorted(zip(numbers, grid.columns, strict=True), key=lambda pair: pair[0])
    bands = []
    for row in grid.rows:
        cells = [(x, grid.cells.get((row, column))) for x, column in columns]
        points = [(x, average_score(cell)) for x, cell in cells if cell is not None and cell.is_scored]
        if points:
            xs, scores = zip(*points, strict=True)
            bands.append(Band(name_row(row), xs, [score.mean for score in scores], [score.sd for score in scores]))
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
    drawn_rows = {band.name for band in drawn}
    return Chart(
        title, note, svg, _tabulate_scores(grid, rows=[row for row in grid.rows if name_row(row) in drawn_rows])
    )


def _tabulate_scores(
    grid: CellGrid, alike: Collection[GridPosition] = (), rows: Sequence[tuple[str, ...]] | None = None
) -> Table:
    """Lay out what a plot of scores shows: a row per cell with a score."""
    axes = *grid.row_axes, grid.column_axis
    head = [
        *(Column(name, align="left") for name in axes if name),
        Column("score", DECIMAL),
        Column("sd", DECIMAL),
        "state",
    ]
    data: list[TableRow] = []
    for row, column in product(grid.rows if rows is None else rows, grid.columns):
        cell = grid.cells.get((row, column))
        if cell is None or not cell.total.size:
            continue
        spread = average_score(cell)
        labels = [label for axis, label in zip(axes, (*row, column), strict=True) if axis]  # a table may have one axis
        figures = spread.mean, None if math.isnan(spread.sd) else spread.sd, cell.state
        data.append((*labels, *figures, *([str((row, column) in alike).lower()] if alike else [])))
    return Table.of([*head, *(["not told from the best"] if alike else [])], data)


def _describe_scores(grid: CellGrid) -> str:
    scored = [cell for cell in grid.cells.values() if cell.is_scored]
    scores = (f"{name_cell(grid.table, cell)}: {average_score(cell).mean:.3f}" for cell in scored)
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
    rows = [(each.label, each.n, *(each.share(name) for name in classes)) for each in counts]
    data = Table.of([Column(fact, align="left"), "predictions", *(Column(name, DECIMAL) for name in classes)], rows)
    return Chart(f"Errors by {fact}", "Numbers in the bars: per cent of all predictions.", svg, data)


def cost_chart(points: Sequence[CostPoint], unit: str) -> Chart:
    """Draw scores against costs; at least one point."""
    usual = [name for name, _ in Counter(point.group for point in points).most_common(len(PALETTE) - 1)]
    groups: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault(point.group if point.group in usual else OTHERS, []).append((point.cost, point.score))
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
    step_of = {id(step): number for number, step in enumerate(steps, 1)}
    rows = [(point.of.names[0], point.group, point.cost, point.score, step_of.get(id(point))) for point in points]
    head = "setting", "group", Column(f"{unit} per question", DECIMAL), Column("score", DECIMAL), "step of the frontier"
    return Chart(f"Score against {unit}", note, svg, Table.of(head, rows))


MOST_ROWS = 30
"""Most labels in a plot of error rates, of each of two facts that vary, the second at most as many as colours."""

MOST_POINTS = 16
"""Most points in a plot with a legend."""


def class_chart(classes: Sequence[ErrorClass]) -> Chart:
    """Draw each class's share of all errors, of at least two."""
    described = "; ".join(f"{error_class.name}: {error_class.share:.1%}" for error_class in classes)
    svg = row_bars(
        [error_class.name for error_class in classes],
        {"": [error_class.share for error_class in classes]},
        x_label="share of all errors",
        label=f"Classes of errors. {described}",
    )
    rows = [(error_class.name, error_class.n, error_class.share) for error_class in classes]
    data = Table.of(["class", "errors", Column("share of all errors", DECIMAL)], rows)
    return Chart("Classes of errors", "Over the predictions of all runs.", svg, data)


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
    data = [(*labels, rate) for labels, rate in rate_of.items() if labels[0] in rows]
    table = Table.of([*(Column(fact, align="left") for fact in shown), Column("error rate", DECIMAL)], data)
    return Chart(f"Error rate by {names}", "1 − score, mean over the runs.", svg, table)


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
    head = fact, *(Column(f"{part} wrong", DECIMAL) for part in (refs, value))
    data = Table.of(head, [(name, *point) for name, point in points.items()])
    return Chart(f"Errors of {value} against {refs} by {fact}", f"Mean over the runs.{left_out}", svg, data)
