"""Plots as SVG text: plain numbers in, the same bytes out every time.

Ink is written as ``currentColor``, so that a plot inside a page is readable on light and on dark. Colours are Okabe and
Ito's, told apart by colour-blind readers; every bar also carries its number.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kohaku_ray.arrays import F64
from kohaku_ray.reporting.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's colours."""

INK = "#0a0b0c"
"""Colour of text and axes; in SVG text it becomes ``currentColor``."""

WIDTH_IN, HEIGHT_IN = 4.0, 2.8
"""Size of a plot; small, so that its 9 pt text stays readable when a phone's screen shrinks it."""

PX_PER_IN, LEAST_PX_PER_IN = 110, 75
"""Scale on a page: a plot of the usual width gets up to 440 pixels, and a wider one is not shrunk to illegible text."""

_DASHES = ("-", "--", ":", "-.")
_LEAST_LABELLED = 0.07  # of the highest bar: a thinner layer has no room for its number
_MOST_TICKS = 14
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "kohaku_ray",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in this module's style alone, whatever the user's matplotlibrc says."""
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # SVG text is drawn by the reader's fonts
        yield


def new_figure(width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """Open a figure that belongs to nobody: no window, no global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in))
    return figure, figure.subplots()


def svg_text(figure: Figure, label: str) -> str:
    """Write a figure as an ``<svg>`` element for a page: it scales, and says in words what it shows.

    Args:
        figure: Drawn under ``drawing``.
        label: What a reader who cannot see it is told.
    """
    from markupsafe import escape

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    text = buffer.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    width_in = figure.get_figwidth()
    widths = f"max-width: {PX_PER_IN * width_in:.0f}px; min-width: {LEAST_PX_PER_IN * width_in:.0f}px"
    size = "" if width_in == WIDTH_IN else f'style="{widths}" '
    head = f'<svg role="img" aria-label="{escape(visible(label))}" {size}xmlns:xlink="http://www.w3.org/1999/xlink" '
    body = f"{head}{box[0] if box else ''}>{text[text.index('>', text.index('<svg ')) + 1 :]}"
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # ids repeat from plot to plot, and nothing refers to groups
    body = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style [^>]*>.*?</style>", "", body, flags=re.DOTALL)
    return body.replace(INK, "currentColor").strip()


@dataclass(frozen=True, slots=True)
class Band:
    """A line with what it is uncertain by.

    Attributes:
        name: As the legend calls it.
        x: Where it was measured, ascending.
        mean: What was measured there.
        sd: Half the band's height; NaN where it is not known.
    """

    name: str
    x: Sequence[float]
    mean: Sequence[float]
    sd: Sequence[float]


def shorten(text: str, n_chars: int) -> str:
    """Make a name fit beside a plot; its middle goes, because names of a kind begin alike and end alike."""
    text = " ".join(visible(text).split())
    n_end = n_chars // 2
    return text if len(text) <= n_chars else f"{text[: n_chars - n_end - 1].rstrip()}…{text[-n_end:].lstrip()}"


def legend_name(text: str) -> str:
    """Make a name fit for a legend, which hides what begins with an underscore."""
    text = visible(text)
    return f" {text}" if text.startswith("_") else text


def grouped_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], *, x_label: str, y_label: str, label: str
) -> str:
    """Draw shares between 0 and 1 side by side, each with its number.

    Args:
        labels: Names of the groups.
        series: One value a group, by name.
        x_label: What the groups are.
        y_label: What is measured, with its unit.
        label: The plot in words.
    """
    with drawing():
        figure, axes = new_figure()
        width = 0.8 / max(len(series), 1)
        for at, (name, values) in enumerate(series.items()):
            places = np.arange(len(labels)) + (at - (len(series) - 1) / 2) * width
            colour = PALETTE[at % len(PALETTE)]
            bars = axes.bar(places, values, width * 0.94, label=legend_name(name), color=colour)
            axes.bar_label(bars, fmt="%.2f", padding=1, fontsize=7 if len(series) > 3 else 8)
        axes.set_xticks(np.arange(len(labels)), [visible(text) for text in labels])
        axes.set_ylim(0, 1.1)
        _finish(figure, axes, x_label, y_label, len(series))
        return svg_text(figure, label)


def stacked_bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
    *,
    x_label: str,
    y_label: str,
    label: str,
) -> str:
    """Draw counts on top of each other.

    Args:
        labels: Names of the bars.
        series: One count a bar, by name; series of zeros are left out.
        colours: Colour by name.
        x_label: What the bars are.
        y_label: What is counted.
        label: The plot in words.
    """
    from matplotlib.ticker import MaxNLocator

    with drawing():
        figure, axes = new_figure()
        total = np.sum([np.asarray(counts) for counts in series.values()], axis=0)
        base = np.zeros(len(labels))
        drawn = {name: np.asarray(counts) for name, counts in series.items() if np.any(counts)}
        for name, counts in drawn.items():
            bars = axes.bar(np.arange(len(labels)), counts, 0.75, base, label=legend_name(name), color=colours[name])
            shown = [f"{n:,}" if n >= _LEAST_LABELLED * max(total.max(), 1) else "" for n in counts]
            axes.bar_label(bars, shown, label_type="center", fontsize=8, color="black")
            base += counts
        every = -(-len(labels) // _MOST_TICKS)
        axes.set_xticks(np.arange(len(labels))[::every], [visible(text) for text in labels[::every]])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(figure, axes, x_label, y_label, len(drawn))
        return svg_text(figure, label)


def ranges(series: Mapping[str, npt.ArrayLike], *, x_label: str, label: str) -> str:
    """Draw how counts spread: a line from the 5th to the 95th percentile, a box over the middle half, the median.

    Args:
        series: Non-negative numbers by name, at least one of each.
        x_label: What they count, with the unit; the axis is logarithmic above 1.
        label: The plot in words.
    """
    from matplotlib.ticker import NullLocator

    with drawing():
        figure, axes = new_figure()
        for at, (name, values) in enumerate(series.items()):
            low, first, median, third, high = np.percentile(np.asarray(values, np.float64), (5, 25, 50, 75, 95))
            colour = PALETTE[at % len(PALETTE)]
            axes.hlines(at, low, high, color=colour, linewidth=2)
            axes.barh(at, third - first, 0.36, first, color=colour, edgecolor=colour, linewidth=2)
            axes.plot([median], [at], marker="|", markersize=16, markeredgewidth=2.5, color=INK)
            axes.text(median, at - 0.3, f"{visible(name)}: median {median:,.0f}", ha="center", va="bottom")
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(*_log_window(series.values()))
        axes.set_ylim(len(series) - 0.5, -0.75)
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.grid(True, alpha=0.25)
        axes.set_xlabel(x_label)
        return svg_text(figure, label)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: F64,
    texts: Sequence[Sequence[str]],
    *,
    x_label: str,
    y_label: str,
    label: str,
) -> str:
    """Draw a grid of numbers as colours, each with its text.

    Args:
        rows: Names of the rows, from the top.
        columns: Names of the columns.
        values: Shape ``(rows, columns)``; NaN where there is none, and at least one number.
        texts: What is written in each field.
        x_label: What the columns are.
        y_label: What the rows are.
        label: The plot in words.
    """
    import matplotlib as mpl

    names = [shorten(name, 30) for name in rows]
    width_in = max(1.0 + 0.062 * max(map(len, names)) + 0.52 * len(columns), WIDTH_IN)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    with drawing():
        figure, axes = new_figure(width_in, 0.75 + 0.25 * len(rows))
        colours = mpl.colormaps["cividis"]
        level = (values - low) / (high - low) if high > low else np.where(np.isnan(values), np.nan, 0.5)
        axes.pcolormesh(level, cmap=colours, vmin=0, vmax=1, edgecolors="none")
        for row, column in product(range(len(rows)), range(len(columns))):
            ink = INK if np.isnan(level[row, column]) else "black" if level[row, column] > 0.5 else "white"
            axes.text(column + 0.5, row + 0.5, texts[row][column], ha="center", va="center", color=ink, fontsize=8)
        axes.set_xticks(np.arange(len(columns)) + 0.5, [shorten(name, 12) for name in columns])
        axes.set_yticks(np.arange(len(rows)) + 0.5, names)
        if sum(len(shorten(name, 12)) for name in columns) > 8 * len(columns):
            axes.tick_params(axis="x", labelrotation=30)
        axes.tick_params(length=0)
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        axes.set_xlabel(shorten(x_label, 60))
        _name_rows(axes, y_label, len(rows))
        return svg_text(figure, label)


def banded_lines(lines: Sequence[Band], *, x_label: str, y_label: str, label: str) -> str:
    """Draw lines with bands around them; the x axis is logarithmic where its numbers span more than a factor of 50.

    Args:
        lines: At least one.
        x_label: What changes along the lines.
        y_label: What is measured, with its unit.
        label: The plot in words.
    """
    from matplotlib.ticker import NullLocator

    columns = 1 if len(lines) == 1 or max(len(line.name) for line in lines) > 26 else 2
    places = sorted({x for line in lines for x in line.x})
    with drawing():
        figure, axes = new_figure(WIDTH_IN, HEIGHT_IN + 0.17 * (len(lines) // columns if len(lines) > 1 else 0))
        looks = zip(cycle(PALETTE), (dash for dash in cycle(_DASHES) for _ in PALETTE), strict=False)
        for line, (colour, dash) in zip(lines, looks, strict=False):
            mean, sd = np.asarray(line.mean, np.float64), np.nan_to_num(np.asarray(line.sd, np.float64))
            name = legend_name(shorten(line.name, 54 // columns))
            axes.plot(line.x, mean, dash, marker="o", markersize=3.5, color=colour, label=name)
            axes.fill_between(
                line.x, mean - sd, mean + sd, color=colour, alpha=0.2 if len(lines) <= 3 else 0.1, linewidth=0
            )
        if places[0] > 0 and places[-1] / places[0] > 50:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(places[:: -(-len(places) // _MOST_TICKS)])
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
        axes.set_xlabel(shorten(x_label, 60))
        axes.set_ylabel(y_label)
        axes.yaxis.grid(True, alpha=0.25)
        if len(lines) > 1:
            figure.legend(loc="outside upper center", ncols=columns, handlelength=1.6, columnspacing=1.2, fontsize=8)
        return svg_text(figure, label)


def error_bars(
    names: Sequence[str], mean: Sequence[float], sd: Sequence[float], *, x_label: str, y_label: str, label: str
) -> str:
    """Draw a point with its spread for each name, from the top.

    Args:
        names: What was measured, at least one.
        mean: Where the points are.
        sd: Half the length of their bars; NaN where it is not known.
        x_label: What is measured, with its unit.
        y_label: What the names are.
        label: The plot in words.
    """
    with drawing():
        figure, axes = new_figure(WIDTH_IN, 0.75 + 0.24 * max(len(names), 2))
        places = np.arange(len(names))
        spread = np.nan_to_num(np.asarray(sd, np.float64))
        axes.errorbar(mean, places, xerr=spread, fmt="o", color=PALETTE[0], markersize=5, capsize=3, elinewidth=1.4)
        axes.set_yticks(places, [shorten(name, 30) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.grid(True, alpha=0.25)
        axes.set_xlabel(x_label)
        _name_rows(axes, y_label, len(names))
        return svg_text(figure, label)


def share_bars(
    names: Sequence[str], series: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, x_label: str, label: str
) -> str:
    """Draw shares of 1 one after another, a bar a name, from the top.

    Args:
        names: Names of the bars, at least one.
        series: One share a bar, by name; series of zeros are left out.
        colours: Colour by name.
        x_label: What the whole is.
        label: The plot in words.
    """
    drawn = {name: np.asarray(shares, np.float64) for name, shares in series.items() if np.any(shares)}
    longest = max([float(np.sum(shares)) for shares in zip(*drawn.values(), strict=True)], default=1.0)
    with drawing():
        figure, axes = new_figure(WIDTH_IN, 0.75 + 0.17 * -(-len(drawn) // 2) + 0.27 * max(len(names), 2))
        base = np.zeros(len(names))
        for name, shares in drawn.items():
            bars = axes.barh(np.arange(len(names)), shares, 0.75, base, label=legend_name(name), color=colours[name])
            shown = [f"{100 * share:.0f}" if share >= _LEAST_LABELLED * longest else "" for share in shares]
            axes.bar_label(bars, shown, label_type="center", fontsize=8, color="black")
            base += shares
        axes.set_yticks(np.arange(len(names)), [shorten(name, 30) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.set_major_formatter(lambda number, _: f"{100 * number:.0f} %")
        axes.xaxis.grid(True, alpha=0.25)
        axes.set_xlabel(x_label)
        if drawn:
            figure.legend(loc="outside upper center", ncols=2, handlelength=1, columnspacing=1.2, fontsize=8)
        return svg_text(figure, label)


def frontier(
    points: Mapping[str, Sequence[tuple[float, float]]],
    best: Sequence[tuple[float, float, str]],
    *,
    x_label: str,
    y_label: str,
    label: str,
) -> str:
    """Draw what is paid and what is got for it, and the stair of those that nothing cheaper reaches.

    Args:
        points: Cost and gain, by name of their group; costs are positive, and the axis is logarithmic.
        best: Cost, gain and mark of the stair's points, by ascending cost.
        x_label: What is paid, with its unit.
        y_label: What is got, with its unit.
        label: The plot in words.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    with drawing():
        figure, axes = new_figure(WIDTH_IN, HEIGHT_IN + 0.17 * (len(points) // 2 if len(points) > 1 else 0))
        for (name, group), colour in zip(points.items(), cycle(PALETTE), strict=False):
            costs, gains = zip(*group, strict=True)
            axes.scatter(
                costs, gains, s=16, color=colour, alpha=0.8, linewidths=0, label=legend_name(shorten(name, 27))
            )
        axes.step([x for x, _, _ in best], [y for _, y, _ in best], where="post", color=INK, linewidth=1, zorder=0)
        for x, y, mark in best:
            axes.annotate(mark, (x, y), (0, 4), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0), numticks=8))
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}" if number >= 10 else f"{number:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(0.08, 0.1)
        axes.grid(True, alpha=0.25)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if len(points) > 1:
            figure.legend(loc="outside upper center", ncols=2, handlelength=1, columnspacing=1.2, fontsize=8)
        return svg_text(figure, label)


def _name_rows(axes: Axes, y_label: str, n_rows: int) -> None:
    """Say what the rows are, if that is not longer than they are high."""
    axes.set_ylabel(shorten(y_label, max(4 * n_rows, 10)))


def _log_window(series: Any) -> tuple[float, float]:
    """Whole powers of ten around all values, from 0 where there is a 0."""
    every = np.concatenate([np.asarray(values, np.float64) for values in series])
    low = 10.0 ** np.floor(np.log10(every.min())) if every.min() >= 1 else 0.0
    return float(low), float(10.0 ** np.ceil(np.log10(max(every.max(), 1) * 1.01)))


def _finish(figure: Figure, axes: Axes, x_label: str, y_label: str, n_series: int) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.yaxis.grid(True, alpha=0.25)
    if n_series > 1:
        figure.legend(loc="outside upper center", ncols=min(n_series, 4), handlelength=1, columnspacing=1.2)
