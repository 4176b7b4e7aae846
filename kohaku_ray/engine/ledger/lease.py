"""The lease of a ledger path: one process owns it as long as it lives."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

import psutil

STALE_LEASE_S = 20.0
"""Seconds without renewal after which another owner may take the lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The owner of a ledger path.

    Attributes:
        owner: Unique name.
        host: Machine it runs on.
        pid: Its process there.
        started: When that process started, to tell it from a later one with the same pid.
        renewed: When the lease was last renewed.
    """

    owner: str
    host: str
    pid: int
    started: float
    renewed: float

    @staticmethod
    def mine(owner: str) -> Lease:
        """Create this process's lease."""
        return Lease(owner, socket.gethostname(), os.getpid(), psutil.Process().create_time(), time.time())

    def is_alive(self) -> bool:
        """Return whether the owner lives: exact on this machine, by the lease's age on another."""
        if self.host != socket.gethostname():
            return time.time() - self.renewed < STALE_LEASE_S
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.started) < 1.0)
        except psutil.NoSuchProcess:
            return False
