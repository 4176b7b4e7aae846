import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.retrieval.fusion import best_first


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=12), st.none() | st.integers(0, 5))
def test_best_first_keeps_the_order_of_ties(scores, top_k):
    expected = sorted(range(len(scores)), key=lambda place: -scores[place])[:top_k]
    assert best_first(np.array(scores), top_k).tolist() == expected
