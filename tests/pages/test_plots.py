import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from kohaku_ray.pages.plots import (
    INK,
    PALETTE,
    Band,
    banded_lines,
    error_bars,
    frontier,
    grouped_bars,
    heat_map,
    ranges,
    share_bars,
    shorten,
    stacked_bars,
)

HOSTILE = "_<script>alert(1)</script>\"'&\x00\u202e $\\frac{x$ \\1"


def bars(name="wattbot", label="Scores"):
    return grouped_bars(["value", "refs"], {name: [0.25, 1.0]}, x_label="part", y_label="mean (0 to 1)", label=label)


def stack(labels, series):
    colours = dict.fromkeys(series, PALETTE[0])
    return stacked_bars(labels, series, colours, x_label="members", y_label="questions", label="Agreement")


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def test_bars_carry_their_numbers_and_axis_labels():
    assert {"value", "refs", "part", "mean (0 to 1)", "0.25", "1.00"} <= set(texts(bars()))


def test_a_plot_scales_takes_the_pages_ink_and_says_what_it_shows():
    root = ET.fromstring(bars(label="Scores & parts"))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "Scores & parts"
    assert root.attrib["viewBox"].startswith("0 0 ")
    assert "width" not in root.attrib
    assert "currentColor" in bars()
    assert INK not in bars()


def test_the_same_numbers_give_the_same_bytes_without_date_or_outside_link():
    first = bars()
    assert first == bars()
    assert "<metadata" not in first
    assert not re.search(r'(?:href|src)="(?!#)', first)


def test_a_matplotlibrc_changes_nothing():
    import matplotlib as mpl

    first = bars()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert bars() == first


def test_hostile_names_are_text():
    svg = grouped_bars(["<b>"], {HOSTILE: [0.5], "other": [1]}, x_label="x", y_label="y", label=HOSTILE)
    root = ET.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert root.attrib["aria-label"] == "_<script>alert(1)</script>\"'&␀[U+202E] $\\frac{x$ \\1"
    assert any("<script>alert(1)</script>\"'&␀[U+202E] $\\frac{x$ \\1" in text for text in texts(svg))


def test_stacks_name_what_is_thick_enough_and_leave_out_what_is_not_there():
    shown = texts(stack(["1", "2"], {"right": [100, 1], "wrong": [0, 2], "blank": [0, 0]}))
    assert {"100", "right", "wrong"} <= set(shown)
    assert "blank" not in shown


def test_many_bars_keep_few_ticks():
    labels = [f"n{at}" for at in range(100)]
    shown = texts(stack(labels, {"right": [1] * 100}))
    assert 5 <= len(set(shown) & set(labels)) <= 14


@pytest.mark.parametrize(("values", "median"), [([100, 200, 3000], "200"), ([0, 0, 0], "0"), ([5], "5")])
def test_ranges_name_the_median(values, median):
    shown = texts(ranges({"prompt": np.array(values)}, x_label="tokens (log scale)", label="Tokens"))
    assert f"prompt: median {median}" in shown
    assert "tokens (log scale)" in shown
    assert not any("$" in text for text in shown if text)


NEW_PLOTS = {
    "heat_map": lambda name: heat_map(
        [name, "b"], ["4", "8"], np.array([[0.5, np.nan], [0.7, 0.9]]), [["0.5", "–"], ["0.7", "0.9"]],
        x_label="k", y_label="model", label=name,
    ),
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
}  # fmt: skip


@pytest.mark.parametrize("plot", NEW_PLOTS)
def test_every_plot_is_steady_and_shows_hostile_names_as_text(plot):
    svg = NEW_PLOTS[plot](HOSTILE)
    assert svg == NEW_PLOTS[plot](HOSTILE)
    root = ET.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert root.attrib["aria-label"] == "_<script>alert(1)</script>\"'&␀[U+202E] $\\frac{x$ \\1"
    assert any("<script>" in (text or "") for text in texts(svg))
    assert INK not in svg
    assert not re.search(r'(?:href|src)="(?!#)', svg)


def test_heat_maps_write_their_numbers_and_grow_with_their_columns():
    assert {"0.5", "–", "0.7", "0.9", "k", "4", "8", "model"} <= set(texts(NEW_PLOTS["heat_map"]("a")))
    wide = heat_map(
        ["a"], [str(n) for n in range(12)], np.zeros((1, 12)), [["0"] * 12], x_label="", y_label="", label=""
    )
    assert "style" not in ET.fromstring(NEW_PLOTS["heat_map"]("a")).attrib
    assert int(re.fullmatch(r"max-width: (\d+)px; min-width: \d+px", ET.fromstring(wide).attrib["style"])[1]) > 440


def test_wide_ranges_are_logarithmic_and_legends_name_lines():
    svg = banded_lines([Band("a", [1, 10, 100], [0.1, 0.2, 0.3], [0, 0, 0])], x_label="n", y_label="s", label="")
    places = [float(x) for x in re.findall(r'<use xlink:href="#\w+" x="([\d.]+)" y="[\d.]+"', svg)]
    left, middle, right = places[:3]
    assert middle - left == pytest.approx(right - middle, abs=0.01)
    assert {"a", "b"} <= set(texts(NEW_PLOTS["banded_lines"]("a")))


def test_names_beside_a_plot_are_cut():
    assert shorten("a" * 40 + "b", 30) == "a" * 14 + "…" + "a" * 14 + "b"
    assert shorten("a\n b", 30) == "a b"
