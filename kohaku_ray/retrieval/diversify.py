"""Remove repeats from a ranking: equal texts, items beyond a limit per key, redundant texts (MMR)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from kohaku_ray.index.arrays import F32, F64, I64


def distinct_texts(texts: Sequence[str], top_k: int | None = None) -> I64:
    """Keep the first of equal texts; call it before a cut, so that freed places are refilled.

    Args:
        texts: Best first; texts are equal when they differ in white space alone.
        top_k: Most texts kept; None: all.

    Returns:
        Positions kept, ascending.
    """
    return _within(1, (" ".join(text.split()) for text in texts), top_k)


def cap_per_key(keys: Sequence[str | None], doc_ids: Sequence[str], limit: int = 1) -> I64:
    """Keep at most ``limit`` items per key, in order.

    Args:
        keys: Key of each item, best first, such as its site; None counts by the item's document.
        doc_ids: Document of each item.
        limit: Most items per key, at least 1.

    Returns:
        Positions kept, ascending.
    """
    return _within(limit, ((key, doc_id if key is None else None) for key, doc_id in zip(keys, doc_ids, strict=True)))


def _within(limit: int, keys: Iterable[Hashable], top_k: int | None = None) -> I64:
    """Positions of the first ``limit`` items of each key, at most ``top_k`` in all; later keys are not read."""
    seen: Counter[Hashable] = Counter()
    kept: list[int] = []
    for place, key in enumerate(keys):
        if len(kept) == top_k:
            break
        seen[key] += 1
        if seen[key] <= limit:
            kept.append(place)
    return np.array(kept, np.int64)


def mmr(relevance: F64, redundancy: F64, top_k: int, weight: float = 0.9) -> tuple[I64, F64]:
    """Select greedily by ``w · relevance − (1 − w) · max redundancy`` (Carbonell & Goldstein, SIGIR 1998).

    Args:
        relevance: Shape ``(n,)``; similarity of each text to the question, in the texts' earlier rank order.
        redundancy: Shape ``(n, n)``; similarity of text i to a selected text j.
        top_k: Most texts selected.
        weight: ``w``, 0 to 1; 1 sorts by relevance alone.

    Returns:
        Positions in order of selection and the score of each when selected, both of shape ``(min(n, top_k),)``; ties
        go to the earlier rank. The first has no redundancy.
    """
    n_selected = min(len(relevance), top_k)
    selected, scores = np.empty(n_selected, np.int64), np.empty(n_selected)
    worst = np.zeros(len(relevance))
    gain = weight * relevance.astype(np.float64)
    for place in range(n_selected):
        value = gain - (1 - weight) * worst
        best = int(value.argmax())
        selected[place], scores[place] = best, value[best]
        worst = redundancy[:, best] if place == 0 else np.maximum(worst, redundancy[:, best])
        gain[best] = -np.inf
    return selected, scores


def redundancy(vectors: F32, bm25: F64) -> F64:
    """Measure how much text i repeats text j: the larger of their cosine and ``BM25(i, j) / BM25(i, i)``.

    Args:
        vectors: Shape ``(n, d)``; unit rows.
        bm25: Shape ``(n, n)``; BM25 score of text j for text i as the query, such as ``similarities`` of terms. It
            has no upper bound and would outweigh the cosine: each row is divided by its text's score for itself and
            clipped to 0 … 1, and is 0 where that score is not positive.

    Returns:
        Shape ``(n, n)``; at most 1, not symmetric.
    """
    own = bm25.diagonal()[:, None]
    scaled = np.divide(bm25, own, out=np.zeros_like(bm25), where=own > 0)
    exact = vectors.astype(np.float64)
    larger: F64 = np.maximum(np.clip(scaled, 0, 1), exact @ exact.T)
    return larger
