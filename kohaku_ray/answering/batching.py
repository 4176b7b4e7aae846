"""Decorators of an index's methods: divided among shards, cached, batched over concurrent calls.

Such a method takes items, and its other arguments by position after them, and returns one result per item in their
order. Calls whose other arguments are equal share batches and results: these arguments are hashable.
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
State = TypeVar("State")
Params = TypeVarTuple("Params")
Method = Callable[[Any, Sequence[Item], *Params], Coroutine[Any, Any, list[Result]]]

STATES_KEPT = 128
"""Most batchers and caches that an object keeps: other arguments, such as documents to search within, may be many."""

ShardItems = Mapping[int, tuple[list[Any], list[int]]]
"""By shard: the items that it is asked for, and the position of each among the items of the call."""


class BatchingObject:
    """An object whose methods are ``batched`` and ``cached``.

    Attributes:
        keeps: Whether results are kept, also those that are not costly.
        counted: Items of cached methods, by ``(counted, "asked" | "computed")``.
    """

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.counted: Counter[tuple[str, str]] = Counter()
        self._states: OrderedDict[Hashable, Any] = OrderedDict()
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def thread_of(self, method: str) -> ThreadPoolExecutor:
        """Return the thread in which the batches of a method run, one after the other."""
        return self._threads.setdefault(method, ThreadPoolExecutor(1))

    def state_of(self, key: Hashable, make: Callable[[], State]) -> State:
        """Return the batcher or cache of this key, made if there is none; the least recently used is dropped."""
        if key not in self._states:
            self._states[key] = make()
            if len(self._states) > STATES_KEPT:
                self._states.popitem(last=False)  # calls in flight keep their own reference
        self._states.move_to_end(key)
        state: State = self._states[key]
        return state


def batched(
    max_items: int = 256,
) -> Callable[[Callable[[Any, list[Item], *Params], Sequence[Result]]], Method[Item, *Params, Result]]:
    """Run concurrent calls of a method together (see ``Batcher``); its results do not depend on its batch."""

    def decorate(run: Callable[[Any, list[Item], *Params], Sequence[Result]]) -> Method[Item, *Params, Result]:
        @functools.wraps(run)
        async def call(self: BatchingObject, items: Sequence[Item], *params: *Params) -> list[Result]:
            def compute(batch: list[Item]) -> Sequence[Result]:
                return run(self, batch, *params)

            def run_in_thread(batch: list[Item]) -> Awaitable[Sequence[Result]]:
                return asyncio.get_running_loop().run_in_executor(self.thread_of(run.__name__), compute, batch)

            return await self.state_of((batched, run, params), lambda: Batcher(run_in_thread, max_items))(items)

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
        async def call(self: BatchingObject, items: Sequence[Item], *params: *Params) -> list[Result]:
            if not (always or self.keeps):
                return await method(self, items, *params)

            async def compute(new_items: Sequence[Item]) -> list[Result]:
                results = await method(self, new_items, *params)
                if counted:
                    self.counted[counted, "computed"] += len(new_items)
                return results

            if counted:
                self.counted[counted, "asked"] += len(items)
            keys = items if key is None else [key(item) for item in items]
            return await self.state_of((cached, method, params), lambda: Cache(compute, n_kept))(items, keys)

        return call

    return decorate


def on_shards(
    split: Callable[[ShardLayout, Sequence[Any]], ShardItems], merge: Callable[..., Any]
) -> Callable[[Method[Item, *Params, Result]], Method[Item, *Params, Result]]:
    """Run a method on every shard that holds a part of the result; its attribute ``alone`` runs it on its own shard.

    What questions ask in the same turn of the event loop goes to a shard in one message.

    Its object has a ``layout``, the ``number`` of its own shard, and ``ask(number, method, items, params)`` for others.
    ``split(layout, items)`` says what each shard is asked; ``merge(results, *other arguments)`` makes one result of
    those of the shards for one item.
    """

    def decorate(method: Method[Item, *Params, Result]) -> Method[Item, *Params, Result]:
        async def ask_shards(self: Any, items: list[Item], *params: *Params) -> list[Result]:
            shares = split(self.layout, items)
            calls: list[Awaitable[list[Any]]] = [
                method(self, part, *params) if shard == self.number else self.ask(shard, method.__name__, part, params)
                for shard, (part, _) in shares.items()
            ]
            results_of: list[list[Any]] = [[] for _ in items]
            for (_, positions), results in zip(shares.values(), await asyncio.gather(*calls), strict=True):
                for position, result in zip(positions, results, strict=True):
                    results_of[position].append(result)
            return [merge(results, *params) for results in results_of]

        @functools.wraps(method)
        async def call(self: Any, items: Sequence[Item], *params: *Params) -> list[Result]:
            if len(self.layout.shards) == 1:
                return await method(self, items, *params)

            def make() -> Batcher[Item, Result]:
                return Batcher(lambda batch: ask_shards(self, batch, *params), at_once=True)

            batcher: Batcher[Item, Result] = self.state_of((on_shards, method, params), make)
            return await batcher(items)

        call.alone = method  # type: ignore[attr-defined]
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
            part_results = list(islice(results, len(part)))
            if not future.done():
                future.set_result(part_results)
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
        futures: list[asyncio.Future[Result]] = []
        for item, key in zip(items, keys, strict=True):
            if key not in self._known:
                new[key] = item
                self._known[key] = asyncio.get_running_loop().create_future()
            self._known.move_to_end(key)
            futures.append(self._known[key])
        if new:
            # A task of its own: a cancelled caller does not cancel what other callers wait for.
            task = asyncio.create_task(self._fill(new, {key: self._known[key] for key in new}))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return [await asyncio.shield(future) for future in futures]

    async def _fill(self, new: Mapping[Hashable, Item], coming: Mapping[Hashable, asyncio.Future[Result]]) -> None:
        try:
            results = list(zip(coming.values(), await self._compute(list(new.values())), strict=True))
        except (Exception, asyncio.CancelledError) as error:
            # A failure is not cached: the next call tries again.
            for key, future in coming.items():
                if self._known.get(key) is future:
                    del self._known[key]
                future.set_exception(error)
                future.exception()  # marks it as retrieved, though nobody may wait for it
            return
        for future, result in results:
            future.set_result(result)
        while len(self._known) > self._n_kept:
            self._known.popitem(last=False)
