from itertools import pairwise

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.errors import ConfigError, IndexMismatchError
from kohaku_ray.index.arrays import Hits
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.vectors import FlatVectors, VectorIndex, merge_hits


def random_units(n: int, d: int, seed: int = 0):
    return unit_rows(np.random.default_rng(seed).normal(size=(n, d)))


def brute_force(vectors, rows, query, top_k: int) -> Hits:
    """The definition: every score, best first, ties to the earlier row, a node once."""
    scores = (vectors.astype(np.float64) * query.astype(np.float64)).sum(-1)
    best_score = {}
    for score, row in sorted(zip(scores.tolist(), rows.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1])):
        best_score.setdefault(row, score)
    best = list(best_score.items())[:top_k]
    return Hits(np.array([row for row, _ in best], np.int64), np.array([score for _, score in best]))


def assert_same(got: Hits, expected: Hits) -> None:
    assert got.rows.tolist() == expected.rows.tolist()
    assert got.scores.tobytes() == expected.scores.tobytes()


@settings(max_examples=scaled(60))
@given(
    n=st.integers(1, 400),
    n_distinct=st.integers(1, 400),
    top_k=st.integers(1, 40),
    shared=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equals_brute_force_with_any_number_of_duplicates(n, n_distinct, top_k, shared, seed):
    rng = np.random.default_rng(seed)
    vectors = random_units(min(n, n_distinct), 16, seed)[rng.integers(0, min(n, n_distinct), n)]
    rows = rng.permutation(3 * n)[:n] // (2 if shared else 1)
    if not shared:
        assert len(set(rows.tolist())) == n
    queries = np.concatenate([random_units(3, 16, seed + 1), vectors[:2]])
    index = VectorIndex.build(vectors, rows)
    for query, hits in zip(queries, index.search(queries, top_k), strict=True):
        assert_same(hits, brute_force(vectors, rows, query, top_k))


@check_rows("factory", ["Flat", "IVF8,Flat", "IVF8,PQ2x4", "IVF8,SQ8", "OPQ2,IVF8,PQ2x4", "HNSW8"])
def test_scores_and_order_do_not_depend_on_the_batch(factory):
    vectors = random_units(900, 16)
    vectors[700:] = vectors[:200]
    index = VectorIndex.build(vectors, np.arange(900), factory)
    index.probe(3)
    queries = random_units(64, 16, 5)
    whole = index.search(queries, 7)
    rng = np.random.default_rng(1)
    for size in (1, 2, 19, 20, 33):
        chosen = rng.permutation(64)[:size]
        for number, hits in zip(chosen, index.search(queries[chosen], 7), strict=True):
            assert_same(hits, whole[number])


@pytest.mark.parametrize("factory", ["IVF8,Flat", "HNSW16", "PCA8,Flat"])
def test_approximate_factories_find_most_and_score_exactly(factory):
    vectors = random_units(1000, 16)
    queries = unit_rows(vectors[:50] + 0.02 * random_units(50, 16, 3))
    index = VectorIndex.build(vectors, np.arange(1000), factory)
    assert not index.exact
    hits = index.search(queries, 5)
    assert np.mean([position in hit.rows for position, hit in enumerate(hits)]) >= 0.9
    for query, hit in zip(queries, hits, strict=True):
        exact = (vectors[hit.rows].astype(float) * query.astype(float)).sum(-1)
        assert hit.scores.tobytes() == exact.tobytes()
        assert (np.diff(hit.scores) <= 0).all()


def test_queries_search_as_many_inverted_lists_as_they_are_told(capfd):
    vectors, queries = random_units(1000, 16), random_units(40, 16, 3)
    exact = VectorIndex.build(vectors, np.arange(1000)).search(queries, 10)
    for factory in ("IVF16,Flat", "OPQ2,IVF16,Flat"):
        index, recalls = VectorIndex.build(vectors, np.arange(1000), factory), {}
        for n_lists in (1, 4, 16):
            index.probe(n_lists)
            near = index.search(queries, 10)
            recalls[n_lists] = np.mean([np.isin(a.rows, b.rows).mean() for a, b in zip(exact, near, strict=True)])
        assert recalls[1] < 0.6 < recalls[4] < recalls[16] == 1.0
    VectorIndex.build(vectors, np.arange(1000)).probe(4)  # no lists: nothing to do


@settings(max_examples=scaled(25))
@given(n_parts=st.integers(1, 7), top_k=st.integers(1, 30), seed=st.integers(0, 999))
def test_the_best_of_the_shards_are_the_best_of_the_whole(n_parts, top_k, seed):
    vectors = random_units(40, 8, seed)[np.random.default_rng(seed).integers(0, 40, 120)]
    index = VectorIndex.build(vectors, np.arange(120) // 2)
    queries = random_units(4, 8, seed + 1)
    bounds = [len(index) * number // n_parts for number in range(n_parts + 1)]
    shards = [VectorIndex.build(vectors[a:b], index.rows[a:b]) for a, b in pairwise(bounds)]
    parts = [shard.search(queries, top_k) for shard in shards]
    for *hits, expected in zip(*parts, index.search(queries, top_k), strict=True):
        assert_same(merge_hits(hits, top_k), expected)


def test_fewer_nodes_than_asked_for_and_none_at_all():
    vectors = random_units(3, 4)
    assert len(VectorIndex.build(vectors, np.arange(3)).search(vectors, 50)[0]) == 3
    empty = VectorIndex.build(np.empty((0, 4), np.float32), np.empty(0, np.int64))
    assert [len(hits) for hits in empty.search(vectors, 5)] == [0, 0, 0]
    assert VectorIndex.build(vectors, np.arange(3)).search(np.empty((0, 4), np.float32), 5) == []


def test_bad_input_is_refused_with_the_way_out():
    vectors = random_units(10, 4)
    index = VectorIndex.build(vectors, np.arange(10))
    with pytest.raises(IndexMismatchError, match=r"queries of shape \(2, 8\) but the index holds vectors of 4"):
        index.search(random_units(2, 8), 1)
    with pytest.raises(ConfigError, match=r"index\.factory is 'Flatt', which FAISS does not know"):
        VectorIndex.build(vectors, np.arange(10), "Flatt")
    with pytest.raises(ConfigError, match=r"index\.factory is 'IVF64,Flat' but the index has 10 vectors, too few"):
        VectorIndex.build(vectors, np.arange(10), "IVF64,Flat")


def test_a_tie_wider_than_the_second_look_is_still_broken_by_row():
    vectors = np.repeat(random_units(3, 32), [400, 30, 5], axis=0)
    rows = np.random.default_rng(0).permutation(435)
    index = VectorIndex.build(vectors, rows)
    queries = vectors[[0, 400, 430, 1]]  # too wide, wide enough for a second look, decided at once
    for query, hits in zip(queries, index.search(queries, 3), strict=True):
        assert_same(hits, brute_force(vectors, rows, query, 3))


@pytest.mark.parametrize("n_queries", [1, 3, 64])
def test_a_flat_index_over_mapped_vectors_finds_what_faiss_does_to_the_bit(tmp_path, n_queries):
    rng = np.random.default_rng(3)
    vectors = unit_rows(rng.normal(size=(5000, 48)))
    vectors[7::50] = vectors[7]  # ties
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    index = faiss.IndexFlatIP(48)
    index.add(vectors)
    queries = np.ascontiguousarray(vectors[:n_queries] + np.float32(0.1))
    for k in (1, 20, 5000):
        scores, places = FlatVectors(mapped).search(queries, k)
        expected = index.search(queries, k)
        assert scores.tobytes() == expected[0].tobytes()
        assert places.tobytes() == expected[1].tobytes()
