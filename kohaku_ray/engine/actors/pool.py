"""The actor pool that serves all runs on one index, and a run's submission of blocks to it."""

from __future__ import annotations

import math
import os.path
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray._private.state import actors
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from kohaku_ray.answering.executor import block_size, n_replicas, start_block, waves_of
from kohaku_ray.answering.local_index import Depths
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.checks.demand import busy_processes, n_retrievers
from kohaku_ray.collection.indexes import open_index
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.sections import RetrieverConfig
from kohaku_ray.engine import MOST_TASKS
from kohaku_ray.engine.actors.members import MemberProcess
from kohaku_ray.engine.actors.retriever import Retriever
from kohaku_ray.engine.actors.voter import MembersAndVoter, Voter
from kohaku_ray.engine.cluster import find_node, idle_cpus, most_resources, node_resources, print_progress
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.ledger.client import RefusingLedger
from kohaku_ray.errors import ConfigError, KohakuRayError
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.records import Question, pluralize
from kohaku_ray.store.parts import RunParts

MAX_RESTARTS = 10
"""Most restarts per actor and hour: one that its own input kills must not restart forever, and a week has many nodes
and processes that end."""

LOOK_S = 5.0
"""Least time between two looks how often actors were started again."""

SAY_EVERY_S = 15.0
"""Interval between progress lines of a waiting job."""

VOTER_THREADS = 4
"""Blocks voted on at once; with one, a block that waits for its members would delay the next ones."""

ANSWER_MS, VOTE_MS, RECORD_MS = 1.5, 2.6, 1.4
"""CPU in milliseconds, as `benchmarks/flow.py` measured it with five members: of a voter per question, of a member's
process and a ledger shard per call."""

FILLS = 2
"""How many times the questions in flight fill the replicas: with one, blocks on their way leave replicas idle."""


ROOM_S = 120.0
"""Longest time that retrievers wait for room on a cluster that does not grow: a job that has just ended gives its own
back within seconds, and one that goes on holds it for hours."""


class ActorPool:
    """Retrievers, which hold an index; processes in which members answer; voters."""

    def __init__(self, config: Config, n_workers: int, depths: Depths | None = None) -> None:
        """Start the retrievers; ``depths`` is of all runs (see ``LocalIndex``).

        ``n_workers`` processes for members start with ``wait_until_ready``, and so do voters.
        """
        # Retries of a lost actor's tasks alone; replies that the ledger has are not asked for again. The others: a
        # server's failures (models/openai.chat), a lost replica (serving/handles), a blank answer (the system's
        # attempts). docs/operations.md has their product.
        always: dict[str, Any] = {"max_restarts": -1, "max_task_retries": -1}
        n_shards, pool = open_index(config).n_shards, uuid.uuid4().hex[:12]
        self._pool_id = pool
        self._config, each = config, config.cluster.retriever
        n = n_retrievers(config, n_shards, most_resources(config.cluster))
        self._room = _ask_for_room(each, n * n_shards)
        resources = {"num_cpus": each.cpus, "num_gpus": each.gpus}
        retriever = ray.remote(max_concurrency=1000, **resources, **always)(Retriever)
        self.retrievers: list[Any] = []
        for replica in range(n):
            names = [f"kohaku_ray retriever {pool} {replica}.{shard}" for shard in range(n_shards)]
            for shard, name in enumerate(names):
                where: dict[str, Any] = {}
                if self._room is not None:
                    bundle = PlacementGroupSchedulingStrategy(self._room, len(self.retrievers))
                    where = {"scheduling_strategy": bundle}
                self.retrievers.append(retriever.options(name=name, **where).remote(config, depths, shard, names))
        # Asked for now: an index and its encoder take seconds to open, while other actors and replicas start.
        self._actor_of = {actor.ready.remote(): actor for actor in self.retrievers}
        self._n_workers, self._always = n_workers, always
        self.members: list[Any] = []
        self.voters: list[Any] = []
        self.runs: set[RunWork] = set()  # that are under way
        self._restarts: dict[Any, list[float]] = {}  # when each actor was seen to have been started again
        self._looked_s = -math.inf

    def wait_until_ready(self) -> None:
        """Start the other actors, and wait until every retriever has opened its index.

        The others start last: on a small machine, retrievers and replicas would wait for their imports. After
        ``SAY_EVERY_S`` it is reported what the job waits for. A retriever that takes no GPU by auto, though it has one,
        says why.

        Raises:
            ConfigError: The retrievers had no room for ``ROOM_S``, on a cluster that does not grow.
        """
        if not self.members:
            config, always = self._config, self._always
            # Spread: actors that ask for next to no CPU would all go to one node.
            coordinates = {"num_cpus": idle_cpus(), "resources": config.cluster.resources}
            spread = {**coordinates, "scheduling_strategy": "SPREAD", **always}
            # The first voter writes the outputs: beside the driver, so that a run directory on its disk is complete.
            node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            here: dict[str, Any] = {"num_cpus": 0, "resources": {}, "scheduling_strategy": node}
            process = ray.remote(max_concurrency=MOST_TASKS, **spread)(MemberProcess)
            voter = ray.remote(max_concurrency=VOTER_THREADS, **spread)(Voter)
            names = [f"kohaku_ray members {self._pool_id} {number}" for number in range(self._n_workers)]
            first, *others = (f"kohaku_ray voter {self._pool_id} {number}" for number in range(n_voters(config)))
            if len(names) == 1 and not others and _is_one_machine(config):
                both = ray.remote(max_concurrency=MOST_TASKS, **always)(MembersAndVoter)
                self.members = self.voters = [both.options(name=names[0], **here).remote()]
            else:
                self.members = [process.options(name=name).remote() for name in names]
                self.voters = [voter.options(name=first, **here).remote()]
                self.voters += [voter.options(name=name).remote() for name in others]
        notes: set[str] = set()
        waiting, began = list(self._actor_of), time.monotonic()
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SAY_EVERY_S)
            for note in set(ray_get(done)) - {"", *notes}:
                print_progress(f"answer  {note}")
                notes.add(note)
            if not waiting:
                return
            cluster, has_room = self._config.cluster, self._has_room()
            if not has_room and not cluster.autoscaling and time.monotonic() - began > ROOM_S:
                raise ConfigError(_describe_no_room(cluster.retriever, len(self.retrievers)))
            retrievers = [self._actor_of[ref] for ref in waiting]
            print_progress(f"answer  {_describe_waiting(cluster.retriever, retrievers, has_room=has_room)}")
            self.check_restarts()

    def check_restarts(self) -> None:
        """Look how often the actors were started again.

        Raises:
            KohakuRayError: One was more than ``MAX_RESTARTS`` times in the last hour.
        """
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        for actor in {*self.retrievers, *self.members, *self.voters}:
            facts, seen = actors(actor._actor_id.hex()), self._restarts.setdefault(actor, [])
            seen += [now] * (int(facts.get("NumRestarts", 0)) - len(seen))
            if len(seen) > MAX_RESTARTS and now - seen[-MAX_RESTARTS - 1] < 3600:
                raise KohakuRayError(
                    f"{facts['Name']} died and was started again {len(seen)} times, the last {MAX_RESTARTS + 1} within "
                    "an hour: Ray's logs say why (out of memory is the usual reason); give its node more memory, then "
                    "repeat the command, which goes on where it stopped"
                )

    def _has_room(self) -> bool:
        """Whether the retrievers have what they asked for, all of them."""
        return self._room is None or placement_group_table(self._room)["state"] == "CREATED"

    def close(self) -> None:
        """End the actors now, and give back the retrievers' room: the next pool needs their CPUs."""
        for actor in {*self.retrievers, *self.members, *self.voters}:
            ray.kill(actor)
        if self._room is not None:
            remove_placement_group(self._room)

    def counts(self) -> Counter[tuple[str, str]]:
        """Sum ``Retriever.counts`` over all retrievers."""
        total: Counter[tuple[str, str]] = Counter()
        for counts in ray_get([retriever.counts.remote() for retriever in self.retrievers]):
            total.update(counts)
        return total


def _ask_for_room(retriever: RetrieverConfig, n: int) -> PlacementGroup | None:
    """Ask Ray for the room of ``n`` retrievers at once, as a cluster that grows is asked, too; None: they need none.

    Those that share GPUs lie close together, so that whole GPUs stay free; the others on many nodes.
    """
    each = _resources_of(retriever)
    return placement_group([each] * n, "PACK" if retriever.gpus else "SPREAD") if each else None


def _resources_of(retriever: RetrieverConfig) -> dict[str, float]:
    return {kind: n for kind, n in (("CPU", retriever.cpus), ("GPU", retriever.gpus)) if n}


def _describe_needs(retriever: RetrieverConfig, n: int) -> str:
    needed = " and ".join(pluralize(amount, kind) for kind, amount in _resources_of(retriever).items())
    return f"{pluralize(n, 'retriever')} ({needed}{' each' if n > 1 else ''})"


def _describe_waiting(retriever: RetrieverConfig, actors: Sequence[Any], *, has_room: bool) -> str:
    """Say where retrievers start, or what those need for which there is no room yet."""
    if has_room:
        nodes = dict.fromkeys(find_node(actor) or "a node with room" for actor in actors)
        on = f"{'is' if len(actors) == 1 else 'are'} starting on {', '.join(nodes)}"
        return f"{pluralize(len(actors), 'retriever')} {on}: imports, then opens the index"
    free = ray.available_resources()
    left = " and ".join(pluralize(free.get(kind, 0.0), kind) for kind in _resources_of(retriever))
    return f"waiting for room for {_describe_needs(retriever, len(actors))}: the cluster has {left} free"


def _describe_no_room(retriever: RetrieverConfig, n: int) -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    there = ", ".join(
        f"{pluralize(total.get(kind, 0.0), kind)} of which {free.get(kind, 0.0):g} free"
        for kind in _resources_of(retriever)
    )
    return (
        f"{_describe_needs(retriever, n)} got no room on the nodes in {ROOM_S:g} s: the cluster has {there}: lower "
        "cluster.retriever.replicas, .cpus (0 is possible) or .gpus, end the jobs that hold the rest, or add nodes"
    )


def _is_one_machine(config: Config) -> bool:
    """Whether members may answer in the process of the voter, beside the driver: a cluster's head is not for work."""
    cluster = config.cluster
    return len(node_resources()) == 1 and not cluster.autoscaling and not cluster.resources


class RunWork:
    """One run on an actor pool."""

    def __init__(self, pool: ActorPool, context: RunContext, parts: RunParts) -> None:
        self.config, self.parts = context.config, parts
        self._pool = pool
        self._context = context
        self._context_ref = ray.put(context)
        self._config_ref = ray.put(context.config)

    def submit(self, number: int, block: Sequence[Question]) -> Any:
        """Submit a block; returns the ref of its counts, which are there when its part is written."""
        executor = RayExecutor(self._pool, self._context_ref, self._config_ref, self.parts, number, block)
        return start_block(self.config, executor)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count among the pool's runs while the block runs: they share what the replicas hold."""
        self._pool.runs.add(self)
        try:
            yield
        finally:
            self._pool.runs.discard(self)

    @property
    def n_runs(self) -> int:
        """Runs of the pool that are under way."""
        return len(self._pool.runs)

    def n_answered(self) -> int:
        """Count the questions that all members have answered, also of blocks that are not done."""
        context = self._context_ref.hex()
        counts = ray_get([process.n_answered.remote(context) for process in self._pool.members])
        return int(sum(counts)) // self.config.ensemble.members

    def stop_asking(self, reason: str) -> None:
        """Let every call of the blocks still to be submitted fail with this reason."""
        self._context_ref = ray.put(replace(self._context, ledger=RefusingLedger(reason)))

    def finish(self, names: Sequence[str]) -> None:
        """Write the outputs from the parts of these names."""
        ray_get(self._pool.voters[0].write.remote(self._config_ref, self.parts, names))


class RayExecutor:
    """Runs the steps of one block on the actors of a pool; the block's number decides which ones."""

    def __init__(
        self,
        pool: ActorPool,
        context_ref: Any,
        config_ref: Any,
        parts: RunParts,
        number: int,
        questions: Sequence[Question],
    ) -> None:
        self._context_ref, self._config_ref, self._parts, self._questions = context_ref, config_ref, parts, questions
        self._retriever = pool.retrievers[number % len(pool.retrievers)]
        self._process = pool.members[number % len(pool.members)]
        self._voter = pool.voters[number % len(pool.voters)]
        self._name = f"block {number} · {os.path.basename(parts.path)}"

    def prepare(self, member: int, settled: Any | None) -> Any:
        """See ``Executor``."""
        return self._retriever.prepare.remote(self._context_ref, self._questions, member, settled)

    def answer(self, member: int, prepared: Any, settled: Any | None) -> Any:
        """See ``Executor``."""
        task = self._process.answer.options(name=f"member {member} · {self._name}")
        return task.remote((self._context_ref, prepared), member, self._retriever, settled)

    def settle(self, answered: Sequence[Any]) -> Any:
        """See ``Executor``."""
        return self._voter.settle.remote(self._config_ref, self._questions, *answered)

    def vote(self, prepared: Sequence[Any], answered: Sequence[Any]) -> Any:
        """See ``Executor``; the ref of the counts."""
        return self._voter.vote.remote(self._config_ref, self._parts, len(prepared), *prepared, *answered)


def n_ledger_shards(config: Config, deployments: Mapping[str, Deployment] | None = None) -> int:
    """Return the shards of the ledger that the replicas of deployments need. Default: of those that answer."""
    asked = config.answering_deployments if deployments is None else deployments
    return config.ledger.shards or busy_processes(asked, RECORD_MS)


def n_voters(config: Config) -> int:
    """Return the voters that the replicas need."""
    return busy_processes(config.answering_deployments, VOTE_MS / config.ensemble.members)


def member_processes(config: Config, n_cpus: float) -> int:
    """Return the processes that answer for all members of one run.

    At most one per CPU of the cluster, as more would only take their time to start; one that grows has more CPUs.
    """
    wanted = busy_processes(config.answering_deployments, ANSWER_MS)
    return wanted if config.cluster.autoscaling else min(wanted, max(int(n_cpus), 1))


def contexts_cached(
    config: Config,
    cache_tokens: Mapping[str, int | None],
    summary: AnswerSummary | None = None,
    n_up: Mapping[str, int] | None = None,
) -> float:
    """Return how many questions the KV caches of the replicas hold, each with the replies of a wave of its members.

    They are as long as those of the run so far, at first as the window. Replicas have equally many questions
    (``Placement``). In waves it is one less than a cache holds, but two where it holds two: what is freed last goes
    last, so that a cache keeps the context of a question that has ended longer than that of one between two waves.
    Members that do not share their context have one each, and no wave finds that of an earlier one.

    Args:
        config: The run.
        cache_tokens: Of a replica, by deployment; None: it does not say, and may hold any number.
        summary: What the run has counted so far.
        n_up: Replicas that are up, of deployments that have not all of theirs.
    """
    n_contexts, n_calls = math.inf, max(map(len, waves_of(config)))
    for name, tokens in cache_tokens.items():
        deployment = config.deployments[name]
        if tokens is None or not isinstance(deployment, VllmConfig):
            continue
        # A model and each of its adapters have keys and values of their own.
        n_models = [config.deployment_of(model) for model in config.answering_models].count(name)
        n_prompts = n_models if config.ensemble.shares_context else n_calls
        question_tokens: float = n_prompts * deployment.window_tokens
        if summary is not None and summary.context_tokens:
            replies = summary.spent.get("completion_tokens", 0) / max(summary.n_calls["made"], 1)
            question_tokens = n_prompts * summary.context_tokens / summary.n_questions + replies * n_calls
        n = (n_up or {}).get(name, deployment.most_replicas)
        held = tokens / question_tokens
        if len(waves_of(config)) > 1 and config.ensemble.shares_context:
            held = max(held - 1, min(held, 2))
        n_contexts = min(n_contexts, held * n)
    return n_contexts


def blocks_in_flight(config: Config, size: int, n_contexts: float = math.inf) -> int:
    """Return how many blocks are in flight at once.

    Their questions are at least four per replica, so that no replica is idle, and otherwise as many as fill the
    replicas' `max_ongoing` calls (of batches, a file) `FILLS` times, so that the next calls wait while a block is
    prepared, voted on or at its last answers (`benchmarks/flow.py`), and no longer queue forms; once more if models are
    called to prepare, as a question then makes few calls for part of its time. At least two blocks. No more than fill
    the replicas' KV caches, of ``n_contexts``, as often; in waves no more than these hold, since a question that waits
    takes the place of one whose next wave is on its way (`benchmarks/cache_simulation.py`). With a budget no more calls
    are in flight than the replicas take, or than one block makes: those that wait for a replica would be paid, too.
    """
    if config.cluster.blocks_in_flight is not None:
        return config.cluster.blocks_in_flight
    capacity = sum(deployment.most_in_flight for deployment in config.answering_deployments.values())
    n_waves, n_calls = len(waves_of(config)), max(map(len, waves_of(config)))
    if config.budget.is_set:
        return max(capacity // (n_calls * size), 1)
    roles = config.declaration.roles
    fills = FILLS + any(roles[name].stage == "prepare" for name in config.uses.roles)
    if n_waves > 1 and config.ensemble.shares_context and n_contexts < fills * capacity / n_calls:
        return max(int(n_contexts / size), 1)
    n_questions = max(4 * n_replicas(config), fills * min(capacity / n_calls, n_contexts))
    return max(math.ceil(n_questions / size), 2)


LEAST_RUNS = 4
"""Runs of a sweep that are in flight at once, or more: while one ends, others go on."""


def runs_in_flight(config: Config, n_questions: int) -> int:
    """Return how many runs of a sweep are in flight at once: as many as a run's blocks in flight have questions."""
    size = block_size(config, n_questions)
    return max(-(-blocks_in_flight(config, size) * size // max(n_questions, 1)), LEAST_RUNS)
