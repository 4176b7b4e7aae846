from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from kohaku_ray.ensemble.pool import agreement_weights


def weights_of(*rows: list[int]) -> list[float]:
    return agreement_weights(np.array(rows, dtype=np.int64)).tolist()


def test_who_leaves_the_consensus_weighs_less():
    # member 2 leaves twice of four: (2 + 1) / 6 against (4 + 1) / 6 for the others
    weights = weights_of([0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0])
    assert weights == pytest.approx([15 / 13, 15 / 13, 9 / 13])


def test_the_weights_feed_back_until_nothing_changes():
    # The last question is two against two. Members 0 and 1 agree with everyone elsewhere, 2 and 3 do not:
    # the first round's tie goes to the earliest group, and stays with it.
    rows = [[0, 0, 1, 2, 0]] * 3 + [[0, 1, 1, 0, 2]]
    weights = weights_of(*rows)
    assert weights[0] == max(weights)
    assert weights[4] > weights[2]
    # a question where reliable members are fewer than unreliable ones that agree: unreliable ones win by number at
    # first, and lose once their weight has dropped
    rows = [[0, 0, 1, 2, 3]] * 20 + [[0, 0, 1, 1, 1]]
    swayed = weights_of(*rows)
    assert swayed == pytest.approx(np.array([22, 22, 1, 1, 1]) / 23 / np.mean(np.array([22, 22, 1, 1, 1]) / 23))


def test_who_did_not_vote_is_taken_for_undecided():
    weights = weights_of([0, 0, -1], [0, 0, -1], [0, 0, -1])
    assert weights[2] / weights[0] == pytest.approx(0.5 / 0.8)


def test_nothing_to_agree_on():
    assert weights_of([-1, -1]) == [1.0, 1.0]
    assert agreement_weights(np.empty((0, 3), dtype=np.int64)).tolist() == [1.0, 1.0, 1.0]
    assert agreement_weights(np.empty((2, 0), dtype=np.int64)).tolist() == []


tables = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(-1, 3))


@given(tables)
def test_weights_are_positive_of_mean_one_and_always_the_same(groups):
    weights = agreement_weights(groups)
    assert weights.shape == (groups.shape[1],)
    assert (weights > 0).all()
    assert weights.mean() == pytest.approx(1.0)
    assert np.array_equal(weights, agreement_weights(groups))
