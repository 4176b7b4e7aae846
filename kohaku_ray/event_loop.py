"""Run coroutines to their end from plain functions, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own: this one may have a running loop, as a notebook's has.

    An interrupt of this thread cancels it.
    """
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None, "it runs as a task"
        running.append((asyncio.get_running_loop(), task))
        return await work

    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, run())
        try:
            return result.result()
        except BaseException:
            if running and not result.done():
                loop, task = running[0]
                loop.call_soon_threadsafe(task.cancel)
            raise
