import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.index.terms import TermIndex, similarities
from kohaku_ray.retrieval.diversify import cap_per_key, distinct_texts, mmr, redundancy


def test_equal_texts_are_one_and_the_first_stays():
    assert distinct_texts(["b", "a", "b", " a\n", "A"]).tolist() == [0, 1, 4]
    assert distinct_texts([]).tolist() == []
    assert distinct_texts(["b", "a", "b", " a\n", "A"], 3).tolist() == [0, 1, 4]
    assert distinct_texts(["b", "b", "a", "A"], 2).tolist() == [0, 2]
    assert distinct_texts(["b"], 0).tolist() == []


def test_a_key_is_capped_in_order():
    keys = ["x.example", "y.example", "x.example", "x.example", "y.example"]
    assert cap_per_key(keys, ["d"] * 5).tolist() == [0, 1]
    assert cap_per_key(keys, ["d"] * 5, limit=2).tolist() == [0, 1, 2, 4]


def test_an_item_without_a_key_counts_by_its_document():
    keys = [None, None, "d1", None, ""]
    assert cap_per_key(keys, ["d1", "d2", "d3", "d1", "d1"]).tolist() == [0, 1, 2, 4]


@given(st.lists(st.tuples(st.none() | st.sampled_from("xyz"), st.sampled_from("de")), max_size=30), st.integers(1, 3))
def test_equals_a_plain_loop(items, limit):
    kept, n_seen = [], {}
    for place, (key, doc_id) in enumerate(items):
        name = ("document", doc_id) if key is None else ("key", key)
        n_seen[name] = n_seen.get(name, 0) + 1
        if n_seen[name] <= limit:
            kept.append(place)
    assert cap_per_key([key for key, _ in items], [doc_id for _, doc_id in items], limit).tolist() == kept


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


def test_mmr_by_hand():
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
def test_mmr_equals_a_plain_loop(data, n, top_k, weight):
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
