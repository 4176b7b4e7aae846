"""Ensemble studies: the scores of ensembles of a pool's members, of any size and by any rule, without a new call.

::

    pool = pool_ballots(ballots, units)
    marks = Marks(pool, by_value={"value": value}, by_refs={"ref": ref}, by_blank={"abstain": abstain})
    drawn = subsamples(pool.n_members, size=5, n=32, seed=0)
    parts = marks.score(vote_pool(pool, drawn, rules))

Outcomes are scored by plain functions, called once per distinct value and reference set.

Larger ensembles than the pool are forecast by a model of how questions differ, fitted to pairs of its members. A
question has a probability p of a right answer; if it is not right, it is an abstention with probability s; otherwise
it is one of the wrong answers, whose shares are broken off a stick (GEM, Ewens 1972). Over questions p and s have beta
distributions. Their means and second moments, and the concentration of the wrong answers, are what pairs of members
show: how often both are right, both abstain, both give the same wrong answer. Members then vote on drawn questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from types import MappingProxyType

import numpy as np

from kohaku_ray.ensemble.pool import Pool, Words, pool_ballots
from kohaku_ray.ensemble.rule import Ballot
from kohaku_ray.ensemble.settings import VoteRule
from kohaku_ray.ensemble.vote import Outcomes, vote_pool
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F64, I64, Mask

MOST_SUBSAMPLES = 20_000
"""Most subsamples that ``expected_score`` counts by default."""

_BLOCK = 1024  # subsamples held at once
_ATTEMPTS = 100  # draws per wanted subsample before the search for more ends


PartScores = dict[str, F64]
"""Scores by part, shape ``(rules, Q, S)`` each, or ``(rules, Q)`` where subsamples have been averaged.

A score is their weighted sum, so it is linear and any axis may be averaged first.
"""


class Marks:
    """The marks of every outcome."""

    def __init__(
        self,
        pool: Pool,
        by_value: Mapping[str, Callable[[int, str], float]] = MappingProxyType({}),
        by_refs: Mapping[str, Callable[[int, frozenset[str]], float]] = MappingProxyType({}),
        by_blank: Mapping[str, Callable[[int, bool], float]] = MappingProxyType({}),
    ) -> None:
        """Mark every value, and abstaining or not; reference sets are marked when they first occur.

        By part, functions of the question's index and the written value (empty: an abstention), the cited references
        (lower-cased), or whether the ensemble abstains.
        """
        self._pool, self._by_refs = pool, by_refs
        self._refs: dict[tuple[int, bytes], list[float]] = {}
        self._blank = {
            name: np.array([[mark(index, blank) for blank in (False, True)] for index in range(pool.n_questions)])
            for name, mark in by_blank.items()
        }
        self._value: dict[str, F64] = {}
        for name, mark_value in by_value.items():
            # the last column is the abstention's, which has the spelling -1
            marks = np.zeros((pool.n_questions, max(map(len, pool.spellings)) + 1))
            for index, spellings in enumerate(pool.spellings):
                marks[index, : len(spellings)] = [mark_value(index, text) for text in spellings]
                marks[index, -1] = mark_value(index, "")
            self._value[name] = marks

    def score(self, outcomes: Outcomes) -> PartScores:
        """Mark outcomes, in their shape ``(rules, Q, S)``; where all members failed, every part is 0."""
        shape = outcomes.leader.shape
        question = np.broadcast_to(np.arange(self._pool.n_questions)[None, :, None], shape)
        scores = {name: marks[question, outcomes.spelling] for name, marks in self._value.items()}
        if self._by_refs:
            flat, words = question.reshape(-1), outcomes.words.reshape(question.size, -1)
            first, inverse = _distinct(flat, words)
            distinct = []
            for index, row in zip(flat[first].tolist(), words[first], strict=True):
                key = (index, row.tobytes())
                if key not in self._refs:
                    refs = self._pool.refs_of(index, row)
                    self._refs[key] = [mark(index, refs) for mark in self._by_refs.values()]
                distinct.append(self._refs[key])
            by_part = np.array(distinct, dtype=np.float64).T[:, inverse]
            scores |= {name: marks.reshape(shape) for name, marks in zip(self._by_refs, by_part, strict=True)}
        blank = outcomes.is_blank.astype(np.int64)
        scores |= {name: marks[question, blank] for name, marks in self._blank.items()}
        return {name: np.where(outcomes.failed, 0.0, marks) for name, marks in scores.items()}


def _distinct(question: I64, words: Words) -> tuple[I64, I64]:
    """Find the distinct pairs of question and reference set: the first row of each, and the pair of every row."""
    first, inverse = np.unique(question, return_index=True, return_inverse=True)[1:]
    for column in words.T:
        bits = np.unique(column, return_inverse=True)[1]
        first, inverse = np.unique(inverse * len(question) + bits, return_index=True, return_inverse=True)[1:]
    return first, inverse


def expected_score(
    pool: Pool, size: int, rules: Sequence[VoteRule], marks: Marks, most: int = MOST_SUBSAMPLES
) -> PartScores:
    """Average over every subsample of ``size`` members, at most ``most``: the exact expectation, ``(rules, Q)``.

    Raises:
        ConfigError: The size is not between 1 and the pool's, or there are too many subsamples to count them all.
    """
    _check_size(pool.n_members, size)
    n_subsamples = math.comb(pool.n_members, size)
    if n_subsamples > most:
        raise ConfigError(
            f"{pool.n_members} members have {n_subsamples} subsamples of {size} but at most {most} are counted: "
            f"draw some with subsamples() or raise most to {n_subsamples}."
        )
    sums: PartScores = {}
    every = combinations(range(pool.n_members), size)
    while block := list(islice(every, _BLOCK)):
        parts = marks.score(vote_pool(pool, np.array(block, dtype=np.int64), rules))
        sums = {name: sums.get(name, 0.0) + part.sum(axis=2) for name, part in parts.items()}
    return {name: part / n_subsamples for name, part in sums.items()}


def subsamples(n_members: int, size: int, n: int, seed: int, strata: Sequence[str] | None = None) -> I64:
    """Draw distinct subsamples of a pool's members; all of them where there are at most ``n``.

    Sampling is systematic over the members in random order, stratum by stratum: every member is equally likely, and
    each stratum, such as a model, gives its proportional share, rounded down or up. The same arguments always give the
    same draws.

    Returns:
        Shape ``(S, size)`` with S ≤ n; member indices, each row ascending, no two rows alike.

    Raises:
        ConfigError: The size is not between 1 and the number of members.
    """
    _check_size(n_members, size)
    blocks = _blocks(strata if strata is not None else [""] * n_members)
    bounds = [(size * len(block) // n_members, -(-size * len(block) // n_members)) for block in blocks]
    every = (tuple(sorted(members)) for shares in _shares(bounds, size) for members in _choices(blocks, shares))
    if len(first := list(islice(every, n + 1))) <= n:
        return np.array(sorted(first), dtype=np.int64)
    rng = np.random.default_rng(seed)
    drawn: dict[tuple[int, ...], None] = {}
    for _ in range(_ATTEMPTS * n):
        drawn.setdefault(_draw(rng, blocks, n_members, size))
        if len(drawn) == n:
            break
    return np.array(list(drawn), dtype=np.int64)


def _blocks(strata: Sequence[str]) -> list[list[int]]:
    blocks: dict[str, list[int]] = {}
    for member, stratum in enumerate(strata):
        blocks.setdefault(stratum, []).append(member)
    return list(blocks.values())


def _choices(blocks: Sequence[Sequence[int]], shares: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """List the ways to take its share of each block, one by one: ``itertools.product`` would hold all of a block's."""
    if not blocks:
        yield ()
        return
    for first in combinations(blocks[0], shares[0]):
        yield from (first + rest for rest in _choices(blocks[1:], shares[1:]))


def _shares(bounds: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, ...]]:
    """List the ways to round the strata's shares so that they make up the size."""
    if not bounds:
        yield ()
        return
    (low, high), rest = bounds[0], bounds[1:]
    least, most = sum(below for below, _ in rest), sum(above for _, above in rest)
    for share in range(low, high + 1):
        if least <= size - share <= most:
            yield from ((share, *others) for others in _shares(rest, size - share))


def _draw(rng: np.random.Generator, blocks: Sequence[Sequence[int]], n_members: int, size: int) -> tuple[int, ...]:
    """Take every (M / m)-th member of the strata in random order, from a random start, in whole numbers."""
    order = np.concatenate([rng.permutation(blocks[index]) for index in rng.permutation(len(blocks))])
    positions = (rng.integers(n_members) + n_members * np.arange(size)) // size
    return tuple(sorted(order[positions].tolist()))


def _check_size(n_members: int, size: int) -> None:
    if not 1 <= size <= n_members:
        raise ConfigError(
            f"A subsample of {size} members cannot be drawn from {n_members}: choose a size from 1 to {n_members}."
        )


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
    n_members = max(sizes)
    rng = np.random.default_rng(0)
    left, right = np.triu_indices(pool.n_members, 1)

    def both(which: Mask) -> Mask:
        return which[:, left] & which[:, right]

    answered = ~pool.failed  # who failed shows nothing of what members answer
    is_right = is_right & answered
    n_ballots, n_pairs = max(answered.sum(), 1), max(both(answered).sum(), 1)
    blank = (pool.group < 0) & answered & ~is_right
    wrong = answered & ~is_right & ~blank
    not_right = blank | wrong
    same = both(wrong) & (pool.group[:, left] == pool.group[:, right])
    p = _beta(rng, is_right.sum() / n_ballots, both(is_right).sum() / n_pairs)
    s = _beta(rng, _share(blank.sum(), not_right.sum()), _share(both(blank).sum(), both(not_right).sum()))
    theta = 1.0 / max(_share(same.sum(), both(wrong).sum()), _LEAST) - 1.0
    broken = rng.beta(1.0, max(theta, _LEAST), (N_DRAWN, _STICKS))
    ends = 1.0 - np.cumprod(1.0 - broken, axis=1)  # of the wrong answers' shares of the stick
    kind, point = rng.random((2, N_DRAWN, n_members))
    number = 1 + (point[:, :, None] > ends[:, None, :]).sum(axis=2)
    number += (number > _STICKS) * np.arange(n_members)
    # 0 is right, -1 an abstention, other numbers are wrong answers.
    labels = np.where(kind < p, 0, np.where(kind < p + (1.0 - p) * s, -1, number))
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


def _beta(rng: np.random.Generator, mean: float, second: float) -> F64:
    """Draw from the beta distribution of this mean and second moment: shape ``(N_DRAWN, 1)``."""
    most = mean * (1.0 - mean)
    if most <= 0.0:
        return np.full((N_DRAWN, 1), mean)
    alike = min(max((second - mean**2) / most, _LEAST), 1.0 - _LEAST)  # correlation of two members
    return rng.beta(mean * (1.0 / alike - 1.0), (1.0 - mean) * (1.0 / alike - 1.0), (N_DRAWN, 1))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
