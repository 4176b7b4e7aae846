"""How the methods of an index run: on its shards, from a cache, in batches.

Such a method takes items, and its other arguments by position after them, and gives one result per item in their order.
Calls whose other arguments are equal share batches and results: these arguments are hashable.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from typing import Any, Generic, TypeVar, TypeVarTuple

from kohaku_ray.index.layout import ShardLayout

Item = TypeVar("Item")
Result = TypeVar("Result")
Made = TypeVar("Made")
Params = TypeVarTuple("Params")
Method = Callable[[Any, Sequence[Item], *Params], Coroutine[Any, Any, list[Result]]]

MADE_KEPT = 128
"""Most batchers and caches that an object keeps: other arguments, such as documents to search within, may be many."""

Shares = Mapping[int, tuple[list[Any], list[int]]]
"""By shard: the items that it is asked for, and the place of each among the items of the call."""


class Calls:
    """An object whose methods are ``batched`` and ``cached``.

    Attributes:
        keeps: Whether results are kept, also those that are not costly.
        counted: Items of cached methods, by ``(counted, "asked" | "computed")``.
    """

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.counted: Counter[tuple[str, str]] = Counter()
        self._made: OrderedDict[Hashable, Any] = OrderedDict()
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def thread(self, method: str) -> ThreadPoolExecutor:
        """Return the thread in which the batches of a method run, one after the other."""
        return self._threads.setdefault(method, ThreadPoolExecutor(1))

    def made(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made under this key; what was not used for the longest time goes."""
        if key not in self._made:
            self._made[key] = make()
            if len(self._made) > MADE_KEPT:
                self._made.popitem(last=False)  # calls in flight keep their own reference
        self._made.move_to_end(key)
        found: Made = self._made[key]
        return found


def batched(
    max_items: int = 256,
) -> Callable[[Callable[[Any, list[Item], *Params], Sequence[Result]]], Method[Item, *Params, Result]]:
    """Run concurrent calls of a method together (see ``Batcher``); its results do not depend on its batch."""

    def decorate(run: Callable[[Any, list[Item], *Params], Sequence[Result]]) -> Method[Item, *Params, Result]:
        @functools.wraps(run)
        async def call(self: Calls, items: Sequence[Item], *params: *Params) -> list[Result]:
            def of(batch: list[Item]) -> Sequence[Result]:
                return run(self, batch, *params)

            def in_thread(batch: list[Item]) -> Awaitable[Sequence[Result]]:
                return asyncio.get_running_loop().run_in_executor(self.thread(run.__name__), of, batch)

            return await self.made((batched, run, params), lambda: Batcher(in_thread, max_items))(items)

        return call

    return decorate


def cached(
    n_kept: int, *, counted: str = "", key: Callable[[Any], Hashable] | None = None, always: bool = False
) -> Callable[[Method[Item, *Params, Result]], Method[Item, *Params, Result]]:
    """Keep the ``n_kept`` last results of a method, for each set of other arguments (see ``Cache``).

    Args:
        n_kept: Most results kept.
        counted: Name under which items asked for and computed are counted. Default: not counted.
        key: Cache key of an item. Default: the item itself.
        always: Keep them even if the object ``keeps`` none.
    """

    def decorate(method: Method[Item, *Params, Result]) -> Method[Item, *Params, Result]:
        @functools.wraps(method)
        async def call(self: Calls, items: Sequence[Item], *params: *Params) -> list[Result]:
            if not (always or self.keeps):
                return await method(self, items, *params)

            async def compute(some: Sequence[Item]) -> list[Result]:
                found = await method(self, some, *params)
                if counted:
                    self.counted[counted, "computed"] += len(some)
                return found

            if counted:
                self.counted[counted, "asked"] += len(items)
            names = items if key is None else [key(item) for item in items]
            return await self.made((cached, method, params), lambda: Cache(compute, n_kept))(items, names)

        return call

    return decorate


def spread(
    divide: Callable[[ShardLayout, Sequence[Any]], Shares], join: Callable[..., Any]
) -> Callable[[Method[Item, *Params, Result]], Method[Item, *Params, Result]]:
    """Run a method on every shard that has what is asked for; ``on_shard`` of the result runs it on its own alone.

    What questions ask in the same turn of the event loop goes to a shard in one message.

    Its object has a ``layout``, the ``number`` of its own shard, and ``ask(number, method, items, params)`` for others.
    ``divide(layout, items)`` says what each shard is asked; ``join(found, *other arguments)`` makes one result of what
    the shards found for one item.
    """

    def decorate(method: Method[Item, *Params, Result]) -> Method[Item, *Params, Result]:
        async def fan_out(self: Any, items: list[Item], *params: *Params) -> list[Result]:
            shares = divide(self.layout, items)
            asked: list[Awaitable[list[Any]]] = [
                method(self, some, *params) if shard == self.number else self.ask(shard, method.__name__, some, params)
                for shard, (some, _) in shares.items()
            ]
            found: list[list[Any]] = [[] for _ in items]
            for (_, places), results in zip(shares.values(), await asyncio.gather(*asked), strict=True):
                for at, result in zip(places, results, strict=True):
                    found[at].append(result)
            return [join(parts, *params) for parts in found]

        @functools.wraps(method)
        async def call(self: Any, items: Sequence[Item], *params: *Params) -> list[Result]:
            if len(self.layout.shards) == 1:
                return await method(self, items, *params)

            def make() -> Batcher[Item, Result]:
                return Batcher(lambda batch: fan_out(self, batch, *params), at_once=True)

            found: list[Result] = await self.made((spread, method, params), make)(items)
            return found

        call.on_shard = method  # type: ignore[attr-defined]
        return call

    return decorate


class Batcher(Generic[Item, Result]):
    """Gathers the items of concurrent calls and runs them together.

    There is no timer: while a batch runs, the next one fills. A single call starts at once.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Awaitable[Sequence[Result]]],
        max_items: int = 256,
        *,
        at_once: bool = False,
    ) -> None:
        """Batch calls of ``run``, which gives one result per item, whatever batch it is in.

        ``max_items`` bounds a batch, unless a single call brings more. ``at_once``: batches do not wait for each other,
        each is what one turn of the event loop brings.
        """
        self._run, self._max_items, self._at_once = run, max_items, at_once
        self._waiting: list[tuple[list[Item], asyncio.Future[list[Result]]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, items: Sequence[Item]) -> list[Result]:
        """Run these items with whatever else is waiting; results in their order."""
        if not items:
            return []
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(items), future))
        if self._at_once or all(task.done() for task in self._running):
            task = asyncio.create_task(self._drain())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await future

    async def _drain(self) -> None:
        # One turn of the event loop lets every ready question add its items.
        await asyncio.sleep(0)
        while self._waiting:
            n_items = accumulate(len(items) for items, _ in self._waiting)
            n_calls = max(sum(n <= self._max_items for n in n_items), 1)
            batch, self._waiting = self._waiting[:n_calls], self._waiting[n_calls:]
            if not await self._run_together(batch):
                # One call's item must not fail the others: each call now runs alone.
                for call in batch:
                    await self._run_together([call])

    async def _run_together(self, batch: list[tuple[list[Item], asyncio.Future[list[Result]]]]) -> bool:
        """Run a batch; returns False if it failed and holds several calls, any of which may be at fault."""
        items = [item for part, _ in batch for item in part]
        try:
            results = iter(await self._run(items))
        except Exception as error:
            if len(batch) > 1:
                return False
            [(_, future)] = batch
            if not future.done():
                future.set_exception(error)
            return True
        for part, future in batch:
            own = list(islice(results, len(part)))
            if not future.done():
                future.set_result(own)
        return True


class Cache(Generic[Item, Result]):
    """Caches the results of an asynchronous function; the least recently used are dropped first."""

    def __init__(self, compute: Callable[[Sequence[Item]], Awaitable[Iterable[Result]]], n_kept: int) -> None:
        """Cache ``compute``, which gives one result per item in their order; ``n_kept`` results are kept."""
        self._compute, self._n_kept = compute, n_kept
        self._known: OrderedDict[Hashable, asyncio.Future[Result]] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, items: Sequence[Item], keys: Sequence[Hashable]) -> list[Result]:
        """Look items up by their keys; those not yet known are computed together."""
        new: dict[Hashable, Item] = {}
        found: list[asyncio.Future[Result]] = []
        for item, key in zip(items, keys, strict=True):
            if key not in self._known:
                new[key] = item
                self._known[key] = asyncio.get_running_loop().create_future()
            self._known.move_to_end(key)
            found.append(self._known[key])
        if new:
            # A task of its own: a cancelled caller does not cancel what other callers wait for.
            task = asyncio.create_task(self._fill(new, {key: self._known[key] for key in new}))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return [await asyncio.shield(one) for one in found]

    async def _fill(self, new: Mapping[Hashable, Item], coming: Mapping[Hashable, asyncio.Future[Result]]) -> None:
        try:
            found = list(zip(coming.values(), await self._compute(list(new.values())), strict=True))
        except (Exception, asyncio.CancelledError) as error:
            # A failure is not cached: the next call tries again.
            for key, future in coming.items():
                if self._known.get(key) is future:
                    del self._known[key]
                future.set_exception(error)
                future.exception()  # marks it as retrieved, though nobody may wait for it
            return
        for future, result in found:
            future.set_result(result)
        while len(self._known) > self._n_kept:
            self._known.popitem(last=False)
