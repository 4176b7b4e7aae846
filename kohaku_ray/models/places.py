"""The places of a replica: calls that wait for one get it by their priority."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Places:
    """A semaphore whose free place goes to the waiting call of the lowest priority, the first of equal ones."""

    def __init__(self, n: int) -> None:
        self._n_free = n
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def hold_place(self, priority: int) -> AsyncIterator[None]:
        """Hold a place while the block runs."""
        if self._n_free:
            self._n_free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (priority, next(self._arrivals), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was given a place as it was cancelled
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._n_free += 1
