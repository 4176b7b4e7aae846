"""The sweep job: distinct runs over shared indexes, replicas, searches and replies; then tables and a page.

Runs that share an index share one actor pool, several at once; what they have in common is encoded, searched and called
once. A finished run is never repeated, and a failed run stops no other.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field

import ray

from kohaku_ray.answering.local_index import united_depths
from kohaku_ray.answering.spending import Spending
from kohaku_ray.checks.demand import answer_demand, n_retrievers
from kohaku_ray.checks.deployments import check_windows, target_of
from kohaku_ray.checks.servers import find_faults, join_faults, may_go_on
from kohaku_ray.collection.indexes import index_settings, open_index, parsing_of
from kohaku_ray.collection.sources import check_places, questions_of
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.pool import (
    ActorPool,
    member_processes,
    n_ledger_shards,
    n_voters,
    runs_in_flight,
)
from kohaku_ray.engine.cluster import most_resources, print_progress
from kohaku_ray.engine.jobs.answer import context_of, make_run
from kohaku_ray.engine.jobs.index import index_lease, run_index
from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError, DataError, KohakuRayError, message_of
from kohaku_ray.evaluation.selection import Selection
from kohaku_ray.index.pending import can_reuse, reuse_vectors
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.models.target import Target
from kohaku_ray.pages.sweep_page import write_sweep
from kohaku_ray.pages.sweep_tables import describe_sweep
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.records import Question, pluralize
from kohaku_ray.runs.identity import identity_of, is_finished
from kohaku_ray.settings import check_kept
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.segments import SegmentStore
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.compare import SweepRecord
from kohaku_ray.sweep.estimate import describe_plan, missing_lines
from kohaku_ray.sweep.paid import SweepPaid
from kohaku_ray.sweep.plan import SweepPlan, index_exists
from kohaku_ray.sweep.statistics import compute_sweep_stats


@dataclass(slots=True)
class SweepSummary:
    """What one start of a sweep did."""

    n_runs: int  # distinct ones
    n_made: int = 0  # runs that this start made
    n_ended: int = 0  # runs that this start made or failed to make
    n_errors: int = 0  # answers of all finished runs that carry an error; set by ``finish_sweep``
    failed: dict[str, str] = field(default_factory=dict)  # why a run is not finished, by run id
    skipped: dict[str, str] = field(default_factory=dict)  # why a run was not tried, by run id
    n_calls: Counter[str] = field(default_factory=Counter)  # model calls that this start's runs asked for, by source
    shared: Counter[tuple[str, str]] = field(default_factory=Counter)  # see ``Retriever.counts``
    n_indexes: int = 0  # built
    asked_note: str = ""  # which calls are asked for more than once
    began: float = field(default_factory=time.perf_counter)
    wall_s: float = 0.0

    def add(self, run_id: str, outcome: AnswerSummary | Exception) -> None:
        """Record the outcome of a run."""
        self.n_ended += 1
        if isinstance(outcome, Exception):
            self.failed[run_id] = message_of(outcome)
            return
        self.n_made += 1
        self.n_calls.update(outcome.n_calls)
        if outcome.n_unanswered:
            left = f"{pluralize(outcome.n_unanswered, 'model call')} got no reply"
            self.failed[run_id] = f"{left}: {outcome.stopped or 'repeat the sweep'}"

    def figures(self) -> dict[str, float]:
        """Return counts and seconds by name."""
        counts = {"n_runs": self.n_runs, "n_made": self.n_made, "n_failed": len(self.failed), "n_errors": self.n_errors}
        calls = {f"calls.{source}": n for source, n in self.n_calls.items()}
        return {name: float(figure) for name, figure in {**counts, **calls, "seconds": self.wall_s}.items()}

    def lines(self) -> list[str]:
        """Format runs, calls, searches and seconds, one line each."""
        asked = self.n_calls.total()
        how = f"{self.n_made} of them made by this start, {len(self.failed)} failed; {self.wall_s:.1f} s"
        lines = [f"{pluralize(self.n_runs, 'planned run')}, {how}"]
        if asked:
            made = self.n_calls["made"]
            share = f"{made:,} made ({made / asked:.0%}) of {asked:,} asked for{self.asked_note}"
            lines.append(f"model calls of this start: {share}")
        for name in dict.fromkeys(name for name, _ in self.shared):
            n_asked, n_computed = (self.shared[name, kind] for kind in ("asked", "computed"))
            lines.append(f"{name}: {n_asked:,} asked, {n_computed:,} computed")
        return lines


def run_sweep(plan: SweepPlan) -> SweepSummary:
    """Make every run of a sweep that is not finished.

    Raises:
        ConfigError: The cluster does not fit; nothing was started.
        DataError: Questions or the ledger cannot be used.
    """
    summary = SweepSummary(len(plan.runs))
    for line in missing_lines(plan):
        print_progress(f"sweep   {line}")
    if plan.unfinished:
        with sweep_session(plan, summary) as session:
            session.make_runs(session.affordable)
    summary.wall_s = time.perf_counter() - summary.began
    return summary


@contextmanager
def sweep_session(plan: SweepPlan, summary: SweepSummary) -> Iterator[SweepSession]:
    """Check what the unfinished runs need, at least one, and keep cluster and actors up while the block makes them.

    Raises:
        ConfigError: The cluster does not fit; nothing was started.
        DataError: Questions or the ledger cannot be used.
    """
    waiting = plan.unfinished
    first = next(iter(waiting.values()))
    check_places(first)
    check_kept({"output": plan.output, "indexes": os.path.abspath(plan.loaded.sweep.indexes)})
    _check_servers(waiting)
    n_at_once = max(_n_at_once(plan, config) for config in waiting.values())
    with Session(first.cluster, first.ledger) as session:
        affordable = _leave_out_unaffordable(session, plan, waiting, summary)
        with closing(_Actors(n_at_once, list(affordable.values()))) as actors:
            yield SweepSession(plan, summary, session, affordable, actors, SweepPaid(plan))


@dataclass(frozen=True, slots=True)
class SweepSession:
    """The runs of a sweep on one cluster.

    Attributes:
        cluster: Is connected to.
        affordable: Unfinished runs that the cluster can make, by id.
        actors: The actor pool of the runs under way.
        paid: What the runs have paid, over all starts.
    """

    plan: SweepPlan
    summary: SweepSummary
    cluster: Session
    affordable: Mapping[str, Config]
    actors: _Actors
    paid: SweepPaid

    def make_runs(
        self,
        configs: Mapping[str, Config],
        question_ids: Sequence[str] | None = None,
        report: Callable[[float, str], object] | None = None,
    ) -> None:
        """Make runs and the indexes that they need; the summary has why one could not be made.

        Args:
            configs: The runs, by id.
            question_ids: What all of them answer. Default: all questions that each has.
            report: Takes the number of runs that are made, and a note. Default: it is shown.
        """
        summary = self.summary
        self.build_indexes(configs)
        summary.n_ended = 0
        with ExitStack() as shown:
            report = report or shown.enter_context(Progress("sweep", len(configs), "runs")).show
            for parts in group_runs({run: config for run, config in configs.items() if run not in summary.failed}):
                group = {run_id: config for part in parts for run_id, config in part.items()}
                first = next(iter(group.values()))
                if why := first.budget.over(self.paid.total()):
                    summary.failed |= dict.fromkeys(group, f"not made: {why}")
                    continue
                deployments = first.used_deployments
                if question_ids is None:
                    print_progress(f"sweep   {pluralize(len(group), 'run')} on {', '.join(deployments)}")
                self.actors.close_unless_for(list(parts[0].values()))  # replicas may need their room
                with _note_failure(group, summary), Session(first.cluster) as session:
                    session.start_replicas(deployments)
                    n_shards = max(map(n_ledger_shards, group.values()))
                    ledger = session.open_ledger(first.ledger, n_shards, deployments.values())
                    prices = {target.name: deployments[name].paid_price for name, target in _targets(first).items()}
                    spending = Spending(first.budget, ledger, prices, self.paid.total())
                    with spending.watch():
                        for part in parts:
                            with _note_failure(part, summary):
                                self._make_together(part, ledger, spending, question_ids, report)

    def build_indexes(self, configs: Mapping[str, Config]) -> None:
        """Build the missing indexes, those with full-length vectors first: the others reuse their vectors."""
        plan, summary = self.plan, self.summary
        needed = {config.index.path for config in configs.values()}
        missing = [path for path in plan.indexes if path in needed and not index_exists(path)]
        for path in sorted(missing, key=lambda path: plan.indexes[path].index.encoder.dim is not None):
            config = plan.indexes[path]
            print_progress(f"sweep   index {summary.n_indexes + 1}/{len(missing)}")
            try:
                # A later build would remove the files of an earlier one, which runs read by then.
                with index_lease(path).hold(wait_s=math.inf):
                    if index_exists(path):  # another sweep has built it meanwhile
                        continue
                    _reuse_vectors(config, [other for other in plan.indexes.values() if index_exists(other.index.path)])
                    run_index(config, is_leased=True)
                    summary.n_indexes += 1
            except Exception as error:  # a model's code may raise anything
                if not index_exists(path):  # another sweep, on another machine, may have built it meanwhile
                    reason = f"its index cannot be built: {message_of(error)}"
                    summary.failed |= {run: reason for run, of_run in configs.items() if of_run.index.path == path}

    def _make_together(
        self,
        runs: Mapping[str, Config],
        ledger: Ledger,
        spending: Spending,
        question_ids: Sequence[str] | None,
        report: Callable[[float, str], object],
    ) -> None:
        """Make runs on one index, several at once, in threads, which only wait."""
        summary, configs = self.summary, list(runs.values())
        shares: dict[str, float] = {}  # done of each run under way
        stop, lock = threading.Event(), threading.Lock()

        def show() -> None:
            state = ", ".join(filter(None, [f"{len(summary.failed)} failed", ledger.describe_batches()]))
            report(summary.n_ended + sum(shares.values()), f"{state}{spending.describe()}")

        def make(run_id: str, config: Config) -> AnswerSummary:
            """Make one run as ``run_answer`` does, unless another sweep has made it meanwhile."""
            began = time.perf_counter()
            if spending.stopped:
                raise KohakuRayError(f"not made: {spending.stopped}")
            if is_finished(config.run):
                return AnswerSummary(config.run)
            RunDirectory(config.run).check_writable()
            context = context_of(config, ledger, _targets(config), config.declaration.prompts(config.prompts))
            index = open_index(config)
            questions = _choose_questions(config, question_ids)

            def show_run(_: AnswerSummary, n_answered: int, __: str) -> None:
                if stop.is_set():
                    raise KohakuRayError("the sweep was interrupted")
                with lock:
                    shares[run_id] = n_answered / (len(questions) + 1)  # the last part is its files
                    show()

            given = pool, context, ledger, questions, identity_of(config, index), parsing_of(index)
            return make_run(*given, show_run, began, spending)

        with ThreadPoolExecutor(_n_at_once(self.plan, configs[0])) as threads:
            try:
                pool = self.actors.pool_for(configs)
                pool.wait_until_ready()
                before = pool.counts()
                made = {threads.submit(make, run_id, config): run_id for run_id, config in runs.items()}
                for future in as_completed(made):
                    error = future.exception()
                    outcome = error if isinstance(error, Exception) else future.result()
                    with lock:
                        shares.pop(made[future], None)
                        summary.add(made[future], outcome)
                        if not isinstance(outcome, Exception):
                            self.paid.add(runs[made[future]].run, outcome.paid)
                        show()
                summary.shared.update(pool.counts() - before)
            except BaseException:
                stop.set()
                threads.shutdown(wait=False, cancel_futures=True)
                # A thread waits for its block, which may take a model an hour; replies stay in the ledger.
                self.actors.close()
                raise


def _choose_questions(config: Config, question_ids: Sequence[str] | None) -> Sequence[Question]:
    """Read those of a run's questions that have these ids, in their order; None: all of them."""
    questions = questions_of(config)
    if question_ids is None:
        return questions
    by_id = {question.question_id: question for question in questions}
    return [by_id[question_id] for question_id in question_ids]


def _check_servers(waiting: Mapping[str, Config]) -> None:
    """Warn of servers that are not there; an error if every run needs one of them that has no reply in the ledger."""
    servers = {
        target: (name, config.used_deployments[name])
        for config in waiting.values()
        for name, target in _targets(config).items()
    }
    names = list(servers)
    faults = {names[position]: fault for position, fault in find_faults(servers.values()).items()}
    for config in waiting.values():
        check_windows(config)
    if not faults:
        return
    needs = [faults.keys() & set(_targets(config).values()) for config in waiting.values()]
    if not may_go_on(next(iter(waiting.values())), *([servers[target][1] for target in asked] for asked in needs)):
        raise join_faults(faults.values())
    for fault in faults.values():
        print_progress(f"sweep   warning: {fault}")


def _leave_out_unaffordable(
    session: Session, plan: SweepPlan, waiting: Mapping[str, Config], summary: SweepSummary
) -> dict[str, Config]:
    """Leave out the runs that ask for more than the cluster has; an error if none is left and none is finished."""
    left: dict[str, Config] = {}
    for run_id, config in waiting.items():
        try:
            session.check(answer_demand(config))
            left[run_id] = config
        except ConfigError as error:
            summary.skipped[run_id] = str(error)
    if not left and not plan.finished:
        raise ConfigError(next(iter(summary.skipped.values())))
    return left


def finish_sweep(
    plan: SweepPlan, summary: SweepSummary, sweep: SweepRecord | None = None
) -> tuple[str, list[str], dict[str, Selection]]:
    """Build the tables from all finished runs, and write them and the page.

    ``sweep``: The results. Default: they are collected.

    Returns:
        The results as text, the written files, the page first, and what each table's best cell can tell, by table.
    """
    if sweep is None:
        sweep = collect(plan, summary.failed, summary.skipped, summary.lines(), plan.metric)
    summary.n_errors = sum(run.n_errors for run in sweep.runs)
    try:
        os.makedirs(plan.output, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"output is {plan.output} and cannot be made ({error.strerror}): choose another with -o"
        ) from None
    stats = compute_sweep_stats(sweep)
    selected = {table.table.name: table.selection for table in stats if table.selection is not None}
    return describe_sweep(sweep, stats), write_sweep(sweep, plan.output, stats), selected


def _reuse_vectors(config: Config, others: Sequence[Config]) -> None:
    """Reuse the vectors of another index."""
    target = index_settings(config).encoder
    for other in others:
        source = index_settings(other).encoder
        same_texts = (other.documents, other.index.context_header) == (config.documents, config.index.context_header)
        if same_texts and can_reuse(source, target):
            reuse_vectors(other.index.path, source, config.index.path, target, other.index)
            return


@contextmanager
def _note_failure(runs: Mapping[str, Config], summary: SweepSummary) -> Iterator[None]:
    """Note an error of these runs' models or index, which stops no others."""
    try:
        yield
    except Exception as error:
        for run_id, config in runs.items():
            if run_id not in summary.failed and not is_finished(config.run):
                summary.failed[run_id] = message_of(error)


def group_runs(runs: Mapping[str, Config]) -> list[list[dict[str, Config]]]:
    """Group runs by models and ledger, and each group by index: replicas start once per group, actors more seldom."""
    together = _group_by(runs, lambda config: (tuple(_targets(config).values()), config.ledger.path))
    return [_group_by(of_models, lambda config: config.index.path) for of_models in together]


def _group_by(runs: Mapping[str, Config], key: Callable[[Config], Hashable]) -> list[dict[str, Config]]:
    groups: dict[Hashable, dict[str, Config]] = {}
    for run_id, config in runs.items():
        groups.setdefault(key(config), {})[run_id] = config
    return list(groups.values())


def _targets(config: Config) -> dict[str, Target]:
    return {name: target_of(name, deployment) for name, deployment in config.used_deployments.items()}


class _Actors:
    """The actor pool of the runs under way; it stays up for those that follow if they need the same."""

    def __init__(self, n_at_once: int, runs: Sequence[Config]) -> None:
        self._n_at_once, self._runs = n_at_once, runs
        self._pool: ActorPool | None = None
        self._needed: object = None

    def pool_for(self, runs: Sequence[Config]) -> ActorPool:
        """Return the pool for runs on one index, and start it if it is another one."""
        self.close_unless_for(runs)
        if self._pool is None:
            same = [config for config in self._runs if config.index.path == runs[0].index.path]
            self._pool, self._needed = ActorPool(runs[0], self._n_workers(runs), united_depths(same)), self._needs(runs)
        return self._pool

    def close_unless_for(self, runs: Sequence[Config]) -> None:
        """End the pool if these runs need another one."""
        with suppress(KohakuRayError):  # of an index that cannot be read: said when it is wanted
            if self._needed == self._needs(runs):
                return
        self.close()

    def close(self) -> None:
        """End the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = self._needed = None

    def _needs(self, runs: Sequence[Config]) -> object:
        config = runs[0]
        retriever, n_shards = config.cluster.retriever, open_index(config).n_shards
        n = n_retrievers(config, n_shards, most_resources(config.cluster))
        # Replicas of several GPUs may need the very nodes where retrievers have one.
        beside = tuple(_targets(config).items()) if retriever.gpus else None
        return config.index, retriever, n, beside, n_voters(config), self._n_workers(runs)

    def _n_workers(self, runs: Sequence[Config]) -> int:
        # Any process serves members of any run: more processes than runs in flight, or than cores, would be idle.
        n_cpus = ray.cluster_resources().get("CPU", 1)
        return max(min(self._n_at_once, int(n_cpus)), *(member_processes(config, n_cpus) for config in runs))


def _n_at_once(plan: SweepPlan, config: Config) -> int:
    """Return how many runs like this one are made at once."""
    return plan.loaded.sweep.concurrency or runs_in_flight(config, len(questions_of(config)))


def dry_run(plan: SweepPlan) -> str:
    """Describe what a sweep will do; see ``describe_plan``."""
    return describe_plan(plan, lambda path: SegmentStore(path).index(lambda _: True).keys())
