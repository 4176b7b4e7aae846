"""Remove repeats from a ranking: equal texts, and items beyond a limit per key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from kohaku_ray.index.arrays import I64


def distinct_texts(texts: Sequence[str], top_k: int | None = None) -> I64:
    """Keep the first of equal texts; call it before a cut, so that freed places are refilled.

    Args:
        texts: Best first; texts are equal when they differ in white space alone.
        top_k: Most texts kept; None: all.

    Returns:
        Positions kept, ascending.
    """
    return _within(1, (" ".join(text.split()) for text in texts), top_k)


def cap_per_key(keys: Sequence[str | None], doc_ids: Sequence[str], limit: int = 1) -> I64:
    """Keep at most ``limit`` items per key, in order.

    Args:
        keys: Key of each item, best first, such as its site; None counts by the item's document.
        doc_ids: Document of each item.
        limit: Most items per key, at least 1.

    Returns:
        Positions kept, ascending.
    """
    return _within(limit, ((key, doc_id if key is None else None) for key, doc_id in zip(keys, doc_ids, strict=True)))


def _within(limit: int, keys: Iterable[Hashable], top_k: int | None = None) -> I64:
    """Positions of the first ``limit`` items of each key, at most ``top_k`` in all; later keys are not read."""
    seen: Counter[Hashable] = Counter()
    kept: list[int] = []
    for place, key in enumerate(keys):
        if len(kept) == top_k:
            break
        seen[key] += 1
        if seen[key] <= limit:
            kept.append(place)
    return np.array(kept, np.int64)
