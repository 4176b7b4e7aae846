"""Races keep their guarantee: exactly, over every order of small sets, and on recorded runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.race import Race, mean_bounds

ERRORS = (0.05, 0.2, 0.5)
grades = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def tables(n_cells: int, n_questions: int):
    row = st.lists(grades, min_size=n_questions, max_size=n_questions)
    return st.lists(row, min_size=n_cells, max_size=n_cells).map(np.array)


def run(scores: np.ndarray, shard: int = 1, **rule) -> Race:
    """Race the rows of a table, whose columns are in the order of the race."""
    n = scores.shape[1]
    race = Race(np.zeros(n), np.ones(n), **rule)
    for row in range(len(scores)):
        race.enter(str(row))
    for first in range(0, n, shard):
        race.observe({name: scores[int(name), first : first + shard] for name in race.in_play})
    return race


@settings(max_examples=10, deadline=None)
@given(tables(3, 5), st.sampled_from([0.0, 0.1]), st.sampled_from(ERRORS))
def test_over_every_order_the_best_cell_is_dropped_no_more_often_than_the_error(scores, tolerance, error):
    best, orders = str(scores.mean(axis=1).argmax()), list(itertools.permutations(range(5)))
    n_lost = sum(best in run(scores[:, order], error=error, tolerance=tolerance).left for order in orders)
    assert n_lost / len(orders) <= error


def test_the_best_cell_is_dropped_sometimes_within_the_error_and_its_rival_more_often():
    """A rule that drops nothing would keep the guarantee too."""
    best, other = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    scores, orders = np.stack([best, other]), list(itertools.permutations(range(7)))[::9]
    lost = [("0" in run(scores[:, order], error=0.5, tolerance=0.0).left) for order in orders]
    dropped = [("1" in run(scores[:, order], error=0.5, tolerance=0.0).left) for order in orders]
    assert 0.05 < np.mean(lost) <= 0.5
    assert np.mean(dropped) > 0.5


@settings(max_examples=25, deadline=None)
@given(tables(1, 6), st.sampled_from(ERRORS))
def test_over_every_order_the_bounds_of_a_mean_hold_at_all_times(scores, error):
    orders, mean = np.array(list(itertools.permutations(range(6)))), scores.mean()
    x, ends = scores[0][orders], (np.zeros(6), np.ones(6))
    failed = np.zeros((2, len(x)), dtype=bool)
    for n in range(1, 7):
        lower, upper = mean_bounds(x[:, :n], *ends, error)
        failed |= np.stack([lower > mean + 1e-9, upper < mean - 1e-9])
        assert (lower <= upper + 1e-9).all()
    assert (failed.mean(axis=1) <= error).all()


def test_bounds_close_around_the_mean_and_are_exact_at_the_end():
    x = np.random.default_rng(0).binomial(1, 0.7, (1, 400)).astype(float)
    ends = np.zeros(400), np.ones(400)
    widths = []
    for n in (0, 10, 100, 300, 400):
        lower, upper = mean_bounds(x[:, :n], *ends, 0.05)
        assert lower[0] <= x.mean() <= upper[0] + 1e-12
        widths.append(upper[0] - lower[0])
    assert widths[0] == 1.0
    assert widths == sorted(widths, reverse=True)
    assert widths[2] < 0.3
    assert widths[-1] == pytest.approx(0.0, abs=1e-12)


def test_no_statistics_only_cells_out_of_reach_leave():
    scores = np.array([[1.0] * 10, [0.0] * 10, [1.0] * 4 + [0.5] * 6])
    race = Race(np.zeros(10), np.ones(10), error=0.0, tolerance=0.0)
    for name in "012":
        race.enter(name)
    race.observe({name: scores[int(name), :5] for name in "012"})
    assert race.left == {}, "five questions are left, and five would do"
    race = run(scores, error=0.0, tolerance=0.0)
    assert race.left == {"1": "out of reach", "2": "out of reach"}
    assert (race.n_seen("0"), race.n_seen("1"), race.n_seen("2")) == (10, 6, 9)


def test_a_cell_that_can_still_come_within_the_tolerance_is_not_out_of_reach():
    """Two of 101 questions behind with one left: one behind at least, which is 0.0099 of a mean."""
    scores = np.array([[1.0] * 101, [0.0, 0.0] + [1.0] * 99])
    assert run(scores, error=0.0, tolerance=0.01).left == {}
    assert run(scores, error=0.0, tolerance=0.009).left == {"1": "out of reach"}


def test_a_cell_that_has_answered_everything_stays():
    race = run(np.array([[1.0] * 8, [0.0] * 8]), shard=8, error=0.5, tolerance=0.0)
    assert race.left == {}
    assert race.standings()[1].evidence > 2.0


def test_a_tie_of_all_cells_drops_none():
    scores = np.tile(np.random.default_rng(1).random(60), (5, 1))
    race = run(scores, error=0.05, tolerance=0.0)
    assert race.left == {}
    assert [racer.gap[0] for racer in race.standings()] == [0.0] * 5
    assert race.leader == "0"


def test_cells_that_each_crush_the_other_in_turn_leave_one():
    halves = np.array([[1.0] * 40 + [0.0] * 41, [0.0] * 40 + [1.0] * 41])
    race = Race(np.zeros(81), np.ones(81), error=0.5, tolerance=0.0)
    for name in "01":
        race.enter(name)
    race.observe({name: halves[int(name), :80] for name in "01"})
    assert len(race.in_play) == 1


def test_nobody_leaves_a_race_of_one_or_none():
    assert run(np.zeros((1, 30)), error=0.5).left == {}
    race = Race(np.zeros(3), np.ones(3))
    assert (race.observe({}), race.leader, race.standings()) == ([], None, [])


def test_the_same_scores_in_other_portions_give_the_same_evidence():
    scores = np.random.default_rng(3).random((4, 50))
    races = [Race(np.zeros(50), np.ones(50), 1e-9, 0.0) for _ in range(2)]
    for race, shard in zip(races, (30, 1), strict=True):
        for name in "0123":
            race.enter(name)
        for first in range(0, 30, shard):
            race.observe({name: scores[int(name), first : first + shard] for name in "0123"})
    whole, single = (race.standings() for race in races)
    assert [racer.evidence for racer in whole] == pytest.approx([racer.evidence for racer in single])
    assert [racer.bounds[0] for racer in whole] == pytest.approx([racer.bounds[0] for racer in single])


def test_scores_outside_the_ends_of_their_question_are_refused():
    race = Race(np.zeros(2), np.array([1.0, 2.95]))
    race.enter("a")
    race.observe({"a": [1.0]})
    with pytest.raises(DataError, match="cell a: scores 2 to 3 of 2 questions"):
        race.observe({"a": [2.0, 0.0]})
    with pytest.raises(DataError, match="must lie between"):
        race.observe({"a": [3.0]})
    race.observe({"a": [2.95]})


@pytest.mark.parametrize("wide", [False, True])
def test_losers_of_a_large_set_leave_early_and_the_winner_stays(wide):
    """On scores as WattBot's, and as the competition's, where few questions count threefold."""
    rng = np.random.default_rng(4)
    ends = np.where(rng.random(500) < 0.1, 2.95, 1.0) if wide else np.ones(500)
    scores = ends * rng.binomial(1, np.array([0.8, 0.7, 0.55, 0.4])[:, None], (4, 500))
    race = Race(np.zeros(500), ends, 0.05, 0.01)
    for row in range(4):
        race.enter(str(row))
    for first in range(0, 500, 25):
        race.observe({name: scores[int(name), first : first + 25] for name in race.in_play})
    best = str(scores.mean(axis=1).argmax())
    assert best not in race.left
    assert race.n_seen("3") <= (200 if wide else 125)
    assert len(race.left) == 3
