"""The calls of a ledger's shard: each is made once, its reply recorded, and shared with all who ask meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kohaku_ray.answering.accounts import Accounts
from kohaku_ray.answering.shard_store import ShardStore
from kohaku_ray.errors import ModelError
from kohaku_ray.models.replica import CallOutcome, Refused
from kohaku_ray.models.request import ChatRequest, check_finished, check_length, is_finished
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply
from kohaku_ray.store.segments import Entry, LedgerReply, segment_table


@dataclass(frozen=True, slots=True)
class Wanted:
    """A reply that is asked for, by its key, of a target.

    Attributes:
        again_for: Name of a run for which a recorded reply is replaced by a new one, once; None: it is returned.
        run: Name of the run that asks, which pays the call if one is made.
    """

    key: str
    request: ChatRequest
    target: Target
    again_for: str | None = None
    run: str = ""


def _new_future() -> asyncio.Future[LedgerReply | Refused]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Call:
    """A call in flight.

    Attributes:
        wanted: What was asked first.
        reply: Its end.
        renewing: Runs that asked again, for which the recorded reply is replaced.
    """

    wanted: Wanted
    reply: asyncio.Future[LedgerReply | Refused] = field(default_factory=_new_future)
    renewing: set[str] = field(default_factory=set)

    async def wait(self, is_joined: bool) -> LedgerReply | Refused:
        """Wait for the reply; ``is_joined``: the call was in flight when the caller asked."""
        reply = await asyncio.shield(self.reply)  # a caller that dies does not cancel the call
        return replace(reply, source="joined") if is_joined and isinstance(reply, LedgerReply) else reply


class CallsInFlight:
    """Calls by key, and the runs for which replies were asked again."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._renewed: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, key: str) -> Call | None:
        """Return the call of a key that is in flight."""
        return self._calls.get(key)

    def must_renew(self, wanted: Wanted) -> bool:
        """Whether a recorded reply is to be replaced."""
        return wanted.again_for is not None and (wanted.again_for, wanted.key) not in self._renewed

    def join_or_start(self, wanted: Wanted) -> tuple[Call, bool]:
        """Return the call in flight, or a new one, and whether it was in flight."""
        call = self._calls.get(wanted.key)
        is_joined = call is not None
        if call is None:
            call = self._calls[wanted.key] = Call(wanted)
        if wanted.again_for is not None:
            call.renewing.add(wanted.again_for)
        return call, is_joined

    def finish(self, call: Call, reply: LedgerReply | Refused) -> None:
        """Give a call's reply to all who wait."""
        if isinstance(reply, LedgerReply):
            # Now and not by who waits: an ask that comes before they wake must not make the call again.
            self._renewed |= {(run, call.wanted.key) for run in call.renewing}
        del self._calls[call.wanted.key]
        call.reply.set_result(reply)

    def fail(self, call: Call, error: BaseException) -> None:
        """Raise an error where a call's reply is waited for."""
        del self._calls[call.wanted.key]
        call.reply.set_exception(error)


ReplicaCall = Callable[[Target, Sequence[ChatRequest], str | None], Awaitable[list[CallOutcome]]]
"""Asks a target requests with one prompt; the last argument is the name of the shard's actor, if it is one."""


class ShardCalls:
    """Makes the calls of a shard.

    Attributes:
        in_flight: Those that are not answered yet.
        accounts: What runs paid for those that were made.
    """

    def __init__(self, store: ShardStore, call: ReplicaCall, shard: str | None = None) -> None:
        """Record replies in a store; ``call`` makes the calls of the actor named ``shard``."""
        self.in_flight, self.accounts = CallsInFlight(), Accounts()
        self._store, self._call_replica, self._shard = store, call, shard
        self._tasks: set[asyncio.Task[None]] = set()  # that make calls

    async def ask(self, wanted: Sequence[Wanted]) -> list[LedgerReply | Refused]:
        """Return replies in their order: recorded, from a call in flight, or from a new call.

        New calls leave together: they have one prompt, and so one replica.
        """
        new: dict[Target, list[Call]] = {}
        replies = [self._find_or_start(each, new) for each in wanted]
        for target, calls in new.items():
            task = asyncio.create_task(self._make(target, calls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return [await reply[0].wait(reply[1]) if isinstance(reply, tuple) else reply for reply in replies]

    def record_early(self, outcomes: Mapping[str, CallOutcome]) -> None:
        """Record replies while others of their message are waited for, which a kill would otherwise lose with them."""
        for key, (outcome, seconds) in outcomes.items():
            if (call := self.in_flight.find(key)) is not None:
                self._finish(call, outcome, seconds)

    def _find_or_start(
        self, wanted: Wanted, new: dict[Target, list[Call]]
    ) -> LedgerReply | Refused | tuple[Call, bool]:
        """Find a recorded reply, or the call and whether it was in flight; else add it to the new ones."""
        entry = self._store.entries.get(wanted.key)
        # One that says of itself that it failed is of a ledger from before this was refused.
        if entry is not None and is_finished(entry.reply) and not self.in_flight.must_renew(wanted):
            return LedgerReply(entry, "ledger", wanted.key)
        refused = self.accounts.find_refusal(wanted.run, wanted.target)
        if refused is not None and self.in_flight.find(wanted.key) is None:
            return refused
        call, is_joined = self.in_flight.join_or_start(wanted)
        if not is_joined:
            new.setdefault(wanted.target, []).append(call)
        return call, is_joined

    async def _make(self, target: Target, calls: Sequence[Call]) -> None:
        """Make calls together, and give each reply to whoever waits for it."""
        began = time.perf_counter()
        try:
            outcomes = await self._call_replica(target, [call.wanted.request for call in calls], self._shard)
        except ModelError as error:
            outcomes = [(Refused.of(error), 0.0)] * len(calls)
        except BaseException as error:
            for call in calls:
                if not call.reply.done():
                    self.in_flight.fail(call, error)
            if not isinstance(error, Exception):
                raise
            return
        on_the_way_s = time.perf_counter() - began - max(seconds for _, seconds in outcomes)
        for call, (outcome, seconds) in zip(calls, outcomes, strict=True):
            if not call.reply.done():  # else recorded early
                self._finish(call, outcome, on_the_way_s + seconds)

    def _finish(self, call: Call, outcome: Reply | Refused, call_s: float) -> None:
        reply = outcome if isinstance(outcome, Refused) else self._record(call.wanted, outcome, call_s)
        if isinstance(reply, LedgerReply):
            self.accounts.pay(call.wanted.run, call.wanted.target, reply.entry.reply)
        else:
            self.accounts.note_refusal(call.wanted.run, call.wanted.target, reply)
        self.in_flight.finish(call, reply)

    def _record(self, wanted: Wanted, reply: Reply, call_s: float) -> LedgerReply | Refused:
        """Record a reply, if it can be."""
        key, request = wanted.key, wanted.request
        try:
            check_length(reply, request.most_chars)
            replaced = self._store.entries.get(key)
            generation = 0 if replaced is None else replaced.generation + 1
            entry = Entry(reply, request.model, call_s, generation)
            segment_table([(key, entry)])  # a reply that no segment can hold must not stop the flush of others
            check_finished(reply)
            self._store.record(key, entry)
            return LedgerReply(entry, "made", key)
        except ModelError as error:
            return Refused.of(error)
        except Exception as error:  # whatever a backend calls a reply, somebody waits for it
            return Refused("ModelError", f"{request.model}: {error}")
