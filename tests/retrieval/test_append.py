import pytest
from small_tree import hits, ranked, tree

from kohaku_ray.retrieval.fusion import append_lexical

NODES = tree(
    a=[("One", ["A b. C d.", "E f.", "G h.", "I j.", "K l.", "M n."])],
)
P = [NODES.row_of(f"a:sec0:p{n}") for n in range(6)]


def appended(dense, lists, top_k, dedup="node"):
    out = append_lexical(ranked(NODES, *dense), lists, top_k, dedup, NODES.parent)
    assert out.n_dense == len(dense)
    return out


def test_queries_take_turns_and_the_total_is_bounded():
    lists = [hits((P[1], 9.0), (P[2], 8.0), (P[3], 7.0)), hits((P[4], 2.0), (P[1], 1.0), (P[5], 0.5))]
    out = appended(["a:sec0:p0"], lists, 3)
    assert out.rows.tolist() == [P[0], P[1], P[4], P[2]]
    assert out.score.tolist()[1:] == [9.0, 2.0, 8.0]
    assert out.frequency.tolist() == [1, 0, 0, 0]
    assert out.total.tolist()[1:] == [0.0, 0.0, 0.0]


def test_only_the_top_k_of_each_query_is_looked_at():
    out = appended(["a:sec0:p1", "a:sec0:p2"], [hits((P[1], 9.0), (P[2], 8.0), (P[3], 7.0))], 2)
    assert out.rows.tolist() == [P[1], P[2]]


def test_a_dense_match_is_not_new_and_frees_its_slot():
    out = appended(["a:sec0:p1"], [hits((P[1], 9.0), (P[2], 8.0)), hits((P[3], 1.0), (P[1], 0.5))], 2)
    assert out.rows.tolist() == [P[1], P[3], P[2]]


@pytest.mark.parametrize(("dedup", "added"), [("tree", [P[1]]), ("node", [P[0], P[1]]), ("none", [P[0], P[1]])])
def test_under_tree_a_paragraph_with_a_matched_sentence_is_not_new(dedup, added):
    out = appended(["a:sec0:p0:s1"], [hits((P[0], 9.0), (P[1], 8.0))], 2, dedup)
    assert out.rows.tolist()[1:] == added


def test_under_tree_a_paragraph_of_a_matched_section_is_not_new():
    assert len(appended(["a:sec0"], [hits((P[0], 9.0))], 2, "tree")) == 1
    assert len(appended(["a:sec0"], [hits((P[0], 9.0))], 2, "node")) == 2


@pytest.mark.parametrize(("lists", "top_k"), [([], 4), ([hits()], 4), ([hits((P[1], 1.0))], 0)])
def test_without_lexical_hits_the_dense_matches_stand(lists, top_k):
    assert appended(["a:sec0:p0"], lists, top_k).rows.tolist() == [P[0]]
