"""Order texts by a cross-encoder: the distinct (query, text) pairs to score, and the order by their scores."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kohaku_ray.index.arrays import F64, I64

Pair = tuple[str, str]
"""A query and a text."""


@dataclass(frozen=True, slots=True)
class PairBatch:
    """The distinct pairs of several queries' candidates.

    Attributes:
        pairs: Each (query, text) once, in order of first occurrence: what a cross-encoder scores.
        places: Per query, shape ``(n_texts,)``; position of each candidate's pair in ``pairs``.
    """

    pairs: tuple[Pair, ...]
    places: tuple[I64, ...]

    def per_query(self, scores: F64) -> list[F64]:
        """Map the scores of ``pairs`` to the candidates: per query, shape ``(n_texts,)``."""
        return [scores[places] for places in self.places]


def pair_up(queries: Sequence[str], candidates: Sequence[Sequence[str]]) -> PairBatch:
    """Collect the pairs of each query with its candidates.

    Args:
        queries: The queries; one may occur twice.
        candidates: The texts of each query; one may occur twice.
    """
    place: dict[Pair, int] = {}
    places = tuple(
        np.array([place.setdefault((query, text), len(place)) for text in texts], np.int64)
        for query, texts in zip(queries, candidates, strict=True)
    )
    return PairBatch(tuple(place), places)


def unscored(pairs: Iterable[Pair], known: Container[Pair]) -> list[Pair]:
    """Keep the pairs whose score is not known yet, each once, in order of first occurrence."""
    return [pair for pair in dict.fromkeys(pairs) if pair not in known]


def best_first(scores: F64, top_k: int | None = None) -> I64:
    """Order candidates by score, best first; ties keep the given order.

    Args:
        scores: Shape ``(n,)``; of the candidates in their earlier rank order.
        top_k: Most candidates kept; None: all.

    Returns:
        Positions of the candidates, shape ``(min(n, top_k),)``.
    """
    return np.argsort(-scores, kind="stable")[:top_k].astype(np.int64)
