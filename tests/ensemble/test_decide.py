"""``settled`` against the vote itself: every future of small ensembles, the worst future of large ones.

Soundness: where it is true, no future has another outcome. Completeness: where it is false, some future has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.plain_vote import plain_vote as vote
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.ensemble.decide import default_waves, settled
from kohaku_ray.ensemble.vote import Ballot, Verdict, VoteRule
from kohaku_ray.errors import ConfigError

STRATEGIES = ("answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank")
RULES = [
    VoteRule(
        strategy=strategy,
        ignore_blank=ignore_blank,
        blank_quorum=quorum,
        refs=refs,
        weights="uniform",
        tiebreak=tiebreak,
        compat=compat,
    )
    for strategy, (ignore_blank, quorum), refs, tiebreak, compat in product(
        STRATEGIES,
        [(True, None), (False, None), (False, 0.5)],
        ["set", "share"],
        ["first", "blank"],
        [None, "kohakurag"],
    )
    if refs == "set" or strategy in ("answer_priority", "independent")
]


def test_ballots_that_differ_in_weight_are_refused_unless_all_vote():
    weighed = [Ballot("yes", weight=0.5), Ballot("yes")]
    with pytest.raises(ConfigError, match=r"early_stop is row but a ballot for 'yes' weighs 0\.5: .* to never"):
        settled(weighed, 3, VoteRule(), "row")
    assert not settled(weighed, 3, VoteRule(), "never")
    assert settled(weighed, 2, VoteRule(), "row"), "all have voted"


def name(rule: VoteRule) -> str:
    blanks = f"quorum{rule.blank_quorum}" if rule.blank_quorum else "ignore" if rule.ignore_blank else "voting"
    return f"{rule.strategy}-{blanks}-{rule.refs}-{rule.tiebreak}-{rule.compat or 'ours'}"


def sign(ballot: Ballot, member: int) -> Ballot:
    """Let a member answer and explain in its own words, so that a row tells who is shown; the silent stay silent."""
    why = f"why {member}" if ballot.explanation.strip() else ballot.explanation
    return replace(ballot, answer=f"answer {member}", answer_unit=f"unit {member}", explanation=why)


def signed(ballots: Sequence[Ballot], first: int = 0) -> list[Ballot]:
    return [sign(ballot, member) for member, ballot in enumerate(ballots, first)]


def ballot(value: str, refs: Sequence[str] = ()) -> Ballot:
    return Ballot(value, tuple(refs), explanation="why")


def row(verdict: Verdict) -> Verdict:
    """All that is written, and whose it is."""
    return replace(verdict, groups=(), n_votes=0)


def group_of(verdict: Verdict, member: int | None) -> int:
    return next(number for number, group in enumerate(verdict.groups) if member in group.members)


def holds(stop: str, so_far: Verdict, full: Verdict) -> bool:
    """The promise of a stop: the same row, or the same answer as the full vote groups answers."""
    if stop == "row":
        return row(so_far) == row(full)
    if so_far.is_blank or full.is_blank:
        return so_far.is_blank == full.is_blank
    return group_of(full, so_far.winner) == group_of(full, full.winner)


SILENT = Ballot(is_blank=True)
NEAR = ballot("5.001", "b")
LETTERS = (
    ballot("5", "a"),
    ballot("5.0", "a"),
    NEAR,
    ballot("7", "a"),
    ballot("7", ""),
    ballot("7", "ab"),
    ballot("", "a"),  # a blank's references count for nothing
    SILENT,
)


PLAINER = {"1-2": "[1,2]", "True": "1"}
"""What a strict scorer reads of values that it does not: a vote writes it before them."""


def worst_letters(cast: Sequence[Ballot], rule: VoteRule) -> list[Ballot]:
    """All that can matter: each value and reference set, said, written or fresh, in pairs; and blanks."""
    said = [item.answer_value for item in cast]
    values = dict.fromkeys([*said, *(PLAINER[value] for value in said if value in PLAINER), "new"])
    refs = dict.fromkeys([item.ref_ids for item in cast] + [vote(cast, rule).ref_ids, ("z",), ()])
    return [*(ballot(value, cited) for value in values for cited in refs), ballot(""), SILENT]


def check_every_future(cast: Sequence[Ballot], n_left: int, rule: VoteRule) -> list[str]:
    """Compare both stops with all futures of the worst letters; return which are settled."""
    letters = dict.fromkeys([*worst_letters(cast, rule), NEAR])
    cast = signed(cast)
    so_far = vote(cast, rule)
    states = {stop: settled(cast, len(cast) + n_left, rule, stop) for stop in ("value", "row")}
    moved = dict.fromkeys(states, False)
    said_by = [[sign(letter, len(cast) + i) for letter in letters] for i in range(n_left)]
    # those who agree come first: what is not settled is then soon found to move
    for more in chain(zip(*said_by, strict=True), product(*said_by)):
        full = vote([*cast, *more], rule)
        for stop, state in states.items():
            if not moved[stop] and not holds(stop, so_far, full):
                assert not state, f"{stop} is settled after {cast} but moves with {more}"
                moved[stop] = True
        if all(moved.values()):
            break
    assert states == {stop: not item for stop, item in moved.items()}, f"nothing moves {cast} with {n_left} left"
    return [stop for stop, state in states.items() if state]


@check_rows("rule", RULES)
def test_settled_means_that_no_future_of_three_members_moves_the_outcome_and_only_that(rule):
    stops = [
        stop
        for k, n_left in [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)]
        for cast in product(LETTERS, repeat=k)
        for stop in check_every_future(cast, n_left, rule)
    ]
    assert "value" in stops
    # whoever is left may bring a reference more; only an abstention settles, where blanks can make one for good
    never = rule.strategy in ("union", "majority") and rule.ignore_blank and rule.blank_quorum is None
    assert ("row" in stops) != never


values = st.sampled_from(["5", "5.0", "5.004", "5.008", "7", "GPT-3", "gpt-3", "[1,2]", "1-2", "True", "", "N/A"])
references = st.lists(st.sampled_from(["a", "b", "B", "c", "is_blank"]), max_size=3).map(tuple)
letters = st.builds(Ballot, answer_value=values, ref_ids=references, explanation=st.sampled_from(["why", "", " "]))


@st.composite
def casts(draw, most=15):
    """Up to ``most`` ballots of one to four kinds, so that many agree."""
    kinds = draw(st.lists(letters, min_size=1, max_size=4))
    return draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=most))


rules = st.sampled_from(RULES).flatmap(
    lambda rule: st.builds(
        lambda quorum: rule.model_copy(update={"blank_quorum": quorum}),
        st.just(rule.blank_quorum) | st.floats(0.05, 1.0),
    )
)
stops = st.sampled_from(["value", "row"])


@settings(max_examples=scaled(400))
@given(casts(), rules)
def test_what_is_settled_is_what_all_members_decide(cast, rule):
    cast = signed(cast)
    full = vote(cast, rule)
    for stop in ("value", "row"):
        states = [settled(cast[:k], len(cast), rule, stop) for k in range(len(cast) + 1)]
        assert states == sorted(states), f"{stop} is settled and then it is not"
        assert states[-1]
        assert all(holds(stop, vote(cast[:k], rule), full) for k, state in enumerate(states) if state)


@settings(max_examples=scaled(400))
@given(casts(most=14), st.integers(1, 8), rules, stops, st.data())
def test_a_large_ensemble_is_settled_where_the_rest_agreeing_on_anything_moves_nothing(cast, n_left, rule, stop, data):
    worst = worst_letters(cast, rule)
    cast = signed(cast)
    so_far = vote(cast, rule)

    def moves(more: Sequence[Ballot]) -> bool:
        return not holds(stop, so_far, vote([*cast, *signed(more, len(cast))], rule))

    state = settled(cast, len(cast) + n_left, rule, stop)
    agreeing = [letter for letter in worst if moves([letter] * n_left)]
    assert state == (not agreeing), agreeing[:1]
    if state:
        more = st.one_of(letters, st.sampled_from(cast), st.sampled_from(worst))
        assert not moves(data.draw(st.lists(more, min_size=n_left, max_size=n_left)))


def said(*pairs: tuple[str, str]) -> list[Ballot]:
    return signed([ballot(value, refs) for value, refs in pairs])


FIVE = ("5", "a")


def test_the_unit_makes_one_answer():
    cast = said(("2 kWh", "a"), ("2000", "a"), ("2000 Wh", "a"))
    assert settled(cast, 5, VoteRule(), "value", unit="Wh")
    assert not settled(cast, 5, VoteRule(), "value")


def test_a_question_without_a_unit_is_open_while_its_members_may_yet_give_it_another():
    def settles(*units: str, value: str = "77") -> tuple[bool, bool]:
        cast = [Ballot(value, ("a",), explanation="why", answer_unit=unit) for unit in units]
        return settled(cast, 5, VoteRule(), "value"), settled(cast, 5, VoteRule(), "row")

    assert settles("kWh", "kWh", "kWh") == settles("", "", "") == (True, True)
    assert settles("kWh", "", "kWh") == settles("kWh", "MWh", "kWh") == (False, False)
    assert settles("kWh", "", "kWh", value="GPT-4") == (True, True)


unit_ballots = st.builds(
    Ballot,
    answer_value=st.sampled_from(["77", "77000", "0.077", "5", "77 MWh", "GPT"]),
    ref_ids=st.sampled_from([("a",), ("b",)]),
    answer_unit=st.sampled_from(["kWh", "MWh", "", "units", "kg"]),
    explanation=st.just("why"),
)


@settings(max_examples=scaled(400))
@given(st.lists(unit_ballots, min_size=1, max_size=7), rules, st.sampled_from([None, "kWh"]))
def test_what_is_settled_with_units_is_what_all_members_decide(cast, rule, unit):
    cast = [replace(ballot, answer=f"answer {number}") for number, ballot in enumerate(cast)]
    full = vote(cast, rule, unit)
    for stop in ("value", "row"):
        for k in range(len(cast)):
            if settled(cast[:k], len(cast), rule, stop, unit):
                assert holds(stop, vote(cast[:k], rule, unit), full), (stop, k)


@pytest.mark.parametrize("stop", ["never", "value", "row"])
@pytest.mark.parametrize("weights", ["uniform", "agreement"])
def test_without_a_stop_or_with_agreement_only_all_members_settle_it(stop, weights):
    cast = said(*[FIVE] * 9)
    states = [settled(cast[:k], 9, VoteRule(weights=weights), stop) for k in range(10)]
    assert states == (
        [False] * 5 + [True] * 5
        if (stop, weights) in {("value", "uniform"), ("row", "uniform")}
        else [False] * 9 + [True]
    )


def test_more_ballots_than_members_are_named():
    with pytest.raises(ConfigError, match="There are 3 ballots but only 2 members"):
        settled(said(*[FIVE] * 3), 2, VoteRule(), "value")


def test_the_default_waves_are_a_bare_majority_then_one_by_one():
    assert [default_waves(m) for m in (1, 2, 3, 4, 5, 9)] == [
        (1,),
        (2,),
        (2, 1),
        (3, 1),
        (3, 1, 1),
        (5, 1, 1, 1, 1),
    ]
    for m in range(1, 33):
        assert sum(default_waves(m)) == m
        assert default_waves(m)[0] == m // 2 + 1
    with pytest.raises(ConfigError, match=r"ensemble of 0 members .* at least 1"):
        default_waves(0)
