from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.plain_vote import plain_vote
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.ensemble.vote import Ballot, Verdict, VoteRule, vote, vote_all
from kohaku_ray.errors import ConfigError

STRATEGIES = ("answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank")


def ballots(*pairs: tuple[str, str]) -> list[Ballot]:
    """A ballot a pair of a value and its references, one letter each."""
    return [Ballot(value, tuple(refs), explanation=f"member {i}") for i, (value, refs) in enumerate(pairs)]


def outcome(verdict: Verdict) -> tuple[str, str]:
    return verdict.answer_value, "".join(verdict.ref_ids)


EXAMPLE = ballots(("5", "ab"), ("7", "c"), ("5.001", "b"), ("7", "c"), ("5.0", "ba"), ("9", "c"))


@check_rows(
    ("strategy", "expected"),
    [
        ("answer_priority", ("5", "ab")),  # 5, 5.001 and 5.0 are one answer; {a, b} twice among its runs
        ("independent", ("5", "c")),  # {c} three times over all runs
        ("ref_priority", ("7", "c")),  # {c} wins first; 7 twice among its runs
        ("union", ("5", "ab")),
        ("intersection", ("5", "b")),
        ("majority", ("5", "abc")),
        ("first_non_blank", ("5", "ab")),
    ],
)
def test_every_strategy_by_hand(strategy, expected):
    assert outcome(vote(EXAMPLE, VoteRule(strategy=strategy))) == expected


def test_the_verdict_tells_how_it_came_about():
    verdict = vote([*EXAMPLE, Ballot(is_blank=True)], VoteRule())
    assert [(group.answer_value, group.members, group.weight) for group in verdict.groups] == [
        ("5", (0, 2, 4), 3.0),
        ("7", (1, 3), 2.0),
        ("9", (5,), 1.0),
        ("", (6,), 1.0),
    ]
    assert [group.is_blank for group in verdict.groups] == [False, False, False, True]
    assert (verdict.n_votes, verdict.winner, verdict.explanation) == (6, 0, "member 0")


def test_blanks_vote_only_when_they_are_not_ignored():
    cast = ballots(("", "a"), ("is_blank", ""), ("5", "a"), ("None", ""))
    assert outcome(vote(cast, VoteRule(ignore_blank=True))) == ("5", "a")
    verdict = vote(cast, VoteRule(ignore_blank=False))
    assert (verdict.is_blank, outcome(verdict), verdict.winner) == (True, ("", ""), 0)
    assert outcome(vote(cast, VoteRule(strategy="first_non_blank", ignore_blank=False))) == ("5", "a")


@check_rows("strategy", [name for name in STRATEGIES if name != "first_non_blank"])
def test_a_tie_goes_to_the_earliest_member_or_to_a_blank(strategy):
    cast = ballots(("7", "a"), ("5", "a"), ("5", "a"), ("7", "a"))
    assert outcome(vote(cast, VoteRule(strategy=strategy))) == ("7", "a")
    verdict = vote(cast, VoteRule(strategy=strategy, tiebreak="blank"))
    assert (verdict.is_blank, verdict.ref_ids, verdict.winner) == (True, (), None)


def test_references_in_other_unicode_forms_are_one():
    cast = [Ballot("5", ("Zu\u0308rnäk",)), Ballot("5", ("b",)), Ballot("5", ("Zürnäk",)), Ballot("5", ("Ｂ", "c"))]
    assert vote(cast, VoteRule()).ref_ids == ("Zu\u0308rnäk",)
    assert vote(cast, VoteRule(strategy="union")).ref_ids == ("Zu\u0308rnäk", "b", "c")


def test_a_ballots_weight_counts_times_its_members():
    sure, unsure = Ballot("b", ("a",), weight=0.95), Ballot("a", ("b",), weight=0.4)
    verdict = vote([unsure, unsure, sure], VoteRule())
    assert (verdict.answer_value, verdict.winner, verdict.ref_ids) == ("b", 2, ("a",))
    assert [group.weight for group in verdict.groups] == [0.8, 0.95]
    assert vote([unsure, unsure, sure], VoteRule(), member_weights=[2, 1, 1]).answer_value == "a"


@pytest.mark.parametrize("weight", [0.0, -0.5, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_named(weight):
    with pytest.raises(ConfigError, match=rf"A ballot for 'no' weighs {weight}: let the system's `ballot`"):
        vote([Ballot("no", weight=weight)], VoteRule())


@check_rows(
    ("values", "unit", "written", "kept"),
    [  # issue 55, number 10; predictions q263, q296
        (["≈4.3", "≈4.3", "4.3"], None, "4.3", "≈4.3"),
        (["US$ 4.6M", "US$ 4.6M", "4600000"], "USD", "4600000", "US$ 4.6M"),
        (["80-90", "80–90", "80–90"], "percent", "[80,90]", "80–90"),
        (["300 Watts to 1 Kilowatt"], "W", "[300,1000]", "300 Watts to 1 Kilowatt"),
        (["TRUE", "True", "True"], None, "1", "True"),
        (["1.65, 0.5 and 3"], None, "(0.5, 1.65, 3)", "1.65, 0.5 and 3"),
        (["(29,49)"], "percent", "(29, 49)", "(29,49)"),
        (["gpt 4", "GPT-4", "GPT-4"], None, "GPT-4", "GPT-4"),
        (["prefill and decode"], None, "prefill and decode", "prefill and decode"),
        (["5.0", "5", "5"], None, "5", "5"),
    ],
)
def test_a_value_is_written_as_metrics_read_it_or_as_members_spell_it(values, unit, written, kept):
    cast = ballots(*((value, "a") for value in values))
    for rule in (VoteRule(), VoteRule(strategy="ref_priority")):
        verdict = vote(cast, rule, unit)
        assert outcome(verdict) == (written, "a")
        assert verdict.groups[0].answer_value == written
        verdict = vote(cast, rule, unit, keep_spellings=True)
        assert (outcome(verdict), values[verdict.winner]) == ((kept, "a"), kept)
    assert vote(cast, VoteRule(compat="kohakurag"), unit).answer_value in values


def measured(*pairs: tuple[str, str]) -> list[Ballot]:
    return [Ballot(value, ("a",), answer_unit=unit) for value, unit in pairs]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("unit", ["kWh", None])
def test_a_value_is_a_quantity_in_its_own_unit(unit, keep):  # PortOS#7304
    cast = measured(("77", "kWh"), ("77", "MWh"), ("77000", "kWh"))
    verdict = vote(cast, VoteRule(), unit, keep_spellings=keep)
    assert (verdict.answer_value, verdict.answer_unit, verdict.groups[1].members) == ("77000", "kWh", (1, 2))
    assert [group.answer_value for group in verdict.groups] == ["77", "77000"]
    alone = vote(cast[1:2], VoteRule(), unit, keep_spellings=keep)
    assert (alone.answer_value, alone.answer_unit) == (("77000", "kWh") if unit else ("77", "MWh"))


def test_a_value_without_a_known_unit_is_in_the_one_asked_for_and_no_currency_is_converted():
    cast = measured(("5", "EUR"), ("5", ""), ("5000", "kUnits"), ("5", "USD"))
    assert [group.members for group in vote(cast, VoteRule(), "USD").groups] == [(0,), (1, 3), (2,)]
    assert [group.members for group in vote(cast[1:], VoteRule()).groups] == [(0, 2), (1,)]


def test_units_make_one_answer():
    cast = ballots(("2 kWh", "a"), ("9", "b"), ("2000", "a"))
    assert outcome(vote(cast, VoteRule(), unit="Wh")) == ("2000", "a")
    assert outcome(vote(cast, VoteRule(tiebreak="blank"), unit="kWh")) == ("", "")


def test_no_ballots_abstain():
    verdict = vote([], VoteRule(blank_quorum=0.5))
    assert (verdict.is_blank, verdict.winner, verdict.groups, verdict.n_votes) == (True, None, (), 0)


def test_agreement_without_weights_is_named():
    with pytest.raises(ConfigError, match=r"vote\.weights is agreement but no member weights"):
        vote(EXAMPLE, VoteRule(weights="agreement"))


def test_compat_compares_strings_and_knows_no_other_tie_than_all_different():
    rule = VoteRule(strategy="union", ignore_blank=False, compat="kohakurag")
    cast = ballots(("5.0", "a"), ("5", "b"), ("5", "c"), ("5.0", "a"), ("N/A", ""))
    assert outcome(vote(cast, rule)) == ("5.0", "a")
    blank = VoteRule(strategy="union", ignore_blank=False, compat="kohakurag", tiebreak="blank")
    assert outcome(vote(cast, blank)) == ("5.0", "a")
    assert vote(cast[:2], blank).is_blank
    assert outcome(vote(ballots(("N/A", "z"), ("N/A", "y")), rule)) == ("N/A", "yz")
    assert vote(ballots(("", ""), ("is_blank", ""), ("5", "a")), rule).is_blank
    assert outcome(vote([Ballot("5", ("is_blank", "A", "a"))], rule)) == ("5", "Aais_blank")


values = st.sampled_from(["5", "5.0", "7", "GPT-3", "gpt-3", "[1,2]", "1-2", "", "is_blank", "True", "1"])
references = st.lists(st.sampled_from("abcd"), max_size=3).map(tuple)
rules = st.builds(
    VoteRule,
    strategy=st.sampled_from(STRATEGIES),
    ignore_blank=st.booleans(),
    blank_quorum=st.one_of(st.none(), st.floats(0.1, 1.0)),
    refs=st.sampled_from(["set", "share"]),
    tiebreak=st.sampled_from(["first", "blank"]),
    compat=st.sampled_from([None, "kohakurag"]),
)


@settings(max_examples=scaled(400))
@given(st.data(), rules)
def test_a_verdict_is_what_counting_member_by_member_gives(data, rule):
    ballot = st.builds(
        Ballot,
        answer_value=values | st.sampled_from(["N/A", "5.004", "5.008"]),
        ref_ids=st.lists(st.sampled_from(["a", "A ", "b", "c", "is_blank"]), max_size=3).map(tuple),
        is_blank=st.sampled_from([False] * 5 + [True]),
        answer=st.sampled_from("xyz"),
        explanation=st.sampled_from(["why", "", " "]),
        weight=st.sampled_from([1.0, 1.0, 0.5, 3.0]),
    )
    weights = data.draw(st.lists(st.sampled_from([1.0, 1.0, 0.9, 2.0]), min_size=1, max_size=7))
    row = st.lists(ballot, min_size=len(weights), max_size=len(weights))
    table = [*data.draw(st.lists(row, min_size=1, max_size=3)), []]
    member = [plain_vote(cast, rule, None, weights[: len(cast)]) for cast in table]
    assert vote_all(table, rule, [None] * len(table), weights) == member


def test_none_is_an_answer_where_the_ballot_alone_says_whether_it_abstains():
    """VLMEvalKit#1559; in files of others it is a writer's null."""
    said = [Ballot("None", ("a",), only_flagged=True)] * 2
    verdict = vote([*said, Ballot("4", ("b",)), Ballot("", is_blank=True, only_flagged=True)], VoteRule())
    assert (verdict.answer_value, verdict.ref_ids, verdict.is_blank) == ("None", ("a",), False)
    assert vote([Ballot("None", ("a",))] * 2, VoteRule()).is_blank
