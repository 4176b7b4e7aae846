"""The actors of an answer job: retrievers prepare evidence, members answer from it, voters vote and write the files."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, TypeVarTuple

import pyarrow as pa
import ray

from kohaku_ray.answering.batching import Method
from kohaku_ray.answering.block import MemberAnswer, PreparedQuestion, answer_block, prepare_block
from kohaku_ray.answering.local_index import Depths, LocalIndex
from kohaku_ray.answering.tools import RunContext, Shared
from kohaku_ray.answering.votes import settle_block, vote_block, vote_by_agreement
from kohaku_ray.config import Config
from kohaku_ray.engine import metrics
from kohaku_ray.engine.serving.handles import rank_pairs
from kohaku_ray.engine.serving.limiter import limiter_of_encoder
from kohaku_ray.index.gpu import missing
from kohaku_ray.records import Question
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.indexes import searched_views
from kohaku_ray.run.outputs import write_run
from kohaku_ray.run.summary import AnswerSummary
from kohaku_ray.run.tables import Parts, Tables

Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def _in_actor(method: Method[Item, *Arguments, Result]) -> Method[Item, *Arguments, Result]:
    """Run an operation of ``LocalIndex`` in the actor of a ``RemoteIndex``."""

    @functools.wraps(method)
    async def call(self: RemoteIndex, items: Sequence[Item], *params: *Arguments) -> list[Result]:
        results: list[Result] = await self._retriever.run.remote(method.__name__, list(items), params)
        return results

    return call


class RemoteIndex:
    """An index that a retriever actor holds."""

    def __init__(self, retriever: Any) -> None:
        self._retriever = retriever

    embed = _in_actor(LocalIndex.embed)
    search = _in_actor(LocalIndex.search)
    lexical = _in_actor(LocalIndex.lexical)
    term_weights = _in_actor(LocalIndex.term_weights)
    vectors = _in_actor(LocalIndex.vectors)
    rank_pairs = _in_actor(LocalIndex.rank_pairs)
    nodes = _in_actor(LocalIndex.nodes)

    def run_alone(self, method: str, items: Sequence[Any], params: tuple[Any, ...]) -> Awaitable[list[Any]]:
        """See ``ShardOperations``."""
        results: Awaitable[list[Any]] = self._retriever.run.remote(method, list(items), params, alone=True)
        return results


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
        return index.open_views([view.kinds for view in searched_views(self._config)])

    async def run(self, method: str, items: list[Any], params: tuple[Any, ...], alone: bool = False) -> list[Any]:
        """Run a method of ``LocalIndex``, on this retriever's shard ``alone`` or on all."""
        if alone:
            return await self._index.run_alone(method, items, params)
        results: list[Any] = await getattr(self._index, method)(items, *params)
        return results

    async def prepare(
        self, context: RunContext, questions: Sequence[Question], member: int, settled: Sequence[bool] | None = None
    ) -> list[PreparedQuestion | None]:
        """See ``prepare_block``."""
        return await prepare_block(context, self._index, questions, member, settled)

    def counts(self) -> Counter[tuple[str, str]]:
        """Count the items that the runs asked for and those that were computed: see ``BatchingObject.counted``."""
        return self._index.counted

    @functools.cached_property
    def _index(self) -> LocalIndex:
        config = self._config
        return LocalIndex.open(config, self._depths, self._shard, self._peer, rank_pairs, limiter_of_encoder(config))


class MemberProcess:
    """A process in which members of an ensemble answer, each with its own seeds: one task per member and block."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, SharedBlock] = {}
        self._n_answered = Counter[str]()  # by the hex of their context's ref

    async def answer(
        self, refs: tuple[Any, Any], member: int, retriever: Any, settled: Sequence[bool] | None = None
    ) -> list[SentAnswer | None]:
        """Answer a block as one member; see ``answer_block``.

        ``refs`` are those of the run's context and of the prepared block, not their values: tasks with the same ones
        fetch them once, and share what they make from them until the last of these tasks ends.
        """
        block = self._blocks.get(refs)
        if block is None:
            block = self._blocks[refs] = SharedBlock(refs)
        block.n_tasks += 1
        try:
            context, prepared = await block.fetched
            count = functools.partial(self._n_answered.update, [refs[0].hex()])
            rows = await answer_block(context, RemoteIndex(retriever), prepared, member, settled, block.shared, count)
            return [None if row is None else block.pack(row) for row in rows]
        finally:
            block.n_tasks -= 1
            if block.n_tasks == 0:
                del self._blocks[refs]

    async def n_answered(self, context: str) -> int:
        """Count the member answers of a context that ended here, and those that settled questions did not need."""
        return self._n_answered[context]


class SharedBlock:
    """What the tasks of a block share in a process while any of them runs."""

    def __init__(self, refs: tuple[Any, Any]) -> None:
        """Start to fetch the run's context and the prepared block."""
        self.n_tasks = 0
        self.fetched = asyncio.gather(*refs)
        self.shared: Shared = {}
        self._pickled: dict[int, tuple[Any, bytes]] = {}

    def pack(self, row: MemberAnswer) -> SentAnswer:
        """Make an answer ready to send; a trace that members share is pickled once."""
        trace = row.answer.trace
        if id(trace) not in self._pickled:
            # Beside the trace itself: its id stands for it as long as it lives.
            self._pickled[id(trace)] = trace, pickle.dumps(trace, pickle.HIGHEST_PROTOCOL)
        return SentAnswer(replace(row, answer=replace(row.answer, trace=())), self._pickled[id(trace)][1])


@dataclass(frozen=True, slots=True)
class SentAnswer:
    """A member's answer on its way to a voter, its trace apart and pickled."""

    answered: MemberAnswer
    trace: bytes

    def unpack(self, read: Callable[[bytes], Any]) -> MemberAnswer:
        """Return the answer with its trace, which ``read`` unpickles."""
        return replace(self.answered, answer=replace(self.answered.answer, trace=read(self.trace)))


class Voter:
    """Votes on blocks, without a state; the one on the driver's node writes the run's files.

    An actor, since each task would start a process.
    """

    def vote(self, config: Config, n_prepared: int, *parts: Sequence[Any]) -> tuple[AnswerSummary, Tables]:
        """See ``vote_block``; equal pickled traces are read once."""
        read = functools.cache(pickle.loads)
        answered = [[None if row is None else row.unpack(read) for row in member] for member in parts[n_prepared:]]
        result, tables = vote_block(config, n_prepared, *parts[:n_prepared], *answered)
        n_in_error = result.n_questions_in_error
        metrics.add("kohaku_ray_questions_total", result.n_questions - n_in_error, outcome="answered")
        metrics.add("kohaku_ray_questions_total", n_in_error, outcome="error")
        return result, tables

    def settle(self, config: Config, questions: Sequence[Question], *sent: Sequence[SentAnswer | None]) -> list[bool]:
        """See ``settle_block``."""
        answered = [[None if row is None else row.answered for row in member] for member in sent]
        return settle_block(config, questions, *answered)

    def vote_by_agreement(self, config: Config, blocks: Sequence[Any]) -> list[pa.Table]:
        """See ``vote_by_agreement``; ``blocks`` are the refs of a run's tables."""
        return vote_by_agreement(config, Parts(blocks, ray.get))

    def write(self, config: Config, run: str, blocks: Sequence[Any], votes: Sequence[pa.Table] | None) -> None:
        """Write a run's files from the refs of its blocks' tables in order, one block at a time; see ``write_run``."""
        write_run(config, RunDirectory(run), Parts(blocks, ray.get, votes))
