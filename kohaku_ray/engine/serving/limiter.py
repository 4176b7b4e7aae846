"""Keep the rate limit of each server in one actor of the cluster; nothing here loads Ray Serve."""

from __future__ import annotations

from typing import Any

import ray

from kohaku_ray.config import Config
from kohaku_ray.engine import NAMESPACE
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.models.openai import TokenBucket
from kohaku_ray.records import digest
from kohaku_ray.settings import ServerSettings


class SharedLimiter:
    """One rate limit over all replicas, held by an actor (see ``models.openai.TokenBucket``)."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def acquire(self, n_tokens: int = 0) -> None:
        """Wait for this request's turn."""
        await self._actor.acquire.remote(n_tokens)

    async def penalise(self, pause_s: float) -> None:
        """Pause every replica's requests."""
        await self._actor.penalise.remote(pause_s)


def limiter_of_encoder(config: Config) -> SharedLimiter | None:
    """Return the rate limit that all encoders of a server share; None: it has none."""
    encoder = config.index.encoder
    if not isinstance(encoder, EndpointConfig):
        return None
    actor = limiter_of_server(digest([encoder.base_url, encoder.model]), encoder)
    return None if actor is None else SharedLimiter(actor)


def limiter_of_server(name: str, server: ServerSettings) -> Any:
    """The cluster's actor that keeps a server's rate limit; None: it has none."""
    rates = (server.requests_per_s, server.tokens_per_minute)
    if rates == (None, None):
        return None
    return detached_actor(TokenBucket, f"limit-{name}-{rates}", *rates, max_concurrency=10_000)


def detached_actor(kind: type, name: str, *arguments: Any, **options: Any) -> Any:
    """The cluster's actor of this name; started if it has none."""
    settings = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(kind).options(num_cpus=0, max_restarts=-1, **settings, **options).remote(*arguments)
