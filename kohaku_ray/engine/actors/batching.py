"""Micro-batching across all the questions in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Gathers the items of concurrent calls and runs them together, one batch at a time, off the event loop.

    There is no timer: while a batch runs, the next one fills. A single call starts at once.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Result]],
        max_items: int = 256,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """Batch calls of ``run``.

        Args:
            run: Takes items, returns one result per item in their order; must not depend on how items are batched.
            max_items: Most items per batch, unless a single call brings more.
            thread: Runs the batches, one after the other. Default: a thread of its own.
        """
        self._run, self._max_items = run, max_items
        self._waiting: list[tuple[list[Item], asyncio.Future[list[Result]]]] = []
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1) if thread is None else thread

    async def __call__(self, items: Sequence[Item]) -> list[Result]:
        """Run these items with whatever else is waiting; results in their order."""
        if not items:
            return []
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(items), future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        # One turn of the event loop lets every ready question add its items.
        await asyncio.sleep(0)
        while self._waiting:
            batch = self._next()
            if not await self._run_together(batch):
                # One call's item must not fail the others: each call now runs alone.
                for call in batch:
                    await self._run_together([call])

    async def _run_together(self, batch: list[tuple[list[Item], asyncio.Future[list[Result]]]]) -> bool:
        """Run a batch; returns False if it failed and holds several calls, any of which may be at fault."""
        items = [item for part, _ in batch for item in part]
        try:
            results = list(await asyncio.get_running_loop().run_in_executor(self._thread, self._run, items))
        except Exception as error:
            if len(batch) > 1:
                return False
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return True
        place = 0
        for part, future in batch:
            if not future.done():
                future.set_result(results[place : place + len(part)])
            place += len(part)
        return True

    def _next(self) -> list[tuple[list[Item], asyncio.Future[list[Result]]]]:
        n_items = n_calls = 0
        for part, _ in self._waiting:
            if n_calls and n_items + len(part) > self._max_items:
                break
            n_items += len(part)
            n_calls += 1
        batch, self._waiting = self._waiting[:n_calls], self._waiting[n_calls:]
        return batch
