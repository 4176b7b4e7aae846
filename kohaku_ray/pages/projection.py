"""Vectors in two dimensions: UMAP where it is installed, principal components otherwise."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kohaku_ray.index.arrays import F32, F64, I64


def principal(vectors: F32) -> tuple[F64, float]:
    """Project on the two directions of largest variance.

    Args:
        vectors: Shape ``(n, d)``, n at least 1.

    Returns:
        Shape ``(n, 2)``, and the share of the variance that the two explain (1.0 where there is none). The sign of
        each direction makes its largest component positive, so that the same vectors give the same map.
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    top = directions[:, ::-1][:, :2]
    top = top * np.where(top[np.abs(top).argmax(axis=0), np.arange(top.shape[1])] < 0, -1.0, 1.0)
    points = np.zeros((len(vectors), 2))
    points[:, : top.shape[1]] = centred @ top
    total = float(values.clip(0).sum())
    return points, float(values[::-1][:2].clip(0).sum()) / total if total > 0 else 1.0


def find_umap() -> Any:
    """Load umap-learn; None where it is not installed."""
    try:
        return importlib.import_module("umap")
    except ImportError:
        return None


def neighbours(vectors: F32, umap: Any) -> F64:
    """Project vectors by UMAP over cosine distances, seeded: shape ``(n, 2)``."""
    model = umap.UMAP(n_components=2, metric="cosine", n_neighbors=min(15, len(vectors) - 1), random_state=0, n_jobs=1)
    points: F64 = np.asarray(model.fit_transform(vectors), np.float64)
    return points


def sample_rows(kind: I64, limit: int) -> I64:
    """Choose at most ``limit`` rows, evenly spaced within each kind.

    Rare kinds are kept whole: each kind, from the rarest, takes up to an even share of the remaining rows.

    Args:
        kind: Shape ``(n,)``; one code per row.
        limit: Most rows chosen.

    Returns:
        Ascending rows.
    """
    places = sorted((np.flatnonzero(kind == code) for code in np.unique(kind)), key=len)
    chosen, left = [np.empty(0, np.int64)], limit
    for at, rows in enumerate(places):
        n = min(len(rows), left // (len(places) - at))
        chosen.append(rows[np.linspace(0, len(rows) - 1, n).astype(np.int64)] if n else rows[:0])
        left -= n
    return np.sort(np.concatenate(chosen)).astype(np.int64)
