"""Vote over members' answers: which questions are settled, the rows of a vote, the second vote by agreement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from kohaku_ray.ensemble.decide import settle_all
from kohaku_ray.ensemble.pool import agreement_weights
from kohaku_ray.ensemble.vote import Verdict, VoteRule, vote_all
from kohaku_ray.index.arrays import F64
from kohaku_ray.models.calls import Call
from kohaku_ray.models.summary import AnswerSummary, group_errors
from kohaku_ray.records import BLANK, FAILED, Prediction, Question, TraceRow
from kohaku_ray.runs.seeds import seed_of
from kohaku_ray.store.tables import SCHEMAS, SHARED, SPENT, Tables, grouped
from kohaku_ray.values.normalise import group_values, measures_other

if TYPE_CHECKING:
    from kohaku_ray.answering.block import MemberAnswer, PreparedQuestion
    from kohaku_ray.config import Config

AnyRow = TypeVar("AnyRow")
_ERROR_CHARS = 300

TableRows = list[dict[str, Any]]


def vote_block(config: Config, n_prepared: int, *parts: Sequence[Any]) -> tuple[AnswerSummary, Tables]:
    """Vote on one block; returns counts, and the block's rows of every output table.

    Args:
        config: The run's configuration.
        n_prepared: Number of parts that are evidence: one shared, or one per member.
        *parts: First the prepared blocks, then the members' answers in member order.
    """
    prepared: Sequence[Sequence[PreparedQuestion | None]] = parts[:n_prepared]
    answered: Sequence[Sequence[MemberAnswer | None]] = parts[n_prepared:]
    shared = config.ensemble.scope == "answer"
    rows: dict[str, TableRows] = {name: [] for name in SCHEMAS}
    asked: list[tuple[Question, TableRows]] = []
    n_unanswered, context_tokens, refused = 0, 0, ""
    step_errors, all_calls = list[str | None](), list[Call]()
    for number, row in enumerate(prepared[0]):
        assert row is not None  # the first member prepares every question
        answers = _drop_settled(member[number] for member in answered)
        sources = _drop_settled(block[number] for block in prepared)
        answer_rows = _answer_rows(config, row.question, answers)
        rows["answers"] += answer_rows
        asked.append((row.question, answer_rows))
        rows["trace"] += _trace_rows(config, row.question, sources, answers)
        calls = [(SHARED if shared else member, call) for member, source in enumerate(sources) for call in source.calls]
        calls += [(member, call) for member, answer in enumerate(answers) for call in answer.calls]
        question_id = row.question.question_id
        context_tokens += max((call.prompt_tokens for _, call in calls), default=0)
        rows["usage"] += [{"question_id": question_id, "member": member, **_values(call)} for member, call in calls]
        # Errors of steps, such as a plan that cannot be read; an answer's own error is not among them.
        step_errors += [source.error for source in sources]
        step_errors += [
            step.error for source in sources if source.evidence is not None for step in source.evidence.trace
        ]
        for answered_row in answers:
            of_answer = answered_row.answer.prediction.error
            step_errors += [step.error for step in answered_row.answer.trace if step.error != of_answer]
        n_unanswered += sum(source.n_no_reply for source in sources) + sum(answer.n_no_reply for answer in answers)
        told = (*(source.refused for source in sources), *(answer.refused for answer in answers))
        refused = refused or next(filter(None, told), "")
        all_calls += [call for _, call in calls]
    rows["votes"] = _vote_rows(config, asked)
    by_source = Counter(call.source for call in all_calls)
    made = [row for row in rows["usage"] if row["source"] == "made"]
    result = AnswerSummary(
        run="",
        n_questions=len(prepared[0]),
        n_member_errors=sum(row["error"] is not None for row in rows["answers"]),
        n_unanswered=n_unanswered,
        n_questions_in_error=sum(row["n_errors"] == row["n_members"] for row in rows["votes"]),
        n_answers=len(rows["answers"]),
        context_tokens=context_tokens,
        n_calls={source: by_source[source] for source in ("ledger", "joined", "made")},
        spent={name: sum(row[name] for row in made) for name in SPENT if all(row[name] is not None for row in made)},
        errors=group_errors([*(row["error"] for row in rows["answers"]), *step_errors]),
        flags=dict(Counter(flag for row in rows["answers"] for flag in row["flags"])),
        adapted=dict(Counter(f"{call.deployment}: {note}" for call in all_calls for note in call.notes)),
        finish_reasons=dict(Counter(call.finish_reason for call in all_calls)),
        stopped=refused,
    )
    result.shorten(all_calls)
    result.name_servers(all_calls, _addresses_of(config))
    return result, {name: pa.Table.from_pylist(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS}


def settle_block(config: Config, questions: Sequence[Question], *answered: Sequence[MemberAnswer | None]) -> list[bool]:
    """Return which questions of a block no remaining member could change (see ``settled``).

    The answers so far are in member order; None where a question was settled before.
    """
    ensemble, ballot = config.ensemble, config.declaration.ballot
    answers_of = [_drop_settled(member[number] for member in answered) for number in range(len(questions))]
    ballots = [
        [
            ballot({**_values(row.answer.prediction), "measures": dict(row.answer.measures)})
            for row in answers
            if row.answer.prediction.error is None
        ]
        for answers in answers_of
    ]
    n_failed = [len(answers) - len(of_answers) for answers, of_answers in zip(answers_of, ballots, strict=True)]
    settled = [False] * len(questions)
    for n in set(n_failed):  # a member that failed has no ballot
        alike = [number for number, failed in enumerate(n_failed) if failed == n]
        units = [questions[number].answer_unit for number in alike]
        alike_ballots = [ballots[number] for number in alike]
        decided = settle_all(alike_ballots, ensemble.members - n, ensemble.vote, ensemble.stops, units)
        for number, is_settled in zip(alike, decided, strict=True):
            settled[number] = is_settled
    return [len(rows) < len(answered) or is_settled for rows, is_settled in zip(answers_of, settled, strict=True)]


class VotesByAgreement:
    """A run's blocks with votes in which members weigh by their agreement over all questions.

    They can be read again, each time by another vote on one block after the other.
    """

    def __init__(self, config: Config, blocks: Iterable[Tables]) -> None:
        """Read the blocks' answers once for the members' weights."""
        self._config, self._blocks, self._n_members = config, blocks, config.ensemble.members
        groups = [
            group_values(
                ["" if row["is_blank"] else row["answer_value"] for row in answers],
                question.answer_unit,
                [row["answer_unit"] for row in answers],
            )
            for tables in blocks
            for question, answers in _by_question(tables, self._n_members)
        ]
        self._weights = agreement_weights(np.array(groups, np.int64).reshape(len(groups), self._n_members))

    def __iter__(self) -> Iterator[Tables]:
        """Vote again, block by block."""
        for tables in self._blocks:
            votes = _vote_rows(self._config, list(_by_question(tables, self._n_members)), self._weights)
            yield {**tables, "votes": pa.Table.from_pylist(votes, SCHEMAS["votes"])}


def _by_question(tables: Tables, n_members: int) -> Iterator[tuple[Question, TableRows]]:
    answers = iter(tables["answers"].to_pylist())
    for row in tables["votes"].select(["question_id", "question", "asked_unit"]).to_pylist():
        yield Question(row["question_id"], row["question"], row["asked_unit"]), list(islice(answers, n_members))


def _vote_rows(config: Config, asked: Sequence[tuple[Question, TableRows]], weights: F64 | None = None) -> TableRows:
    rule = config.ensemble.vote
    if weights is None:  # all members count alike until all questions are answered: see vote_by_agreement
        rule = rule.model_copy(update={"weights": "uniform"})
    ballot = config.declaration.ballot
    voting = [tuple(member for member, row in enumerate(rows) if row["error"] is None) for _, rows in asked]
    verdicts: list[Verdict] = vote_all([[]] * len(asked), VoteRule(), [None] * len(asked))
    for members in {*voting} - {()}:  # a member that failed has no ballot
        alike = [number for number, of_question in enumerate(voting) if of_question == members]
        ballots = [
            [ballot({**row, "measures": dict(row["measures"])}) for row in map(asked[number][1].__getitem__, members)]
            for number in alike
        ]
        units = [asked[number][0].answer_unit for number in alike]
        of_members = None if weights is None else weights[list(members)]
        for number, verdict in zip(alike, vote_all(ballots, rule, units, of_members), strict=True):
            verdicts[number] = verdict
    voted = []
    for (question, answers), members, verdict in zip(asked, voting, verdicts, strict=True):
        failed = [answer["error"] for answer in answers if answer["error"] is not None]
        explanation = verdict.explanation if members or not failed else f"{FAILED}{failed[0][:_ERROR_CHARS]}"
        unit = question.answer_unit
        row: dict[str, Any] = {
            "question_id": question.question_id,
            "question": question.text,
            "asked_unit": unit,
            "answer": verdict.answer,
            "answer_value": verdict.answer_value,
            "answer_unit": verdict.answer_unit
            if measures_other(verdict.answer_unit, unit)
            else unit or verdict.answer_unit,
            "ref_ids": list(verdict.ref_ids),
            "explanation": explanation,
            "is_blank": verdict.is_blank,
            "winner": members[verdict.winner] if verdict.winner is not None else 0,
            "groups": [BLANK if group.is_blank else group.answer_value for group in verdict.groups],
            "group_weights": [group.weight for group in verdict.groups],
            "n_members": len(answers),
            "n_blank": sum(answers[member]["is_blank"] for member in members),
            "n_errors": len(failed),
        }
        voted.append(row)
    return voted


def _drop_settled(rows: Iterable[AnyRow | None]) -> list[AnyRow]:
    return [row for row in rows if row is not None]


def _answer_rows(config: Config, question: Question, answers: Sequence[MemberAnswer]) -> TableRows:
    lead, cut = config.declaration.lead, [any(call.is_shortened for call in answered.calls) for answered in answers]
    return [
        {
            **_values(answered.answer.prediction),
            "question_id": question.question_id,
            "member": member,
            "seed": seed_of(config, question.question_id, member, answered.answer.prediction.attempt, lead),
            "flags": (*answered.answer.prediction.flags, *(("shortened",) if cut[member] else ())),
            "measures": _numbers(answered.answer.measures),
            "reply": answered.answer.reply,
            "details": answered.answer.details,
        }
        for member, answered in enumerate(answers)
    ]


def _trace_rows(
    config: Config, question: Question, sources: Sequence[PreparedQuestion], answers: Sequence[MemberAnswer]
) -> TableRows:
    """Return the rows of every step; steps shared by all members appear once."""
    ensemble, rows = config.ensemble, TableRows()
    for member, source in enumerate(sources):
        owner = SHARED if ensemble.scope == "answer" else member
        steps = source.evidence.trace if source.evidence is not None else ()
        error = () if source.error is None else (TraceRow("prepare", error=source.error),)
        rows += [_trace_row(question, owner, row) for row in (*steps, *error)]
    known: dict[tuple[int, str], list[list[TraceRow]]] = {}
    for member, answered in enumerate(answers):
        for key, step in grouped(answered.answer.trace, lambda row: (row.attempt, row.step)).items():
            owner = member
            # What failed is asked again of its member alone.
            if ensemble.shares_context and not any(row.error for row in step):
                earlier = known.setdefault(key, [])
                if step in earlier:
                    continue
                owner = member if earlier else SHARED
                earlier.append(step)
            rows += [_trace_row(question, owner, row) for row in step]
        rows += [_trace_row(question, member, row) for row in answered.answer.other_replies]
    return rows


def _trace_row(question: Question, member: int, row: TraceRow) -> dict[str, Any]:
    return {**_values(row), "question_id": question.question_id, "member": member, "scores": _numbers(row.scores)}


def _values(record: Prediction | TraceRow | Call) -> dict[str, Any]:
    """The fields of a record that is no deeper than a row (``asdict`` copies what no row changes)."""
    return {name: getattr(record, name) for name in record.__slots__}


def _numbers(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, float(value)) for name, value in values.items()]


def _addresses_of(config: Config) -> dict[str, tuple[str, str]]:
    """Return the model and the address's digest of each deployment that has an address, as calls name them."""
    from kohaku_ray.models.openai import OpenAIConfig  # voters that count no servers do without its client

    return {
        name: (model.model, model.address_digest)
        for name, model in config.models.items()
        if isinstance(model, OpenAIConfig)
    }
