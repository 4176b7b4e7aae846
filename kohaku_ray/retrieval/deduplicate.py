"""Drop repeated matches: the same node again, or a node that lies inside another match."""

from __future__ import annotations

from typing import Literal

import numpy as np

from kohaku_ray.index.arrays import I64
from kohaku_ray.retrieval.fusion import Ranked

Dedup = Literal["none", "node", "tree"]


def deduplicate(ranked: Ranked, mode: Dedup, parent: I64) -> Ranked:
    """Drop repeats; call it before truncation, so that freed slots are refilled.

    Args:
        ranked: Matches, best first.
        mode: ``none`` keeps all; ``node`` keeps a node's first place; ``tree`` also drops the matches below another
            match, which keeps its own numbers and takes the best rank among them.
        parent: Shape ``(n_nodes,)``; row of each node's parent, ``-1`` for a document.

    Returns:
        The matches kept, best first.
    """
    if mode == "none" or not len(ranked):
        return ranked
    _, first = np.unique(ranked.rows, return_index=True)
    unique = ranked.take(np.sort(first))
    if mode == "node":
        return unique
    keeper = swallowed_by(unique.rows, parent)
    _, best_rank = np.unique(keeper, return_index=True)
    position = {int(row): place for place, row in enumerate(unique.rows)}
    return unique.take(np.array([position[int(row)] for row in keeper[np.sort(best_rank)]], np.int64))


def with_parents(rows: I64, parent: I64, mode: Dedup) -> I64:
    """Add every match's parent, then drop repeats: how KohakuRAG's code counts the snippets of a context.

    Args:
        rows: Shape ``(n,)``; the matches.
        parent: Shape ``(n_nodes,)``; ``-1`` marks a document.
        mode: ``none`` keeps all; ``node`` each node once; ``tree`` only those that no other one contains.

    Returns:
        Rows of the snippets, in no particular order.
    """
    above = parent[rows]
    expanded: I64 = np.concatenate([rows, above[above >= 0]])
    if mode == "none":
        return expanded
    unique: I64 = np.unique(expanded)
    return unique if mode == "node" else np.unique(swallowed_by(unique, parent))


def swallowed_by(rows: I64, parent: I64) -> I64:
    """Find each node's topmost ancestor among the rows; the node itself where it has none there.

    Args:
        rows: Shape ``(n,)``; without repeats.
        parent: Shape ``(n_nodes,)``; ``-1`` marks a document.
    """
    present = np.zeros(len(parent), bool)
    present[rows] = True
    keeper, above = rows.copy(), parent[rows]
    while (above >= 0).any():
        known = above >= 0
        keeper = np.where(known & present[above], above, keeper)
        above = np.where(known, parent[above], -1)
    return keeper
