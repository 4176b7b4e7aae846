from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.plain_vote import plain_vote
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.answering.vote_files import run_vote
from kohaku_ray.ensemble.pool import agreement_weights, pool_ballots
from kohaku_ray.ensemble.study import Marks, expected_score, subsamples
from kohaku_ray.ensemble.vote import Ballot, VoteRule, vote_pool
from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.submissions import read_submission, write_submission
from kohaku_ray.values.normalise import group_values
from kohaku_ray.values.read import is_blank

STRATEGIES = ("answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank")
RULES = [
    VoteRule(strategy=strategy, ignore_blank=ignore_blank) for strategy in STRATEGIES for ignore_blank in (True, False)
]


def told(table, pool, drawn, rules, units=None):
    """What ``vote_pool`` decides, in words: by rule, question and subsample the leader, the value, the references."""
    outcomes = vote_pool(pool, np.array(drawn), rules)
    return [
        (
            int(outcomes.leader[index]),
            "" if outcomes.is_blank[index] else pool.spellings[index[1]][outcomes.spelling[index]],
            pool.refs_of(index[1], outcomes.words[index]),
        )
        for index in np.ndindex(outcomes.leader.shape)
    ]


def looped(table, pool, drawn, rules, units=None):
    """The same member by member, one question of one subsample at a time."""
    units = units or [None] * len(table)
    return [
        one_vote([row[member] for member in members], members, rule, unit, weights_of(table, members, rule, units))
        for rule in rules
        for row, unit in zip(table, units, strict=True)
        for members in drawn
    ]


def weights_of(table, members, rule, units):
    if rule.weights == "uniform":
        return None
    values = [["" if row[m].is_blank else row[m].answer_value for m in members] for row in table]
    return agreement_weights(np.array([group_values(row, unit) for row, unit in zip(values, units, strict=True)]))


def one_vote(ballots, members, rule, unit, weights):
    verdict = plain_vote(ballots, rule, unit, weights)
    if verdict.is_blank:
        return -1, verdict.answer_value, frozenset(verdict.ref_ids)
    group = next(group for group in verdict.groups if verdict.winner in group.members)
    return members[group.members[0]], verdict.answer_value, frozenset(ref.lower() for ref in verdict.ref_ids)


# 1000, 1001 and 1002 are a chain: each is the next one's answer, but the ends are two; 1e3 and 1,000 are spellings
values = st.sampled_from(
    ["1000", "1,000", " 1e3", "1001", "1002", "1003", "[1000,5]", "[1001,5]", "[1002,5]", "GPT-3", "gpt-3", "", "N/A"]
)
plain = st.sampled_from(["7", "7.0", "8", "is_blank"])
chain = st.sampled_from(["1000", "1001", "1002", "1003"])
references = st.lists(st.sampled_from(["a", "A ", "b", "c", "is_blank"]), max_size=3).map(tuple)
ballots_of = [
    st.builds(
        Ballot,
        answer_value=kind,
        ref_ids=references,
        is_blank=st.sampled_from([False, False, False, True]),
        weight=st.sampled_from([1.0, 1.0, 0.5, 0.9, 3.0]),
    )
    for kind in (values, plain, chain)
]
rules = st.builds(
    VoteRule,
    strategy=st.sampled_from(STRATEGIES),
    ignore_blank=st.booleans(),
    blank_quorum=st.sampled_from([None, None, 0.2, 0.5, 0.6, 1.0]),
    refs=st.sampled_from(["set", "share"]),
    weights=st.sampled_from(["uniform", "agreement"]),
    tiebreak=st.sampled_from(["first", "blank"]),
)


@st.composite
def studies(draw):
    n_members = draw(st.integers(1, 7))
    row = st.one_of(*(st.lists(ballot, min_size=n_members, max_size=n_members) for ballot in ballots_of))
    table = draw(st.lists(row, min_size=1, max_size=3))
    size = draw(st.integers(1, 8))
    members = st.lists(st.integers(0, n_members - 1), min_size=size, max_size=size)
    return table, draw(st.lists(members, min_size=1, max_size=4)), draw(st.lists(rules, min_size=1, max_size=6))


@settings(max_examples=scaled(200))
@given(studies())
def test_every_cell_is_what_counting_member_by_member_gives(study):
    table, drawn, chosen = study
    pool = pool_ballots(table)
    assert told(table, pool, drawn, chosen) == looped(table, pool, drawn, chosen)


def ballots(*pairs: tuple[str, str]) -> list[Ballot]:
    return [Ballot(value, tuple(refs)) for value, refs in pairs]


def test_a_chain_of_near_numbers_is_grouped_anew_in_every_subsample():
    table = [ballots(("1000", "a"), ("1001", "b"), ("1002", "c"), ("1003", "d"))]
    pool = pool_ballots(table)
    # 1000 leads 1001 and leaves 1002 alone, which then leads 1003; 1001, coming first, leads both its neighbours
    outcomes = told(table, pool, [[0, 1, 2, 2, 2], [1, 0, 2, 2, 2], [0, 1, 2, 3, 3]], [VoteRule(strategy="union")])
    assert outcomes == [(2, "1002", {"c"}), (1, "1002", {"a", "b", "c"}), (2, "1003", {"c", "d"})]


def test_more_references_than_a_word_has_bits():
    table = [[Ballot("5", tuple(f"d{i}" for i in range(start, start + 70))) for start in (0, 30, 60)]]
    pool = pool_ballots(table)
    assert pool.words.shape == (1, 3, 3)
    chosen = [VoteRule(strategy=strategy, refs=refs) for strategy in STRATEGIES for refs in ("set", "share")]
    drawn = [[0, 1, 2], [2, 1, 1]]
    assert told(table, pool, drawn, chosen) == looped(table, pool, drawn, chosen)
    marks = Marks(pool, by_refs={"ref": lambda q, refs: float(len(refs))})
    scored = marks.score(
        vote_pool(pool, np.array(drawn), [VoteRule(strategy="union"), VoteRule(strategy="intersection")])
    )
    assert scored["ref"].tolist() == [[[130.0, 100.0]], [[10.0, 40.0]]]


@pytest.mark.data
@pytest.mark.parametrize("metric", ["wattbot", "kaggle", "exact"])
def test_a_study_scores_what_voting_over_the_files_and_scoring_the_result_scores(tmp_path, data_path, metric):
    scorer = find_metric(metric)
    truth = read_submission(data_path / "wattbot" / "train_QA.csv")
    paths = sorted((data_path / "wattbot" / "predictions").glob("*.csv"))
    files = [read_submission(path) for path in paths]
    rows = [[file.rows[key] for file in files] for key in truth.rows]
    units = [Counter(row.answer_unit for row in members if not is_blank(row.answer_unit)) for members in rows]
    pool = pool_ballots(
        [[Ballot(row.answer_value, row.ref_ids) for row in members] for members in rows],
        [unit.most_common(1)[0][0] if unit else "" for unit in units],
    )
    outcomes = scorer.marks(truth)
    marks = Marks(pool, outcomes.by_value, outcomes.by_refs, outcomes.by_blank)
    drawn = subsamples(len(paths), 5, 1, seed=0)
    for rule in (VoteRule(strategy="union", ignore_blank=False), VoteRule(refs="share", weights="agreement")):
        parts = marks.score(vote_pool(pool, drawn, [rule]))
        write_submission(tmp_path / "vote.csv", run_vote([paths[member] for member in drawn[0]], rule).rows)
        scored = scorer.score(truth, read_submission(tmp_path / "vote.csv"))
        assert parts.keys() == scorer.parts.keys()
        for name in scorer.parts:
            assert parts[name][0, :, 0].tolist() == [row.parts[name] for row in scored]


TABLE = [ballots(("5", "ab"), ("7", "c"), ("5.0", "b"), ("", "")), ballots(("", ""), ("x", "a"), ("", ""), ("y", ""))]


def marks_of(pool):
    right = [{"5", "5.0"}, {""}]
    cited = [frozenset("b"), frozenset()]
    return Marks(
        pool,
        by_value={"value": lambda q, text: float(text in right[q])},
        by_refs={"ref": lambda q, refs: len(refs & cited[q]) / len(refs | cited[q]) if refs | cited[q] else 1.0},
        by_blank={"abstain": lambda q, blank: float(q == 0 or blank)},
    )


def test_outcomes_are_marked_by_value_references_and_abstention():
    pool = pool_ballots(TABLE)
    parts = marks_of(pool).score(
        vote_pool(pool, np.array([[0, 2, 3], [1, 2, 3]]), [VoteRule(), VoteRule(ignore_blank=False)])
    )
    # the first question: 5 with {a, b}, 7 with {c}; the second: y alone answers, until blanks vote
    assert parts["value"].tolist() == [[[1, 0], [0, 0]], [[1, 0], [1, 0]]]
    assert parts["ref"].tolist() == [[[0.5, 0], [1, 0]], [[0.5, 0], [1, 0]]]
    assert parts["abstain"].tolist() == [[[1, 1], [0, 0]], [[1, 1], [1, 0]]]


def test_the_expected_score_is_the_mean_over_all_subsamples(monkeypatch):
    pool = pool_ballots(TABLE)
    monkeypatch.setattr("kohaku_ray.ensemble.study._BLOCK", 4)
    expected = expected_score(pool, 2, RULES, marks_of(pool))
    every = marks_of(pool).score(vote_pool(pool, np.array(list(combinations(range(4), 2))), RULES))
    for name in ("value", "ref", "abstain"):
        assert expected[name] == pytest.approx(every[name].mean(axis=2))
    # of six pairs two answer 7: {7, 5.0}, a tie that goes to the earlier member, and {7, blank}
    assert expected["value"][0, 0] == pytest.approx(4 / 6)


@given(st.data())
def test_subsamples_are_distinct_ascending_and_the_same_again(data):
    n_members = data.draw(st.integers(1, 9))
    size, n = data.draw(st.integers(1, n_members)), data.draw(st.integers(1, 20))
    strata = data.draw(st.none() | st.lists(st.sampled_from("abc"), min_size=n_members, max_size=n_members))
    drawn = subsamples(n_members, size, n, 7, strata)
    assert np.array_equal(drawn, subsamples(n_members, size, n, 7, strata))
    assert len({tuple(row) for row in drawn.tolist()}) == len(drawn)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < n_members
    feasible = [members for members in combinations(range(n_members), size) if stratified(members, strata, n_members)]
    assert set(map(tuple, drawn.tolist())) <= set(feasible)
    assert len(drawn) == min(n, len(feasible))


def stratified(members, strata, n_members):
    names = set(strata or ())
    shares = {name: len(members) * strata.count(name) / n_members for name in names}
    return all(abs(sum(strata[m] == name for m in members) - shares[name]) < 1 for name in names)


def test_subsamples_of_a_large_pool_are_drawn_without_listing_all():
    assert subsamples(60, 30, 8, 0).shape == (8, 30)  # of 1.2e17


def test_subsamples_follow_the_seed_and_use_all_members_alike():
    assert not np.array_equal(subsamples(37, 5, 32, 0), subsamples(37, 5, 32, 1))
    strata = ["a"] * 20 + ["b"] * 10 + ["c"] * 7
    drawn = subsamples(37, 15, 2000, 0, strata)
    assert len(drawn) == 2000
    # 2000 draws of 15 in 37: a standard deviation of 22
    assert np.abs(np.bincount(drawn.ravel(), minlength=37) - 2000 * 15 / 37).max() < 100


@check_rows(
    ("call", "message"),
    [
        (lambda: pool_ballots([]), "There are no ballots to study"),
        (lambda: pool_ballots([[]]), "There are no ballots to study"),
        (lambda: subsamples(4, 5, 1, 0), "5 members cannot be drawn from 4"),
        (lambda: subsamples(4, 0, 1, 0), "0 members cannot be drawn from 4"),
        (lambda: expected_score(pool_ballots(TABLE), 5, RULES, None), "5 members cannot be drawn from 4"),
        (
            lambda: expected_score(pool_ballots(TABLE), 2, RULES, None, most=5),
            "4 members have 6 subsamples of 2 but at most 5 are counted",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.strategy}-{rule.ignore_blank}")
def test_a_member_that_failed_has_no_ballot_and_a_question_of_which_all_failed_counts_0(rule):
    """issue 34, number 5: 300, 300 and three failures are 300; a study counted a failure as a blank."""
    answer, blank = Ballot("300", ("a",)), Ballot(is_blank=True)
    rule = rule.model_copy(update={"blank_quorum": 0.5})
    pool = pool_ballots([[answer, answer, None, None, None], [None] * 5, [blank, None, answer, blank, blank]])
    marks = Marks(
        pool,
        by_value={"value": lambda index, value: float(value == ("300", "", "")[index])},
        by_blank={"abstain": lambda index, blank: float(blank == (index > 0))},
    )
    outcomes = vote_pool(pool, np.arange(5)[None], [rule])
    parts = marks.score(outcomes)
    assert outcomes.is_blank[0, :, 0].tolist() == [False, True, True], "three of four abstain"
    assert parts["value"][0, :, 0].tolist() == parts["abstain"][0, :, 0].tolist() == [1.0, 0.0, 1.0]
    assert vote_pool(pool, np.array([[0, 2, 3]]), [rule]).is_blank[0, 0, 0] == False  # noqa: E712 - a numpy value
    assert expected_score(pool, 1, [rule], marks)["value"][0].tolist() == pytest.approx([2 / 5, 0, 3 / 5])
