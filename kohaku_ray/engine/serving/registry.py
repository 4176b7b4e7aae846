"""The registry of a cluster's Serve applications and the jobs that use them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Literal

from ray import serve
from ray.serve.schema import ApplicationStatus

BEAT_S = 5.0
"""Seconds between a job's heartbeats for its applications."""
LOST_AFTER_S = 60.0
"""Seconds without a heartbeat after which a job counts as dead and its applications end."""

_LOG = logging.getLogger(__name__)

Claim = Literal["ready", "start", "wait"]


class Applications:
    """Records which job uses which Serve application: one job starts it, the last to leave ends it."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}
        self._starting: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def beat(self, user: str, names: list[str]) -> None:
        """Record a user's heartbeat for these applications."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._end_lost())
        for name in names:
            self._seen.setdefault(name, {})[user] = time.monotonic()

    async def claim(self, user: str, name: str) -> Claim:
        """Return what a user must do for an application: nothing, start it, or wait until another has started it."""
        async with self._lock:
            await self.beat(user, [name])
            if await asyncio.to_thread(is_running, name):
                self._starting.pop(name, None)
                return "ready"
            if self._starting.get(name, user) not in self._seen[name]:
                del self._starting[name]  # the user that was starting it is dead
            return "start" if self._starting.setdefault(name, user) == user else "wait"

    async def release(self, user: str) -> None:
        """Remove a user, and end the applications that nobody else uses."""
        await self._forget([user])

    async def _forget(self, lost: Collection[str]) -> None:
        # Under the lock: whoever claims an application meanwhile finds it ended, not ending.
        async with self._lock:
            for users in self._seen.values():
                for user in lost:
                    users.pop(user, None)
            for name in [name for name, users in self._seen.items() if not users]:
                self._starting.pop(name, None)
                try:
                    await asyncio.to_thread(serve.delete, name)
                except Exception as error:  # Serve's controller may raise anything
                    _LOG.warning("application %s could not be ended, next try in %g s: %s", name, BEAT_S, error)
                else:
                    del self._seen[name]

    async def _end_lost(self) -> None:
        """End the applications of lost users, and those that could not be ended before."""
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            users = [user for users in self._seen.values() for user in users.items()]
            await self._forget({user for user, seen in users if now - seen > LOST_AFTER_S})


def is_running(name: str) -> bool:
    """Return whether every replica of an application is up."""
    there = serve.status().applications.get(name)
    return there is not None and there.status == ApplicationStatus.RUNNING
