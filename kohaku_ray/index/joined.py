"""Join parts of an index's node table that were cut out by different processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kohaku_ray.index.arrays import I64
from kohaku_ray.index.nodes import NodeTable


def renumbered(nodes: NodeTable, source_row: I64) -> NodeTable:
    """Copy a part with other row numbers of the whole index: shape ``(n,)``, increasing."""
    copy = NodeTable.__new__(NodeTable)
    copy.__dict__.update(nodes.__dict__)
    copy.source_row = source_row
    return copy


def join_nodes(parts: Sequence[NodeTable]) -> NodeTable:
    """Join parts that hold different documents, in the order of their rows in the whole index.

    Args:
        parts: Parts with the row numbers of the whole index in ``source_row``; no row is in two of them.
    """
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0, *map(len, parts)])
    source_row = np.concatenate([part.source_row for part in parts])
    order = np.argsort(source_row, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    parents = [np.where(part.parent < 0, -1, part.parent + first) for part, first in zip(parts, offsets, strict=False)]
    last = np.concatenate([part.end - 1 + first for part, first in zip(parts, offsets, strict=False)])
    parent = np.concatenate(parents)[order]
    joined = NodeTable.__new__(NodeTable)
    joined.parent = np.where(parent < 0, -1, rank[parent])
    # A document's rows are all in one part, so they stay side by side, and so does every subtree.
    joined.end = (rank[last] + 1)[order]
    joined.kind = np.concatenate([part.kind for part in parts])[order]
    joined.tokens = np.concatenate([part.tokens for part in parts])[order]
    joined.source_row = source_row[order]
    joined.hold(pa.concat_tables([part.table for part in parts]).take(pa.array(order)).combine_chunks())
    return joined
