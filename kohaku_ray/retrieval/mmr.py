"""Select texts that are relevant and not redundant: maximal marginal relevance over cosine and BM25."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.arrays import F32, F64, I64
from kohaku_ray.index.terms import saturation


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
        bm25: Shape ``(n, n)``; BM25 score of text j for text i as the query (``bm25_matrix``). It has no upper
            bound and would outweigh the cosine: each row is divided by its text's score for itself and clipped to
            0 … 1, and is 0 where that score is not positive.

    Returns:
        Shape ``(n, n)``; at most 1, not symmetric.
    """
    own = bm25.diagonal()[:, None]
    scaled = np.divide(bm25, own, out=np.zeros_like(bm25), where=own > 0)
    exact = vectors.astype(np.float64)
    larger: F64 = np.maximum(np.clip(scaled, 0, 1), exact @ exact.T)
    return larger


def bm25_matrix(
    texts: Sequence[Sequence[str]],
    idf: Mapping[str, float] | None = None,
    average_length: float | None = None,
    k1: float = 1.5,
    b: float = 0.75,
) -> F64:
    """Score every text for every text as the query: Σ over the query's terms of idf · saturation (``BM25Okapi``).

    Args:
        texts: Terms per text, as ``tokenise`` gives them; ``n`` texts.
        idf: Weight per term of the corpus; 0 for a term that is not in it. None: from these texts alone, negative
            ones replaced by a quarter of the mean as in ``BM25Okapi``.
        average_length: Mean terms per text of the corpus; None: of these texts.
        k1: Term-frequency saturation.
        b: Length normalisation.

    Returns:
        Shape ``(n, n)``; row i is text i as the query, its repeated terms counted as often as it holds them.
    """
    from scipy.sparse import csr_matrix

    counts = [Counter(terms) for terms in texts]
    column = {term: at for at, term in enumerate(sorted(set().union(*counts)))}
    if not column:
        return np.zeros((len(texts), len(texts)))
    places = np.array([column[term] for count in counts for term in count], np.int64)
    frequency = np.array([times for count in counts for times in count.values()], np.float64)
    ends = np.cumsum([0, *map(len, counts)])
    lengths = np.array(list(map(len, texts)), np.float64)
    relative_length = np.repeat(lengths / (average_length or lengths.mean()), np.diff(ends))
    own = _idf(np.bincount(places), len(texts))
    weight = own if idf is None else np.array([idf.get(term, 0.0) for term in column])
    weighed = weight[places] * saturation(frequency, relative_length, k1, b)
    shape = (len(texts), len(column))
    scores: F64 = (
        csr_matrix((frequency, places, ends), shape) @ csr_matrix((weighed, places, ends), shape).T
    ).toarray()
    return scores


def _idf(document_frequency: I64, n_texts: int) -> F64:
    """``BM25Okapi``'s weights: log((n − df + ½) / (df + ½)), negative ones replaced by a quarter of the mean."""
    idf: F64 = np.log(n_texts - document_frequency + 0.5) - np.log(document_frequency + 0.5)
    return np.where(idf < 0, 0.25 * idf.mean(), idf)
