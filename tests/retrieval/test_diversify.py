from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.retrieval.diversify import cap_per_key, distinct_texts


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
