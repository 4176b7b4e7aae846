"""Vote over members' answers to questions, many subsamples of many questions at once.

A vote has three steps: who votes (the blank rules), which answer wins (members grouped by normalised value), and which
references are cited with it (the strategy). They are array operations over cells: a cell is one question in one
subsample of the members. Keys (answers, reference sets, spellings) are compared pairwise among a cell's m members, so
that counting is one product of an m × m matrix with the weights of those that count, and the first member of a
heaviest key is simply the first of them with the most votes. ``vote_all`` counts each question in one cell and words
its verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kohaku_ray.ensemble.pool import WORD, Pool, Words, agreement_weights, pool_ballots
from kohaku_ray.ensemble.rule import Ballot as Ballot
from kohaku_ray.ensemble.settings import VoteRule as VoteRule
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F64, I64, Mask
from kohaku_ray.values.normalise import read_quantity
from kohaku_ray.values.spelling import ref_key

_EPSILON = 1e-9  # weights that differ by less are a tie
_MOST_PAIRS = 2**18  # pairs of members compared at once: they should fit the processor's cache


@dataclass(frozen=True, slots=True)
class AnswerGroup:
    """Members, in member order, that gave the same answer, or abstain; ``weight`` is the sum of theirs.

    ``answer_value`` is the heaviest of their values (``Pool.spellings``), ties to the earliest member; empty for the
    blanks.
    """

    answer_value: str
    members: tuple[int, ...]
    weight: float
    is_blank: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of the ensemble.

    Attributes:
        answer_value: The winning group's value, in the question's unit as a metric reads it (``AnswerGroup``); empty
            on abstention, which cites nothing.
        ref_ids: References, in the order in which the runs first cite them.
        winner: The member whose answer, unit and explanation are shown: of the winning group, with the written
            spelling and, if possible, the cited reference set; on abstention the first blank member, preferably one
            with an explanation; None where there is none.
        groups: All groups, in order of their first members, blanks among them.
        n_votes: Number of members that voted.
    """

    answer_value: str = ""
    is_blank: bool = True
    ref_ids: tuple[str, ...] = ()
    winner: int | None = None
    answer: str = ""
    answer_unit: str = ""
    explanation: str = ""
    groups: tuple[AnswerGroup, ...] = ()
    n_votes: int = 0


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The decision of each rule on each question in each subsample; -1 where the ensemble abstains.

    Attributes:
        leader: Shape ``(rules, Q, S)``; the winning group's first member, as an index into the pool.
        spelling: Shape ``(rules, Q, S)``; the written value, as an index into the question's ``spellings``.
        words: Shape ``(rules, Q, S, n_words)``; the cited references (``Pool.refs_of`` reads them).
        failed: Shape ``(Q, S)``; where all members failed: there is no outcome, not even an abstention.
    """

    leader: I64
    spelling: I64
    words: Words
    failed: Mask

    @property
    def is_blank(self) -> Mask:
        """Where the ensemble abstains: shape ``(rules, Q, S)``."""
        return self.leader < 0


def vote(
    ballots: Sequence[Ballot],
    rule: VoteRule,
    unit: str | None = None,
    member_weights: Sequence[float] | F64 | None = None,
    keep_spellings: bool = False,
) -> Verdict:
    """Count one question's ballots, in member order; arguments and errors as of ``vote_all``."""
    return vote_all([ballots], rule, [unit], member_weights, keep_spellings)[0]


def vote_all(
    table: Sequence[Sequence[Ballot]],
    rule: VoteRule,
    units: Sequence[str | None],
    member_weights: Sequence[float] | F64 | None = None,
    keep_spellings: bool = False,
) -> list[Verdict]:
    """Count the ballots of many questions, one per member; a question without any is an abstention.

    Args:
        table: By question, its ballots.
        rule: How to count.
        units: By question, the unit asked for; None where it has none.
        member_weights: One positive weight per member; None: all the same.
        keep_spellings: See ``pool_ballots``.

    Raises:
        ConfigError: The rule asks for agreement weights and there are none, or a ballot's weight is not positive.
    """
    verdicts = [Verdict()] * len(table)
    for size in sorted({len(row) for row in table} - {0}):
        alike = [question for question, row in enumerate(table) if len(row) == size]
        weights = _weights(size, rule, member_weights)
        ballots = [table[question] for question in alike]
        pool = pool_ballots(ballots, [units[question] for question in alike], rule.compat, keep_spellings)
        cells = _Cells(pool, np.arange(len(alike)), np.broadcast_to(np.arange(size), (len(alike), size)))
        counted = _Count(cells, _voters(cells, rule), weights * cells.weight)
        for question, verdict in zip(alike, _write_verdicts(ballots, rule, counted), strict=True):
            verdicts[question] = verdict
    return verdicts


def _weights(n_members: int, rule: VoteRule, given: Sequence[float] | F64 | None) -> F64:
    if given is None:
        if rule.weights == "agreement":
            raise ConfigError(
                "vote.weights is agreement but no member weights were given: "
                "compute them over all questions (agreement_weights) or set vote.weights to uniform."
            )
        return np.ones(n_members)
    return np.asarray(given, dtype=np.float64)


def _write_verdicts(table: Sequence[Sequence[Ballot]], rule: VoteRule, count: _Count) -> Iterator[Verdict]:
    """Write the verdict on each question, each counted in one cell of all its members."""
    cells, (leader, spelling, words) = count.cells, count.outcome(rule)
    cites_all = (cells.words == words[:, None, :]).all(axis=2)
    # The members in whose order references are listed.
    if rule.strategy == "majority":
        listing = np.ones_like(count.voting)
    else:
        listing = count.voting if rule.strategy == "independent" else count.choice(rule).runs
        if rule.strategy in ("answer_priority", "independent") and rule.refs == "set":
            listing = listing & cites_all
    lists, runs, labels, weights, same, spelled, n_votes = (
        array.tolist()
        for array in (
            *(listing, count.choice(rule).runs, cells.label, count.weights, cites_all),
            *(cells.spelling, count.voting.sum(axis=1)),
        )
    )
    for index, ballots in enumerate(table):
        unit, spellings = cells.pool.units[index], cells.pool.spellings[index]
        written = ["" if number < 0 else spellings[number] for number in spelled[index]]
        if leader[index] < 0:
            blanks = [member for member, label in enumerate(labels[index]) if label < 0]
            winner = next(
                (member for member in blanks if ballots[member].explanation.strip()), next(iter(blanks), None)
            )
            value, refs = "", tuple[str, ...]()
        else:
            value = spellings[spelling[index]]
            fitting = [member for member, is_run in enumerate(runs[index]) if is_run and written[member] == value]
            winner = next((member for member in fitting if same[index][member]), fitting[0])
            listed = zip(ballots, lists[index], labels[index], strict=True)
            citing = [ballot for ballot, is_listed, label in listed if is_listed and label >= 0]
            refs = _cite(citing, cells.pool.refs_of(index, words[index]), rule.compat)
        shown = Ballot() if winner is None else ballots[winner]
        yield Verdict(
            answer_value=value,
            is_blank=bool(leader[index] < 0),
            ref_ids=refs,
            winner=winner,
            answer=shown.answer,
            answer_unit=shown.answer_unit
            if rule.compat
            else read_quantity(shown.answer_value, shown.answer_unit, unit).unit,
            explanation=shown.explanation,
            groups=_groups(labels[index], written, weights[index]),
            n_votes=n_votes[index],
        )


def _cite(ballots: Iterable[Ballot], among: frozenset[str], compat: str | None) -> tuple[str, ...]:
    """List references in the order in which ballots first cite them, each in its first spelling; in compat sorted."""
    first: dict[str, str] = {}
    for ballot in ballots:
        for ref in ballot.ref_ids:
            key, written = (ref, ref) if compat else (ref_key(ref), ref.strip())
            if key in among:
                first.setdefault(key, written)
    return tuple(sorted(first.values()) if compat else first.values())


def _groups(labels: Sequence[int], written: Sequence[str], weights: Sequence[float]) -> tuple[AnswerGroup, ...]:
    members: dict[int, list[int]] = {}
    for member, label in enumerate(labels):
        members.setdefault(label, []).append(member)
    groups = []
    for label, of in members.items():
        tally: dict[str, float] = {}
        for member in of:
            tally[written[member]] = tally.get(written[member], 0.0) + weights[member]
        most = max(tally.values()) - _EPSILON
        value = next(text for text, weight in tally.items() if weight >= most) if label >= 0 else ""
        groups.append(AnswerGroup(value, tuple(of), sum(weights[member] for member in of), label < 0))
    return tuple(groups)


def vote_pool(pool: Pool, subsamples: I64, rules: Sequence[VoteRule]) -> Outcomes:
    """Count every question's ballots in every subsample by every rule.

    Rules share intermediate results, so give all of them at once.

    Args:
        pool: The recorded ballots.
        subsamples: Shape ``(S, m)``; members in voting order; one may occur twice.
        rules: How to count, with the ``compat`` of the pool; ``agreement`` weighs each subsample's members by their
            agreement with one another.
    """
    n_subsamples, size = subsamples.shape
    shape = (len(rules), pool.n_questions * n_subsamples)
    leader, spelling = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    words = np.zeros((*shape, pool.words.shape[2]), dtype=np.uint64)
    weights = {"uniform": np.ones(subsamples.shape)}
    if any(rule.weights == "agreement" for rule in rules):
        weights["agreement"] = np.empty(subsamples.shape)
        for row, members in enumerate(subsamples):
            label = pool.labels(np.arange(pool.n_questions), np.broadcast_to(members, (pool.n_questions, size)))
            # the consensus takes the lowest of tied groups: they must be numbered by their first members
            first = (label[:, :, None] == label[:, None, :]).argmax(axis=2)
            weights["agreement"][row] = agreement_weights(np.where(label < 0, -1, first))
    step = max(1, _MOST_PAIRS // size**2)
    for start in range(0, shape[1], step):
        part = slice(start, min(start + step, shape[1]))
        question, subsample = np.divmod(np.arange(part.start, part.stop), n_subsamples)
        cells = _Cells(pool, question, subsamples[subsample])
        counts: dict[tuple[bool, float | None, str], _Count] = {}
        for index, rule in enumerate(rules):
            key = (rule.ignore_blank, rule.blank_quorum, rule.weights)
            if key not in counts:
                counts[key] = _Count(cells, _voters(cells, rule), weights[rule.weights][subsample] * cells.weight)
            leader[index, part], spelling[index, part], words[index, part] = counts[key].outcome(rule)
    whole = (len(rules), pool.n_questions, n_subsamples)
    failed = np.all(pool.failed[:, subsamples], axis=2)
    return Outcomes(leader.reshape(whole), spelling.reshape(whole), words.reshape(*whole, -1), failed)


def _voters(cells: _Cells, rule: VoteRule) -> Mask:
    """Apply the blank rules: shape ``(cells, m)``; nobody votes when the quorum is reached or all are blank."""
    blank, failed = cells.blank, cells.failed
    silent = blank | failed if rule.ignore_blank else failed
    if rule.blank_quorum is not None:
        n_abstained, n_present = (blank & ~failed).sum(axis=1), (~failed).sum(axis=1)
        reached = n_abstained >= rule.blank_quorum * n_present - _EPSILON
        silent = blank | reached[:, None]
    return np.logical_not(silent)


class _Cells:
    """Some cells' ballots side by side; every array is ``(cells, m)`` or ``(cells, m, …)``."""

    def __init__(self, pool: Pool, question: I64, drawn: I64) -> None:
        column = question[:, None]
        self.pool, self.drawn = pool, drawn
        self.label = pool.labels(question, drawn)
        self.index = np.arange(len(question))
        self.blank = self.label < 0
        self.failed = pool.failed[column, drawn]
        self.weight = pool.weight[column, drawn]
        self.spelling = pool.spelling[column, drawn]
        self.refset = pool.refset[column, drawn]
        self.words = pool.words[column, self.refset]
        self.same_answer = _pairs(self.label)
        self.same_refs = _pairs(self.refset)
        self.same_spelling = _pairs(self.spelling)
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
        self._choices: dict[str, _Choice] = {}

    def outcome(self, rule: VoteRule) -> tuple[I64, I64, Words]:
        """Decide: leader and spelling of shape ``(cells,)``, references of shape ``(cells, n_words)``."""
        cells, choice = self.cells, self.choice(rule)
        blank = cells.blank[cells.index, choice.first] | ~self.voting.any(axis=1)
        if rule.tiebreak == "blank":
            blank |= choice.tied
        leader = cells.same_answer[cells.index, choice.first].argmax(axis=1)
        return (
            np.where(blank, -1, cells.drawn[cells.index, leader]),
            np.where(blank, -1, cells.spelling[cells.index, choice.speller]),
            np.where(blank[:, None], np.uint64(0), self._references(rule, choice)),
        )

    def choice(self, rule: VoteRule) -> _Choice:
        """Choose the answer by a rule, once per way of choosing."""
        way = rule.strategy if rule.strategy in ("first_non_blank", "ref_priority") else "answer"
        if way in self._choices:
            return self._choices[way]
        members = self.voting
        if way == "first_non_blank":
            members = members & ~self.cells.blank
            first = speller = members.argmax(axis=1)
            tied, runs = np.zeros(len(first), dtype=bool), np.zeros_like(members)
            runs[self.cells.index, first] = True
        else:
            if way == "ref_priority":
                members = members & (self.cells.same_refs[self.cells.index, self._common_set] > 0)
            first, tied = self._heaviest(self.cells.same_answer, members)
            if self.cells.pool.compat:  # the published script knows one tie: no two members gave the same string
                alike = (self.cells.same_answer * members[:, :, None] * members[:, None, :]).sum(axis=(1, 2))
                n_members = members.sum(axis=1)
                tied = (alike == n_members) & (n_members > 1)
            runs = members & (self.cells.same_answer[self.cells.index, first] > 0)
            speller, _ = self._heaviest(self.cells.same_spelling, runs)
        self._choices[way] = _Choice(first, tied, runs, speller)
        return self._choices[way]

    @cached_property
    def _common_set(self) -> I64:
        return self._heaviest(self.cells.same_refs, self.voting)[0]

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
        members = self.voting if rule.strategy == "independent" else choice.runs
        if rule.refs == "set":
            is_common = rule.strategy == "independent"
            return self._set_of(self._common_set if is_common else self._heaviest(self.cells.same_refs, members)[0])
        weights = self.weights * members
        half = weights.sum(axis=1) / 2 - _EPSILON
        by_half = np.zeros_like(words[:, 0])
        for ref in range(self.cells.n_refs):
            word, bit = divmod(ref, WORD)
            cites = (words[:, :, word] >> np.uint64(bit)) & np.uint64(1)
            votes = (weights * cites).sum(axis=1)
            by_half[:, word] |= (votes >= half).astype(np.uint64) << np.uint64(bit)
        return by_half

    def _set_of(self, position: I64) -> Words:
        words: Words = self.cells.words[self.cells.index, position]
        return words


def _union(words: Words) -> Words:
    united: Words = np.bitwise_or.reduce(words, axis=1)
    return united
