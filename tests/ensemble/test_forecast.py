"""Forecasts from pairs of members, against ensembles that are really voted over."""

import numpy as np
import pytest
from kit.rows import check_rows

from kohaku_ray.ensemble.pool import pool_ballots
from kohaku_ray.ensemble.rule import Ballot
from kohaku_ray.ensemble.settings import VoteRule
from kohaku_ray.ensemble.study import Marks, forecast, members_differ, subsamples
from kohaku_ray.ensemble.vote import vote_pool

SIZES = [1, 2, 3, 5, 9, 15]
RULES = [VoteRule(), VoteRule(ignore_blank=False)]


def asked(rng, n_questions, n_members):
    """Answers of a model that is not the forecast's: logits of difficulty and of doubt, wrong answers by Zipf's law."""
    ease, doubt = rng.normal(0.2, 1.5, (n_questions, 1)), rng.normal(-0.5, 1.0, (n_questions, 1))
    shape = (n_questions, n_members)
    is_right = rng.random(shape) < 1.0 / (1.0 + np.exp(-ease))
    is_blank = ~is_right & (rng.random(shape) < 1.0 / (1.0 + np.exp(-doubt)))
    texts = np.where(is_right, "right", np.where(is_blank, "", np.char.add("no", rng.zipf(1.8, shape).astype(str))))
    return [[Ballot(text) for text in row] for row in texts.tolist()], is_right


def voted(pool, size, rule):
    marks = Marks(pool, by_value={"right": lambda _, value: float(value == "right")})
    drawn = subsamples(pool.n_members, size, 64, seed=size)
    return marks.score(vote_pool(pool, drawn, [rule]))["right"].mean()


@pytest.mark.parametrize("rule", RULES)
def test_two_members_tell_what_fifteen_would_score(rule):
    ballots, is_right = asked(np.random.default_rng(3), 2_000, 15)
    told = forecast(pool_ballots([row[:2] for row in ballots]), is_right[:, :2], SIZES, rule)
    pool = pool_ballots(ballots)
    assert told == pytest.approx([voted(pool, size, rule) for size in SIZES], abs=0.03)


@check_rows(
    ("rows", "right", "share"),
    [
        ([["a", "a"]] * 5, [[True, True]] * 5, 1.0),
        ([["a", "a"]] * 5, [[False, False]] * 5, 0.0),
        ([["", ""]] * 5, [[False, False]] * 5, 0.0),
        ([["a", ""]] * 5, [[False, False]] * 5, 0.0),
        ([["a", "b"]] * 5, [[False, False]] * 5, 0.0),
        ([["a", "a"], ["b", "b"], ["c", "c"], ["", ""]], [[True] * 2, [False] * 2, [True] * 2, [False] * 2], 0.5),
    ],
)
def test_members_that_agree_on_every_question_forecast_what_they_score(rows, right, share):
    pool = pool_ballots([[Ballot(text) for text in row] for row in rows])
    assert forecast(pool, np.array(right), [1, 15], VoteRule()) == pytest.approx([share, share], abs=0.02)


def test_a_vote_gains_what_two_members_that_disagree_by_chance_promise():
    # Independent members, right with 0.6, all wrong answers different: any two that agree are right
    rng = np.random.default_rng(0)
    is_right = rng.random((500, 2)) < 0.6
    ballots = [[Ballot("right" if ok else f"no {i}-{j}") for j, ok in enumerate(row)] for i, row in enumerate(is_right)]
    assert forecast(pool_ballots(ballots), is_right, [15], VoteRule())[0] > 0.97


def test_a_failed_member_is_no_abstention_in_a_forecast():  # 34.5
    ballots, is_right = asked(np.random.default_rng(3), 2_000, 2)
    told = forecast(pool_ballots(ballots), is_right, SIZES, VoteRule(ignore_blank=False))
    failed = [[*row, None] for row in ballots]
    seen = np.column_stack([is_right, np.zeros(len(ballots), dtype=bool)])
    assert forecast(pool_ballots(failed), seen, SIZES, VoteRule(ignore_blank=False)) == pytest.approx(told)


def test_members_of_one_kind_are_seldom_said_to_differ_and_others_always():
    rng = np.random.default_rng(0)
    p = rng.random((400, 41, 1))
    verdicts = [members_differ(rng.random((41, 5)) < item) < 0.05 for item in p]
    assert 0.02 < np.mean(verdicts) < 0.08
    assert members_differ(rng.random((41, 3)) < [0.2, 0.5, 0.9]) < 1e-4
    assert members_differ(np.ones((3, 2), dtype=bool)) == 1.0


def test_cochrans_q_of_a_published_example():
    # Conover, Practical Nonparametric Statistics, 3rd edition, p. 253: three sportswriters, 12 games, Q = 2.8
    expected = "111 111 010 110 000 111 111 110 001 010 111 111"
    is_right = np.array([[digit == "1" for digit in game] for game in expected.split()])
    assert members_differ(is_right) == pytest.approx(np.exp(-2.8 / 2))  # chi square with two degrees of freedom
