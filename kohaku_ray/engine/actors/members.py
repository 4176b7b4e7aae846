"""The actors of an answer job: retrievers prepare evidence, members answer from it, voters vote and write the files."""

from __future__ import annotations

import asyncio
import functools
import pickle
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from kohaku_ray.config import Config
from kohaku_ray.engine import metrics
from kohaku_ray.engine.actors.index_access import Depths, IndexOperations, LocalIndex, RemoteIndex
from kohaku_ray.engine.actors.tools import EngineTools, RunContext, Shared
from kohaku_ray.engine.serving.handles import rank_pairs
from kohaku_ray.errors import ConfigError, DataError, KohakuRayError
from kohaku_ray.index.gpu import missing
from kohaku_ray.records import Prediction, Question, TraceRow
from kohaku_ray.run.block import Answered, Prepared, settle_block, vote_block
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.indexes import searched_views
from kohaku_ray.run.outputs import write_run
from kohaku_ray.run.summary import AnswerSummary
from kohaku_ray.run.tables import SHARED, Parts, Tables
from kohaku_ray.systems.base import Answer
from kohaku_ray.values.read import clean_text

In = TypeVar("In")
Out = TypeVar("Out")


class Retriever:
    """Holds an index or one of its shards, prepares blocks of questions of any run on it, and searches it for members.

    Retrievers of an index's shards ask each other: each takes blocks, and searches the shards of all.
    """

    def __init__(self, config: Config, depths: Depths | None = None, shard: int = 0, peers: Sequence[str] = ()) -> None:
        """Name an index, which is opened on first use; ``peers`` names a retriever per shard, among them this one."""
        self._config, self._depths, self._shard = config, depths, shard
        self._peer = functools.cache(lambda other: RemoteIndex(ray.get_actor(peers[other])))

    def ready(self) -> str:
        """Open the index now, on the GPU if it is searched there; raises what ``open_index`` does.

        Returns:
            Why `index.search_device: auto` has FAISS search on the CPU of a retriever that has a GPU; else empty.
        """
        index = self._index
        if self._config.cluster.retriever.n_gpus and self._config.index.search_device == "auto" and (why := missing()):
            return f"index.search_device auto: FAISS searches on the CPU, since {why}"
        return index.put_on_gpu([view.kinds for view in searched_views(self._config)])

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
        return LocalIndex.open(self._config, self._depths, self._shard, self._peer, rank_pairs)


class Member:
    """A process in which members of an ensemble answer, each with its own seeds: one task per member and block."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, SharedBlock] = {}

    async def answer(
        self, refs: tuple[Any, Any], member: int, retriever: Any, settled: Sequence[bool] | None = None
    ) -> list[SentAnswer | None]:
        """Answer a block as one member; see ``answer_block``.

        ``refs`` are those of the run's context and of the prepared block, not their values: the tasks that have the
        same ones fetch them once, and share what they make from them until the last of these tasks ends.
        """
        block = self._blocks.get(refs)
        if block is None:
            block = self._blocks[refs] = SharedBlock(refs)
        block.n_tasks += 1
        try:
            context, prepared = await block.fetched
            rows = await answer_block(context, member, RemoteIndex(retriever), prepared, settled, block.shared)
            return [None if row is None else block.pack(row) for row in rows]
        finally:
            block.n_tasks -= 1
            if block.n_tasks == 0:
                del self._blocks[refs]


class SharedBlock:
    """What the tasks of a block share in a process while any of them runs."""

    def __init__(self, refs: tuple[Any, Any]) -> None:
        """Start to fetch the run's context and the prepared block."""
        self.n_tasks = 0
        self.fetched = asyncio.gather(*refs)
        self.shared: Shared = {}
        self._pickled: dict[int, tuple[Any, bytes]] = {}

    def pack(self, row: Answered) -> SentAnswer:
        """Make an answer ready to send; a trace that members share is pickled once."""
        trace = row.answer.trace
        if id(trace) not in self._pickled:
            # Beside the trace itself: its id stands for it as long as it lives.
            self._pickled[id(trace)] = trace, pickle.dumps(trace, pickle.HIGHEST_PROTOCOL)
        return SentAnswer(replace(row, answer=replace(row.answer, trace=())), self._pickled[id(trace)][1])


@dataclass(frozen=True, slots=True)
class SentAnswer:
    """A member's answer on its way to a voter, its trace apart and pickled."""

    answered: Answered
    trace: bytes


class Voter:
    """Votes on blocks, without a state; the one on the driver's node writes the run's files.

    An actor, since each task would start a process.
    """

    def vote(self, config: Config, n_prepared: int, *parts: Sequence[Any]) -> tuple[AnswerSummary, Tables]:
        """See ``vote_block``; equal pickled traces are read once."""
        read = functools.cache(pickle.loads)
        answered = [
            [None if row is None else _with_trace(row.answered, read(row.trace)) for row in member]
            for member in parts[n_prepared:]
        ]
        result, tables = vote_block(config, n_prepared, *parts[:n_prepared], *answered)
        n_in_error = result.n_questions_in_error
        metrics.add("kohaku_ray_questions_total", result.n_questions - n_in_error, outcome="answered")
        metrics.add("kohaku_ray_questions_total", n_in_error, outcome="error")
        return result, tables

    def settle(self, config: Config, questions: Sequence[Question], *sent: Sequence[SentAnswer | None]) -> list[bool]:
        """See ``settle_block``."""
        answered = [[None if row is None else row.answered for row in member] for member in sent]
        return settle_block(config, questions, *answered)

    def finish(self, config: Config, run: str, blocks: Sequence[Any]) -> None:
        """Write a run's files from the refs of its blocks' tables in order, one block at a time; see ``write_run``."""
        write_run(config, RunDirectory(run), Parts(blocks, ray.get))


async def prepare_one(index: IndexOperations, context: RunContext, question: Question, member: int) -> Prepared:
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
    except RayError:
        # An actor that the run needs is lost, not one question: the run must stop.
        raise
    except Exception as failure:
        error = _failure_text(context.config.declaration.name, failure)
    return Prepared(question, evidence, error, tuple(tools.calls), tools.n_no_reply)


async def answer_block(
    context: RunContext,
    member: int,
    index: IndexOperations,
    prepared: Sequence[Prepared | None],
    settled: Sequence[bool] | None,
    shared: Shared,
) -> list[Answered | None]:
    """Answer a block as one member, all its questions at once.

    Members with the same evidence share what ``Tools.once`` makes in ``shared``.

    Returns:
        Rows in the questions' order, None for those that are settled.
    """
    declaration, settings = context.config.declaration, context.config.settings

    async def answer_one(row: Prepared) -> Answered:
        if row.error is not None:
            return Answered(Answer(Prediction(error=row.error)))
        question_id = row.question.question_id
        tools = EngineTools(index, context, question_id, member, (question_id, member) in context.again, shared=shared)
        try:
            answer = await declaration.answer(row.evidence, tools, settings)
        except (DataError, ConfigError, RayError):
            raise
        except Exception as failure:
            answer = Answer(Prediction(error=_failure_text(declaration.name, failure)))
        return Answered(answer, tuple(tools.calls), tools.n_no_reply)

    return await each(prepared, settled, answer_one)


def _failure_text(system: str, failure: Exception) -> str:
    """Say why a step of a system failed; where in its code, unless it was on purpose."""
    if isinstance(failure, KohakuRayError):
        return str(failure)
    *_, raised = traceback.extract_tb(failure.__traceback__)
    where = f"{Path(raised.filename).name}, line {raised.lineno}"
    return clean_text(f"system {system} failed with {type(failure).__name__} in {where}: {failure}")


async def each(
    rows: Sequence[In | None], settled: Sequence[bool] | None, work: Callable[[In], Awaitable[Out]]
) -> list[Out | None]:
    """Process all rows at once; None for those that are settled or empty."""
    skipped = settled or [False] * len(rows)

    async def one(row: In | None, is_settled: bool) -> Out | None:
        return None if row is None or is_settled else await work(row)

    return await asyncio.gather(*map(one, rows, skipped))


def _with_trace(row: Answered, trace: tuple[TraceRow, ...]) -> Answered:
    return replace(row, answer=replace(row.answer, trace=trace))
