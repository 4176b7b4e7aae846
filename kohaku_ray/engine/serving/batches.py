"""The actor that gathers a deployment's calls to files for its server's batch API: one per ledger, for all its shards.

Serve runs nothing of it: calls wait for hours, and one process must have them all to make whole files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from kohaku_ray.checks.deployments import target_of
from kohaku_ray.engine import MOST_TASKS
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.serving.handles import batch_actor_name
from kohaku_ray.engine.serving.limiter import detached_actor
from kohaku_ray.engine.serving.replica import tell_shard
from kohaku_ray.errors import KohakuRayError, ModelError
from kohaku_ray.models.batches import BatchBackend, BatchProgress, BatchRecords
from kohaku_ray.models.openai import OpenAIBackend, OpenAIConfig, TokenBucket
from kohaku_ray.models.replica import CallOutcome, Refused, Replica
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply
from kohaku_ray.store.lease import call_every

IDLE_EXIT_S = 300.0
"""Seconds without a call or a job's heartbeat after which the actor ends, if no batch is under way."""

BEAT_S = 10.0
"""Seconds between a job's heartbeats; an actor that was killed waits for one."""

TELL_EVERY_S = 10.0
"""Longest time that a reply waits for its siblings' before a ledger's shard is told of it: they lie all over a file,
which is read in seconds, and another file takes hours."""


class BatchActor(Replica):
    """A ``BatchBackend`` as a Ray actor, which all calls of a deployment's batches reach."""

    def __init__(self, path: str) -> None:
        super().__init__(self._gather, MOST_TASKS, tell=tell_shard, tell_every_s=TELL_EVERY_S)
        self._records = BatchRecords(path)
        self._backend: BatchBackend | None = None
        self._deployment: OpenAIConfig | None = None
        self._since = 0.0
        self._told = asyncio.Event()
        self._last_heard = time.monotonic()
        self._watch: asyncio.Task[None] | None = None

    async def beat(self, deployment: OpenAIConfig, since: float) -> None:
        """Note that a job is there, and find the ledger's batches.

        Args:
            deployment: The job's, with settings such as a deadline. Those of the job that started last are followed.
            since: When the job started, by ``time.time``.
        """
        self._last_heard = time.monotonic()
        if self._watch is None:
            self._watch = asyncio.create_task(self._end_idle())
        if since > self._since:
            if self._backend is None:
                self._backend = BatchBackend(deployment, _client(deployment), self._records)
            elif deployment != self._deployment:
                self._backend.use(deployment, _client(deployment))
            self._since, self._deployment = since, deployment
            self._told.set()
        assert self._backend is not None
        await self._backend.open()

    async def ask(self, requests: Sequence[ChatRequest], shard: str | None = None) -> list[CallOutcome]:
        """See ``Replica.ask``; an actor that was started again waits for a job's heartbeat."""
        self._last_heard = time.monotonic()
        await self._told.wait()
        return await super().ask(requests, shard)

    async def progress(self) -> BatchProgress:
        """Say what is under way."""
        return BatchProgress() if self._backend is None else self._backend.progress()

    async def _gather(self, request: ChatRequest) -> Reply:
        assert self._backend is not None
        return await self._backend.chat(request)

    async def _answer(self, request: ChatRequest) -> CallOutcome:
        # A batch's file is no place, its hours are no service, and it asks again by itself.
        began = time.perf_counter()
        outcome: Reply | Refused
        try:
            outcome = await self._gather(request)
        except ModelError as error:
            outcome = Refused.of(error)
        except KohakuRayError as error:
            outcome = Refused("DataError", str(error))
        return outcome, time.perf_counter() - began

    async def _end_idle(self) -> None:
        while not (self._backend is None or self._backend.is_idle) or time.monotonic() - self._last_heard < IDLE_EXIT_S:
            await asyncio.sleep(BEAT_S)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _client(deployment: OpenAIConfig) -> OpenAIBackend:
    return deployment.make_backend(TokenBucket(deployment.requests_per_s, deployment.tokens_per_minute))


@contextmanager
def gathering(path: str, deployments: Sequence[OpenAIConfig]) -> Iterator[list[Any]]:
    """Start the actors of deployments with batches for a ledger, or find those that run, while the block runs.

    Raises:
        DataError: A record of a batch cannot be read.
    """
    options = {"max_task_retries": -1, "max_concurrency": MOST_TASKS}
    named = {batch_actor_name(target_of("", deployment), path): deployment for deployment in deployments}
    actors = {name: detached_actor(BatchActor, name, path, **options) for name in named}
    since = time.time()

    def beat() -> list[Any]:
        return [actor.beat.remote(named[name], since) for name, actor in actors.items()]

    ray_get(beat())
    with call_every(beat, BEAT_S, "batches"):
        yield [*actors.values()]
