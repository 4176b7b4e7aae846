"""Plots of a benchmark: rates, costs, CPU and caching over concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

from markupsafe import Markup

from kohaku_ray.pages.charts import Chart
from kohaku_ray.pages.plots import PALETTE, drawing, grouped_bars, legend_name, new_figure, svg_text
from kohaku_ray.pages.throughput import BenchCell, Measurement, Throughput, cached_bound, replicas_text

PLAIN_COLOUR = "#999999"
PLAIN_STYLES = ("--", ":", "-.")
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot.

    Attributes:
        name: Its name in the legend.
        points: Pairs of x and y.
        is_limit: Drawn dashed and grey.
    """

    name: str
    points: Sequence[tuple[float, float]]
    is_limit: bool = False


def charts(bench: Throughput) -> list[Chart]:
    """Draw the plots of a benchmark that have data."""
    drawn = (_rates(bench), _costs(bench), _caching(bench), _cpu(bench))
    return [chart for chart in drawn if chart is not None]


def _rates(bench: Throughput) -> Chart | None:
    def rate(measured: Measurement) -> float:
        return measured.completion_tokens / measured.wall_s

    counts = sorted({cell.replicas for cell in bench.cells if cell.measured})
    lines = _lines(
        bench,
        lambda cell: (f"m = {cell.members}, {cell.concurrency} in flight", cell.replicas),
        lambda _, measured: rate(measured),
    )
    for plain in bench.plain:
        if plain.measured is not None:
            points = [(n, n * rate(plain.measured)) for n in counts]
            lines.append(Line(f"plain, n = {plain.members}", points, is_limit=True))
    note = "Dashed lines: plain LLM.generate on one replica's resources, times the number of replicas."
    return _chart("Generated tokens per second", note, lines, "replicas", "generated tokens per second")


def _costs(bench: Throughput) -> Chart | None:
    lines = _lines(bench, _by_members, lambda cell, _: bench.cost_ratio(cell))
    costs = [(plain.members, bench.plain_cost_ratio(plain)) for plain in bench.plain]
    lines.append(Line("plain sampling", [(m, cost) for m, cost in costs if cost is not None], is_limit=True))
    note = "Time of m members over the time of one. It is m where prefill takes all the time and no prefix is shared."
    return _chart("Cost of an ensemble", note, lines, "members", "time over that of one member")


def _cpu(bench: Throughput) -> Chart | None:
    lines = _lines(bench, _by_members, lambda _, measured: measured.cpu_ms)
    spent = [(plain.members, plain.measured.cpu_ms) for plain in bench.plain if plain.measured is not None]
    lines.append(Line("plain", [(m, cpu_ms) for m, cpu_ms in spent if cpu_ms is not None], is_limit=True))
    note = "Driver and replica, without vLLM's engine process; plain: the process that calls generate."
    return _chart("CPU time outside the engine", note, lines, "members", "CPU milliseconds per call")


def _caching(bench: Throughput) -> Chart | None:
    shares: dict[int, list[float]] = {}
    for cell in bench.cells:
        if cell.measured is not None and cell.measured.cached_share is not None:
            shares.setdefault(cell.members, []).append(cell.measured.cached_share)
    if not shares:
        return None
    members = sorted(shares)
    series = {
        "least of all cells": [min(shares[m]) for m in members],
        "bound (m - 1) / m": [cached_bound(m) for m in members],
    }
    svg = grouped_bars(
        [f"{m}" for m in members],
        series,
        x_label="members",
        y_label="share of prompt tokens",
        label=f"Prompt tokens from the prefix cache, by members: {_said(series['least of all cells'], members)}",
    )
    note = "The first member of a question fills the cache for the others."
    return Chart("Prompt tokens from the prefix cache", note, Markup(svg))  # noqa: S704 - drawn here


def _lines(
    bench: Throughput,
    place: Callable[[BenchCell], tuple[str, float]],
    value: Callable[[BenchCell, Measurement], float | None],
) -> list[Line]:
    """Collect the measured cells' values into lines by name, in the order of the sweep."""
    points: dict[str, list[tuple[float, float]]] = {}
    for cell in bench.cells:
        y = value(cell, cell.measured) if cell.measured is not None else None
        if y is not None:
            name, x = place(cell)
            points.setdefault(name, []).append((x, y))
    return [Line(name, sorted(of_name)) for name, of_name in points.items()]


def _by_members(cell: BenchCell) -> tuple[str, float]:
    return f"{replicas_text(cell.replicas)}, {cell.concurrency} in flight", cell.members


def _chart(title: str, note: str, lines: Iterable[Line], x_label: str, y_label: str) -> Chart | None:
    """Draw lines; None where there are none besides limits."""
    drawn = [line for line in lines if line.points]
    if all(line.is_limit for line in drawn):
        return None
    label = f"{title}. " + "; ".join(
        f"{line.name}: {_said([y for _, y in line.points], [x for x, _ in line.points])}" for line in drawn
    )
    with drawing():
        figure, axes = new_figure()
        colours, styles = cycle(PALETTE), cycle(PLAIN_STYLES)
        for line in drawn:
            xs, ys = zip(*line.points, strict=True)
            look = (next(styles), PLAIN_COLOUR) if line.is_limit else ("-", next(colours))
            axes.plot(xs, ys, look[0], marker="o", markersize=4, color=look[1], label=legend_name(line.name))
        axes.set_xticks(sorted({x for line in drawn for x, _ in line.points}))
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.yaxis.grid(True, alpha=0.25)
        figure.legend(loc="outside upper center", ncols=2, handlelength=1.6, columnspacing=1.2, fontsize=8)
        svg = svg_text(figure, label)
    return Chart(title, note, Markup(svg))  # noqa: S704 - drawn by our plots, which escape every name


def _said(values: Sequence[float], at: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g} at {x:g}" for x, value in zip(at, values, strict=True))
