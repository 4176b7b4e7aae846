"""Who uses which Serve application, on this cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Literal

from ray import serve
from ray.serve.schema import ApplicationStatus

BEAT_S = 5.0
"""How often a job says that it still uses its applications."""
LOST_AFTER_S = 60.0
"""A job not heard of for so long is taken for dead; its applications end."""

_LOG = logging.getLogger(__name__)

Claim = Literal["ready", "start", "wait"]


class Applications:
    """Who uses which Serve application: one job starts it, and it ends when the last one goes."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}
        self._starting: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def beat(self, user: str, names: list[str]) -> None:
        """Note that a user uses these applications now."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._end_lost())
        for name in names:
            self._seen.setdefault(name, {})[user] = time.monotonic()

    async def claim(self, user: str, name: str) -> Claim:
        """Say what a user has to do for an application: nothing, start it, or wait for who starts it."""
        async with self._lock:
            await self.beat(user, [name])
            if await asyncio.to_thread(is_running, name):
                self._starting.pop(name, None)
                return "ready"
            if self._starting.get(name, user) not in self._seen[name]:
                del self._starting[name]  # its starter is gone
            return "start" if self._starting.setdefault(name, user) == user else "wait"

    async def release(self, user: str) -> None:
        """Forget a user, and end the applications that nobody else uses."""
        await self._forget([user])

    async def _forget(self, lost: Collection[str]) -> None:
        # Under the lock: who claims an application meanwhile finds it gone, not going.
        async with self._lock:
            for users in self._seen.values():
                for user in lost:
                    users.pop(user, None)
            for name in [name for name, users in self._seen.items() if not users]:
                self._starting.pop(name, None)
                try:
                    await asyncio.to_thread(serve.delete, name)
                except Exception as error:  # whatever Serve's controller raises
                    _LOG.warning("application %s is still there, tried again in %g s: %s", name, BEAT_S, error)
                else:
                    del self._seen[name]

    async def _end_lost(self) -> None:
        """End what lost users left, and what could not be ended before."""
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            users = [user for users in self._seen.values() for user in users.items()]
            await self._forget({user for user, seen in users if now - seen > LOST_AFTER_S})


def is_running(name: str) -> bool:
    """Tell whether every replica of an application is up."""
    there = serve.status().applications.get(name)
    return there is not None and there.status == ApplicationStatus.RUNNING
