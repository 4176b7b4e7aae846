"""Run coroutines to their end from plain functions, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own: this one may have a running loop, as a notebook's has."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
