import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows
from small_tree import image, ranked, tree

from kohaku_ray.retrieval.context import GAP, assemble, expand
from kohaku_ray.retrieval.fusion import Ranked

LONG = "A one.  B two. C three. D four. E five."
NODES = tree(
    a=[("Power use", [LONG, "P one."]), ("Page 3", ["The draw is 12 MW. It rose by half.", "Q one. Q two."])],
    b=[("", ["X one. Y two."]), ("Figures", ["Z one.", image("Fig two."), image(), "V three."])],
)


def shown(*matches, nodes=NODES, **settings):
    given = {"budget": None, "section_tokens": 0} | settings
    return assemble(nodes, ranked(nodes, *matches), **given)


def texts(context):
    return [snippet.text for snippet in context.snippets]


PAGE = "The draw is 12 MW. It rose by half."


@check_rows(
    ("matches", "settings", "expected"),
    [
        # The published code kept the section's title and dropped the paragraph.
        (["a:sec1:p0"], {}, [f"Page 3\n{PAGE}"]),
        (["a:sec1:p0:s0"], {}, [PAGE]),
        (["a:sec1:p0", "a:sec1:p1"], {}, [f"Page 3\n{PAGE}", "Q one. Q two."]),  # the title stands once a section
        (["b:sec0:p0"], {}, ["X one. Y two."]),  # a section without a title adds no line
        (["a:sec1:p1"], {"section_tokens": 9}, [f"Page 3\n{PAGE}\nQ one. Q two."]),  # in reading order
        (["a:sec0:p0:s1", "a:sec0:p0:s1", "a:sec0:p0"], {"once": False}, [LONG, LONG, f"Power use\n{LONG}"]),
        (  # left-out sentences show as a gap
            ["a:sec0:p0:s2", "a:sec0:p0"],
            {"paragraph_tokens": 3, "siblings": 0},
            ["C three.", f"Power use\nA one.  B two.{GAP}D four. E five."],
        ),
        (["a:sec0:p0:s2"], {"budget": 4}, ["C three. D four."]),  # an oversize first group still yields its match
    ],
)
def test_what_is_shown_of_matches(matches, settings, expected):
    assert texts(shown(*matches, **settings)) == expected


def test_a_text_enters_once_itself_or_inside_what_came_before():
    context = shown("a:sec0:p0:s1", "a:sec0:p0", "a:sec0:p0:s4", "a:sec0:p1")
    assert texts(context) == [LONG, "Power use\nP one."]
    assert [match.n_tokens for match in context.matches] == [10, 0, 0, 2 + 3]
    assert [match.rank for match in context.matches] == [0, 1, 2, 3]


def test_a_neighbourhood_that_skips_paragraphs_shows_the_gap():
    whole = tree(a=[("T", ["A b.", "C d.", "E f."])])
    part = whole.neighbourhood([whole.row_of("a:sec0:p0"), whole.row_of("a:sec0:p2")], 0)
    assert texts(shown("a:sec0:p0", nodes=part, section_tokens=50)) == [f"T\nA b.{GAP}E f."]
    assert texts(shown("a:sec0:p0", nodes=whole, section_tokens=50)) == ["T\nA b.\nC d.\nE f."]


def test_captions_around_a_match_are_media_of_its_document():
    context = shown("b:sec1:p0", section_tokens=9)
    assert texts(context) == [f"Figures\nZ one.{GAP}V three."]
    assert [(c.doc_id, c.node_id, c.kind, c.text) for c in context.captions] == [
        ("b", "b:sec1:p1", "image", "Fig two.")
    ]
    assert context.n_tokens == 2 + 2 + 2 + 2  # the title is estimated: 7 characters at 6 words in 23
    assert texts(shown("b:sec1:p1:s0")) == ["Fig two."]


def test_a_title_waits_for_text_when_only_captions_are_left():
    context = shown("b:sec1:p0:s0", "b:sec1:p3:s0", "b:sec1:p0", "b:sec1:p3", section_tokens=9)
    assert texts(context) == ["Z one.", "V three."]
    assert [caption.text for caption in context.captions] == ["Fig two."]
    assert context.n_tokens == 6


def test_matches_carry_what_ranked_them():
    matches = Ranked(
        rows=np.array([NODES.row_of("b:sec0:p0:s1"), NODES.row_of("a:sec0:p1")]),
        score=np.array([0.75, 4.5]),
        frequency=np.array([3, 0]),
        total=np.array([1.5, 0.0]),
        highest=np.array([0.625, 0.0]),
        n_dense=1,
    )
    dense, lexical = assemble(NODES, matches, budget=None).matches
    assert (dense.node_id, dense.kind, dense.source, dense.score, dense.frequency, dense.similarity, dense.highest) == (
        *("b:sec0:p0:s1", "sentence", "dense"),
        *(0.75, 3, 1.5, 0.625),
    )
    assert (lexical.kind, lexical.source, lexical.score, lexical.frequency) == ("paragraph", "lexical", 4.5, 0)


@check_rows(
    ("budget", "expected"),
    [
        (14, ["X one. Y two.", LONG]),
        (13, ["X one. Y two.", "A one.  B two. C three. D four."]),
        (9, ["X one. Y two.", "B two. C three."]),
        (6, ["X one. Y two.", "B two."]),
        (5, ["X one. Y two."]),
        (3, ["X one."]),
    ],
)
def test_the_budget_takes_whole_groups_and_cuts_the_next_on_a_sentence_around_its_match(budget, expected):
    context = shown("b:sec0:p0:s0", "a:sec0:p0:s1", "a:sec0:p1", budget=budget)
    assert texts(context) == expected
    assert context.n_tokens <= budget
    assert context.is_cut


def test_filling_stops_at_the_first_cut():
    nodes = tree(a=[("", ["This sentence has six words indeed. A one."])], b=[("", ["B one."])])
    context = shown("a:sec0:p0:s1", "b:sec0:p0", nodes=nodes, budget=6)  # where B one. would still fit
    assert texts(context) == ["A one."]


def test_an_endless_sentence_is_passed_over():
    nodes = tree(a=[("", ["w " * 50 + "end."])], b=[("", ["X one. Y two."])])
    context = shown("a:sec0:p0", "b:sec0:p0", nodes=nodes, budget=10)
    assert texts(context) == ["X one. Y two."]
    assert [match.rank for match in context.matches] == [1]
    assert context.is_cut


UNTITLED = tree(  # so that words and tokens are one
    a=[("", [LONG, "P one."]), ("", ["The draw is 12 MW. It rose by half.", "Q one. Q two."])],
    b=[("", ["Z one.", image("Fig two."), image(), "V three."])],
)
SEARCHABLE = [row for row in range(len(UNTITLED)) if UNTITLED.kind[row] >= 2 and UNTITLED.text_of(row)]


@given(
    st.lists(st.sampled_from(SEARCHABLE), max_size=8),
    st.integers(0, 40) | st.none(),
    st.integers(1, 12),
    st.integers(0, 3),
    st.integers(0, 12),
)
def test_any_context_keeps_the_budget_and_shows_no_sentence_twice(rows, budget, paragraph_tokens, siblings, section):
    names = [UNTITLED.node_id(row) for row in rows]
    limits = {"paragraph_tokens": paragraph_tokens, "siblings": siblings, "section_tokens": section}
    context = shown(*names, nodes=UNTITLED, budget=budget, **limits)
    everything = "\n".join([*texts(context), *(caption.text for caption in context.captions)])
    for row in np.flatnonzero(UNTITLED.kind == 3):
        assert everything.count(UNTITLED.text_of(row)) <= 1
    if budget is None:
        leaves_below = [leaf for row in rows for leaf in range(row, UNTITLED.end[row]) if UNTITLED.kind[leaf] == 3]
        assert not context.is_cut
        assert all(UNTITLED.text_of(row) in everything for row in leaves_below)
    else:
        assert context.n_tokens <= budget
    assert context.n_tokens == sum(match.n_tokens for match in context.matches)
    assert context.n_tokens == len(everything.replace(GAP, " ").split())


AROUND = tree(
    a=[
        ("Power", ["A one. B two. C three. D four. E five. F six. G seven."]),
        ("Water", ["P one.", "Q one. Q two.", "M one. M two. M three.", "R one. R two.", image("Fig one."), image()]),
    ]
)


def leaves(match, **limits):
    given = {"paragraph_tokens": 100, "siblings": 1, "section_tokens": 100} | limits
    group = expand(AROUND, AROUND.row_of(match), **given)
    return [AROUND.text_of(row) for row in group.leaves], group


@pytest.mark.parametrize(
    ("match", "limits", "expected"),
    [
        ("a:sec0:p0:s2", {"paragraph_tokens": 14}, ["C", "D", "B", "E", "A", "F", "G"]),  # just short enough: whole
        ("a:sec0:p0:s2", {"paragraph_tokens": 13}, ["C", "D", "B"]),  # of a longer one only the siblings
        ("a:sec0:p0:s0", {"paragraph_tokens": 5, "siblings": 2}, ["A", "B", "C"]),
        ("a:sec0:p0:s0", {"paragraph_tokens": 5, "siblings": 0}, ["A"]),
    ],
)
def test_a_sentence_brings_its_paragraph_or_its_siblings(match, limits, expected):
    assert [text.split()[0] for text in leaves(match, **limits)[0]] == expected


def test_a_matched_caption_is_text():
    for match in ("a:sec1:p4", "a:sec1:p4:s0"):
        texts, group = leaves(match, section_tokens=0)
        assert texts == ["Fig one."]
        assert not group.captions
