"""Lock a directory by a lease file: one live process owns what it writes, on any filesystem.

A ledger, a run, an index that is built and the output of a batch have one.
"""

from __future__ import annotations

import functools
import json
import math
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
from kohaku_ray.store.storage import Directory, checksum

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LEASE = "lease.json"
CLAIM = "claim-"
"""First characters of the names of claims: files of processes that are about to take the lease."""
CLAIM_WAIT_S = 75.0
"""Longest wait for another process that is about to take the lease: a dead one's claim goes before."""
STALE_LEASE_S = 60.0
"""Seconds for which a lease must stay as it is until its owner counts as dead: one that lives may wait for a storage
that stalls (``CONNECT_S`` and ``REQUEST_S``) before it can renew."""
RENEWAL_S = 5.0
"""Seconds between renewals of the lease."""
HELD_PAUSE_S = 0.5
"""Seconds between two looks at a lease that another process holds."""

Tell = Callable[[str], object] | None
"""Shows a line of progress."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The owner of a directory: a unique name, its process, and when it last renewed the lease, by its own clock.

    ``boot`` (see ``_boot``) tells machines and containers of one ``host`` name apart, ``started`` (see ``start_of``) a
    process from a later one with its number.
    """

    owner: str
    host: str
    boot: str
    pid: int
    started: str
    renewed: float

    @staticmethod
    def mine(owner: str) -> Lease:
        """Create this process's lease."""
        return Lease(owner, socket.gethostname(), _boot(), os.getpid(), start_of(os.getpid()) or "", time.time())

    def is_alive(self) -> bool | None:
        """Return whether the owner's process lives; None: it is of another machine or container, and not seen here."""
        if (self.host, self.boot) != (socket.gethostname(), _boot()):
            return None
        return start_of(self.pid) == self.started


@functools.cache
def _boot() -> str:
    """Return the boot's id and the namespace of process numbers, which containers of one machine have of their own."""
    if not os.path.exists("/proc/self/stat"):
        return ""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex  # no other process is known to be seen


@functools.cache
def _lease_adapter() -> TypeAdapter[Lease]:
    from pydantic import TypeAdapter  # of a ledger's shards, only the one that finds a lease reads it

    return TypeAdapter(Lease)


def start_of(pid: int) -> str | None:
    """Return when a process started (on Linux in ticks since the boot); None if there is none, or it has ended."""
    if os.path.exists("/proc/self/stat"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        state, *fields = stat.rpartition(")")[2].split()
        # a killed one stays until its parent asks for its exit code: for ever in a container without init
        return None if state in "ZX" else fields[18]
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


@contextmanager
def call_every(call: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
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


class HeldError(StorageError):
    """Another live process holds a lease, or is about to take it."""


class LostError(DataError):
    """A lease that was held is not there any more."""


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
        self._renewed_s, self._is_said = -math.inf, False

    @contextmanager
    def hold(self, wait_s: float = 0.0, tell: Tell = None) -> Iterator[Callable[[], None]]:
        """Own it while the block runs; ``wait_s`` is the longest wait for a live owner to end, which ``tell`` shows.

        Yields:
            What raises a ``LostError`` once the lease is lost; it is also raised at the block's end.

        Raises:
            HeldError: Another live owner holds it, or is about to take it.
        """
        owner, lost = uuid.uuid4().hex, list[LostError]()
        self._when_free(lambda: self.acquire(owner, tell), wait_s, tell)

        def renew() -> None:
            with suppress(KohakuRayError, OSError):  # tried again
                try:
                    self.renew(owner)
                except LostError as error:
                    lost.append(error)

        def check() -> None:
            if lost:
                raise lost[0]

        try:
            with call_every(renew, RENEWAL_S, "lease"):
                yield check
            renew()
            check()
        finally:
            with suppress(KohakuRayError, OSError):  # a dead owner's lease can be taken too
                self.release(owner)

    def check_free(self, wait_s: float = 0.0, tell: Tell = None) -> None:
        """Raise a ``HeldError`` if a live process holds the lease for so long; a dead one's goes."""

        def look() -> None:
            if (dead := self._find_free("", tell)) is not None:
                with self._alone("", dead):
                    self._directory.remove(self._lease)

        self._when_free(look, wait_s, tell)

    def acquire(self, owner: str, tell: Tell = None) -> bool:
        """Take the lease; returns whether ``owner`` did not hold it before.

        The lease of a process that is not seen from here is looked at until it changes, or for ``STALE_LEASE_S``.

        Raises:
            HeldError: Another live owner holds it, or is about to take it.
        """
        found = self._find_free(owner, tell)
        with self._alone(owner, found):
            self._write(self._lease, owner)
        return found is None or found.owner != owner

    def renew(self, owner: str) -> None:
        """Write the lease anew that ``owner`` holds.

        Raises:
            LostError: It is not there any more: the directory is another.
        """
        held = self._read(self._lease)
        if held is None or held.owner != owner:
            raise self._loss(held)
        if time.monotonic() - self._renewed_s < STALE_LEASE_S / 2:
            self._write(self._lease, owner)
        else:  # somebody may be about to take it
            with self._alone(owner, held):
                self._write(self._lease, owner)

    def release(self, owner: str) -> None:
        """Release the lease if ``owner`` holds it."""
        held = self._read(self._lease)
        if held is not None and held.owner == owner:
            self._directory.remove(self._lease)

    def _when_free(self, take: Callable[[], object], wait_s: float, tell: Tell) -> None:
        """Call ``take`` until it finds nobody who holds the lease, or for ``wait_s``."""
        until = time.monotonic() + wait_s
        while True:
            try:
                take()
                return
            except HeldError as error:
                if time.monotonic() >= until:
                    raise
                self._say(tell, wait_s, error)
                time.sleep(HELD_PAUSE_S)

    def _say(self, tell: Tell, wait_s: float, error: HeldError) -> None:
        if tell is not None and not self._is_said:
            tell(f"{self._what:<7} waiting up to {wait_s:g} s: {error}")
            self._is_said = True

    def _find_free(self, owner: str, tell: Tell) -> Lease | None:
        """Return the lease that ``owner`` or a dead process holds; None: there is none.

        Raises:
            HeldError: Another live process holds it.
        """
        found = self._read(self._lease)
        if found is None or found.owner == owner or (lives := found.is_alive()) is False:
            return found
        if lives is None:
            self._say(tell, STALE_LEASE_S, self._refusal(found))
            until = time.monotonic() + STALE_LEASE_S
            while (now := self._read(self._lease)) == found:
                if time.monotonic() >= until:
                    return found
                time.sleep(HELD_PAUSE_S)
            if now is None:
                return None
            found = now
        raise self._refusal(found)

    @contextmanager
    def _alone(self, owner: str, found: Lease | None) -> Iterator[None]:
        """Keep other processes from taking the lease while the block runs, which is as it was ``found``.

        pyarrow cannot write a file only if there is none, and an object store has no lock. But a file that was written
        is in every later listing: of two processes that each write a claim and then list the claims, at least one sees
        the other's. Who sees one withdraws and tries again after a random pause.
        """
        until, pause_s = time.monotonic() + CLAIM_WAIT_S, 0.1
        since: dict[str, float] = {}  # when each claim of a process that is not seen was first seen
        while True:
            mine = f"{self._claim}{uuid.uuid4().hex}.json"
            try:
                self._write(mine, owner)
                other = self._other_claim(mine, since)
                now = self._read(self._lease)
                if now not in (None, found) and now.owner != owner:
                    raise self._refusal(now)
                if other is None:
                    yield
                    return
            finally:
                self._directory.remove(mine)
            if time.monotonic() > until:
                raise self._refusal(other, "is being taken by")
            time.sleep(random.uniform(0, pause_s))  # noqa: S311 no secret
            pause_s = min(2 * pause_s, 2.0)

    def _other_claim(self, mine: str, since: dict[str, float]) -> Lease | None:
        """Find a live claim of another process; those of dead ones are deleted."""
        for name in self._directory.names():
            if name.startswith(self._claim) and name.endswith(".json") and name != mine:
                claim = self._read(name)
                if claim is None:
                    continue
                lives = claim.is_alive()
                if lives is None:  # a claim never changes: its owner withdraws it within seconds
                    lives = time.monotonic() - since.setdefault(name, time.monotonic()) < STALE_LEASE_S
                if lives:
                    return claim
                self._directory.remove(name)
        return None

    def _refusal(self, held: Lease, how: str = "belongs to") -> HeldError:
        return HeldError(f"{self._what} {self._leased} {how} process {held.pid} on {held.host}: {self._way_out}")

    def _loss(self, now: Lease | None) -> LostError:
        taken = "" if now is None else f" and belongs to process {now.pid} on {now.host} now"
        return LostError(
            f"{self._what} {self._leased} was deleted, moved or replaced while this job used it{taken}: repeat the "
            "command"
        )

    def _write(self, name: str, owner: str) -> None:
        self._directory.replace(name, json.dumps(asdict(Lease.mine(owner))).encode())
        if name == self._lease:
            self._renewed_s = time.monotonic()

    def _read(self, name: str) -> Lease | None:
        """Read a lease or a claim; None if there is none. One of another version is of an unknown process.

        Raises:
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
            return Lease(checksum(data), "an unknown machine", "", 0, "", 0.0)
