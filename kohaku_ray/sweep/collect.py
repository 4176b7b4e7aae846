"""Read a sweep's results from its runs, without a cluster; a missing run has its reason."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC, Metric, QuestionScore, find_metric
from kohaku_ray.evaluation.references import K, gold_refs, stage_recall
from kohaku_ray.evaluation.report import clusters_of
from kohaku_ray.evaluation.submissions import Submission, read_submission
from kohaku_ray.index.arrays import F64, I64, Mask
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.store import Index
from kohaku_ray.records import BLANK, digest, pluralize
from kohaku_ray.runs.identity import is_finished, summary_of
from kohaku_ray.runs.scoring import scores_of
from kohaku_ray.runs.tracking import Exported, export, is_tracked, track
from kohaku_ray.settings import shown_path
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.tables import SHARED
from kohaku_ray.sweep.compare import (
    Axis,
    State,
    SweepAnswer,
    SweepCell,
    SweepQuestion,
    SweepRecord,
    SweepRun,
    SweepTable,
    group_scores,
)
from kohaku_ray.sweep.estimate import fixed_settings
from kohaku_ray.sweep.load import TableConfig
from kohaku_ray.sweep.paper import model_name, with_paper
from kohaku_ray.sweep.plan import PlannedCell, PlannedTable, SweepPlan, index_exists, truth_of_sweep
from kohaku_ray.sweep.study import ensembles, files_of, outlook, pool_of
from kohaku_ray.version import code_version


@dataclass(frozen=True, slots=True)
class _FinishedRun:
    """The contents of one finished run."""

    run: SweepRun  # as the page shows it
    scores: _Scores
    measures: Mapping[str, float]  # means over its answers: all that a table may show beside the score
    by_question: pl.DataFrame  # the system's measures: one row per question, with its ``question_id``
    calls: pl.Series  # hashes of the keys of all model calls it asked for


@dataclass(frozen=True, slots=True)
class _Scores:
    """A run's scores, in the truth's order: a run of many has arrays, not an object per question."""

    question_ids: tuple[str, ...]
    parts: Mapping[str, F64]  # by name; shape (n_questions,) each
    unanswerable: Mask  # shape (n_questions,)

    @classmethod
    def of(cls, scores: Sequence[QuestionScore], names: Iterable[str]) -> _Scores:
        return cls(
            tuple(score.question_id for score in scores),
            {name: np.array([score.parts[name] for score in scores], np.float64) for name in names},
            np.array([score.unanswerable for score in scores], bool),
        )

    def places(self, question_ids: Sequence[str]) -> I64 | slice:
        """Find questions, all of which it has, among its own."""
        if tuple(question_ids) == self.question_ids:
            return slice(None)
        place = {key: number for number, key in enumerate(self.question_ids)}
        return np.array([place[key] for key in question_ids], np.int64)


def collect(
    plan: SweepPlan,
    failed: Mapping[str, str],
    skipped: Mapping[str, str] | None = None,
    spending: Sequence[str] = (),
    metric: str = DEFAULT_METRIC,
    revise: Callable[[PlannedTable, SweepTable], SweepTable] = lambda _, table: table,
) -> SweepRecord:
    """Read every finished run of a sweep and build its tables.

    Args:
        plan: The sweep.
        failed: Why runs are not finished, by run id.
        skipped: Why runs were not tried, by run id.
        spending: What the last start used, one line per item.
        metric: Name of the metric of all scores.
        revise: Changes a table's cells, such as those whose runs stopped early. Default: none.

    Raises:
        ConfigError: There is no such metric.
        DataError: The questions have no gold answers, or a run's file is damaged.
    """
    known = find_metric(metric)
    reader, why = _Reader(plan, known), _Missing(failed, skipped or {})
    read = {run_id: reader.run(run_id, config) for run_id, config in plan.finished.items()}
    tables = []
    for planned in plan.tables:
        is_study = planned.table.pool is not None
        table = _make_study_table(planned, plan, reader, why) if is_study else _make_table(planned, read, why, known)
        tables.append(with_paper(plan, planned, revise(planned, table)))
    sweep = plan.loaded.sweep
    clusters = None
    if sweep.cluster:
        clusters = {
            key: name for truth in reader.truths.values() for key, name in clusters_of(truth, sweep.cluster).items()
        }
    groups, about = group_scores(sweep.by, tables, tuple(reader.truths.values()), known) if sweep.by else (None, ())
    return SweepRecord(
        name=Path(sweep.output).name,
        title=sweep.title or Path(sweep.output).name,
        tables=tuple(tables),
        questions=reader.asked(),
        runs=tuple(read_run.run for read_run in read.values()),
        metric=known,
        notes=(
            *plan.notes,
            *reader.baselines(),
            *about,
            *_notes(plan, read),
        ),
        fixed=fixed_settings(plan),
        provenance=_describe_provenance(plan),
        spending={**_count_calls(read), **dict(_split_line(line) for line in spending)},
        groups=groups,
        cluster=sweep.cluster or "",
        clusters=clusters,
    )


@dataclass(frozen=True, slots=True)
class _Missing:
    """Why runs are missing, by run id."""

    failed: Mapping[str, str]
    skipped: Mapping[str, str]  # not tried

    def reason(self, run_id: str) -> str:
        return self.failed.get(run_id) or self.skipped.get(run_id) or "not run yet"

    def of(self, cell: PlannedCell) -> tuple[State, str]:
        """Return the state of a cell without a finished run, and the reason."""
        if cell.reason:
            return "skipped", cell.reason
        states: tuple[tuple[State, Mapping[str, str]], ...] = (("failed", self.failed), ("skipped", self.skipped))
        for state, among in states:
            reasons = dict.fromkeys(among[run_id] for run_id in cell.runs.values() if run_id in among)
            if reasons:
                return state, "; ".join(reasons)
        return "unfinished", "not run yet"


class _Reader:
    """Reads runs and truths, each file once."""

    def __init__(self, plan: SweepPlan, metric: Metric) -> None:
        self.metric = metric
        self._shown = {name for table in plan.tables for name in table.table.show}
        self.truths: dict[tuple[str, int | None], Submission] = {}
        self._texts: dict[str, str] = {}
        self._shared: dict[str, str] = {}  # answers and references that several runs gave, each once
        self._nodes: dict[str, NodeTable] = {}
        for config in plan.configs:
            self.truth(config)

    def truth(self, config: Config) -> Submission:
        """Return the gold answers to a run's questions."""
        key = (config.questions.path, config.questions.limit)
        if key not in self.truths:
            self.truths[key] = truth_of_sweep(config, self.metric)
        return self.truths[key]

    def asked(self) -> tuple[SweepQuestion, ...]:
        """Return every question of every truth, in order; where a truth lacks its text, as the runs have it."""
        rows = {key: row for truth in self.truths.values() for key, row in truth.rows.items()}
        text, gold = self._texts, self.metric.gold
        return tuple(
            SweepQuestion(key, row.question or text.get(key, ""), gold(row), row.answer_unit, row.refs_raw)
            for key, row in rows.items()
        )

    def baselines(self) -> list[str]:
        """Describe what predictions that ignore the question score, once per truth."""
        say = self.metric.baseline
        return [] if say is None else [line for truth in self.truths.values() if (line := say(truth))]

    def run(self, run_id: str, config: Config) -> _FinishedRun:
        """Read a finished run."""
        directory, truth = RunDirectory(config.run), self.truth(config)
        submission = read_submission(directory.checked_file("submission.csv"))
        self._texts.update({key: row.question for key, row in submission.rows.items()})
        answers = directory.read_table("answers", columns=["question_id", "attempt", "is_blank", "measures", "error"])
        usage = pl.DataFrame(directory.read_table("usage", ["key", "prompt_tokens", "completion_tokens", "service_s"]))
        sums = usage.select(pl.sum("prompt_tokens", "completion_tokens", "service_s")).row(0, named=True)
        classify, shared = self.metric.classify, self._shared.setdefault
        answered = ((truth.rows[key], row) for key, row in submission.rows.items() if key in truth.rows)
        predictions = {
            gold.question_id: SweepAnswer(
                shared(value := row.answer_value or BLANK, value),
                shared(row.refs_raw, row.refs_raw),
                classify(gold, row) if classify else None,
            )
            for gold, row in answered
        }
        run = SweepRun(
            run_id=run_id,
            path=directory.path,
            seed=config.seed,
            facts={"model": _models(config), **config.declaration.facts(config.settings)},
            predictions=predictions,
            tokens=sums["prompt_tokens"] + sums["completion_tokens"],
            service_s=sums["service_s"],
            n_answers=len(answers),
            n_errors=len(answers) - answers["error"].null_count,
        )
        scores = _Scores.of(self.metric.score(truth, submission), self.metric.parts)
        names, of_trace = self._shown & config.declaration.derived.keys(), _NO_MEASURES
        if names and index_exists(config.index.path):
            if config.index.path not in self._nodes:
                self._nodes[config.index.path] = Index.open(config.index.path).nodes
            trace = _read_last(directory, "question_id", "member", "step", "node_id")
            of_trace = derived_measures(trace, self._nodes[config.index.path], config, sorted(names))
        by_answer, derived = own_measures(answers), _group_by_question(of_trace)
        n_answers = max(run.n_answers, 1)
        computed = {"tokens": run.tokens / n_answers, "seconds": run.service_s / n_answers}
        computed |= {name: float(np.mean(part)) for name, part in scores.parts.items() if scores.question_ids}
        if any(name.startswith(RECALL) for name in self._shown):
            computed |= recall_measures(_read_last(directory, *TRACE_COLUMNS), truth)
        measures = {
            **_mean_measures(by_answer.fill_null(0.0)),
            "attempts": float(answers["attempt"].to_numpy().mean()) + 1,
            "blanks": float(answers["is_blank"].to_numpy(zero_copy_only=False).mean()),
            **_mean_measures(derived),
            **{name: value for name, value in computed.items() if name in self._shown},
        }
        by_question = _group_by_question(by_answer).join(derived, on="question_id", how="full", coalesce=True)
        return _FinishedRun(run, scores, measures, by_question, usage["key"].hash())


def _models(config: Config) -> str:
    """Return the names of the models that answer; deployments of one name may hold different models."""
    return ", ".join(dict.fromkeys(map(model_name, config.answering_models.values())))


def _make_table(planned: PlannedTable, read: Mapping[str, _FinishedRun], why: _Missing, metric: Metric) -> SweepTable:
    table = planned.table
    cells = [_make_cell(cell, read, why, metric) for cell in planned.cells]
    axes = _axes(table)
    if table.combine != "grid":
        # Settings that are not crossed make one axis, whatever keys they have.
        name = " · ".join(axis.name for axis in axes)
        cells = [replace(cell, labels={name: " · ".join(cell.labels.values())}) for cell in cells]
        axes = (Axis(name, tuple(cell.labels[name] for cell in cells)),)
    return SweepTable(
        table.name, table.title or table.name, axes, tuple(cells), show=tuple(table.show), spread=table.spread
    )


def _axes(table: TableConfig) -> tuple[Axis, ...]:
    return tuple(Axis(name, labels) for name, labels in table.labels().items())


def _make_cell(cell: PlannedCell, read: Mapping[str, _FinishedRun], why: _Missing, metric: Metric) -> SweepCell:
    finished = {seed: read[run_id] for seed, run_id in cell.runs.items() if run_id in read}
    if not finished:
        return SweepCell(cell.cell_id, cell.labels, *why.of(cell))
    missing = [run_id for run_id in cell.runs.values() if run_id not in read]
    runs = list(finished.values())
    scores = [read_run.scores for read_run in runs]
    common = scores[0].question_ids
    for others in map(frozenset, {other.question_ids for other in scores} - {common}):
        common = tuple(key for key in common if key in others)
    places = [of_run.places(common) for of_run in scores]
    parts = {
        name: np.stack([of_run.parts[name][place] for of_run, place in zip(scores, places, strict=True)])
        for name in metric.parts
    }
    unanswerable = scores[0].unanswerable[places[0]].tolist()
    asked = pl.DataFrame({"question_id": common}, schema={"question_id": pl.String})
    measured = [asked.join(run.by_question, on="question_id", how="left", maintain_order="left") for run in runs]
    means = _group_by_question(pl.concat(measured, how="diagonal").fill_null(np.nan)).drop("question_id")
    return SweepCell(
        cell_id=cell.cell_id,
        labels=cell.labels,
        state="partial" if missing else "finished",
        reason="; ".join(dict.fromkeys(map(why.reason, missing))),
        seeds=tuple(finished),
        question_ids=common,
        run_ids=tuple(read_run.run.run_id for read_run in runs),
        measures={
            name: np.array([read_run.measures.get(name, np.nan) for read_run in runs]) for name in runs[0].measures
        },
        question_measures={name: means[name].to_numpy() for name in means.columns},
        parts=parts,
        total=metric.shares(parts, unanswerable),
    )


def _make_study_table(planned: PlannedTable, plan: SweepPlan, reader: _Reader, why: _Missing) -> SweepTable:
    """Score ensembles of recorded members: every size and rule at once, over the same subsamples."""
    table, pool_config = planned.table, planned.table.pool
    assert pool_config is not None
    cells = [SweepCell(cell.cell_id, cell.labels, *why.of(cell)) for cell in planned.cells]
    notes: tuple[str, ...] = ()
    live = [position for position, cell in enumerate(planned.cells) if not cell.reason]
    if reader.metric.marks is None:
        reason = f"metric {reader.metric.name} has no marks, so it cannot score votes over recorded members"
        cells, live = [replace(cell, state="skipped", reason=reason) for cell in cells], []
    runs = dict.fromkeys(run_id for position in live for run_id in planned.cells[position].runs.values())
    if live and all(is_finished(plan.runs[run_id].run) for run_id in runs):
        configs = {position: planned.configs[planned.cells[position].cell_id] for position in live}
        truth = reader.truth(configs[live[0]])
        members = pool_of(pool_config, [plan.runs[run_id] for run_id in runs], truth, reader.metric)
        for position, scored in ensembles(configs, table.subsamples, members, reader.metric).items():
            cells[position] = replace(scored, cell_id=cells[position].cell_id, labels=cells[position].labels)
        drawn = "the exact expectation over all" if table.subsamples == "all" else f"up to {table.subsamples} drawn"
        pooled = pluralize(members.pool.n_members, "recorded member")
        what = f"Ensembles of {pooled}: {drawn} subsamples of each size, no new call."
        notes = (what, *outlook(members, reader.metric), *members.notes)
    title, axes = table.title or table.name, _axes(table)
    return SweepTable(table.name, title, axes, tuple(cells), repeats="subsamples", notes=notes)


def _count_calls(read: Mapping[str, _FinishedRun]) -> dict[str, str]:
    n_calls = sum(len(finished.calls) for finished in read.values())
    if not n_calls:
        return {}
    n_distinct = pl.concat(finished.calls for finished in read.values()).n_unique()
    share = f"{n_distinct:,} of them distinct ({n_distinct / n_calls:.0%})"
    return {f"model calls of the {pluralize(len(read), 'finished run')}": f"{n_calls:,} asked for, {share}"}


def _notes(plan: SweepPlan, read: Mapping[str, _FinishedRun]) -> list[str]:
    notes = []
    answering = [plan.runs[run_id].answering_deployments.values() for run_id in read]
    n_baseline = sum(any(deployment.kind == "extractive" for deployment in deployments) for deployments in answering)
    if n_baseline:
        which = "Every run" if n_baseline == len(read) else f"{n_baseline} of {pluralize(len(read), 'run')}"
        notes.append(f"Answered by the extractive backend, a baseline without a model: {which[0].lower()}{which[1:]}.")
    n_answers, n_errors = (
        sum(getattr(finished.run, name) for finished in read.values()) for name in ("n_answers", "n_errors")
    )
    if n_errors:
        notes.append(f"{n_errors:,} of {n_answers:,} answers carry an error (column `error` of answers.parquet).")
    return notes


def _describe_provenance(plan: SweepPlan) -> dict[str, str]:
    import pyarrow

    sweep = plan.loaded.sweep
    corpora = dict.fromkeys(", ".join(map(shown_path, config.documents.paths)) for config in plan.runs.values())
    questions = dict.fromkeys(shown_path(config.questions.path) for config in plan.configs)
    pools = [planned.table.pool for planned in plan.tables if planned.table.pool and planned.table.pool.files]
    members = dict.fromkeys(Path(file).stem for pool in pools for file in files_of(pool))
    declared = sweep.model_dump(mode="json", exclude={key for key in ("race", "cluster") if not getattr(sweep, key)})
    return {
        "sweep": f"{shown_path(plan.loaded.where)}, {digest(declared)}",
        "base": f"{', '.join(map(shown_path, sweep.base))}, {digest(plan.loaded.base)}",
        "seeds": ", ".join(map(str, sweep.seeds)),
        "documents": "; ".join(corpora),
        **({"recorded runs": ", ".join(members)} if members else {}),
        "questions": "; ".join(questions),
        "indexes": ", ".join(Path(path).name for path in plan.indexes),
        "versions": f"kohaku_ray {code_version()}, ray {version('ray')}, pyarrow {pyarrow.__version__}, "
        f"python {platform.python_version()}",
    }


def _split_line(line: str) -> tuple[str, str]:
    name, colon, rest = line.partition(": ")
    return (name, rest) if colon else ("runs", line)


RECALL = f"recall@{K} "
"""How a measure begins that is the recall of the gold references after a step of the trace; the step's name follows."""

TRACE_COLUMNS = ("question_id", "member", "step", "rank", "node_id", "doc_id", "note")
"""Columns of trace.parquet that the recall is read from."""

_NO_MEASURES = pl.DataFrame(schema={"question_id": pl.String})


def own_measures(answers: pa.Table) -> pl.DataFrame:
    """The system's own measures: one row per answer, with its ``question_id``; null where it has none of that name."""
    rows = zip(answers["question_id"].to_pylist(), answers["measures"].to_pylist(maps_as_pydicts="strict"), strict=True)
    return pl.DataFrame(
        [{"question_id": question, **measures} for question, measures in rows], infer_schema_length=None
    )


def _read_last(directory: RunDirectory, *columns: str) -> pl.DataFrame:
    """Read a run's trace, of each step the last attempt: what came before it is blank."""
    trace = pl.DataFrame(directory.read_table("trace", columns=[*columns, "attempt"]))
    return trace.filter(pl.col("attempt") == pl.col("attempt").max().over("question_id", "member", "step"))


def derived_measures(trace: pl.DataFrame, nodes: NodeTable, config: Config, names: Collection[str]) -> pl.DataFrame:
    """Measures that the system computes from an answer's trace: one row per answer, with its ``question_id``."""
    measures, derived = [], config.declaration.derived
    for steps in trace.partition_by("question_id", maintain_order=True):
        of = steps.partition_by("member", maintain_order=True, as_dict=True)
        shared = of.pop((SHARED,), steps.clear())
        for steps_of_member in of.values() or [steps.clear()]:
            rows = [*shared.iter_rows(named=True), *steps_of_member.iter_rows(named=True)]
            values = {name: derived[name](rows, nodes, config.settings) for name in names}
            measures.append({"question_id": steps["question_id"][0], **values})
    return pl.DataFrame(measures) if measures else _NO_MEASURES


def _group_by_question(measures: pl.DataFrame) -> pl.DataFrame:
    return measures.group_by("question_id", maintain_order=True).mean()


def _mean_measures(measures: pl.DataFrame) -> dict[str, float]:
    return {name: float(measures[name].to_numpy().mean()) for name in measures.columns if name != "question_id"}


def recall_measures(trace: pl.DataFrame, truth: Submission) -> dict[str, float]:
    """Mean recall of the gold references among the best items of each step, over the questions that have any.

    A question of which a step keeps nothing counts 0; a step that keeps nothing of any question, such as one that is
    switched off, has no recall. ``trace`` has the columns ``TRACE_COLUMNS``.
    """
    gold = {key: refs for key, row in truth.rows.items() if (refs := gold_refs(row))}
    asked = trace.filter(pl.col("question_id").is_in(list(gold)))
    recalls_of_rows = [
        (stage_recall(rows.iter_rows(named=True), gold[str(question)], K), dict.fromkeys(rows["step"], 0.0))
        for (question, _), rows in asked.group_by("question_id", "member", maintain_order=True)
    ]
    kept = dict.fromkeys(step for recalls, _ in recalls_of_rows for step in recalls)
    by_step = pl.DataFrame([{**nothing, **recalls} for recalls, nothing in recalls_of_rows], infer_schema_length=None)
    return {f"{RECALL}{step}": float(by_step[step].drop_nulls().to_numpy().mean()) for step in kept}


def track_sweep(plan: SweepPlan, files: Sequence[str], figures: Mapping[str, float]) -> list[str]:
    """Export the finished runs of a sweep that were not exported before; with them the sweep's tables and its page.

    Args:
        plan: The sweep.
        files: Paths of its tables and its page.
        figures: Its counts by name.

    Returns:
        Where they are now, the sweep last; empty: no tracker is configured, or there was nothing new.

    Raises:
        ConfigError: The tracker's package is missing.
        DataError: The tracker refused; the next start of the sweep exports what is left.
    """
    name, where = os.path.basename(plan.output), []
    left = [config for config in plan.finished.values() if not is_tracked(config)]
    for config in left:
        summary = summary_of(config.run)
        where.append(track(config, summary, scores_of(config, summary)[0], name) or "")
    if left:
        facts = {"sweep": plan.loaded.where, "runs": str(len(plan.runs))}
        where.append(export(left[0], Exported(name, facts, figures, files, name), plan.output).where)
    return where
