"""Call models: Serve applications by handle, a call during which a replica died again; a baseline in this process."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from kohaku_ray.engine import NAMESPACE, metrics
from kohaku_ray.engine.errors import Refused, ReplicaLostError, message_of, root_cause
from kohaku_ray.errors import ModelError, TransientModelError
from kohaku_ray.models.meter import Meter
from kohaku_ray.models.places import Places
from kohaku_ray.models.request import Backend, ChatRequest, ask_until_finished, request_key
from kohaku_ray.records import Reply, digest
from kohaku_ray.run.models import BY_BATCH, IN_SHARDS

TELL_EVERY_S = 0.5
"""Longest time that a reply waits for its siblings' before a ledger's shard is told of it."""

REPLICA_TRIES = 5
"""Tries of a call whose replica died."""

IGNORE_EOS = "KOHAKU_RAY_IGNORE_EOS"
"""Set in the environment of a benchmark's vLLM replicas: a reply without a schema has ``max_tokens``."""

CallOutcome = tuple[Reply | Refused, float]
"""A reply, or the error in its place, and the seconds until it was there."""

Result = TypeVar("Result")


def import_serve() -> Any:
    """Import Serve for calls from an event loop; where it is needed alone, as it takes most of a second."""
    # Read at the import: its router in our event loop, not in a thread of its own that wakes and waits for ours several
    # times a call.
    os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
    from ray import serve

    return serve


class Handles:
    """Handles, one per application: every new handle has its own router."""

    def __init__(self, ledger: str = "") -> None:
        """Call for the ledger at a path, whose actors gather batches."""
        self._handles: dict[str, Any] = {}
        self._ledger = ledger

    async def call(self, application: str, send: Callable[[Any], Awaitable[Result]], who: str) -> Result:
        """Call an application until a replica answers: ``send`` makes the call on a handle, ``who`` is for messages.

        Raises:
            ModelError: The backend refused or broke, or no replica answered.
        """
        serve = import_serve()
        from ray.serve.exceptions import RayServeException

        # Retries of a lost replica alone. The others: a server's failures (models/openai.chat), a reply that failed
        # (Together), a blank answer (the system's attempts), a lost actor (max_task_retries, actors/pool).
        # docs/operations.md has their product.
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
                metrics.add("kohaku_ray_call_retries_total", 1, application=application)
                await asyncio.sleep(min(0.5 * 2**attempt, 8.0))
        assert last is not None
        raise TransientModelError(f"{who}: no replica answered in {REPLICA_TRIES} tries; the last: {message_of(last)}")

    async def ask(
        self, application: str, requests: Sequence[ChatRequest], shard: str | None = None
    ) -> list[CallOutcome]:
        """Ask the requests of a question, which have one prompt, of one replica; see ``Together.ask_all``."""
        if application.startswith(IN_SHARDS):
            return await _baseline(application).ask_all(requests)
        if application.startswith(BY_BATCH):
            return await ask_by_batch(application, self._ledger, requests, shard)
        return await self.call(application, lambda handle: ask_together(handle, requests, shard), requests[0].model)

    async def cache_tokens(self, application: str) -> int | None:
        """Return what the KV cache of one of an application's replicas holds; None: they do not say."""
        with suppress(ModelError):
            tokens: int | None = await self.call(application, lambda handle: handle.cache_tokens.remote(), application)
            return tokens
        return None


def listen_on_loopback() -> None:
    """Let the replica that starts in this process take calls by gRPC, which it unpickles, from this machine alone.

    Ray 2.60 binds that port to all interfaces, also where its other servers are on 127.0.0.1, and asks for no token. It
    serves nobody unless Serve is told to call by gRPC: handles call actors.
    """
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import constants, replica

    if not (constants.RAY_SERVE_USE_GRPC_BY_DEFAULT or constants.RAY_SERVE_PROXY_USE_GRPC):
        replica.add_port_to_grpc_server = lambda server, _: add_port_to_grpc_server(server, "127.0.0.1:0")


class Together:
    """Answers the requests of a question, which have one prompt, in one call (a mixin of replicas)."""

    async def ask(self, request: ChatRequest) -> Reply:
        """Answer one request."""
        raise NotImplementedError

    async def ask_all(self, requests: Sequence[ChatRequest], shard: str | None = None) -> list[CallOutcome]:
        """Answer requests at once; the actor of the ledger's ``shard`` is told early of replies that others outlast.

        Raises:
            ReplicaLostError: The replica is lost; another may answer them.
        """
        began = time.perf_counter()

        async def ask(request: ChatRequest) -> CallOutcome:
            outcome: Reply | Refused
            try:
                outcome = await ask_until_finished(self.ask, request)
            except ModelError as error:
                outcome = Refused.of(error)
            except ReplicaLostError:
                raise
            except Exception as error:
                outcome = Refused.of(ModelError(f"{request.model}: the backend broke: {message_of(error)}"))
            return outcome, time.perf_counter() - began

        return await answer_together(ask, requests, shard, TELL_EVERY_S)


class Metered(Together):
    """Answers by a backend in this process, and measures what each call uses of it and of ``gpus``."""

    def __init__(self, backend: Backend, max_ongoing: int, gpus: float = 0) -> None:
        """Take a backend that answers ``max_ongoing`` calls at once."""
        self._backend, self._meter = backend, Meter(gpus)
        self._places = Places(max_ongoing)

    async def ask(self, request: ChatRequest) -> Reply:
        """Answer one request, when one of the ``max_ongoing`` places is free."""
        async with self._places.taken(request.priority):
            with self._meter.call() as spent:
                reply: Reply = await self._backend.chat(request)
        return replace(reply, service_s=spent.service_s, gpu_s=spent.gpu_s)


@functools.cache
def _baseline(application: str) -> Metered:
    from kohaku_ray.systems.offline import ExtractiveConfig

    settings = ExtractiveConfig(**json.loads(application.removeprefix(IN_SHARDS)))
    return Metered(settings.make_backend(), settings.max_ongoing)


async def answer_together(
    ask: Callable[[ChatRequest], Awaitable[CallOutcome]],
    requests: Sequence[ChatRequest],
    shard: str | None,
    every_s: float,
) -> list[CallOutcome]:
    """Answer requests at once; the actor of a ledger's ``shard`` is told of replies that others outlast by so long."""
    calls, telling = [asyncio.ensure_future(ask(request)) for request in requests], None
    if shard is not None and len(calls) > 1:
        telling = asyncio.ensure_future(_tell(shard, requests, calls, every_s))
    try:
        return await asyncio.gather(*calls)
    finally:
        if telling is not None:
            telling.cancel()


async def _tell(
    shard: str, requests: Sequence[ChatRequest], calls: Sequence[asyncio.Future[CallOutcome]], every_s: float
) -> None:
    """Send the outcomes that are there to a shard: a call outlasts its siblings by minutes, in batches by hours."""
    left = dict(zip(map(request_key, requests), calls, strict=True))
    while left:
        await asyncio.wait(left.values(), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(every_s)
        arrived = {key: left.pop(key).result() for key, call in [*left.items()] if call.done() and not call.exception()}
        if arrived:
            with suppress(Exception):  # it gets them again with the others'
                actor = await asyncio.to_thread(ray.get_actor, shard, NAMESPACE)
                await actor.arrived.remote(arrived)


async def ask_together(handle: Any, requests: Sequence[ChatRequest], shard: str | None = None) -> list[CallOutcome]:
    """Call ``Together.ask_all`` of the replica of the requests' question."""
    given = (requests,) if shard is None else (requests, shard)
    outcomes: list[CallOutcome] = await handle.options(session_id=requests[0].session_id).ask_all.remote(*given)
    return outcomes


def batch_actor_name(application: str, path: str) -> str:
    """Return the name of the actor that answers for an application, by the ledger at a path."""
    return f"{application}-{digest([path], 8)}"


async def ask_by_batch(
    application: str, path: str, requests: Sequence[ChatRequest], shard: str | None
) -> list[CallOutcome]:
    """Ask the actor of an application.

    Raises:
        TransientModelError: There is none, or it died and is not started again.
    """
    last: BaseException | None = None
    for attempt in range(REPLICA_TRIES):
        try:
            actor = await asyncio.to_thread(ray.get_actor, batch_actor_name(application, path), NAMESPACE)
            outcomes: list[CallOutcome] = await actor.ask_all.remote(requests, shard)
            return outcomes
        except (ValueError, RayError) as error:  # it starts again, and finds what it has sent
            last = error
            await asyncio.sleep(min(0.5 * 2**attempt, 8.0))
    assert last is not None
    raise TransientModelError(
        f"{requests[0].model}: the actor that gathers batches is gone ({message_of(last)}): repeat the command, which "
        "finds the batches that it has sent"
    )


PAIRS_PER_CALL = 256
"""Most pairs per call to a replica: more pairs go in several calls, to several replicas."""

_HANDLES = Handles()


async def rank_pairs(application: str, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Score (query, text) pairs by the Serve application of a cross-encoder.

    Raises:
        ModelError: The cross-encoder failed, or no replica answered.
    """

    async def rank(part: list[tuple[str, str]]) -> list[float]:
        scores: list[float] = await _HANDLES.call(application, lambda handle: handle.rank.remote(part), application)
        return scores

    parts = [list(pairs[first : first + PAIRS_PER_CALL]) for first in range(0, len(pairs), PAIRS_PER_CALL)]
    return [score for scores in await asyncio.gather(*map(rank, parts)) for score in scores]
