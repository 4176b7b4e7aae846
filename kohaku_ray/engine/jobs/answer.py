"""The answer job: it answers the questions of a run on a Ray cluster and writes its files.

Ray schedules the tasks of a block: its vote takes the refs of its members' answers and starts when these are there. A
member's task starts at once and waits in its actor for the block's evidence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from pydantic import TypeAdapter
from ray.exceptions import RayError

from kohaku_ray.answering.executor import block_size
from kohaku_ray.answering.spending import Spending
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.checks.demand import answer_demand, cluster_address
from kohaku_ray.checks.run import check_models, check_run
from kohaku_ray.checks.servers import check_servers
from kohaku_ray.collection.indexes import open_index, parsing_of
from kohaku_ray.config import Config
from kohaku_ray.config.roles import models_of
from kohaku_ray.engine.actors.pool import (
    SAY_EVERY_S,
    ActorPool,
    RunWork,
    blocks_in_flight,
    contexts_cached,
    n_ledger_shards,
    n_voters,
)
from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.engine.metrics import count_call
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.store import MANIFEST
from kohaku_ray.models.prompts import Prompts
from kohaku_ray.models.summary import AnswerSummary, describe_sources
from kohaku_ray.models.target import Target
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.records import Question, pluralize
from kohaku_ray.runs.facts import run_record
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.parts import FOLDER, RunParts
from kohaku_ray.store.storage import join_path
from kohaku_ray.version import code_version

LOOK_S = 5.0
"""Least time between two looks how many replicas are up: one takes minutes to start."""


def run_answer(
    config: Config,
    *,
    retry_errors: bool = False,
    strict: bool = False,
    pool: ActorPool | None = None,
) -> AnswerSummary:
    """Answer every question of the configured file, vote, and write the run directory.

    To resume an interrupted run, call this again: recorded model calls are read from the ledger.

    Args:
        config: The run.
        retry_errors: Repeat the model calls whose recorded replies could not be used.
        strict: Refuse an index that was made from other documents than the configured ones, instead of a warning.
        pool: Running actors on the same index; they keep running. Default: the job starts its own.

    Raises:
        ConfigError: The configuration or the cluster does not fit; nothing was started.
        DataError: Questions, index, ledger or the run directory cannot be used.
        IndexMismatchError: ``strict``, and the index was made from other documents.
    """
    began, config = time.perf_counter(), resolve_paths(config)
    check_models(config, "answer", print_progress, asks_servers=pool is None)
    checked = check_run(config, "answer", print_progress, strict=strict)
    config, questions, deployments = checked.config, checked.questions, checked.config.used_deployments
    again = checked.directory.rows_in_error() if retry_errors else frozenset()
    asked = f"{pluralize(len(questions), 'question')} × {pluralize(config.ensemble.members, 'member')}"
    print_progress(f"answer  {asked}" if pool is not None else f"answer  {asked}: {_waiting_for(config)}")
    with Session(config.cluster, config.ledger) as session:
        session.check(
            answer_demand(config, checked.index.n_shards),
            read={"index.path": join_path(config.index.path, MANIFEST)},
            # With one voter, which is beside this driver, parts and outputs are written here alone.
            written={"ledger.path": config.ledger.path} | ({"run": config.run} if n_voters(config) > 1 else {}),
        )
        pool = pool or session.start_early_pool(config)
        ledger = session.open_ledger(config.ledger, n_ledger_shards(config), deployments.values())
        pool, targets = session.start_pool_and_replicas(config, pool)
        up = pluralize(_n_up(targets.values()), "replica")
        print_progress(f"answer  {up} up after {time.perf_counter() - began:.0f} s: asking")
        context = context_of(config, ledger, targets, checked.prompts, again)
        prices = {target.name: deployments[name].paid_price for name, target in targets.items()}
        spending = Spending(config.budget, ledger, prices, checked.directory.paid(checked.identity))
        with Progress("answer", len(questions), "questions") as progress, spending.watch():

            def show(summary: AnswerSummary, n_answered: int, state: str) -> None:
                n_calls, made = sum(summary.n_calls.values()), summary.n_calls["made"]
                detail = state or f"{pluralize(n_calls, 'call')} ({describe_sources(summary.n_calls)})"
                paid = spending.describe()
                progress.show(n_answered, f"{pluralize(n_calls, 'call')}, {made} made{paid}", f"{detail}{paid}")

            given = pool, context, ledger, questions, checked.identity, parsing_of(checked.index)
            return make_run(*given, show, began, spending, is_alone=True)


def make_run(
    pool: ActorPool,
    context: RunContext,
    ledger: Ledger,
    questions: Sequence[Question],
    identity: str,
    parsing: str,
    show: Callable[[AnswerSummary, int, str], None],
    began: float,
    spending: Spending,
    *,
    is_alone: bool = False,
) -> AnswerSummary:
    """Make a run on running actors and replicas, from the first mark in its directory to the last.

    For ``identity`` and ``parsing`` see ``RunDirectory.finish``. ``show`` is called after each block with the number of
    questions answered so far, and while a block takes long, with the state of the run's calls if it ``is_alone`` on its
    replicas: then what their router counts is its own, too. The run ``began`` at a time of ``time.perf_counter``.

    Raises:
        DataError: Index, ledger or the run directory cannot be used, or another job writes it.
    """
    config, directory = context.config, RunDirectory(context.config.run)
    targets = context.targets if is_alone else {}
    with directory.own() as check_there:
        paid = directory.paid(identity)
        directory.begin(run_record(config), identity, paid)
        before = {name: ledger.count_placements(target) for name, target in targets.items()}
        progress = ledger.progress() if is_alone else None
        parts = RunParts(directory.path, f"{identity} {code_version()}")
        work, found = RunWork(pool, context, parts), find_parts(parts, is_renewed=bool(context.again))

        def check() -> None:
            check_there()
            pool.check_restarts()

        def report_block(summary: AnswerSummary) -> None:
            check()
            show(summary, summary.n_questions, "")

        def report_stall(summary: AnswerSummary) -> None:
            check()
            if served := _applications(context.targets.values()):
                from kohaku_ray.engine.serving.applications import check_applications

                check_applications(served)
            n_answered = max(work.n_answered(), summary.n_questions)
            state = "" if progress is None else _describe_state(ledger, tuple(targets.values()), progress)
            show(summary, min(n_answered, len(questions) - 1), state)

        engines = [name for name, model in config.answering_deployments.items() if isinstance(model, VllmConfig)]
        sizes = ledger.cache_tokens([context.targets[name] for name in engines])
        cache_tokens = dict(zip(engines, sizes, strict=True))
        scaled = [
            name for name in engines if config.deployments[name].most_replicas > config.deployments[name].n_engines
        ]
        count_up = _counting_replicas({name: context.targets[name] for name in scaled})
        watch = RunWatch(report_block, report_stall, lambda: spending.stopped, cache_tokens, count_up)
        summary = answer_all(work, questions, found, watch)
        if not summary.n_unanswered:
            summary.stopped = ""  # nothing was left to ask
        summary.add_paid(paid)
        for name, target in targets.items():
            counts = zip(ledger.count_placements(target), before[name], strict=True)
            summary.n_placed[name], summary.n_moved[name] = (now - then for now, then in counts)
        ledger.flush()
        summary.wall_s = time.perf_counter() - began
        directory.finish(run_record(config), summary, identity, parsing)
        parts.clear()
        return summary


def find_parts(parts: RunParts, *, is_renewed: bool = False) -> dict[str, AnswerSummary]:
    """Find the parts that a lost start of a run left, by name, where every call had a reply; others' are removed.

    ``is_renewed``: replies are asked again, so that none of them counts.
    """
    folder = join_path(parts.path, FOLDER)
    if n_others := parts.remove_others():
        print_progress(f"answer  {pluralize(n_others, 'part')} of another run removed from {folder}")
    if is_renewed:
        parts.clear()
    counts, torn = parts.find()
    for error in torn:
        print_progress(f"answer  warning: {error}")
    read = TypeAdapter(AnswerSummary).validate_python
    found = {name: summary for name, each in counts.items() if not (summary := read(each)).n_unanswered}
    if found:
        n_questions = sum(summary.n_questions for summary in found.values())
        print_progress(f"answer  {pluralize(n_questions, 'question')} found that an earlier start answered: {folder}")
    return found


@contextmanager
def kept_warm(config: Config) -> Iterator[ActorPool]:
    """Keep a run's cluster, actors and model replicas up while the block runs; ``run_answer`` takes the actors."""
    index = open_index(config)
    for fault in check_servers(config, config.used_deployments):
        print_progress(f"answer  warning: {fault}")
    print_progress(f"answer  {_waiting_for(config)}")
    with Session(config.cluster, config.ledger) as session:
        session.check(answer_demand(config, index.n_shards))
        yield session.start_pool_and_replicas(config, shared=True)[0]  # ``run_answer`` uses and leaves the replicas


def _waiting_for(config: Config) -> str:
    address = cluster_address(config.cluster)
    cluster = "a local Ray cluster" if address is None else f"the Ray cluster {address}"
    return f"waiting for {cluster}, then for {answer_demand(config).reason}"


def context_of(
    config: Config,
    ledger: Ledger,
    targets: Mapping[str, Target],
    prompts: Prompts,
    again: frozenset[tuple[str, int]] = frozenset(),
) -> RunContext:
    """Build the context that actors get of a run."""
    models = tuple(models_of(config, targets, member) for member in range(config.ensemble.members))
    return RunContext(config, ledger, models, prompts, dict(targets), again, observe=count_call, fatal=(RayError,))


@dataclass(frozen=True, slots=True)
class RunWatch:
    """What is told and asked while a run's blocks are answered.

    Attributes:
        report_block: Is called after each block.
        report_stall: Is called whenever no block was done for ``SAY_EVERY_S``.
        why_stopped: Says why the ledger makes no more calls; empty: it does.
        cache_tokens: What the KV cache of a replica holds, by deployment.
        count_up: Counts the replicas that are up, of deployments that Serve scales.
    """

    report_block: Callable[[AnswerSummary], None]
    report_stall: Callable[[AnswerSummary], None]
    why_stopped: Callable[[], str]
    cache_tokens: Mapping[str, int | None]
    count_up: Callable[[], Mapping[str, int]]


def answer_all(
    work: RunWork, questions: Sequence[Question], found: Mapping[str, AnswerSummary], watch: RunWatch
) -> AnswerSummary:
    """Answer a run's questions block by block and write its files.

    Args:
        work: The run on its actors.
        questions: Those of the run.
        found: Counts of the parts that are there, by name: their questions are not answered again.
        watch: What is told and asked meanwhile.

    Raises:
        DataError: Index, ledger or the run directory cannot be used.
        KohakuRayError: Rows were lost on the way.
    """
    config, summary = work.config, AnswerSummary(work.parts.path)
    names: list[str] = []
    pending: list[Any] = []
    n_failed = 0  # answers in a row that got no reply

    def collect() -> None:
        nonlocal pending, n_failed
        done = list[Any]()
        while not done:
            done, pending = ray.wait(pending, num_returns=1, timeout=SAY_EVERY_S)
            if not done:
                watch.report_stall(summary)
        if not summary.stopped and (why := watch.why_stopped()):
            summary.stopped = why
            print_progress(f"answer  stopped asking: {why}")
        for result in ray_get(done):
            if result.stopped and not summary.stopped:
                print_progress(f"answer  stopped asking: {result.stopped}")
                work.stop_asking(f"not asked: {result.stopped}")
            summary.add(result)
            failed = result.n_unanswered > 0 and result.n_member_errors == result.n_answers
            n_failed = n_failed + result.n_answers if failed else 0
            if config.fail_after is not None and n_failed >= config.fail_after and not summary.stopped:
                in_a_row = f"{pluralize(n_failed, 'answer')} in a row"
                why = next(iter(result.errors), "no reason given")
                summary.stopped = (
                    f"{in_a_row} got no reply (fail_after is {config.fail_after}), the last because: {why}"
                )
                print_progress(f"answer  stopped asking: {summary.stopped}")
                work.stop_asking(f"not asked: {in_a_row} had got no reply")
        watch.report_block(summary)

    def n_contexts() -> float:
        return contexts_cached(config, watch.cache_tokens, summary, watch.count_up()) / work.n_runs

    size = block_size(config, len(questions))
    with work.under_way():
        for number, first in enumerate(range(0, len(questions), size)):
            block = questions[first : first + size]
            names.append(work.parts.name([question.question_id for question in block]))
            if names[-1] in found:
                summary.add(found[names[-1]])
                continue
            pending.append(work.submit(number, block))
            while len(pending) >= blocks_in_flight(config, size, n_contexts()):
                collect()
        while pending:
            collect()
    if summary.n_questions != len(questions):
        raise KohakuRayError(f"{len(questions)} questions went in and {summary.n_questions} came out: this is a bug")
    work.finish(names)
    return summary


def _counting_replicas(targets: Mapping[str, Target]) -> Callable[[], Mapping[str, int]]:
    """Return what counts the replicas that are up, by deployment; it asks Serve every ``LOOK_S`` at most."""
    looked_s, n_up = -LOOK_S, dict[str, int]()

    def count() -> Mapping[str, int]:
        nonlocal looked_s
        if targets and time.monotonic() - looked_s > LOOK_S:
            from kohaku_ray.engine.serving.applications import replicas_up

            looked_s = time.monotonic()
            with suppress(RayError):  # ``check_applications`` says that Serve is gone
                n_up.update({name: max(replicas_up([target.name]), 1) for name, target in targets.items()})
        return n_up

    return count


def _applications(targets: Iterable[Target]) -> set[str]:
    """Return the names of those targets that Serve runs."""
    return {target.name for target in targets if target.route == "serve"}


def _n_up(targets: Collection[Target]) -> int:
    """Count the replicas that are up; a baseline in the ledger's shards and what gathers batches always are."""
    n_here = len(set(targets)) - len(served := _applications(targets))
    if not served:
        return n_here
    from kohaku_ray.engine.serving.applications import replicas_up

    return n_here + replicas_up(served)


def _describe_state(ledger: Ledger, targets: Sequence[Target], before: tuple[int, int, int, int]) -> str:
    """Describe what the run's calls do; tokens where the server counts them."""
    in_flight, *totals = ledger.progress()
    made, n_read, n_written = (now - then for now, then in zip(totals, before[1:], strict=True))
    facts = [
        f"{pluralize(_n_up(targets), 'replica')} up",
        f"{pluralize(in_flight, 'model call')} in flight",
        ledger.describe_batches(),
        f"{made:,} answered",
        f"{pluralize(n_read, 'prompt token')} read" if n_read else "",
        f"{pluralize(n_written, 'token')} generated" if n_written else "",
    ]
    return ", ".join(filter(None, facts))
