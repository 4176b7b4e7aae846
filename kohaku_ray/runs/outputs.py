"""Files that a run writes besides its tables: the submission, the answers as JSON lines, those its system declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import read_gold
from kohaku_ray.index.store import Index
from kohaku_ray.records import BLANK
from kohaku_ray.runs.answer_lines import QuestionScores, answer_line, as_text, counted, question_scores
from kohaku_ray.runs.block import best_quotes
from kohaku_ray.runs.directory import RunDirectory
from kohaku_ray.runs.sources import read_metadata, resolve
from kohaku_ray.submissions import SubmissionRow, citing_row, read_submission, write_submission
from kohaku_ray.systems.base import System

Row = Mapping[str, Any]


def write_outputs(config: Config, directory: RunDirectory, tables: Mapping[str, pa.Table]) -> None:
    """Write submission.csv, answers.jsonl and the system's own outputs.

    Raises:
        DataError: The directory cannot be written.
    """
    documents, system = _documents(config), config.declaration
    quotes = best_quotes(tables["trace"], system)
    rows: Iterable[SubmissionRow] = list(_submission_rows(tables["votes"], quotes, documents))
    lines = [*zip(rows, tables["votes"].select(_COUNTED).to_pylist(), strict=True)]
    if system.outputs or system.extra_columns:
        names = ("votes", "answers", "trace")
        votes, answers, trace = (tables[name].to_pylist(maps_as_pydicts="strict") for name in names)
        for name, write in system.outputs.items():
            directory.write_text(name, write(votes, answers, trace))
        rows = _with_extra(rows, system, votes, answers)
    write_submission(directory.file("submission.csv"), rows, tuple(system.extra_columns))
    scores = _question_scores(config, directory)
    said = (answer_line(row, _counted(vote), scores.get(row.question_id)) for row, vote in lines)
    directory.write_text("answers.jsonl", as_text(said))


_COUNTED = ["groups", "group_weights", "n_members", "n_blank"]


def _counted(vote: Row) -> dict[str, Any]:
    groups = [None if group == BLANK else group for group in vote["groups"]]
    return counted(zip(groups, vote["group_weights"], strict=True), vote["n_members"], vote["n_blank"])


def _question_scores(config: Config, directory: RunDirectory) -> QuestionScores:
    """Score each question, where the question file has gold answers."""
    try:
        truth, metrics, _ = read_gold(
            resolve(config.questions.path), [find_metric(name) for name in config.declaration.metrics]
        )
        return question_scores(truth, metrics, read_submission(directory.file("submission.csv")))
    except Exception:  # your own metric may raise anything: the run is whole, and the command says why it has no score
        return {}


def _with_extra(
    rows: Iterable[SubmissionRow], system: System, votes: Sequence[Row], answers: Sequence[Row]
) -> Iterable[SubmissionRow]:
    members: dict[str, list[Row]] = {}
    for answer in answers:
        members.setdefault(answer["question_id"], []).append(answer)
    for row, vote in zip(rows, votes, strict=True):
        mine = members.get(vote["question_id"], [])
        yield replace(row, columns={name: write(vote, mine) for name, write in system.extra_columns.items()})


def _documents(config: Config) -> dict[str, dict[str, Any]]:
    """Return each document's metadata; the metadata file wins over the index."""
    indexed = Index.open(config.index.path).documents.to_pylist()
    known = {row["doc_id"]: {key: value for key, value in row.items() if value} for row in indexed}
    for doc_id, row in read_metadata(config.documents.metadata).items():
        known[doc_id] = {**known.get(doc_id, {}), **row}
    return known


def _submission_rows(
    votes: pa.Table, quotes: Mapping[tuple[str, str], str], documents: Mapping[str, Mapping[str, Any]]
) -> Iterable[SubmissionRow]:
    for row in votes.to_pylist():
        refs = row["ref_ids"]
        materials = [quotes[row["question_id"], ref] for ref in refs if (row["question_id"], ref) in quotes]
        value = "" if row["is_blank"] else row["answer_value"]
        voted = (row["answer"], value, row["answer_unit"], row["explanation"])
        yield citing_row(row["question_id"], row["question"], voted, refs, documents, " | ".join(materials))
