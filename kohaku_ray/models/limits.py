"""Rate limits that all requests to one server share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol


class Limiter(Protocol):
    """Decides when the next request may be sent. It may run in another process: pauses are durations, not instants."""

    async def acquire(self) -> None:
        """Wait for one request's turn."""
        ...

    async def penalise(self, pause_s: float) -> None:
        """Send no request for ``pause_s`` seconds from now: the server sent Retry-After."""
        ...


class TokenBucket:
    """Sends ``requests_per_s`` on average, up to ``burst`` at once, in order of arrival.

    The generic cell rate algorithm: a token bucket whose only state is the time at which the next request is due.
    """

    def __init__(
        self,
        requests_per_s: float | None,
        burst: float = 1.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with a full bucket.

        Args:
            requests_per_s: Long-run rate; None: no limit, only penalties.
            burst: Requests that may be sent at once after idle time, at least 1.
            clock: Returns monotonic seconds.
            sleep: Waits for a number of seconds.
        """
        if requests_per_s is not None and requests_per_s <= 0:
            raise ValueError(f"requests_per_s is {requests_per_s}: give a positive rate, or None for no limit")
        if burst < 1:
            raise ValueError(f"burst is {burst}, with which no request could ever leave: give at least 1")
        self._interval_s = 0.0 if requests_per_s is None else 1.0 / requests_per_s
        self._slack_s = (burst - 1.0) * self._interval_s
        self._clock = clock
        self._sleep = sleep
        self._due_s = clock()  # when the next request is due at the even rate; it may be sent `slack` earlier
        self._line = asyncio.Lock()  # first come, first served; a cancelled wait does not use up a turn

    async def acquire(self) -> None:
        """Wait for one request's turn, and for any penalty given meanwhile."""
        async with self._line:
            while (wait_s := self._due_s - self._slack_s - self._clock()) > 0:
                await self._sleep(wait_s)
            self._due_s = max(self._due_s, self._clock()) + self._interval_s

    async def penalise(self, pause_s: float) -> None:
        """Send nothing for ``pause_s`` seconds, then go on without a burst; a longer pause in progress stays."""
        self._due_s = max(self._due_s, self._clock() + pause_s + self._slack_s)
