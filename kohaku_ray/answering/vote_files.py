"""Vote over submission files, question by question."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kohaku_ray.ensemble.pool import agreement_weights
from kohaku_ray.ensemble.vote import Ballot, Verdict, VoteRule, vote_all
from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.report import file_report
from kohaku_ray.evaluation.submissions import SubmissionRow, citing_row, read_refs, read_submission
from kohaku_ray.values.normalise import group_values, measures_other
from kohaku_ray.values.read import is_abstention, is_blank
from kohaku_ray.values.spelling import ref_key

Metadata = Mapping[str, Mapping[str, str]]
"""Properties of documents by document id: ``url`` and ``title`` are used."""


@dataclass(frozen=True, slots=True)
class FileVote:
    """The result of a vote over files.

    Attributes:
        rows: One row per question, ready for ``write_submission``: the first file's questions in its order, then those
            that only later files have.
        verdicts: The verdict behind each row, in the same order.
        missing: By file, the questions it lacks; each counts as a blank ballot.
        weights: By file, its weight in the vote.
        notes: By file, what is odd about it: doubled ids, rows without one or with other cells than the header.
    """

    rows: tuple[SubmissionRow, ...]
    verdicts: tuple[Verdict, ...]
    missing: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, float]
    notes: Mapping[str, tuple[str, ...]]


def run_vote(
    files: Sequence[str | os.PathLike[str]],
    rule: VoteRule,
    metadata: Metadata | None = None,
    keep_spellings: bool = False,
) -> FileVote:
    """Vote over submission files, one member per file, in the order given.

    A question's unit is the one that most files give; values are written in it as metrics read them, or with
    ``keep_spellings`` as a file spells them. Addresses come from ``metadata``, else from the files' own rows.
    """
    if not files:
        raise ConfigError("There are no submission files to vote over: name at least one.")
    members = [read_submission(path) for path in files]
    question_ids = list(dict.fromkeys(key for member in members for key in member.rows))
    table = [[member.rows.get(key) for member in members] for key in question_ids]
    weights = np.ones(len(members))
    if rule.weights != "uniform":
        groups = [
            group_values(
                [row.answer_value if row else "" for row in rows],
                _unit_of(rows),
                [row.answer_unit if row else "" for row in rows],
            )
            for rows in table
        ]
        weights = agreement_weights(np.array(groups, dtype=np.int64).reshape(len(table), len(members)))
    if metadata is None:
        # From rows with one URL per reference: models invent some, so the most common one is taken.
        given: dict[str, Counter[str]] = {}
        for row in (row for member in members for row in member.rows.values()):
            if len(row.ref_ids) == len(row.ref_urls) and not is_abstention(row.answer_value):
                for ref, url in zip(row.ref_ids, row.ref_urls, strict=True):
                    given.setdefault(ref_key(ref), Counter())[url] += 1
        metadata = {ref: {"url": urls.most_common(1)[0][0]} for ref, urls in given.items()}
    voting = [  # the published vote takes a missing row for none, ours for a blank one
        [
            (row, weight)
            for row, weight in zip(rows, weights, strict=True)
            if (row is not None or rule.compat is None) and not (row is not None and row.is_failed)
        ]
        for rows in table
    ]
    ballots = [[_ballot(row, float(weight), rule) for row, weight in rows] for rows in voting]
    units = [_unit_of(rows) for rows in table]
    verdicts = vote_all(ballots, rule.model_copy(update={"weights": "uniform"}), units, None, keep_spellings)
    rows = [
        _voted_row(key, of, None if verdict.winner is None else votes[verdict.winner][0], verdict, metadata)
        for key, of, votes, verdict in zip(question_ids, table, voting, verdicts, strict=True)
    ]
    return FileVote(
        rows=tuple(rows),
        verdicts=tuple(verdicts),
        missing={member.path: tuple(key for key in question_ids if key not in member.rows) for member in members},
        weights={member.path: float(weight) for member, weight in zip(members, weights, strict=True)},
        notes={member.path: tuple(file_report(member, member).notes) for member in members},
    )


def _voted_row(
    question_id: str,
    rows: Sequence[SubmissionRow | None],
    shown: SubmissionRow | None,
    verdict: Verdict,
    metadata: Metadata,
) -> SubmissionRow:
    question = next((row.question for row in rows if row is not None and row.question), "")
    materials = shown.supporting_materials if shown is not None and not is_blank(shown.supporting_materials) else ""
    unit = _unit_of(rows)
    unit = verdict.answer_unit if measures_other(verdict.answer_unit, unit) else unit or verdict.answer_unit
    failed = next((row.explanation for row in rows if row is not None and row.is_failed), "")
    explanation = failed if verdict.winner is None and failed else verdict.explanation
    voted = (verdict.answer, verdict.answer_value, unit, explanation)
    return citing_row(question_id, question, voted, verdict.ref_ids, metadata, materials)


def _ballot(row: SubmissionRow | None, weight: float, rule: VoteRule) -> Ballot:
    """Make a row a ballot: a missing one is blank; the published vote takes references as written."""
    if row is None:
        return Ballot(is_blank=True, weight=weight)
    refs = row.ref_ids
    if rule.compat is not None:
        refs = () if row.refs_raw == "is_blank" else read_refs(row.refs_raw)
    return Ballot(row.answer_value, refs, False, row.answer, row.answer_unit, row.explanation, weight)


def _unit_of(rows: Iterable[SubmissionRow | None]) -> str:
    """Find the unit that most files give, ties to the earliest; empty where no file gives one."""
    units = Counter(row.answer_unit for row in rows if row is not None and not is_blank(row.answer_unit))
    return units.most_common(1)[0][0] if units else ""
