"""Files that a run writes besides its tables: the submission, and those its system declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.index.store import Index
from kohaku_ray.runs.block import best_quotes
from kohaku_ray.runs.directory import RunDirectory
from kohaku_ray.runs.sources import read_metadata
from kohaku_ray.submissions import SubmissionRow, citing_row, write_submission
from kohaku_ray.systems.base import System

Row = Mapping[str, Any]


def write_outputs(config: Config, directory: RunDirectory, tables: Mapping[str, pa.Table]) -> None:
    """Write submission.csv and the system's own outputs.

    Raises:
        DataError: The directory cannot be written.
    """
    documents, system = _documents(config), config.declaration
    quotes = best_quotes(tables["trace"], system)
    rows = _submission_rows(tables["votes"], quotes, documents)
    if system.outputs or system.extra_columns:
        names = ("votes", "answers", "trace")
        votes, answers, trace = (tables[name].to_pylist(maps_as_pydicts="strict") for name in names)
        for name, write in system.outputs.items():
            directory.write_text(name, write(votes, answers, trace))
        rows = _with_extra(rows, system, votes, answers)
    write_submission(directory.file("submission.csv"), rows, tuple(system.extra_columns))


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
