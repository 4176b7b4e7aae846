"""Compute the vectors of paragraphs, sections and documents from the vectors of their sentences."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kohaku_ray.errors import TreeError
from kohaku_ray.index.arrays import F32, F64, I64, Mask

_BLOCK_ROWS = 16384
"""Children summed at once: bounds the float64 copy, whatever the size of the tree."""


def fill_inner(vectors: F32, parent: I64, weight: F32 | F64 | I64, fixed: Mask) -> None:
    """Fill every inner node with the weighted mean of its children (KohakuRAG, eq. 5), as a unit row, in place.

    A node with no vector below it, such as an image without a caption, stays a row of zeros and counts for nothing in
    its parent.

    Args:
        vectors: Shape ``(n, d)``; ``fixed`` rows of unit L2 norm, the others zeros.
        parent: Shape ``(n,)``; ``parent[i] < i``, and ``-1`` marks a document.
        weight: Shape ``(n,)``; non-negative weight of each node in its parent.
        fixed: Shape ``(n,)``; rows that keep their vector.

    Raises:
        TreeError: A parent follows its child, a weight is negative, or a node's child weights sum to zero.
    """
    _check(parent, weight)
    present = fixed.copy()
    depth = depths(parent)
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & present)
        rows = rows[~fixed[parent[rows]]]
        rows = rows[np.argsort(parent[rows], kind="stable")]
        _fill_parents(vectors, rows, parent[rows], weight[rows].astype(np.float64))
        present[parent[rows]] = True


def depths(parent: I64) -> I64:
    """Count each node's ancestors: shape ``(n,)``."""
    depth = np.zeros(len(parent), dtype=np.int64)
    above = parent.copy()
    while (inside := above >= 0).any():
        depth += inside
        above[inside] = parent[above[inside]]
    return depth


def unit_rows(vectors: npt.NDArray[np.floating]) -> F32:
    """Scale each row to unit L2 norm, in float64; rows of zeros stay."""
    norm = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=-1, keepdims=True))
    unit = np.empty(vectors.shape, np.float32)  # the quotients in float64 are rounded piece by piece, as they are made
    np.divide(vectors, np.where(norm > 0, norm, 1), out=unit, dtype=np.float64, casting="same_kind")
    return unit


def _fill_parents(result: F32, rows: I64, parents: I64, weight: F64) -> None:
    """Write the unit mean of each parent's children; ``rows`` are sorted by parent."""
    starts = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]]) if len(rows) else np.empty(0, dtype=np.int64)
    ends = np.r_[starts[1:], len(rows)]
    first = 0
    while first < len(starts):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + _BLOCK_ROWS, side="right")))
        span = slice(starts[first], ends[last - 1])
        bounds = starts[first:last] - starts[first]
        total = np.add.reduceat(weight[span], bounds)
        if not (total > 0).all():
            node = parents[starts[first + int(np.argmin(total))]]
            raise TreeError(f"the weights of the children of node row {node} sum to zero: give at least one a weight")
        sums = np.add.reduceat(result[rows[span]] * weight[span, None], bounds)
        result[parents[starts[first:last]]] = unit_rows(sums / total[:, None])
        first = last


def _check(parent: I64, weight: F32 | F64 | I64) -> None:
    bad = np.flatnonzero((parent >= np.arange(len(parent))) | (parent < -1))
    if len(bad):
        raise TreeError(
            f"node row {bad[0]} has its parent at row {parent[bad[0]]}: a parent must come before its child"
        )
    bad = np.flatnonzero(~(weight >= 0))
    if len(bad):
        raise TreeError(f"node row {bad[0]} has the weight {weight[bad[0]]}: weights are numbers from 0 up")
