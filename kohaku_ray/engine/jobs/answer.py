"""The answer job: it answers the questions of a run on a Ray cluster and writes its files.

Ray starts each task when its argument refs are ready, and nothing else schedules them: a block's vote takes the refs of
its members' answers, a member the ref of the block's evidence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError

from kohaku_ray.answering.executor import block_size
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.pool import (
    SAY_EVERY_S,
    ActorPool,
    RunWork,
    blocks_in_flight,
    contexts_cached,
    n_ledger_shards,
)
from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.engine.metrics import count_call
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import IndexMismatchError, KohakuRayError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import read_gold, scored_rows
from kohaku_ray.index.store import MANIFEST
from kohaku_ray.models.prompts import Prompts
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.records import Question
from kohaku_ray.run.checks.demand import answer_demand, cluster_address
from kohaku_ray.run.checks.deployments import check_deployment, check_vision
from kohaku_ray.run.checks.servers import check_servers
from kohaku_ray.run.collection.documents import describe_rejected_gold, rejected_gold
from kohaku_ray.run.collection.indexes import difference, open_index, parser_note, parsing_of
from kohaku_ray.run.collection.sources import check_places, questions_of, read_metadata, resolve
from kohaku_ray.run.models import BY_BATCH, IN_SHARDS, models_of
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.record.identity import identity_of
from kohaku_ray.run.record.spending import Spending
from kohaku_ray.run.record.summary import AnswerSummary, describe_sources, pluralize
from kohaku_ray.run.record.tracking import check_tracking
from kohaku_ray.run.segments import SegmentStore
from kohaku_ray.settings import resolve_paths
from kohaku_ray.storage import join_path

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
    check_places(config)
    check_tracking(config)
    questions = questions_of(config)
    deployments = config.used_deployments
    for key, deployment in deployments.items():
        check_deployment(key, deployment)
    check_vision(config)
    read_metadata(config.documents.metadata)
    prompts = config.declaration.prompts(config.prompts)
    index = open_index(config)
    cited: list[str] = []
    with suppress(KohakuRayError):  # without usable gold answers nothing is scored
        truth = read_gold(resolve(config.questions.path), [find_metric(name) for name in config.metrics])[0]
        cited = [ref for row in scored_rows(truth, (), config.questions.limit).rows.values() for ref in row.ref_ids]
    if rejected := rejected_gold(config, index, cited):
        print_progress(f"answer  warning: {describe_rejected_gold(rejected)}")
    for fault in check_servers(config, deployments) if pool is None else ():
        print_progress(f"answer  warning: {fault}")
    directory = RunDirectory(config.run)
    directory.check_writable()
    SegmentStore(config.ledger.path).check_writable()
    again = directory.rows_in_error() if retry_errors else frozenset()
    identity, warning = identity_of(config, index), difference(index, config)
    if warning and strict:
        raise IndexMismatchError(warning)
    if warning:
        print_progress(f"answer  warning: {warning}")
    elif note := parser_note(index, config):
        print_progress(f"answer  {note}")
    asked = f"{pluralize(len(questions), 'question')} × {pluralize(config.ensemble.members, 'member')}"
    print_progress(f"answer  {asked}" if pool is not None else f"answer  {asked}: {_waiting_for(config)}")
    with Session(config.cluster, config.ledger) as session:
        session.check(
            answer_demand(config, index.n_shards, index),
            read={"index.path": join_path(config.index.path, MANIFEST)},
            written={"ledger.path": config.ledger.path},
        )
        pool = pool or session.start_early_pool(config)
        ledger = session.open_ledger(config.ledger, n_ledger_shards(config), deployments.values())
        pool, applications = session.start_pool_and_replicas(config, pool)
        up = pluralize(_n_up(applications.values()), "replica")
        print_progress(f"answer  {up} up after {time.perf_counter() - began:.0f} s: asking")
        context = context_of(config, ledger, applications, prompts, again)
        prices = {application: deployments[name].paid_price for name, application in applications.items()}
        spending = Spending(config.budget, ledger, prices, directory.paid(identity))
        with Progress("answer", len(questions), "questions") as progress, spending.watched():

            def show(summary: AnswerSummary, n_answered: int, state: str) -> None:
                n_calls, made = sum(summary.n_calls.values()), summary.n_calls["made"]
                detail = state or f"{pluralize(n_calls, 'call')} ({describe_sources(summary.n_calls)})"
                paid = spending.shown()
                progress.show(n_answered, f"{pluralize(n_calls, 'call')}, {made} made{paid}", f"{detail}{paid}")

            given = pool, context, ledger, questions, identity, parsing_of(index)
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
    applications = context.applications if is_alone else {}
    with directory.owned():
        paid = directory.paid(identity)
        directory.begin(config, identity, paid)
        before = {name: ledger.count_placements(application) for name, application in applications.items()}
        progress = ledger.progress() if is_alone else None
        work = RunWork(pool, context)

        def report_block(summary: AnswerSummary) -> None:
            show(summary, summary.n_questions, "")

        def report_stall(summary: AnswerSummary) -> None:
            if served := _served(context.applications.values()):
                from kohaku_ray.engine.serving.applications import check_there

                check_there(served)
            n_answered = max(work.n_answered(), summary.n_questions)
            state = "" if progress is None else _describe_state(ledger, tuple(applications.values()), progress)
            show(summary, min(n_answered, len(questions) - 1), state)

        engines = [name for name, model in config.answering_deployments.items() if isinstance(model, VllmConfig)]
        sizes = ledger.cache_tokens([context.applications[name] for name in engines])
        cache_tokens = dict(zip(engines, sizes, strict=True))
        scaled = [
            name for name in engines if config.deployments[name].most_replicas > config.deployments[name].n_engines
        ]
        summary = answer_all(
            work,
            questions,
            directory,
            report_block,
            report_stall,
            lambda: spending.stopped,
            cache_tokens,
            _counting_replicas({name: context.applications[name] for name in scaled}),
        )
        if not summary.n_unanswered:
            summary.stopped = ""  # nothing was left to ask
        used = {"tokens": ("prompt_tokens", "completion_tokens"), "dollars": ("dollars",)}
        summary.paid = {
            name: paid.get(name, 0) + sum(summary.spent.get(part, 0) for part in parts) for name, parts in used.items()
        }
        for name, application in applications.items():
            counts = zip(ledger.count_placements(application), before[name], strict=True)
            summary.n_placed[name], summary.n_moved[name] = (now - then for now, then in counts)
        ledger.flush()
        summary.wall_s = time.perf_counter() - began
        directory.finish(config, summary, identity, parsing)
        return summary


@contextmanager
def kept_warm(config: Config) -> Iterator[ActorPool]:
    """Keep a run's cluster, actors and model replicas up while the block runs; ``run_answer`` takes the actors."""
    index = open_index(config)
    for fault in check_servers(config, config.used_deployments):
        print_progress(f"answer  warning: {fault}")
    print_progress(f"answer  {_waiting_for(config)}")
    with Session(config.cluster, config.ledger) as session:
        session.check(answer_demand(config, index.n_shards, index))
        yield session.start_pool_and_replicas(config, shared=True)[0]  # ``run_answer`` uses and leaves the replicas


def _waiting_for(config: Config) -> str:
    address = cluster_address(config.cluster)
    cluster = "a local Ray cluster" if address is None else f"the Ray cluster {address}"
    return f"waiting for {cluster}, then for {answer_demand(config).reason}"


def context_of(
    config: Config,
    ledger: Ledger,
    applications: Mapping[str, str],
    prompts: Prompts,
    again: frozenset[tuple[str, int]] = frozenset(),
) -> RunContext:
    """Build the context that actors get of a run."""
    models = tuple(models_of(config, applications, member) for member in range(config.ensemble.members))
    return RunContext(config, ledger, models, prompts, dict(applications), again, observe=count_call, fatal=(RayError,))


def answer_all(
    work: RunWork,
    questions: Sequence[Question],
    directory: RunDirectory,
    show: Callable[[AnswerSummary], None],
    report_stall: Callable[[AnswerSummary], None],
    stopped: Callable[[], str] = str,
    cache_tokens: Mapping[str, int | None] | None = None,
    n_up: Callable[[], Mapping[str, int]] = dict,
) -> AnswerSummary:
    """Answer a run's questions block by block and write its files.

    Args:
        work: The run on its actors.
        questions: Those of the run.
        directory: It is written to.
        show: Is called after each block.
        report_stall: Is called whenever no block was done for ``SAY_EVERY_S``.
        stopped: Says why the ledger makes no more calls; empty: it does.
        cache_tokens: What the KV cache of a replica holds, by deployment.
        n_up: Counts the replicas that are up, of deployments that Serve scales.

    Raises:
        DataError: Index, ledger or the run directory cannot be used.
        KohakuRayError: Rows were lost on the way.
    """
    config, summary = work.config, AnswerSummary(directory.path)
    tables: list[Any] = []
    pending: list[Any] = []
    n_failed = 0  # answers in a row that got no reply

    def collect() -> None:
        nonlocal pending, n_failed
        done = list[Any]()
        while not done:
            done, pending = ray.wait(pending, num_returns=1, timeout=SAY_EVERY_S)
            if not done:
                report_stall(summary)
        if not summary.stopped and (why := stopped()):
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
        show(summary)

    def n_contexts() -> float:
        return contexts_cached(config, cache_tokens or {}, summary, n_up()) / work.n_runs

    size = block_size(config, len(questions))
    with work.under_way():
        for number, first in enumerate(range(0, len(questions), size)):
            result, table = work.submit(number, questions[first : first + size])
            pending.append(result)
            tables.append(table)
            while len(pending) >= blocks_in_flight(config, size, n_contexts()):
                collect()
        while pending:
            collect()
    if summary.n_questions != len(questions):
        raise KohakuRayError(f"{len(questions)} questions went in and {summary.n_questions} came out: this is a bug")
    work.finish(directory.path, tables)
    return summary


def _counting_replicas(applications: Mapping[str, str]) -> Callable[[], Mapping[str, int]]:
    """Return what counts the replicas that are up, by deployment; it asks Serve every ``LOOK_S`` at most."""
    looked_s, n_up = -LOOK_S, dict[str, int]()

    def count() -> Mapping[str, int]:
        nonlocal looked_s
        if applications and time.monotonic() - looked_s > LOOK_S:
            from kohaku_ray.engine.serving.applications import replicas_up

            looked_s = time.monotonic()
            with suppress(RayError):  # ``check_there`` says that Serve is gone
                n_up.update({name: max(replicas_up([of]), 1) for name, of in applications.items()})
        return n_up

    return count


def _served(applications: Iterable[str]) -> set[str]:
    return {application for application in applications if not application.startswith((IN_SHARDS, BY_BATCH))}


def _n_up(applications: Collection[str]) -> int:
    """Count the replicas that are up; a baseline in the ledger's shards and what gathers batches always are."""
    n_here = len(set(applications)) - len(served := _served(applications))
    if not served:
        return n_here
    from kohaku_ray.engine.serving.applications import replicas_up

    return n_here + replicas_up(served)


def _describe_state(ledger: Ledger, applications: Sequence[str], before: tuple[int, int, int, int]) -> str:
    """Describe what the run's calls do; tokens where the server counts them."""
    in_flight, *totals = ledger.progress()
    made, n_read, n_written = (now - then for now, then in zip(totals, before[1:], strict=True))
    facts = [
        f"{pluralize(_n_up(applications), 'replica')} up",
        f"{pluralize(in_flight, 'model call')} in flight",
        ledger.describe_batches(),
        f"{made:,} answered",
        f"{pluralize(n_read, 'prompt token')} read" if n_read else "",
        f"{pluralize(n_written, 'token')} generated" if n_written else "",
    ]
    return ", ".join(filter(None, facts))
