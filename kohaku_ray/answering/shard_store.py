"""A shard's replies: by key in memory, in segments on disk; open while the ledger's path is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from kohaku_ray.errors import DataError
from kohaku_ray.models.request import shard_of
from kohaku_ray.store.segments import Entry, ReplyIndex, SegmentStore


class ShardStore:
    """The replies of one shard.

    Attributes:
        entries: Replies by key.
        is_open: Whether the path is held, and its segments were read.
    """

    def __init__(
        self, segments: SegmentStore, shard: int, n_shards: int, owner: str, *, takes_lease: bool = False
    ) -> None:
        """Take the segments of shard number ``shard`` of ``n_shards``, for a process named ``owner``.

        ``takes_lease``: it takes and renews the lease of the path; otherwise somebody else does.
        """
        self._segments, self._shard, self._n_shards, self._owner = segments, shard, n_shards, owner
        self._takes_lease = takes_lease
        self.entries = ReplyIndex(segments.table_of)
        self.is_open = False
        self._names_at_leave: list[str] = []
        self._flushing, self._holding = asyncio.Lock(), asyncio.Lock()
        self._lease_failure: str | None = None
        self._write_failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why the path cannot be used; None: it can."""
        return self._write_failure or self._lease_failure

    async def retry(self, *, look: bool = False) -> None:
        """Try again what failed, and wait for a write under way, so that ``failure`` is current; look for a loss."""
        if self.is_open and self._lease_failure is not None:
            await self.hold()
        if look or self._write_failure is not None or self._flushing.locked():
            with suppress(DataError):
                await self.flush()

    @property
    def is_lost(self) -> bool:
        """Whether files of the path went while it was open."""
        return bool(self._segments.lost)

    async def open_again(self) -> None:
        """Take the path anew after a loss, with what is on disk: what could be written again is."""
        async with self._holding, self._flushing:
            before = self.entries
            await asyncio.to_thread(self.leave_now)
            await asyncio.to_thread(self.hold_now)
            if self.is_open:
                self.entries.unwritten |= before.unwritten
                self._write_failure = None

    async def find(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return the recorded reply per key, or None."""
        if self._segments.is_local:
            return list(map(self.entries.get, keys))
        return await asyncio.to_thread(lambda: list(map(self.entries.get, keys)))

    def record(self, key: str, entry: Entry) -> None:
        """Take a reply, which the next flush writes."""
        self.entries.record(key, entry)

    async def flush(self) -> int:
        """Write the replies held only in memory, and wait for a write in progress; returns the number written.

        Raises:
            DataError: See ``SegmentStore.flush``.
        """
        async with self._flushing:
            try:
                n_written = await asyncio.to_thread(self._segments.flush, self.entries)
            except Exception as error:
                self._write_failure = self._describe_failure("write", error)
                raise DataError(self._write_failure) from error
            self._write_failure = None
            return n_written

    async def hold(self) -> None:
        """See ``hold_now``."""
        async with self._holding:
            await asyncio.to_thread(self.hold_now)

    def hold_now(self) -> None:
        """Open the path, or renew its lease once open; an error is kept as the ``failure``."""
        try:
            if not self.is_open:
                self._open()
            elif self._takes_lease:
                self._segments.lease.renew(self._owner)
            self._lease_failure = None
        except Exception as error:
            self._lease_failure = self._describe_failure("open", error)
            if not self.is_open:
                with suppress(Exception):  # do not keep others from a path that cannot be used
                    self._segments.lease.release(self._owner)

    async def leave_unless(self, is_used: Callable[[], bool]) -> None:
        """Leave the path to others, unless it is used or has unwritten replies; what was read stays in memory."""
        async with self._holding:
            if not self.is_open or is_used() or self.entries.unwritten or self._flushing.locked():
                return
            self.is_open = False
            await asyncio.to_thread(self.leave_now)

    def _open(self) -> None:
        if not self._flushing.locked():  # by who opens it again: nobody else may flush meanwhile
            self._flushing = asyncio.Lock()  # of the event loop that asks from now on
        is_new = self._takes_lease and self._segments.lease.acquire(self._owner)
        if is_new:  # nobody writes yet
            self._segments.remove_unfinished()
        if not self._segments.lost and self._names_at_leave and self._names_at_leave == self._segments.names():
            self.is_open = True  # nobody else has written since it was left
            return
        with self._segments.starting(f"{self._shard}-of-{self._n_shards}", self._owner):
            self.entries = self._segments.index(lambda key: shard_of(key, self._n_shards) == self._shard)
        self.is_open = True

    def leave_now(self) -> None:
        """Leave the path to others; what was read stays in memory."""
        self.is_open = False
        with suppress(DataError, OSError):  # read again, then
            self._names_at_leave = self._segments.names()
        if self._takes_lease:
            with suppress(DataError, OSError):  # a dead owner's lease can be taken too
                self._segments.lease.release(self._owner)

    def _describe_failure(self, verb: str, error: Exception) -> str:
        if isinstance(error, DataError):
            return str(error)
        return f"cannot {verb} ledger {self._segments.path}: {type(error).__name__}: {error}"
