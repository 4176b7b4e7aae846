"""Lock a directory by a lease file: one live process owns what it writes, on any filesystem.

A ledger, a run, an index that is built and the output of a batch have one.
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kohaku_ray.errors import DataError, KohakuRayError, StorageError
from kohaku_ray.storage import Directory

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LEASE = "lease.json"
CLAIM = "claim-"
"""First characters of the names of claims: files of processes that are about to take the lease."""
CLAIM_WAIT_S = 15.0
"""Longest wait for another process that is about to take the lease."""
STALE_LEASE_S = 20.0
"""Seconds without renewal after which another owner may take the lease."""
RENEWAL_S = 5.0
"""Seconds between renewals of the lease."""
HELD_PAUSE_S = 0.5
"""Seconds between two tries to take a lease that another process holds."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The owner of a directory: a unique name, its process (see ``start_of``), and when it last renewed the lease."""

    owner: str
    host: str
    pid: int
    started: str
    renewed: float

    @staticmethod
    def mine(owner: str) -> Lease:
        """Create this process's lease."""
        return Lease(owner, socket.gethostname(), os.getpid(), start_of(os.getpid()) or "", time.time())

    def is_alive(self) -> bool:
        """Return whether the owner lives: exact on this machine, by the lease's age on another."""
        if self.host != socket.gethostname():
            return time.time() - self.renewed < STALE_LEASE_S
        return start_of(self.pid) == self.started


@functools.cache
def _lease_adapter() -> TypeAdapter[Lease]:
    from pydantic import TypeAdapter  # of a ledger's shards, only the one that finds a lease reads it

    return TypeAdapter(Lease)


def start_of(pid: int) -> str | None:
    """Return what tells a process from a later one with its number; None if there is no such process.

    On Linux the boot's id and the process's start in ticks of it: neither changes when somebody sets the clock.
    """
    if os.path.exists("/proc/self/stat"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        return f"{boot} {stat.rpartition(')')[2].split()[19]}"
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


@contextmanager
def repeated(call: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
    """Call a function, which must not raise, again and again in a thread until the block ends; then no call runs."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            call()

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class HeldError(DataError):
    """Another live process holds a lease, or is about to take it."""


class LeaseFile:
    """The lease of a directory, or of one of its files, on any pyarrow filesystem."""

    def __init__(self, directory: Directory, what: str, way_out: str, file: str = "") -> None:
        """Take nothing yet.

        Args:
            directory: It holds the lease.
            what: What is leased, for messages.
            way_out: What one who does not get it can do, for messages.
            file: The file of the directory that is leased. Default: the directory itself.
        """
        self._directory, self._what, self._way_out = directory, what, way_out
        self._leased = directory.full(file) if file else directory.path
        self._lease, self._claim = (f"{file}.{LEASE}", f"{file}.{CLAIM}") if file else (LEASE, CLAIM)

    @contextmanager
    def held(self, wait_s: float = 0.0) -> Iterator[None]:
        """Own it while the block runs; ``wait_s`` is the longest wait for another owner to end.

        Raises:
            HeldError: Another live owner holds it, or is about to take it.
        """
        owner, until = uuid.uuid4().hex, time.monotonic() + wait_s
        while True:
            try:
                self.acquire(owner)
                break
            except HeldError:
                if time.monotonic() >= until:
                    raise
                time.sleep(HELD_PAUSE_S)

        def renew() -> None:
            with suppress(KohakuRayError, OSError):  # tried again
                self.acquire(owner)

        try:
            with repeated(renew, RENEWAL_S, "lease"):
                yield
        finally:
            with suppress(KohakuRayError, OSError):  # a dead owner's lease can be taken too
                self.release(owner)

    def check_free(self) -> None:
        """Raise a ``HeldError`` if a live process holds the lease."""
        self._held_by("")

    def acquire(self, owner: str) -> bool:
        """Take or renew the lease; returns whether ``owner`` did not hold it before.

        Raises:
            HeldError: Another live owner holds it, or is about to take it.
        """
        held = self._held_by(owner)
        if held is not None and time.time() - held.renewed < STALE_LEASE_S / 2:
            self._write(self._lease, owner)
            return False
        with self._alone(owner):
            held = self._held_by(owner)
            self._write(self._lease, owner)
        return held is None

    def release(self, owner: str) -> None:
        """Release the lease if ``owner`` holds it."""
        held = self._read(self._lease)
        if held is not None and held.owner == owner:
            self._directory.remove(self._lease)

    @contextmanager
    def _alone(self, owner: str) -> Iterator[None]:
        """Keep other processes from taking the lease while the block runs.

        pyarrow cannot write a file only if there is none, and an object store has no lock. But a file that was written
        is in every later listing: of two processes that each write a claim and then list the claims, at least one sees
        the other's. Who sees one withdraws and tries again after a random pause.
        """
        until, pause_s = time.monotonic() + CLAIM_WAIT_S, 0.1
        while True:
            mine = f"{self._claim}{uuid.uuid4().hex}.json"
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
            if name.startswith(self._claim) and name.endswith(".json") and name != mine:
                claim = self._read(name)
                if claim is not None and claim.is_alive():
                    return claim
                if claim is not None:
                    self._directory.remove(name)
        return None

    def _held_by(self, owner: str) -> Lease | None:
        """Return the lease if ``owner`` holds it; None if nobody alive does; else raise a ``HeldError``."""
        held = self._read(self._lease)
        if held is None or held.owner == owner:
            return held
        if held.is_alive():
            raise self._refusal(held, "belongs to")
        return None

    def _refusal(self, held: Lease, how: str) -> HeldError:
        return HeldError(
            f"{self._what} {self._leased} {how} process {held.pid} on {held.host}, seen "
            f"{time.time() - held.renewed:.0f} s ago: {self._way_out}"
        )

    def _write(self, name: str, owner: str) -> None:
        self._directory.replace(name, json.dumps(asdict(Lease.mine(owner))).encode())

    def _read(self, name: str) -> Lease | None:
        """Read a lease or a claim; None if there is none.

        Raises:
            DataError: The file is none. Leases are written in one step, so no crash of ours left it.
            StorageError: It cannot be read: it may belong to a live owner.
        """
        try:
            data = self._directory.read(name).to_pybytes()
        except StorageError:
            raise
        except DataError:
            return None
        try:
            return _lease_adapter().validate_json(data, strict=True)
        except ValueError:
            raise DataError(
                f"{self._directory.full(name)} says who writes this {self._what} and cannot be read: no job of this "
                "version wrote it; delete the file if no job is running there"
            ) from None
