"""The client of the ledger: batched lookups of recorded replies; calls go through the shard that owns their key."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from kohaku_ray.answering.calls import Wanted
from kohaku_ray.answering.spending import Paid
from kohaku_ray.config.sections import LedgerConfig
from kohaku_ray.engine import MOST_TASKS, NAMESPACE
from kohaku_ray.engine.cluster import idle_cpus, print_progress
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.ledger.shard import GONE_S, LedgerShard, shard_name
from kohaku_ray.errors import ModelError, StorageError
from kohaku_ray.models.replica import Refused
from kohaku_ray.models.request import PROMPT_CHARS, ChatRequest, is_finished, request_key, shard_of
from kohaku_ray.models.target import Target
from kohaku_ray.records import pluralize
from kohaku_ray.store.lease import call_every
from kohaku_ray.store.segments import Entry, LedgerReply, SegmentStore
from kohaku_ray.store.storage import is_uri

To = TypeVar("To", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")

Messages = dict[To, tuple[list[Item], asyncio.Future[list[Result]]]]
"""Items that leave together, by where they go, with the results that come back in their order."""

MOST_NAMED = 5
"""Most damaged segments whose names are said."""


class Ledger:
    """The client (a ``LedgerClient``): one object per process, cheap to pickle; copies belong to the same run.

    Attributes:
        path: Of the ledger, where the actors see it; empty in copies.
        gatherers: The actors that gather calls to batches, which copies do not ask.
    """

    def __init__(self, shards: Sequence[Any], run: str | None = None, path: str = "") -> None:
        """Connect to shards, by their numbers, for a run of this name (default: a new one)."""
        self.path, self.gatherers = path, list[Any]()
        self._shards = list(shards)
        self._run = run or uuid.uuid4().hex
        self._paid: dict[str, Mapping[str, Paid]] = {}  # by each start of a shard, as it last said
        self._lookups: Messages[int, str, Entry | None] = {}
        self._calls: Messages[tuple[int, str], Wanted, LedgerReply | Refused] = {}

    def __reduce__(self) -> tuple[type[Ledger], tuple[list[Any], str]]:
        """Pickle the handles and the run's name alone: futures belong to one process."""
        return Ledger, (self._shards, self._run)

    async def ask(self, request: ChatRequest, target: Target, again: bool = False) -> LedgerReply:
        """See ``LedgerClient``; the request's key decides the shard."""
        key = request_key(request)
        number = shard_of(key, len(self._shards))
        shard = self._shards[number]
        if not again:
            recorded = await _send_together(self._lookups, number, key, shard.lookup)
            if recorded is not None and is_finished(recorded.reply):
                return LedgerReply(recorded, "ledger", key)
        wanted = Wanted(key, request, target, self._run if again else None, self._run)
        # Members of a question, whose prompt is one, ask in one message. They are also voted on together.
        reply = await _send_together(self._calls, (number, key[:PROMPT_CHARS]), wanted, shard.ask)
        if isinstance(reply, Refused):
            reply.raise_()
        return reply

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keep the shards for this run while the block runs; at its end, flush them and leave the path to others."""

        def ping() -> None:
            for shard in self._shards:
                shard.ready.remote(self._run)

        try:
            with call_every(ping, GONE_S / 6, "ledger"):
                yield
        finally:
            try:
                self.flush()
            finally:
                ray_get([shard.leave.remote(self._run) for shard in self._shards])

    def flush(self) -> None:
        """Make every shard write the replies it holds only in memory.

        Raises:
            DataError: The ledger cannot be written.
        """
        ray_get([shard.flush.remote() for shard in self._shards])

    def close(self) -> None:
        """End the shards of a ledger that nobody else uses now."""
        for shard in self._shards:
            ray.kill(shard)

    def prepare_calls(self) -> None:
        """Let the shards import what calls replicas, while these start."""
        for shard in self._shards:
            shard.prepare_calls.remote()

    def count_placements(self, target: Target) -> tuple[int, int]:
        """Count the questions placed on a target's replicas so far, and those moved off an overloaded one."""
        counts = ray_get([shard.count_placements.remote(target.name) for shard in self._shards])
        return sum(n_placed for n_placed, _ in counts), sum(n_moved for _, n_moved in counts)

    def cache_tokens(self, targets: Sequence[Target]) -> list[int | None]:
        """Return what the KV cache of a replica holds, in tokens, per target; None: it does not say."""
        sizes: list[int | None] = ray_get([self._shards[0].cache_tokens.remote(target) for target in targets])
        return sizes

    def paid(self) -> dict[str, Paid]:
        """Sum what the calls made for this run used, by target.

        A shard that was started again has forgotten what it made before: that counts as this object last heard it.
        """
        self._paid.update(ray_get([shard.paid.remote(self._run) for shard in self._shards]))
        total: dict[str, Paid] = {}
        for parts in self._paid.values():
            for name, part in parts.items():
                total[name] = total.get(name, Paid()) + part
        return total

    def stop(self, reason: str) -> None:
        """Make no more calls for this run."""
        ray_get([shard.stop.remote(self._run, reason) for shard in self._shards])

    def progress(self) -> tuple[int, int, int, int]:
        """Sum ``LedgerShard.progress`` over all shards: calls in flight and made, tokens read and written."""
        counts = ray_get([shard.progress.remote() for shard in self._shards])
        in_flight, made, n_read, n_written = map(sum, zip(*counts, strict=True))
        return in_flight, made, n_read, n_written

    def describe_batches(self) -> str:
        """Say what the batches do that answer this ledger's calls; empty without any."""
        return "; ".join(filter(None, map(str, ray_get([actor.progress.remote() for actor in self.gatherers]))))


async def _send_together(messages: Messages[To, Item, Result], to: To, item: Item, method: Any) -> Result:
    """Send an item in one message with all that go to the same place in one turn of the event loop."""

    async def send() -> list[Result]:
        results: list[Result] = await method.remote(messages.pop(to)[0])
        return results

    if to not in messages:
        messages[to] = [], asyncio.ensure_future(send())
    items, results = messages[to]
    items.append(item)
    position = len(items) - 1
    return (await asyncio.shield(results))[position]


@dataclass(frozen=True, slots=True)
class RefusingLedger:
    """Refuses every call, for a reason."""

    reason: str

    async def ask(self, request: ChatRequest, target: Target, again: bool = False) -> LedgerReply:
        """Raise; nothing is recorded, so that the next start asks."""
        raise ModelError(self.reason)


def open_ledger(config: LedgerConfig, n_shards: int = 1, resources: Mapping[str, float] | None = None) -> Ledger:
    """Start the ledger's actors on this cluster, or find the running ones; ``config.shards`` goes before ``n_shards``.

    Each asks for these custom ``resources``.

    Raises:
        ConfigError: pyarrow knows no such filesystem.
        DataError: A job of another cluster uses the path, or it cannot be written.
    """
    # Actors may run in another directory: the path must mean the same there.
    path = config.path if is_uri(config.path) else os.path.abspath(config.path)
    SegmentStore(path)
    run = uuid.uuid4().hex
    first = _start_shard(path, 0, config.shards or n_shards, config, resources)
    [state] = _wait_until_ready([first], run)
    # The first job decided the number of shards.
    n_shards = int(state["n_shards"])
    others = [_start_shard(path, shard, n_shards, config, resources) for shard in range(1, n_shards)]
    # Each reads its own segments, and all those of other numbers of shards.
    if damaged := sorted({name for each in (state, *_wait_until_ready(others, run)) for name in each["damaged"]}):
        print_progress(
            f"ledger  {pluralize(len(damaged), 'damaged file')} of {path} left aside; their replies are asked again: "
            f"{', '.join(damaged[:MOST_NAMED])}{', …' if len(damaged) > MOST_NAMED else ''}"
        )
    return Ledger([first, *others], run, path)


def _wait_until_ready(shards: Sequence[Any], run: str) -> list[dict[str, Any]]:
    """Wait until shards are ready; a failing shard keeps running: it retries, and may hold another job's replies.

    Raises:
        DataError: One of them cannot open the path, or cannot write there.
    """
    states: list[dict[str, Any]] = ray_get([shard.ready.remote(run) for shard in shards])
    for state in states:
        if state["failure"] is not None:
            raise StorageError(state["failure"])
    return states


def _start_shard(
    path: str, shard: int, n_shards: int, config: LedgerConfig, resources: Mapping[str, float] | None
) -> Any:
    options: dict[str, Any] = {
        "name": shard_name(path, shard, n_shards),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": idle_cpus(),
        "resources": dict(resources or {}),
        "scheduling_strategy": "SPREAD",
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": MOST_TASKS,
    }
    return ray.remote(LedgerShard).options(**options).remote(path, shard, n_shards, config.flush_s)
