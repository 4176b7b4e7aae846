"""Score (query, text) pairs by a cross-encoder behind Serve; pairs of all questions in flight share its batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kohaku_ray.engine.serving.handles import Handles

PAIRS_PER_CALL = 256
"""Most pairs per call to a replica: more pairs go in several calls, to several replicas."""

_HANDLES = Handles()


async def rank_pairs(application: str, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Score pairs by an application.

    Args:
        application: Serve application of a cross-encoder.
        pairs: (query, text) pairs.

    Raises:
        ModelError: The cross-encoder failed, or no replica answered.
    """

    async def rank(part: list[tuple[str, str]]) -> list[float]:
        scores: list[float] = await _HANDLES.call(application, lambda handle: handle.rank.remote(part), application)
        return scores

    parts = [list(pairs[at : at + PAIRS_PER_CALL]) for at in range(0, len(pairs), PAIRS_PER_CALL)]
    return [score for scores in await asyncio.gather(*map(rank, parts)) for score in scores]
