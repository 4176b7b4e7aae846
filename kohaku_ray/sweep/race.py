"""Steer a raced sweep, without Ray: the order of its questions, which cells go on, and the log of each decision.

All of it follows from what lies in the sweep's directory: the shards that runs have answered, and the requests of the
log. A job that was killed does the same again, asks nothing twice, and goes on where it was.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from kohaku_ray.config import Config
from kohaku_ray.errors import ConfigError, DataError, did_you_mean
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.race import Left, Race, Racer, shard_size
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.index.arrays import F64, I64, Mask
from kohaku_ray.records import digest
from kohaku_ray.run.collection.sources import questions_of
from kohaku_ray.run.lease import LeaseFile
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.record.identity import is_finished, summary_of
from kohaku_ray.run.record.summary import pluralize
from kohaku_ray.storage import Directory
from kohaku_ray.sweep.compare import CellView, RaceView, SweepCell, SweepTable
from kohaku_ray.sweep.plan import PlannedCell, SweepPlan, truth_of_sweep

LOG = "sweep.jsonl"
"""File of a raced sweep's directory: one JSON object per line, what happened and what persons asked for."""

SHARDS = "race"
"""Directory below it of what the runs answered before the race was over: one per run, in it one per shard."""

PAYS_FROM = 200
"""Questions from which recorded runs have saved half of their calls."""

Act = Literal["stop", "resume"]
LogEntry = dict[str, Any]
_ENTRY: Mapping[str, type] = {
    **dict.fromkeys(("act", "request", "cell", "name", "table", "why"), str),
    **dict.fromkeys(("cells", "in_race"), dict),
    "questions": int,
}
"""Types of what entries hold."""


class SweepLog:
    """The log of a raced sweep; any process may append to it."""

    def __init__(self, output: str) -> None:
        self.path = os.path.join(os.path.abspath(output), LOG)

    def append(self, act: str, **values: Any) -> None:
        """Append a line in one write; a line that a killed process left torn stays one of its own."""
        line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "act": act, **values})
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "ab+") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
                torn = b"" if file.read(1) in (b"", b"\n") else b"\n"
                file.write(torn + line.encode() + b"\n")
        except OSError as error:
            raise self._fault("written", error) from None

    def read(self) -> tuple[list[LogEntry], int]:
        """Return the entries, and the number of lines that are none."""
        entries, n_garbage = [], 0
        try:
            with open(self.path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise self._fault("read", error) from None
        for line in filter(None, lines):
            try:
                entry = json.loads(line)
                is_entry = isinstance(entry, dict) and all(
                    isinstance(entry[name], kind) for name, kind in _ENTRY.items() if name in entry
                )
                is_entry = is_entry and ("request" if entry.get("act") in get_args(Act) else "act") in entry
                is_entry = is_entry and all(isinstance(name, str) for name in entry.get("cells", {}).values())
            except (ValueError, RecursionError):
                is_entry = False
            if is_entry:
                entries.append(entry)
            n_garbage += not is_entry
        return entries, n_garbage

    def _fault(self, what: str, error: OSError) -> DataError:
        way_out = "see whose it is, or give -o for another directory"
        return DataError(f"{self.path}: cannot be {what} ({error.strerror}): {way_out}")


def steer_sweep(output: str, act: Act, what: str) -> str:
    """Ask the job of a sweep to stop or resume a cell; it reads the request before its next shard and after the last.

    Args:
        output: The sweep's directory, where its page is: nothing else of the sweep is needed.
        act: What to do.
        what: The cell, by labels such as ``top_k=8, rerank=none`` or by its id.

    Returns:
        The cell's name.

    Raises:
        ConfigError: No job races a sweep there, there is no such cell, or it is the last one.
    """
    log, request = SweepLog(output), uuid.uuid4().hex[:8]
    entries, _ = log.read()
    begun: dict[str, Any] = next((entry for entry in reversed(entries) if entry["act"] == "begin"), {})
    names: dict[str, str] = dict(begun.get("cells", {}))
    if not names:
        raise ConfigError(
            f"{output}: no job has begun to race a sweep there (race: on), and no other job reads requests: name the "
            "directory of its page"
        )
    cell = find_cell(names, what)
    seen: dict[str, Any] = next((entry for entry in reversed(entries) if entry["act"] == "seen"), {})
    if act == "stop" and [cell] in seen.get("in_race", {}).values():
        raise ConfigError(f"{names[cell]} is the last cell in the race: end the job instead, or resume another first")
    log.append(act, request=request, cell=cell, name=names[cell])
    return names[cell]


def find_cell(names: Mapping[str, str], text: str) -> str:
    """Find the one cell that has all these labels, or this id or the beginning of it.

    Raises:
        ConfigError: No cell has, or several have.
    """
    exact = [cell for cell, name in names.items() if text in (name, cell)]
    asked = {part.replace(" ", "") for part in text.split(",")}

    def has(name: str) -> bool:
        labels = {part.replace(" ", "") for part in name.split(",")}
        return asked <= labels | {label.partition("=")[2] for label in labels}

    matching = exact or [
        cell for cell, name in names.items() if has(name) or (len(text) >= 4 and cell.startswith(text))
    ]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise ConfigError(f"no cell is {text!r}{did_you_mean(text, names.values())}: name its labels, as on the page")
    some = "; ".join(names[cell] for cell in matching[:5])
    raise ConfigError(
        f"{len(matching)} cells are {text!r} ({some}{' …' if len(matching) > 5 else ''}): name more labels"
    )


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
            state = racer.left and (racer.left if racer.left == "stopped" else f"dropped, {racer.left}")
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
        self.log, self._metric = SweepLog(self.output), find_metric(plan.metric)
        self.tables: dict[str, TableRace] = {}
        self.studies: dict[str, TableRace] = {}
        self.notes: list[str] = []
        self._runs: dict[str, dict[int, str]] = {}  # of raced cells, by seed
        self._seen: dict[str, list[Mapping[str, float]]] = {}  # parts of scores by run, in the order of the race
        self._asked: Counter[str] = Counter()  # model calls by run
        self._applied: set[str] = set()
        self._n_observed, self._steered = 0, -1  # shards that were observed, and after which the log was read last
        self._began, self._seconds, self._n_answered = 0.0, 0.0, 0
        candidates = self._candidates(plan)
        kinds = Counter(_asked_of(config) for config in candidates.values())
        self._usual = kinds.most_common(1)[0][0] if kinds else None
        config = next((run_config for run_config in plan.runs.values() if _asked_of(run_config) == self._usual), None)
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
            if _asked_of(config) == self._usual and config.ensemble.vote.weights != "agreement"
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
                table_race.names[cell.cell_id] = name_of(cell)
                table_race.race.enter(cell.cell_id, is_kept=is_whole)
                self._runs[cell.cell_id] = dict(cell.runs)
        entries, _ = self.log.read()
        key = digest([self.order, self.size, self.rule.error, self.rule.tolerance])
        same = next((line for line, entry in enumerate(entries) if entry.get("race") == key), len(entries))
        seen = [entry.get("questions", 0) for entry in entries[same:] if entry["act"] == "seen"]
        self._front = max((n_seen for n_seen in seen if n_seen <= len(self.order)), default=0)
        self._known = {
            (entry["act"], *(entry.get(name) for name in ("cell", "table", "questions"))) for entry in entries[same:]
        }
        self._key = key

    def held(self) -> AbstractContextManager[None]:
        """Keep other jobs from racing the same sweep while the block runs."""
        os.makedirs(self.output, exist_ok=True)
        return LeaseFile(Directory(self.output), "sweep", "wait for it to end, or give -o for another directory").held()

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
    def whole(self) -> dict[str, Config]:
        """Runs to finish: those of the cells that have not left every race they were in, and all that are not raced."""
        given_up = self._given_up
        return {run: config for run, config in self.plan.unfinished.items() if run not in given_up}

    @property
    def _given_up(self) -> set[str]:
        playing = {cell for table_race in self.tables.values() for cell in table_race.race.in_play}
        left = {run for cell, runs in self._runs.items() if cell not in playing for run in runs.values()}
        return left - {run for cell in playing for run in self._runs[cell].values()}

    def count_answers(self, lost: Collection[str]) -> tuple[int, int]:
        """Count the questions that all runs have answered, and how many these are if no more cells leave."""
        over = {*self._given_up, *lost}
        seen = {run: len(self._seen.get(run, ())) for runs in self._runs.values() for run in runs.values()}
        return sum(seen.values()), sum(n if run in over else len(self.order) for run, n in seen.items())

    def advance(self, lost: Collection[str], show: Callable[[], None]) -> ShardWork | None:
        """Observe what lies on disk, shard by shard, and return what must be answered next; None: the race is over.

        Args:
            lost: Runs that failed or cannot be made in this start.
            show: Called after each shard that no earlier start has observed.
        """
        if self._began:
            self._seconds, self._began = self._seconds + time.monotonic() - self._began, 0.0
        n_shards = -(-len(self.order) // self.size)
        while True:
            if self._steered < self._n_observed:
                self._steer(lost)
                self._steered = self._n_observed
            if self._n_observed == n_shards:  # cells that were resumed by now are finished with the others
                return None
            racing = {
                cell
                for table_race in self.tables.values()
                if len(self._active(table_race, lost)) > 1
                for cell in table_race.race.in_play
            }
            wanted = dict.fromkeys(run for cell in self._runs if cell in racing for run in self._runs[cell].values())
            if not wanted:
                return None
            for shard in range(self._n_observed + 1):
                ids = tuple(self.order[shard * self.size : (shard + 1) * self.size])
                todo = [run for run in wanted if run not in lost and not self._read(run, shard, ids)]
                if todo:
                    self._began, self._n_answered = time.monotonic(), self._n_answered + len(todo) * len(ids)
                    return ShardWork(ids, {run: self._placed(run, ids) for run in todo})
            self._observe()
            if self._n_observed * self.size > self._front:
                show()

    def _active(self, table_race: TableRace, lost: Collection[str]) -> list[str]:
        return [cell for cell in table_race.race.in_play if not set(self._runs[cell].values()) & set(lost)]

    def _placed(self, run: str, ids: Sequence[str]) -> Config:
        config = self.plan.runs[run]
        return config.model_copy(update={"run": os.path.join(self.output, SHARDS, run, digest(list(ids)))})

    def _read(self, run: str, shard: int, ids: Sequence[str]) -> bool:
        """Read a run's answers to a shard, if they are there; a finished run has answered all."""
        seen = self._seen.setdefault(run, [])
        if len(seen) >= min((shard + 1) * self.size, len(self.order)):
            return True
        whole = self.plan.runs[run].run
        directory, asked = (whole, self.order) if is_finished(whole) else (self._placed(run, ids).run, ids)
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
        for name, table_race in self.tables.items():
            scores = {}
            for cell in table_race.race.in_play:
                runs = [self._shares(self._seen.get(run, [])[:end]) for run in self._runs[cell].values()]
                n = min(map(len, runs))
                if n > table_race.race.n_seen(cell):
                    scores[cell] = np.mean([run[:n] for run in runs], axis=0)[table_race.race.n_seen(cell) :]
            for cell in table_race.observe(scores):
                why, named = table_race.race.left[cell], {"name": table_race.names[cell], "table": name}
                self._note(
                    "dropped", cell=cell, questions=end, why=why, evidence=table_race.racers[cell].evidence, **named
                )
        self._note(
            "seen", questions=end, in_race={name: table_race.race.in_play for name, table_race in self.tables.items()}
        )

    def _note(self, act: str, **values: Any) -> None:
        """Log what happened, unless an earlier start has."""
        key = (act, values.get("cell"), values.get("table"), values.get("questions"))
        if key not in self._known:
            self._known.add(key)
            self.log.append(act, **values)

    def begin(self) -> None:
        """Log that a job races these cells from now on."""
        self.log.append("begin", race=self._key, n_questions=len(self.order), cells=self.names)

    def _steer(self, lost: Collection[str]) -> None:
        """Do what persons have asked for: what an earlier start has done again where it did."""
        position = min(self._n_observed * self.size, len(self.order))
        entries, n_garbage = self.log.read()
        if n_garbage:
            note = f"{pluralize(n_garbage, 'line')} of {LOG} cannot be read: passed over."
            self.notes = [*(line for line in self.notes if LOG not in line), note]
        answered = {entry.get("request"): entry for entry in entries if entry["act"] in ("done", "refused")}
        for entry in entries:
            request, earlier = entry.get("request"), answered.get(entry.get("request"))
            if entry["act"] not in get_args(Act) or request in self._applied:
                continue
            if earlier is None and position < self._front:
                continue
            if earlier is not None and (earlier["act"] == "refused" or earlier.get("questions", 0) > position):
                continue
            self._applied.add(str(request))
            why = self._apply(entry, lost)
            if earlier is None:
                self.log.append(
                    "refused" if why else "done", request=request, questions=position, **({"why": why} if why else {})
                )

    def _apply(self, entry: LogEntry, lost: Collection[str]) -> str:
        """Do what an entry asks for; returns why not."""
        races = [table_race for table_race in self.tables.values() if entry.get("cell") in table_race.names]
        if not races:
            return "no such cell is in the race"
        cell = str(entry["cell"])
        if entry["act"] == "resume":
            for table_race in races:
                table_race.race.enter(cell)
            return ""
        if any(self._active(table_race, lost) == [cell] for table_race in races):
            return "it is the last cell in the race"
        for table_race in races:
            if cell in table_race.race.in_play:
                table_race.race.stop(cell)
        return ""

    def cell(self, planned: PlannedCell, table: str) -> SweepCell | None:
        """Return what was seen of a cell that has left its table's race; None: it has not, or nothing was."""
        reason = self.dropped(planned.cell_id, table)
        n = self.tables[table].race.n_seen(planned.cell_id) if reason else 0
        if not n:
            return None
        seen = [self._seen[run][:n] for run in planned.runs.values()]
        parts = {part: np.array([[row[part] for row in rows] for rows in seen]) for part in self._metric.parts}
        cell = SweepCell(planned.cell_id, planned.labels, "dropped", reason, tuple(planned.runs), tuple(self.order[:n]))
        return replace(cell, parts=parts, total=self._metric.shares(parts, self._unanswerable[:n]))

    def study(self, table: SweepTable, unanswerable: Mapping[str, bool]) -> SweepTable:
        """Race the cells of a study, whose scores are all known: those that leave keep what they had answered by then.

        ``unanswerable`` is by question; all cells have the same ones.
        """
        scored = {cell.cell_id: cell for cell in table.cells if cell.is_scored}
        if len(scored) < 2:
            return table
        n = len(unanswerable)
        order, size = np.random.default_rng(self.rule.seed).permutation(n), self.rule.shard or shard_size(n)
        flags = np.array([*unanswerable.values()])[order]
        ends = [
            {part: np.full(n, value) for part, value in self._metric.parts_at_end(end).items()} for end in (0.0, 1.0)
        ]
        low, high = (self._metric.shares(parts, flags) for parts in ends)
        table_race = TableRace(table.title, Race(low, high, self.rule.error / self._n_tables, self.rule.tolerance), {})
        for name, cell in scored.items():
            table_race.race.enter(name)
            table_race.names[name] = name_of(cell)
        for first in range(0, n, size):
            if len(table_race.race.in_play) > 1:
                questions = order[first : first + size]
                table_race.observe({name: scored[name].by_question[questions] for name in table_race.race.in_play})
        self.studies[table.name] = table_race
        return replace(table, cells=tuple(self._seen_of(table_race, cell, order, flags) for cell in table.cells))

    def _seen_of(self, table_race: TableRace, cell: SweepCell, order: I64, unanswerable: Mask) -> SweepCell:
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
        n, given_up, left, saved, asked, unit = len(self.order), self._given_up, 0, 0.0, 0, "model calls"
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
        entries, _ = self.log.read()
        refused = {entry.get("request") for entry in entries if entry["act"] == "refused"}
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
            acts=tuple(
                _told(entry, entries)
                for entry in reversed(entries)
                if entry["act"] in _TOLD and not (entry["act"] in get_args(Act) and entry.get("request") in refused)
            ),
            notes=tuple(self.notes),
            n_asked=asked,
            n_saved=round(saved),
            unit=unit,
            seconds_left=rate * left if rate is not None and is_running else None,
            is_running=is_running,
        )


def _left_text(why: Left, n_seen: int, n_questions: int) -> str:
    by = "stopped by hand" if why == "stopped" else why
    return f"{by}: it left the race after {n_seen:,} of {n_questions:,} questions"


_TOLD = (*get_args(Act), "dropped", "refused")


def _told(entry: LogEntry, entries: Sequence[LogEntry]) -> str:
    """Tell one entry of the log in a line."""
    time_text, act = f"{entry.get('time', '')}  ", entry["act"]
    if act == "dropped":
        after = pluralize(entry.get("questions", 0), "question")
        return f"{time_text}{entry.get('name')} dropped after {after} ({entry.get('why')})"
    if act == "refused":
        asked = next((other for other in entries if other.get("request") == entry.get("request")), entry)
        return f"{time_text}refused to {asked['act']} {asked.get('name')}: {entry.get('why')}"
    done = next(
        (other for other in entries if other["act"] == "done" and other.get("request") == entry.get("request")), None
    )
    when = f" after {pluralize(done.get('questions', 0), 'question')}" if done else " (not read yet)"
    return f"{time_text}{act} {entry.get('name')}, by hand{when}"


def name_of(cell: PlannedCell | SweepCell) -> str:
    """Name a cell by its labels."""
    return ", ".join(f"{axis.rpartition('.')[2]}={label}" for axis, label in cell.labels.items())


def _asked_of(config: Config) -> str:
    return digest(config.questions.model_dump(mode="json"))
