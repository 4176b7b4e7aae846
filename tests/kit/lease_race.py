"""Owners that take the lease of one directory at the same moment."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from kohaku_ray.errors import DataError
from kohaku_ray.store.lease import LeaseFile
from kohaku_ray.store.storage import Directory


class Pausing:
    """A directory that pauses before it writes or lists, so that other threads come between."""

    def __init__(self, directory) -> None:
        self._directory = directory

    def __getattr__(self, name):
        if name in ("replace", "names"):
            time.sleep(random.uniform(0, 0.05))
        return getattr(self._directory, name)


def takers(path: str, n: int) -> list[bool]:
    """Let owners take one lease at the same moment; returns who got it."""
    start = threading.Barrier(n)

    def take(number: int) -> bool:
        lease = LeaseFile(Pausing(Directory(path)), "ledger", "ledger.path")
        start.wait()
        try:
            return lease.acquire(f"owner {number}")
        except DataError:
            return False

    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(take, range(n)))
