"""The actors that runs over one index go through, and the one way a block goes through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.members import Member, Retriever
from kohaku_ray.engine.actors.operations import Depths
from kohaku_ray.engine.actors.tools import RunContext
from kohaku_ray.engine.actors.voter import Voter
from kohaku_ray.engine.cluster import say
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.ensemble.decide import default_waves
from kohaku_ray.errors import ConfigError
from kohaku_ray.records import Question

MAX_RESTARTS = 10
"""Deaths of one actor that a job survives: an actor that dies of its own input would else come back for ever."""

SAY_EVERY_S = 15.0
"""How often a job that waits says what for."""

VOTER_THREADS = 4
"""Blocks voted over at once. More than one, or a block that waits for its members would hold up those behind it."""


class ActorPool:
    """Retrievers, which hold an index, processes in which members answer, and a voter."""

    def __init__(self, config: Config, n_workers: int, depths: Depths | None = None) -> None:
        """Start the actors.

        Args:
            config: Names the index, and how many retrievers hold it.
            n_workers: Processes in which members answer.
            depths: Set where several runs share what retrievers encode and search.
        """
        self._config = config
        actor: dict[str, Any] = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1, "max_concurrency": 1000}
        self.retrievers = [
            ray.remote(Retriever).options(num_cpus=1, **actor).remote(config, depths)
            for _ in range(config.cluster.retrievers)
        ]
        self.members = [ray.remote(Member).options(num_cpus=0, **actor).remote() for _ in range(n_workers)]
        # Votes run beside the driver, so that a run directory on its local disk is complete.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor |= {"max_concurrency": VOTER_THREADS, "scheduling_strategy": here}
        self.voter = ray.remote(Voter).options(num_cpus=0, **actor).remote()

    def check_serves(self, config: Config) -> None:
        """See that the index these actors hold is the one a run asks for.

        Raises:
            ConfigError: It is another; the message names both.
        """
        held, asked = self._config.index, config.index
        if held != asked:
            raise ConfigError(
                f"the actors hold the index at {held.path} but the run asks for {asked.path}, or with other settings: "
                "start actors of its own"
            )

    def wait_until_ready(self) -> None:
        """Wait until every retriever holds its index, and say what for when that takes long."""
        waiting = [retriever.ready.remote() for retriever in self.retrievers]
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SAY_EVERY_S)
            ray_get(done)
            if waiting:
                free = ray.available_resources().get("CPU", 0)
                say(f"answer  waiting for {len(waiting)} retriever(s), one CPU each: the cluster has {free:g} free")

    def close(self) -> None:
        """End the actors now: the CPUs they hold are wanted by the next pool."""
        for actor in (*self.retrievers, *self.members, self.voter):
            ray.kill(actor)

    def counts(self) -> Counter[tuple[str, str]]:
        """Count what runs asked of the index and what was computed, over all retrievers."""
        total: Counter[tuple[str, str]] = Counter()
        for counts in ray_get([retriever.counts.remote() for retriever in self.retrievers]):
            total.update(counts)
        return total


class RunWork:
    """One run on an actor pool."""

    def __init__(self, pool: ActorPool, context: RunContext) -> None:
        self.config = context.config
        self._pool = pool
        self._context = ray.put(context)
        self._config = ray.put(context.config)

    def submit(self, number: int, block: Sequence[Question]) -> tuple[Any, Any]:
        """Send a block on its way; returns the refs of its result and of its tables."""
        retrievers, members = self._pool.retrievers, self._pool.members
        retriever = retrievers[number % len(retrievers)]
        scope = self.config.ensemble.scope
        workers = workers_per_member(self.config)
        prepared = [retriever.prepare.remote(self._context, block, 0)] if scope == "answer" else []
        answered: list[Any] = []
        settled = None
        for wave in waves_of(self.config):
            if answered:
                settled = self._pool.voter.settle.remote(self._config, block, *answered)
            for member in wave:
                if scope == "question":
                    prepared.append(retriever.prepare.remote(self._context, block, member, settled))
                process = members[(member * workers + number % workers) % len(members)]
                answered.append(process.answer.remote(self._context, member, retriever, prepared[-1], settled))
        vote = self._pool.voter.vote.options(num_returns=2)
        result, tables = vote.remote(self._config, len(prepared), *prepared, *answered)
        return result, tables

    def finish(self, run: str, tables: list[Any]) -> None:
        """Write the outputs from all blocks' tables."""
        ray_get(self._pool.voter.finish.remote(self._config, run, tables))


def waves_of(config: Config) -> list[range]:
    """Split the members into waves; without early stops there is one."""
    ensemble = config.ensemble
    if ensemble.stops == "never":
        return [range(ensemble.members)]
    ends = list(accumulate(ensemble.waves or default_waves(ensemble.members)))
    return [range(start, end) for start, end in pairwise([0, *ends])]


def workers_per_member(config: Config) -> int:
    """Count the processes per member: one for every four replicas, so that no one process tokenises for a cluster."""
    return config.cluster.workers_per_member or -(-n_replicas(config) // 4)


def block_size(config: Config, n_questions: int) -> int:
    """Size a block: small enough to keep every replica busy to the end, large enough to batch."""
    return config.cluster.block_size or min(max(n_questions // (4 * n_replicas(config)), 1), 32)


def blocks_in_flight(config: Config, size: int) -> int:
    """Say how many blocks are under way at once.

    Their questions are at least four per replica, so that none starves, and beyond that as many as the replicas take
    calls (`max_ongoing`), so that no queue hides the run's state; two blocks at least, so that one is prepared while
    another is answered.
    """
    if config.cluster.blocks_in_flight is not None:
        return config.cluster.blocks_in_flight
    capacity = sum(one.max_ongoing * one.most_replicas for one in config.answering_deployments.values())
    n_calls = max(map(len, waves_of(config)))
    n_questions = max(4 * n_replicas(config), capacity // n_calls)
    return max(-(-n_questions // size), 2)


def n_replicas(config: Config) -> int:
    """Replicas that answer a member at most: what its processes are to keep busy."""
    return max(deployment.most_replicas for deployment in config.answering_deployments.values())
