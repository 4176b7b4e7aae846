"""Race the cells of a sweep, without Ray: the order of the questions, which cells go on, and what is said of them.

All of it follows from the shards of answers in the sweep's directory. A job that was killed does the same again, asks
nothing twice, and goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np

from kohaku_ray.collection.sources import questions_of
from kohaku_ray.config import Config
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.race import Left, Race, Racer, shard_size
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.index.arrays import F64, I64, Mask
from kohaku_ray.records import digest, pluralize
from kohaku_ray.runs.identity import is_finished, summary_of
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.lease import LeaseFile
from kohaku_ray.store.storage import Directory
from kohaku_ray.sweep.compare import CellView, RaceView, SweepCell, SweepTable
from kohaku_ray.sweep.paid import SHARDS
from kohaku_ray.sweep.plan import PlannedCell, PlannedTable, SweepPlan, truth_of_sweep

PAYS_FROM = 200
"""Questions from which recorded runs have saved half of their calls."""


@dataclass(slots=True)
class TableRace:
    """The race of one table's cells."""

    title: str
    race: Race
    names: dict[str, str]  # of its cells, by their ids
    curves: dict[str, list[tuple[int, float, float, float]]] = field(default_factory=dict)
    racers: dict[str, Racer] = field(default_factory=dict)

    def observe(self, scores: Mapping[str, F64]) -> list[str]:
        """Take scores in, draw the curves on, and return the cells that leave."""
        leaving = self.race.observe(scores)
        self.racers = {racer.name: racer for racer in self.race.standings()}
        for name in scores:
            racer = self.racers[name]
            if racer.mean is not None:
                self.curves.setdefault(name, []).append((racer.n, racer.mean, *racer.bounds))
        return leaving

    def views(self, states: Mapping[str, str] | None = None) -> tuple[CellView, ...]:
        """Show every cell: those in the race first, then the last to leave; the better of two first."""
        views = []
        for racer in self.racers.values() or self.race.standings():
            state = racer.left and f"dropped, {racer.left}"
            whole = "whole" if racer.n == self.race.n_questions else "kept" if racer.is_kept else "in the race"
            state = state or (states or {}).get(racer.name, whole)
            views.append(CellView(self.names[racer.name], racer, state, tuple(self.curves.get(racer.name, ()))))
        return tuple(sorted(views, key=lambda view: (bool(view.racer.left), -view.racer.n, -(view.racer.mean or 0.0))))


@dataclass(frozen=True, slots=True)
class ShardWork:
    """Runs that have to answer some questions, each in a directory of its own."""

    question_ids: tuple[str, ...]
    configs: Mapping[str, Config]  # by run id


class SweepRace:
    """The race of a sweep, table by table, over one order of the questions that most of its cells have."""

    def __init__(self, plan: SweepPlan) -> None:
        assert plan.loaded.sweep.race is not None
        self.plan, self.rule, self.output = plan, plan.loaded.sweep.race, plan.output
        self._metric = find_metric(plan.metric)
        self.tables: dict[str, TableRace] = {}
        self.studies: dict[str, TableRace] = {}
        self.notes: list[str] = []
        self._runs: dict[str, dict[int, str]] = {}  # of raced cells, by seed
        self._seen: dict[str, list[Mapping[str, float]]] = {}  # parts of scores by run, in the order of the race
        self._asked: Counter[str] = Counter()  # model calls by run
        self._drops: list[str] = []  # a line per cell and table, in order
        self._n_observed = self._n_shown = 0  # shards that were observed, and those that were shown
        self._began, self._seconds, self._n_answered = 0.0, 0.0, 0
        candidates = self._candidates(plan)
        kinds = Counter(_question_settings(config) for config in candidates.values())
        self._usual = kinds.most_common(1)[0][0] if kinds else None
        config = next(
            (run_config for run_config in plan.runs.values() if _question_settings(run_config) == self._usual), None
        )
        truth = truth_of_sweep(config, self._metric).rows if config else {}
        asked = [question.question_id for question in questions_of(config)] if config else []
        scored = [key for key in asked if key in truth]
        order = np.random.default_rng(self.rule.seed).permutation(len(scored))
        self.order, self._truth = [scored[question] for question in order], truth
        self.size = min(self.rule.shard or shard_size(len(scored)), max(len(scored), 1))
        self._unanswerable = [self._metric.unanswerable(truth[key]) for key in self.order]
        fit = {
            cell: config
            for cell, config in candidates.items()
            if _question_settings(config) == self._usual and config.ensemble.vote.weights != "agreement"
        }
        if len(fit) < len(candidates):
            left = len(candidates) - len(fit)
            self.notes.append(
                f"{pluralize(left, 'cell')} outside the race, of other questions or votes by agreement: answered whole."
            )
        raced = [[cell for cell in planned.cells if cell.cell_id in fit] for planned in plan.tables]
        n_pools = sum(planned.table.pool is not None for planned in plan.tables)
        self._n_tables = n_pools + sum(len(cells) > 1 for cells in raced)
        low, high = (self._shares([self._metric.parts_at_end(end)] * len(self.order)) for end in (0.0, 1.0))
        for planned, cells in zip(plan.tables, raced, strict=True):
            if len(cells) < 2:
                continue
            race = Race(low, high, self.rule.error / self._n_tables, self.rule.tolerance)
            table_race = TableRace(planned.table.title or planned.table.name, race, {})
            self.tables[planned.table.name] = table_race
            for cell in cells:
                is_whole = all(is_finished(plan.runs[run].run) for run in cell.runs.values())
                table_race.names[cell.cell_id] = label_cell(cell)
                table_race.race.enter(cell.cell_id, is_kept=is_whole)
                self._runs[cell.cell_id] = dict(cell.runs)

    def hold_lease(self) -> AbstractContextManager[object]:
        """Keep other jobs from racing the same sweep while the block runs."""
        os.makedirs(self.output, exist_ok=True)
        return LeaseFile(Directory(self.output), "sweep", "wait for it to end, or give -o for another directory").hold()

    def _candidates(self, plan: SweepPlan) -> dict[str, Config]:
        """Return the configurations of the cells that can be raced, by their ids."""
        pools = {table.table.pool.table for table in plan.tables if table.table.pool is not None}
        return {
            cell.cell_id: planned.configs[cell.cell_id]
            for planned in plan.tables
            for cell in planned.cells
            if planned.table.pool is None and planned.table.name not in pools and not cell.reason
        }

    @property
    def names(self) -> dict[str, str]:
        """Names of all raced cells, by their ids."""
        return {cell: name for table_race in self.tables.values() for cell, name in table_race.names.items()}

    def dropped(self, cell_id: str, table: str) -> str:
        """Say why a cell of a table has left, and when; empty: it has not."""
        table_race = self.tables.get(table)
        why = table_race.race.left.get(cell_id, "") if table_race else ""
        if not table_race or not why:
            return ""
        return _left_text(why, table_race.race.n_seen(cell_id), len(self.order))

    @property
    def runs_to_finish(self) -> dict[str, Config]:
        """Runs to finish: those of the cells that have not left every race they were in, and all that are not raced."""
        given_up = self._dropped_runs
        return {run: config for run, config in self.plan.unfinished.items() if run not in given_up}

    @property
    def _dropped_runs(self) -> set[str]:
        playing = {cell for table_race in self.tables.values() for cell in table_race.race.in_play}
        left = {run for cell, runs in self._runs.items() if cell not in playing for run in runs.values()}
        return left - {run for cell in playing for run in self._runs[cell].values()}

    def count_answers(self, lost: Collection[str]) -> tuple[int, int]:
        """Count the questions that all runs have answered, and how many these are if no more cells leave."""
        over = {*self._dropped_runs, *lost}
        seen = {run: len(self._seen.get(run, ())) for runs in self._runs.values() for run in runs.values()}
        return sum(seen.values()), sum(n if run in over else len(self.order) for run, n in seen.items())

    def advance(self, lost: Collection[str], show: Callable[[], None]) -> ShardWork | None:
        """Observe what lies on disk, shard by shard, and return what must be answered next; None: the race is over.

        Args:
            lost: Runs that failed or cannot be made in this start.
            show: Called where shards were observed, before the next one is answered and at the end of a race of which
                this start had something answered.
        """
        if self._began:
            self._seconds, self._began = self._seconds + time.monotonic() - self._began, 0.0
        work = None
        while work is None and self._n_observed * self.size < len(self.order) and (wanted := self._runs_to_ask(lost)):
            ids = tuple(self.order[self._n_observed * self.size : (self._n_observed + 1) * self.size])
            if todo := [run for run in wanted if run not in lost and not self._read_shard(run, ids)]:
                work = ShardWork(ids, {run: self._shard_config(run, ids) for run in todo})
            else:
                self._observe()
        if self._n_observed > self._n_shown and (work or self._n_answered):
            self._n_shown = self._n_observed
            show()
        if work:
            self._began, self._n_answered = time.monotonic(), self._n_answered + len(work.configs) * len(ids)
        return work

    def _runs_to_ask(self, lost: Collection[str]) -> dict[str, None]:
        """Runs of the cells in the races that are not decided, in order."""
        racing = {
            cell
            for table_race in self.tables.values()
            if len(self._racing_cells(table_race, lost)) > 1
            for cell in table_race.race.in_play
        }
        return dict.fromkeys(run for cell in self._runs if cell in racing for run in self._runs[cell].values())

    def _racing_cells(self, table_race: TableRace, lost: Collection[str]) -> list[str]:
        return [cell for cell in table_race.race.in_play if not set(self._runs[cell].values()) & set(lost)]

    def _shard_config(self, run: str, ids: Sequence[str]) -> Config:
        config = self.plan.runs[run]
        return config.model_copy(update={"run": os.path.join(self.output, SHARDS, run, digest(list(ids)))})

    def _read_shard(self, run: str, ids: Sequence[str]) -> bool:
        """Read a run's answers to the next shard, if they are there; a finished run has answered all."""
        seen = self._seen.setdefault(run, [])
        if len(seen) >= self._n_observed * self.size + len(ids):
            return True
        whole = self.plan.runs[run].run
        directory, asked = (whole, self.order) if is_finished(whole) else (self._shard_config(run, ids).run, ids)
        if directory != whole and not is_finished(directory):
            return False
        if directory != whole and RunDirectory(directory).damage():
            Directory(directory).remove("run.json")  # answered again, from the ledger
            return False
        given = read_submission(RunDirectory(directory).checked_file("submission.csv")).rows
        rows = [self._metric.score_question(self._truth[key], given.get(key)).parts for key in asked]
        self._seen[run] = rows if directory == whole else [*seen, *rows]
        if directory != whole:
            self._asked[run] += sum(summary_of(directory).n_calls.values())
        return True

    def _shares(self, rows: Sequence[Mapping[str, float]]) -> F64:
        n = len(self.order)
        parts = {part: np.full(n, np.nan) for part in self._metric.parts}
        for part, values in parts.items():
            values[: len(rows)] = [row[part] for row in rows]
        return self._metric.shares(parts, self._unanswerable)[: len(rows)]

    def _observe(self) -> None:
        self._n_observed += 1
        end = min(self._n_observed * self.size, len(self.order))
        for table_race in self.tables.values():
            scores = {}
            for cell in table_race.race.in_play:
                runs = [self._shares(self._seen.get(run, [])[:end]) for run in self._runs[cell].values()]
                n = min(map(len, runs))
                if n > table_race.race.n_seen(cell):
                    scores[cell] = np.mean([run[:n] for run in runs], axis=0)[table_race.race.n_seen(cell) :]
            for cell in table_race.observe(scores):
                after, why = pluralize(end, "question"), table_race.race.left[cell]
                self._drops.append(f"{table_race.names[cell]} dropped after {after} ({why})")

    def mark_dropped(self, planned: PlannedTable, table: SweepTable) -> SweepTable:
        """Show of the cells that have left a table's race what was seen of them; those of a study are raced first."""
        if planned.table.pool is not None:
            return self._race_study(planned, table)
        return replace(table, cells=tuple(self._dropped_cell(cell, table.name) or cell for cell in table.cells))

    def _dropped_cell(self, cell: SweepCell, table: str) -> SweepCell | None:
        """Return what was seen of a cell that has left its table's race; None: it has not, or nothing was."""
        reason = self.dropped(cell.cell_id, table)
        n = self.tables[table].race.n_seen(cell.cell_id) if reason else 0
        if not n:
            return None
        runs = self._runs[cell.cell_id]
        seen = [self._seen[run][:n] for run in runs.values()]
        parts = {part: np.array([[row[part] for row in rows] for rows in seen]) for part in self._metric.parts}
        dropped = SweepCell(cell.cell_id, cell.labels, "dropped", reason, tuple(runs), tuple(self.order[:n]))
        return replace(dropped, parts=parts, total=self._metric.shares(parts, self._unanswerable[:n]))

    def _race_study(self, planned: PlannedTable, table: SweepTable) -> SweepTable:
        """Race the cells of a study, whose scores are all known: those that leave keep what they had answered by then.

        All cells have the same questions.
        """
        scored = {cell.cell_id: cell for cell in table.cells if cell.is_scored}
        if len(scored) < 2:
            return table
        rows = truth_of_sweep(planned.configs[next(iter(scored))], self._metric).rows
        n = len(rows)
        order, size = np.random.default_rng(self.rule.seed).permutation(n), self.rule.shard or shard_size(n)
        flags = np.array([self._metric.unanswerable(row) for row in rows.values()])[order]
        ends = [
            {part: np.full(n, value) for part, value in self._metric.parts_at_end(end).items()} for end in (0.0, 1.0)
        ]
        low, high = (self._metric.shares(parts, flags) for parts in ends)
        table_race = TableRace(table.title, Race(low, high, self.rule.error / self._n_tables, self.rule.tolerance), {})
        for name, cell in scored.items():
            table_race.race.enter(name)
            table_race.names[name] = label_cell(cell)
        for first in range(0, n, size):
            if len(table_race.race.in_play) > 1:
                questions = order[first : first + size]
                table_race.observe({name: scored[name].by_question[questions] for name in table_race.race.in_play})
        self.studies[table.name] = table_race
        return replace(table, cells=tuple(self._cut_study_cell(table_race, cell, order, flags) for cell in table.cells))

    def _cut_study_cell(self, table_race: TableRace, cell: SweepCell, order: I64, unanswerable: Mask) -> SweepCell:
        why = table_race.race.left.get(cell.cell_id)
        if not why:
            return cell
        questions = order[: table_race.race.n_seen(cell.cell_id)]
        parts = {part: values[:, questions] for part, values in cell.parts.items()}
        return replace(
            cell,
            state="dropped",
            reason=_left_text(why, len(questions), len(order)),
            question_ids=tuple(cell.question_ids[i] for i in questions),
            parts=parts,
            total=self._metric.shares(parts, unanswerable[: len(questions)]),
        )

    @property
    def rule_text(self) -> str:
        """Say what the race promises, and what races of recorded runs have saved with as many questions."""
        n, error = (
            len(self.order) or max((table_race.race.n_questions for table_race in self.studies.values()), default=0),
            self.rule.error,
        )
        looks = f"A look every {self.rule.shard or shard_size(n)} of {n:,} questions" if n else "A race"
        if not error:
            return f"{looks}; a cell leaves only if no remaining question could bring it back."
        share = np.interp(np.log(max(n, 1)), np.log([41, 282, 1000]), [0.81, 0.43, 0.24])
        pays = "" if n >= PAYS_FROM else f"; a race pays from about {PAYS_FROM} questions on"
        outlook = f" 37 recorded runs of WattBot asked {share:.0%} of their calls with so many questions{pays}."
        rule = f"{looks}; a cell leaves when it is beaten by more than {self.rule.tolerance:g}."
        promise = f"The best cell of every table stays with a probability of at least {1 - error:.0%}"
        return f"{rule} {promise}, whenever the race is stopped.{outlook if n else ''}"

    def view(self, lost: Mapping[str, str], *, is_running: bool) -> RaceView:
        """Show the race as it stands."""
        runs = {run for of_cell in self._runs.values() for run in of_cell.values()}
        states = {
            cell: f"failed: {lost[run]}" for cell in self._runs for run in self._runs[cell].values() if run in lost
        }
        n, given_up, left, saved, asked, unit = len(self.order), self._dropped_runs, 0, 0.0, 0, "model calls"
        for run in runs:
            path, n_seen, n_asked = self.plan.runs[run].run, len(self._seen.get(run, ())), self._asked[run]
            if is_finished(path):
                n_asked = sum(summary_of(path).n_calls.values())
            elif run in given_up:
                saved += n_asked / max(n_seen, 1) * (n - n_seen)
            elif run not in lost:
                left += n - n_seen
            asked += n_asked
        if not runs:  # a study makes no calls: its cells' scores of questions are counted
            racers = [racer for table_race in self.studies.values() for racer in table_race.race.standings()]
            n = max((table_race.race.n_questions for table_race in self.studies.values()), default=0)
            asked, unit = sum(racer.n for racer in racers), "scores of questions"
            saved = (
                sum(table_race.race.n_questions * len(table_race.names) for table_race in self.studies.values()) - asked
            )
        every = [*self.tables.items(), *self.studies.items()]
        titles = [table_race.title for _, table_race in every]
        rate = self._seconds / self._n_answered if self._n_answered else None
        return RaceView(
            title=self.plan.loaded.sweep.title or os.path.basename(self.output),
            rule=self.rule_text,
            n_questions=n,
            n_seen=min(self._n_observed * self.size, n) if runs else n,
            tables={
                name if titles.count(table_race.title) > 1 else table_race.title: table_race.views(states)
                for name, table_race in every
            },
            drops=tuple(reversed(self._drops)),
            notes=tuple(self.notes),
            n_asked=asked,
            n_saved=round(saved),
            unit=unit,
            seconds_left=rate * left if rate is not None and is_running else None,
            is_running=is_running,
        )


def _left_text(why: Left, n_seen: int, n_questions: int) -> str:
    return f"{why}: it left the race after {n_seen:,} of {n_questions:,} questions"


def label_cell(cell: PlannedCell | SweepCell) -> str:
    """Name a cell by its labels."""
    return ", ".join(f"{axis.rpartition('.')[2]}={label}" for axis, label in cell.labels.items())


def _question_settings(config: Config) -> str:
    return digest(config.questions.model_dump(mode="json"))
