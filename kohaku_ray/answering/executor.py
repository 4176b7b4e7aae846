"""Start the steps of a block in their order (``start_block``), and run them in this process without Ray.

The engine's ``RayExecutor`` runs them on its actors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

from kohaku_ray.answering.block import MemberAnswer, PreparedQuestion, answer_block, prepare_block
from kohaku_ray.answering.index_operations import IndexOperations
from kohaku_ray.answering.tools import RunContext, Shared
from kohaku_ray.answering.votes import settle_block, vote_block
from kohaku_ray.config import Config
from kohaku_ray.ensemble.decide import default_waves
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.records import Question
from kohaku_ray.store.tables import Tables


class Executor(Protocol):
    """Runs the steps of one block of questions.

    Each returns at once, a handle of its result: a Ray reference, a task of asyncio. Steps that take handles start when
    their results are there.
    """

    def prepare(self, member: int, settled: Any | None, /) -> Any:
        """Prepare the questions that are not ``settled``; see ``prepare_block``."""
        ...

    def answer(self, member: int, prepared: Any, settled: Any | None, /) -> Any:
        """Answer them as one member; see ``answer_block``."""
        ...

    def settle(self, answered: Sequence[Any], /) -> Any:
        """Find the questions that no further member could change; see ``settle_block``."""
        ...

    def vote(self, prepared: Sequence[Any], answered: Sequence[Any], /) -> Any:
        """Vote on the block; see ``vote_block``."""
        ...


def start_block(config: Config, executor: Executor) -> Any:
    """Start all steps of a block; returns the handle of its vote."""
    prepared: list[Any] = []
    answered: list[Any] = []
    settled = None
    for wave in waves_of(config):
        if answered:
            settled = executor.settle(tuple(answered))  # those of earlier waves alone
        for member in wave:
            if not prepared or config.ensemble.scope == "question":
                prepared.append(executor.prepare(member, settled))
            answered.append(executor.answer(member, prepared[-1], settled))
    return executor.vote(prepared, answered)


def waves_of(config: Config) -> list[range]:
    """Split the members into waves; one wave if early_stop is never."""
    n_members = config.ensemble.members
    if config.ensemble.stops == "never":
        return [range(n_members)]
    ends = list(accumulate(default_waves(n_members)))
    return [range(start, end) for start, end in pairwise([0, *ends])]


def block_size(config: Config, n_questions: int) -> int:
    """Return the questions per block: few enough to keep every replica busy to the end, enough to batch.

    One with a budget, which may be passed by the calls in flight, and one with waves: a later one waits for the block's
    slowest answer, while the other questions' contexts leave their replica's cache.
    """
    if config.budget.is_set or len(waves_of(config)) > 1:
        return config.cluster.block_size or 1
    return config.cluster.block_size or min(max(n_questions // (4 * n_replicas(config)), 1), 32)


def n_replicas(config: Config) -> int:
    """Return the most replicas of any deployment that answers."""
    return max(deployment.most_replicas for deployment in config.answering_deployments.values())


class InProcessExecutor:
    """Runs the steps of one block as tasks of the running event loop."""

    def __init__(self, context: RunContext, index: IndexOperations, questions: Sequence[Question]) -> None:
        self._context, self._index, self._questions = context, index, questions
        self._shared: dict[Any, Shared] = {}  # by the handle of the evidence

    def prepare(self, member: int, settled: Any | None) -> Any:
        """See ``Executor``."""

        async def run() -> list[PreparedQuestion | None]:
            return await prepare_block(self._context, self._index, self._questions, member, settled and await settled)

        return asyncio.ensure_future(run())

    def answer(self, member: int, prepared: Any, settled: Any | None) -> Any:
        """See ``Executor``."""
        shared = self._shared.setdefault(prepared, {})

        async def run() -> list[MemberAnswer | None]:
            rows, is_settled = await prepared, settled and await settled
            return await answer_block(self._context, self._index, rows, member, is_settled, shared)

        return asyncio.ensure_future(run())

    def settle(self, answered: Sequence[Any]) -> Any:
        """See ``Executor``."""

        async def run() -> list[bool]:
            return settle_block(self._context.config, self._questions, *await asyncio.gather(*answered))

        return asyncio.ensure_future(run())

    def vote(self, prepared: Sequence[Any], answered: Sequence[Any]) -> Any:
        """See ``Executor``."""

        async def run() -> tuple[AnswerSummary, Tables]:
            rows = await asyncio.gather(*prepared, *answered)
            return vote_block(self._context.config, len(prepared), *rows)

        return run()
