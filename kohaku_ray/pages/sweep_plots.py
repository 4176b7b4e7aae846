"""A sweep's plots as SVG text: the same numbers give the same bytes; the style is that of ``plots``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING

import numpy as np

from kohaku_ray.index.arrays import F64
from kohaku_ray.pages.plots import (
    HEIGHT_IN,
    INK,
    LEAST_LABELLED,
    MOST_TICKS,
    PALETTE,
    WIDTH_IN,
    drawing,
    legend_name,
    new_figure,
    shorten,
    svg_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.")

SCALE_STEPS = 32
"""Steps of a scale's colours: of 50 and more, matplotlib draws an image, which pages do not load."""

MOST_BANDS = 4
"""Most lines with bands in one panel: more bands hide each other."""


@dataclass(frozen=True, slots=True)
class Band:
    """A line with its band of uncertainty.

    Attributes:
        name: Its name in the legend.
        x: Places of the measurements, ascending.
        mean: Values measured there.
        sd: Half the band's height; NaN where it is not known.
    """

    name: str
    x: Sequence[float]
    mean: Sequence[float]
    sd: Sequence[float]


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
        texts: Text in each field.
        x_label: What the columns are.
        y_label: What the rows are.
        label: The plot in words.
    """
    import matplotlib as mpl

    names = [shorten(name, 30) for name in rows]
    width_in = max(1.6 + 0.062 * max(map(len, names)) + 0.6 * len(columns), WIDTH_IN)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    with drawing():
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
        _name_rows(axes, y_label, len(rows))
        if high > low:
            _scale(figure, axes, colours, low, high)
        return svg_text(figure, label)


def _scale(figure: Figure, axes: Axes, colours: Colormap, low: float, high: float) -> None:
    """Draw what the colours mean: a bar from the lowest to the highest number."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    steps = ScalarMappable(Normalize(low, high), colours.resampled(SCALE_STEPS))
    bar = figure.colorbar(steps, ax=axes, fraction=0.05, pad=0.02)
    bar.set_ticks([low, (low + high) / 2, high], labels=[f"{at:.3f}" for at in (low, (low + high) / 2, high)])
    bar.ax.tick_params(labelsize=8, length=0)
    bar.outline.set_visible(False)


def banded_lines(lines: Sequence[Band], *, x_label: str, y_label: str, label: str) -> str:
    """Draw lines with bands around them; the x axis is logarithmic where its numbers span more than a factor of 50.

    More than ``MOST_BANDS`` lines are drawn one per panel, with equal axes, the others behind it in grey.

    Args:
        lines: At least one.
        x_label: What changes along the lines.
        y_label: What is measured, with its unit.
        label: The plot in words.
    """
    if len(lines) > MOST_BANDS:
        return _small_multiples(lines, x_label=x_label, y_label=y_label, label=label)
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
        _number_places(axes, places, MOST_TICKS)
        axes.set_xlabel(shorten(x_label, 60))
        axes.set_ylabel(y_label)
        axes.yaxis.grid(True, alpha=0.25)
        if len(lines) > 1:
            figure.legend(loc="outside upper center", ncols=columns, handlelength=1.6, columnspacing=1.2, fontsize=8)
        return svg_text(figure, label)


def _small_multiples(lines: Sequence[Band], *, x_label: str, y_label: str, label: str) -> str:
    """Draw each line in a panel of its own, two side by side."""
    from matplotlib.figure import Figure

    n_rows = -(-len(lines) // 2)
    places = sorted({x for line in lines for x in line.x})
    with drawing():
        figure = Figure(figsize=(WIDTH_IN, 0.5 + 1.25 * n_rows))
        panels = figure.subplots(n_rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
        for line, axes in zip(lines, panels, strict=False):
            mean, sd = np.asarray(line.mean, np.float64), np.nan_to_num(np.asarray(line.sd, np.float64))
            for other in lines:
                axes.plot(other.x, other.mean, color=PALETTE[7], alpha=0.45, linewidth=0.7)
            axes.plot(line.x, mean, marker="o", markersize=3, color=PALETTE[0])
            axes.fill_between(line.x, mean - sd, mean + sd, color=PALETTE[0], alpha=0.25, linewidth=0)
            axes.set_title(shorten(line.name, 28), fontsize=8)
            _number_places(axes, places, MOST_TICKS // 2)
            axes.tick_params(labelsize=8)
            axes.yaxis.grid(True, alpha=0.25)
        for axes in panels[len(lines) :]:
            axes.set_visible(False)
        figure.supxlabel(shorten(x_label, 60), fontsize=9)
        figure.supylabel(y_label, fontsize=9)
        return svg_text(figure, label)


def _number_places(axes: Axes, places: Sequence[float], most: int) -> None:
    """Number the places of the measurements."""
    from matplotlib.ticker import NullLocator

    if places[0] > 0 and places[-1] / places[0] > 50:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places[:: -(-len(places) // most)])
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")


def error_bars(
    names: Sequence[str], mean: Sequence[float], sd: Sequence[float], *, x_label: str, y_label: str, label: str
) -> str:
    """Draw one point with its spread per name, from the top.

    Args:
        names: What was measured, at least one.
        mean: Where the points are.
        sd: Half the length of their bars; NaN where it is not known.
        x_label: What is measured, with its unit.
        y_label: What the names are.
        label: The plot in words.
    """
    from matplotlib.ticker import MaxNLocator

    with drawing():
        figure, axes = new_figure(WIDTH_IN, 0.75 + 0.24 * max(len(names), 2))
        axes.xaxis.set_major_locator(MaxNLocator(5))
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
    """Draw shares of 1 one after another, one bar per name, from the top.

    Args:
        names: Names of the bars, at least one.
        series: One share per bar, by name; series of zeros are left out.
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
            shown = [f"{100 * share:.0f}" if share >= LEAST_LABELLED * longest else "" for share in shares]
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
    """Draw gain against cost, and the Pareto frontier as a stair.

    Args:
        points: Cost and gain, by name of their group; costs are positive, and the axis is logarithmic.
        best: Cost, gain and mark of the stair's points, by ascending cost.
        x_label: Cost, with its unit.
        y_label: Gain, with its unit.
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


def scatter(x: Sequence[float], y: Sequence[float], *, x_label: str, y_label: str, label: str) -> str:
    """Draw points, and the line on which both are equal.

    Args:
        x: One place per point, at least one point.
        y: The other.
        x_label: What x is.
        y_label: What y is.
        label: The plot in words.
    """
    low, high = min(*x, *y), max(*x, *y)
    room = 0.05 * (high - low) or 0.05
    with drawing():
        figure, axes = new_figure(WIDTH_IN, WIDTH_IN)
        axes.plot([low - room, high + room], [low - room, high + room], "--", color=INK, linewidth=0.8, alpha=0.6)
        axes.scatter(x, y, s=18, color=PALETTE[0], alpha=0.7, linewidths=0)
        axes.set_aspect("equal")
        axes.grid(True, alpha=0.25)
        axes.set_xlabel(shorten(x_label, 50))
        axes.set_ylabel(shorten(y_label, 50))
        return svg_text(figure, label)


def slopes(
    names: Sequence[str], left: Sequence[float], right: Sequence[float], *, heads: tuple[str, str], label: str
) -> str:
    """Draw a line per name from its left rank to its right one; rank 1 is at the top.

    Args:
        names: At least one.
        left: Ranks.
        right: Ranks.
        heads: What the sides are.
        label: The plot in words.
    """
    with drawing():
        figure, axes = new_figure(WIDTH_IN, 0.9 + 0.2 * max(len(names), 4))
        ends: dict[float, list[str]] = {}
        for name, before, after in zip(names, left, right, strict=True):
            colour = PALETTE[2] if after < before else PALETTE[1] if after > before else "#999999"
            axes.plot([0, 1], [before, after], marker="o", markersize=3.5, linewidth=1.2, color=colour)
            ends.setdefault(after, []).append(name)
        for after, tied in ends.items():
            text = shorten(tied[0], 34) if len(tied) == 1 else f"{shorten(tied[0], 28)} + {len(tied) - 1}"
            axes.annotate(text, (1, after), (6, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set_xticks([0, 1], [shorten(head, 20) for head in heads])
        axes.set_xlim(-0.1, 2.2)
        axes.set_ylim(len(names) + 0.5, 0.5)
        axes.set_ylabel("rank")
        axes.spines["bottom"].set_visible(False)
        return svg_text(figure, label)


def _name_rows(axes: Axes, y_label: str, n_rows: int) -> None:
    """Label the rows, if the label is not longer than the rows are high."""
    axes.set_ylabel(shorten(y_label, max(4 * n_rows, 10)))
