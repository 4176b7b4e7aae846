import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tree import hits, ranked, tree

from kohaku_ray.retrieval.fusion import Ranked, append_lexical, deduplicate, with_parents

NODES = tree(a=[("One", ["A b. C d.", "E f. G h."]), ("Two", ["I j. K l."])], b=[("Page 3", ["M n. O p."])])


def ids(matches):
    return [NODES.node_id(row) for row in matches.rows]


def test_none_keeps_every_repeat():
    matches = ranked(NODES, "a:sec0:p0:s1", "a:sec0:p0", "a:sec0:p0:s1")
    assert deduplicate(matches, "none", NODES.parent) is matches


def test_tree_gives_the_ancestor_the_best_rank_of_what_it_swallows():
    matches = ranked(NODES, "b:sec0:p0:s0", "a:sec0:p0:s1", "a:sec1:p0", "a:sec0:p0", "a:sec0:p0:s0", "a:sec0:p1:s0")
    kept = deduplicate(matches, "tree", NODES.parent)
    assert ids(kept) == ["b:sec0:p0:s0", "a:sec0:p0", "a:sec1:p0", "a:sec0:p1:s0"]
    index = matches.rows.tolist().index(NODES.row_of("a:sec0:p0"))
    assert kept.score[1] == matches.score[index]  # its own numbers, another's place


def naive_tree(rows, parent):
    def chain(row):
        return [row] if parent[row] < 0 else [row, *chain(parent[row])]

    kept = []
    for row in rows:
        top = [above for above in chain(row) if above in rows][-1]
        if top not in kept:
            kept.append(top)
    return kept


@given(st.lists(st.integers(0, len(NODES) - 1), max_size=15))
def test_tree_equals_a_walk_up_the_tree(rows):
    n = len(rows)
    matches = Ranked(np.array(rows, np.int64), np.zeros(n), np.ones(n, np.int64), np.zeros(n), np.zeros(n), n)
    kept = deduplicate(matches, "tree", NODES.parent)
    assert kept.rows.tolist() == naive_tree(rows, NODES.parent.tolist())
    assert kept.n_dense == len(kept)


def test_parents_are_counted_as_in_the_papers_table():
    """Document 0, section 1, paragraphs 2 (sentences 3, 4) and 5 (sentence 6)."""
    parent = np.array([-1, 0, 1, 2, 2, 1, 5], np.int64)
    matches = np.array([3, 4, 2, 3, 6], np.int64)
    # with parents: 3 and 2, 4 and 2, 2 and 1, 3 and 2, 6 and 5
    assert sorted(with_parents(matches, parent).tolist()) == [1, 2, 2, 2, 2, 3, 3, 4, 5, 6]
    assert with_parents(np.array([0], np.int64), parent).tolist() == [0]
    assert with_parents(np.array([], np.int64), parent).tolist() == []


FLAT = tree(
    a=[("One", ["A b. C d.", "E f.", "G h.", "I j.", "K l.", "M n."])],
)
P = [FLAT.row_of(f"a:sec0:p{n}") for n in range(6)]


def appended(dense, lists, top_k, dedup="node"):
    out = append_lexical(ranked(FLAT, *dense), lists, top_k, dedup, FLAT.parent)
    assert out.n_dense == len(dense)
    return out


def test_queries_take_turns_and_the_total_is_bounded():
    lists = [hits((P[1], 9.0), (P[2], 8.0), (P[3], 7.0)), hits((P[4], 2.0), (P[1], 1.0), (P[5], 0.5))]
    out = appended(["a:sec0:p0"], lists, 3)
    assert out.rows.tolist() == [P[0], P[1], P[4], P[2]]
    assert out.score.tolist()[1:] == [9.0, 2.0, 8.0]
    assert out.frequency.tolist() == [1, 0, 0, 0]
    assert out.total.tolist()[1:] == [0.0, 0.0, 0.0]


def test_a_dense_match_is_not_new_and_frees_its_slot():
    out = appended(["a:sec0:p1"], [hits((P[1], 9.0), (P[2], 8.0)), hits((P[3], 1.0), (P[1], 0.5))], 2)
    assert out.rows.tolist() == [P[1], P[3], P[2]]


@pytest.mark.parametrize(("dedup", "added"), [("tree", [P[1]]), ("node", [P[0], P[1]]), ("none", [P[0], P[1]])])
def test_under_tree_a_paragraph_with_a_matched_sentence_is_not_new(dedup, added):
    out = appended(["a:sec0:p0:s1"], [hits((P[0], 9.0), (P[1], 8.0))], 2, dedup)
    assert out.rows.tolist()[1:] == added
