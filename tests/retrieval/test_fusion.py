from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tree import hits

from kohaku_ray.retrieval.fusion import (
    combined,
    deduplicate,
    fuse,
    fuse_with_lexical,
    reciprocal_rank_fusion,
)

# Row 7 is found by three queries, 3 and 5 by two, 1 and 9 by one.
LISTS = [
    hits((1, 0.9), (7, 0.5), (5, 0.2)),
    hits((9, 1.25), (3, 0.6), (7, 0.4)),
    hits((3, 0.5), (5, 0.3), (7, 0.25)),
]
# total: 1 → 0.9, 7 → 1.15, 5 → 0.5, 9 → 1.25, 3 → 1.1


@pytest.mark.parametrize(
    ("strategy", "normalise", "alpha", "rows", "score"),
    [
        ("frequency", "max", 0.4, [7, 3, 5, 9, 1], [3, 2, 2, 1, 1]),
        ("score", "max", 0.4, [9, 7, 3, 1, 5], [1.25, 1.15, 1.1, 0.9, 0.5]),
        ("max", "max", 0.4, [9, 1, 3, 7, 5], [1.25, 0.9, 0.6, 0.5, 0.3]),
        (
            "combined",
            "max",
            0.4,
            [7, 3, 9, 1, 5],
            [
                0.4 + 0.6 * 1.15 / 1.25,
                0.4 * 2 / 3 + 0.6 * 1.1 / 1.25,
                0.4 / 3 + 0.6,
                0.4 / 3 + 0.6 * 0.9 / 1.25,
                0.4 * 2 / 3 + 0.6 * 0.5 / 1.25,
            ],
        ),
    ],
)
def test_every_strategy_by_hand(strategy, normalise, alpha, rows, score):
    ranked = fuse(LISTS, strategy, normalise, alpha)
    assert ranked.rows.tolist() == rows
    assert ranked.score == pytest.approx(score)
    assert dict(zip(ranked.rows.tolist(), ranked.frequency.tolist(), strict=True)) == {7: 3, 3: 2, 5: 2, 9: 1, 1: 1}
    assert ranked.total[ranked.rows == 7] == pytest.approx(1.15)
    highest = dict(zip(ranked.rows.tolist(), ranked.highest.tolist(), strict=True))
    assert highest == {7: 0.5, 3: 0.6, 5: 0.3, 9: 1.25, 1: 0.9}


def test_vectors_and_terms_are_fused_by_rank_whatever_their_scales():
    terms = [hits((7, 31.0), (8, 12.0)), hits((8, 9.0))]
    ranked = fuse_with_lexical(LISTS[:2], terms)
    by_hand = {1: 1 / 11, 7: 1 / 12 + 1 / 13 + 1 / 11, 5: 1 / 13, 9: 1 / 11, 3: 1 / 12, 8: 1 / 12 + 1 / 11}
    assert dict(zip(ranked.rows.tolist(), ranked.score.tolist(), strict=True)) == pytest.approx(by_hand)
    assert ranked.rows.tolist() == [7, 8, 1, 9, 3, 5]
    of = dict(zip(ranked.rows.tolist(), zip(ranked.frequency, ranked.total, ranked.highest, strict=True), strict=True))
    assert of[7] == pytest.approx((2, 0.9, 0.5))
    assert of[8] == (0, 0.0, 0.0)  # found by terms alone
    assert ranked.n_dense == len(ranked)


def test_terms_alone_are_ranked_where_vectors_find_nothing():
    assert fuse_with_lexical([hits()], [hits((2, 1.0))]).rows.tolist() == [2]
    assert len(fuse_with_lexical([hits()], [hits()])) == 0


def test_none_keeps_query_order_with_repeats_until_they_are_dropped():
    ranked = fuse(LISTS, "none")
    assert ranked.rows.tolist() == [1, 7, 5, 9, 3, 7, 3, 5, 7]
    assert ranked.frequency.tolist() == [1, 3, 2, 1, 2, 3, 2, 2, 3]
    assert deduplicate(ranked, "node", np.full(10, -1)).rows.tolist() == [1, 7, 5, 9, 3]


similarity = st.integers(-64, 64).map(lambda n: n / 64)  # sums are exact
one_list = st.lists(st.tuples(st.integers(0, 12), similarity), max_size=12).map(
    lambda pairs: hits(*sorted(pairs, key=lambda pair: -pair[1]))
)


@given(
    st.lists(one_list, max_size=5),
    st.sampled_from(["frequency", "score", "max", "combined"]),
    st.sampled_from(["max", "minmax"]),
    st.sampled_from([0.0, 0.4, 0.5, 1.0]),
)
def test_equals_a_plain_count(lists, strategy, normalise, alpha):
    first, best = {}, {}
    for query, matches in enumerate(lists):
        for row, score in zip(matches.rows.tolist(), matches.scores.tolist(), strict=True):
            first.setdefault(row, len(first))
            best.setdefault(row, {}).setdefault(query, score)
    rows = list(first)
    frequency = np.array([len(best[row]) for row in rows], np.int64)
    total = np.array([sum(best[row].values()) for row in rows], np.float64)
    key = {
        "frequency": [(-f, -s) for f, s in zip(frequency, total, strict=True)],
        "score": [-s for s in total],
        "max": [-max(best[row].values()) for row in rows],
        "combined": [-c for c in combined(frequency, total, normalise, alpha)],
    }[strategy]
    expected = [row for _, _, row in sorted(zip(key, range(len(rows)), rows, strict=True))]
    got = fuse(lists, strategy, normalise, alpha)
    assert got.rows.tolist() == expected
    counted = {row: (frequency[position], max(best[row].values())) for position, row in enumerate(rows)}
    assert {row: (n, most) for row, n, most in zip(got.rows, got.frequency, got.highest, strict=True)} == counted
    assert (np.diff(got.score) <= 0).all()


RANKINGS = st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=5)


def rrf(*rankings, **more):
    return reciprocal_rank_fusion([np.array(ranking, np.int64) for ranking in rankings], **more)


def naive_rrf(rankings, k=60):
    """Exact sums; ties by best rank, then row."""
    score, best = defaultdict(Fraction), {}
    for ranking in rankings:
        for row in set(ranking):
            rank = ranking.index(row) + 1
            score[row] += Fraction(1, k + rank)
            best[row] = min(rank, best.get(row, rank))
    return [(row, float(score[row])) for row in sorted(score, key=lambda row: (-score[row], best[row], row))]


def test_the_order_in_which_ranks_are_added_does_not_part_rows_that_tie():
    assert (1 / 61 + 1 / 62) + 1 / 67 > (1 / 67 + 1 / 61) + 1 / 62
    fused = rrf([8, 20, 21, 22, 23, 30, 1], [1, 8], [31, 1, 20, 21, 22, 23, 8])
    assert fused.rows[:2].tolist() == [1, 8]
    assert fused.scores[0] == fused.scores[1]


@given(RANKINGS, st.sampled_from([1, 60]))
def test_rrf_equals_a_plain_loop(rankings, k):
    fused, expected = rrf(*rankings, k=k), naive_rrf(rankings, k)
    assert fused.scores == pytest.approx([score for _, score in expected])
    assert sorted(fused.rows.tolist()) == sorted(row for row, _ in expected)
    if k == 60:  # distinct sums are far apart
        assert fused.rows.tolist() == [row for row, _ in expected]
