"""The page of a sweep: tables with their statistics, plots, costs, errors, and the questions behind them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from kohaku_ray.evaluation.comparing import Comparison
from kohaku_ray.evaluation.grid import Run, Sweep, TableCell
from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.pages.charts import Chart
from kohaku_ray.pages.packed import Packed
from kohaku_ray.pages.page import page_environment
from kohaku_ray.pages.sweep_charts import cost_chart, error_chart, paid, stair, table_charts
from kohaku_ray.pages.sweep_errors import ErrorCounts, count_all, count_by, examples, facts_of
from kohaku_ray.pages.sweep_groups import group_block, groups_csv
from kohaku_ray.pages.sweep_questions import Behind, behind_figures, write_questions
from kohaku_ray.pages.sweep_stats import (
    THIN,
    Place,
    TableStats,
    compute_sweep_stats,
    figure,
    footnotes,
    head,
    legend,
    name_cell,
    score_of,
    shown,
    write_measure,
    write_rank,
)
from kohaku_ray.pages.sweep_tables import as_csv, as_latex, as_markdown
from kohaku_ray.storage import make_directory, publish
from kohaku_ray.values.read import is_blank

MAX_BYTES = 28_000_000
"""A browser opens a page of this size in less than two seconds: see benchmarks/page.py."""

_NAME_CHARS = 200
_PLACE = "\0"  # replaced by the questions; visible removes it from every text

MOST_BARS = 30
"""Most labels that are drawn."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table on the page.

    Attributes:
        text: The text shown.
        mark: ``best``, ``second`` or empty.
        raised: Stars, dagger and number of the footnote, in superscript.
        anchor: Id of its questions on the page; empty for none.
    """

    text: str
    mark: str = ""
    raised: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table on the page.

    Attributes:
        stats: The table.
        anchor: Its own.
        head: Names of the columns.
        rows: Labels, fields and average rank of each row.
        measures: Name and rows of each further table.
        footnotes: Reasons and notes.
        legend: Meaning of the marks.
        charts: Its plots.
        details: Name of each column, and all statistics of its cells.
    """

    stats: TableStats
    anchor: str
    head: list[str]
    rows: list[tuple[tuple[str, ...], list[Field], str]]
    measures: list[tuple[str, list[str], list[tuple[tuple[str, ...], list[str]]]]]
    footnotes: list[str]
    legend: list[str]
    charts: list[Chart]
    details: list[tuple[str, list[tuple[tuple[str, ...], list[str], str]]]]

    @property
    def best(self) -> str:
        """The best cell of the table, with its score."""
        scored = [cell for cell in self.stats.grid.cells.values() if cell.is_scored]
        if not scored:
            return "no scores"
        cell = max(scored, key=lambda cell: round(float(cell.scores.mean()), 12))
        return f"{figure(score_of(cell))} at {name_cell(self.stats.table, cell)}"

    @property
    def n_finished(self) -> int:
        """How many cells are finished."""
        return sum(cell.state == "finished" for cell in self.stats.grid.cells.values())


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of scores.

    Attributes:
        unit: Unit of the costs.
        chart: Scores against costs.
        steps: Number, name, anchor, cost and score of the settings on the Pareto frontier.
        n_left_out: Settings that cannot be compared.
    """

    unit: str
    chart: Chart
    steps: list[tuple[int, str, str, str, str]]
    n_left_out: int


def write_sweep(sweep: Sweep, directory: str, stats: Sequence[TableStats] | None = None) -> list[str]:
    """Write a sweep's page, and each of its tables as Markdown, CSV and LaTeX.

    The page needs nothing beside it; questions are packed until they are opened. All text from questions, models and
    errors is escaped, and invisible characters in it are shown. The same sweep gives the same files, byte by byte.

    Args:
        sweep: The results.
        directory: Directory of ``sweep.html`` and ``tables/``; created if missing.
        stats: Its tables by ``compute_sweep_stats``, if already computed.

    Returns:
        Paths of the files, the page first.

    Raises:
        DataError: A file cannot be written, or a score is not finite.
    """
    tables = os.path.join(directory, "tables")
    make_directory(tables)
    stats = compute_sweep_stats(sweep) if stats is None else stats
    files = {os.path.join(directory, "sweep.html"): page(sweep, stats)}
    for one in stats:
        for suffix, write in (("md", as_markdown), ("csv", as_csv), ("tex", as_latex)):
            files[os.path.join(tables, f"{one.table.name}.{suffix}")] = write(one)
    if sweep.groups is not None:
        files[os.path.join(tables, "groups.csv")] = groups_csv(sweep.groups)
    for path, text in files.items():
        publish(path, text.encode())
    return list(files)


def page(sweep: Sweep, stats: Sequence[TableStats]) -> str:
    """Render the page; while it is too large, fewer questions are shown, the same number for each cell.

    Args:
        sweep: The results.
        stats: Its tables.
    """
    behind = behind_figures(sweep)
    anchors = {one.cell.cell_id: one.anchor for one in behind}
    text = (
        _environment()
        .get_template("sweep.html.j2")
        .render(
            sweep=sweep,
            blocks=[_block(one, at, anchors) for at, one in enumerate(stats, 1)],
            groups=None if sweep.groups is None else group_block(sweep.groups),
            statistics=_statistics_head(sweep.metric),
            tokens=_costs(sweep, behind, "tokens", lambda run: run.tokens),
            seconds=_costs(sweep, behind, "seconds", lambda run: run.service_s),
            errors=_errors(sweep),
            classes=sweep.metric.classes,
            examples=examples(sweep),
            questions=Markup(_PLACE),  # noqa: S704 - no text can hold this character, see visible
            packed=Packed(),  # the questions bring their own
        )
    )
    before, after = text.split(_PLACE)
    return before + write_questions(sweep.questions, behind, MAX_BYTES - len(text.encode())) + after


def _block(stats: TableStats, at: int, anchors: Mapping[str, str]) -> TableBlock:
    grid = stats.grid
    places = {row: [(row, column) for column in grid.columns] for row in grid.rows}
    measures = []
    for name in stats.table.show:
        found = write_measure(stats, name)
        measures.append(
            (name, head(stats, name), [(row, [found.get(place, "") for place in places[row]]) for row in grid.rows])
        )
    return TableBlock(
        stats=stats,
        anchor=f"table-{at}",
        head=head(stats),
        rows=[
            (row, [_field(stats, place, anchors) for place in places[row]], write_rank(stats.average.get(row)))
            for row in grid.rows
        ],
        measures=measures,
        footnotes=[*footnotes(stats), *stats.table.notes],
        legend=legend(stats),
        charts=table_charts(grid, stats.comparisons),
        details=[(column, lines) for column in grid.columns if (lines := list(_statistics(stats, column)))],
    )


def _field(stats: TableStats, place: Place, anchors: Mapping[str, str]) -> Field:
    field = shown(stats, place)
    cell = stats.grid.cells.get(place)
    raised = field.stars + (THIN if field.is_thin else "") + (f"[{field.footnote}]" if field.footnote else "")
    anchor = anchors.get(cell.cell_id, "") if cell is not None and field.is_scored else ""
    return Field(field.text, field.mark if field.is_scored else "state", raised, anchor)


def _statistics(stats: TableStats, column: str) -> Iterator[tuple[tuple[str, ...], list[str], str]]:
    """Labels, figures and remarks of each scored cell of a column."""
    for row in stats.grid.rows:
        one = stats.comparisons.get((row, column))
        if one is not None:
            yield row, _figures(one, stats.grid.cells[row, column], stats.ranks[row, column]), _remark(one)


def _statistics_head(metric: Metric) -> tuple[str, ...]:
    """Name the columns of the tables with all statistics."""
    return (
        *("score", "seeds", "questions", *map(metric.label, metric.parts), "rank", "common", "difference"),
        *("95 % interval", "Welch p", "Holm", "permutation p", "Holm", "g", "d_z"),
    )


def _figures(one: Comparison, cell: TableCell, rank: float) -> list[str]:
    low, high = one.interval.low, one.interval.high
    return [
        figure(score_of(cell)),
        f"{one.n_seeds:,}",
        f"{one.n_questions:,}",
        *(f"{part.mean():.3f}" for part in cell.parts.values()),
        f"{rank:g}",
        f"{one.n_common:,}",
        "" if one.is_best else _signed(one.interval.mean),
        "" if low is None or high is None else f"{_signed(low)} … {_signed(high)}",
        *map(_p, (one.welch.p, one.welch_holm, one.permutation.p, one.permutation_holm)),
        _signed(one.welch.g, 2),
        _signed(one.d_z, 2),
    ]


def _remark(one: Comparison) -> str:
    if one.is_best:
        return "the best"
    reasons = (one.welch.reason, one.interval.reason, one.permutation.reason)
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def _signed(number: float | None, digits: int = 3) -> str:
    return "" if number is None else f"{number:+z.{digits}f}"


def _p(p: float | None) -> str:
    return "" if p is None else "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def _costs(sweep: Sweep, behind: Sequence[Behind], unit: str, cost: Callable[[Run], float]) -> Costs | None:
    """Draw scores against costs; None where no cost is known."""
    points = paid(sweep, cost)
    if not points:
        return None
    anchors = {one.cell.cell_id: one.anchor for one in behind}
    steps = [
        (at, step.name, anchors[step.cell.cell_id], f"{step.cost:,.4g}", f"{step.score:.3f}")
        for at, step in enumerate(stair(points), 1)
    ]
    n_left_out = sum(bool(one.cell.run_ids) for one in behind) - len(points)
    return Costs(unit, cost_chart(points, unit), steps, n_left_out)


def _errors(sweep: Sweep) -> list[tuple[str, list[ErrorCounts], Chart | None]]:
    """Count errors by each fact, and all of them."""
    if not sweep.metric.classes or not any(run.predictions for run in sweep.runs):
        return []
    found: list[tuple[str, list[ErrorCounts], Chart | None]] = []
    for fact in facts_of(sweep.runs):
        counts = count_by(sweep, fact)
        found.append(
            (fact, counts, error_chart(counts[:MOST_BARS], fact, sweep.metric.classes) if len(counts) > 1 else None)
        )
    return [*found, ("", [count_all(sweep)], None)]


def _environment() -> jinja2.Environment:
    environment = page_environment(_NAME_CHARS)
    environment.filters["is_blank"] = is_blank
    return environment
