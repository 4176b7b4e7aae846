"""Rate limits that all requests to one server share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol


class Limiter(Protocol):
    """Decides when the next request may leave. It may live in another process: pauses are durations, not instants."""

    async def acquire(self) -> None:
        """Wait for one request's turn."""
        ...

    async def penalise(self, pause_s: float) -> None:
        """Let nobody through for ``pause_s`` seconds from now: the server said Retry-After."""
        ...


class TokenBucket:
    """Lets ``requests_per_s`` through on average, up to ``burst`` at once, in the order they came.

    It is the generic cell rate algorithm: a token bucket whose one state is when the next request is due.
    """

    def __init__(
        self,
        requests_per_s: float | None,
        burst: float = 1.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start full.

        Args:
            requests_per_s: Long-run rate; None: no rate, only penalties.
            burst: Requests that may leave at once after a quiet spell, at least 1.
            clock: Seconds, never going back.
            sleep: Waits for so many seconds.
        """
        if requests_per_s is not None and requests_per_s <= 0:
            raise ValueError(f"requests_per_s is {requests_per_s}: give a positive rate, or None for no limit")
        if burst < 1:
            raise ValueError(f"burst is {burst}, with which no request could ever leave: give at least 1")
        self._interval_s = 0.0 if requests_per_s is None else 1.0 / requests_per_s
        self._slack_s = (burst - 1.0) * self._interval_s
        self._clock = clock
        self._sleep = sleep
        self._due_s = clock()  # when the next request is due at the even rate; it may leave `slack` earlier
        self._line = asyncio.Lock()  # first come, first served; one that gives up waiting costs nobody a turn

    async def acquire(self) -> None:
        """Wait for one request's turn, and for any penalty given meanwhile."""
        async with self._line:
            while (wait_s := self._due_s - self._slack_s - self._clock()) > 0:
                await self._sleep(wait_s)
            self._due_s = max(self._due_s, self._clock()) + self._interval_s

    async def penalise(self, pause_s: float) -> None:
        """Close for ``pause_s`` seconds, and open again without a burst; a longer penalty that is running stays."""
        self._due_s = max(self._due_s, self._clock() + pause_s + self._slack_s)
