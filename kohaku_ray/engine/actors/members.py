"""The actors of an answer job: retrievers prepare evidence, members answer from it, voters vote and write the files."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, TypeVar

import ray

from kohaku_ray.config import Config
from kohaku_ray.engine import metrics
from kohaku_ray.engine.actors.index_access import Depths, LocalIndex, remote
from kohaku_ray.engine.actors.tools import EngineTools, RunContext, Shared
from kohaku_ray.errors import ConfigError, DataError, KohakuRayError
from kohaku_ray.records import Prediction, Question
from kohaku_ray.run.block import Answered, Prepared, settle_block, vote_block
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.outputs import write_run
from kohaku_ray.run.summary import AnswerSummary
from kohaku_ray.run.tables import SHARED, Parts, Tables
from kohaku_ray.systems.base import Answer

In = TypeVar("In")
Out = TypeVar("Out")


class Retriever:
    """Holds an index or one of its shards, prepares blocks of questions of any run on it, and searches it for members.

    Retrievers of an index's shards ask each other: each takes blocks, and searches the shards of all.
    """

    def __init__(self, config: Config, depths: Depths | None = None, shard: int = 0, peers: Sequence[str] = ()) -> None:
        """Name an index, which is opened on first use; ``peers`` names a retriever per shard, among them this one."""
        self._config, self._depths, self._shard = config, depths, shard
        self._peer = functools.cache(lambda other: remote(ray.get_actor(peers[other])))

    def ready(self) -> None:
        """Open the index now; raises what ``open_index`` does."""
        _ = self._index

    async def run(self, method: str, items: list[Any], params: tuple[Any, ...], alone: bool = False) -> list[Any]:
        """Run a method of ``LocalIndex``, on this retriever's shard ``alone`` or on all."""
        if alone:
            return await self._index.on_shard(method, items, params)
        found: list[Any] = await getattr(self._index, method)(items, *params)
        return found

    async def prepare(
        self, context: RunContext, questions: Sequence[Question], member: int, settled: Sequence[bool] | None = None
    ) -> list[Prepared | None]:
        """Prepare a block, all its questions at once; rows in their order, None for those that are settled."""
        return await each(questions, settled, lambda question: prepare_one(self._index, context, question, member))

    def counts(self) -> Counter[tuple[str, str]]:
        """Count the items that the runs asked for and those that were computed: see ``Calls.counted``."""
        return self._index.counted

    @functools.cached_property
    def _index(self) -> LocalIndex:
        return LocalIndex.open(self._config, self._depths, self._shard, self._peer)


class Member:
    """A process in which the members of an ensemble answer, each with its own seeds."""

    async def answer(
        self,
        context: RunContext,
        members: Sequence[int],
        retriever: Any,
        prepared: Sequence[Prepared | None],
        settled: Sequence[bool] | None = None,
    ) -> list[list[Answered | None]]:
        """See ``answer_block``; what members of a question share travels once."""
        return await answer_block(context, members, remote(retriever), prepared, settled)


class Voter:
    """Votes on blocks, without a state; the one on the driver's node writes the run's files.

    An actor, since each task would start a process. Answers come in lists, one per task of ``Member.answer``.
    """

    def vote(self, config: Config, n_prepared: int, *parts: Sequence[Any]) -> tuple[AnswerSummary, Tables]:
        """See ``vote_block``."""
        result, tables = vote_block(config, n_prepared, *parts[:n_prepared], *chain.from_iterable(parts[n_prepared:]))
        n_in_error = result.n_questions_in_error
        metrics.add("kohaku_ray_questions_total", result.n_questions - n_in_error, outcome="answered")
        metrics.add("kohaku_ray_questions_total", n_in_error, outcome="error")
        return result, tables

    def settle(
        self, config: Config, questions: Sequence[Question], *answered: Sequence[Sequence[Answered | None]]
    ) -> list[bool]:
        """See ``settle_block``."""
        return settle_block(config, questions, *chain.from_iterable(answered))

    def finish(self, config: Config, run: str, blocks: Sequence[Any]) -> None:
        """Write a run's files from the refs of its blocks' tables in order, one block at a time; see ``write_run``."""
        write_run(config, RunDirectory(run), Parts(blocks, ray.get))


async def prepare_one(index: LocalIndex, context: RunContext, question: Question, member: int) -> Prepared:
    """Prepare one question for a member, or for all that share its evidence."""
    if not question.text.strip():
        return Prepared(question, None, "the question is empty")
    owner = SHARED if context.config.ensemble.scope == "answer" else member
    again = (question.question_id, owner) in context.again
    tools = EngineTools(index, context, question.question_id, member, again)
    evidence, error = None, None
    try:
        evidence = await context.config.declaration.prepare(question, tools, context.config.settings)
    except (DataError, ConfigError):
        # The ledger, the index or the system is broken, not one question: the run must stop.
        raise
    except KohakuRayError as failure:
        error = str(failure)
    return Prepared(question, evidence, error, tuple(tools.calls), tools.n_no_reply)


async def answer_block(
    context: RunContext,
    members: Sequence[int],
    index: LocalIndex,
    prepared: Sequence[Prepared | None],
    settled: Sequence[bool] | None,
) -> list[list[Answered | None]]:
    """Answer a block as members that share its evidence, all of them and all its questions at once.

    Returns:
        Per member its rows in the questions' order, None for those that are settled.
    """

    async def of_all(row: Prepared) -> list[Answered]:
        shared: Shared = {}
        return await asyncio.gather(*(_answer_one(context, member, index, row, shared) for member in members))

    rows = await each(prepared, settled, of_all)
    return [[None if row is None else row[place] for row in rows] for place in range(len(members))]


async def _answer_one(context: RunContext, member: int, index: LocalIndex, row: Prepared, shared: Shared) -> Answered:
    if row.error is not None:
        return Answered(Answer(Prediction(error=row.error)))
    question_id = row.question.question_id
    tools = EngineTools(index, context, question_id, member, (question_id, member) in context.again, shared=shared)
    try:
        answer = await context.config.declaration.answer(row.evidence, tools, context.config.settings)
    except (DataError, ConfigError):
        raise
    except KohakuRayError as error:
        answer = Answer(Prediction(error=str(error)))
    return Answered(answer, tuple(tools.calls), tools.n_no_reply)


async def each(
    rows: Sequence[In | None], settled: Sequence[bool] | None, work: Callable[[In], Awaitable[Out]]
) -> list[Out | None]:
    """Process all rows at once; None for those that are settled or empty."""
    skipped = settled or [False] * len(rows)

    async def one(row: In | None, is_settled: bool) -> Out | None:
        return None if row is None or is_settled else await work(row)

    return await asyncio.gather(*map(one, rows, skipped))
