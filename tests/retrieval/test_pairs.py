import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.retrieval.pairs import best_first, pair_up, unscored

TEXTS = st.lists(st.sampled_from("abcd"), max_size=5)


def test_a_pair_is_asked_once_and_its_score_comes_back_everywhere():
    batch = pair_up(["q", "r", "q"], [["a", "b", "a"], ["a"], ["b", "c"]])
    assert batch.pairs == (("q", "a"), ("q", "b"), ("r", "a"), ("q", "c"))
    assert [scores.tolist() for scores in batch.per_query(np.array([1.0, 2.0, 3.0, 4.0]))] == [[1, 2, 1], [3], [2, 4]]


@given(st.lists(st.tuples(st.sampled_from("qr"), TEXTS), max_size=4))
def test_scores_are_those_of_every_pair_by_itself(asked):
    queries, candidates = [query for query, _ in asked], [texts for _, texts in asked]
    batch = pair_up(queries, candidates)
    assert len(set(batch.pairs)) == len(batch.pairs)
    scores = np.array([ord(query) + 1000 * ord(text) for query, text in batch.pairs], float)
    expected = [[ord(query) + 1000 * ord(text) for text in texts] for query, texts in asked]
    assert [found.tolist() for found in batch.per_query(scores)] == expected


def test_known_pairs_are_not_asked_again():
    pairs = [("q", "a"), ("q", "b"), ("q", "a"), ("r", "a")]
    assert unscored(pairs, {}) == [("q", "a"), ("q", "b"), ("r", "a")]
    assert unscored(pairs, {("q", "a"): 0.0}) == [("q", "b"), ("r", "a")]


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=12), st.none() | st.integers(0, 5))
def test_best_first_keeps_the_order_of_ties(scores, top_k):
    expected = sorted(range(len(scores)), key=lambda place: -scores[place])[:top_k]
    assert best_first(np.array(scores), top_k).tolist() == expected
