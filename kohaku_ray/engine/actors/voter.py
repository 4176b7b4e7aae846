"""The last stage: members' answers of a block become votes, and blocks become the run's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import ray

from kohaku_ray.arrays import F64
from kohaku_ray.config import Config
from kohaku_ray.config.schema import VoteConfig
from kohaku_ray.engine.actors.members import Answered, Prepared
from kohaku_ray.ensemble.agreement import agreement_weights
from kohaku_ray.ensemble.decide import settled
from kohaku_ray.ensemble.normalise import group_values
from kohaku_ray.ensemble.vote import Ballot, VoteRule, vote
from kohaku_ray.errors import ModelError, TransientModelError
from kohaku_ray.generation.seeds import seed_for
from kohaku_ray.index.store import Index
from kohaku_ray.records import BLANK, Question
from kohaku_ray.runs.directory import TABLES, RunDirectory
from kohaku_ray.runs.sources import read_metadata
from kohaku_ray.submissions import SubmissionRow, write_submission

Row = TypeVar("Row")

SHARED = -1
"""Member number of what all members share: plan and evidence under ``scope: answer``."""

NO_REPLY = (f"{ModelError.__name__}: ", f"{TransientModelError.__name__}: ")
"""How the error of an answer begins whose model gave no reply; any other follows from what is recorded."""

_STRINGS = pa.list_(pa.string())
SCHEMAS: dict[str, pa.Schema] = {
    "answers": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("attempt", pa.int32()),
            ("seed", pa.int64()),
            ("answer", pa.string()),
            ("answer_value", pa.string()),
            ("answer_unit", pa.string()),
            ("ref_ids", _STRINGS),
            ("explanation", pa.string()),
            ("is_blank", pa.bool_()),
            ("n_foreign_refs", pa.int32()),
            ("n_matches", pa.int32()),
            ("n_snippets", pa.int32()),
            ("n_context_chars", pa.int64()),
            ("n_context_tokens", pa.int64()),
            ("is_cut", pa.bool_()),
            ("overflowed", pa.bool_()),
            ("reply", pa.string()),
            ("error", pa.string()),
        ]
    ),
    "votes": pa.schema(
        [
            ("question_id", pa.string()),
            ("question", pa.string()),
            ("asked_unit", pa.string()),
            ("answer", pa.string()),
            ("answer_value", pa.string()),
            ("answer_unit", pa.string()),
            ("ref_ids", _STRINGS),
            ("explanation", pa.string()),
            ("is_blank", pa.bool_()),
            ("winner", pa.int32()),
            ("groups", _STRINGS),
            ("group_weights", pa.list_(pa.float64())),
            ("n_members", pa.int32()),
            ("n_blank", pa.int32()),
            ("n_errors", pa.int32()),
        ]
    ),
    "plans": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("queries", _STRINGS),
            ("error", pa.string()),
        ]
    ),
    "evidence": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("attempt", pa.int32()),
            ("rank", pa.int32()),
            ("node_id", pa.string()),
            ("doc_id", pa.string()),
            ("kind", pa.string()),
            ("source", pa.string()),
            ("score", pa.float64()),
            ("frequency", pa.int32()),
            ("similarity", pa.float64()),
            ("n_tokens", pa.int64()),
            ("text", pa.string()),
        ]
    ),
    "usage": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("key", pa.string()),
            ("role", pa.string()),
            ("attempt", pa.int32()),
            ("source", pa.string()),
            ("deployment", pa.string()),
            ("replica", pa.string()),
            ("prompt_tokens", pa.int64()),
            ("cached_tokens", pa.int64()),
            ("completion_tokens", pa.int64()),
            ("wait_s", pa.float64()),
            ("queue_s", pa.float64()),
            ("service_s", pa.float64()),
            ("gpu_s", pa.float64()),
            ("joules", pa.float64()),
            ("dollars", pa.float64()),
        ]
    ),
}

SPENT = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "queue_s",
    "service_s",
    "gpu_s",
    "joules",
    "dollars",
)
"""Columns of usage that add up."""

Rows = list[dict[str, Any]]
Tables = dict[str, pa.Table]


@dataclass(frozen=True, slots=True)
class BlockResult:
    """Counts of one finished block: all of it that the driver sees.

    Attributes:
        n_questions: Rows in it.
        n_member_errors: Member answers that carry an error.
        n_unanswered: Those of them that got no reply: the next start asks again. The others' replies are recorded.
        n_questions_in_error: Questions all of whose members carry one.
        n_answers: Member answers asked for.
        n_calls: Model calls by source.
        spent: What the calls made by this run took: tokens, seconds, joules (where all of them are measured), dollars.
    """

    n_questions: int
    n_member_errors: int
    n_unanswered: int
    n_questions_in_error: int
    n_answers: int
    n_calls: dict[str, int]
    spent: dict[str, float]


def vote_block(config: Config, n_prepared: int, *parts: Sequence[Any]) -> tuple[BlockResult, Tables]:
    """Vote over one block.

    Args:
        config: The run's configuration.
        n_prepared: How many of the parts are evidence: one shared, or one a member.
        *parts: First the prepared blocks, then the members' answers in member order.

    Returns:
        Counts, and the block's rows of every output table.
    """
    prepared: Sequence[Sequence[Prepared | None]] = parts[:n_prepared]
    answered: Sequence[Sequence[Answered | None]] = parts[n_prepared:]
    shared = n_prepared == 1
    rows: dict[str, Rows] = {name: [] for name in TABLES}
    for place, row in enumerate(prepared[0]):
        assert row is not None  # the first member prepares every question
        answers = _those_there(member[place] for member in answered)
        sources = _those_there(block[place] for block in prepared)
        question, given = row.question, _answer_rows(config, row.question, answers)
        rows["answers"] += given
        rows["votes"].append(_vote_row(config, question.question_id, question.text, question.answer_unit, given))
        rows["plans"] += _plan_rows(sources, shared)
        rows["evidence"] += _evidence_rows(sources, answers, shared)
        rows["usage"] += _usage_rows(row.question, sources, answers, shared)
    calls = [row["source"] for row in rows["usage"]]
    errors = [row["error"] for row in rows["answers"] if row["error"] is not None]
    result = BlockResult(
        n_questions=len(prepared[0]),
        n_member_errors=len(errors),
        n_unanswered=sum(error.startswith(NO_REPLY) for error in errors),
        n_questions_in_error=sum(row["n_errors"] == row["n_members"] for row in rows["votes"]),
        n_answers=len(rows["answers"]),
        n_calls={source: calls.count(source) for source in ("ledger", "joined", "made")},
        spent=_spent(rows["usage"]),
    )
    return result, {name: pa.Table.from_pylist(rows[name], schema=SCHEMAS[name]) for name in TABLES}


def _spent(usage: Rows) -> dict[str, float]:
    made = [row for row in usage if row["source"] == "made"]
    return {name: sum(row[name] for row in made) for name in SPENT if all(row[name] is not None for row in made)}


def settle_block(config: Config, questions: Sequence[Question], *answered: Sequence[Answered | None]) -> list[bool]:
    """Say of which questions of a block the members still to come could change nothing (see ``settled``).

    Args:
        config: The run's configuration.
        questions: The block.
        *answered: The answers so far, in member order; None where a question was settled before.
    """
    rule, ensemble = rule_of(config.ensemble.vote), config.ensemble
    found = []
    for place, question in enumerate(questions):
        there = _those_there(member[place] for member in answered)
        ballots = [_ballot(asdict(row.answer.prediction)) for row in there]
        ended = len(there) < len(answered)
        found.append(ended or settled(ballots, ensemble.members, rule, ensemble.stops, question.answer_unit))
    return found


def finish_run(config: Config, run: str, blocks: Sequence[Any]) -> None:
    """Write the run's files from its blocks, in the questions' order.

    Args:
        config: The run's configuration.
        run: Directory of the outputs.
        blocks: Refs of every block's tables, in order.

    Raises:
        DataError: The directory cannot be written.
    """
    tables = ray.get(list(blocks))
    whole = {name: pa.concat_tables(table[name] for table in tables) for name in TABLES}
    if config.ensemble.vote.weights == "agreement":
        whole["votes"] = _weighted_votes(config, whole["votes"], whole["answers"])
    directory = RunDirectory(run)
    directory.write_tables(whole)
    documents = _documents(config)
    write_submission(f"{directory.path}/submission.csv", _submission_rows(whole["votes"], whole["evidence"], documents))


class Voter:
    """A process beside the driver that votes over blocks and writes runs (an actor: a task would start a process each).

    It keeps nothing between calls.
    """

    def vote(self, config: Config, n_prepared: int, *parts: Sequence[Any]) -> tuple[BlockResult, Tables]:
        """See ``vote_block``."""
        return vote_block(config, n_prepared, *parts)

    def settle(self, config: Config, questions: Sequence[Question], *answered: Sequence[Answered | None]) -> list[bool]:
        """See ``settle_block``."""
        return settle_block(config, questions, *answered)

    def finish(self, config: Config, run: str, blocks: Sequence[Any]) -> None:
        """See ``finish_run``."""
        finish_run(config, run, blocks)


def rule_of(config: VoteConfig) -> VoteRule:
    """Hand the vote's settings on as plain values."""
    return VoteRule(**config.model_dump())


def _ballot(row: Mapping[str, Any]) -> Ballot:
    return Ballot(
        answer_value=row["answer_value"],
        ref_ids=tuple(row["ref_ids"]),
        is_blank=row["is_blank"],
        answer=row["answer"],
        answer_unit=row["answer_unit"],
        explanation=row["explanation"],
    )


def _vote_row(
    config: Config, question_id: str, question: str, unit: str | None, answers: Rows, weights: F64 | None = None
) -> dict[str, Any]:
    rule = rule_of(config.ensemble.vote)
    if weights is None:
        # Members weigh alike until all questions are answered: see _weighted_votes.
        rule = replace(rule, weights="uniform")
    verdict = vote([_ballot(row) for row in answers], rule, unit, weights)
    return {
        "question_id": question_id,
        "question": question,
        "asked_unit": unit,
        "answer": verdict.answer,
        "answer_value": verdict.answer_value,
        "answer_unit": unit or verdict.answer_unit,
        "ref_ids": list(verdict.ref_ids),
        "explanation": verdict.explanation,
        "is_blank": verdict.is_blank,
        "winner": verdict.winner,
        "groups": [BLANK if group.is_blank else group.answer_value for group in verdict.groups],
        "group_weights": [group.weight for group in verdict.groups],
        "n_members": len(answers),
        "n_blank": sum(row["is_blank"] for row in answers),
        "n_errors": sum(row["error"] is not None for row in answers),
    }


def _weighted_votes(config: Config, votes: pa.Table, answers: pa.Table) -> pa.Table:
    """Vote again, now that every member's answers to all questions are known."""
    n_members = config.ensemble.members
    rows = answers.to_pylist()
    by_question = [rows[start : start + n_members] for start in range(0, len(rows), n_members)]
    asked = votes.select(["question_id", "question", "asked_unit"]).to_pylist()
    groups = [
        group_values(["" if row["is_blank"] else row["answer_value"] for row in members], question["asked_unit"])
        for question, members in zip(asked, by_question, strict=True)
    ]
    weights = agreement_weights(np.array(groups, np.int64).reshape(len(groups), n_members))
    again = [
        _vote_row(config, row["question_id"], row["question"], row["asked_unit"], members, weights)
        for row, members in zip(asked, by_question, strict=True)
    ]
    return pa.Table.from_pylist(again, schema=SCHEMAS["votes"])


def _those_there(rows: Iterable[Row | None]) -> list[Row]:
    return [row for row in rows if row is not None]


def _plan_rows(sources: Sequence[Prepared], shared: bool) -> Rows:
    return [
        {
            "question_id": row.question.question_id,
            "member": SHARED if shared else member,
            "queries": list(row.evidence.queries) if row.evidence is not None else [],
            "error": row.error or (row.evidence.plan_error if row.evidence is not None else None),
        }
        for member, row in enumerate(sources)
    ]


def _answer_rows(config: Config, question: Question, answers: Sequence[Answered]) -> Rows:
    rows: Rows = []
    for member, answered in enumerate(answers):
        prediction, attempts = answered.answer.prediction, answered.answer.attempts
        last = attempts[-1] if attempts else None
        rows.append(
            {
                **asdict(prediction),
                "question_id": question.question_id,
                "member": member,
                "seed": seed_for(config.seed, question.question_id, member, prediction.attempt, "answer"),
                "n_matches": last.n_matches if last else 0,
                "n_snippets": last.n_snippets if last else 0,
                "n_context_chars": last.n_chars if last else 0,
                "n_context_tokens": last.n_tokens if last else 0,
                "is_cut": last.is_cut if last else False,
                "overflowed": last.overflowed if last else False,
                "reply": last.reply.text if last and last.reply else None,
            }
        )
    return rows


def _evidence_rows(sources: Sequence[Prepared], answers: Sequence[Answered], shared: bool) -> Rows:
    """The ranked evidence of every attempt that gave an answer: once where members share it."""
    rows: Rows = []
    seen: set[tuple[int, int]] = set()
    for member, answered in enumerate(answers):
        source = sources[0 if shared else member]
        owner = SHARED if shared else member
        key = (owner, answered.answer.prediction.attempt)
        if source.evidence is None or key in seen:
            continue
        seen.add(key)
        nodes = source.evidence.nodes
        for match in answered.answer.matches:
            rows.append(
                {
                    "question_id": source.question.question_id,
                    "member": owner,
                    "attempt": key[1],
                    **asdict(match),
                    "text": nodes.text_of(nodes.row_of(match.node_id)),
                }
            )
    return rows


def _usage_rows(question: Question, sources: Sequence[Prepared], answers: Sequence[Answered], shared: bool) -> Rows:
    calls = [(SHARED if shared else member, call) for member, row in enumerate(sources) for call in row.calls]
    calls += [(member, call) for member, answered in enumerate(answers) for call in answered.calls]
    return [{"question_id": question.question_id, "member": member, **asdict(call)} for member, call in calls]


def _documents(config: Config) -> dict[str, dict[str, Any]]:
    """What is known of each document: the metadata file's word before the index's own."""
    indexed = Index.open(config.index.path).documents.to_pylist()
    known = {row["doc_id"]: {key: value for key, value in row.items() if value} for row in indexed}
    for doc_id, row in read_metadata(config.documents.metadata).items():
        known[doc_id] = {**known.get(doc_id, {}), **row}
    return known


def _submission_rows(
    votes: pa.Table, evidence: pa.Table, documents: Mapping[str, Mapping[str, Any]]
) -> Iterable[SubmissionRow]:
    quotes = _best_quotes(evidence)
    for row in votes.to_pylist():
        refs = row["ref_ids"]
        materials = [quotes[row["question_id"], ref] for ref in refs if (row["question_id"], ref) in quotes]
        yield SubmissionRow(
            question_id=row["question_id"],
            question=row["question"],
            answer=row["answer"],
            answer_value="" if row["is_blank"] else row["answer_value"],
            answer_unit=row["answer_unit"],
            ref_ids=tuple(refs),
            ref_urls=tuple(documents[ref]["url"] for ref in refs if documents.get(ref, {}).get("url")),
            supporting_materials=" | ".join(materials),
            explanation=row["explanation"],
        )


def _best_quotes(evidence: pa.Table, n_chars: int = 400) -> dict[tuple[str, str], str]:
    """The best-ranked match of each question in each document: what a citation rests on."""
    quotes: dict[tuple[str, str], str] = {}
    for row in evidence.select(["question_id", "doc_id", "text"]).to_pylist():
        quotes.setdefault((row["question_id"], row["doc_id"]), " ".join(row["text"].split())[:n_chars])
    return quotes
