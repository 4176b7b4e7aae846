"""Vote over the members' answers to one question (DESIGN §5).

A vote has three steps: who votes (the blank rules), which answer wins (members grouped by normalised value), and which
references are cited with it (the strategy).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kohaku_ray.ensemble.rule import Strategy as Strategy
from kohaku_ray.ensemble.rule import VoteRule as VoteRule
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F64
from kohaku_ray.values.normalise import group_values
from kohaku_ray.values.read import is_abstention, is_blank

K = TypeVar("K", bound=Hashable)

_EPSILON = 1e-9  # weights that differ by less are a tie


@dataclass(frozen=True, slots=True)
class Ballot:
    """One member's answer to one question.

    Attributes:
        answer_value: The bare value, as written; a blank spelling abstains whatever ``is_blank`` says.
        ref_ids: Cited document ids, in the order cited.
        is_blank: The member abstains; its value and references are ignored.
        answer: The answer as a sentence.
        answer_unit: The unit the member gave.
        explanation: The reasons.
        weight: How much it counts in the vote, times its member's weight; positive.
    """

    answer_value: str = ""
    ref_ids: tuple[str, ...] = ()
    is_blank: bool = False
    answer: str = ""
    answer_unit: str = ""
    explanation: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """Members that gave the same answer.

    Attributes:
        answer_value: Its heaviest spelling, ties to the earliest member; empty for the blanks.
        members: Indices of the members, in member order.
        weight: Sum of their weights.
        is_blank: Whether these are the members that abstain.
    """

    answer_value: str
    members: tuple[int, ...]
    weight: float
    is_blank: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of the ensemble.

    Attributes:
        answer_value: The winning group's heaviest spelling; empty on abstention.
        is_blank: The ensemble abstains; it then cites nothing.
        ref_ids: References, in the order in which the runs first cite them.
        winner: The member whose answer and explanation are shown: of the winning group, with the written spelling and,
            if possible, the cited reference set; on abstention the first blank member, preferably one with an
            explanation; None where there is none.
        answer: That member's answer.
        answer_unit: That member's unit.
        explanation: That member's explanation.
        groups: All groups, in order of their first members, blanks among them.
        n_votes: Number of members that voted.
    """

    answer_value: str
    is_blank: bool
    ref_ids: tuple[str, ...]
    winner: int | None
    answer: str
    answer_unit: str
    explanation: str
    groups: tuple[Group, ...]
    n_votes: int


def vote(
    ballots: Sequence[Ballot],
    rule: VoteRule,
    unit: str | None = None,
    member_weights: Sequence[float] | F64 | None = None,
) -> Verdict:
    """Count one question's ballots, in member order.

    Args:
        ballots: One per member; an empty sequence is an abstention.
        rule: How to count.
        unit: The question's answer unit.
        member_weights: One positive weight per member; None: all the same.

    Raises:
        ConfigError: The rule asks for agreement weights and there are none, their number differs from the ballots', or
            a ballot's weight is not positive and finite.
    """
    of_members = _weights(len(ballots), rule, member_weights)
    weights = tuple(weight * ballot_weight(ballot) for weight, ballot in zip(of_members, ballots, strict=True))
    return _Count(ballots, rule, unit, weights).verdict()


def ballot_weight(ballot: Ballot) -> float:
    """Return a ballot's weight.

    Raises:
        ConfigError: It is not positive and finite.
    """
    if not 0 < ballot.weight < math.inf:
        raise ConfigError(
            f"A ballot for {ballot.answer_value!r} weighs {ballot.weight}: let the system's `ballot` give a weight "
            "above 0."
        )
    return ballot.weight


def _weights(n_members: int, rule: VoteRule, given: Sequence[float] | F64 | None) -> tuple[float, ...]:
    if given is None:
        if rule.weights == "agreement":
            raise ConfigError(
                "vote.weights is agreement but no member weights were given: "
                "compute them over all questions (agreement_weights) or set vote.weights to uniform."
            )
        return (1.0,) * n_members
    if len(given) != n_members:
        raise ConfigError(f"There are {len(given)} member weights but {n_members} ballots: give one weight per member.")
    return tuple(float(weight) for weight in given)


class _Count:
    """One question's ballots, cleaned and grouped."""

    def __init__(self, ballots: Sequence[Ballot], rule: VoteRule, unit: str | None, weights: tuple[float, ...]) -> None:
        self.ballots, self.rule, self.weights = ballots, rule, weights
        self.compat = rule.compat == "kohakurag"
        self.blank = [_abstains(ballot, self.compat) for ballot in ballots]
        self.refs = [() if blank else self._refs_of(ballot) for ballot, blank in zip(ballots, self.blank, strict=True)]
        self.group_of = self._grouped(unit)
        self.groups = self._groups()

    def _refs_of(self, ballot: Ballot) -> tuple[str, ...]:
        """Drop blanks and repeats; in compat mode a reference is kept as written."""
        if self.compat:
            return tuple(sorted(set(ballot.ref_ids)))
        seen: dict[str, str] = {}
        for ref in ballot.ref_ids:
            if not is_blank(ref):
                seen.setdefault(ref.strip().lower(), ref.strip())
        return tuple(seen.values())

    def _grouped(self, unit: str | None) -> list[int]:
        """Number the groups in order of their first members; the blanks are -1."""
        values = ["" if blank else ballot.answer_value for ballot, blank in zip(self.ballots, self.blank, strict=True)]
        if not self.compat:
            return group_values(values, unit)
        first: dict[str, int] = {}
        return [-1 if not value else first.setdefault(value.strip(), len(first)) for value in values]

    def _groups(self) -> tuple[Group, ...]:
        members: dict[int, list[int]] = {}
        for member, group in enumerate(self.group_of):
            members.setdefault(group, []).append(member)
        return tuple(
            Group("" if group < 0 else self._spelling(of), tuple(of), self._weigh(of), group < 0)
            for group, of in members.items()
        )

    def _weigh(self, members: Iterable[int]) -> float:
        return sum(self.weights[member] for member in members)

    def _tally(self, votes: Iterable[tuple[K, int]]) -> dict[K, float]:
        """Sum the weights per key, in order of the first votes."""
        tally: dict[K, float] = {}
        for key, member in votes:
            tally[key] = tally.get(key, 0.0) + self.weights[member]
        return tally

    def _written(self, member: int) -> str:
        return self.ballots[member].answer_value.strip()

    def _spelling(self, members: Iterable[int]) -> str:
        return _heaviest(self._tally((self._written(member), member) for member in members))[0]

    def verdict(self) -> Verdict:
        """Choose the answer by the members that may vote, then its references."""
        voters = self._voters()
        if not voters:
            return self._abstention(0)
        if self.rule.strategy == "first_non_blank":
            return self._first(voters)
        pool = voters
        if self.rule.strategy == "ref_priority":
            chosen = self._common_set(voters)
            pool = [member for member in voters if self._ref_key(member) == chosen]
        group = self._winning_group(pool)
        if group < 0:
            return self._abstention(len(voters))
        runs = [member for member in pool if self.group_of[member] == group]
        return self._answer(runs, self._references(runs, voters), len(voters))

    def _voters(self) -> list[int]:
        """Apply the blank rules; nobody votes when the quorum of blanks is reached or all are blank."""
        everyone = range(len(self.ballots))
        answered = [member for member in everyone if not self.blank[member]]
        n_blank = len(self.ballots) - len(answered)
        quorum = self.rule.blank_quorum
        if quorum is not None:
            return [] if n_blank >= quorum * len(self.ballots) - _EPSILON else answered
        return answered if self.rule.ignore_blank else list(everyone)

    def _winning_group(self, pool: Sequence[int]) -> int:
        """Find the heaviest group among some members; -1 where the blanks win or a tie is a blank."""
        votes = self._tally((self.group_of[member], member) for member in pool)
        group, tied = _heaviest(votes)
        if self.compat:
            tied = len(votes) == len(pool) > 1
        return -1 if tied and self.rule.tiebreak == "blank" else group

    def _ref_key(self, member: int) -> frozenset[str]:
        refs = self.refs[member]
        return frozenset(refs) if self.compat else frozenset(ref.lower() for ref in refs)

    def _common_set(self, members: Iterable[int]) -> frozenset[str]:
        return _heaviest(self._tally((self._ref_key(member), member) for member in members))[0]

    def _references(self, runs: Sequence[int], voters: Sequence[int]) -> tuple[str, ...]:
        """Choose the references by the strategy, in the order of first citation."""
        strategy = self.rule.strategy
        if strategy == "union":
            return self._cite(runs)
        if strategy == "majority":
            return self._cite(range(len(self.ballots)))
        if strategy == "intersection":
            return self._cite(runs, frozenset.intersection(*map(self._ref_key, runs)))
        if strategy == "ref_priority":
            return self._cite(runs[:1])
        pool = voters if strategy == "independent" else runs
        if self.rule.refs == "share":
            return self._cite(pool, self._cited_by_half(pool))
        chosen = self._common_set(pool)
        return self._cite([member for member in pool if self._ref_key(member) == chosen])

    def _cited_by_half(self, members: Sequence[int]) -> frozenset[str]:
        votes = self._tally((ref, member) for member in members for ref in self._ref_key(member))
        half = self._weigh(members) / 2 - _EPSILON
        return frozenset(key for key, weight in votes.items() if weight >= half)

    def _cite(self, members: Iterable[int], among: frozenset[str] | None = None) -> tuple[str, ...]:
        """List references in the order in which members first cite them, each in its first spelling."""
        seen: dict[str, str] = {}
        for member in members:
            for ref in self.refs[member]:
                seen.setdefault(ref if self.compat else ref.lower(), ref)
        refs = [ref for key, ref in seen.items() if among is None or key in among]
        return tuple(sorted(refs) if self.compat else refs)

    def _answer(self, runs: Sequence[int], refs: tuple[str, ...], n_votes: int) -> Verdict:
        spelling = self._written(runs[0]) if self.compat else self._spelling(runs)
        cited = frozenset(refs) if self.compat else frozenset(ref.lower() for ref in refs)
        spelled = [member for member in runs if self._written(member) == spelling]
        winner = next((member for member in spelled if self._ref_key(member) == cited), spelled[0])
        return self._verdict(winner, n_votes, spelling, refs)

    def _first(self, voters: Sequence[int]) -> Verdict:
        answered = [member for member in voters if not self.blank[member]]
        if not answered:
            return self._abstention(len(voters))
        return self._answer(answered[:1], self._cite(answered[:1]), len(voters))

    def _abstention(self, n_votes: int) -> Verdict:
        blanks = [member for member, blank in enumerate(self.blank) if blank]
        silent = blanks[0] if blanks else None
        winner = next((member for member in blanks if self.ballots[member].explanation.strip()), silent)
        return self._verdict(winner, n_votes)

    def _verdict(
        self, winner: int | None, n_votes: int, answer_value: str | None = None, refs: tuple[str, ...] = ()
    ) -> Verdict:
        """Show a member's answer; without a value the ensemble abstains."""
        shown = Ballot() if winner is None else self.ballots[winner]
        return Verdict(
            answer_value=answer_value or "",
            is_blank=answer_value is None,
            ref_ids=refs,
            winner=winner,
            answer=shown.answer,
            answer_unit=shown.answer_unit,
            explanation=shown.explanation,
            groups=self.groups,
            n_votes=n_votes,
        )


def _abstains(ballot: Ballot, compat: bool) -> bool:
    """Tell whether a member abstains; the published script knows only two spellings of an abstention."""
    if ballot.is_blank:
        return True
    return ballot.answer_value.strip() in {"", "is_blank"} if compat else is_abstention(ballot.answer_value)


def _heaviest(votes: Mapping[K, float]) -> tuple[K, bool]:
    """Find the key with most votes, ties to the earliest; returns too whether there was a tie."""
    best = max(votes.values()) - _EPSILON
    top = [key for key, weight in votes.items() if weight >= best]
    return top[0], len(top) > 1
