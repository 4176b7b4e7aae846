"""The actors of an answer job: retrievers prepare evidence, members answer from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kohaku_ray.arrays import F32
from kohaku_ray.config import Config
from kohaku_ray.engine.ledger import Ledger
from kohaku_ray.engine.tools import Call, EngineTools, LocalIndex, Model, RemoteIndex, Role
from kohaku_ray.errors import DataError, KohakuRayError
from kohaku_ray.generation.prompts import Prompts
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
    """Holds the index; prepares blocks of questions, and serves the index to members."""

    def __init__(self, config: Config, ledger: Ledger, models: Mapping[Role, Model], prompts: Prompts) -> None:
        self._config, self._ledger, self._models = config, ledger, models
        self._system = SYSTEMS[config.system]
        self._prompts = prompts
        self._index: LocalIndex | None = None

    def ready(self) -> None:
        """Open the index; calls before it do so themselves.

        Raises:
            DataError: There is no usable index.
        """
        self._open()

    async def prepare(
        self, questions: Sequence[Question], member: int, settled: Sequence[bool] | None = None
    ) -> list[Prepared | None]:
        """Prepare a block, all its questions at once; rows in their order, None for those that are settled."""
        return await _each(questions, settled, lambda question: self._prepare(question, member))

    async def embed(self, texts: list[str]) -> F32:
        """See ``Tools``."""
        return await self._open().embed(texts)

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """See ``Tools``."""
        return await self._open().search(vectors, top_k)

    async def lexical(self, queries: list[str], top_k: int) -> list[Hits]:
        """See ``Tools``."""
        return await self._open().lexical(queries, top_k)

    async def nodes(self, rows: list[int]) -> NodeTable:
        """See ``Tools``."""
        return await self._open().nodes(rows)

    async def prompt_tokens(self, tokenizer: str, revision: str | None, system: str, user: str) -> int:
        """See ``IndexSource``."""
        return await self._open().prompt_tokens(tokenizer, revision, system, user)

    def _open(self) -> LocalIndex:
        if self._index is None:
            self._index = LocalIndex(self._config)
        return self._index

    async def _prepare(self, question: Question, member: int) -> Prepared:
        tools = EngineTools(
            self._open(), self._ledger, self._models, self._config.seed, question.question_id, member, self._prompts
        )
        if not question.text.strip():
            return Prepared(question, None, "the question is empty", ())
        try:
            evidence = await self._system.prepare(question, tools, self._config)
        except DataError:
            # The ledger or the index is broken: the run cannot go on as if one question were at fault.
            raise
        except KohakuRayError as error:
            return Prepared(question, None, str(error), tuple(tools.calls))
        return Prepared(question, evidence, None, tuple(tools.calls))


class Member:
    """One ensemble member (one of its lanes): answers blocks with its own seeds."""

    def __init__(
        self,
        member: int,
        config: Config,
        ledger: Ledger,
        models: Mapping[Role, Model],
        prompts: Prompts,
        retriever: Any,
    ) -> None:
        self._member, self._config, self._ledger, self._models = member, config, ledger, models
        self._index = RemoteIndex(retriever)
        self._system = SYSTEMS[config.system]
        self._prompts = prompts

    async def answer(
        self, prepared: Sequence[Prepared | None], settled: Sequence[bool] | None = None
    ) -> list[Answered | None]:
        """Answer a block, all its questions at once; rows in their order, None for those that are settled."""
        return await _each(prepared, settled, self._answer)

    async def _answer(self, row: Prepared) -> Answered:
        if row.error is not None:
            return Answered(Answer(Prediction(error=row.error), (), ()), ())
        seed, question_id = self._config.seed, row.question.question_id
        tools = EngineTools(self._index, self._ledger, self._models, seed, question_id, self._member, self._prompts)
        try:
            answer = await self._system.answer(row.evidence, tools, self._config)
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
