"""The vote, member by member: what ``vote`` counts with arrays, told again to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kohaku_ray.ensemble.vote import AnswerGroup, Ballot, Verdict, VoteRule
from kohaku_ray.values.normalise import Quantity, group_values, read_quantity, unit_of_question
from kohaku_ray.values.read import is_abstention, is_blank

_EPSILON = 1e-9


def plain_vote(
    ballots: Sequence[Ballot], rule: VoteRule, unit: str | None = None, member_weights: Sequence[float] | None = None
) -> Verdict:
    given = [1.0] * len(ballots) if member_weights is None else [float(weight) for weight in member_weights]
    weights = tuple(weight * ballot.weight for weight, ballot in zip(given, ballots, strict=True))
    return _Count(ballots, rule, unit, weights).verdict()


class _Count:
    def __init__(self, ballots: Sequence[Ballot], rule: VoteRule, unit: str | None, weights: tuple[float, ...]) -> None:
        self.ballots, self.rule, self.weights = ballots, rule, weights
        self.compat = rule.compat == "kohakurag"
        self.blank = [_abstains(ballot, self.compat) for ballot in ballots]
        self.refs = [() if blank else self._refs_of(ballot) for ballot, blank in zip(ballots, self.blank, strict=True)]
        self.unit = unit_of_question(
            unit, ["" if blank else ballot.answer_unit for ballot, blank in zip(ballots, self.blank, strict=True)]
        )
        self.group_of = self._grouped(self.unit)
        self.groups = self._groups()

    def _refs_of(self, ballot: Ballot) -> tuple[str, ...]:
        if self.compat:
            return tuple(sorted(set(ballot.ref_ids)))
        seen: dict[str, str] = {}
        for ref in ballot.ref_ids:
            if not is_blank(ref):
                seen.setdefault(ref.strip().lower(), ref.strip())
        return tuple(seen.values())

    def _grouped(self, unit: str | None) -> list[int]:
        values = ["" if blank else ballot.answer_value for ballot, blank in zip(self.ballots, self.blank, strict=True)]
        if not self.compat:
            return group_values(values, unit, [ballot.answer_unit for ballot in self.ballots])
        first: dict[str, int] = {}
        return [-1 if not value else first.setdefault(value.strip(), len(first)) for value in values]

    def _groups(self) -> tuple[AnswerGroup, ...]:
        members: dict[int, list[int]] = {}
        for member, group in enumerate(self.group_of):
            members.setdefault(group, []).append(member)
        return tuple(
            AnswerGroup("" if group < 0 else self._spelling(of), tuple(of), self._weigh(of), group < 0)
            for group, of in members.items()
        )

    def _weigh(self, members: Iterable[int]) -> float:
        return sum(self.weights[member] for member in members)

    def _tally(self, votes: Iterable[tuple[Any, int]]) -> dict[Any, float]:
        tally: dict[Any, float] = {}
        for key, member in votes:
            tally[key] = tally.get(key, 0.0) + self.weights[member]
        return tally

    def _written(self, member: int) -> str:
        return self.ballots[member].answer_value.strip() if self.compat else self._quantity(member).text

    def _quantity(self, member: int) -> Quantity:
        ballot = self.ballots[member]
        return read_quantity(ballot.answer_value, ballot.answer_unit, self.unit)

    def _spelling(self, members: Iterable[int]) -> str:
        return _heaviest(self._tally((self._written(member), member) for member in members))[0]

    def verdict(self) -> Verdict:
        voters = self._voters()
        if not voters:
            return self._abstention(0)
        if self.rule.strategy == "first_non_blank":
            answered = [member for member in voters if not self.blank[member]][:1]
            return (
                self._answer(answered, self._cite(answered), len(voters)) if answered else self._abstention(len(voters))
            )
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
        everyone = range(len(self.ballots))
        answered = [member for member in everyone if not self.blank[member]]
        n_blank = len(self.ballots) - len(answered)
        quorum = self.rule.blank_quorum
        if quorum is not None:
            return [] if n_blank >= quorum * len(self.ballots) - _EPSILON else answered
        return answered if self.rule.ignore_blank else list(everyone)

    def _winning_group(self, pool: Sequence[int]) -> int:
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

    def _abstention(self, n_votes: int) -> Verdict:
        blanks = [member for member, blank in enumerate(self.blank) if blank]
        silent = blanks[0] if blanks else None
        winner = next((member for member in blanks if self.ballots[member].explanation.strip()), silent)
        return self._verdict(winner, n_votes)

    def _verdict(
        self, winner: int | None, n_votes: int, value: str | None = None, refs: tuple[str, ...] = ()
    ) -> Verdict:
        shown = Ballot() if winner is None else self.ballots[winner]
        unit = shown.answer_unit if self.compat or winner is None else self._quantity(winner).unit
        texts = (shown.answer, unit, shown.explanation)
        return Verdict(value or "", value is None, refs, winner, *texts, self.groups, n_votes)


def _abstains(ballot: Ballot, compat: bool) -> bool:
    if ballot.is_blank:
        return True
    return ballot.answer_value.strip() in {"", "is_blank"} if compat else is_abstention(ballot.answer_value)


def _heaviest(votes: Mapping[Any, float]) -> tuple[Any, bool]:
    best = max(votes.values()) - _EPSILON
    top = [key for key, weight in votes.items() if weight >= best]
    return top[0], len(top) > 1
