"""A shard of the ledger: makes every model call once, keeps its reply, shares calls in flight among a cluster's jobs.

Keys are sharded over restartable named actors. A shard makes the call itself, so that two members, two tasks that Ray
retries or two jobs that ask the same thing at the same time wait for one call. All calls with one prompt leave from one
shard, whose router keeps them on one replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray

from kohaku_ray.answering.calls import ReplicaCall, ShardCalls, Wanted
from kohaku_ray.answering.shard_store import ShardStore
from kohaku_ray.answering.spending import Paid
from kohaku_ray.engine import metrics
from kohaku_ray.engine.serving.handles import Handles, import_serve
from kohaku_ray.errors import DataError
from kohaku_ray.models.placement import count_placements
from kohaku_ray.models.replica import CallOutcome, Refused
from kohaku_ray.models.target import Target
from kohaku_ray.records import digest_text
from kohaku_ray.store.lease import RENEWAL_S
from kohaku_ray.store.segments import Entry, LedgerReply, SegmentStore
from kohaku_ray.version import versioned_name

IDLE_EXIT_S = 300.0
"""Seconds without a request after which a shard exits: until then the next job need not start one."""

GONE_S = 60.0
"""Seconds after which a run that was not heard of has ended, as one does that was killed: six of its messages."""


class ShardActor:
    """The Ray actor of one shard."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self.id, self.name = str(context.get_actor_id()), str(context.get_actor_name())

    def exit(self) -> None:
        """End its process for good."""
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def shard_name(path: str, shard: int, n_shards: int) -> str:
    """Return a shard's actor name: shard 0 has the same name for every ``n_shards``, the others do not."""
    stem = f"ledger-{digest_text(path)}-{shard}"
    return versioned_name(stem if shard == 0 else f"{stem}-of-{n_shards}")


class LedgerShard:
    """Owns a part of the keys: their replies, the calls in flight for them, and what runs paid for these."""

    def __init__(
        self,
        path: str,
        shard: int,
        n_shards: int,
        flush_s: float,
        *,
        segments: SegmentStore | None = None,
        call: ReplicaCall | None = None,
        actor: ShardActor | None = None,
        renewal_s: float = RENEWAL_S,
        idle_exit_s: float = IDLE_EXIT_S,
    ) -> None:
        """Open shard number ``shard`` of ``n_shards``, and write replies every ``flush_s`` seconds.

        In the actor that it is, a shard has ``segments`` of its own, makes each ``call`` by its handles, renews its
        lease every ``renewal_s`` and exits after ``idle_exit_s`` without a request.
        """
        self._shard, self._n_shards = shard, n_shards
        self._flush_s, self._renewal_s, self._idle_exit_s = flush_s, renewal_s, idle_exit_s
        self._actor, self._handles = actor or ShardActor(), Handles(path)
        segments = segments or SegmentStore(path, f"{shard}of{n_shards}")
        self._store = ShardStore(segments, shard, n_shards, self._actor.id, takes_lease=shard == 0)
        self._calls = ShardCalls(self._store, call or self._handles.ask, self._actor.name)
        self._background: dict[str, asyncio.Task[None]] = {}
        self._last_used = time.monotonic()
        self._runs: dict[str, float] = {}  # that use this shard, by when each was last heard of
        self._ended: dict[str, str] = {}  # runs whose ledger went while they used it, with what is said to them
        self._store.hold_now()

    async def ready(self, run: str) -> dict[str, Any]:
        """Return the shard's state: its failure, if any, the number of shards, and the names of damaged segments.

        A failed operation is retried first and a write under way is waited for, so that the state is current. The path
        is held for the run until it leaves, or was not heard of for ``GONE_S``. A ledger that went ends the runs that
        used it then (a killed one is among them for a while), not one that comes after it.
        """
        is_new = run not in self._runs
        await self._hold_for(run)
        await self._store.retry(look=is_new)
        if is_new and self._store.is_lost:
            self._ended |= dict.fromkeys(self._runs.keys() - {run}, self._store.failure or "")
            await self._store.open_again()
        return {
            "failure": self._store.failure,
            "n_shards": self._n_shards,
            "n_entries": len(self._store.entries),
            "damaged": self._store.entries.damaged,
        }

    async def leave(self, run: str) -> None:
        """Forget a run that asks no more; after the last one, jobs of other clusters may take the path."""
        self._runs.pop(run, None)
        self._ended.pop(run, None)
        await self._store.leave_unless(self._is_used)

    async def prepare_calls(self) -> None:
        """Import now what calls replicas: the first call would wait for it."""
        import_serve()

    async def count_placements(self, application: str) -> tuple[int, int]:
        """Count the questions this shard sent to an application's replicas, and those moved off an overloaded one."""
        return count_placements(application)

    async def cache_tokens(self, target: Target) -> int | None:
        """See ``Handles``."""
        return await self._handles.cache_tokens(target)

    async def progress(self) -> tuple[int, int, int, int]:
        """Count the calls in flight, those made since this shard started, and the tokens that these read and wrote."""
        return (len(self._calls.in_flight), *self._calls.accounts.totals)

    async def paid(self, run: str) -> tuple[str, Mapping[str, Paid]]:
        """Sum what the calls made for a run since this shard started used, by target; the start has a name."""
        return self._calls.accounts.start, self._calls.accounts.paid(run)

    async def stop(self, run: str, reason: str) -> None:
        """Make no more calls for a run; those in flight end, and recorded replies are still given."""
        self._calls.accounts.stop(run, reason)

    async def lookup(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return the recorded reply per key, or None."""
        if not self._store.is_open:
            await self._store.hold()
        self._note_use()
        return await self._store.find(keys)

    async def flush(self) -> int:
        """See ``ShardStore``."""
        return await self._store.flush()

    async def ask(self, wanted: Sequence[Wanted]) -> list[LedgerReply | Refused]:
        """See ``ShardCalls``."""
        await self._hold_for(wanted[0].run)
        if (failure := self._ended.get(wanted[0].run, self._store.failure)) is not None:
            return [Refused("DataError", failure)] * len(wanted)
        return await self._calls.ask(wanted)

    async def record_early(self, outcomes: Mapping[str, CallOutcome]) -> None:
        """See ``ShardCalls``."""
        self._calls.record_early(outcomes)

    def _is_used(self) -> bool:
        return bool(self._runs or self._calls.in_flight)

    async def _hold_for(self, run: str) -> None:
        self._runs[run] = time.monotonic()
        self._note_use()
        if not self._store.is_open:
            await self._store.hold()

    def _note_use(self) -> None:
        self._last_used = time.monotonic()
        for keep in (self._keep_flushing, self._keep_holding):
            task = self._background.get(keep.__name__)
            if task is None or task.done():
                self._background[keep.__name__] = asyncio.create_task(keep())

    async def _keep_flushing(self) -> None:
        while True:
            metrics.add("kohaku_ray_calls_in_flight", len(self._calls.in_flight), shard=str(self._shard))
            await asyncio.sleep(self._flush_s)
            with suppress(DataError):  # kept as the store's failure; tried again
                await self._store.flush()

    async def _keep_holding(self) -> None:
        """Renew the lease, also if flushes fail, and exit when idle with everything on disk."""
        while True:
            await asyncio.sleep(self._renewal_s)
            now = time.monotonic()
            if now - self._last_used > self._idle_exit_s:
                self._runs.clear()
            self._runs = {run: last_s for run, last_s in self._runs.items() if now - last_s < GONE_S}
            await self._store.leave_unless(self._is_used)
            if self._store.is_open:  # only a request opens the path
                await self._store.hold()
            elif now - self._last_used > self._idle_exit_s:
                self._actor.exit()
