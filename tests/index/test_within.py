"""Search held to some documents: before top-k, and exact whatever the index."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import scaled
from small_index import FakeEncoder, index_documents, make_documents, paragraph

from kohaku_ray.documents.model import Document, Section
from kohaku_ray.index.arrays import Hits
from kohaku_ray.index.store import Index
from kohaku_ray.index.vectors import VectorIndex
from kohaku_ray.index.views import View

NODES, PARAGRAPHS = ("sentence", "paragraph"), ("paragraph",)
NAMES = tuple(f"d{number:02}" for number in range(12))
WORDS = ("power", "grid", "water", "chip", "rain", "owl")
VIEWS = (
    View(NODES, dense=True, lexical=True),
    View(PARAGRAPHS, dense=True, lexical=True),
    View(("section",), dense=True),
)
LAYOUTS = {
    "averaged": {},
    "both": {"paragraph_vectors": "both"},
    "IVF": {"factory": "IVF4,Flat", "paragraph_vectors": "both"},
    "SQ8": {"factory": "SQ8"},
}


def document(doc_id: str) -> Document:
    """Texts of few words, so that many tie: most sentences stand in many documents."""
    draw = np.random.default_rng(int(doc_id[1:]))
    sentences = [" ".join(draw.choice(WORDS, draw.integers(1, 4))).capitalize() + "." for _ in range(9)]
    parts = (paragraph(*sentences[:2]), paragraph(*sentences[2:5]), paragraph(*sentences[5:]))
    return Document(doc_id, doc_id, (Section("One", parts[:2]), Section("Two", (*parts[2:], paragraph("It rains.")))))


@pytest.fixture(scope="module")
def indexes(tmp_path_factory) -> dict[str, Index]:
    """One index for each way of laying vectors out."""
    by_layout = {}
    for name, more in LAYOUTS.items():
        path = str(tmp_path_factory.mktemp("within") / name)
        index_documents(path, map(document, NAMES), views=VIEWS, **more)
        by_layout[name] = Index.open(path)
    return by_layout


def chosen(index: Index, hits: Hits, within, top_k: int) -> tuple[list[int], bytes]:
    """Filter an exhaustive search by document, then take top-k: the definition."""
    kept = np.array([index.nodes.doc_id(row) in within for row in hits.rows], bool)
    return hits.rows[kept][:top_k].tolist(), hits.scores[kept][:top_k].tobytes()


documents_of = st.lists(st.sampled_from(NAMES), max_size=6)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=scaled(40))
@given(
    within=documents_of,
    kinds=st.sampled_from([view.kinds for view in VIEWS]),
    top_k=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
def test_a_search_within_documents_is_the_exact_search_filtered(indexes, layout, within, kinds, top_k, seed):
    index = indexes[layout]
    view = index.shards[0].vectors(kinds)
    exact = VectorIndex.build(np.array(view.vectors), view.rows)
    draw = np.random.default_rng(seed)
    noise = FakeEncoder().encode_passages([str(seed), f"{seed} more"])
    queries = np.concatenate([noise, np.array(view.vectors)[draw.integers(0, len(view), 2)]])
    results = view.search(queries, top_k, index.ranges(within))
    for hits, every in zip(results, exact.search(queries, len(view)), strict=True):
        assert (hits.rows.tolist(), hits.scores.tobytes()) == chosen(index, every, within, top_k)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=scaled(40))
@given(
    within=documents_of,
    kinds=st.sampled_from([view.kinds for view in VIEWS if view.lexical]),
    top_k=st.integers(1, 12),
    queries=st.lists(st.lists(st.sampled_from([*WORDS, "zebra"]), max_size=4).map(" ".join), min_size=1, max_size=3),
)
def test_bm25_within_documents_keeps_the_statistics_of_all(indexes, layout, within, kinds, top_k, queries):
    index = indexes[layout]
    terms = index.shards[0].terms(kinds)
    results = terms.search(queries, top_k, index.ranges(within))
    for hits, every in zip(results, terms.search(queries, len(terms.rows)), strict=True):
        assert (hits.rows.tolist(), hits.scores.tobytes()) == chosen(index, every, within, top_k)


def test_ranges_are_whole_documents_in_the_order_asked_for_and_once(indexes):
    index = indexes["both"]
    ranges = index.ranges(["d05", "d02", "d05"])
    assert [index.nodes.node_id(first) for first, _ in ranges] == ["d05", "d02"]
    for (first, end), name in zip(ranges, ["d05", "d02"], strict=True):
        assert {index.nodes.doc_id(row) for row in range(first, end)} == {name}
        assert end - first == len(index.nodes) // len(NAMES)
    assert index.ranges([]) == ()
    assert index.ranges(iter(["d01"])) == index.ranges(["d01"])
    assert index.ranges(NAMES)[-1][1] == len(index.nodes)


def test_node_vectors_are_those_of_any_nodes_in_the_order_asked_for(indexes):
    index = indexes["both"]
    nodes = index.nodes
    names = ["d07", "d01:sec0:p1:s0", "d07:sec1", "d01:sec0:p1:s0", "d00:sec0:p0"]
    rows = np.array([nodes.row_of(name) for name in names])
    vectors = index.node_vectors(rows)
    assert vectors.shape == (5, FakeEncoder().d)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    text = nodes.text_of(int(rows[1]))
    assert vectors[1].tobytes() == vectors[3].tobytes() == FakeEncoder().encode_passages([text])[0].tobytes()
    averaged = indexes["averaged"].node_vectors(rows[4:])[0]
    assert vectors[4].tobytes() == averaged.tobytes(), "of two vectors it is the node's own, not its text's"
    assert index.node_vectors(np.empty(0, np.int64)).shape == (0, FakeEncoder().d)


def test_node_vectors_are_zeros_where_there_is_none(tmp_path):
    index_documents(tmp_path, make_documents("a"))
    index = Index.open(str(tmp_path))
    vectors = index.node_vectors(np.array([index.nodes.row_of("a:sec1:p0"), index.nodes.row_of("a:sec0")]))
    assert vectors.any(axis=1).tolist() == [False, True]
