"""Run a system on a block of questions, all at once: ``prepare`` once per question, ``answer`` per member."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kohaku_ray.answering.tools import MemberTools, RunContext, Shared
from kohaku_ray.errors import ConfigError, DataError, KohakuRayError, describe_raised
from kohaku_ray.records import Prediction, Question
from kohaku_ray.store.tables import SHARED
from kohaku_ray.systems.base import Answer, Traced
from kohaku_ray.values.read import clean_text

if TYPE_CHECKING:
    from kohaku_ray.answering.index_operations import IndexOperations
    from kohaku_ray.models.calls import Call

Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class PreparedQuestion:
    """One question's evidence (a record of the system's own) or the error in its place, and the calls of ``prepare``.

    ``n_no_reply`` model calls got no reply: the next start makes them again. ``refused`` says why a server refuses all.
    """

    question: Question
    evidence: Traced | None
    error: str | None
    calls: tuple[Call, ...] = ()
    n_no_reply: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """One member's answer to one question (a blank one with the error if the system failed), and its model calls."""

    answer: Answer
    calls: tuple[Call, ...] = ()
    n_no_reply: int = 0
    refused: str = ""


async def prepare_block(
    context: RunContext,
    index: IndexOperations,
    questions: Sequence[Question],
    member: int,
    settled: Sequence[bool] | None,
) -> list[PreparedQuestion | None]:
    """Prepare a block for a member, or for all that share its evidence.

    Returns:
        Rows in the questions' order, None for those that are settled.
    """
    return await gather_unsettled(
        questions, settled, lambda question: prepare_question(context, index, question, member)
    )


async def prepare_question(
    context: RunContext, index: IndexOperations, question: Question, member: int
) -> PreparedQuestion:
    """Prepare one question; an error that breaks the run, not this question alone, is raised."""
    if not question.text.strip():
        return PreparedQuestion(question, None, "the question is empty")
    config = context.config
    owner = SHARED if config.ensemble.scope == "answer" else member
    again = (question.question_id, owner) in context.again
    tools = MemberTools(index, context, question.question_id, member, again, question.number)
    evidence, error = None, None
    try:
        evidence = await config.declaration.prepare(question, tools, config.settings)
    except Exception as failure:
        if isinstance(failure, (DataError, ConfigError, *context.fatal)):
            raise
        error = _failure_text(config.declaration.name, failure)
    return PreparedQuestion(question, evidence, error, tuple(tools.calls), tools.n_no_reply, tools.refused)


async def answer_block(
    context: RunContext,
    index: IndexOperations,
    prepared: Sequence[PreparedQuestion | None],
    member: int,
    settled: Sequence[bool] | None,
    shared: Shared,
    count: Callable[[], object] = lambda: None,
) -> list[MemberAnswer | None]:
    """Answer a block as one member; members with the same evidence have one ``shared`` (``Tools.shared_by_members``).

    ``count`` is called as each row is done.

    Returns:
        Rows in the questions' order, None for those that are settled.
    """
    declaration, settings = context.config.declaration, context.config.settings

    async def answer_question(row: PreparedQuestion) -> MemberAnswer:
        if row.error is not None:
            return MemberAnswer(Answer(Prediction(error=row.error)))
        question_id, number = row.question.question_id, row.question.number
        again = (question_id, member) in context.again
        tools = MemberTools(index, context, question_id, member, again, number, shared=shared)
        try:
            answer = await declaration.answer(row.evidence, tools, settings)
        except Exception as failure:
            if isinstance(failure, (DataError, ConfigError, *context.fatal)):
                raise
            answer = Answer(Prediction(error=_failure_text(declaration.name, failure)))
        return MemberAnswer(answer, tuple(tools.calls), tools.n_no_reply, tools.refused)

    return await gather_unsettled(prepared, settled, answer_question, count)


async def gather_unsettled(
    rows: Sequence[Input | None],
    settled: Sequence[bool] | None,
    work: Callable[[Input], Awaitable[Output]],
    count: Callable[[], object] = lambda: None,
) -> list[Output | None]:
    """Process all rows at once; None for those that are settled or empty. ``count`` is called as each is done."""

    async def process(row: Input | None, is_settled: bool) -> Output | None:
        output = None if row is None or is_settled else await work(row)
        count()
        return output

    return await asyncio.gather(*map(process, rows, settled or [False] * len(rows)))


def _failure_text(system: str, failure: Exception) -> str:
    """Say why a step of a system failed; where in its code, unless it was on purpose."""
    if isinstance(failure, KohakuRayError):
        return str(failure)
    return clean_text(f"system {system} failed with {describe_raised(failure)}")
