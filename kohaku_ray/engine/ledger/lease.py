"""Who owns a ledger path: one process, as long as it lives."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

import psutil

STALE_LEASE_S = 20.0
"""A lease whose owner has not renewed it for so long may be taken over."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who owns a ledger path.

    Attributes:
        owner: Unique name.
        host: Machine it runs on.
        pid: Its process there.
        started: When that process began, to tell it from a later one of the same number.
        renewed: When it was last heard of.
    """

    owner: str
    host: str
    pid: int
    started: float
    renewed: float

    @staticmethod
    def mine(owner: str) -> Lease:
        """Make a lease of this process."""
        return Lease(owner, socket.gethostname(), os.getpid(), psutil.Process().create_time(), time.time())

    def is_alive(self) -> bool:
        """Say whether the owner may still be there: surely on this machine, by its age on another."""
        if self.host != socket.gethostname():
            return time.time() - self.renewed < STALE_LEASE_S
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.started) < 1.0)
        except psutil.NoSuchProcess:
            return False
