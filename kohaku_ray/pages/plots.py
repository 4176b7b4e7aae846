"""Plots, as SVG elements of a page and as files: the same numbers give the same bytes.

Text and axes are ``currentColor``, so that a plot is readable on light and on dark. Colours are Okabe and Ito's, which
colour-blind readers can distinguish; every bar also carries its number. All plots take ``x_label`` and ``y_label``, the
quantities with their units, and ``label``, the plot in words for readers who cannot see it.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, pairwise, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from kohaku_ray.index.arrays import F64
from kohaku_ray.pages.text import one_line, visible
from kohaku_ray.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's colours; the last is grey."""

INK = "#0a0b0c"
"""Colour of text and axes; in SVG text it becomes ``currentColor``."""

WIDTH_IN, HEIGHT_IN = 4.0, 2.8
"""Size of a plot; small, so that its 9 pt text stays readable when a phone's screen shrinks it."""

PX_PER_IN, LEAST_PX_PER_IN = 110, 75
"""Scale on a page: a plot of the usual width gets up to 440 pixels, and a wider one is not shrunk to illegible text."""

LEAST_LABELLED = 0.07
"""Share of the highest bar; a thinner layer has no room for its number."""

_LOG_FROM = 10
"""Ratio of the largest cost to the smallest from which their axis is logarithmic: below it, few ticks have a number."""

MOST_TICKS = 14
MOST_BANDS = 4
"""Most lines with bands in one panel: more bands hide each other."""

SCALE_STEPS = 32
"""Steps of a scale's colours: of 50 and more, matplotlib draws an image, which pages do not load."""

_DASHES = ("-", "--", ":", "-.")
_NEAR = 0.015  # of the height of all lines: about a line's width
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "kohaku_ray",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # whole fonts: journals refuse Type 3
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_NO_METADATA: dict[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}


@dataclass(frozen=True, slots=True)
class Band:
    """A line with its band of uncertainty."""

    name: str
    x: Sequence[float]  # ascending
    mean: Sequence[float]
    sd: Sequence[float]  # half the band's height; NaN where it is not known


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line through points."""

    name: str
    points: Sequence[tuple[float, float]]
    is_limit: bool = False  # drawn dashed and grey


class Plot(Markup):
    """A plot as an ``<svg>`` element of a page."""

    figure: Figure

    def as_file(self, form: Literal["svg", "pdf"]) -> bytes:
        """Write the plot as a file of its own, in the page's ink on no ground; its text stays text."""
        buffer = io.BytesIO()
        with drawing():
            self.figure.savefig(buffer, format=form, transparent=True, metadata=_NO_METADATA[form])
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot with its title, and a note on how to read it."""

    title: str
    note: str
    svg: Plot
    data: Table | None = None  # what is drawn; a chart with it is also written as files


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in this module's style, without the user's matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's fonts draw SVG text
        yield


def new_figure(width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """Open a figure without a window or global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in))
    return figure, figure.subplots()


def svg_text(figure: Figure, label: str) -> Plot:
    """Write a figure, drawn under ``drawing``, as a scalable ``<svg>`` element with a text label."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA["svg"])
    text = buffer.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    width_in = figure.get_figwidth()
    widths = f"max-width: {PX_PER_IN * width_in:.0f}px; min-width: {LEAST_PX_PER_IN * width_in:.0f}px"
    size = "" if width_in == WIDTH_IN else f'style="{widths}" '
    head = f'<svg role="img" aria-label="{escape(visible(label))}" {size}xmlns:xlink="http://www.w3.org/1999/xlink" '
    body = f"{head}{box[0] if box else ''}>{text[text.index('>', text.index('<svg ')) + 1 :]}"
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # ids repeat from plot to plot, and nothing refers to groups
    body = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style [^>]*>.*?</style>", "", body, flags=re.DOTALL)
    plot = Plot(body.replace(INK, "currentColor").strip())  # matplotlib escapes every name
    plot.figure = figure
    return plot


def shorten(text: str, n_chars: int) -> str:
    """Shorten a name to fit beside a plot: its middle is cut, both ends stay."""
    text = one_line(text)
    n_end = n_chars // 2
    return text if len(text) <= n_chars else f"{text[: n_chars - n_end - 1].rstrip()}…{text[-n_end:].lstrip()}"


def legend_name(text: str) -> str:
    """Make a name fit for a legend, which hides names that begin with an underscore."""
    text = visible(text)
    return f" {text}" if text.startswith("_") else text


@drawing()
def grouped_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], *, x_label: str, y_label: str, label: str
) -> Plot:
    """Draw shares between 0 and 1 side by side, each with its number: a bar per series in each group of ``labels``."""
    figure, axes = new_figure()
    width = 0.8 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        bar_positions = np.arange(len(labels)) + (number - (len(series) - 1) / 2) * width
        colour = PALETTE[number % len(PALETTE)]
        bars = axes.bar(bar_positions, values, width * 0.94, label=legend_name(name), color=colour)
        axes.bar_label(bars, fmt="%.2f", padding=1, fontsize=7 if len(series) > 3 else 8)
    axes.set_xticks(np.arange(len(labels)), [visible(text) for text in labels])
    axes.set_ylim(0, 1.1)
    _name_axes(axes, x_label, y_label)
    if len(series) > 1:
        add_legend(figure, min(len(series), 4), fontsize=9)
    return svg_text(figure, label)


@drawing()
def stacked_bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
    *,
    x_label: str,
    y_label: str,
    label: str,
) -> Plot:
    """Draw counts on top of each other, a bar per label; series of zeros are left out."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    drawn = {name: np.asarray(counts) for name, counts in series.items() if np.any(counts)}
    least = LEAST_LABELLED * max(np.sum([np.asarray(counts) for counts in series.values()], axis=0).max(), 1)
    _stack(axes, axes.bar, drawn, colours, lambda n: f"{n:,}" if n >= least else "")
    every = -(-len(labels) // MOST_TICKS)
    axes.set_xticks(np.arange(len(labels))[::every], [visible(text) for text in labels[::every]])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _name_axes(axes, x_label, y_label)
    if len(drawn) > 1:
        add_legend(figure, min(len(drawn), 4), fontsize=9)
    return svg_text(figure, label)


@drawing()
def share_bars(
    names: Sequence[str], series: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, x_label: str, label: str
) -> Plot:
    """Draw shares of 1 one after another, one bar per name, from the top; series of zeros are left out."""
    drawn = {name: np.asarray(shares, np.float64) for name, shares in series.items() if np.any(shares)}
    least = LEAST_LABELLED * max([float(np.sum(shares)) for shares in zip(*drawn.values(), strict=True)], default=1.0)
    figure, axes = new_figure(WIDTH_IN, 0.75 + 0.17 * -(-len(drawn) // 2) + 0.27 * max(len(names), 2))
    _stack(axes, axes.barh, drawn, colours, lambda share: f"{100 * share:.0f}" if share >= least else "")
    axes.xaxis.set_major_formatter(lambda number, _: f"{100 * number:.0f} %")
    name_rows(axes, names)
    axes.set_xlabel(x_label)
    if drawn:
        add_legend(figure, 2)
    return svg_text(figure, label)


def _stack(
    axes: Axes,
    draw: Callable[..., Any],
    layers: Mapping[str, npt.NDArray[Any]],
    colours: Mapping[str, str],
    write: Callable[[Any], str],
) -> None:
    """Draw layers on top of each other, by ``axes.bar`` or ``axes.barh``, each value with its text."""
    base: Any = 0.0
    for name, values in layers.items():
        bars = draw(np.arange(len(values)), values, 0.75, base, label=legend_name(name), color=colours[name])
        axes.bar_label(bars, [write(value) for value in values], label_type="center", fontsize=8, color="black")
        base = base + values


@drawing()
def share_points(points: Sequence[tuple[float, float, int]], *, x_label: str, y_label: str) -> Plot:
    """Draw shares against shares, each with its number of cases, and the line where both are equal."""
    figure, axes = new_figure()
    axes.plot([0, 1], [0, 1], color=PALETTE[7], linestyle="--", linewidth=1)
    most = max(n for _, _, n in points)
    for x, y, n in points:
        axes.scatter([x], [y], s=20 + 180 * n / most, color=PALETTE[0], alpha=0.75, clip_on=False, zorder=3)
        axes.annotate(f"{n:,}", (x, y), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.08)
    _name_axes(axes, shorten(x_label, 60), y_label)
    point_texts = "; ".join(f"{x:.2f}: {y:.2f} of {n}" for x, y, n in points)
    return svg_text(figure, f"{y_label} by {x_label}. {point_texts}")


@drawing()
def ranges(series: Mapping[str, npt.ArrayLike], *, x_label: str, label: str) -> Plot:
    """Draw the spread of non-negative numbers, at least one per name; the axis is logarithmic above 1.

    A line from the 5th to the 95th percentile, a box over the middle half, the median.
    """
    from matplotlib.ticker import NullLocator

    figure, axes = new_figure()
    for position, (name, values) in enumerate(series.items()):
        low, first, median, third, high = np.percentile(np.asarray(values, np.float64), (5, 25, 50, 75, 95))
        colour = PALETTE[position % len(PALETTE)]
        axes.hlines(position, low, high, color=colour, linewidth=2)
        axes.barh(position, third - first, 0.36, first, color=colour, edgecolor=colour, linewidth=2)
        axes.plot([median], [position], marker="|", markersize=16, markeredgewidth=2.5, color=INK)
        axes.text(median, position - 0.3, f"{visible(name)}: median {median:,.0f}", ha="center", va="bottom")
    axes.set_xscale("symlog", linthresh=1)
    # Whole powers of ten around all values, from 0 where there is a 0.
    every = np.concatenate([np.asarray(values, np.float64) for values in series.values()])
    least = 10.0 ** np.floor(np.log10(every.min())) if every.min() >= 1 else 0.0
    axes.set_xlim(float(least), float(10.0 ** np.ceil(np.log10(max(every.max(), 1) * 1.01))))
    axes.set_ylim(len(series) - 0.5, -0.75)
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.grid(True, alpha=0.25)
    axes.set_xlabel(x_label)
    return svg_text(figure, label)


@drawing()
def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: F64,
    texts: Sequence[Sequence[str]],
    *,
    x_label: str,
    y_label: str,
    label: str,
    least_span: float = 0.0,
) -> Plot:
    """Draw a grid of numbers, shape ``(rows, columns)``, as colours, each with its text; NaN where there is none.

    The colours span ``least_span`` at least: numbers that differ by less have nearly the same colour.
    """
    import matplotlib as mpl

    names = [shorten(name, 30) for name in rows]
    width_in = max(1.6 + 0.062 * max(map(len, names)) + 0.6 * len(columns), WIDTH_IN)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = max(least_span - (high - low), 0.0) / 2
    low, high = low - margin, high + margin
    figure, axes = new_figure(width_in, 0.75 + 0.25 * max(len(rows), 3))
    colours = mpl.colormaps["cividis"]
    level = (values - low) / (high - low) if high > low else np.where(np.isnan(values), np.nan, 0.5)
    axes.pcolormesh(level, cmap=colours, vmin=0, vmax=1, edgecolors="none")
    for row, column in product(range(len(rows)), range(len(columns))):
        ink = INK if np.isnan(level[row, column]) else "black" if level[row, column] > 0.5 else "white"
        axes.text(column + 0.5, row + 0.5, texts[row][column], ha="center", va="center", color=ink, fontsize=8)
    heads = [shorten(name, 24) for name in columns]
    axes.set_xticks(np.arange(len(columns)) + 0.5, heads)
    axes.set_yticks(np.arange(len(rows)) + 0.5, names)
    if max(map(len, heads)) > 9:
        axes.tick_params(axis="x", labelrotation=30)
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("right")
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.set_xlabel(shorten(x_label, 60))
    axes.set_ylabel(shorten(y_label, max(4 * len(rows), 10)))
    if high > low:
        _scale(figure, axes, low, high)
    return svg_text(figure, label)


def _scale(figure: Figure, axes: Axes, low: float, high: float) -> None:
    """Draw what the colours mean: a bar from the lowest to the highest number."""
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    steps = ScalarMappable(Normalize(low, high), mpl.colormaps["cividis"].resampled(SCALE_STEPS))
    bar = figure.colorbar(steps, ax=axes, fraction=0.05, pad=0.02)
    ticks = [low, (low + high) / 2, high]
    bar.set_ticks(ticks, labels=[f"{tick:.3f}" for tick in ticks])
    bar.ax.tick_params(labelsize=8, length=0)
    bar.outline.set_visible(False)


@drawing()
def lines(every: Sequence[PlotLine], *, x_label: str, y_label: str, label: str) -> Plot:
    """Draw lines from 0 up, with a mark at every point."""
    figure, axes = new_figure()
    colours, dashes = cycle(PALETTE), cycle(("--", ":", "-."))
    for line in every:
        xs, ys = zip(*line.points, strict=True)
        dash, colour = (next(dashes), PALETTE[7]) if line.is_limit else ("-", next(colours))
        axes.plot(xs, ys, dash, marker="o", markersize=4, color=colour, label=legend_name(line.name))
    axes.set_xticks(sorted({x for line in every for x, _ in line.points}))
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.set_ylim(bottom=0)
    _name_axes(axes, x_label, y_label)
    add_legend(figure, 2, handlelength=1.6)
    return svg_text(figure, label)


@drawing()
def banded_lines(lines: Sequence[Band], *, x_label: str, y_label: str, label: str) -> Plot:
    """Draw at least one line with its band; the x axis is logarithmic where it spans more than a factor of 50.

    More than ``MOST_BANDS`` lines are drawn one per panel, with equal axes, the others behind it in grey.
    """
    if len(lines) > MOST_BANDS:
        return _small_multiples(lines, x_label=x_label, y_label=y_label, label=label)
    columns = 1 if len(lines) == 1 or max(len(line.name) for line in lines) > 26 else 2
    figure, axes = new_figure(WIDTH_IN, HEIGHT_IN + 0.17 * (len(lines) // columns if len(lines) > 1 else 0))
    looks = zip(cycle(PALETTE), (dash for dash in cycle(_DASHES) for _ in PALETTE), strict=False)
    near = _NEAR * max(float(np.ptp([value for line in lines for value in line.mean])), 1e-9)
    drawn: list[set[tuple[float, ...]]] = []  # segments of the lines so far
    for line, (colour, dash) in zip(lines, looks, strict=False):
        name = legend_name(shorten(line.name, 54 // columns))
        segments = set(_segments(line))
        n_below = sum(_overlap(segments, other, near) for other in drawn)
        drawn.append(segments)
        style: Any = (0, (3.0, 3.0 * n_below + 1.0)) if n_below else dash  # what lies below shows in the gaps
        size = max(3.5 - n_below, 1.5) if n_below else 3.5
        axes.plot(line.x, line.mean, linestyle=style, marker="o", markersize=size, color=colour, label=name)
        _fill_band(axes, line, colour, 0.2 if len(lines) <= 3 else 0.1)
    _number_ticks(axes, lines, MOST_TICKS)
    _name_axes(axes, shorten(x_label, 60), y_label)
    if len(lines) > 1:
        add_legend(figure, columns, handlelength=1.6)
    return svg_text(figure, label)


@drawing()
def _small_multiples(lines: Sequence[Band], *, x_label: str, y_label: str, label: str) -> Plot:
    """Draw each line in a panel of its own, two side by side."""
    from matplotlib.figure import Figure

    n_rows = -(-len(lines) // 2)
    figure = Figure(figsize=(WIDTH_IN, 0.5 + 1.25 * n_rows))
    panels = figure.subplots(n_rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
    for line, axes in zip(lines, panels, strict=False):
        for other in lines:
            axes.plot(other.x, other.mean, color=PALETTE[7], alpha=0.45, linewidth=0.7)
        axes.plot(line.x, line.mean, marker="o", markersize=3, color=PALETTE[0])
        _fill_band(axes, line, PALETTE[0], 0.25)
        axes.set_title(shorten(line.name, 28), fontsize=8)
        _number_ticks(axes, lines, MOST_TICKS // 2)
        axes.tick_params(labelsize=8)
        axes.yaxis.grid(True, alpha=0.25)
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    figure.supxlabel(shorten(x_label, 60), fontsize=9)
    figure.supylabel(y_label, fontsize=9)
    return svg_text(figure, label)


def _segments(line: Band) -> Iterator[tuple[float, ...]]:
    """List a line's segments by their ends."""
    points = [(float(x), round(float(y), 9)) for x, y in zip(line.x, line.mean, strict=True)]
    return ((*start, *end) for start, end in pairwise(points))


def _overlap(segments: Set[tuple[float, ...]], others: Set[tuple[float, ...]], near: float) -> bool:
    """Whether a segment lies so near to another one, between the same x, that a line drawn over it would hide it."""
    return any(
        (x, x_end) == (other[0], other[2]) and max(abs(y - other[1]), abs(y_end - other[3])) <= near
        for x, y, x_end, y_end in segments
        for other in others
    )


def _fill_band(axes: Axes, line: Band, colour: str, alpha: float) -> None:
    mean, sd = np.asarray(line.mean, np.float64), np.nan_to_num(np.asarray(line.sd, np.float64))
    axes.fill_between(line.x, mean - sd, mean + sd, color=colour, alpha=alpha, linewidth=0)


def _number_ticks(axes: Axes, lines: Sequence[Band], most: int) -> None:
    from matplotlib.ticker import NullLocator

    numbers = sorted({x for line in lines for x in line.x})
    if numbers[0] > 0 and numbers[-1] / numbers[0] > 50:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(numbers[:: -(-len(numbers) // most)])
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")


@drawing()
def error_bars(
    names: Sequence[str], mean: Sequence[float], sd: Sequence[float], *, x_label: str, y_label: str, label: str
) -> Plot:
    """Draw one point per name, from the top, with its spread; its deviation is NaN where it is not known."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(WIDTH_IN, 0.75 + 0.24 * max(len(names), 2))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    spread = np.nan_to_num(np.asarray(sd, np.float64))
    heights = np.arange(len(names))
    axes.errorbar(mean, heights, xerr=spread, fmt="o", color=PALETTE[0], markersize=5, capsize=3, elinewidth=1.4)
    name_rows(axes, names)
    axes.set_xlabel(x_label)
    axes.set_ylabel(shorten(y_label, max(4 * len(names), 10)))
    return svg_text(figure, label)


@drawing()
def frontier(
    points: Mapping[str, Sequence[tuple[float, float]]],
    best: Sequence[tuple[float, float, str]],
    *,
    x_label: str,
    y_label: str,
    label: str,
) -> Plot:
    """Draw gain against positive costs, by name of their group, and the Pareto frontier as a stair.

    ``best`` are cost, gain and mark of the stair's points, by ascending cost.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    figure, axes = new_figure(WIDTH_IN, HEIGHT_IN + 0.17 * (len(points) // 2 if len(points) > 1 else 0))
    for (name, group), colour in zip(points.items(), cycle(PALETTE), strict=False):
        costs, gains = zip(*group, strict=True)
        named = legend_name(shorten(name, 27))
        axes.scatter(costs, gains, s=16, color=colour, alpha=0.8, linewidths=0, label=named)
    axes.step([x for x, _, _ in best], [y for _, y, _ in best], where="post", color=INK, linewidth=1, zorder=0)
    for x, y, mark in best:
        axes.annotate(mark, (x, y), (0, 4), textcoords="offset points", ha="center", fontsize=8)
    every = [cost for group in points.values() for cost, _ in group]
    is_wide = max(every) > _LOG_FROM * min(every)
    if is_wide:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0), numticks=8))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}" if number >= 10 else f"{number:g}")
    axes.margins(0.08, 0.1)
    _name_axes(axes, f"{x_label} (log scale)" if is_wide else x_label, y_label, grid="both")
    if len(points) > 1:
        add_legend(figure, 2)
    return svg_text(figure, label)


@drawing()
def scatter(x: Sequence[float], y: Sequence[float], *, x_label: str, y_label: str, label: str) -> Plot:
    """Draw at least one point, and the line on which both places are equal."""
    low, high = min(*x, *y), max(*x, *y)
    room = 0.05 * (high - low) or 0.05
    figure, axes = new_figure(WIDTH_IN, WIDTH_IN)
    axes.plot([low - room, high + room], [low - room, high + room], "--", color=INK, linewidth=0.8, alpha=0.6)
    axes.scatter(x, y, s=18, color=PALETTE[0], alpha=0.7, linewidths=0)
    axes.set_aspect("equal")
    _name_axes(axes, shorten(x_label, 50), shorten(y_label, 50), grid="both")
    return svg_text(figure, label)


@drawing()
def slopes(
    names: Sequence[str], left: Sequence[float], right: Sequence[float], *, heads: tuple[str, str], label: str
) -> Plot:
    """Draw a line per name from its left rank to its right one; rank 1 is at the top, ``heads`` name the sides."""
    deepest = max([len(names), 4, *left, *right])
    figure, axes = new_figure(WIDTH_IN, 0.9 + (0.2 if deepest <= len(names) else 0.14) * deepest)
    ends: dict[float, list[str]] = {}
    for name, before, after in zip(names, left, right, strict=True):
        colour = PALETTE[2] if after < before else PALETTE[1] if after > before else PALETTE[7]
        axes.plot([0, 1], [before, after], marker="o", markersize=3.5, linewidth=1.2, color=colour)
        ends.setdefault(after, []).append(name)
    for after, tied in ends.items():
        text = shorten(tied[0], 34) if len(tied) == 1 else f"{shorten(tied[0], 28)} + {len(tied) - 1}"
        axes.annotate(text, (1, after), (6, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_xticks([0, 1], [shorten(head, 20) for head in heads])
    axes.set_xlim(-0.1, 2.2)
    axes.set_ylim(deepest + 0.5, 0.5)
    axes.set_ylabel("rank")
    axes.spines["bottom"].set_visible(False)
    return svg_text(figure, label)


def _name_axes(axes: Axes, x_label: str, y_label: str, grid: Any = "y") -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, axis=grid, alpha=0.25)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a plot that lies on its side, the first at the top."""
    axes.set_yticks(np.arange(len(names)), [shorten(name, 30) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.grid(True, alpha=0.25)


def add_legend(figure: Figure, columns: int, *, handlelength: float = 1, fontsize: int = 8) -> None:
    """Set the legend above a figure's plots."""
    spacing = {"handlelength": handlelength, "columnspacing": 1.2}
    figure.legend(loc="outside upper center", ncols=columns, fontsize=fontsize, **spacing)


def nice_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below ``least``, but for rounding."""
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
