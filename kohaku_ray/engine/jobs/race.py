"""The race of a sweep, above the sweep's job: its cells answer shard by shard, and those that are beaten stop."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.jobs import sweep
from kohaku_ray.engine.jobs.sweep import SweepSummary, finish_sweep, group_runs, run_sweep, sweep_session
from kohaku_ray.evaluation.selection import Selection
from kohaku_ray.pages.race_page import describe_race, write_race
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.estimate import missing_lines
from kohaku_ray.sweep.plan import SweepPlan
from kohaku_ray.sweep.race import SweepRace

_LOOK_S = 5.0  # looks of replies that are recorded follow in a moment: the end of the race shows what they came to


def make_sweep(plan: SweepPlan) -> tuple[SweepSummary, str, list[str], dict[str, Selection]]:
    """Make a sweep, raced if its file says so: its runs, then its tables and its page; see ``finish_sweep``.

    Raises:
        ConfigError: The cluster does not fit; nothing was started.
        DataError: Questions or the ledger cannot be used, or another job races this sweep.
    """
    if plan.loaded.sweep.race is None:
        summary = run_sweep(plan)
        return summary, *finish_sweep(plan, summary)
    race = SweepRace(plan)
    summary = race_sweep(race)
    record = collect(plan, summary.failed, summary.skipped, summary.lines(), plan.metric, race.mark_dropped)
    view = race.view({**summary.failed, **summary.skipped}, is_running=False)
    return summary, *finish_sweep(plan, summary, replace(record, race=view))


def dry_run(plan: SweepPlan) -> str:
    """Describe what a sweep will do, and what its race promises."""
    text = sweep.dry_run(plan)
    if plan.loaded.sweep.race is None:
        return text
    race = SweepRace(plan)
    return "\n".join([text, "", race.rule_text, *race.notes])


def race_sweep(race: SweepRace) -> SweepSummary:
    """Let the cells answer shard by shard until most have left the race, then finish the runs of the others.

    After each shard the page is written. Replies are in the ledger, so that a run that is finished at last asks only
    what no shard has asked.

    Raises:
        DataError: Another job races this sweep.
    """
    plan = race.plan
    summary = SweepSummary(len(plan.runs), asked_note=", those of the race's shards again by whole runs")

    def lost() -> dict[str, str]:
        return {**summary.failed, **summary.skipped}

    told_s = -math.inf

    def show() -> None:
        nonlocal told_s
        view = race.view(lost(), is_running=True)
        write_race(view, race.output)
        if time.monotonic() - told_s >= _LOOK_S:
            told_s = time.monotonic()
            for line in describe_race(view):
                print_progress(f"sweep   {line}")

    for line in (*missing_lines(plan), race.rule_text, *race.notes):
        print_progress(f"sweep   {line}")
    with race.hold_lease():
        if race.advance(lost(), show) is not None or race.runs_to_finish:
            with sweep_session(plan, summary) as session:
                session.build_indexes(session.affordable)
                if len(group_runs(session.affordable)) == 1:  # else models take turns: the cluster may not hold all
                    first = next(iter(session.affordable.values()))
                    session.cluster.start_replicas(first.used_deployments, shared=True)
                with Progress("race", 0, "questions × cells", done=race.count_answers(lost())[0]) as progress:
                    while (shard := race.advance(lost(), show)) is not None:
                        n_answered, n_all = race.count_answers(lost())
                        progress.expect(n_all)
                        report = partial(_show_answers, progress, n_answered, len(shard.question_ids))
                        session.make_runs(shard.configs, shard.question_ids, report)
                summary.n_made = 0
                session.make_runs({run: config for run, config in race.runs_to_finish.items() if run not in lost()})
    summary.wall_s = time.perf_counter() - summary.began
    return summary


def _show_answers(progress: Progress, n_before: int, n_questions: int, n_runs: float, note: str) -> None:
    """Show how far a race is whose runs answer a shard: so many of them have."""
    progress.show(n_before + n_runs * n_questions, note)
