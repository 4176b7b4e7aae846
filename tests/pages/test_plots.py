import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from kit.rows import check_rows

from kohaku_ray.pages.difference_plots import bin_edges, difference_points, histogram, named_points, row_bars
from kohaku_ray.pages.plots import (
    INK,
    PALETTE,
    Band,
    PlotLine,
    banded_lines,
    error_bars,
    frontier,
    grouped_bars,
    heat_map,
    lines,
    ranges,
    scatter,
    share_bars,
    share_points,
    shorten,
    slopes,
    stacked_bars,
)

HOSTILE = "_<script>alert(1)</script>\"'&\x00\u202e $\\frac{x$ \\1"


def stack(labels, series, label="Agreement"):
    colours = dict.fromkeys(series, PALETTE[0])
    return stacked_bars(labels, series, colours, x_label="members", y_label="questions", label=label)


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def test_a_matplotlibrc_changes_nothing():
    import matplotlib as mpl

    first = stack(["1"], {"right": [3]})
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert stack(["1"], {"right": [3]}) == first


def test_stacks_name_what_is_thick_enough_and_leave_out_what_is_not_there():
    shown = texts(stack(["1", "2"], {"right": [100, 1], "wrong": [0, 2], "blank": [0, 0]}))
    assert {"100", "right", "wrong", "members", "questions"} <= set(shown)
    assert "blank" not in shown
    labels = [f"n{number}" for number in range(100)]
    assert 5 <= len(set(texts(stack(labels, {"right": [1] * 100}))) & set(labels)) <= 14


@pytest.mark.parametrize(("values", "median"), [([100, 200, 3000], "200"), ([0, 0, 0], "0"), ([5], "5")])
def test_ranges_name_the_median(values, median):
    shown = texts(ranges({"prompt": np.array(values)}, x_label="tokens (log scale)", label="Tokens"))
    assert f"prompt: median {median}" in shown
    assert "tokens (log scale)" in shown
    assert not any("$" in text for text in shown if text)


PLOTS = {
    "grouped_bars": lambda name: grouped_bars(["value"], {name: [0.5], "b": [1]}, x_label="x", y_label="y", label=name),
    "small_multiples": lambda name: banded_lines(
        [Band(name, [1, 3], [0.5, 0.6], [0.1, 0.1]), *(Band(other, [1], [0.4], [0.1]) for other in "bcde")],
        x_label="size", y_label="score", label=name,
    ),
    "stacked_bars": lambda name: stack(["1"], {name: [2], "b": [1]}, name),
    "ranges": lambda name: ranges({name: [1, 2]}, x_label="tokens", label=name),
    "heat_map": lambda name: heat_map(
        [name, "b"], ["4", "8"], np.array([[0.5, np.nan], [0.7, 0.9]]), [["0.5", "–"], ["0.7", "0.9"]],
        x_label="k", y_label="model", label=name,
    ),
    "lines": lambda name: lines([PlotLine(name, [(1, 2), (2, 3)])], x_label="n", y_label="rate", label=name),
    "banded_lines": lambda name: banded_lines(
        [Band(name, [1, 3], [0.5, 0.6], [0.1, np.nan]), Band("b", [1], [0.4], [0.1])],
        x_label="size", y_label="score", label=name,
    ),
    "error_bars": lambda name: error_bars(
        [name, "b"], [0.5, 0.6], [0.1, np.nan], x_label="score", y_label="model", label=name
    ),
    "share_bars": lambda name: share_bars(
        [name, "b"], {name: [0.1, 0.2], "none": [0.0, 0.0]}, {name: PALETTE[0], "none": PALETTE[1]},
        x_label="share", label=name,
    ),
    "frontier": lambda name: frontier(
        {name: [(10, 0.5), (2000, 0.7)], "b": [(5, 0.4)]}, [(5, 0.4, "1"), (10, 0.5, "2")],
        x_label="tokens", y_label="score", label=name,
    ),
    "scatter": lambda name: scatter([0.5], [0.6], x_label=name, y_label="b", label=name),
    "slopes": lambda name: slopes([name, "b"], [1, 2], [2, 1], heads=("public", "private"), label=name),
    "row_bars": lambda name: row_bars([name, "b"], {name: [0.5, np.nan], "k": [1, 0]}, x_label="rate", label=name),
    "named_points": lambda name: named_points({name: (0.1, 0.2), "b": (0, 0)}, x_label="x", y_label="y", label=name),
    "difference_points": lambda name: difference_points([0.5], [0.6], x_label=name, y_label="b", label=name),
    "histogram": lambda name: histogram([0.5, 0.5], x_label=name, y_label="b", label=name),
}  # fmt: skip


@check_rows("plot", PLOTS)
def test_every_plot_is_steady_scales_takes_the_pages_ink_and_shows_hostile_names_as_text(plot):
    svg = PLOTS[plot](HOSTILE)
    assert svg == PLOTS[plot](HOSTILE)
    root = ET.fromstring(svg)
    assert (root.attrib["role"], root.attrib["viewBox"][:4]) == ("img", "0 0 ")
    assert "width" not in root.attrib
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert root.attrib["aria-label"] == "_<script>alert(1)</script>\"'&␀[U+202E] $\\frac{x$ \\1"
    assert any("<script>" in (text or "") for text in texts(svg))
    assert "currentColor" in svg
    assert INK not in svg
    assert "<metadata" not in svg
    assert not re.search(r'(?:href|src)="(?!#)', svg)


@check_rows(
    ("values", "step"),
    [([-0.213, 0.098], 0.05), ([0.0, 0.0], 0.001), ([-3.0], 0.001), ([0.1, 0.3], 0.02), ([-0.4, 0.0], 0.05)],
)
def test_bins_are_round_hold_every_value_and_part_at_0(values, step):
    edges = bin_edges(values)
    assert np.diff(edges) == pytest.approx(step)
    assert edges[0] <= min(values)
    assert max(values) < edges[-1]
    assert np.histogram(values, edges)[0].sum() == len(values)
    assert not any(low < -1e-12 and high > 1e-12 for low, high in pairwise(edges))
    assert len(edges) <= 13


def test_a_histogram_counts_and_names_its_axes():
    svg = histogram([-0.2, -0.01, 0.01, 0.011, 0.012], x_label="difference", y_label="teams", label="d")
    assert {"1", "3", "difference", "teams"} <= set(texts(svg))


def test_bars_that_lie_carry_their_per_cent_and_leave_out_what_is_not_there():
    svg = row_bars(["Grok", "nano"], {"4": [0.092, 0.217], "8": [0.115, np.nan]}, x_label="error rate", label="e")
    assert [text for text in texts(svg) if text and re.search(r"\.\d %", text)] == ["9.2 %", "21.7 %", "11.5 %"]
    assert {"Grok", "nano", "4", "8", "error rate"} <= set(texts(svg))


def test_slopes_show_whoever_falls_out_of_those_that_are_drawn():
    svg = slopes(["a", "b"], [1, 2], [1, 60], heads=("public", "private"), label="r")
    assert {"a", "b", "60"} <= set(texts(svg)), "the axis reaches rank 60"


def test_bars_carry_their_numbers_and_axis_labels():
    svg = grouped_bars(["value", "refs"], {"a": [0.25, 1.0]}, x_label="part", y_label="mean", label="Scores")
    assert {"value", "refs", "part", "mean", "0.25", "1.00"} <= set(texts(svg))


def test_shares_carry_their_numbers_of_cases_and_hostile_axes():
    svg = share_points([(0.5, 0.4, 3), (0.9, 1, 7000)], x_label=HOSTILE, y_label="right")
    assert {"3", "7,000", "right"} <= set(texts(svg))
    assert ET.fromstring(svg).attrib["aria-label"].endswith(". 0.50: 0.40 of 3; 0.90: 1.00 of 7000")


def test_heat_maps_write_their_numbers_and_grow_with_their_columns():
    assert {"0.5", "–", "0.7", "0.9", "k", "4", "8", "model"} <= set(texts(PLOTS["heat_map"]("a")))
    wide = heat_map(
        ["a"], [str(n) for n in range(12)], np.zeros((1, 12)), [["0"] * 12], x_label="", y_label="", label=""
    )
    assert "style" not in ET.fromstring(PLOTS["heat_map"]("a")).attrib
    assert int(re.fullmatch(r"max-width: (\d+)px; min-width: \d+px", ET.fromstring(wide).attrib["style"])[1]) > 440


def test_a_heat_maps_colours_span_the_smallest_visible_difference():
    def scale_of(low: float, high: float, least_span: float) -> list[str]:
        values = np.array([[low, high]])
        names = {"x_label": "", "y_label": "", "label": ""}
        svg = heat_map(["a"], ["1", "2"], values, [["", ""]], least_span=least_span, **names)
        return [text for text in texts(svg) if re.fullmatch(r"-?\d\.\d{3}", text)]

    assert scale_of(0.70, 0.72, 0.0) == ["0.700", "0.710", "0.720"]
    assert scale_of(0.70, 0.72, 0.12) == ["0.650", "0.710", "0.770"], "a difference that is noise has nearly one colour"
    assert scale_of(0.30, 0.90, 0.12) == ["0.300", "0.600", "0.900"]


def test_wide_ranges_are_logarithmic_and_legends_name_lines():
    svg = banded_lines([Band("a", [1, 10, 100], [0.1, 0.2, 0.3], [0, 0, 0])], x_label="n", y_label="s", label="")
    places = [float(x) for x in re.findall(r'<use xlink:href="#\w+" x="([\d.]+)" y="[\d.]+"', svg)]
    left, middle, right = places[:3]
    assert middle - left == pytest.approx(right - middle, abs=0.01)
    assert {"a", "b"} <= set(texts(PLOTS["banded_lines"]("a")))


def test_names_beside_a_plot_are_cut():
    assert shorten("a" * 40 + "b", 30) == "a" * 14 + "…" + "a" * 14 + "b"
    assert shorten("a\n b", 30) == "a b"
