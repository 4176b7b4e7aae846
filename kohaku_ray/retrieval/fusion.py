"""Combine rankings: by frequency and score over queries, by reciprocal rank; drop repeats; append or fuse BM25's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from kohaku_ray.index.arrays import F64, I64, Hits
from kohaku_ray.index.nodes import ancestors_of

RankNumber = TypeVar("RankNumber", np.int64, np.float64)
FusionStrategy = Literal["none", "frequency", "score", "max", "combined"]
Normalise = Literal["max", "minmax"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Matches best first, each with the numbers that ranked it.

    Attributes:
        rows: Shape ``(n,)``; row of each match in the node table.
        score: Shape ``(n,)``; the score the strategy sorted by; for a lexical match, its BM25 score.
        frequency: Shape ``(n,)``; how many queries' dense lists hold it, 0 for a lexical match.
        total, highest: Shape ``(n,)``; sum and largest of its similarities over those queries.
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


def fuse(lists: Sequence[Hits], strategy: FusionStrategy, normalise: Normalise = "max", alpha: float = 0.4) -> Ranked:
    """Order the hits of several queries; ties go to the earlier first occurrence, query by query.

    Frequency is counted over the lists as given, before any deduplication (after it, every frequency would be 1).

    Args:
        lists: One ``Hits`` per query, best first.
        strategy: ``frequency`` sorts by (frequency, total), ``score`` by total, ``max`` by the largest
            similarity, ``combined`` by α·frequency + (1 − α)·total, both normalised; ``none`` keeps query order and
            repeats.
        normalise: See ``scaled``.
        alpha: Weight of frequency in ``combined``, 0 to 1.
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


RANKS_DAMPED = 10
"""``k`` of reciprocal rank fusion over vectors and BM25: of 3, 10, 20 and 60, best for passages on WattBot 2026."""


def fuse_with_lexical(dense: Sequence[Hits], lexical: Sequence[Hits]) -> Ranked:
    """Order the hits of vectors and of BM25, one list per query each, by reciprocal rank.

    Frequency and similarities are those of vector search: 0 for a match that BM25 alone found.
    """
    best = reciprocal_rank_fusion([hits.rows for hits in (*dense, *lexical)], RANKS_DAMPED)
    similar = fuse(dense, "score")
    position = {row: number for number, row in enumerate(similar.rows.tolist())}
    known = np.array([position.get(row, -1) for row in best.rows.tolist()], np.int64)

    def of_dense(values: npt.NDArray[RankNumber]) -> npt.NDArray[RankNumber]:
        return np.append(values, values.dtype.type(0))[known]

    numbers = (of_dense(similar.frequency), of_dense(similar.total), of_dense(similar.highest))
    return Ranked(best.rows, best.scores, *numbers, len(best.rows))


def combined(frequency: I64, total: F64, normalise: Normalise, alpha: float) -> F64:
    """Weigh the two signals: α·f̂ + (1 − α)·ŝ."""
    return alpha * scaled(frequency.astype(np.float64), normalise) + (1 - alpha) * scaled(total, normalise)


def scaled(values: F64, normalise: Normalise) -> F64:
    """Bring values to a common scale without changing their order.

    ``max`` divides by the absolute value of the largest (by 1 where it is 0); ``minmax`` maps the smallest to 0 and the
    largest to 1, and equal values to 0.
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


def reciprocal_rank_fusion(rankings: Sequence[I64], k: int = 60) -> Hits:
    """Score every row by Σ 1 / (k + rank) over the rankings that hold it (Cormack, Clarke & Büttcher, SIGIR 2009).

    A row counts once per ranking, at its best rank, counted from 1; ``k`` reduces the weight of the first ranks.

    Returns:
        Every row once, best score first; ties go to the better of their best ranks, then to the earlier row.
    """
    lengths = list(map(len, rankings))
    rows = np.concatenate([np.empty(0, np.int64), *rankings])
    ranking = np.repeat(np.arange(len(lengths)), lengths)
    rank = np.arange(1, len(rows) + 1) - np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    by_row = np.lexsort((rank, ranking, rows))
    rows, ranking, rank = rows[by_row], ranking[by_row], rank[by_row]
    again = np.zeros(len(rows), bool)
    again[1:] = (rows[1:] == rows[:-1]) & (ranking[1:] == ranking[:-1])
    rows, rank = rows[~again], rank[~again]
    best_first = np.lexsort((rank, rows))  # one order of addition, so that equal ranks have equal sums
    rows, rank = rows[best_first], rank[best_first]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = rows[1:] != rows[:-1]
    unique_rows, best = rows[is_new], rank[is_new]
    scores = np.bincount(np.cumsum(is_new) - 1, 1 / (k + rank), len(unique_rows))
    order = np.lexsort((unique_rows, best, -scores))
    return Hits(unique_rows[order], scores[order])


def best_first(scores: F64, top_k: int | None = None) -> I64:
    """Return positions by score, best first and at most ``top_k``; ties keep the given order."""
    return np.argsort(-scores, kind="stable")[:top_k].astype(np.int64)


Dedup = Literal["none", "node", "tree"]
Truncate = Literal["after_dedup", "before_dedup"]
Lexical = Literal["append", "fuse"]


def deduplicate(ranked: Ranked, mode: Dedup, parent: I64) -> Ranked:
    """Drop repeats of matches, best first.

    ``none`` keeps all; ``node`` keeps a node's first place; ``tree`` also drops the matches below another match, which
    keeps its own numbers and takes the best rank among them. ``parent`` is as in ``NodeTable``.
    """
    if mode == "none" or not len(ranked):
        return ranked
    _, first = np.unique(ranked.rows, return_index=True)
    unique = ranked.take(np.sort(first))
    if mode == "node":
        return unique
    keeper = swallowed_by(unique.rows, parent)
    _, best_rank = np.unique(keeper, return_index=True)
    position = {int(row): number for number, row in enumerate(unique.rows)}
    return unique.take(np.array([position[int(row)] for row in keeper[np.sort(best_rank)]], np.int64))


def with_parents(rows: I64, parent: I64) -> I64:
    """Add every match's parent, repeats and all: the snippets of KohakuRAG's Table 6, twice its matches."""
    above = parent[rows]
    return np.concatenate([rows, above[above >= 0]])


def swallowed_by(rows: I64, parent: I64) -> I64:
    """Find each node's topmost ancestor among the rows, none twice; the node itself where it has none there."""
    present = np.zeros(len(parent), bool)
    present[rows] = True
    keeper, above = rows.copy(), parent[rows]
    while (above >= 0).any():
        known = above >= 0
        keeper = np.where(known & present[above], above, keeper)
        above = np.where(known, parent[above], -1)
    return keeper


def append_lexical(dense: Ranked, lists: Sequence[Hits], top_k: int, dedup: Dedup, parent: I64) -> Ranked:
    """Append up to ``top_k`` paragraphs that BM25 found and vector search did not, of the first ``top_k`` per query.

    Every query's best comes first, then every query's second, and so on. Under ``tree`` a paragraph is new only when
    no ancestor or descendant of it is a match already: a matched sentence adds its paragraph to the context, so the
    slot goes to text that the context lacks.
    """
    if not lists or not top_k:
        return dense
    held = {int(row) for row in dense.rows}
    barred = held | {up for row in held for up in ancestors_of(row, parent)} if dedup == "tree" else set(held)
    taken: dict[int, float] = {}
    best = [hits.prefix(top_k) for hits in lists]
    candidates = [zip(hits.rows.tolist(), hits.scores.tolist(), strict=True) for hits in best]
    for row, score in filter(None, chain.from_iterable(zip_longest(*candidates))):
        if len(taken) == top_k:
            break
        if row in barred or row in taken or (dedup == "tree" and not held.isdisjoint(ancestors_of(row, parent))):
            continue
        taken[row] = score
    return Ranked(
        rows=np.concatenate([dense.rows, np.fromiter(taken.keys(), np.int64, len(taken))]),
        score=np.concatenate([dense.score, np.fromiter(taken.values(), np.float64, len(taken))]),
        frequency=np.concatenate([dense.frequency, np.zeros(len(taken), np.int64)]),
        total=np.concatenate([dense.total, np.zeros(len(taken), np.float64)]),
        highest=np.concatenate([dense.highest, np.zeros(len(taken), np.float64)]),
        n_dense=len(dense),
    )
