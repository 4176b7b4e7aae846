"""Call what answers a target's calls; a call whose replica died is made again."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from kohaku_ray.engine import NAMESPACE, metrics
from kohaku_ray.engine.errors import root_cause
from kohaku_ray.engine.serving.replica import tell_shard
from kohaku_ray.errors import ModelError, TransientModelError, message_of
from kohaku_ray.models.replica import CallOutcome, Replica, ReplicaLostError
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.target import Target
from kohaku_ray.records import digest

REPLICA_TRIES = 5
"""Tries of a call whose replica died."""

PAIRS_PER_CALL = 256
"""Most pairs per call to a replica: more pairs go in several calls, to several replicas."""


def import_serve() -> Any:
    """Import Serve for calls from an event loop; where it is needed alone, as it takes most of a second."""
    # Read at the import: its router in our event loop, not in a thread of its own that wakes and waits for ours several
    # times a call.
    os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
    from ray import serve

    return serve


def batch_actor_name(target: Target, path: str) -> str:
    """Return the name of the actor that answers for a target, by the ledger at a path."""
    return f"{target.name}-{digest([path], 8)}"


class Handles:
    """Handles, one per application: every new handle has its own router."""

    def __init__(self, ledger: str = "") -> None:
        """Call for the ledger at a path, whose actors gather batches."""
        self._handles: dict[str, Any] = {}
        self._ledger = ledger

    async def call(self, target: Target, method: str, *arguments: Any, session_id: str = "", who: str = "") -> Any:
        """Call a method of what answers for a target, until a replica answers; ``who`` is for messages.

        Calls of one ``session_id``, which is a question, go to one replica.

        Raises:
            ModelError: The backend refused or broke, or no replica answered.
        """
        if target.route == "shard":
            return await getattr(_baseline(target.settings), method)(*arguments)
        # Retries of a lost replica alone. The others: a server's failures (models/openai.chat), a reply that failed
        # (Replica), a blank answer (the system's attempts), a lost actor (max_task_retries, actors/pool).
        # docs/operations.md has their product.
        absent = _error_of_absence(target)
        lost: Exception | None = None
        for attempt in range(REPLICA_TRIES):
            try:
                if target.name not in self._handles:
                    self._handles[target.name] = await self._find_handle(target)
                handle = self._handles[target.name]
                if session_id and target.route == "serve":
                    handle = handle.options(session_id=session_id)
                return await getattr(handle, method).remote(*arguments)
            except ModelError:
                raise
            except (RayError, absent) as error:
                if isinstance(error, RayTaskError) and not isinstance(root_cause(error), ReplicaLostError):
                    raise ModelError(f"{who or target.name}: the backend broke: {message_of(error)}") from None
                # The replica died during the call, or none is up yet: Ray starts another.
                lost = error
                self._handles.pop(target.name, None)
                metrics.add("kohaku_ray_call_retries_total", 1, application=target.name)
                await asyncio.sleep(min(0.5 * 2**attempt, 8.0))
        assert lost is not None
        if target.route == "batch":
            raise TransientModelError(
                f"{who}: the actor that gathers batches is gone ({message_of(lost)}): repeat the command, which finds "
                "the batches that it has sent"
            )
        raise TransientModelError(
            f"{who or target.name}: no replica answered in {REPLICA_TRIES} tries; the last: {message_of(lost)}"
        )

    async def ask(self, target: Target, requests: Sequence[ChatRequest], shard: str | None) -> list[CallOutcome]:
        """Ask the requests of a question, which have one prompt, of one replica; see ``Replica.ask``."""
        first = requests[0]
        outcomes: list[CallOutcome] = await self.call(
            target, "ask", requests, shard, session_id=first.session_id, who=first.model
        )
        return outcomes

    async def cache_tokens(self, target: Target) -> int | None:
        """Return what the KV cache of one of a target's replicas holds; None: they do not say."""
        with suppress(ModelError):
            tokens: int | None = await self.call(target, "cache_tokens")
            return tokens
        return None

    async def _find_handle(self, target: Target) -> Any:
        if target.route == "batch":
            return await asyncio.to_thread(ray.get_actor, batch_actor_name(target, self._ledger), NAMESPACE)
        return import_serve().get_app_handle(target.name)


def _error_of_absence(target: Target) -> type[Exception]:
    """Return the error of a look-up that finds no actor, or of a call while no replica is up."""
    if target.route == "batch":
        return ValueError
    import_serve()
    from ray.serve.exceptions import RayServeException

    error: type[Exception] = RayServeException
    return error


@functools.cache
def _baseline(settings: str) -> Replica:
    from kohaku_ray.systems.offline import ExtractiveConfig

    deployment = ExtractiveConfig(**json.loads(settings))
    return Replica(deployment.make_backend().chat, deployment.max_ongoing, tell=tell_shard)


_HANDLES = Handles()


async def rank_pairs(target: Target, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Score (query, text) pairs by a cross-encoder.

    Raises:
        ModelError: The cross-encoder failed, or no replica answered.
    """
    parts = [list(pairs[first : first + PAIRS_PER_CALL]) for first in range(0, len(pairs), PAIRS_PER_CALL)]
    scores = await asyncio.gather(*(_HANDLES.call(target, "rank", part) for part in parts))
    return [score for part in scores for score in part]
