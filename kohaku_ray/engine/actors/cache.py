"""A cache of asynchronous results: each is computed once, even if asked for again while in flight."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Cache(Generic[Item, Result]):
    """Caches the results of an asynchronous function; the least recently used are dropped first."""

    def __init__(self, compute: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], n_kept: int) -> None:
        """Cache ``compute``.

        Args:
            compute: Takes items, returns one result per item in their order.
            n_kept: Most results kept.
        """
        self._compute, self._n_kept = compute, n_kept
        self._known: OrderedDict[Hashable, asyncio.Future[Result]] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self.n_asked = self.n_computed = 0

    async def __call__(self, items: Sequence[Item], keys: Sequence[Hashable]) -> list[Result]:
        """Look items up by their keys; those not yet known are computed together."""
        self.n_asked += len(items)
        new: dict[Hashable, Item] = {}
        for item, key in zip(items, keys, strict=True):
            if key in self._known:
                self._known.move_to_end(key)
            else:
                new[key] = item
                self._known[key] = asyncio.get_running_loop().create_future()
        waiting = [self._known[key] for key in keys]
        if new:
            # Shielded: a cancelled caller does not cancel what other callers wait for.
            task = asyncio.create_task(self._fill(new))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            await asyncio.shield(task)
        while len(self._known) > self._n_kept:
            self._known.popitem(last=False)
        return [await asyncio.shield(future) for future in waiting]

    async def _fill(self, new: dict[Hashable, Item]) -> None:
        futures = [self._known[key] for key in new]
        try:
            results = await self._compute(list(new.values()))
        except BaseException as error:
            # A failure is not cached: the next call tries again.
            for key, future in zip(new, futures, strict=True):
                self._known.pop(key, None)
                future.set_exception(error)
                future.exception()  # marks it as retrieved, though nobody may wait for it
            raise
        self.n_computed += len(new)
        for future, result in zip(futures, results, strict=True):
            future.set_result(result)
