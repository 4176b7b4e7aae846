"""The actor pool that serves all runs on one index, and a run's submission of blocks to it."""

from __future__ import annotations

import math
import os.path
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kohaku_ray.answering.executor import block_size, n_replicas, start_block, waves_of
from kohaku_ray.answering.local_index import Depths
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.engine import MOST_TASKS
from kohaku_ray.engine.actors.members import MemberProcess
from kohaku_ray.engine.actors.retriever import Retriever
from kohaku_ray.engine.actors.voter import MembersAndVoter, Voter
from kohaku_ray.engine.cluster import (
    choose_when_freed,
    free_nodes,
    idle_cpus,
    node_resources,
    print_progress,
    started_on,
)
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.ledger.client import RefusingLedger
from kohaku_ray.engine.worker_groups import read_most_nodes
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.gpu import without_gpu_support
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.records import Question
from kohaku_ray.run.checks.cards import card_bytes, largest_shard_bytes
from kohaku_ray.run.checks.demand import busy_processes
from kohaku_ray.run.checks.free_gpus import FreeNode, with_retriever_gpus
from kohaku_ray.run.checks.retrievers import RetrieverPlan, plan_retrievers
from kohaku_ray.run.collection.indexes import open_index
from kohaku_ray.run.record.summary import AnswerSummary, pluralize

MAX_RESTARTS = 10
"""Most restarts per actor: an actor that its own input kills must not restart forever."""

SAY_EVERY_S = 15.0
"""Interval between progress lines of a waiting job."""

VOTER_THREADS = 4
"""Blocks voted on at once; with one, a block that waits for its members would delay the next ones."""

ANSWER_MS, VOTE_MS, RECORD_MS = 1.5, 2.6, 1.4
"""CPU in milliseconds, as `benchmarks/flow.py` measured it with five members: of a voter per question, of a member's
process and a ledger shard per call."""

FILLS = 2
"""How many times the questions in flight fill the replicas: with one, blocks on their way leave replicas idle."""


COUNTED_MS = 1.0
"""CPU time of a query from which retrievers are counted by it, too: below, it is lost in what a question takes."""


class ActorPool:
    """Retrievers, which hold an index; processes in which members answer; voters."""

    def __init__(self, config: Config, n_workers: int, depths: Depths | None = None) -> None:
        """Start the retrievers; ``depths`` is of all runs (see ``LocalIndex``).

        ``n_workers`` processes for members start with ``wait_until_ready``, and so do voters.
        """
        # Retries of a lost actor's tasks alone; replies that the ledger has are not asked for again. The others: a
        # server's failures (models/openai.chat), a lost replica (serving/handles), a blank answer (the system's
        # attempts). docs/operations.md has their product.
        always: dict[str, Any] = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1}
        n_shards, pool = open_index(config).n_shards, uuid.uuid4().hex[:12]
        self._pool_id = pool
        plan = _take_free_gpus(config)
        config = self._config = with_retriever_gpus(config, plan.gpus)
        resources = {"num_cpus": config.cluster.retriever.cpus, "num_gpus": config.cluster.retriever.n_gpus}
        retriever = ray.remote(max_concurrency=1000, **resources, **always)(Retriever)

        def start(replica: int) -> list[Any]:
            names = [f"kohaku_ray retriever {pool} {replica}.{shard}" for shard in range(n_shards)]
            return [
                retriever.options(name=name).remote(config, depths, shard, names) for shard, name in enumerate(names)
            ]

        self.retrievers = [actor for replica in range(plan.n) for actor in start(replica)]
        self._n_shards, self._start = n_shards, start
        # Asked for now: an index and its encoder take seconds to open, while other actors and replicas start.
        self._actor_of = {actor.ready.remote(): actor for actor in self.retrievers}
        self._n_workers, self._always = n_workers, always
        self.members: list[Any] = []
        self.voters: list[Any] = []
        self.runs: set[RunWork] = set()  # that are under way

    def wait_until_ready(self) -> None:
        """Start the other actors, and wait until every retriever has opened its index.

        The others start last: on a small machine, retrievers and replicas would wait for their imports. After
        ``SAY_EVERY_S`` it is reported what the job waits for. A retriever that takes no GPU by auto, though it has one,
        says why.
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
        waiting = list(self._actor_of)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SAY_EVERY_S)
            opened = ray_get(done)
            for note in filter(None, {note for note, _ in opened} - notes):
                print_progress(f"answer  {note}")
                notes.add(note)
            waiting += self._add_retrievers(max((ms for _, ms in opened), default=0.0), len(waiting))
            if waiting:
                print_progress(f"answer  {_describe_waiting(self._config, [self._actor_of[ref] for ref in waiting])}")

    def _add_retrievers(self, search_ms: float, n_waiting: int) -> list[Any]:
        """Start as many more retrievers as a query's time asks for, where there is room; returns what they open.

        ``n_waiting`` is the number of those that have not opened the index yet, and may need room, too.
        """
        n = len(self.retrievers) // self._n_shards
        if search_ms < COUNTED_MS:
            return []
        wanted = plan_on_cluster(self._config, search_ms=search_ms).n
        if not self._config.cluster.autoscaling:  # else nodes come; here another job may hold what is not free
            retriever = self._config.cluster.retriever
            room = sum(node.n_places(retriever.n_gpus, retriever.cpus) for node in free_nodes()) - n_waiting
            wanted = min(wanted, n + int(max(room, 0) // self._n_shards))
        more = [actor for replica in range(n, wanted) for actor in self._start(replica)]
        if more:
            what = f"{pluralize(len(more), 'more retriever')}, since a query takes {search_ms:.1f} ms of CPU"
            print_progress(f"answer  {what} (index.factory: an IVF takes less)")
        self.retrievers += more
        opened = {actor.ready.remote(): actor for actor in more}
        self._actor_of |= opened
        return list(opened)

    def close(self) -> None:
        """End the actors now: the next pool needs their CPUs."""
        for actor in {*self.retrievers, *self.members, *self.voters}:
            ray.kill(actor)

    def counts(self) -> Counter[tuple[str, str]]:
        """Sum ``Retriever.counts`` over all retrievers."""
        total: Counter[tuple[str, str]] = Counter()
        for counts in ray_get([retriever.counts.remote() for retriever in self.retrievers]):
            total.update(counts)
        return total


def _describe_waiting(config: Config, retrievers: Sequence[Any]) -> str:
    """Say where retrievers start, or what those need for which no node has room."""
    free, retriever = ray.available_resources(), config.cluster.retriever
    asked = {kind: n for kind, n in (("CPU", retriever.cpus), ("GPU", retriever.n_gpus)) if n}
    if all(free.get(kind, 0.0) >= n for kind, n in asked.items()):
        nodes = dict.fromkeys(started_on(actor) or "a node with room" for actor in retrievers)
        on = f"{'is' if len(retrievers) == 1 else 'are'} starting on {', '.join(nodes)}"
        return f"{pluralize(len(retrievers), 'retriever')} {on}: imports, then opens the index"
    needed = " and ".join(pluralize(n, kind) for kind, n in asked.items())
    left = " and ".join(pluralize(free.get(kind, 0.0), kind) for kind in asked)
    what = f"{pluralize(len(retrievers), 'retriever')} ({needed}{' each' if len(retrievers) > 1 else ''})"
    return f"waiting for {what} to start and open the index: the cluster has {left} free"


def _is_one_machine(config: Config) -> bool:
    """Whether members may answer in the process of the voter, beside the driver: a cluster's head is not for work."""
    cluster = config.cluster
    return len(node_resources()) == 1 and not cluster.autoscaling and not cluster.resources


class RunWork:
    """One run on an actor pool."""

    def __init__(self, pool: ActorPool, context: RunContext) -> None:
        self.config = context.config
        self._pool = pool
        self._context = context
        self._context_ref = ray.put(context)
        self._config_ref = ray.put(context.config)

    def submit(self, number: int, block: Sequence[Question]) -> tuple[Any, Any]:
        """Submit a block; returns the refs of its result and of its tables."""
        run = os.path.basename(self.config.run)
        executor = RayExecutor(self._pool, self._context_ref, self._config_ref, number, block, run)
        result, tables = start_block(self.config, executor)
        return result, tables

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

    def finish(self, run: str, tables: list[Any]) -> None:
        """Vote again where members weigh by agreement, and write the outputs from all blocks' tables."""
        writer, votes = self._pool.voters[0], None
        if self.config.ensemble.vote.weights == "agreement":
            votes = writer.vote_by_agreement.remote(self._config_ref, tables)
        ray_get(writer.write.remote(self._config_ref, run, tables, votes))


class RayExecutor:
    """Runs the steps of one block on the actors of a pool; the block's number decides which ones."""

    def __init__(
        self, pool: ActorPool, context_ref: Any, config_ref: Any, number: int, questions: Sequence[Question], run: str
    ) -> None:
        self._context_ref, self._config_ref, self._questions = context_ref, config_ref, questions
        self._retriever = pool.retrievers[number % len(pool.retrievers)]
        self._process = pool.members[number % len(pool.members)]
        self._voter = pool.voters[number % len(pool.voters)]
        self._name = f"block {number} · {run}"

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
        """See ``Executor``; two refs, of the counts and of the tables."""
        vote = self._voter.vote.options(num_returns=2)
        return vote.remote(self._config_ref, len(prepared), *prepared, *answered)


def plan_on_cluster(config: Config, *free: Sequence[FreeNode], search_ms: float = 0.0) -> RetrieverPlan:
    """Plan the retrievers of a run on the connected cluster, besides the replicas that there may be.

    ``free`` is what its nodes have free now, if that counts too; ``search_ms`` the CPU time of a query in a shard.
    """
    nodes, index = node_resources(), open_index(config)
    return plan_retrievers(
        config,
        index.n_shards,
        nodes,
        *free,
        most_nodes=read_most_nodes() if config.cluster.autoscaling else None,
        index_bytes=largest_shard_bytes(index, config),
        card_bytes=card_bytes(nodes),
        missing=without_gpu_support() if any(node.get("GPU") for node in nodes) else "",
        search_ms=search_ms,
    )


def leaves_gpus(config: Config) -> bool:
    """Whether retrievers take GPUs that replicas leave: they start after these, to take none that a replica needs.

    So do those that share a GPU with engines, which measure its free memory as they start.
    """
    if config.cluster.retriever.gpus != "auto":
        models = config.used_deployments.values()
        shares = any(isinstance(model, VllmConfig) and model.gpus < 1 for model in models)
        return shares and 0 < config.cluster.retriever.n_gpus < 1
    return plan_on_cluster(config).gpus > 0


def _take_free_gpus(config: Config) -> RetrieverPlan:
    """Plan a run's retrievers; by auto, on GPUs that are free now, with a line if the cluster has any."""
    plan = plan_on_cluster(config)
    if config.cluster.retriever.gpus != "auto":
        return plan
    if plan.gpus:
        plan = choose_when_freed(lambda free: plan_on_cluster(config, free))
    if config.index.search_device == "cuda" and not plan.gpus:
        raise ConfigError(
            f"index.search_device is cuda but cluster.retriever.gpus is auto and gives no GPU ({plan.reason}): set "
            "cluster.retriever.gpus to 1 or a share, or index.search_device to auto"
        )
    if ray.cluster_resources().get("GPU"):
        print_progress(f"answer  cluster.retriever.gpus auto: {plan.gpus:g} ({plan.reason})")
    return plan


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

    They are as long as those of the run so far, at first as the window. Of several replicas, one may have more
    questions than the others by the deployment's ``load_bound``. In waves it is one less than a cache holds, but two
    where it holds two: what is freed last goes last, so that a cache keeps the context of a question that has ended
    longer than that of one between two waves. Members that do not share their context have one each, and no wave finds
    that of an earlier one.

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
        n_contexts = min(n_contexts, held * (n if n == 1 else n / deployment.load_bound))
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
