"""Several queries' results in, one order out: by how often, how well, or both (KohakuRAG, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kohaku_ray.arrays import F64, I64
from kohaku_ray.index.hits import Hits

Strategy = Literal["none", "frequency", "score", "combined"]
Normalise = Literal["max", "minmax"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Matches best first, each with the numbers that put it there.

    Attributes:
        rows: Shape ``(n,)``; row of each match in the node table.
        score: Shape ``(n,)``; what the strategy sorted by; of a lexical match its BM25 score.
        frequency: Shape ``(n,)``; how many queries' dense lists hold it, 0 for a lexical match.
        total: Shape ``(n,)``; sum of its similarities over those queries.
        n_dense: How many, from the front, came from vector search; the rest is lexical.
    """

    rows: I64
    score: F64
    frequency: I64
    total: F64
    n_dense: int

    def __len__(self) -> int:
        """Count the matches."""
        return len(self.rows)

    def take(self, positions: I64) -> Ranked:
        """Keep these of purely dense matches, in this order."""
        return Ranked(
            self.rows[positions],
            self.score[positions],
            self.frequency[positions],
            self.total[positions],
            len(positions),
        )


def fuse(lists: Sequence[Hits], strategy: Strategy, normalise: Normalise = "max", alpha: float = 0.4) -> Ranked:
    """Order what several queries found; ties go to the earlier first occurrence, query by query.

    Frequency is counted over the lists as they come, before any deduplication (after it, it would be 1 throughout).

    Args:
        lists: One ``Hits`` a query, best first.
        strategy: ``frequency`` sorts by (frequency, total), ``score`` by total, ``combined`` by
            α·frequency + (1 − α)·total, both normalised; ``none`` keeps query order, repeats and all.
        normalise: Scale of both terms of ``combined``, see ``scaled``.
        alpha: Weight of frequency in ``combined``, 0 to 1.

    Returns:
        Every row once, best first; under ``none`` every hit as it came.
    """
    rows = np.concatenate([np.empty(0, np.int64), *(hits.rows for hits in lists)])
    similarity = np.concatenate([np.empty(0, np.float64), *(hits.scores for hits in lists)])
    query = np.repeat(np.arange(len(lists)), [len(hits) for hits in lists])
    first, group, frequency, total = _count(rows, similarity, query)
    if strategy == "none":
        return Ranked(rows, similarity, frequency[group], total[group], len(rows))
    if strategy == "frequency":
        score = frequency.astype(np.float64)
    else:
        score = total if strategy == "score" else combined(frequency, total, normalise, alpha)
    second = total if strategy == "frequency" else np.zeros_like(score)
    unique = Ranked(rows[first], score, frequency, total, len(first))
    return unique.take(np.lexsort((first, -second, -score)).astype(np.int64))


def combined(frequency: I64, total: F64, normalise: Normalise, alpha: float) -> F64:
    """Weigh the two signals: α·f̂ + (1 − α)·ŝ."""
    return alpha * scaled(frequency.astype(np.float64), normalise) + (1 - alpha) * scaled(total, normalise)


def scaled(values: F64, normalise: Normalise) -> F64:
    """Bring values to a common scale without changing their order.

    Args:
        values: Shape ``(n,)``.
        normalise: ``max`` divides by the largest (by its size where it is negative, by 1 where it is 0); ``minmax``
            maps smallest to 0 and largest to 1, and what is constant to 0.
    """
    if not len(values):
        return values
    if normalise == "max":
        return values / (abs(values.max()) or 1.0)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _count(rows: I64, similarity: F64, query: npt.NDArray[np.intp]) -> tuple[I64, I64, I64, F64]:
    """First occurrence, group of each hit, queries and similarities of each group.

    A row that one list holds twice counts once for that query, with its best similarity. Similarities are added in
    ascending order, so that the order of the queries cannot part two rows that tie.
    """
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    best = np.lexsort((-similarity, query, group))
    opens = np.ones(len(best), bool)
    opens[1:] = (group[best][1:] != group[best][:-1]) | (query[best][1:] != query[best][:-1])
    once = best[opens]
    once = once[np.lexsort((similarity[once], group[once]))]
    frequency = np.bincount(group[once], minlength=len(first)).astype(np.int64)
    total = np.bincount(group[once], weights=similarity[once], minlength=len(first)).astype(np.float64)
    return first.astype(np.int64), group.astype(np.int64), frequency, total
