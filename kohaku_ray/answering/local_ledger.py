"""The ledger in this process, without Ray: one shard for one run after the other, which ends with its process.

The engine's ``LedgerShard`` is a shard for the jobs of a cluster.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kohaku_ray.answering.calls import ShardCalls, Wanted
from kohaku_ray.answering.shard_store import ShardStore
from kohaku_ray.answering.spending import Paid
from kohaku_ray.errors import DataError
from kohaku_ray.event_loop import run_apart
from kohaku_ray.models.replica import CallOutcome, Refused, Replica
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.models.target import Target
from kohaku_ray.store.segments import LEASE_WAIT_S, LedgerReply, SegmentStore


class LocalLedger:
    """A ``LedgerClient`` of one process: it holds the ledger's lease during each run."""

    def __init__(
        self, path: str, replicas: Mapping[str, Replica], tell: Callable[[str], object], flush_s: float = 2.0
    ) -> None:
        """Name a ledger, written every ``flush_s``, and what answers by its target's name; nothing is read yet.

        ``tell`` shows a line of progress.
        """
        self._segments, self._replicas, self._tell, self._flush_s = SegmentStore(path), replicas, tell, flush_s
        self._store = ShardStore(self._segments, 0, 1, uuid.uuid4().hex)
        self._calls = ShardCalls(self._store, self._ask_replica)
        self._flushing: asyncio.Task[None] | None = None
        self._run = ""
        self._damaged: Sequence[str] = ()

    @contextmanager
    def hold(self, wait_s: float = LEASE_WAIT_S) -> Iterator[None]:
        """Hold the ledger for a run while the block runs; at its end every reply is on disk.

        Raises:
            HeldError: Another process still holds it after ``wait_s``.
            DataError: It cannot be read or written.
        """
        with self._segments.lease.hold(wait_s, self._tell):
            self._run = uuid.uuid4().hex
            self._store.hold_now()
            if self._store.failure is not None:
                raise DataError(self._store.failure)
            if (damaged := self._store.entries.damaged) != self._damaged:
                self._tell(f"ledger  damaged and left aside, their replies are asked again: {', '.join(damaged)}")
                self._damaged = damaged
            try:
                yield
            finally:
                try:
                    self.flush()
                finally:
                    self._store.leave_now()

    async def ask(self, request: ChatRequest, target: Target, again: bool = False) -> LedgerReply:
        """See ``LedgerClient``."""
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._keep_flushing())
        wanted = Wanted(request_key(request), request, target, self._run if again else None, self._run)
        [reply] = await self._calls.ask([wanted])
        if isinstance(reply, Refused):
            reply.raise_()
        return reply

    async def _ask_replica(self, target: Target, requests: Sequence[ChatRequest], _: str | None) -> list[CallOutcome]:
        return await self._replicas[target.name].ask(requests)

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(self._flush_s)
            with suppress(DataError):  # tried again, and said at the end
                await self._store.flush()

    def flush(self) -> None:
        """Write the replies held only in memory; raises a ``DataError`` where the ledger cannot be written."""
        run_apart(self._store.flush())

    def paid(self) -> Mapping[str, Paid]:
        """See ``PaidLedger``."""
        return self._calls.accounts.paid(self._run)

    def stop(self, reason: str) -> None:
        """See ``PaidLedger``."""
        self._calls.accounts.stop(self._run, reason)
