from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tree import tree

from kohaku_ray.retrieval.context import GAP
from kohaku_ray.retrieval.fusion import Ranked
from kohaku_ray.retrieval.windows import choose

NODES = tree(
    a=[("Power", ["A one. B two. C three. D four. E five."]), ("", ["F six. G seven."])],
    b=[("", ["X one. Y two."])],
    c=[("", ["Z one. W two."])],
)
SEARCHABLE = [row for row in range(len(NODES)) if NODES.kind[row] >= 2]
SENTENCES = [row for row in SEARCHABLE if NODES.kind[row] == 3]


def scored(*pairs, nodes=NODES, n_dense=None):
    n = len(pairs)
    rows, score = np.array([nodes.row_of(name) for name, _ in pairs], np.int64), np.array([s for _, s in pairs], float)
    return Ranked(rows, score, np.ones(n, np.int64), score, score, n if n_dense is None else n_dense)


def texts(context):
    return [part.text for part in context.snippets]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1, []),
        (3, ["Power\nC three."]),  # the title is estimated: 5 characters at 2 words in 8 are 2
        (4, ["Power\nC three."]),
        (6, ["Power\nB two. C three."]),
        (8, ["Power\nB two. C three. D four."]),
        (12, ["Power\nA one. B two. C three. D four. E five."]),
        (99, ["Power\nA one. B two. C three. D four. E five."]),  # never into the next section
    ],
)
def test_a_window_opens_at_its_match_and_grows_with_the_budget(budget, expected):
    context = choose(NODES, scored(("a:sec0:p0:s2", 1.0)), budget=budget)
    assert texts(context) == ([] if budget < 4 else expected)
    assert context.n_tokens <= budget
    assert context.is_cut == (budget < 12)


def test_sentences_left_out_between_windows_show_a_gap():
    context = choose(NODES, scored(("a:sec0:p0:s0", 1.0), ("a:sec0:p0:s4", 0.9)), budget=6)
    assert texts(context) == [f"Power\nA one.{GAP}E five."]
    assert [match.n_tokens for match in context.matches] == [6, 0]


def test_a_document_that_is_shown_enough_gives_way_to_a_weaker_one():
    long = " ".join(f"{'w ' * 99}w{n}." for n in range(12))
    nodes = tree(a=[("", [long])], b=[("", ["X " * 99 + "end."])])
    ranked = scored(("a:sec0:p0", 1.0), ("b:sec0:p0", 0.8), nodes=nodes)
    assert choose(nodes, ranked, budget=200).doc_ids == ("a",)
    assert choose(nodes, ranked, budget=600).doc_ids == ("a", "b")


def test_a_lexical_match_counts_as_the_weakest_dense_one():
    ranked = scored(("b:sec0:p0:s0", 0.5), ("c:sec0:p0:s0", 40.0), n_dense=1)
    assert choose(NODES, ranked, budget=2).doc_ids == ("b",)
    assert choose(NODES, ranked, budget=4).doc_ids == ("b", "c")


def naive_relevance(matches):
    """The formula sentence by sentence, over pairs."""
    worth = dict.fromkeys(SENTENCES, 0.0)
    largest = max(matches.values())
    for row, score in matches.items():
        sentence_rows = [leaf for leaf in SENTENCES if row <= leaf < NODES.end[row]]
        for leaf in SENTENCES:
            if NODES.section_of(leaf) == NODES.section_of(row):
                n = min(abs(SENTENCES.index(leaf) - SENTENCES.index(item)) for item in sentence_rows)
                worth[leaf] += score / largest * 0.5**n
    return worth


def value(rows, worth):
    by_document = {}
    for row in rows:
        by_document[NODES.doc_id(row)] = by_document.get(NODES.doc_id(row), 0) + NODES.tokens[row] * worth[row]
    return sum(np.sqrt(500 + mass) - np.sqrt(500) for mass in by_document.values())


MATCHES = st.dictionaries(st.sampled_from(SEARCHABLE), st.floats(0.1, 1), min_size=1, max_size=6)
UNTITLED = (
    tree(  # the same rows without a title: all sentences have two tokens, and greedy is within a factor of the best
        a=[("", ["A one. B two. C three. D four. E five."]), ("", ["F six. G seven."])],
        b=[("", ["X one. Y two."])],
        c=[("", ["Z one. W two."])],
    )
)


@given(MATCHES, st.integers(0, 8))
def test_any_choice_keeps_the_budget_and_is_near_the_best_of_all_choices(matches, n):
    ranked = scored(*((UNTITLED.node_id(row), score) for row, score in matches.items()), nodes=UNTITLED)
    context = choose(UNTITLED, ranked, budget=2 * n)
    rows = [row for row in SENTENCES if UNTITLED.text_of(row) in "\n".join(texts(context))]
    assert context.n_tokens == 2 * len(rows) == sum(match.n_tokens for match in context.matches) <= 2 * n
    assert context.is_cut == (len(rows) < sum(score > 0 for score in naive_relevance(matches).values()))
    worth = naive_relevance(matches)
    best = max(value(chosen, worth) for chosen in combinations(SENTENCES, n))
    assert value(rows, worth) >= best - 1e-9  # sentences of one length, one sum per document: greedy is exact
