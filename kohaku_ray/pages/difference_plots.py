"""Plots of differences between groups and of error rates, in the style of ``plots``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np

from kohaku_ray.index.arrays import F64
from kohaku_ray.pages.plots import (
    HEIGHT_IN,
    INK,
    PALETTE,
    WIDTH_IN,
    Plot,
    add_legend,
    drawing,
    legend_name,
    name_rows,
    new_figure,
    nice_step,
    shorten,
    svg_text,
)

UP, DOWN, SAME = PALETTE[2], PALETTE[1], PALETTE[7]
"""Colours of what rises, falls and stays."""

_MARKERS = "os^DvP*X"
_N_BINS = 10  # about


@drawing()
def row_bars(
    names: Sequence[str], series: Mapping[str, Sequence[float]], *, x_label: str, y_label: str = "", label: str
) -> Plot:
    """Draw shares of 1 as bars that lie, each with its per cent: a bar per series for each name, from the top.

    NaN: there is no such bar.
    """
    height = 0.8 / len(series)
    figure, axes = new_figure(WIDTH_IN, 0.95 + 0.2 * len(names) * max(0.75 * len(series), 1))
    for index, ((name, shares), colour) in enumerate(zip(series.items(), cycle(PALETTE), strict=False)):
        heights = np.arange(len(names)) + (index - (len(series) - 1) / 2) * height
        bars = axes.barh(heights, np.nan_to_num(shares), height * 0.92, color=colour, label=legend_name(name))
        texts = ["" if np.isnan(share) else f"{100 * share:.1f} %" for share in shares]
        axes.bar_label(bars, texts, padding=2, fontsize=7)
    name_rows(axes, names)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda number, _: f"{100 * number:.0f} %")
    axes.set_xlabel(x_label)
    axes.set_ylabel(shorten(y_label, max(4 * len(names), 10)))
    if len(series) > 1:
        add_legend(figure, min(len(series), 4))
    return svg_text(figure, label)


@drawing()
def named_points(points: Mapping[str, tuple[float, float]], *, x_label: str, y_label: str, label: str) -> Plot:
    """Draw shares of 1 against each other: a point per name, of its own colour and mark."""
    columns = 2 if max(map(len, points)) <= 26 else 1
    figure, axes = new_figure(WIDTH_IN, HEIGHT_IN + 0.17 * -(-len(points) // columns))
    for number, (name, (x, y)) in enumerate(points.items()):
        colour, marker = PALETTE[number % len(PALETTE)], _MARKERS[(number + number // len(PALETTE)) % len(_MARKERS)]
        named = legend_name(shorten(name, 54 // columns))
        axes.scatter([x], [y], s=42, color=colour, marker=marker, label=named, clip_on=False, zorder=3)
    axes.margins(0.1)
    axes.xaxis.set_major_formatter(_per_cent)
    axes.yaxis.set_major_formatter(_per_cent)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, alpha=0.25)
    add_legend(figure, columns)
    return svg_text(figure, label)


def _per_cent(share: float, _: object) -> str:
    return f"{100 * share:.3g} %"


@drawing()
def difference_points(
    x: Sequence[float], differences: Sequence[float], *, x_label: str, y_label: str, label: str
) -> Plot:
    """Draw differences against scores: what rises is green, what falls orange, what stays grey.

    Solid: no difference; dashed: the least-squares line, where the scores differ.
    """
    figure, axes = new_figure()
    colours = [UP if each > 0 else DOWN if each < 0 else SAME for each in differences]
    axes.axhline(0, color=INK, linewidth=0.8)
    if np.ptp(x) > 0:
        slope, start = np.polyfit(x, differences, 1)
        ends = np.array([min(x), max(x)])
        axes.plot(ends, slope * ends + start, "--", color=INK, linewidth=0.8, alpha=0.6)
    axes.scatter(x, differences, s=20, c=colours, alpha=0.85, linewidths=0, zorder=3)
    axes.set_xlabel(shorten(x_label, 50))
    axes.set_ylabel(shorten(y_label, 36))
    axes.grid(True, alpha=0.25)
    return svg_text(figure, label)


@drawing()
def histogram(values: Sequence[float], *, x_label: str, y_label: str, label: str) -> Plot:
    """Draw how many differences lie in each of about ten bins, of which 0 is an edge; dashed: their mean."""
    from matplotlib.ticker import MaxNLocator

    edges = bin_edges(values)
    counts, _ = np.histogram(values, edges)
    figure, axes = new_figure()
    colours = [UP if left >= 0 else DOWN for left in edges[:-1]]
    bars = axes.bar(edges[:-1], counts, np.diff(edges) * 0.94, align="edge", color=colours)
    axes.bar_label(bars, [f"{n:,}" if n else "" for n in counts], padding=1, fontsize=8)
    axes.axvline(float(np.mean(values)), linestyle="--", color=INK, linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.12)
    axes.set_xlabel(shorten(x_label, 50))
    axes.set_ylabel(y_label)
    axes.yaxis.grid(True, alpha=0.25)
    return svg_text(figure, label)


def bin_edges(values: Sequence[float]) -> F64:
    """Edges of about ten equal bins around all values: multiples of 1, 2 or 5 times a power of ten."""
    low, high = min(values), max(values)
    step = nice_step(max(high - low, 0.01) / _N_BINS)
    first, last = np.floor(low / step + 1e-9), np.floor(high / step + 1e-9) + 1
    return np.arange(first, last + 1, dtype=np.float64) * step
