"""How a call on an index of several shards is divided among them, and its results joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kohaku_ray.index.hits import Hits
from kohaku_ray.index.layout import ShardLayout
from kohaku_ray.index.nodes import NodeTable, join_nodes
from kohaku_ray.index.vectors import merge_hits

Items = Sequence[Any]

Share = tuple[list[Any], list[int]]
"""What one shard is asked: items, and the place of each among the items of the call."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How an operation runs on shards.

    Attributes:
        divide: ``(layout, items)``: what each shard is asked.
        join: ``(what the shards found for one item, params)``: its result.
    """

    divide: Callable[[ShardLayout, Items], Mapping[int, Share]]
    join: Callable[[list[Any], tuple[Any, ...]], Any]


def _to_all(layout: ShardLayout, items: Items) -> dict[int, Share]:
    return {shard: (list(items), list(range(len(items)))) for shard in layout.shards}


def _to_owner(layout: ShardLayout, rows: Items) -> dict[int, Share]:
    owner = layout.shard_of(np.asarray(rows, np.int64))
    places = {int(shard): np.flatnonzero(owner == shard).tolist() for shard in np.unique(owner)}
    return {shard: ([rows[at] for at in own], own) for shard, own in places.items()}


def _to_owners(layout: ShardLayout, items: Items) -> dict[int, Share]:
    """Divide items that are tuples of rows; one without rows goes to the first shard."""
    shares: dict[int, Share] = {}
    for at, rows in enumerate(items):
        owner = layout.shard_of(np.asarray(rows, np.int64))
        for shard in np.unique(owner).tolist() or [0]:
            asked, places = shares.setdefault(shard, ([], []))
            asked.append(tuple(row for row, one in zip(rows, owner, strict=True) if one == shard))
            places.append(at)
    return shares


def _best(found: list[Hits], params: tuple[Any, ...]) -> Hits:
    return merge_hits([[hits] for hits in found], params[1])[0]


def _joined(found: list[NodeTable], _: tuple[Any, ...]) -> NodeTable:
    return join_nodes(found)


EVERY_SHARD = Spread(_to_all, _best)
"""Every shard searches; the best hits of all are kept."""

BY_ROW = Spread(_to_owner, lambda found, _: found[0])
"""Items are node rows: the shard that has one answers for it."""

BY_ROWS = Spread(_to_owners, _joined)
"""Items are tuples of node rows: each shard cuts out the nodes around its own."""
