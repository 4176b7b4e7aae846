"""Groups of questions: ranks on one group in bands, and what becomes of them on another."""

from __future__ import annotations

import numpy as np
import pytest
from kit.installed import OnDemand

from kohaku_ray.evaluation.compare import greatest_moves, rank_bands, shift_of, split_of
from kohaku_ray.evaluation.metrics import Score
from kohaku_ray.pages.score_text import split_tables

stats = OnDemand("scipy.stats")

PUBLIC = [0.90, 0.80, 0.70, 0.60, 0.50, 0.40, 0.30]
PRIVATE = [0.60, 0.80, 0.75, 0.60, 0.40, 0.50, 0.30]
"""Differences -0.30, 0, +0.05, 0, -0.10, +0.10, 0; ranks on private 3.5, 1, 2, 3.5, 6, 5, 7."""


def scored(*values: float) -> tuple[Score, ...]:
    return tuple(Score(value, {}, 10, 0) for value in values)


def split_by(public, private):
    return split_of("split", {"public": scored(*public), "private": scored(*private)})


def test_a_shift_has_the_ten_statistics_of_the_differences():
    shift = shift_of(split_by(PUBLIC, PRIVATE), "private")
    assert (shift.n, shift.n_down, shift.n_up) == (7, 2, 2), "three score the same on both"
    assert (shift.mean, shift.median) == pytest.approx((-0.25 / 7, 0.0))
    assert (shift.least, shift.greatest) == pytest.approx((-0.30, 0.10))
    squares = 0.30**2 + 0.05**2 + 2 * 0.10**2 - 0.25**2 / 7
    assert shift.sd == pytest.approx((squares / 6) ** 0.5)
    # around 0.6: 0.3 × −0.3 + 0.1 × 0.05 + −0.1 × −0.1 + −0.2 × 0.1 = −0.095; the public squares sum to 0.28
    assert shift.correlation.pearson == pytest.approx(-0.095 / (0.28 * squares) ** 0.5)


@pytest.mark.parametrize("n", [3, 40, 66])
def test_a_shift_agrees_with_numpy_and_scipy(n):
    rng = np.random.default_rng(n)
    public, private = rng.random(n), rng.random(n)
    shift, difference = shift_of(split_by(public, private), "private"), private - public
    assert (shift.mean, shift.sd) == pytest.approx((difference.mean(), difference.std(ddof=1)))
    assert shift.median == pytest.approx(np.median(difference))
    assert shift.correlation.pearson == pytest.approx(stats.pearsonr(public, difference).statistic)
    assert shift.n_down + shift.n_up == n


def test_a_shift_of_one_file_has_no_deviation_and_no_correlation():
    shift = shift_of(split_by([0.5], [0.4]), "private")
    assert (shift.n, shift.sd, shift.correlation.pearson, shift.n_down) == (1, None, None, 1)
    assert shift.median == shift.least == shift.greatest == pytest.approx(-0.1)


def test_the_greatest_moves_are_by_ranks_and_of_equal_ones_the_better_first():
    split = split_by(PUBLIC, PRIVATE)
    # moves from public to private: 1 − 3.5, 2 − 1, 3 − 2, 4 − 3.5, 5 − 6, 6 − 5, 0
    assert greatest_moves(split, "private") == ((1, 2, 5, 3), (0, 4))
    assert greatest_moves(split, "private", n=2) == ((1, 2), (0, 4))
    assert greatest_moves(split_by(PUBLIC, PUBLIC), "private") == ((), ())
    assert [len(some) for some in greatest_moves(split_by(range(20), range(20, 0, -1)), "private")] == [5, 5]


def test_bands_follow_the_ranks_on_the_first_group():
    public = [0.95 - number / 20 for number in range(12)]
    private = [value + (0.04 if position % 2 else -0.02) for position, value in enumerate(public)]
    private[0] = public[0] - 0.12  # it falls behind the second and the third
    first, second = rank_bands(split_by(public, private), "private")
    assert (first.name, first.n, second.name, second.n) == ("1 to 10", 10, "11 to 12", 2)
    assert (first.first, second.first) == pytest.approx((np.mean(public[:10]), 0.425))
    difference = np.subtract(private, public)
    assert first.difference == pytest.approx((-0.12 + 5 * 0.04 - 4 * 0.02) / 10)
    assert first.sd == pytest.approx(difference[:10].std(ddof=1))
    assert (first.median, second.median) == pytest.approx((0.01, 0.01)), "half way between -0.02 and +0.04"
    assert (second.second, second.difference) == pytest.approx((0.435, 0.01))
    moved = np.abs(stats.rankdata(-np.round(private, 9)) - np.arange(1, 13))
    assert (first.moved, second.moved) == pytest.approx((moved[:10].mean(), moved[10:].mean()))


def test_the_bands_are_those_of_the_paper_and_what_is_left():
    public = np.linspace(1, 0, 130)
    bands = rank_bands(split_by(public, public / 2), "private")
    names = [(band.name, band.n) for band in bands]
    assert names == [
        ("1 to 10", 10), ("11 to 20", 10), ("21 to 30", 10), ("31 to 50", 20), ("51 to 100", 50), ("101 to 130", 30),
    ]  # fmt: skip
    assert bands[0].median == pytest.approx(-np.median(public[:10]) / 2)


def test_a_band_of_one_has_no_deviation_and_tied_ranks_stand_in_one_band():
    split = split_of("by", {"a": scored(*[0.5] * 10, 0.1), "b": scored(*[0.4] * 10, 0.3)})
    bands = rank_bands(split, "b")
    assert [(band.name, band.n, band.sd is None) for band in bands] == [("1 to 10", 10, False), ("11", 1, True)]


def test_few_files_have_no_table_of_bands():
    for n, wanted in ((10, False), (11, True)):
        split = split_of("by", {"a": scored(*[number / 20 for number in range(n)]), "b": scored(*[0.1] * n)})
        text = "\n".join(split_tables([f"f{number}" for number in range(n)], range(n), split))
        assert ("ranks moved" in text) == wanted
