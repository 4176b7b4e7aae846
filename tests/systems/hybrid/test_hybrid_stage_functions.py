import numpy as np
import pytest
from press import settings

from kohaku_ray.index.hits import Hits
from kohaku_ray.systems.hybrid import stages
from kohaku_ray.systems.hybrid.stages import SHOWN_CHARS, TRACED, Steps, by_row
from kohaku_ray.systems.hybrid.texts import Text


def hits(*rows, scores=None):
    return Hits(np.array(rows, np.int64), np.array(scores or range(len(rows), 0, -1), np.float64))


def test_equal_texts_free_their_place_before_the_cut():
    texts = {1: "a b", 2: "a  b", 3: "c", 4: "d"}
    assert stages.fuse([hits(1, 2, 3, 4)], texts, 2).rows.tolist() == [1, 3]


def test_fusion_ties_go_to_the_better_rank_then_the_earlier_row():
    texts = {row: str(row) for row in range(10)}
    assert stages.fuse([hits(7, 5), hits(5, 7), hits(3)], texts, 9).rows.tolist() == [5, 7, 3]


def test_united_keeps_the_first_occurrence_with_its_score():
    found = stages.united([hits(5, 2), hits(2, 9)])
    assert found.rows.tolist() == [5, 2, 9]
    assert found.scores.tolist() == [2, 1, 1]


def test_candidates_are_ranked_by_score_ties_by_their_earlier_order():
    found = hits(4, 8, 6)
    assert stages.rank_candidates(found, np.array([1.0, 2.0, 2.0]), 2).rows.tolist() == [8, 6]
    assert stages.rank_candidates(found, None, 2).rows.tolist() == [4, 8]


def test_mmr_puts_what_repeats_behind_what_is_new():
    vectors = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    bm25, relevance = np.array([[3.0, 3.0, 0.0], [3.0, 3.0, 0.0], [0.0, 0.0, 4.0]]), np.array([0.9, 0.89, 0.5])
    found = stages.select(hits(4, 5, 6), vectors, relevance, bm25, settings(mmr_relevance_weight=0.5))
    assert found.rows.tolist() == [4, 6, 5]
    assert found.scores.tolist() == pytest.approx([0.45, 0.25, 0.445 - 0.5])
    alone = stages.select(hits(4, 5, 6), vectors, relevance, bm25, settings(mmr_relevance_weight=1.0))
    assert alone.rows.tolist() == [4, 5, 6]


def test_a_sample_follows_the_settings_of_its_shares():
    vectors = np.repeat(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), [30, 10], axis=0)
    found, scores = hits(*range(40)), np.arange(40.0, 0, -1)
    shares = {}
    for mode in ("smoothed", "normalised"):
        chosen = settings(kmeans_n_clusters=2, cluster_sample_size=12, smoothing=2.0, shares=mode)
        kept, cluster = stages.sample(found, vectors, scores, chosen)
        assert kept.scores.tolist() == sorted(kept.scores, reverse=True)
        shares[mode] = np.bincount(cluster).tolist()
    assert shares == {"smoothed": [9, 3], "normalised": [7, 5]}


def test_a_cap_counts_unknown_sites_by_their_document():
    kept = stages.cap(hits(1, 2, 3, 4, 5), ["a", "a", None, None, None], ["d", "e", "f", "f", "g"], 1)
    assert kept.rows.tolist() == [1, 3, 5]


def test_words_alone_tell_what_repeats_where_vectors_do_not():
    vectors, relevance = np.eye(3, dtype=np.float32), np.array([0.9, 0.89, 0.5])
    bm25 = np.array([[3.0, 3.0, 0.0], [3.0, 3.0, 0.0], [0.0, 0.0, 4.0]])
    chosen = settings(mmr_relevance_weight=0.5)
    assert stages.select(hits(4, 5, 6), vectors, relevance, bm25, chosen).rows.tolist() == [4, 6, 5]
    assert stages.select(hits(4, 5, 6), vectors, relevance, np.eye(3), chosen).rows.tolist() == [4, 5, 6]


def test_a_large_pool_is_counted_whole_and_traced_in_part():
    pool = hits(*range(TRACED + 5))
    texts = {row: Text(f"n{row}", "d", "paragraph", "x" * 500, str(row)) for row in pool.rows.tolist()}
    steps = Steps()
    steps.items("search", 999, pool, texts, named={"bm25.0": by_row(hits(0, TRACED + 4))})
    head, *items = steps.rows
    assert head.note == f"in 999, out {TRACED + 5}; first {TRACED} shown"
    assert steps.pools == {"pool_search": TRACED + 5}
    assert [item.note for item in items] == [str(row) for row in range(TRACED)]
    assert items[0].scores == {"score": TRACED + 5, "bm25.0": 2}
    assert set(map(len, (item.text for item in items))) == {SHOWN_CHARS}
