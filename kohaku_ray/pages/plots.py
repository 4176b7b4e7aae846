"""Plots as SVG text: the same numbers give the same bytes.

Text and axes are ``currentColor``, so that a plot inside a page is readable on light and on dark. Colours are Okabe and
Ito's, which colour-blind readers can distinguish; every bar also carries its number.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kohaku_ray.pages.text import visible

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

LEAST_LABELLED = 0.07
"""Share of the highest bar; a thinner layer has no room for its number."""

MOST_TICKS = 14

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


def svg_text(figure: Figure, label: str) -> str:
    """Write a figure as an ``<svg>`` element for a page, scalable and with a text label.

    Args:
        figure: Drawn under ``drawing``.
        label: Description for readers who cannot see it.
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


def shorten(text: str, n_chars: int) -> str:
    """Shorten a name to fit beside a plot: its middle is cut, both ends stay."""
    text = " ".join(visible(text).split())
    n_end = n_chars // 2
    return text if len(text) <= n_chars else f"{text[: n_chars - n_end - 1].rstrip()}…{text[-n_end:].lstrip()}"


def legend_name(text: str) -> str:
    """Make a name fit for a legend, which hides names that begin with an underscore."""
    text = visible(text)
    return f" {text}" if text.startswith("_") else text


def grouped_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], *, x_label: str, y_label: str, label: str
) -> str:
    """Draw shares between 0 and 1 side by side, each with its number.

    Args:
        labels: Names of the groups.
        series: One value per group, by name.
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
        series: One count per bar, by name; series of zeros are left out.
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
            shown = [f"{n:,}" if n >= LEAST_LABELLED * max(total.max(), 1) else "" for n in counts]
            axes.bar_label(bars, shown, label_type="center", fontsize=8, color="black")
            base += counts
        every = -(-len(labels) // MOST_TICKS)
        axes.set_xticks(np.arange(len(labels))[::every], [visible(text) for text in labels[::every]])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(figure, axes, x_label, y_label, len(drawn))
        return svg_text(figure, label)


def share_points(points: Sequence[tuple[float, float, int]], *, x_label: str, y_label: str) -> str:
    """Draw shares against shares, each with its number of cases, and the line where both are equal.

    Args:
        points: Both shares, between 0 and 1, and the number of cases.
        x_label: Name of the first share.
        y_label: Name of the second one.
    """
    with drawing():
        figure, axes = new_figure()
        axes.plot([0, 1], [0, 1], color=PALETTE[7], linestyle="--", linewidth=1)
        most = max(n for _, _, n in points)
        for x, y, n in points:
            axes.scatter([x], [y], s=20 + 180 * n / most, color=PALETTE[0], alpha=0.75, clip_on=False, zorder=3)
            axes.annotate(f"{n:,}", (x, y), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.08)
        _finish(figure, axes, x_label, y_label, 1)
        said = "; ".join(f"{x:.2f}: {y:.2f} of {n}" for x, y, n in points)
        return svg_text(figure, f"{y_label} by {x_label}. {said}")


def ranges(series: Mapping[str, npt.ArrayLike], *, x_label: str, label: str) -> str:
    """Draw the spread of counts: a line from the 5th to the 95th percentile, a box over the middle half, the median.

    Args:
        series: Non-negative numbers by name, at least one of each.
        x_label: Quantity and unit; the axis is logarithmic above 1.
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
