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
        # A result, as a tuple of one, or the future of the results of the call that computes it, by key.
        self._known: OrderedDict[Hashable, tuple[Result] | asyncio.Future[dict[Hashable, Result]]] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self.n_asked = self.n_computed = 0

    async def __call__(self, items: Sequence[Item], keys: Sequence[Hashable]) -> list[Result]:
        """Look items up by their keys; those not yet known are computed together."""
        self.n_asked += len(items)
        new: dict[Hashable, Item] = {}
        coming: asyncio.Future[dict[Hashable, Result]] = asyncio.get_running_loop().create_future()
        waiting: list[tuple[Result] | asyncio.Future[dict[Hashable, Result]]] = []
        in_flight: dict[asyncio.Future[dict[Hashable, Result]], None] = {}
        for item, key in zip(items, keys, strict=True):
            there = self._known.get(key)
            if there is None:
                new[key] = item
                there = self._known[key] = coming
            else:
                self._known.move_to_end(key)
            waiting.append(there)
            if not isinstance(there, tuple):
                in_flight[there] = None
        if new:
            # Shielded: a cancelled caller does not cancel what other callers wait for.
            task = asyncio.create_task(self._fill(new, coming))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            await asyncio.shield(task)
        while len(self._known) > self._n_kept:
            self._known.popitem(last=False)
        computed = {one: await asyncio.shield(one) for one in in_flight}
        return [
            one[0] if isinstance(one, tuple) else computed[one][key] for one, key in zip(waiting, keys, strict=True)
        ]

    async def _fill(self, new: dict[Hashable, Item], coming: asyncio.Future[dict[Hashable, Result]]) -> None:
        try:
            found = dict(zip(new, await self._compute(list(new.values())), strict=True))
        except BaseException as error:
            # A failure is not cached: the next call tries again.
            for key in new:
                if self._known.get(key) is coming:
                    del self._known[key]
            coming.set_exception(error)
            coming.exception()  # marks it as retrieved, though nobody may wait for it
            raise
        self.n_computed += len(new)
        for key, result in found.items():
            if self._known.get(key) is coming:
                self._known[key] = (result,)
        coming.set_result(found)
