"""Groups of questions: ranks on one group in bands, and what becomes of them on another."""

from __future__ import annotations

import pytest

from kohaku_ray.evaluation.compare import rank_bands, split_of
from kohaku_ray.evaluation.metrics import Score
from kohaku_ray.pages.score_text import split_tables


def scored(*values: float) -> tuple[Score, ...]:
    return tuple(Score(value, {}, 10, 0) for value in values)


def test_bands_follow_the_ranks_on_the_first_group():
    public = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    private = [0.6, 0.8, 0.75, 0.6, 0.4, 0.5, 0.3]
    split = split_of("split", {"public": scored(*public), "private": scored(*private)})
    first, second = rank_bands(split, "private")
    assert (first.name, first.n, second.name, second.n) == ("1 to 5", 5, "6 to 7", 2)
    assert (first.first, first.second) == pytest.approx((0.7, 0.63))
    assert first.difference == pytest.approx(-0.07)
    assert (second.first, second.second, second.difference) == pytest.approx((0.35, 0.4, 0.05))
    # ranks on private: 3.5, 1, 2, 3.5, 6, 5, 7
    assert first.moved == pytest.approx((2.5 + 1 + 1 + 0.5 + 1) / 5)
    assert second.moved == pytest.approx((1 + 0) / 2)
    assert first.sd == pytest.approx(0.1396424)


def test_a_band_of_one_has_no_deviation_and_tied_ranks_stand_in_one_band():
    split = split_of("by", {"a": scored(*[0.5] * 5, 0.1), "b": scored(*[0.4] * 5, 0.3)})
    bands = rank_bands(split, "b")
    assert [(band.name, band.n, band.sd is None) for band in bands] == [("1 to 5", 5, False), ("6", 1, True)]


def test_few_files_have_no_table_of_bands():
    for n, wanted in ((5, False), (6, True)):
        split = split_of("by", {"a": scored(*[at / 10 for at in range(n)]), "b": scored(*[0.1] * n)})
        text = "\n".join(split_tables([f"f{at}" for at in range(n)], range(n), split))
        assert ("ranks moved" in text) == wanted
