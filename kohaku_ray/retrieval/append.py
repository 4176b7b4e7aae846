"""Append BM25's paragraphs after the dense matches, without fusion of scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kohaku_ray.index.arrays import I64
from kohaku_ray.index.hits import Hits
from kohaku_ray.index.nodes import ancestors_of
from kohaku_ray.retrieval.deduplicate import Dedup
from kohaku_ray.retrieval.fusion import Ranked


def append_lexical(dense: Ranked, lists: Sequence[Hits], top_k: int, dedup: Dedup, parent: I64) -> Ranked:
    """Append the paragraphs that BM25 found and vector search did not.

    Every query's best comes first, then every query's second, and so on. Under ``tree`` a paragraph is new only when
    no ancestor or descendant of it is a match already: a matched sentence adds its paragraph to the context, so the
    slot goes to text that the context lacks.

    Args:
        dense: Dense matches after truncation, best first.
        lists: One ``Hits`` per query, best first; the same queries.
        top_k: Most paragraphs taken per query, and appended in all.
        dedup: ``tree`` compares ancestors and descendants, the others nodes.
        parent: Shape ``(n_nodes,)``; row of each node's parent, ``-1`` for a document.

    Returns:
        The dense matches, followed by at most ``top_k`` lexical ones.
    """
    if not lists or not top_k:
        return dense
    held = {int(row) for row in dense.rows}
    barred = held | {up for row in held for up in ancestors_of(row, parent)} if dedup == "tree" else set(held)
    taken: dict[int, float] = {}
    for row, score in _interleaved([hits.prefix(top_k) for hits in lists]):
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


def _interleaved(lists: Sequence[Hits]) -> list[tuple[int, float]]:
    """Interleave the lists: every list's first, then every list's second, and so on."""
    deepest = max((len(hits) for hits in lists), default=0)
    return [
        (int(hits.rows[rank]), float(hits.scores[rank]))
        for rank in range(deepest)
        for hits in lists
        if rank < len(hits)
    ]
