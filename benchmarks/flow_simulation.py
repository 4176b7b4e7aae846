"""The answer job's flow, simulated: blocks of questions over retrievers, member workers, replicas, voters and driver.

Every process works through what reaches it in order, one thing at a time; a replica takes `max_ongoing` calls of equal
length at once. A question's calls go to one replica together and come back together: to the one with the fewest calls
of the same ledger shard, counted from the choice on (`LeastLoadedRouter`). Block size, blocks in flight, retrievers,
members' processes, ledger shards and voters are what the engine would choose for the configuration on a cluster of any
size. Left out: the time of a message, and that processes share cores.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohaku_ray.checks.demand import n_retrievers
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.pool import (
    block_size,
    blocks_in_flight,
    member_processes,
    n_ledger_shards,
    n_replicas,
    n_voters,
)

MANY = 1e6
"""CPUs of a cluster of any size."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds of each hop.

    Attributes:
        prepare: A retriever's, per question.
        answer: A member worker's, per call.
        vote: A voter's, per question.
        drive: The driver's busiest thread's, per question.
        record: A ledger shard's, per call.
    """

    prepare: float
    answer: float
    vote: float
    drive: float
    record: float


class Flow:
    """One simulated run."""

    def __init__(self, config: Config, costs: Costs, n_questions: int, call_s: float) -> None:
        """Take what the engine would choose for this configuration."""
        [deployment] = config.answering_deployments.values()
        self._n, self._most, self._call_s, self._costs = n_replicas(config), deployment.max_ongoing, call_s, costs
        self._members, self._plans = config.ensemble.members, config.settings.queries > 1
        self._size = block_size(config, n_questions)
        self._blocks = deque(min(self._size, n_questions - start) for start in range(0, n_questions, self._size))
        self._in_flight = blocks_in_flight(config, self._size)
        self._free: dict[Any, float] = {}
        self.n_retrievers, self.n_workers = n_retrievers(config, 1, None), member_processes(config, MANY)
        self.n_shards, self.n_voters = n_ledger_shards(config), n_voters(config)
        self._running, self._waiting = [0] * self._n, [deque[Callable[[], None]]() for _ in range(self._n)]
        self._loads = [[0] * self._n for _ in range(self.n_shards)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._draw = itertools.count(), random.Random(0)
        self._now, self._begin, self._end, self._n_calls, self._number = 0.0, float("inf"), 0.0, 0, 0

    def busy(self) -> float:
        """Run it: the share of all replicas' places taken between first and last call."""
        for _ in range(min(self._in_flight, len(self._blocks))):
            self._submit()
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        return self._n_calls * self._call_s / (self._n * self._most * (self._end - self._begin))

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), event))

    def _work(self, process: Any, cost: float, then: Callable[[], None]) -> None:
        """Let a process, which does one thing at a time, spend this cost."""
        self._free[process] = done = max(self._free.get(process, 0.0), self._now) + cost
        self._at(done, then)

    def _submit(self) -> None:
        if not self._blocks:
            return
        size, number = self._blocks.popleft(), self._number
        self._number += 1
        left = [size]

        def prepared() -> None:
            left[0] -= 1
            if not left[0]:
                self._answer(size, number)

        def prepare() -> None:
            retriever, half = ("retriever", number % self.n_retrievers), self._costs.prepare / 2
            for _ in range(size):
                if self._plans:
                    after = lambda: self._call(1, lambda: self._work(retriever, half, prepared))  # noqa: E731
                    self._work(retriever, half, after)
                else:
                    self._work(retriever, 2 * half, prepared)

        self._work("driver", self._costs.drive * size / 2, prepare)

    def _answer(self, size: int, number: int) -> None:
        left, half = [size * self._members], self._costs.answer / 2

        def answered() -> None:
            left[0] -= 1
            if not left[0]:
                voted = lambda: self._work("driver", self._costs.drive * size / 2, self._submit)  # noqa: E731
                self._work(("voter", number % self.n_voters), self._costs.vote * size, voted)

        worker = ("worker", number % self.n_workers)

        def back() -> None:
            for _ in range(self._members):
                self._work(worker, half, answered)

        for _ in range(size):
            self._work(worker, half * self._members, lambda: self._call(self._members, back))

    def _call(self, n: int, then: Callable[[], None]) -> None:
        """Make the ``n`` calls of a question."""
        shard = self._draw.randrange(self.n_shards)
        self._work(("shard", shard), self._costs.record * n, lambda: self._place(self._loads[shard], n, then))

    def _place(self, loads: list[int], n: int, then: Callable[[], None]) -> None:
        fewest = min(loads)
        replica = self._draw.choice([number for number, load in enumerate(loads) if load == fewest])
        loads[replica] += n
        left = [n]

        def ended() -> None:
            left[0] -= 1
            if not left[0]:
                loads[replica] -= n
                then()

        for _ in range(n):
            if self._running[replica] < self._most:
                self._begin_call(replica, ended)
            else:
                self._waiting[replica].append(ended)

    def _begin_call(self, replica: int, then: Callable[[], None]) -> None:
        self._running[replica] += 1
        self._n_calls += 1
        self._begin = min(self._begin, self._now)

        def ended() -> None:
            self._end = self._now
            self._running[replica] -= 1
            if self._waiting[replica]:
                self._begin_call(replica, self._waiting[replica].popleft())
            then()

        self._at(self._now + self._call_s, ended)
