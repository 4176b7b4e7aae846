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
from functools import partial

import ray

from kohaku_ray.answering.local_index import united_depths
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.pool import (
    ActorPool,
    member_processes,
    n_ledger_shards,
    n_voters,
    plan_on_cluster,
    runs_in_flight,
)
from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.errors import message_of
from kohaku_ray.engine.jobs.answer import context_of, make_run
from kohaku_ray.engine.jobs.index import index_lease, run_index
from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError, DataError, KohakuRayError
from kohaku_ray.evaluation.selection import Selection
from kohaku_ray.index.pending import can_reuse, reuse_vectors
from kohaku_ray.pages.race_page import describe_race, write_race
from kohaku_ray.pages.sweep_page import write_sweep
from kohaku_ray.pages.sweep_tables import compute_sweep_stats, describe_sweep
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.run.checks.demand import answer_demand
from kohaku_ray.run.checks.deployments import application_name
from kohaku_ray.run.checks.servers import find_faults, may_go_on
from kohaku_ray.run.collection.indexes import index_settings, open_index, parsing_of
from kohaku_ray.run.collection.sources import check_places, questions_of
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.record.identity import identity_of, is_finished
from kohaku_ray.run.record.spending import Spending
from kohaku_ray.run.record.summary import AnswerSummary, pluralize
from kohaku_ray.run.segments import SegmentStore
from kohaku_ray.settings import check_kept
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.estimate import describe_plan, missing_lines
from kohaku_ray.sweep.paid import SweepPaid
from kohaku_ray.sweep.plan import SweepPlan, is_there
from kohaku_ray.sweep.race import SweepRace


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
    race: SweepRace | None = None  # how the cells were raced; None: they were not
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
            again = ", those of the race's shards again by whole runs" if self.race is not None else ""
            share = f"{made:,} made ({made / asked:.0%}) of {asked:,} asked for{again}"
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
    began = time.perf_counter()
    summary = SweepSummary(len(plan.runs))
    for line in missing_lines(plan):
        print_progress(f"sweep   {line}")
    if plan.loaded.sweep.race is not None:
        race_sweep(plan, summary)
    elif waiting := plan.unfinished:
        first = next(iter(waiting.values()))
        check_places(first)
        check_kept({"output": plan.output, "indexes": os.path.abspath(plan.loaded.sweep.indexes)})
        _check_servers(waiting)
        with Session(first.cluster, first.ledger) as session:
            waiting = _affordable(session, plan, waiting, summary)
            _build_indexes(plan, waiting, summary)
            left = {run_id: config for run_id, config in waiting.items() if run_id not in summary.failed}
            with closing(_Actors(_most_at_once(plan, left), list(left.values()), SweepPaid(plan))) as actors:
                _make_runs(plan, waiting, summary, actors)
    summary.wall_s = time.perf_counter() - began
    return summary


def _check_servers(waiting: Mapping[str, Config]) -> None:
    """Warn of servers that are not there; an error if every run needs one of them that has no reply in the ledger."""
    servers = {
        app: (name, config.used_deployments[name])
        for config in waiting.values()
        for name, app in _applications(config).items()
    }
    names = list(servers)
    faults = {names[position]: fault for position, fault in find_faults(servers.values()).items()}
    if not faults:
        return
    needs = [faults.keys() & set(_applications(config).values()) for config in waiting.values()]
    if not may_go_on(next(iter(waiting.values())), *([servers[app][1] for app in apps] for apps in needs)):
        raise ConfigError("; ".join(faults.values()))
    for fault in faults.values():
        print_progress(f"sweep   warning: {fault}")


def race_sweep(plan: SweepPlan, summary: SweepSummary) -> None:
    """Let the cells answer shard by shard until most have left the race, then finish the runs of the others.

    After each shard the page is written and the log is read. Replies are in the ledger, so that a run that is finished
    at last asks only what no shard has asked.

    Raises:
        DataError: Another job races this sweep.
    """
    race = summary.race = SweepRace(plan)

    def lost() -> dict[str, str]:
        return {**summary.failed, **summary.skipped}

    def show() -> None:
        view = race.view(lost(), is_running=True)
        write_race(view, race.output)
        for line in describe_race(view):
            print_progress(f"sweep   {line}")

    for line in (race.rule_text, *race.notes):
        print_progress(f"sweep   {line}")
    with race.held():
        race.begin()
        if race.advance((), show) is None and not race.whole:
            return
        first = next(iter(plan.unfinished.values()))
        check_places(first)
        check_kept({"output": plan.output, "indexes": os.path.abspath(plan.loaded.sweep.indexes)})
        _check_servers(plan.unfinished)
        most = _most_at_once(race.plan, plan.unfinished)
        given = most, [*plan.runs.values()], SweepPaid(race.plan)
        with Session(first.cluster, first.ledger) as session, closing(_Actors(*given)) as actors:
            _build_indexes(race.plan, _affordable(session, race.plan, plan.unfinished, summary), summary)
            groups = _grouped(plan.unfinished, lambda config: tuple(_applications(config).values()))
            if len(groups) == 1:  # else models take turns, as the cluster may not hold all of them
                session.start_replicas(first.used_deployments, shared=True)
            with Progress("race", 0, "questions × cells", done=race.count_answers(lost())[0]) as progress:
                while (work := race.advance(lost(), show)) is not None:
                    _build_indexes(plan, work.configs, summary)
                    n_answered, n_all = race.count_answers(lost())
                    progress.expect(n_all)
                    report = partial(_show_answers, progress, n_answered, len(work.question_ids))
                    _make_runs(plan, work.configs, summary, actors, work.question_ids, report)
            rest = {run_id: config for run_id, config in race.whole.items() if run_id not in lost()}
            _build_indexes(plan, rest, summary)
            summary.n_made = summary.n_ended = 0
            _make_runs(plan, rest, summary, actors)


def _show_answers(progress: Progress, n_before: int, n_questions: int, n_runs: float, note: str) -> None:
    """Show how far a race is whose runs answer a shard: so many of them have."""
    progress.show(n_before + n_runs * n_questions, note)


def _affordable(
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


def finish_sweep(plan: SweepPlan, summary: SweepSummary) -> tuple[str, list[str], dict[str, Selection]]:
    """Build the tables from all finished runs, and write them and the page.

    Returns:
        The results as text, the written files, the page first, and what each table's best cell can tell, by table.
    """
    sweep = collect(plan, summary.failed, summary.skipped, summary.lines(), plan.metric, summary.race)
    summary.n_errors = sum(run.n_errors for run in sweep.runs)
    try:
        os.makedirs(plan.output, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"output is {plan.output} and cannot be made ({error.strerror}): choose another with -o"
        ) from None
    stats = compute_sweep_stats(sweep)
    selected = {table.table.name: table.selection for table in stats if table.selection is not None}
    raced = "" if sweep.race is None else "\n\n" + "\n".join([sweep.race.rule, *describe_race(sweep.race)])
    return describe_sweep(sweep, stats) + raced, write_sweep(sweep, plan.output, stats), selected


def _build_indexes(plan: SweepPlan, waiting: Mapping[str, Config], summary: SweepSummary) -> None:
    """Build the missing indexes, those with full-length vectors first: the others reuse their vectors."""
    needed = {config.index.path for config in waiting.values()}
    missing = [path for path in plan.indexes if path in needed and not is_there(path)]
    for path in sorted(missing, key=lambda path: plan.indexes[path].index.encoder.dim is not None):
        config = plan.indexes[path]
        print_progress(f"sweep   index {summary.n_indexes + 1}/{len(missing)}")
        try:
            # A later build would remove the files of an earlier one, which runs read by then.
            with index_lease(path).held(wait_s=math.inf):
                if is_there(path):  # another sweep has built it meanwhile
                    continue
                _reuse(config, [other for other in plan.indexes.values() if is_there(other.index.path)])
                run_index(config, is_leased=True)
                summary.n_indexes += 1
        except Exception as error:  # a model's code may raise anything
            if not is_there(path):  # another sweep, on another machine, may have built it meanwhile
                reason = f"its index cannot be built: {message_of(error)}"
                summary.failed |= {
                    run: reason for run, waiting_config in waiting.items() if waiting_config.index.path == path
                }


def _reuse(config: Config, others: Sequence[Config]) -> None:
    """Reuse the vectors of another index."""
    target = index_settings(config).encoder
    for other in others:
        source = index_settings(other).encoder
        same_texts = (other.documents, other.index.context_header) == (config.documents, config.index.context_header)
        if same_texts and can_reuse(source, target):
            reuse_vectors(other.index.path, source, config.index.path, target, other.index)
            return


def _make_runs(
    plan: SweepPlan,
    waiting: Mapping[str, Config],
    summary: SweepSummary,
    actors: _Actors,
    shard: Sequence[str] | None = None,
    report: Callable[[float, str], object] | None = None,
) -> None:
    """Make the runs grouped by models, then by ledger and index: replicas start once per group, actors more seldom.

    ``shard`` are the questions that all of them answer; None: all that they have. ``report`` takes the number of runs
    that are made, and a note; by default it is shown.
    """
    left = {run_id: config for run_id, config in waiting.items() if run_id not in summary.failed}
    summary.n_ended = 0
    with ExitStack() as shown:
        report = report or shown.enter_context(Progress("sweep", len(waiting), "runs")).show
        for group in _grouped(left, lambda config: tuple(_applications(config).values())):
            first = next(iter(group.values()))
            if why := first.budget.over(actors.paid.total()):
                summary.failed |= dict.fromkeys(group, f"not made: {why}")
                continue
            deployments = first.used_deployments
            if shard is None:
                print_progress(f"sweep   {pluralize(len(group), 'run')} on {', '.join(deployments)}")
            parts = _grouped(group, lambda config: (config.ledger.path, *_searched(config)))
            actors.close_unless_for(list(parts[0].values()))  # replicas may need their room
            with _failing_alone(group, summary), Session(first.cluster) as session:
                session.start_replicas(deployments)
                for part in parts:
                    with _failing_alone(part, summary):
                        _make_together(plan, part, summary, report, actors, shard)


@contextmanager
def _failing_alone(runs: Mapping[str, Config], summary: SweepSummary) -> Iterator[None]:
    """Note an error of these runs' models or index, which stops no others."""
    try:
        yield
    except Exception as error:
        for run_id, config in runs.items():
            if run_id not in summary.failed and not is_finished(config.run):
                summary.failed[run_id] = message_of(error)


def _grouped(runs: Mapping[str, Config], key: Callable[[Config], Hashable]) -> list[dict[str, Config]]:
    groups: dict[Hashable, dict[str, Config]] = {}
    for run_id, config in runs.items():
        groups.setdefault(key(config), {})[run_id] = config
    return list(groups.values())


def _applications(config: Config) -> dict[str, str]:
    return {name: application_name(name, deployment) for name, deployment in config.used_deployments.items()}


def _searched(config: Config) -> tuple[str, int]:
    """What of a run its retrievers are started for."""
    return config.index.path, config.index.nprobe


class _Actors:
    """The actor pool of the runs under way; it stays up for those that follow if they need the same."""

    def __init__(self, n_at_once: int, runs: Sequence[Config], paid: SweepPaid) -> None:
        self._n_at_once, self._runs, self.paid = n_at_once, runs, paid
        self._pool: ActorPool | None = None
        self._needed: object = None

    def pool_for(self, runs: Sequence[Config]) -> ActorPool:
        """Return the pool for runs on one index, and start it if it is another one."""
        self.close_unless_for(runs)
        if self._pool is None:
            same = [config for config in self._runs if _searched(config) == _searched(runs[0])]
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
        plan = plan_on_cluster(config)
        # On GPUs that replicas leave, others may need the very nodes where these retrievers are.
        beside = (plan.gpus or None) and tuple(_applications(config).items())
        return config.index, config.cluster.retriever, plan.n, beside, n_voters(config), self._n_workers(runs)

    def _n_workers(self, runs: Sequence[Config]) -> int:
        # Any process serves members of any run: more processes than runs in flight, or than cores, would be idle.
        n_cpus = ray.cluster_resources().get("CPU", 1)
        return max(min(self._n_at_once, int(n_cpus)), *(member_processes(config, n_cpus) for config in runs))


def _make_together(
    plan: SweepPlan,
    runs: Mapping[str, Config],
    summary: SweepSummary,
    report: Callable[[float, str], object],
    actors: _Actors,
    shard: Sequence[str] | None,
) -> None:
    """Make runs on one index, several at once, in threads, which only wait."""
    configs = list(runs.values())
    shares: dict[str, float] = {}  # done of each run under way
    stop, lock = threading.Event(), threading.Lock()

    def show() -> None:
        state = ", ".join(filter(None, [f"{len(summary.failed)} failed", ledger.describe_batches()]))
        report(summary.n_ended + sum(shares.values()), f"{state}{spending.shown()}")

    def make(run_id: str, config: Config) -> AnswerSummary:
        def go_on(share: float) -> None:
            if stop.is_set():
                raise KohakuRayError("the sweep was interrupted")
            with lock:
                shares[run_id] = share
                show()

        if spending.stopped:
            raise KohakuRayError(f"not made: {spending.stopped}")
        return _make_one(config, pool, ledger, go_on, spending, shard)

    with Session(configs[0].cluster) as session, ThreadPoolExecutor(_n_at_once(plan, configs[0])) as threads:
        asked = [deployment for config in configs for deployment in config.used_deployments.values()]
        ledger = session.open_ledger(configs[0].ledger, max(map(n_ledger_shards, configs)), asked)
        prices = {
            app: config.used_deployments[key].paid_price
            for config in configs
            for key, app in _applications(config).items()
        }
        spending = Spending(configs[0].budget, ledger, prices, actors.paid.total())
        try:
            pool = actors.pool_for(configs)
            pool.wait_until_ready()
            before = pool.counts()
            with spending.watched():
                made = {threads.submit(make, run_id, config): run_id for run_id, config in runs.items()}
                for future in as_completed(made):
                    error = future.exception()
                    outcome = error if isinstance(error, Exception) else future.result()
                    with lock:
                        shares.pop(made[future], None)
                        summary.add(made[future], outcome)
                        if not isinstance(outcome, Exception):
                            actors.paid.add(runs[made[future]].run, outcome.paid)
                        show()
            summary.shared.update(pool.counts() - before)
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            actors.close()  # a thread waits for its block, which may take a model an hour; replies stay in the ledger
            raise


def _most_at_once(plan: SweepPlan, runs: Mapping[str, Config]) -> int:
    return max((_n_at_once(plan, config) for config in runs.values()), default=1)


def _n_at_once(plan: SweepPlan, config: Config) -> int:
    """Return how many runs like this one are made at once."""
    return plan.loaded.sweep.concurrency or runs_in_flight(config, len(questions_of(config)))


def _make_one(
    config: Config,
    pool: ActorPool,
    ledger: Ledger,
    go_on: Callable[[float], None],
    spending: Spending,
    shard: Sequence[str] | None,
) -> AnswerSummary:
    """Make one run as ``run_answer`` does, on a running pool, unless another sweep has made it meanwhile.

    Of a ``shard`` it answers these questions alone; its directory is named after them.
    """
    began = time.perf_counter()
    if is_finished(config.run):
        return AnswerSummary(config.run)
    RunDirectory(config.run).check_writable()
    context = context_of(config, ledger, _applications(config), config.declaration.prompts(config.prompts))
    index = open_index(config)
    identity = identity_of(config, index)
    questions = questions_of(config)
    if shard is not None:
        by_id = {question.question_id: question for question in questions}
        questions = [by_id[question_id] for question_id in shard]

    def show(_: AnswerSummary, n_answered: int, __: str) -> None:
        go_on(n_answered / (len(questions) + 1))  # the last part is its files

    return make_run(pool, context, ledger, questions, identity, parsing_of(index), show, began, spending)


def dry_run(plan: SweepPlan) -> str:
    """Describe what a sweep will do; see ``describe_plan``."""
    text = describe_plan(plan, lambda path: SegmentStore(path).index(lambda _: True).keys())
    if plan.loaded.sweep.race is None:
        return text
    race = SweepRace(plan)
    return "\n".join([text, "", race.rule_text, *race.notes])
