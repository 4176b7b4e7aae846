"""Write a run's files besides its tables: the submission, the answers as JSON lines, those its system declares."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kohaku_ray.answering.votes import VotesByAgreement
from kohaku_ray.collection.sources import read_metadata, resolve
from kohaku_ray.config import Config
from kohaku_ray.documents.data.rows import read_table
from kohaku_ray.ensemble.vote import Verdict
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.evaluation.submissions import (
    Submission,
    SubmissionRow,
    citing_row,
    read_submission,
    write_rows,
    write_submission,
)
from kohaku_ray.evaluation.truth import read_gold
from kohaku_ray.index.store import Index
from kohaku_ray.records import BLANK
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.tables import Tables, grouped
from kohaku_ray.systems.base import AnsweredQuestion, System
from kohaku_ray.values.read import is_abstention, is_blank_strict

JsonLine = dict[str, Any]
Documents = Mapping[str, Mapping[str, Any]]
"""What is known of each document, by its id."""

MetricScores = Mapping[str, Mapping[str, float]]
"""By metric: ``score``, and every part of the metric."""


def answer_line(row: SubmissionRow, votes: Mapping[str, Any], score: MetricScores | None = None) -> JsonLine:
    """Build one line, as docs/outputs.md describes it."""
    blank = is_blank_strict(row.answer_value)
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


def count_votes(groups: Iterable[tuple[str | None, float]], n_members: int, n_blank: int) -> dict[str, Any]:
    """Build a line's ``votes``: groups of equal values with their weights; None: the blanks."""
    return {
        "members": n_members,
        "blank": n_blank,
        "groups": [{"value": value, "weight": weight} for value, weight in groups],
    }


def count_verdict(verdict: Verdict) -> dict[str, Any]:
    """Build ``votes`` of a vote over files."""
    groups = [(None if group.is_blank else group.answer_value, group.weight) for group in verdict.groups]
    n_blank = sum(len(group.members) for group in verdict.groups if group.is_blank)
    return count_votes(groups, sum(len(group.members) for group in verdict.groups), n_blank)


def question_scores(truth: Submission, metrics: Sequence[Metric], given: Submission) -> dict[str, MetricScores]:
    """Score each answered question that has a gold answer."""
    scored = {
        key: score_question(row, metrics, given.rows[key]) for key, row in truth.rows.items() if key in given.rows
    }
    return {key: scores for key, scores in scored.items() if scores}


def score_question(gold: SubmissionRow, metrics: Sequence[Metric], given: SubmissionRow) -> MetricScores:
    """Score an answer by each metric that its gold answer is enough for."""
    fitting = [metric for metric in metrics if metric.gold(gold) or not metric.needs_gold]
    scored = {metric.name: metric.score_question(gold, given) for metric in fitting}
    return {name: {"score": score.total, **score.parts} for name, score in scored.items()}


def as_lines(lines: Iterable[Mapping[str, Any]]) -> str:
    """Write lines as JSON lines."""
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    return text.encode("utf-8", "replace").decode()  # a model's reply may hold a lone surrogate


def write_run(config: Config, directory: RunDirectory, blocks: Iterable[Tables]) -> None:
    """Write a run's tables and all other files of its answers from its blocks, of which one is held at a time.

    ``blocks`` are read several times. Where members weigh by agreement, they are voted on again.
    """
    if config.ensemble.vote.weights == "agreement":
        blocks = VotesByAgreement(config, blocks)
    system, documents = config.declaration, _documents(config)
    directory.write_tables(blocks)
    for name, write in system.outputs.items():
        with directory.writing(name) as file:
            write(_by_question(blocks), file)
    rows = (row for tables in blocks for row in _submission_rows(tables, system, documents))
    write_submission(directory.file("submission.csv"), rows, tuple(system.extra_columns))
    with directory.writing("answers.jsonl") as file:
        file.writelines(_lines(config, blocks, documents, directory.file("submission.csv")))


def _by_question(blocks: Iterable[Tables]) -> Iterator[AnsweredQuestion]:
    for tables in blocks:
        answers, trace = (
            grouped(_rows_of(tables[name]), lambda row: row["question_id"]) for name in ("answers", "trace")
        )
        for vote in _rows_of(tables["votes"]):
            key = vote["question_id"]
            yield AnsweredQuestion(vote, answers.get(key, ()), trace.get(key, ()))


def _lines(config: Config, blocks: Iterable[Tables], documents: Documents, file: str) -> Iterator[str]:
    """Build answers.jsonl, with the scores that a reader of ``file``, the submission, gives its rows."""
    system, gold = config.declaration, dict[str, SubmissionRow]()
    metrics: Sequence[Metric] = ()
    with suppress(Exception):  # your own metric may raise anything: the run is whole, the command says why no score
        truth, metrics, _ = read_gold(resolve(config.questions.path), [find_metric(name) for name in config.metrics])
        gold = dict(truth.rows)
    for tables in blocks:
        rows = list(_submission_rows(tables, system, documents))
        scores: dict[str, MetricScores] = {}
        for row in _as_read(rows, tuple(system.extra_columns), file) if gold else ():
            with suppress(Exception):
                if row.question_id in gold:
                    scores[row.question_id] = score_question(gold[row.question_id], metrics, row)
        for row, vote in zip(rows, tables["votes"].select(_COUNTED).to_pylist(), strict=True):
            yield as_lines([answer_line(row, _count(vote), scores.get(row.question_id) or None)])


def _as_read(rows: Iterable[SubmissionRow], extra: Sequence[str], file: str) -> Iterable[SubmissionRow]:
    text = io.StringIO()
    write_rows(text, rows, extra)
    table = read_table(file, text.getvalue().encode("utf-8", "replace"), keep_ragged=True)
    return read_submission(file, table=table).rows.values()


_COUNTED = ["groups", "group_weights", "n_members", "n_blank"]


def _count(vote: Mapping[str, Any]) -> dict[str, Any]:
    groups = [None if group == BLANK else group for group in vote["groups"]]
    return count_votes(zip(groups, vote["group_weights"], strict=True), vote["n_members"], vote["n_blank"])


def _documents(config: Config) -> dict[str, dict[str, Any]]:
    indexed = Index.open(config.index.path).documents.to_pylist()
    known = {row["doc_id"]: {key: value for key, value in row.items() if value} for row in indexed}
    for doc_id, row in read_metadata(config.documents.metadata).items():
        known[doc_id] = {**known.get(doc_id, {}), **row}
    return known


def _submission_rows(tables: Tables, system: System, documents: Documents) -> Iterator[SubmissionRow]:
    quotes = best_quotes(tables["trace"], tables["answers"], system)
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


def best_quotes(trace: pa.Table, answers: pa.Table, system: System, n_chars: int = 400) -> dict[tuple[str, str], str]:
    """Return the first text per question and document, from the step that supports citations.

    Of that step those attempts are read that gave an answer: a retry that failed is in the trace, too.
    """
    answered = set(zip(answers["question_id"].to_pylist(), answers["attempt"].to_pylist(), strict=True))
    columns = ("question_id", "doc_id", "text", "step", "attempt")
    first: dict[tuple[str, str], str] = {}
    for question, doc, text, step, attempt in zip(*(trace[name].to_pylist() for name in columns), strict=True):
        is_quoted = not system.quote_step or (step == system.quote_step and (question, attempt) in answered)
        if doc is not None and is_quoted:
            first.setdefault((question, doc), text)
    return {key: " ".join(text.split())[:n_chars] for key, text in first.items()}


def _rows_of(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows
