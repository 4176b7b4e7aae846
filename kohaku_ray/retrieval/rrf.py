"""Reciprocal rank fusion: combine rankings by rank alone, whatever their scores mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kohaku_ray.index.arrays import I64
from kohaku_ray.index.hits import Hits


def reciprocal_rank_fusion(rankings: Sequence[I64], k: int = 60) -> Hits:
    """Score every row by Σ 1 / (k + rank) over the rankings that hold it (Cormack, Clarke & Büttcher, SIGIR 2009).

    Args:
        rankings: Node-table rows best first, shape ``(n_i,)`` each; a row counts once per ranking, at its best rank.
        k: Reduces the weight of the first ranks; ranks count from 1.

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
    found, best = rows[is_new], rank[is_new]
    scores = np.bincount(np.cumsum(is_new) - 1, 1 / (k + rank), len(found))
    order = np.lexsort((found, best, -scores))
    return Hits(found[order], scores[order])
