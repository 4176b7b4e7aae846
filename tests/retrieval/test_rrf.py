from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.retrieval.fusion import reciprocal_rank_fusion

RANKINGS = st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=5)


def fuse(*rankings, **more):
    return reciprocal_rank_fusion([np.array(ranking, np.int64) for ranking in rankings], **more)


def naive(rankings, k=60):
    """Exact sums; ties by best rank, then row."""
    score, best = defaultdict(Fraction), {}
    for ranking in rankings:
        for row in set(ranking):
            rank = ranking.index(row) + 1
            score[row] += Fraction(1, k + rank)
            best[row] = min(rank, best.get(row, rank))
    return [(row, float(score[row])) for row in sorted(score, key=lambda row: (-score[row], best[row], row))]


def test_by_hand():
    found = fuse([7, 3, 5], [3, 9], k=60)
    assert found.rows.tolist() == [3, 7, 9, 5]
    assert found.scores == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63])


def test_ties_go_to_the_better_best_rank_then_to_the_earlier_row():
    assert fuse([9, 4], [2, 1]).rows.tolist() == [2, 9, 1, 4]


def test_the_order_in_which_ranks_are_added_does_not_part_rows_that_tie():
    assert (1 / 61 + 1 / 62) + 1 / 67 > (1 / 67 + 1 / 61) + 1 / 62
    found = fuse([8, 20, 21, 22, 23, 30, 1], [1, 8], [31, 1, 20, 21, 22, 23, 8])
    assert found.rows[:2].tolist() == [1, 8]
    assert found.scores[0] == found.scores[1]


def test_a_row_counts_once_per_ranking_and_nothing_is_nothing():
    assert fuse([4, 4, 2]).scores == pytest.approx([1 / 61, 1 / 63])
    assert len(fuse()) == len(fuse([], [])) == 0


@given(RANKINGS, st.sampled_from([1, 60]))
def test_equals_a_plain_loop(rankings, k):
    found, expected = fuse(*rankings, k=k), naive(rankings, k)
    assert found.scores == pytest.approx([score for _, score in expected])
    assert sorted(found.rows.tolist()) == sorted(row for row, _ in expected)
    if k == 60:  # distinct sums are far apart
        assert found.rows.tolist() == [row for row, _ in expected]


@given(RANKINGS, st.randoms())
def test_the_rankings_may_come_in_any_order(rankings, random):
    shuffled = random.sample(rankings, len(rankings))
    one, other = fuse(*rankings), fuse(*shuffled)
    assert one.rows.tolist() == other.rows.tolist()
    assert one.scores.tobytes() == other.scores.tobytes()
