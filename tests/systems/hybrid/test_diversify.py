import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.systems.hybrid.diversify import (
    allot,
    cap_per_key,
    distinct_texts,
    kmeans,
    mmr,
    redundancy,
    sample_clusters,
    shares,
)


def test_equal_texts_are_one_and_the_first_stays():
    assert distinct_texts(["b", "a", "b", " a\n", "A"]).tolist() == [0, 1, 4]
    assert distinct_texts([]).tolist() == []
    assert distinct_texts(["b", "a", "b", " a\n", "A"], 3).tolist() == [0, 1, 4]
    assert distinct_texts(["b", "b", "a", "A"], 2).tolist() == [0, 2]
    assert distinct_texts(["b"], 0).tolist() == []


@given(st.lists(st.tuples(st.none() | st.sampled_from("xyz"), st.sampled_from("de")), max_size=30), st.integers(1, 3))
def test_equals_a_plain_loop(items, limit):
    kept, n_seen = [], {}
    for index, (key, doc_id) in enumerate(items):
        name = ("document", doc_id) if key is None else ("key", key)
        n_seen[name] = n_seen.get(name, 0) + 1
        if n_seen[name] <= limit:
            kept.append(index)
    assert cap_per_key([key for key, _ in items], [doc_id for _, doc_id in items], limit).tolist() == kept


def naive(relevance, likeness, top_k, weight):
    selected = []
    while len(selected) < min(top_k, len(relevance)):
        value = {
            i: weight * relevance[i] - (1 - weight) * max((likeness[i][j] for j in selected), default=0.0)
            for i in range(len(relevance))
            if i not in selected
        }
        selected.append(max(value, key=lambda i: (value[i], -i)))
    return selected


@given(st.data(), st.integers(1, 8), st.integers(0, 9), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_mmr_equals_a_plain_loop(data, n, top_k, weight):
    values = st.sampled_from([-0.5, 0.0, 0.25, 0.5, 0.75, 1.0])
    relevance = np.array(data.draw(st.lists(values, min_size=n, max_size=n)))
    likeness = np.array(data.draw(st.lists(st.lists(values, min_size=n, max_size=n), min_size=n, max_size=n)))
    assert mmr(relevance, likeness, top_k, weight)[0].tolist() == naive(relevance, likeness, top_k, weight)


def test_redundancy_is_the_larger_of_both_and_bounded():
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)
    bm25 = np.array([[10.0, 9.0, 40.0], [0.0, 5.0, -3.0], [1.0, 1.0, -2.0]])
    repeats = redundancy(vectors, bm25)
    assert repeats == pytest.approx(np.array([[1, 0.9, 1], [0.6, 1, 0.8], [0, 0.8, 1]]), abs=1e-6)


def blobs(*sizes, d=8, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(sizes), d)) * 10
    return np.concatenate([centre + rng.normal(size=(n, d)) for centre, n in zip(centres, sizes, strict=True)])


@check_rows(("n", "n_clusters", "n_groups"), [(2, 3, 2), (1, 3, 1), (0, 3, 0), (4, 1, 1), (3, 3, 3)])
def test_fewer_texts_than_clusters(n, n_clusters, n_groups):
    assert len(set(kmeans(np.eye(4)[:n], n_clusters).tolist())) == n_groups


def test_equal_texts_make_one_cluster():
    assert kmeans(np.ones((5, 3)), 3).tolist() == [0] * 5
    assert kmeans(np.array([[1.0, 0], [0, 1], [1, 0], [0, 1]]), 3).tolist() == [0, 1, 0, 1]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=25), st.integers(1, 6))
def test_clusters_are_a_fixed_point_of_plain_reassignment(points, n_clusters):
    vectors = np.array(points, float)
    labels = kmeans(vectors, n_clusters)
    n_found = min(n_clusters, len(set(points)))
    assert sorted(set(labels.tolist())) == list(range(n_found))
    assert labels[np.sort(np.unique(labels, return_index=True)[1])].tolist() == list(range(n_found))
    centres = [vectors[labels == cluster].mean(axis=0) for cluster in range(n_found)]
    for point, label in zip(vectors, labels, strict=True):
        distances = [float(((point - centre) ** 2).sum()) for centre in centres]
        assert distances[label] == pytest.approx(min(distances))


def test_shares_are_smoothed_by_adding_to_the_sizes():
    sizes = np.array([70, 20, 10])
    s, n = 0.3, 3
    assert shares(sizes) == pytest.approx([(size + s) / (100 + n * s) for size in sizes])
    assert shares(sizes, 0.0) == pytest.approx([0.7, 0.2, 0.1])
    assert allot(sizes, shares(sizes), 50).tolist() == [35, 10, 5]


@check_rows(
    ("sizes", "share", "sample_size", "counts"),
    [
        ([50, 30, 20], [0.5, 0.3, 0.2], 10, [5, 3, 2]),
        ([97, 2, 1], [0.97, 0.02, 0.01], 10, [8, 1, 1]),  # at least one each
        ([90, 5, 5], [1 / 3, 1 / 3, 1 / 3], 30, [20, 5, 5]),  # what the small ones cannot fill
        ([40, 40, 2], [0.5, 0.3, 0.2], 21, [12, 7, 2]),
        ([3, 3], [0.5, 0.5], 3, [2, 1]),  # equal remainders: the earlier cluster
        ([3, 3, 3], [0.2, 0.5, 0.3], 2, [0, 1, 1]),  # fewer than clusters
        ([3, 2], [0.5, 0.5], 100, [3, 2]),
        ([1], [1.0], 1, [1]),
        ([4], [1.0], 0, [0]),
    ],
)
def test_allotment_by_hand(sizes, share, sample_size, counts):
    assert allot(np.array(sizes), np.array(share), sample_size).tolist() == counts


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0])), min_size=1, max_size=25),
    st.integers(1, 12),
)
def test_a_sample_holds_the_best_of_each_cluster_in_score_order(texts, sample_size):
    names = {cluster: number for number, cluster in enumerate(dict.fromkeys(cluster for cluster, _ in texts))}
    labels = np.array([names[cluster] for cluster, _ in texts], np.int64)
    scores = np.array([score for _, score in texts])
    kept = sample_clusters(labels, scores, sample_size).tolist()
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    counts = allot(np.bincount(labels), shares(np.bincount(labels)), sample_size).tolist()
    best = [list(itertools.islice((p for p in order if labels[p] == c), n)) for c, n in enumerate(counts)]
    assert kept == sorted(itertools.chain(*best), key=order.index)


def test_one_large_topic_does_not_take_all_places():
    labels, scores = kmeans(blobs(30, 4), 2), np.r_[np.linspace(1, 0.7, 30), np.linspace(0.4, 0.1, 4)]
    assert sample_clusters(labels, scores, 10).tolist() == [*range(9), 30]
