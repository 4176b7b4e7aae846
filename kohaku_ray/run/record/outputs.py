"""Write a run's files besides its tables: the submission, the answers as JSON lines, those its system declares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.ensemble.vote import Verdict
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, citing_row, read_submission, write_submission
from kohaku_ray.evaluation.truth import read_gold
from kohaku_ray.index.store import Index
from kohaku_ray.records import BLANK
from kohaku_ray.run.collection.sources import read_metadata, resolve
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.tables import Parts, Tables, grouped
from kohaku_ray.systems.base import System
from kohaku_ray.values.read import is_abstention

JsonLine = dict[str, Any]
QuestionScores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By question and metric: ``score``, and every part of the metric."""


def answer_line(
    row: SubmissionRow, votes: Mapping[str, Any], score: Mapping[str, Mapping[str, float]] | None = None
) -> JsonLine:
    """Build one line, as docs/outputs.md describes it."""
    blank = is_abstention(row.answer_value)
    line = {
        "id": row.question_id,
        "question": row.question,
        "answer": row.answer or row.answer_value,
        "answer_value": None if blank else row.answer_value,
        "unit": None if is_abstention(row.answer_unit) else row.answer_unit,
        "refs": () if blank else row.ref_ids,
        "urls": () if blank else row.ref_urls,
        "votes": votes,
    }
    return line if score is None else {**line, "score": score}


def counted(groups: Iterable[tuple[str | None, float]], n_members: int, n_blank: int) -> dict[str, Any]:
    """Build a line's ``votes``: groups of equal values with their weights; None: the blanks."""
    return {
        "members": n_members,
        "blank": n_blank,
        "groups": [{"value": value, "weight": weight} for value, weight in groups],
    }


def counted_verdict(verdict: Verdict) -> dict[str, Any]:
    """Build ``votes`` of a vote over files."""
    groups = [(None if group.is_blank else group.answer_value, group.weight) for group in verdict.groups]
    n_blank = sum(len(group.members) for group in verdict.groups if group.is_blank)
    return counted(groups, sum(len(group.members) for group in verdict.groups), n_blank)


def question_scores(truth: Submission, metrics: Sequence[Metric], given: Submission) -> QuestionScores:
    """Score each answered question that has a gold answer."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for key, row in truth.rows.items():
        for metric in metrics if key in given.rows else ():
            if metric.gold(row) or not metric.needs_gold:
                scored = metric.score_question(row, given.rows[key])
                scores.setdefault(key, {})[metric.name] = {"score": scored.total, **scored.parts}
    return scores


def as_lines(lines: Iterable[Mapping[str, Any]]) -> str:
    """Write lines as JSON lines."""
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    return text.encode("utf-8", "replace").decode()  # a model's reply may hold a lone surrogate


VoteRow = Mapping[str, Any]


def write_run(config: Config, directory: RunDirectory, parts: Parts) -> None:
    """Write a run's tables and all other files of its answers; each block is fetched once."""
    outputs = _Outputs(config)
    directory.write_tables(outputs.watch(parts))
    outputs.write(directory)


class _Outputs:
    """submission.csv, answers.jsonl and the system's own outputs, from the blocks of a run as they pass.

    Holds the submission's rows; what a system declares as ``outputs`` takes the whole tables.
    """

    def __init__(self, config: Config) -> None:
        self._config, self._system, self._documents = config, config.declaration, _documents(config)
        self._rows: list[SubmissionRow] = []
        self._votes: list[dict[str, Any]] = []
        self._whole: dict[str, list[dict[str, Any]]] = {"votes": [], "answers": [], "trace": []}

    def watch(self, parts: Iterable[Tables]) -> Iterator[Tables]:
        """Pass the blocks on, and take from each what the files need."""
        for tables in parts:
            self._rows += _submission_rows(tables, self._system, self._documents)
            self._votes += tables["votes"].select(_COUNTED).to_pylist()
            if self._system.outputs:
                for name, rows in self._whole.items():
                    rows += _rows_of(tables[name])
            yield tables

    def write(self, directory: RunDirectory) -> None:
        """Write the files."""
        config, system = self._config, self._system
        for name, write in system.outputs.items():
            directory.write_text(name, write(*self._whole.values()))
        write_submission(directory.file("submission.csv"), self._rows, tuple(system.extra_columns))
        try:
            truth, metrics, _ = read_gold(
                resolve(config.questions.path), [find_metric(name) for name in config.metrics]
            )
            scores = question_scores(truth, metrics, read_submission(directory.file("submission.csv")))
        except Exception:  # your own metric may raise anything: the run is whole, and the command says why no score
            scores = {}
        lines = zip(self._rows, self._votes, strict=True)
        answers = (answer_line(row, _counted(vote), scores.get(row.question_id)) for row, vote in lines)
        directory.write_text("answers.jsonl", as_lines(answers))


_COUNTED = ["groups", "group_weights", "n_members", "n_blank"]


def _counted(vote: VoteRow) -> dict[str, Any]:
    groups = [None if group == BLANK else group for group in vote["groups"]]
    return counted(zip(groups, vote["group_weights"], strict=True), vote["n_members"], vote["n_blank"])


def _documents(config: Config) -> dict[str, dict[str, Any]]:
    indexed = Index.open(config.index.path).documents.to_pylist()
    known = {row["doc_id"]: {key: value for key, value in row.items() if value} for row in indexed}
    for doc_id, row in read_metadata(config.documents.metadata).items():
        known[doc_id] = {**known.get(doc_id, {}), **row}
    return known


def _submission_rows(
    tables: Tables, system: System, documents: Mapping[str, Mapping[str, Any]]
) -> Iterable[SubmissionRow]:
    quotes = best_quotes(tables["trace"], system)
    answers = _rows_of(tables["answers"]) if system.extra_columns else []
    members = grouped(answers, lambda answer: answer["question_id"])
    for row in _rows_of(tables["votes"]):
        refs = row["ref_ids"]
        materials = [quotes[row["question_id"], ref] for ref in refs if (row["question_id"], ref) in quotes]
        value = "" if row["is_blank"] else row["answer_value"]
        voted = (row["answer"], value, row["answer_unit"], row["explanation"])
        cited = citing_row(row["question_id"], row["question"], voted, refs, documents, " | ".join(materials))
        columns = {
            name: write(row, members.get(row["question_id"], [])) for name, write in system.extra_columns.items()
        }
        yield replace(cited, columns=columns) if columns else cited


def best_quotes(trace: pa.Table, system: System, n_chars: int = 400) -> dict[tuple[str, str], str]:
    """Return the first text per question and document, from the step that supports citations."""
    import polars as pl

    steps = pl.DataFrame(trace.select(["question_id", "doc_id", "text", "step"])).filter(pl.col("doc_id").is_not_null())
    if system.quote_step:
        steps = steps.filter(step=system.quote_step)
    first = steps.unique(["question_id", "doc_id"], keep="first", maintain_order=True)
    return {(question, doc): " ".join(text.split())[:n_chars] for question, doc, text, _ in first.iter_rows()}


def _rows_of(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows
