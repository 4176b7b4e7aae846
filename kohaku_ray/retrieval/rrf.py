"""Reciprocal rank fusion: combine rankings by rank alone, whatever their scores mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kohaku_ray.arrays import I64
from kohaku_ray.index.hits import Hits


def reciprocal_rank_fusion(rankings: Sequence[I64], k: int = 60) -> Hits:
    """Score every row by Σ 1 / (k + rank) over the rankings that hold it (Cormack, Clarke & Büttcher, SIGIR 2009).

    Args:
        rankings: Node-table rows best first, shape ``(n_i,)`` each; a row counts once per ranking, at its best rank.
        k: Reduces the weight of the first ranks; ranks count from 1.

    Returns:
        Every row once, best score first; ties go to the better of their best ranks, then to the earlier row.
    """
    rows = np.concatenate([np.empty(0, np.int64), *rankings])
    rank = np.concatenate([np.empty(0, np.int64), *(np.arange(1, len(ranking) + 1) for ranking in rankings)])
    ranking = np.repeat(np.arange(len(rankings)), list(map(len, rankings)))
    _, once = np.unique(np.stack([rows, ranking]), axis=1, return_index=True)
    once = once[np.lexsort((rank[once], rows[once]))]  # one order of addition, so that equal ranks have equal sums
    found, best, group = np.unique(rows[once], return_index=True, return_inverse=True)
    scores = np.bincount(group, 1 / (k + rank[once]), len(found))
    order = np.lexsort((found, rank[once][best], -scores))
    return Hits(found[order], scores[order])
