"""Keep the rate limit of each server in one actor of the cluster; nothing here loads Ray Serve."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from kohaku_ray.config import Config
from kohaku_ray.engine import NAMESPACE
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.models.dialect import Dialect
from kohaku_ray.models.openai import TokenBucket
from kohaku_ray.records import digest
from kohaku_ray.settings import ServerSettings
from kohaku_ray.version import versioned_name

LIMITER_TRIES = 5
"""Tries of a call to a limiter whose owner ended during it."""


class SharedLimiter:
    """One rate limit and one dialect over all clients of a server, in an actor (see ``models.openai.TokenBucket``).

    The client that asks first starts the actor, which ends with it; the next one then starts another. So it needs
    nobody to end it.
    """

    def __init__(self, name: str, requests_per_s: float | None, tokens_per_minute: float | None) -> None:
        """Name the server's clients, and the rates that they share."""
        self._name, self._rates = name, (requests_per_s, tokens_per_minute)
        self._actor: Any = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._asking: asyncio.Task[None] | None = None

    def __reduce__(self) -> tuple[type[SharedLimiter], tuple[str, float | None, float | None]]:
        """Pickle no handle: each process finds the actor, or starts it, by its name."""
        return SharedLimiter, (self._name, *self._rates)

    async def acquire(self, n_tokens: int = 0) -> None:
        """Wait for this request's turn.

        Those that wait while the actor is asked share the next call to it, which takes it 0.64 ms of CPU.
        """
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((n_tokens, turn))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        await turn

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        while asked := [entry for entry in self._waiting if not entry[1].done()]:  # the others have given up
            self._waiting = []
            try:
                turns = await self._call("reserve", [n_tokens for n_tokens, _ in asked])
            except RayError as error:
                for _, turn in asked:
                    if not turn.done():
                        turn.set_exception(error)
                continue
            for delay_s, (_, turn) in zip(turns, asked, strict=False):
                loop.call_later(delay_s, _give, turn)
            self._waiting = asked[len(turns) :] + self._waiting

    async def penalise(self, pause_s: float) -> None:
        """Pause every client's requests."""
        await self._call("penalise", pause_s)

    async def learn(self, dialect: Dialect) -> Dialect:
        """Add to what all clients know of the server."""
        known: Dialect = await self._call("learn", dialect)
        return known

    async def _call(self, method: str, argument: Any) -> Any:
        for attempt in range(LIMITER_TRIES):
            actor = self._actor or await asyncio.to_thread(self._find_or_start)
            try:
                return await getattr(actor, method).remote(argument)
            except RayActorError:  # its owner ended
                self._actor = None
                if attempt == LIMITER_TRIES - 1:
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")

    def _find_or_start(self) -> Any:
        name = versioned_name(f"limit-{self._name}-{self._rates}")
        options = {"name": name, "namespace": NAMESPACE, "get_if_exists": True, "max_concurrency": 10_000}
        self._actor = ray.remote(TokenBucket).options(num_cpus=0, max_restarts=-1, **options).remote(*self._rates)
        return self._actor


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def limiter_of_encoder(config: Config) -> SharedLimiter | None:
    """Return the rate limit that all encoders of a server share; None: it has none."""
    encoder = config.index.encoder
    if not isinstance(encoder, EndpointConfig):
        return None
    return limiter_of_server(digest([encoder.base_url, encoder.model]), encoder)


def limiter_of_server(name: str, server: ServerSettings) -> SharedLimiter | None:
    """Return the rate limit that a server's clients share; None: it has none."""
    return SharedLimiter(name, server.requests_per_s, server.tokens_per_minute) if server.is_limited else None


def detached_actor(kind: type, name: str, *arguments: Any, **options: Any) -> Any:
    """The cluster's actor of this name; started if it has none, on the head node.

    An actor on another node would keep an autoscaler from ending that one.
    """
    settings = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    settings |= {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}, "max_restarts": -1}
    return ray.remote(kind).options(**settings, **options).remote(*arguments)
