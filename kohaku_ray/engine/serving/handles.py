"""Call Serve applications by handle, chat or cross-encoder; a call during which a replica died is repeated."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ray.exceptions import RayError, RayTaskError

from kohaku_ray.engine.errors import ReplicaLostError, message_of, root_cause
from kohaku_ray.engine.metrics import count_retry
from kohaku_ray.errors import ModelError, TransientModelError

REPLICA_TRIES = 5
"""Tries of a call whose replica died."""


class Handles:
    """Handles, one per application: every new handle has its own router."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    async def call(self, application: str, send: Callable[[Any], Awaitable[Any]], who: str) -> Any:
        """Call an application until a replica answers.

        Args:
            application: Serve application.
            send: Makes the call on a handle.
            who: Name of the callee, for the error message.

        Returns:
            What the replica returned.

        Raises:
            ModelError: The backend refused or broke, or no replica answered.
        """
        # Read when Serve is imported: its router in our event loop, not in a thread of its own that wakes and waits for
        # ours several times a call.
        os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
        # Imported here: clients need no Serve, and the import takes a second of every actor's start.
        from ray import serve
        from ray.serve.exceptions import RayServeException

        last: BaseException | None = None
        for attempt in range(REPLICA_TRIES):
            try:
                if application not in self._handles:
                    self._handles[application] = serve.get_app_handle(application)
                return await send(self._handles[application])
            except ModelError:
                raise
            except (RayError, RayServeException) as error:
                if isinstance(error, RayTaskError) and not isinstance(root_cause(error), ReplicaLostError):
                    raise ModelError(f"{who}: the backend broke: {message_of(error)}") from None
                # The replica died during the call, or none is up yet: Serve starts another.
                last = error
                self._handles.pop(application, None)
                count_retry(application)
                await asyncio.sleep(min(0.5 * 2**attempt, 8.0))
        assert last is not None
        raise TransientModelError(f"{who}: no replica answered in {REPLICA_TRIES} tries; the last: {message_of(last)}")


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
