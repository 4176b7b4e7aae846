"""Fuse several queries' results into one order: by frequency, sum or maximum (KohakuRAG, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kohaku_ray.index.arrays import F64, I64
from kohaku_ray.index.hits import Hits

Strategy = Literal["none", "frequency", "score", "max", "combined"]
Normalise = Literal["max", "minmax"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Matches best first, each with the numbers that ranked it.

    Attributes:
        rows: Shape ``(n,)``; row of each match in the node table.
        score: Shape ``(n,)``; the score the strategy sorted by; for a lexical match, its BM25 score.
        frequency: Shape ``(n,)``; how many queries' dense lists hold it, 0 for a lexical match.
        total: Shape ``(n,)``; sum of its similarities over those queries.
        highest: Shape ``(n,)``; the largest of them; 0 for a lexical match.
        n_dense: How many, from the first, came from vector search; the others are lexical.
    """

    rows: I64
    score: F64
    frequency: I64
    total: F64
    highest: F64
    n_dense: int

    def __len__(self) -> int:
        """Count the matches."""
        return len(self.rows)

    def take(self, positions: I64) -> Ranked:
        """Keep the matches at these positions, in this order; all matches must be dense."""
        return Ranked(
            self.rows[positions],
            self.score[positions],
            self.frequency[positions],
            self.total[positions],
            self.highest[positions],
            len(positions),
        )


def fuse(lists: Sequence[Hits], strategy: Strategy, normalise: Normalise = "max", alpha: float = 0.4) -> Ranked:
    """Order the hits of several queries; ties go to the earlier first occurrence, query by query.

    Frequency is counted over the lists as given, before any deduplication (after it, every frequency would be 1).

    Args:
        lists: One ``Hits`` per query, best first.
        strategy: ``frequency`` sorts by (frequency, total), ``score`` by total, ``max`` by the largest
            similarity, ``combined`` by α·frequency + (1 − α)·total, both normalised; ``none`` keeps query order and
            repeats.
        normalise: Normalises both terms of ``combined``, see ``scaled``.
        alpha: Weight of frequency in ``combined``, 0 to 1.

    Returns:
        Every row once, best first; under ``none`` every hit in the given order.
    """
    rows = np.concatenate([np.empty(0, np.int64), *(hits.rows for hits in lists)])
    similarity = np.concatenate([np.empty(0, np.float64), *(hits.scores for hits in lists)])
    query = np.repeat(np.arange(len(lists)), [len(hits) for hits in lists])
    first, group, frequency, total, highest = _count(rows, similarity, query)
    if strategy == "none":
        return Ranked(rows, similarity, frequency[group], total[group], highest[group], len(rows))
    if strategy == "combined":
        score = combined(frequency, total, normalise, alpha)
    else:
        score = {"frequency": frequency.astype(np.float64), "score": total, "max": highest}[strategy]
    second = total if strategy == "frequency" else np.zeros_like(score)
    unique = Ranked(rows[first], score, frequency, total, highest, len(first))
    return unique.take(np.lexsort((first, -second, -score)).astype(np.int64))


def combined(frequency: I64, total: F64, normalise: Normalise, alpha: float) -> F64:
    """Weigh the two signals: α·f̂ + (1 − α)·ŝ."""
    return alpha * scaled(frequency.astype(np.float64), normalise) + (1 - alpha) * scaled(total, normalise)


def scaled(values: F64, normalise: Normalise) -> F64:
    """Bring values to a common scale without changing their order.

    Args:
        values: Shape ``(n,)``.
        normalise: ``max`` divides by the absolute value of the largest (by 1 where it is 0); ``minmax`` maps the
            smallest to 0 and the largest to 1, and equal values to 0.
    """
    if not len(values):
        return values
    if normalise == "max":
        return values / (abs(values.max()) or 1.0)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _count(rows: I64, similarity: F64, query: npt.NDArray[np.intp]) -> tuple[I64, I64, I64, F64, F64]:
    """Group hits by row: first occurrence, group of each hit; queries, sum and maximum of similarity of each group.

    A row that one list holds twice counts once for that query, with its best similarity. Similarities are added in
    ascending order, so that the order of the queries cannot break a tie.
    """
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    best = np.lexsort((-similarity, query, group))
    opens = np.ones(len(best), bool)
    opens[1:] = (group[best][1:] != group[best][:-1]) | (query[best][1:] != query[best][:-1])
    once = best[opens]
    once = once[np.lexsort((similarity[once], group[once]))]
    frequency = np.bincount(group[once], minlength=len(first)).astype(np.int64)
    total = np.bincount(group[once], weights=similarity[once], minlength=len(first)).astype(np.float64)
    highest = np.full(len(first), -np.inf)
    np.maximum.at(highest, group, similarity)
    return first.astype(np.int64), group.astype(np.int64), frequency, total, highest
