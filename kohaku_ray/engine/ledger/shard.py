"""A shard of the ledger: makes every model call once, keeps its reply, shares calls in flight among a cluster's jobs.

Keys are sharded over restartable named actors. A shard makes the call itself, so that two members, two tasks that Ray
retries or two jobs that ask the same thing at the same time wait for one call. All calls with one prompt leave from one
shard, whose router keeps them on one replica.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray

from kohaku_ray.engine import metrics
from kohaku_ray.engine.errors import Refused
from kohaku_ray.engine.serving.handles import CallOutcome, Handles, import_serve
from kohaku_ray.errors import DataError, ModelError, RefusedAccessError
from kohaku_ray.models.placement import count_placements
from kohaku_ray.models.request import ChatRequest, check_finished, check_length, is_finished, shard_of
from kohaku_ray.records import Reply, digest_text
from kohaku_ray.run.lease import RENEWAL_S
from kohaku_ray.run.record.spending import Paid
from kohaku_ray.run.segments import MOST_SMALL, Entry, LedgerReply, ReplyIndex, SegmentStore, segment_table

IDLE_EXIT_S = 300.0
"""Seconds without a request after which a shard exits: until then the next job need not start one."""

GONE_S = 60.0
"""Seconds after which a run that was not heard of has ended, as one does that was killed: six of its messages."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A reply that is asked for, by its key, of a Serve application.

    Attributes:
        again_for: Name of a run for which a recorded reply is replaced by a new one, once; None: it is returned.
        run: Name of the run that asks, which pays the call if one is made.
    """

    key: str
    request: ChatRequest
    application: str
    again_for: str | None = None
    run: str = ""


ReplicaCall = Callable[[str, Sequence[ChatRequest], str], Awaitable[list[CallOutcome]]]
"""Asks an application's replica requests with one prompt; the last argument is the name of the shard's actor."""


class ShardActor:
    """The Ray actor of one shard."""

    def __init__(self) -> None:
        self.name = str(ray.get_runtime_context().get_actor_id())

    def exit(self) -> None:
        """End its process for good."""
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def shard_name(path: str, shard: int, n_shards: int) -> str:
    """Return a shard's actor name: shard 0 has the same name for every ``n_shards``, the others do not."""
    stem = f"ledger-{digest_text(path)}-{shard}"
    return stem if shard == 0 else f"{stem}-of-{n_shards}"


class LedgerShard:
    """Owns a part of the keys: their replies, and the futures of their calls in flight."""

    def __init__(
        self,
        path: str,
        shard: int,
        n_shards: int,
        flush_s: float,
        *,
        store: SegmentStore | None = None,
        call: ReplicaCall | None = None,
        actor: ShardActor | None = None,
        renewal_s: float = RENEWAL_S,
        idle_exit_s: float = IDLE_EXIT_S,
    ) -> None:
        """Open shard number ``shard`` of ``n_shards``, and write replies every ``flush_s`` seconds.

        In the actor that it is, a shard has a ``store`` of its own, makes each ``call`` by Serve, renews its lease
        every ``renewal_s`` and exits after ``idle_exit_s`` without a request.
        """
        self._store = store or SegmentStore(path, f"{shard}of{n_shards}")
        self._shard, self._n_shards, self._flush_s = shard, n_shards, flush_s
        self._name = shard_name(path, shard, n_shards)
        self._actor = actor or ShardActor()
        self._handles = Handles(path)
        self._call_replica = call or self._handles.ask
        self._renewal_s, self._idle_exit_s = renewal_s, idle_exit_s
        self._entries = ReplyIndex(self._store.table_of)
        self._in_flight: dict[str, asyncio.Future[LedgerReply | Refused]] = {}
        self._making: set[asyncio.Task[None]] = set()
        self._groups: dict[str, tuple[dict[str, ChatRequest], str, str]] = {}  # per call in flight: see ``_make``
        self._renewed: set[tuple[str, str]] = set()
        self._renewing: dict[str, set[str]] = {}  # per call in flight, the runs that asked again
        self._background: dict[str, asyncio.Task[None]] = {}
        self._last_used = time.monotonic()
        self._heard: dict[str, float] = {}  # runs that use this shard, by when each was last heard of
        self._read: list[str] = []  # segments there when the path was left
        self._flushing, self._holding = asyncio.Lock(), asyncio.Lock()
        self._is_open = False
        self._lease_failure: str | None = None
        self._write_failure: str | None = None
        self._n_made = self._n_read = self._n_written = 0
        self._start = uuid.uuid4().hex
        self._paid: dict[str, dict[str, Paid]] = {}  # by run and application
        self._stopped: dict[str, str] = {}  # runs that make no more calls, each with the reason
        self._shut_out: dict[tuple[str, str], Refused] = {}  # runs whose application's server refuses every call
        self._hold()

    @property
    def _failure(self) -> str | None:
        return self._lease_failure or self._write_failure

    async def ready(self, run: str) -> dict[str, Any]:
        """Return the shard's state: its failure, if any, the number of shards, and the names of damaged segments.

        A failed operation is retried first and a write under way is waited for, so that the state is current. The path
        is held for the run until it leaves, or was not heard of for ``GONE_S``.
        """
        await self._use(run)
        if self._is_open and self._lease_failure is not None:
            await self._keep_hold()
        if self._write_failure is not None or self._flushing.locked():
            with suppress(DataError):
                await self.flush()
        return {
            "failure": self._failure,
            "n_shards": self._n_shards,
            "n_entries": len(self._entries),
            "damaged": self._entries.damaged,
        }

    async def leave(self, run: str) -> None:
        """Forget a run that asks no more; after the last one, jobs of other clusters may take the path."""
        self._heard.pop(run, None)
        await self._free()

    async def prepare_calls(self) -> None:
        """Import now what calls replicas: the first call would wait for it."""
        import_serve()

    async def count_placements(self, application: str) -> tuple[int, int]:
        """Count the questions this shard sent to an application's replicas, and those moved off an overloaded one."""
        return count_placements(application)

    async def cache_tokens(self, application: str) -> int | None:
        """See ``Handles``."""
        return await self._handles.cache_tokens(application)

    async def progress(self) -> tuple[int, int, int, int]:
        """Count the calls in flight, those made since this shard started, and the tokens that these read and wrote."""
        return len(self._in_flight), self._n_made, self._n_read, self._n_written

    async def paid(self, run: str) -> tuple[str, dict[str, Paid]]:
        """Sum what the calls made for a run since this shard started used, by application; the start has a name."""
        return self._start, self._paid.get(run, {})

    async def stop(self, run: str, reason: str) -> None:
        """Make no more calls for a run; those in flight end, and recorded replies are still given."""
        self._stopped[run] = reason

    async def lookup(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return the recorded reply per key, or None."""
        if not self._is_open:
            await self._keep_hold()
        self._touch()
        if self._store.is_local:
            return list(map(self._entries.get, keys))
        return await asyncio.to_thread(lambda: list(map(self._entries.get, keys)))

    async def ask(self, wanted: Sequence[Wanted]) -> list[LedgerReply | Refused]:
        """Return replies in their order: recorded, from a call in flight, or from a new call.

        New calls leave together: they have one prompt, and so one replica.
        """
        await self._use(wanted[0].run)
        if self._failure is not None:
            return [Refused("DataError", self._failure)] * len(wanted)
        new: dict[str, dict[str, ChatRequest]] = {}
        replies = [self._find_or_start(each, new) for each in wanted]
        for application, requests in new.items():
            task = asyncio.create_task(self._make(requests, application, wanted[0].run))
            self._making.add(task)
            task.add_done_callback(self._making.discard)
        return [await self._wait_for(*reply) if isinstance(reply, tuple) else reply for reply in replies]

    async def _wait_for(self, call: asyncio.Future[LedgerReply | Refused], is_joined: bool) -> LedgerReply | Refused:
        reply = await asyncio.shield(call)  # a caller that dies does not cancel the call
        return replace(reply, source="joined") if is_joined and isinstance(reply, LedgerReply) else reply

    def _find_or_start(
        self, wanted: Wanted, new: dict[str, dict[str, ChatRequest]]
    ) -> LedgerReply | Refused | tuple[asyncio.Future[LedgerReply | Refused], bool]:
        """Find a recorded reply, or the call and whether it was in flight; else add it to the new ones."""
        key, again_for = wanted.key, wanted.again_for
        entry = self._entries.get(key)
        # One that says of itself that it failed is of a ledger from before this was refused.
        if entry is not None and is_finished(entry.reply) and (again_for is None or (again_for, key) in self._renewed):
            return LedgerReply(entry, "ledger", key)
        is_joined = key in self._in_flight
        if not is_joined:
            if (reason := self._stopped.get(wanted.run)) is not None:
                return Refused("ModelError", f"not asked: {reason}")
            if (refused := self._shut_out.get((wanted.run, wanted.application))) is not None:
                return refused
            self._in_flight[key] = asyncio.get_running_loop().create_future()
            self._renewing[key] = set()
            new.setdefault(wanted.application, {})[key] = wanted.request
        if again_for is not None:
            self._renewing[key].add(again_for)
        return self._in_flight[key], is_joined

    async def flush(self) -> int:
        """Write the replies held only in memory, and wait for a write in progress; returns the number written.

        Raises:
            DataError: The ledger cannot be written; the replies stay in memory.
        """
        async with self._flushing:
            entries = list(self._entries.unwritten.items())
            try:
                if entries:
                    segment = await asyncio.to_thread(self._store.write, entries)
                    self._entries.written(segment, entries)
            except Exception as error:
                self._write_failure = self._describe_failure("write", error)
                raise DataError(self._write_failure) from error
            self._write_failure = None
            if len(small := self._entries.small[:MOST_SMALL]) == MOST_SMALL:
                with suppress(DataError):  # tried again after the next write
                    self._entries.merged(*await asyncio.to_thread(self._store.merge, small))
                    await asyncio.to_thread(self._store.drop, small)
            return len(entries)

    def _hold(self) -> None:
        """Open the path, or renew its lease once open; a failure is kept as the lease failure."""
        try:
            if not self._is_open:
                self._open()
            elif self._shard == 0:
                self._store.lease.acquire(self._actor.name)
            self._lease_failure = None
        except Exception as error:
            self._lease_failure = self._describe_failure("open", error)
            if not self._is_open:
                with suppress(Exception):  # do not keep others from a path that cannot be used
                    self._store.lease.release(self._actor.name)

    def _open(self) -> None:
        is_new = self._shard == 0 and self._store.lease.acquire(self._actor.name)
        if is_new:  # nobody writes yet
            self._store.remove_unfinished()
        if self._read and self._read == self._store.names():
            self._is_open = True  # nobody else has written since it was left
            return
        with self._store.starting(f"{self._shard}-of-{self._n_shards}", self._actor.name):
            self._entries = self._store.index(lambda key: shard_of(key, self._n_shards) == self._shard)
        self._is_open = True

    async def _free(self) -> None:
        """Leave the path, unless somebody uses it; this process keeps what it has read."""
        async with self._holding:
            is_used = self._heard or self._in_flight or self._entries.unwritten or self._flushing.locked()
            if not self._is_open or is_used:
                return
            self._is_open = False
            await asyncio.to_thread(self._release)

    def _release(self) -> None:
        with suppress(DataError, OSError):  # read again, then
            self._read = self._store.names()
        if self._shard == 0:
            with suppress(DataError, OSError):  # a dead owner's lease can be taken too
                self._store.lease.release(self._actor.name)

    def _describe_failure(self, verb: str, error: Exception) -> str:
        if isinstance(error, DataError):
            return str(error)
        return f"cannot {verb} ledger {self._store.path}: {type(error).__name__}: {error}"

    async def _make(self, requests: Mapping[str, ChatRequest], application: str, run: str) -> None:
        """Make calls together, and give each reply to whoever waits for it."""
        began = time.perf_counter()
        left = dict(requests)
        self._groups |= dict.fromkeys(requests, (left, application, run))
        try:
            outcomes = await self._call_replica(application, list(requests.values()), self._name)
        except ModelError as error:
            outcomes = [(Refused.of(error), 0.0)] * len(requests)
        except BaseException as error:
            for key in left:
                del self._renewing[key], self._groups[key]
                self._in_flight.pop(key).set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        unseen_s = time.perf_counter() - began - max(seconds for _, seconds in outcomes)
        for key, (outcome, seconds) in zip(requests, outcomes, strict=True):
            if key in left:
                self._finish_call(key, outcome, unseen_s + seconds)

    async def arrived(self, outcomes: Mapping[str, CallOutcome]) -> None:
        """Record replies while others of their message are waited for, which a kill would otherwise lose with them."""
        for key, (outcome, seconds) in outcomes.items():
            if key in self._groups:
                self._finish_call(key, outcome, seconds)

    def _finish_call(self, key: str, outcome: Reply | Refused, call_s: float) -> None:
        left, application, run = self._groups.pop(key)
        reply = self._record(key, left.pop(key), outcome, call_s)
        if isinstance(reply, LedgerReply):
            paid = self._paid.setdefault(run, {})
            paid[application] = paid.get(application, Paid()) + reply.entry.reply
        elif reply.kind == RefusedAccessError.__name__:
            self._shut_out[run, application] = replace(reply, message=f"not asked: {reply.message}")
        del self._renewing[key]
        self._in_flight.pop(key).set_result(reply)

    def _record(self, key: str, request: ChatRequest, outcome: Reply | Refused, call_s: float) -> LedgerReply | Refused:
        """Record a reply, if it can be."""
        if isinstance(outcome, Refused):
            return outcome
        try:
            check_length(outcome, request.most_chars)
            replaced = self._entries.get(key)
            generation = 0 if replaced is None else replaced.generation + 1
            entry = Entry(outcome, request.model, call_s, generation)
            segment_table([(key, entry)])  # a reply that no segment can hold must not stop the flush of others
            check_finished(outcome)
            self._entries.unwritten[key] = entry
            # Now and not by who waits: an ask that comes before they wake must not make the call again.
            self._renewed |= {(run, key) for run in self._renewing[key]}
            self._n_made += 1
            self._n_read += outcome.prompt_tokens
            self._n_written += outcome.completion_tokens
            return LedgerReply(entry, "made", key)
        except ModelError as error:
            return Refused.of(error)
        except Exception as error:  # whatever a backend calls a reply, somebody waits for it
            return Refused("ModelError", f"{request.model}: {error}")

    async def _use(self, run: str) -> None:
        self._heard[run] = time.monotonic()
        self._touch()
        if not self._is_open:
            await self._keep_hold()

    def _touch(self) -> None:
        self._last_used = time.monotonic()
        for keep in (self._keep_flushing, self._keep_holding):
            task = self._background.get(keep.__name__)
            if task is None or task.done():
                self._background[keep.__name__] = asyncio.create_task(keep())

    async def _keep_flushing(self) -> None:
        while True:
            metrics.add("kohaku_ray_calls_in_flight", len(self._in_flight), shard=str(self._shard))
            await asyncio.sleep(self._flush_s)
            with suppress(DataError):  # kept as the write failure; tried again
                await self.flush()

    async def _keep_holding(self) -> None:
        """Renew the lease, also if flushes fail, and exit when idle with everything on disk."""
        while True:
            await asyncio.sleep(self._renewal_s)
            now = time.monotonic()
            if now - self._last_used > self._idle_exit_s:
                self._heard.clear()
            self._heard = {run: heard for run, heard in self._heard.items() if now - heard < GONE_S}
            await self._free()
            if self._is_open:  # only a request opens the path
                await self._keep_hold()
            elif now - self._last_used > self._idle_exit_s:
                self._actor.exit()

    async def _keep_hold(self) -> None:
        async with self._holding:
            await asyncio.to_thread(self._hold)
