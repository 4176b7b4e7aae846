"""Keep the rate limit of each server in one actor of the cluster; nothing here loads Ray Serve."""

from __future__ import annotations

from typing import Any

import ray

from kohaku_ray.config import Config
from kohaku_ray.engine import NAMESPACE
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.models.dialect import Dialect
from kohaku_ray.models.openai import TokenBucket
from kohaku_ray.records import digest
from kohaku_ray.settings import ServerSettings


class SharedLimiter:
    """One rate limit and one dialect over all replicas, held by an actor (see ``models.openai.TokenBucket``)."""

    def __init__(self, actor: Any, is_limited: bool = True) -> None:
        """Without a rate limit, calls that succeed do not reach the actor."""
        self._actor = actor
        self._own = None if is_limited else TokenBucket(None)

    async def acquire(self, n_tokens: int = 0) -> None:
        """Wait for this request's turn."""
        await (self._own.acquire(n_tokens) if self._own else self._actor.acquire.remote(n_tokens))

    async def penalise(self, pause_s: float) -> None:
        """Pause every replica's requests."""
        await (self._own.penalise(pause_s) if self._own else self._actor.penalise.remote(pause_s))

    async def learn(self, dialect: Dialect) -> Dialect:
        """Add to what all replicas know of the server."""
        known: Dialect = await self._actor.learn.remote(dialect)
        return known


def limiter_of_encoder(config: Config) -> SharedLimiter | None:
    """Return the rate limit that all encoders of a server share; None: it has none."""
    encoder = config.index.encoder
    if not isinstance(encoder, EndpointConfig):
        return None
    actor = limiter_of_server(digest([encoder.base_url, encoder.model]), encoder)
    return None if actor is None else SharedLimiter(actor)


def limiter_of_server(name: str, server: ServerSettings, n_clients: int = 1) -> Any:
    """The cluster's actor that keeps what a server's clients share; None: nothing."""
    if not server.is_limited and n_clients == 1:
        return None
    rates = (server.requests_per_s, server.tokens_per_minute)
    return detached_actor(TokenBucket, f"limit-{name}-{rates}", *rates, max_concurrency=10_000)


def detached_actor(kind: type, name: str, *arguments: Any, **options: Any) -> Any:
    """The cluster's actor of this name; started if it has none."""
    settings = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(kind).options(num_cpus=0, max_restarts=-1, **settings, **options).remote(*arguments)
