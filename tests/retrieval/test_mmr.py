import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.index.terms import TermIndex, similarities
from kohaku_ray.retrieval.diversify import mmr, redundancy


def naive(relevance, likeness, top_k, weight):
    selected = []
    while len(selected) < min(top_k, len(relevance)):
        value = {
            i: weight * relevance[i] - (1 - weight) * max((likeness[i][j] for j in selected), default=0.0)
            for i in range(len(relevance))
            if i not in selected
        }
        selected.append(max(value, key=lambda i: (value[i], -i)))
    return selected


def test_by_hand():
    relevance = np.array([0.9, 0.89, 0.5])
    likeness = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    selected, scores = mmr(relevance, likeness, 3, weight=0.5)
    assert selected.tolist() == [0, 2, 1]
    assert scores == pytest.approx([0.45, 0.25, 0.445 - 0.5])
    assert mmr(relevance, likeness, 2, weight=1)[0].tolist() == [0, 1]
    assert mmr(relevance, likeness, 2, weight=0)[0].tolist() == [0, 2]


def test_redundancy_may_be_negative_and_need_not_be_symmetric():
    relevance, likeness = np.array([0.5, 0.5, 0.5]), np.array([[1, 0.9, 0], [-0.5, 1, 0], [0, -0.9, 1]])
    assert mmr(relevance, likeness, 3, weight=0.5)[0].tolist() == [0, 1, 2]


@given(st.data(), st.integers(1, 8), st.integers(0, 9), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_equals_a_plain_loop(data, n, top_k, weight):
    values = st.sampled_from([-0.5, 0.0, 0.25, 0.5, 0.75, 1.0])
    relevance = np.array(data.draw(st.lists(values, min_size=n, max_size=n)))
    likeness = np.array(data.draw(st.lists(st.lists(values, min_size=n, max_size=n), min_size=n, max_size=n)))
    assert mmr(relevance, likeness, top_k, weight)[0].tolist() == naive(relevance, likeness, top_k, weight)


def test_nothing_to_select_from():
    assert [part.tolist() for part in mmr(np.empty(0), np.empty((0, 0)), 5)] == [[], []]
    assert redundancy(np.empty((0, 4), np.float32), np.empty((0, 0))).shape == (0, 0)


def test_redundancy_is_the_larger_of_both_and_bounded():
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)
    bm25 = np.array([[10.0, 9.0, 40.0], [0.0, 5.0, -3.0], [1.0, 1.0, -2.0]])
    found = redundancy(vectors, bm25)
    assert found == pytest.approx(np.array([[1, 0.9, 1], [0.6, 1, 0.8], [0, 0.8, 1]]), abs=1e-6)


def test_a_near_duplicate_is_passed_over_for_something_new():
    texts = ["digue rompue port inondé", "digue rompue port inondé hier", "train gare retard"]
    texts += ["vigne", "école", "musée", "stade"]
    rows = np.arange(7)
    vectors = np.eye(7, dtype=np.float32)  # by meaning all are unlike: the words alone tell
    relevance = np.array([0.9, 0.88, 0.7, 0.1, 0.1, 0.1, 0.1])
    likeness = redundancy(vectors, similarities(TermIndex.build(texts, rows, language="fr").weights_of(rows)))
    assert likeness[1, 0] > 0.7
    assert likeness[2, 0] == 0
    assert mmr(relevance, likeness, 3, weight=0.7)[0].tolist() == [0, 2, 1]
