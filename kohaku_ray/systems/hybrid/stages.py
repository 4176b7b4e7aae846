"""The nine stages as functions of arrays: node rows in, node rows with scores out, best first.

Ties go to the better earlier rank, then to the earlier node. The second stage, which asks a model, is in ``prepare``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.index.arrays import F32, F64, I64
from kohaku_ray.index.hits import Hits
from kohaku_ray.retrieval.clusters import kmeans, sample_clusters
from kohaku_ray.retrieval.diversify import cap_per_key, distinct_texts
from kohaku_ray.retrieval.mmr import mmr, redundancy
from kohaku_ray.retrieval.pairs import best_first
from kohaku_ray.retrieval.rrf import reciprocal_rank_fusion
from kohaku_ray.systems.hybrid.settings import HybridSettings

STAGES = (
    "initial_context",
    "expansion",
    "search",
    "subquery_ranking",
    "fusion",
    "clustering",
    "mmr",
    "netloc_cap",
    "final_ranking",
)
"""Names of the stages, of their switches and of their steps in the trace."""


def initial_context(found: Sequence[Hits], size: int) -> Hits:
    """Stage 1: fuse the searches of sentences and chunks by rank and keep ``size``."""
    return reciprocal_rank_fusion([hits.rows for hits in found]).prefix(size)


def candidates(lexical: Hits, dense: Hits) -> Hits:
    """Stage 3: bring both searches of one sub-query together; the order, and the score, is that of their ranks."""
    return reciprocal_rank_fusion([lexical.rows, dense.rows])


def rank_candidates(found: Hits, scores: F64 | None, top_k: int) -> Hits:
    """Stage 4: keep the best of one sub-query's candidates.

    Args:
        found: The candidates.
        scores: Shape ``(len(found),)``; of the cross-encoder; None: the order stays.
        top_k: Most candidates kept.
    """
    return found.prefix(top_k) if scores is None else take(found, best_first(scores, top_k), scores)


def fuse(rankings: Sequence[Hits], texts: Mapping[int, str], size: int) -> Hits:
    """Stage 5: fuse the rankings by rank, let equal texts be one (the first stays), then cut.

    Args:
        rankings: One or more per sub-query.
        texts: Each row's text.
        size: Rows kept.
    """
    fused = reciprocal_rank_fusion([hits.rows for hits in rankings])
    return take(fused, distinct_texts([texts[row] for row in fused.rows.tolist()], size))


def united(rankings: Sequence[Hits]) -> Hits:
    """Stage 5 switched off: every row once, in order of first occurrence, with its score there."""
    rows = np.concatenate([hits.rows for hits in rankings])
    _, first = np.unique(rows, return_index=True)
    return take(Hits(rows, np.concatenate([hits.scores for hits in rankings])), np.sort(first))


def sample(found: Hits, vectors: F32, scores: F64, settings: HybridSettings) -> tuple[Hits, I64]:
    """Stage 6: cluster the rows and keep the best of every cluster by its smoothed share.

    Args:
        found: The rows.
        vectors: Shape ``(len(found), d)``.
        scores: Shape ``(len(found),)``; of the cross-encoder against the question.
        settings: Number of clusters, sample size and shares.

    Returns:
        The rows kept, best first, and the cluster of each.
    """
    labels = kmeans(vectors, settings.kmeans_n_clusters)
    kept = sample_clusters(labels, scores, settings.cluster_sample_size, settings.smoothing, settings.shares)
    return take(found, kept, scores), labels[kept]


def select(found: Hits, vectors: F32, relevance: F64, bm25: F64, settings: HybridSettings) -> Hits:
    """Stage 7: maximal marginal relevance.

    Args:
        found: The rows.
        vectors: Shape ``(len(found), d)``; unit rows.
        relevance: Shape ``(len(found),)``; cosine with the question.
        bm25: Shape ``(len(found), len(found))``; the rows' scores for one another, see ``redundancy``.
        settings: The relevance's weight and how many are kept.
    """
    order, scores = mmr(relevance, redundancy(vectors, bm25), settings.mmr_top_k, settings.mmr_relevance_weight)
    return Hits(found.rows[order], scores)


def cap(found: Hits, netlocs: Sequence[str | None], doc_ids: Sequence[str], limit: int) -> Hits:
    """Stage 8: keep at most ``limit`` rows per site, in order; a row without one counts by its document."""
    return take(found, cap_per_key(netlocs, doc_ids, limit))


def take(found: Hits, places: I64, scores: F64 | None = None) -> Hits:
    """Keep hits by their places, with their own scores or, by the same places, other ones."""
    return Hits(found.rows[places], (found.scores if scores is None else scores)[places])
