"""Forecast of larger ensembles from two members or more: a model of how questions differ, fitted to pairs of members.

A question has a probability p of a right answer; if it is not right, it is an abstention with probability s; otherwise
it is one of the wrong answers, whose shares are broken off a stick (GEM, Ewens 1972). Over questions p and s have beta
distributions. Their means and second moments, and the concentration of the wrong answers, are what pairs of members
show: how often both are right, both abstain, both give the same wrong answer. Members then vote on drawn questions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kohaku_ray.ensemble.pool import Pool, pool_ballots
from kohaku_ray.ensemble.rule import Ballot, VoteRule
from kohaku_ray.ensemble.study import Marks
from kohaku_ray.ensemble.vote import vote_pool
from kohaku_ray.index.arrays import F64, I64, Mask

N_DRAWN = 4_000  # questions drawn from the model; the error of a share is at most 0.008
_STICKS = 64  # wrong answers with shares of their own; what is left of the stick is new answers
_LEAST = 1e-9  # a distribution without variance has a very high concentration, one without agreement a very low one


def forecast(pool: Pool, is_right: Mask, sizes: Sequence[int], rule: VoteRule) -> list[float]:
    """Forecast the share of questions that ensembles of exchangeable members answer right.

    Args:
        pool: The recorded ballots, of two members or more.
        is_right: Shape ``(n_questions, n_members)``: which answers are right. An abstention may be.
        sizes: Numbers of members; each may be larger than the pool's.
        rule: How the ensembles vote.
    """
    labels = _draw(pool, is_right, max(sizes))
    ballots = [[Ballot(name) for name in row] for row in np.where(labels < 0, "", labels.astype(str)).tolist()]
    drawn = pool_ballots(ballots)
    marks = Marks(drawn, by_value={"right": lambda _, value: float(value == "0")})
    return [float(marks.score(vote_pool(drawn, np.arange(size)[None], [rule]))["right"].mean()) for size in sizes]


def members_differ(is_right: Mask) -> float:
    """Return the p-value of Cochran's Q (1950): members of one kind are right equally often. 1 if all are the same.

    Args:
        is_right: Shape ``(n_questions, n_members)``.
    """
    from scipy.special import chdtrc

    m, by_member, by_question = is_right.shape[1], is_right.sum(axis=0), is_right.sum(axis=1)
    spread = float((by_question * (m - by_question)).sum())
    return float(chdtrc(m - 1, m * (m - 1) * by_member.var() * m / spread)) if spread else 1.0


def _draw(pool: Pool, is_right: Mask, n_members: int) -> I64:
    """Draw answers: shape ``(N_DRAWN, n_members)``; 0 right, -1 an abstention, other numbers wrong answers."""
    rng = np.random.default_rng(0)
    one, other = np.triu_indices(pool.n_members, 1)

    def both(which: Mask) -> Mask:
        return which[:, one] & which[:, other]

    blank = (pool.group < 0) & ~is_right
    wrong = ~is_right & ~blank
    same = both(wrong) & (pool.group[:, one] == pool.group[:, other])
    p = _beta(rng, is_right.mean(), both(is_right).mean())
    s = _beta(rng, _share(blank.mean(), (~is_right).mean()), _share(both(blank).mean(), both(~is_right).mean()))
    theta = 1.0 / max(_share(same.mean(), both(wrong).mean()), _LEAST) - 1.0
    broken = rng.beta(1.0, max(theta, _LEAST), (N_DRAWN, _STICKS))
    ends = 1.0 - np.cumprod(1.0 - broken, axis=1)  # of the wrong answers' shares of the stick
    kind, at = rng.random((2, N_DRAWN, n_members))
    number = 1 + (at[:, :, None] > ends[:, None, :]).sum(axis=2)
    number += (number > _STICKS) * np.arange(n_members)
    return np.where(kind < p, 0, np.where(kind < p + (1.0 - p) * s, -1, number))


def _beta(rng: np.random.Generator, mean: float, second: float) -> F64:
    """Draw from the beta distribution of this mean and second moment: shape ``(N_DRAWN, 1)``."""
    most = mean * (1.0 - mean)
    if most <= 0.0:
        return np.full((N_DRAWN, 1), mean)
    alike = min(max((second - mean**2) / most, _LEAST), 1.0 - _LEAST)  # correlation of two members
    return rng.beta(mean * (1.0 / alike - 1.0), (1.0 - mean) * (1.0 / alike - 1.0), (N_DRAWN, 1))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
