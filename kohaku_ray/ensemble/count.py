"""The vote over many subsamples of a pool at once: ``vote``, cell by cell, as array operations.

A cell is one question in one subsample. Keys (answers, reference sets, spellings) are compared pairwise among a cell's
m members, so that counting is one product of an m × m matrix with the weights of those that count, and the first member
of a heaviest key is simply the first of them with the most votes. Sums of unequal weights may be rounded differently
than in ``vote``, by far less than the 1e-9 below which both see a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kohaku_ray.ensemble.agreement import agreement_weights
from kohaku_ray.ensemble.pool import WORD, Pool, Words
from kohaku_ray.ensemble.vote import VoteRule
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F64, I64, Mask

_EPSILON = 1e-9  # as in vote: weights that differ by less are a tie
_MOST_PAIRS = 2**18  # pairs of members compared at once: they should fit the processor's cache


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The decision of each rule on each question in each subsample.

    Attributes:
        leader: Shape ``(rules, Q, S)``; the winning group's first member, as an index into the pool; -1 where the
            ensemble abstains.
        spelling: Shape ``(rules, Q, S)``; the written value, as an index into the question's ``spellings``; -1 where
            the ensemble abstains.
        words: Shape ``(rules, Q, S, n_words)``; the cited references (``Pool.refs_of`` reads them).
    """

    leader: I64
    spelling: I64
    words: Words

    @property
    def is_blank(self) -> Mask:
        """Where the ensemble abstains: shape ``(rules, Q, S)``."""
        return self.leader < 0


def vote_pool(pool: Pool, subsamples: I64, rules: Sequence[VoteRule]) -> Outcomes:
    """Count every question's ballots in every subsample by every rule, as ``vote`` does for one.

    Rules share intermediate results, so give all of them at once.

    Args:
        pool: The recorded ballots.
        subsamples: Shape ``(S, m)``; members in voting order; one may occur twice.
        rules: How to count; ``agreement`` weighs each subsample's members by their agreement with one another.

    Raises:
        ConfigError: A subsample is empty or names a member that the pool does not have, or a rule asks for ``compat``.
    """
    subsamples = np.asarray(subsamples, dtype=np.int64)
    _check(pool, subsamples, rules)
    n_subsamples, size = subsamples.shape
    shape = (len(rules), pool.n_questions * n_subsamples)
    leader, spelling = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    words = np.zeros((*shape, pool.words.shape[2]), dtype=np.uint64)
    weights = {"uniform": np.ones(subsamples.shape)}
    if any(rule.weights == "agreement" for rule in rules):
        weights["agreement"] = _agreement(pool, subsamples)
    step = max(1, _MOST_PAIRS // size**2)
    for start in range(0, shape[1], step):
        part = slice(start, min(start + step, shape[1]))
        question, subsample = np.divmod(np.arange(part.start, part.stop), n_subsamples)
        cells = _Cells(pool, question, subsamples[subsample])
        counts: dict[tuple[bool, float | None, str], _Count] = {}
        for index, rule in enumerate(rules):
            key = (rule.ignore_blank, rule.blank_quorum, rule.weights)
            if key not in counts:
                counts[key] = _Count(cells, _voters(cells.blank, rule), weights[rule.weights][subsample] * cells.weight)
            leader[index, part], spelling[index, part], words[index, part] = counts[key].outcome(rule)
    whole = (len(rules), pool.n_questions, n_subsamples)
    return Outcomes(leader.reshape(whole), spelling.reshape(whole), words.reshape(*whole, -1))


def _check(pool: Pool, subsamples: I64, rules: Sequence[VoteRule]) -> None:
    if subsamples.ndim != 2 or not subsamples.shape[1]:
        raise ConfigError(
            f"Subsamples have the shape {subsamples.shape}: give one row per subsample, with at least one member each."
        )
    odd = subsamples[(subsamples < 0) | (subsamples >= pool.n_members)]
    if odd.size:
        raise ConfigError(
            f"A subsample names member {odd[0]} but the pool has {pool.n_members}: draw from 0 to {pool.n_members - 1}."
        )
    if any(rule.compat is not None for rule in rules):
        raise ConfigError(
            "vote.compat is kohakurag but a study counts by our own rules alone: set vote.compat to null."
        )


def _agreement(pool: Pool, subsamples: I64) -> F64:
    """Weigh each subsample's members by their agreement with one another: shape ``(S, m)``."""
    weights = np.empty(subsamples.shape)
    questions = np.arange(pool.n_questions)
    for row, members in enumerate(subsamples):
        label = pool.labels(questions, np.broadcast_to(members, (pool.n_questions, len(members))))
        # the consensus takes the lowest of tied groups: they must be numbered by their first members
        first = (label[:, :, None] == label[:, None, :]).argmax(axis=2)
        weights[row] = agreement_weights(np.where(label < 0, -1, first))
    return weights


def _voters(blank: Mask, rule: VoteRule) -> Mask:
    """Apply the blank rules: shape ``(cells, m)``; nobody votes when the quorum is reached or all are blank."""
    silent = blank if rule.ignore_blank else np.zeros_like(blank)
    if rule.blank_quorum is not None:
        reached = blank.sum(axis=1) >= rule.blank_quorum * blank.shape[1] - _EPSILON
        silent = blank | reached[:, None]
    return np.logical_not(silent)


class _Cells:
    """Some cells' ballots side by side; every array is ``(cells, m)`` or ``(cells, m, …)``."""

    def __init__(self, pool: Pool, question: I64, drawn: I64) -> None:
        column = question[:, None]
        label = pool.labels(question, drawn)
        self.index = np.arange(len(question))
        self.drawn = drawn
        self.blank = label < 0
        self.weight = pool.weight[column, drawn]
        self.spelling = pool.spelling[column, drawn]
        refset = pool.refset[column, drawn]
        self.words = pool.words[column, refset]
        self.same_answer, self.same_refs, self.same_spelling = _pairs(label), _pairs(refset), _pairs(self.spelling)
        self.n_refs = max(map(len, pool.refs))


def _pairs(keys: I64) -> F64:
    pairs: F64 = (keys[:, :, None] == keys[:, None, :]).astype(np.float64)
    return pairs


@dataclass(frozen=True, slots=True)
class _Choice:
    """The winning answer: its first run and whether another had as many votes, its runs, the run that spells it."""

    first: I64
    tied: Mask
    runs: Mask
    speller: I64


class _Count:
    """The votes of some cells under one blank rule and one weighting."""

    def __init__(self, cells: _Cells, voting: Mask, weights: F64) -> None:
        self.cells, self.voting, self.weights = cells, voting, weights

    def outcome(self, rule: VoteRule) -> tuple[I64, I64, Words]:
        """Decide: leader and spelling of shape ``(cells,)``, references of shape ``(cells, n_words)``."""
        cells, choice = self.cells, self._choice(rule)
        blank = cells.blank[cells.index, choice.first] | ~self.voting.any(axis=1)
        if rule.tiebreak == "blank":
            blank |= choice.tied
        leader = cells.same_answer[cells.index, choice.first].argmax(axis=1)
        return (
            np.where(blank, -1, cells.drawn[cells.index, leader]),
            np.where(blank, -1, cells.spelling[cells.index, choice.speller]),
            np.where(blank[:, None], np.uint64(0), self._references(rule, choice)),
        )

    def _choice(self, rule: VoteRule) -> _Choice:
        if rule.strategy == "first_non_blank":
            return self._first_answer
        return self._by_refs if rule.strategy == "ref_priority" else self._by_answer

    @cached_property
    def _first_answer(self) -> _Choice:
        answered = self.voting & ~self.cells.blank
        first = answered.argmax(axis=1)
        runs = np.zeros_like(answered)
        runs[self.cells.index, first] = True
        return _Choice(first, np.zeros(len(first), dtype=bool), runs, first)

    @cached_property
    def _by_answer(self) -> _Choice:
        return self._choose(self.voting)

    @cached_property
    def _by_refs(self) -> _Choice:
        chosen = self.cells.same_refs[self.cells.index, self._common_set] > 0
        return self._choose(self.voting & chosen)

    @cached_property
    def _common_set(self) -> I64:
        return self._heaviest(self.cells.same_refs, self.voting)[0]

    def _choose(self, members: Mask) -> _Choice:
        first, tied = self._heaviest(self.cells.same_answer, members)
        runs = members & (self.cells.same_answer[self.cells.index, first] > 0)
        speller, _ = self._heaviest(self.cells.same_spelling, runs)
        return _Choice(first, tied, runs, speller)

    def _heaviest(self, pairs: F64, members: Mask) -> tuple[I64, Mask]:
        """Find the first of some members whose key weighs most, and tell whether another key weighs as much."""
        votes = np.matmul(pairs, (self.weights * members)[:, :, None])[:, :, 0]
        votes[~members] = -1.0
        top = votes >= votes.max(axis=1, keepdims=True) - _EPSILON
        first = top.argmax(axis=1)
        return first, (top & (pairs[self.cells.index, first] == 0)).any(axis=1)

    def _references(self, rule: VoteRule, choice: _Choice) -> Words:
        words = self.cells.words
        if rule.strategy in ("first_non_blank", "ref_priority"):
            return self._set_of(choice.first)
        if rule.strategy == "majority":
            return _union(words)
        if rule.strategy == "union":
            return _union(np.where(choice.runs[:, :, None], words, np.uint64(0)))
        if rule.strategy == "intersection":
            cited = np.where(choice.runs[:, :, None], words, ~np.uint64(0))
            shared: Words = np.bitwise_and.reduce(cited, axis=1)
            return shared
        independent = rule.strategy == "independent"
        if rule.refs == "share":
            return self._cited_by_half(self.voting if independent else choice.runs)
        return self._set_of(self._common_set if independent else self._heaviest(self.cells.same_refs, choice.runs)[0])

    def _set_of(self, position: I64) -> Words:
        words: Words = self.cells.words[self.cells.index, position]
        return words

    def _cited_by_half(self, members: Mask) -> Words:
        weights = self.weights * members
        half = weights.sum(axis=1) / 2 - _EPSILON
        words = np.zeros_like(self.cells.words[:, 0])
        for ref in range(self.cells.n_refs):
            word, bit = divmod(ref, WORD)
            cites = (self.cells.words[:, :, word] >> np.uint64(bit)) & np.uint64(1)
            votes = (weights * cites).sum(axis=1)
            words[:, word] |= (votes >= half).astype(np.uint64) << np.uint64(bit)
        return words


def _union(words: Words) -> Words:
    united: Words = np.bitwise_or.reduce(words, axis=1)
    return united
