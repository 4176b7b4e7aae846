"""Select fewer and more different texts of a ranking: without repeats, by MMR, the best few of each cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from kohaku_ray.index.arrays import F32, F64, I64
from kohaku_ray.retrieval.fusion import best_first


def distinct_texts(texts: Sequence[str], top_k: int | None = None) -> I64:
    """Keep the positions of the first ``top_k`` texts that differ in more than white space.

    Call it before a cut, so that places are refilled.
    """
    return _within(1, (" ".join(text.split()) for text in texts), top_k)


def cap_per_key(keys: Sequence[str | None], doc_ids: Sequence[str], limit: int) -> I64:
    """Keep the positions of up to ``limit`` items per key, such as a site; without one, an item counts by document."""
    return _within(limit, ((key, doc_id if key is None else None) for key, doc_id in zip(keys, doc_ids, strict=True)))


def _within(limit: int, keys: Iterable[Hashable], top_k: int | None = None) -> I64:
    """Positions of the first ``limit`` items of each key, at most ``top_k`` in all; later keys are not read."""
    seen: Counter[Hashable] = Counter()
    kept: list[int] = []
    for position, key in enumerate(keys):
        if len(kept) == top_k:
            break
        seen[key] += 1
        if seen[key] <= limit:
            kept.append(position)
    return np.array(kept, np.int64)


def mmr(relevance: F64, redundancy: F64, top_k: int, weight: float = 0.9) -> tuple[I64, F64]:
    """Select greedily by ``w · relevance − (1 − w) · max redundancy`` (Carbonell & Goldstein, SIGIR 1998).

    Args:
        relevance: Shape ``(n,)``; similarity of each text to the question, in the texts' earlier rank order.
        redundancy: Shape ``(n, n)``; similarity of text i to a selected text j.
        top_k: Most texts selected.
        weight: ``w``, 0 to 1; 1 sorts by relevance alone.

    Returns:
        Positions in order of selection and the score of each when selected; ties go to the earlier rank. The first has
        no redundancy.
    """
    n_selected = min(len(relevance), top_k)
    selected, scores = np.empty(n_selected, np.int64), np.empty(n_selected)
    worst = np.zeros(len(relevance))
    gain = weight * relevance.astype(np.float64)
    for rank in range(n_selected):
        value = gain - (1 - weight) * worst
        best = int(value.argmax())
        selected[rank], scores[rank] = best, value[best]
        worst = redundancy[:, best] if rank == 0 else np.maximum(worst, redundancy[:, best])
        gain[best] = -np.inf
    return selected, scores


def redundancy(vectors: F32, bm25: F64) -> F64:
    """Measure how much text i repeats text j: the larger of their cosine and ``BM25(i, j) / BM25(i, i)``.

    BM25 has no upper bound and would outweigh the cosine: each row of its scores, shape ``(n, n)`` with text i as the
    query, is divided by its text's score for itself and clipped to 0 … 1, and is 0 where that score is not positive.

    Returns:
        Shape ``(n, n)``; at most 1, not symmetric.
    """
    self_scores = bm25.diagonal()[:, None]
    scaled = np.divide(bm25, self_scores, out=np.zeros_like(bm25), where=self_scores > 0)
    exact = vectors.astype(np.float64)
    larger: F64 = np.maximum(np.clip(scaled, 0, 1), exact @ exact.T)
    return larger


SMOOTHING = 0.3
"""s of the clusters' shares of a sample, as published; the larger, the more alike they are."""


def kmeans(vectors: F32 | F64, n_clusters: int) -> I64:
    """Cluster vectors by Lloyd's algorithm, seeded as k-means++ (Arthur & Vassilvitskii, SODA 2007).

    The same vectors, shape ``(n, d)``, give the same clusters: fewer where there are fewer distinct vectors.

    Returns:
        Shape ``(n,)``; cluster of each vector, numbered from 0 by first occurrence, none empty.
    """
    points = np.asarray(vectors, np.float64)
    labels = np.zeros(len(points), np.int64)
    if not len(points):
        return labels
    rng = np.random.default_rng(0)
    chosen = [int(rng.integers(len(points)))]
    nearest = np.square(points - points[chosen[0]]).sum(axis=1)  # exactly 0 for equal points: none is drawn twice
    while len(chosen) < n_clusters and nearest.any():
        chosen.append(int(rng.choice(len(points), p=nearest / nearest.sum())))
        nearest = np.minimum(nearest, np.square(points - points[chosen[-1]]).sum(axis=1))
    centres = points[chosen]
    for _ in range(100):  # rounds, at most
        before, labels = labels, _assign(points, centres)
        if np.array_equal(before, labels):
            break
        members = labels == np.arange(len(centres))[:, None]
        centres = members @ points / members.sum(axis=1, keepdims=True)
    _, first, label = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[label].astype(np.int64)


def shares(sizes: I64, smoothing: float = SMOOTHING) -> F64:
    """Compute the share of a sample that each cluster gets by its size, at least 1: ``(size + s) / (total + n·s)``."""
    smoothed = sizes.astype(np.float64) + smoothing
    share: F64 = smoothed / smoothed.sum()
    return share


def allot(sizes: I64, share: F64, sample_size: int) -> I64:
    """Turn shares into whole numbers of texts, at most each cluster's size.

    Every cluster gets at least one text and no more than it has; what a small one lacks goes to the others in
    proportion to their shares. Fractions are rounded by largest remainder (Hamilton), ties to the earlier cluster. A
    sample smaller than the number of clusters has one text of those of the largest shares.

    Returns:
        Shape ``(n,)``; sums to the smaller of ``sample_size`` and all texts.
    """
    wanted = min(sample_size, int(sizes.sum()))
    counts = np.zeros(len(sizes), np.int64)
    if wanted <= len(sizes):
        counts[best_first(share, wanted)] = 1
        return counts
    # The sum over clusters of clip(scale · share, 1, size) is piecewise linear in scale: solve it for ``sample_size``.
    scale = np.sort(np.r_[1 / share, sizes / share])
    totals = np.clip(scale[:, None] * share, 1, sizes).sum(axis=1)
    quota = np.clip(np.interp(wanted, totals, scale) * share, 1, sizes).round(9)
    counts += np.floor(quota).astype(np.int64)
    counts[best_first(quota - counts, wanted - int(counts.sum()))] += 1
    return counts


def sample_clusters(labels: I64, scores: F64, sample_size: int) -> I64:
    """Keep the best texts of every cluster, as many as its smoothed share of the sample (``shares``, ``allot``).

    Args:
        labels: Shape ``(n,)``; cluster of each text, numbered from 0 without gaps.
        scores: Shape ``(n,)``; sorts the texts inside a cluster, higher is better; ties keep the order.
        sample_size: Texts kept in all.

    Returns:
        Their positions, best score first.
    """
    order = best_first(scores)
    if not len(order):
        return order
    sizes = np.bincount(labels)
    counts = allot(sizes, shares(sizes), sample_size)
    by_cluster = np.argsort(labels[order], kind="stable")
    cluster_ranks = np.empty_like(order)
    cluster_ranks[by_cluster] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return order[cluster_ranks < counts[labels[order]]]


def _assign(points: F64, centres: F64) -> I64:
    """Assign every point to its nearest centre; an empty cluster takes the farthest point of the shared ones."""
    labels: I64 = (np.square(centres).sum(axis=1) - 2 * points @ centres.T).argmin(axis=1).astype(np.int64)
    for cluster in np.flatnonzero(np.bincount(labels, minlength=len(centres)) == 0):
        is_sharing = np.bincount(labels)[labels] > 1
        distance = np.square(points - centres[labels]).sum(axis=1)
        labels[np.where(is_sharing, distance, -1).argmax()] = cluster
    return labels
