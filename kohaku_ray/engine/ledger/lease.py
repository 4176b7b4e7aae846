"""The lease of a ledger path: one process owns it as long as it lives."""

from __future__ import annotations

import json
import os
import random
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import psutil

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.storage import Directory

LEASE = "lease.json"

CLAIMS = "claims"
"""Folder of the claims of processes that are about to take the lease."""

CLAIM_WAIT_S = 15.0
"""Longest wait for another process that is about to take the lease."""

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


class LeaseFile:
    """The lease in a directory, on any pyarrow filesystem."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def acquire(self, owner: str) -> bool:
        """Take or renew the lease; returns whether ``owner`` did not hold it before.

        Raises:
            DataError: Another live owner holds it, or is about to take it.
        """
        held = self._held_by(owner)
        if held is not None and time.time() - held.renewed < STALE_LEASE_S / 2:
            self._write(LEASE, owner)
            return False
        with self._alone(owner):
            held = self._held_by(owner)
            self._write(LEASE, owner)
        return held is None

    def release(self, owner: str) -> None:
        """Release the lease if ``owner`` holds it."""
        held = self._read(LEASE)
        if held is not None and held.owner == owner:
            self._directory.remove(LEASE)

    @contextmanager
    def _alone(self, owner: str) -> Iterator[None]:
        """Keep other processes from taking the lease while the block runs.

        pyarrow cannot write a file only if there is none, and an object store has no lock. But a file that was written
        is in every later listing: of two processes that each write a claim and then list the claims, at least one sees
        the other's. Who sees one withdraws and tries again after a random pause.
        """
        until, pause_s = time.monotonic() + CLAIM_WAIT_S, 0.1
        while True:
            mine = f"{CLAIMS}/{uuid.uuid4().hex}.json"
            try:
                self._write(mine, owner)
                other = self._other_claim(mine)
                if other is None:
                    yield
                    return
            finally:
                self._directory.remove(mine)
            if time.monotonic() > until:
                raise self._refusal(other, "is being taken by")
            time.sleep(random.uniform(0, pause_s))  # noqa: S311 no secret
            pause_s = min(2 * pause_s, 2.0)
            self._held_by(owner)

    def _other_claim(self, mine: str) -> Lease | None:
        """Find a live claim of another process; those of dead ones are deleted."""
        for name in self._directory.names():
            if name.startswith(f"{CLAIMS}/") and name.endswith(".json") and name != mine:
                claim = self._read(name)
                if claim is not None and claim.is_alive():
                    return claim
                if claim is not None:
                    self._directory.remove(name)
        return None

    def _held_by(self, owner: str) -> Lease | None:
        """Return the lease if ``owner`` holds it; None if nobody alive does.

        Raises:
            DataError: Another live owner holds it.
        """
        held = self._read(LEASE)
        if held is None or held.owner == owner:
            return held
        if held.is_alive():
            raise self._refusal(held, "belongs to")
        return None

    def _refusal(self, held: Lease, how: str) -> DataError:
        return DataError(
            f"ledger {self._directory.path} {how} process {held.pid} on {held.host}, of another cluster, seen "
            f"{time.time() - held.renewed:.0f} s ago: run on that cluster, wait for it to end, or set ledger.path "
            "to another directory"
        )

    def _write(self, name: str, owner: str) -> None:
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        self._directory.write(temporary, json.dumps(asdict(Lease.mine(owner))).encode())
        self._directory.rename(temporary, name)

    def _read(self, name: str) -> Lease | None:
        try:
            return Lease(**json.loads(self._directory.read(name).to_pybytes()))
        except StorageError:
            raise  # it may belong to a live owner
        except (DataError, ValueError, TypeError):
            return None  # none, or torn by a crash
