"""The actors of an answer job: retrievers prepare evidence, members answer from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kohaku_ray.arrays import F32
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.cache import Depths, RememberingIndex
from kohaku_ray.engine.actors.tools import Call, EngineTools, IndexSource, LocalIndex, RemoteIndex, Setup, Tokenizer
from kohaku_ray.errors import DataError, KohakuRayError
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import Prediction, Question
from kohaku_ray.systems import kohaku
from kohaku_ray.systems.base import Answer, System
from kohaku_ray.tree.nodes import NodeTable

In = TypeVar("In")
Out = TypeVar("Out")

SYSTEMS: Mapping[str, System[Any]] = {"kohaku": kohaku}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a system gathered for one question, or why it could not.

    Attributes:
        question: The question.
        evidence: The system's own record; None when ``error`` is set.
        error: Why there is none.
        calls: Model calls made on the way.
    """

    question: Question
    evidence: Any
    error: str | None
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """One member's answer to one question.

    Attributes:
        answer: The answer; a blank one with the error when the system failed.
        calls: Model calls made on the way.
    """

    answer: Answer
    calls: tuple[Call, ...]


class Retriever:
    """Holds an index; prepares blocks of questions of any run over it, and serves it to members."""

    def __init__(self, config: Config, depths: Depths | None = None) -> None:
        """Take note of an index.

        Args:
            config: Names the index and its encoder.
            depths: Set where several runs ask the same: what one has encoded or searched, no other does again.
        """
        self._config, self._depths = config, depths
        self._index: IndexSource | None = None

    def ready(self) -> None:
        """Open the index; calls before it do so themselves.

        Raises:
            DataError: There is no usable index.
        """
        self._open()

    async def prepare(
        self, setup: Setup, questions: Sequence[Question], member: int, settled: Sequence[bool] | None = None
    ) -> list[Prepared | None]:
        """Prepare a block, all its questions at once; rows in their order, None for those that are settled."""
        return await _each(questions, settled, lambda question: self._prepare(setup, question, member))

    async def embed(self, texts: list[str]) -> F32:
        """See ``Tools``."""
        return await self._open().embed(texts)

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """See ``Tools``."""
        return await self._open().search(vectors, top_k)

    async def lexical(self, queries: list[str], top_k: int) -> list[Hits]:
        """See ``Tools``."""
        return await self._open().lexical(queries, top_k)

    async def nodes(self, rows: list[int], section_tokens: int, tokenizers: tuple[Tokenizer, ...]) -> NodeTable:
        """See ``IndexSource``."""
        return await self._open().nodes(rows, section_tokens, tokenizers)

    async def prompt_tokens(self, tokenizer: str, revision: str | None, system: str, user: str) -> int:
        """See ``IndexSource``."""
        return await self._open().prompt_tokens(tokenizer, revision, system, user)

    def shared(self) -> dict[str, tuple[int, int]]:
        """Count what was asked of the index and what of it was computed, by what it is."""
        return self._index.counts() if isinstance(self._index, RememberingIndex) else {}

    def _open(self) -> IndexSource:
        if self._index is None:
            index = LocalIndex(self._config)
            self._index = index if self._depths is None else RememberingIndex(index, self._depths)
        return self._index

    async def _prepare(self, setup: Setup, question: Question, member: int) -> Prepared:
        tools = EngineTools(self._open(), setup, question.question_id, member)
        if not question.text.strip():
            return Prepared(question, None, "the question is empty", ())
        try:
            evidence = await SYSTEMS[setup.config.system].prepare(question, tools, setup.config)
        except DataError:
            # The ledger or the index is broken: the run cannot go on as if one question were at fault.
            raise
        except KohakuRayError as error:
            return Prepared(question, None, str(error), tuple(tools.calls))
        return Prepared(question, evidence, None, tuple(tools.calls))


class Member:
    """A process in which ensemble members answer: each call is one member's, on one block, with its own seeds."""

    async def answer(
        self,
        setup: Setup,
        member: int,
        retriever: Any,
        prepared: Sequence[Prepared | None],
        settled: Sequence[bool] | None = None,
    ) -> list[Answered | None]:
        """Answer a block, all its questions at once; rows in their order, None for those that are settled."""
        index = RemoteIndex(retriever)
        return await _each(prepared, settled, lambda row: self._answer(setup, member, index, row))

    async def _answer(self, setup: Setup, member: int, index: IndexSource, row: Prepared) -> Answered:
        if row.error is not None:
            return Answered(Answer(Prediction(error=row.error), (), ()), ())
        tools = EngineTools(index, setup, row.question.question_id, member)
        try:
            answer = await SYSTEMS[setup.config.system].answer(row.evidence, tools, setup.config)
        except DataError:
            raise
        except KohakuRayError as error:
            answer = Answer(Prediction(error=str(error)), (), ())
        return Answered(answer, tuple(tools.calls))


async def _each(
    rows: Sequence[In | None], settled: Sequence[bool] | None, work: Callable[[In], Awaitable[Out]]
) -> list[Out | None]:
    """Work on all rows at once but those that are settled or empty."""
    wanted = [
        place for place, row in enumerate(rows) if row is not None and not (settled is not None and settled[place])
    ]
    done = await asyncio.gather(*(work(rows[place]) for place in wanted))  # type: ignore[arg-type]
    results: list[Out | None] = [None] * len(rows)
    for place, result in zip(wanted, done, strict=True):
        results[place] = result
    return results
