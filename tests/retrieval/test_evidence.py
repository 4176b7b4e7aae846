import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tree import hits, tree

from kohaku_ray.errors import DataError
from kohaku_ray.records import Question
from kohaku_ray.retrieval.evidence import Evidence, at_least, localise, rank

NODES = tree(a=[("One", ["A b. C d.", "E f. G h.", "I j.", "K l."])])
P0, P1, P2, P3 = (NODES.row_of(f"a:sec0:p{n}") for n in range(4))
DEFAULTS = {
    "top_k": 3,
    "top_k_final": None,
    "strategy": "combined",
    "normalise": "max",
    "alpha": 0.4,
    "dedup": "node",
    "bm25_top_k": 0,
}


def evidence(dense, lexical=(), nodes=NODES):
    return Evidence(Question("q", "What?"), tuple("q" * len(dense)), tuple(dense), tuple(lexical), nodes)


def ranked_rows(results, **changes):
    return rank(results, **(DEFAULTS | changes)).rows.tolist()


def test_tree_deduplication_comes_before_truncation_so_that_slots_are_refilled():
    gathered = evidence([hits((P0, 0.9), (P0 + 1, 0.8), (P0 + 2, 0.7), (P1, 0.6), (P2, 0.5))])
    assert ranked_rows(gathered, top_k=5, top_k_final=2, dedup="node") == [P0, P0 + 1]
    assert ranked_rows(gathered, top_k=5, top_k_final=2, dedup="tree") == [P0, P1]


def test_truncation_before_deduplication_leaves_the_places_of_repeats_empty():
    queries = [hits((P0, 0.9), (P0 + 1, 0.8), (P1, 0.7)), hits((P0, 0.9), (P2, 0.6), (P3, 0.5))]
    settings = {"top_k": 3, "top_k_final": 5, "strategy": "none", "truncate": "before_dedup"}
    kept = {mode: ranked_rows(evidence(queries), **settings, dedup=mode) for mode in ("none", "node", "tree")}
    assert kept == {"none": [P0, P0 + 1, P1, P0, P2], "node": [P0, P0 + 1, P1, P2], "tree": [P0, P1, P2]}
    settings["truncate"] = "after_dedup"
    assert ranked_rows(evidence(queries), **settings, dedup="tree") == [P0, P1, P2, P3]


def test_bm25_comes_after_truncation():
    gathered = evidence([hits((P0, 0.9), (P1, 0.8))], [hits((P1, 5.0), (P2, 4.0), (P3, 3.0))])
    assert ranked_rows(gathered, top_k_final=1, bm25_top_k=2) == [P0, P1, P2]
    assert ranked_rows(gathered, bm25_top_k=2) == [P0, P1, P2]
    assert ranked_rows(gathered) == [P0, P1]


def test_frequency_is_counted_at_the_depth_asked_for():
    gathered = evidence([hits((P0, 0.9), (P1, 0.8)), hits((P2, 0.7), (P1, 0.6))])
    assert ranked_rows(gathered, top_k=1, strategy="frequency") == [P0, P2]
    assert ranked_rows(gathered, top_k=2, strategy="frequency") == [P1, P0, P2]


lists = st.lists(
    st.lists(st.integers(1, len(NODES) - 1), unique=True, max_size=8).map(
        lambda rows: hits(*((row, 1 - index / 10) for index, row in enumerate(rows)))
    ),
    min_size=1,
    max_size=4,
)


@given(lists, st.integers(1, 8), st.sampled_from(["none", "node", "tree"]), st.integers(1, 9) | st.none())
def test_a_deep_search_ranked_shallow_equals_a_shallow_search(dense, k, dedup, final):
    shallow = evidence([results.prefix(k) for results in dense])
    settings = {"top_k": k, "dedup": dedup, "top_k_final": final}
    rows = ranked_rows(evidence(dense), **settings)
    assert rows == ranked_rows(shallow, **settings)
    assert rows == ranked_rows(shallow, **(settings | {"top_k_final": None}))[:final]


def test_a_threshold_drops_the_weaker():
    hits_of_query = hits((P0, 0.9), (P1, 0.5), (P2, 0.3))
    assert at_least(hits_of_query, 0.5).rows.tolist() == [P0, P1]
    assert at_least(hits_of_query, None) is hits_of_query


def test_rows_of_the_index_become_rows_of_the_neighbourhood():
    part = NODES.neighbourhood([P2], 0)
    (local,) = localise([hits((P2, 0.9))], part)
    assert [part.node_id(row) for row in local.rows] == ["a:sec0:p2"]
    with pytest.raises(DataError, match="not among"):
        localise([hits((P0, 0.9))], part)
