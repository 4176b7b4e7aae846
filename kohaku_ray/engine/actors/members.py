"""The actor in which members of an ensemble answer from evidence that a retriever has prepared."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from kohaku_ray.answering.block import MemberAnswer, answer_block
from kohaku_ray.answering.index_operations import IndexOperations

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from kohaku_ray.answering.batching import Method
    from kohaku_ray.answering.tools import Shared

Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def _in_actor(method: Method[Item, *Arguments, Result]) -> Method[Item, *Arguments, Result]:
    """Run an operation of an index in the actor of a ``RemoteIndex``."""

    @functools.wraps(method)
    async def call(self: RemoteIndex, items: Sequence[Item], *params: *Arguments) -> list[Result]:
        results: list[Result] = await self._retriever.run.remote(method.__name__, list(items), params)
        return results

    return call


class RemoteIndex:
    """An index that a retriever actor holds."""

    def __init__(self, retriever: ActorHandle) -> None:
        self._retriever = retriever

    embed = _in_actor(IndexOperations.embed)
    search = _in_actor(IndexOperations.search)
    lexical = _in_actor(IndexOperations.lexical)
    term_weights = _in_actor(IndexOperations.term_weights)
    vectors = _in_actor(IndexOperations.vectors)
    rank_pairs = _in_actor(IndexOperations.rank_pairs)
    nodes = _in_actor(IndexOperations.nodes)

    def run_alone(self, method: str, items: Sequence[Any], params: tuple[Any, ...]) -> Awaitable[list[Any]]:
        """See ``ShardOperations``."""
        results: Awaitable[list[Any]] = self._retriever.run.remote(method, list(items), params, alone=True)
        return results


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
