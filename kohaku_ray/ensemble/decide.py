"""Early stopping: whether the first members' ballots decide a question, whatever the others vote.

Members answer in waves and in member order, so those that have answered are always the first k of m. Each of the
others may cast any ballot, so an outcome is final exactly when no combination of their ballots changes it. A vote
supports one key only, so the strongest change is that all of them agree. Every check is therefore a count: could one
rival, with all remaining votes, overtake the leader?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from kohaku_ray.ensemble.pool import unit_of
from kohaku_ray.ensemble.rule import Ballot, Stop
from kohaku_ray.ensemble.settings import VoteRule
from kohaku_ray.ensemble.vote import Verdict, vote_all
from kohaku_ray.errors import ConfigError
from kohaku_ray.values.normalise import read_quantity, unit_of_question
from kohaku_ray.values.read import is_blank
from kohaku_ray.values.spelling import ref_key

K = TypeVar("K", bound=Hashable)

_BLANK = -1  # the blanks' group
_EPSILON = 1e-9  # as in vote: a share of blanks within this of the quorum reaches it


def settled(ballots: Sequence[Ballot], n_members: int, rule: VoteRule, stop: Stop, unit: str | None = None) -> bool:
    """Tell of one question whether no ballots of the remaining members could change its outcome: ``settle_all``."""
    return settle_all([ballots], n_members, rule, stop, [unit])[0]


def settle_all(
    table: Sequence[Sequence[Ballot]], n_members: int, rule: VoteRule, stop: Stop, units: Sequence[str | None]
) -> list[bool]:
    """Tell of each question whether no ballots of the remaining members could change its outcome.

    Exact for every strategy, blank rule, tie rule and ``compat``: it is true as soon as all possible remaining ballots
    give the outcome of ``vote(ballots)``, and false while some give another. Two cases never settle early:
    ``weights: agreement``, which needs all votes; and, with ``stop: row``, an answer of ``union`` or ``majority``,
    since each remaining member may add a reference (their abstentions do settle).

    Args:
        table: By question, the ballots of the first members, in member order; none while no member has answered.
        n_members: Number of members in all.
        rule: The rule they are counted by.
        stop: What must be final: ``value``, the winning group or the abstention, but not its spelling; ``row``, the
            whole row to the byte, the member shown included; ``never``, which waits for all.
        units: By question, its answer unit.

    Raises:
        ConfigError: There are more ballots than members, or ballots differ in weight: votes are counted here.
    """
    most = max(map(len, table), default=0)
    if most > n_members:
        raise ConfigError(f"There are {most} ballots but only {n_members} members: give each member's ballot once.")
    is_settled = [len(ballots) == n_members for ballots in table]
    if stop == "never" or rule.weights == "agreement":
        return is_settled
    undecided = [question for question, has_ended in enumerate(is_settled) if not has_ended]
    weighed = next((ballot for question in undecided for ballot in table[question] if ballot.weight != 1.0), None)
    if weighed is not None:
        raise ConfigError(
            f"early_stop is {stop} but a ballot for {weighed.answer_value!r} weighs {weighed.weight:g}: which votes "
            "decide is counted for ballots of weight 1, so set ensemble.early_stop to never."
        )
    verdicts = vote_all([table[question] for question in undecided], rule, [units[question] for question in undecided])
    for question, verdict in zip(undecided, verdicts, strict=True):
        n_left = n_members - len(table[question])
        state = _VerdictState(table[question], n_left, rule, verdict, unit_of(table[question], units[question]))
        is_open = rule.compat is None and not units[question] and _is_unit_open(table[question], n_left)
        is_settled[question] = not is_open and state.is_final(stop)
    return is_settled


def default_waves(n_members: int) -> tuple[int, ...]:
    """Split members into waves: a bare majority first, then one by one, as (5, 1, 1, 1, 1).

    Raises:
        ConfigError: There is no member.
    """
    if n_members < 1:
        raise ConfigError(f"An ensemble of {n_members} members has no waves: it needs at least 1 member.")
    first = n_members // 2 + 1
    return (first, *[1] * (n_members - first))


def _is_unit_open(ballots: Sequence[Ballot], n_left: int) -> bool:
    """Tell whether a question that asks for no unit may yet get another one from its members: ``unit_of_question``.

    That is the most common one named, of equal ones the first: so many members as are left may name another.
    """
    answers = [ballot for ballot in ballots if not ballot.is_blank]
    values = [read_quantity(ballot.answer_value, ballot.answer_unit, None) for ballot in answers]
    numbers = [quantity for quantity in values if quantity.value.numbers]
    named = [unit_of_question(None, [ballot.answer_unit]) for ballot in answers]
    if not any(named):  # "77 MWh" would be written anew in a unit that a later member names
        return any(quantity.value.dimension for quantity in numbers)
    measured = {unit_of_question(q.unit if q.value.dimension else "", ()) for q in numbers}
    top = unit_of_question(None, named)

    def may_become_top(unit: str) -> bool:
        most, n_top = named.count(unit) + n_left, named.count(top)
        return most > n_top or (most == n_top and unit in named[: named.index(top)])

    return len(measured) > 1 or any(may_become_top(unit) for unit in {*named, "not named yet"} - {"", top})


class _VerdictState:
    """The verdict of the members so far, and whether the remaining ones could change it."""

    def __init__(self, ballots: Sequence[Ballot], n_left: int, rule: VoteRule, verdict: Verdict, unit: str) -> None:
        self.ballots, self.n_left, self.rule, self.verdict, self.unit = ballots, n_left, rule, verdict, unit
        # remaining members join these groups or open new ones: membership depends only on a group's first member
        self.answers = [_BLANK] * len(ballots)
        for number, group in enumerate(self.verdict.groups):
            for member in group.members:
                self.answers[member] = _BLANK if group.is_blank else number
        self.refs = [
            frozenset() if answer == _BLANK else self._ref_set(ballot.ref_ids)
            for ballot, answer in zip(ballots, self.answers, strict=True)
        ]
        blanks_vote = rule.blank_quorum is None and not rule.ignore_blank
        self.voters = [member for member, answer in enumerate(self.answers) if blanks_vote or answer != _BLANK]
        shown = self.verdict.winner
        self.leader = _BLANK if self.verdict.is_blank or shown is None else self.answers[shown]

    def _ref_set(self, refs: Iterable[str]) -> frozenset[str]:
        """Compare references as the vote does."""
        if self.rule.compat:
            return frozenset(refs)
        return frozenset(ref_key(ref) for ref in refs if not is_blank(ref))

    def is_final(self, stop: Stop) -> bool:
        if self.rule.blank_quorum is not None:
            n_blank = self.answers.count(_BLANK)
            quorum = self.rule.blank_quorum * (len(self.ballots) + self.n_left) - _EPSILON
            if n_blank >= quorum:
                return stop == "value" or self._abstention_stays()
            if n_blank + self.n_left >= quorum:
                return False
        if self.rule.strategy == "first_non_blank":
            answer_stays = not self.verdict.is_blank
        elif self.rule.strategy != "ref_priority":
            answer_stays = self._leads(self.voters)
        else:  # another reference set may win, as long as the same answer wins among its runs
            winners = _contenders(self._count_refs(self.voters), self.n_left)
            runs = ([member for member in self.voters if self.refs[member] == refs] for refs in winners)
            answer_stays = all(map(self._leads, runs))
        return answer_stays and (stop == "value" or self._row_stays())

    def _leads(self, pool: Sequence[int]) -> bool:
        """Tell whether the answer so far wins among some members, whichever remaining members join them."""
        votes = Counter(self.answers[member] for member in pool)
        lead = votes[self.leader]
        if self.rule.tiebreak == "first" or self.rule.compat:
            # in the published script, a tie (no two gave the same string) is possible while the answer has one vote
            tie_open = self.rule.tiebreak == "blank" and self.leader != _BLANK and lead < 2
            return not tie_open and _contenders(votes, self.n_left) == [self.leader]
        del votes[self.leader]
        strongest = max(votes.values(), default=0) + self.n_left
        return strongest <= lead if self.leader == _BLANK else strongest < lead

    def _row_stays(self) -> bool:
        """Tell whether the written row is final, given that the answer is."""
        shown = self.verdict.winner
        if self.verdict.is_blank or shown is None:
            return self._abstention_stays()
        if self.rule.strategy == "first_non_blank":
            return True
        runs = [member for member in self.voters if self.answers[member] == self.leader]
        if self.rule.strategy == "ref_priority":
            runs = [member for member in runs if self.refs[member] == self.refs[shown]]
        spellings = Counter(self._spell(self.ballots[member]) for member in runs)
        return (
            len(_contenders(spellings, self.n_left)) == 1
            and self._refs_stay(runs)
            # a member that cites the written references stays shown; any other is replaced by one that does
            and self.refs[shown] == self._ref_set(self.verdict.ref_ids)
        )

    def _spell(self, ballot: Ballot) -> str:
        if self.rule.compat:
            return ballot.answer_value.strip()
        return read_quantity(ballot.answer_value, ballot.answer_unit, self.unit).text

    def _refs_stay(self, runs: Sequence[int]) -> bool:
        strategy = self.rule.strategy
        if strategy in ("union", "majority"):
            return False
        if strategy == "intersection":
            return not self.verdict.ref_ids
        pool = runs if strategy == "answer_priority" else self.voters
        if strategy == "ref_priority" or self.rule.refs == "set":
            return len(_contenders(self._count_refs(pool), self.n_left)) == 1
        # Half of the runs cite the same references, whether all remaining members cite one of them or none does.
        n_cites = Counter(ref for member in pool for ref in self.refs[member])
        n_pool, n_left = len(pool), self.n_left
        return n_left < n_pool and all(
            2 * n >= n_pool + n_left or 2 * (n + n_left) < n_pool + n_left for n in n_cites.values()
        )

    def _count_refs(self, members: Iterable[int]) -> Counter[frozenset[str]]:
        return Counter(self.refs[member] for member in members)

    def _abstention_stays(self) -> bool:
        """Tell whether the member shown with an abstention is final: the first blank one with an explanation."""
        return any(
            ballot.explanation.strip()
            for ballot, answer in zip(self.ballots, self.answers, strict=True)
            if answer == _BLANK
        )


def _contenders(votes: Mapping[K, int], n_left: int) -> list[K | None]:
    """List the keys that could still get the most votes, ties to the earliest, the leader so far among them.

    ``votes`` are those so far, keys in order of their first vote; None stands for any key without one.
    """
    most = max(votes.values(), default=0)
    contenders: list[K | None] = []
    needed = most  # ties with the leader go to the keys before it, and to itself
    for key, n_votes in votes.items():
        if n_votes + n_left >= needed:
            contenders.append(key)
        if n_votes == most:
            needed = most + 1
    return [*contenders, None] if n_left > most else contenders
