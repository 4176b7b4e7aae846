"""The answer job: questions → evidence → seeded members → vote → files.

The object graph is the schedule: a block's vote task depends on its members' refs, theirs on the block's evidence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kohaku_ray.config import Config
from kohaku_ray.engine.cluster import answer_demand, check_demand, connected, say
from kohaku_ray.engine.errors import fetch
from kohaku_ray.engine.ledger import Ledger, open_ledger
from kohaku_ray.engine.members import Member, Retriever
from kohaku_ray.engine.runs import RunDirectory
from kohaku_ray.engine.serving import SAY_EVERY_S, application_name, check_deployment, models_of, serving
from kohaku_ray.engine.sources import anchored, read_metadata, read_source
from kohaku_ray.engine.voting import BlockResult, finish_run, settle_block, vote_block
from kohaku_ray.ensemble.decide import default_waves
from kohaku_ray.errors import KohakuRayError
from kohaku_ray.generation.prompts import Prompts
from kohaku_ray.questions import read_questions
from kohaku_ray.records import Question

MAX_RESTARTS = 10
"""Deaths of one actor that a job survives: an actor that dies of its own input would else come back for ever."""


@dataclass(slots=True)
class AnswerSummary:
    """What an answer job did.

    Attributes:
        run: Directory of the outputs.
        n_questions: Rows in, and rows out.
        n_member_errors: Member answers that carry an error.
        n_questions_in_error: Questions all of whose members carry one.
        n_answers: Member answers asked for: fewer than members × questions where votes were settled early.
        n_calls: Model calls asked for, by source (``ledger``, ``joined``, ``made``).
        spent: What the calls made by this run took (see ``BlockResult``).
        n_placed: Questions placed on replicas by the question router, by deployment, while this run was under way.
        n_moved: How many of them went elsewhere because their replica was overfull.
        wall_s: Whole job, start-up included.
    """

    run: str
    n_questions: int = 0
    n_member_errors: int = 0
    n_questions_in_error: int = 0
    n_answers: int = 0
    n_calls: dict[str, int] = field(default_factory=lambda: {"ledger": 0, "joined": 0, "made": 0})
    spent: dict[str, float] = field(default_factory=dict)
    n_placed: dict[str, int] = field(default_factory=dict)
    n_moved: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0

    def add(self, result: BlockResult) -> None:
        """Count a finished block."""
        self.n_questions += result.n_questions
        self.n_member_errors += result.n_member_errors
        self.n_questions_in_error += result.n_questions_in_error
        self.n_answers += result.n_answers
        for source, n in result.n_calls.items():
            self.n_calls[source] += n
        for name, amount in result.spent.items():
            self.spent[name] = self.spent.get(name, 0) + amount


def run_answer(config: Config) -> AnswerSummary:
    """Answer every question of the configured file, vote, and write the run directory.

    To resume an interrupted run is to call this again: recorded model calls replay from the ledger.

    Raises:
        ConfigError: The configuration or the cluster does not fit; nothing was started.
        DataError: Questions, index, ledger or the run directory cannot be used.
    """
    began, config = time.perf_counter(), anchored(config)
    name, data = read_source(config.questions.path)
    questions = read_questions(name, data, config.questions.limit)
    deployments = config.used_deployments
    for key, deployment in deployments.items():
        check_deployment(key, deployment)
    read_metadata(config.documents.metadata)
    prompts = Prompts(config.generation.prompts)
    directory = RunDirectory(config.run)
    directory.begin(config)
    with connected(config.cluster):
        check_demand(answer_demand(config), ray.cluster_resources(), autoscaling=config.cluster.autoscaling)
        ledger = open_ledger(config.ledger)
        applications = {key: application_name(key, deployment) for key, deployment in deployments.items()}
        job = _Job(config, ledger, applications, prompts)
        # Actors open the index while Serve starts the replicas.
        with ledger.kept_alive(), serving(deployments):
            job.wait_until_ready()
            before = {name: ledger.placed(application) for name, application in applications.items()}
            summary = _answer_blocks(job, config, questions, directory.path)
            for name, application in applications.items():
                counts = zip(ledger.placed(application), before[name], strict=True)
                summary.n_placed[name], summary.n_moved[name] = (now - then for now, then in counts)
    summary.wall_s = time.perf_counter() - began
    directory.finish(summary)
    return summary


class _Job:
    """The actors of one job, and the one way a block goes through them."""

    def __init__(self, config: Config, ledger: Ledger, applications: dict[str, str], prompts: Prompts) -> None:
        self._config = config
        actor: dict[str, Any] = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1, "max_concurrency": 1000}
        models = [models_of(config, applications, member) for member in range(config.ensemble.members)]
        self._retrievers = [
            ray.remote(Retriever).options(num_cpus=1, **actor).remote(config, ledger, models[0], prompts)
            for _ in range(config.cluster.retrievers)
        ]
        self._members = [
            [
                ray.remote(Member)
                .options(num_cpus=0, **actor)
                .remote(
                    member,
                    config,
                    ledger,
                    models[member],
                    prompts,
                    self._retrievers[lane % len(self._retrievers)],
                )
                for lane in range(n_lanes(config))
            ]
            for member in range(config.ensemble.members)
        ]
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # Votes run beside the driver, so that a run directory on its local disk is complete.
        self._vote = ray.remote(vote_block).options(
            num_cpus=0, num_returns=2, scheduling_strategy=here, max_retries=MAX_RESTARTS
        )
        self._settle = ray.remote(settle_block).options(num_cpus=0, max_retries=MAX_RESTARTS)
        self._finish = ray.remote(finish_run).options(num_cpus=0, scheduling_strategy=here)

    def wait_until_ready(self) -> None:
        """Wait until every retriever holds its index, and say what for when that takes long."""
        waiting = [retriever.ready.remote() for retriever in self._retrievers]
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SAY_EVERY_S)
            fetch(done)
            if waiting:
                free = ray.available_resources().get("CPU", 0)
                say(f"answer  waiting for {len(waiting)} retriever(s), a CPU each: the cluster has {free:g} free")

    def submit(self, number: int, block: Sequence[Question]) -> tuple[Any, Any]:
        """Send a block on its way; returns the refs of its result and of its tables."""
        retriever = self._retrievers[number % len(self._retrievers)]
        scope = self._config.ensemble.scope
        prepared = [retriever.prepare.remote(block, 0)] if scope == "answer" else []
        answered: list[Any] = []
        settled = None
        for wave in waves_of(self._config):
            if answered:
                settled = self._settle.remote(self._config, block, *answered)
            for member in wave:
                lanes = self._members[member]
                if scope == "question":
                    prepared.append(retriever.prepare.remote(block, member, settled))
                answered.append(lanes[number % len(lanes)].answer.remote(prepared[-1], settled))
        result, tables = self._vote.remote(self._config, len(prepared), *prepared, *answered)
        return result, tables

    def finish(self, run: str, tables: list[Any]) -> None:
        """Write the outputs from all blocks' tables."""
        fetch(self._finish.remote(self._config, run, tables))


def _answer_blocks(job: _Job, config: Config, questions: Sequence[Question], run: str) -> AnswerSummary:
    summary = AnswerSummary(run)
    progress = _Progress(len(questions))
    tables: list[Any] = []
    pending: list[Any] = []
    for number, block in enumerate(_blocks(questions, block_size(config, len(questions)))):
        result, table = job.submit(number, block)
        pending.append(result)
        tables.append(table)
        while len(pending) >= config.cluster.blocks_in_flight:
            pending = _collect(pending, summary, progress)
    while pending:
        pending = _collect(pending, summary, progress)
    if summary.n_questions != len(questions):
        raise KohakuRayError(f"{len(questions)} questions went in and {summary.n_questions} came out: this is a defect")
    job.finish(run, tables)
    return summary


def _collect(pending: list[Any], summary: AnswerSummary, progress: _Progress) -> list[Any]:
    done, rest = ray.wait(pending, num_returns=1)
    for result in fetch(done):
        summary.add(result)
    progress.show(summary)
    return list(rest)


def waves_of(config: Config) -> list[range]:
    """Split the members into waves; without early stops there is one."""
    ensemble = config.ensemble
    if ensemble.stops == "never":
        return [range(ensemble.members)]
    ends = list(accumulate(ensemble.waves or default_waves(ensemble.members)))
    return [range(start, end) for start, end in pairwise([0, *ends])]


def n_lanes(config: Config) -> int:
    """Count the actors of a member: one for every four replicas, so that no one process tokenises for a cluster."""
    return config.cluster.lanes or -(-_n_replicas(config) // 4)


def block_size(config: Config, n_questions: int) -> int:
    """Size a block: small enough to keep every replica busy to the end, large enough to batch."""
    return config.cluster.block_size or min(max(n_questions // (4 * _n_replicas(config)), 1), 32)


def _n_replicas(config: Config) -> int:
    """Replicas that answer a member at most: what one of its lanes is to keep busy."""
    return max(deployment.most_replicas for deployment in config.answering_deployments.values())


def _blocks(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    for start in range(0, len(questions), size):
        yield questions[start : start + size]


class _Progress:
    """Says how far the run is, at most twice a second."""

    def __init__(self, n_questions: int) -> None:
        self._n_questions, self._began, self._said = n_questions, time.perf_counter(), 0.0

    def show(self, summary: AnswerSummary) -> None:
        now = time.perf_counter()
        if now - self._said < 0.5 and summary.n_questions < self._n_questions:
            return
        self._said = now
        rate = summary.n_questions / max(now - self._began, 1e-9)
        calls = summary.n_calls
        say(
            f"answer  {summary.n_questions}/{self._n_questions} questions  {rate:.1f}/s  "
            f"{sum(calls.values())} calls ({calls['made']} made, {calls['ledger'] + calls['joined']} shared)"
        )
