"""Ensemble studies: what a pool's members would have scored together, in any size and by any rule, without a new call.

::

    pool = pool_ballots(ballots, units)
    marks = Marks(pool, value, ref, abstain)
    drawn = subsamples(pool.n_members, size=5, n=32, seed=0)
    parts = marks.score(vote_pool(pool, drawn, rules))

How an outcome is scored comes in as plain functions, asked once for each distinct value and reference set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np

from kohaku_ray.arrays import F64, I64
from kohaku_ray.ensemble.count import Outcomes, vote_pool
from kohaku_ray.ensemble.pool import Pool, Words
from kohaku_ray.ensemble.vote import VoteRule
from kohaku_ray.errors import ConfigError

MOST_SUBSAMPLES = 20_000
"""More subsamples than this are not all counted by ``expected_score`` unless it is told so."""

_BLOCK = 1024  # subsamples held at once


@dataclass(frozen=True, slots=True)
class Parts:
    """Scores by part; a score is their weighted sum, and linear, so that any axis may be averaged first.

    Attributes:
        value: Shape ``(rules, Q, S)``, or ``(rules, Q)`` where subsamples have been averaged.
        ref: The same shape.
        abstain: The same shape.
    """

    value: F64
    ref: F64
    abstain: F64


class Marks:
    """What each outcome is worth."""

    def __init__(
        self,
        pool: Pool,
        value: Callable[[int, str], float],
        ref: Callable[[int, frozenset[str]], float],
        abstain: Callable[[int, bool], float],
    ) -> None:
        """Mark every value and both ways to abstain; reference sets are marked as they come up.

        Args:
            pool: Whose outcomes are to be scored.
            value: Question index and written value to a mark; an abstention writes the empty text.
            ref: Question index and cited references, lower-cased, to a mark.
            abstain: Question index and whether the ensemble abstains to a mark.
        """
        self._pool, self._ref = pool, ref
        self._refs: dict[tuple[int, bytes], float] = {}
        self._abstain = np.array(
            [[abstain(index, blank) for blank in (False, True)] for index in range(pool.n_questions)]
        )
        # the last column is the abstention's, which has the spelling -1
        self._value = np.zeros((pool.n_questions, max(map(len, pool.spellings)) + 1))
        for index, spellings in enumerate(pool.spellings):
            self._value[index, : len(spellings)] = [value(index, text) for text in spellings]
            self._value[index, -1] = value(index, "")

    def score(self, outcomes: Outcomes) -> Parts:
        """Mark outcomes, in their shape ``(rules, Q, S)``."""
        question = np.broadcast_to(np.arange(self._pool.n_questions)[None, :, None], outcomes.leader.shape)
        return Parts(
            value=self._value[question, outcomes.spelling],
            ref=self._ref_marks(question.reshape(-1), outcomes.words).reshape(outcomes.leader.shape),
            abstain=self._abstain[question, outcomes.is_blank.astype(np.int64)],
        )

    def _ref_marks(self, question: I64, words: Words) -> F64:
        words = words.reshape(len(question), -1)
        first, inverse = _distinct(question, words)
        marks = [self._ref_mark(index, row) for index, row in zip(question[first].tolist(), words[first], strict=True)]
        return np.array(marks, dtype=np.float64)[inverse]

    def _ref_mark(self, question: int, words: Words) -> float:
        key = (question, words.tobytes())
        if key not in self._refs:
            self._refs[key] = self._ref(question, self._pool.refs_of(question, words))
        return self._refs[key]


def _distinct(question: I64, words: Words) -> tuple[I64, I64]:
    """Find the distinct pairs of question and reference set: where each is first, and which one every row is."""
    first, inverse = np.unique(question, return_index=True, return_inverse=True)[1:]
    for column in words.T:
        bits = np.unique(column, return_inverse=True)[1]
        first, inverse = np.unique(inverse * len(question) + bits, return_index=True, return_inverse=True)[1:]
    return first, inverse


def expected_score(
    pool: Pool, size: int, rules: Sequence[VoteRule], marks: Marks, most: int = MOST_SUBSAMPLES
) -> Parts:
    """Average over every subsample of a size: the exact expectation.

    Args:
        pool: The recorded ballots.
        size: Members in a subsample, m.
        rules: How to count.
        marks: What each outcome is worth.
        most: Refuse more subsamples than this.

    Returns:
        Parts of shape ``(rules, Q)``.

    Raises:
        ConfigError: The size is not between 1 and the pool's, or there are too many subsamples to count them all.
    """
    if not 1 <= size <= pool.n_members:
        raise ConfigError(
            f"A subsample of {size} members cannot be drawn from {pool.n_members}: "
            f"choose a size from 1 to {pool.n_members}."
        )
    n_subsamples = math.comb(pool.n_members, size)
    if n_subsamples > most:
        raise ConfigError(
            f"{pool.n_members} members have {n_subsamples} subsamples of {size} but at most {most} are counted: "
            f"draw some with subsamples() or raise most to {n_subsamples}."
        )
    sums = np.zeros((3, len(rules), pool.n_questions))
    every = combinations(range(pool.n_members), size)
    while block := list(islice(every, _BLOCK)):
        parts = marks.score(vote_pool(pool, np.array(block, dtype=np.int64), rules))
        sums += [parts.value.sum(axis=2), parts.ref.sum(axis=2), parts.abstain.sum(axis=2)]
    return Parts(*(sums / n_subsamples))
