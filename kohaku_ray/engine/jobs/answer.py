"""The answer job: questions → evidence → seeded members → vote → files.

The object graph is the schedule: a block's vote task depends on its members' refs, theirs on the block's evidence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.cache import Depths
from kohaku_ray.engine.actors.members import Member, Retriever
from kohaku_ray.engine.actors.tools import Setup
from kohaku_ray.engine.actors.voter import BlockResult, Voter
from kohaku_ray.engine.cluster import answer_demand, check_demand, connected, say
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.ledger.client import Ledger, open_ledger
from kohaku_ray.engine.serving.applications import SAY_EVERY_S, check_deployment, models_of, serving
from kohaku_ray.ensemble.decide import default_waves
from kohaku_ray.errors import KohakuRayError
from kohaku_ray.generation.prompts import Prompts
from kohaku_ray.questions import read_questions
from kohaku_ray.records import Question
from kohaku_ray.runs.directory import RunDirectory
from kohaku_ray.runs.sources import read_metadata, read_source, resolve_paths

MAX_RESTARTS = 10
"""Deaths of one actor that a job survives: an actor that dies of its own input would else come back for ever."""

VOTER_THREADS = 4
"""Blocks voted over at once. More than one, or a block that waits for its members would hold up those behind it."""


@dataclass(slots=True)
class AnswerSummary:
    """What an answer job did.

    Attributes:
        run: Directory of the outputs.
        n_questions: Rows in, and rows out.
        n_member_errors: Member answers that carry an error.
        n_unanswered: Those of them that got no reply, and are asked again by the next start.
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
    n_unanswered: int = 0
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
        self.n_unanswered += result.n_unanswered
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
    began, config = time.perf_counter(), resolve_paths(config)
    questions = questions_of(config)
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
        crew = Crew(config, n_members=config.ensemble.members * n_lanes(config))
        # Actors open the index while Serve starts the replicas.
        with ledger.kept_alive(), serving(deployments) as applications:
            crew.wait_until_ready()
            before = {name: ledger.placed(application) for name, application in applications.items()}
            work = RunWork(crew, setup_of(config, ledger, applications, prompts))
            summary = answer_all(work, questions, directory, _Progress(len(questions)).show)
            for name, application in applications.items():
                counts = zip(ledger.placed(application), before[name], strict=True)
                summary.n_placed[name], summary.n_moved[name] = (now - then for now, then in counts)
    summary.wall_s = time.perf_counter() - began
    directory.finish(summary)
    return summary


def questions_of(config: Config) -> list[Question]:
    """Read the questions a run answers.

    Raises:
        DataError: The file cannot be used.
    """
    name, data = read_source(config.questions.path)
    return list(read_questions(name, data, config.questions.limit))


def setup_of(config: Config, ledger: Ledger, applications: Mapping[str, str], prompts: Prompts) -> Setup:
    """Put together what the actors need to know of a run."""
    models = tuple(models_of(config, applications, member) for member in range(config.ensemble.members))
    return Setup(config, ledger, models, prompts)


class Crew:
    """The actors that runs over one index go through: retrievers, which hold it, and members."""

    def __init__(self, config: Config, n_members: int, depths: Depths | None = None) -> None:
        """Start the actors.

        Args:
            config: Names the index, and how many retrievers hold it.
            n_members: Processes in which members answer.
            depths: Set where several runs share what retrievers encode and search.
        """
        actor: dict[str, Any] = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1, "max_concurrency": 1000}
        self.retrievers = [
            ray.remote(Retriever).options(num_cpus=1, **actor).remote(config, depths)
            for _ in range(config.cluster.retrievers)
        ]
        self.members = [ray.remote(Member).options(num_cpus=0, **actor).remote() for _ in range(n_members)]
        # Votes run beside the driver, so that a run directory on its local disk is complete.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor |= {"max_concurrency": VOTER_THREADS, "scheduling_strategy": here}
        self.voter = ray.remote(Voter).options(num_cpus=0, **actor).remote()

    def wait_until_ready(self) -> None:
        """Wait until every retriever holds its index, and say what for when that takes long."""
        waiting = [retriever.ready.remote() for retriever in self.retrievers]
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SAY_EVERY_S)
            ray_get(done)
            if waiting:
                free = ray.available_resources().get("CPU", 0)
                say(f"answer  waiting for {len(waiting)} retriever(s), a CPU each: the cluster has {free:g} free")

    def close(self) -> None:
        """End the actors now: the CPUs they hold are wanted by the next crew."""
        for actor in (*self.retrievers, *self.members, self.voter):
            ray.kill(actor)

    def shared(self) -> Counter[tuple[str, str]]:
        """Count what runs asked of the index and what was computed, over all retrievers."""
        total: Counter[tuple[str, str]] = Counter()
        for counts in ray_get([retriever.shared.remote() for retriever in self.retrievers]):
            for name, (n_asked, n_computed) in counts.items():
                total.update({(name, "asked"): n_asked, (name, "computed"): n_computed})
        return total


class RunWork:
    """One run on a crew: the one way a block goes through the actors."""

    def __init__(self, crew: Crew, setup: Setup) -> None:
        self.config = setup.config
        self._crew = crew
        self._setup = ray.put(setup)
        self._config = ray.put(setup.config)

    def submit(self, number: int, block: Sequence[Question]) -> tuple[Any, Any]:
        """Send a block on its way; returns the refs of its result and of its tables."""
        retrievers, members = self._crew.retrievers, self._crew.members
        retriever = retrievers[number % len(retrievers)]
        scope = self.config.ensemble.scope
        lanes = n_lanes(self.config)
        prepared = [retriever.prepare.remote(self._setup, block, 0)] if scope == "answer" else []
        answered: list[Any] = []
        settled = None
        for wave in waves_of(self.config):
            if answered:
                settled = self._crew.voter.settle.remote(self._config, block, *answered)
            for member in wave:
                if scope == "question":
                    prepared.append(retriever.prepare.remote(self._setup, block, member, settled))
                process = members[(member * lanes + number % lanes) % len(members)]
                answered.append(process.answer.remote(self._setup, member, retriever, prepared[-1], settled))
        vote = self._crew.voter.vote.options(num_returns=2)
        result, tables = vote.remote(self._config, len(prepared), *prepared, *answered)
        return result, tables

    def finish(self, run: str, tables: list[Any]) -> None:
        """Write the outputs from all blocks' tables."""
        ray_get(self._crew.voter.finish.remote(self._config, run, tables))


def answer_all(
    work: RunWork,
    questions: Sequence[Question],
    directory: RunDirectory,
    show: Callable[[AnswerSummary], None] = lambda _: None,
) -> AnswerSummary:
    """Answer a run's questions block by block and write its files.

    Raises:
        DataError: Index, ledger or the run directory cannot be used.
        KohakuRayError: Rows were lost on the way.
    """
    config, summary = work.config, AnswerSummary(directory.path)
    tables: list[Any] = []
    pending: list[Any] = []
    for number, block in enumerate(_blocks(questions, block_size(config, len(questions)))):
        result, table = work.submit(number, block)
        pending.append(result)
        tables.append(table)
        while len(pending) >= config.cluster.blocks_in_flight:
            pending = _collect(pending, summary, show)
    while pending:
        pending = _collect(pending, summary, show)
    if summary.n_questions != len(questions):
        raise KohakuRayError(f"{len(questions)} questions went in and {summary.n_questions} came out: this is a defect")
    work.finish(directory.path, tables)
    return summary


def _collect(pending: list[Any], summary: AnswerSummary, show: Callable[[AnswerSummary], None]) -> list[Any]:
    done, rest = ray.wait(pending, num_returns=1)
    for result in ray_get(done):
        summary.add(result)
    show(summary)
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
