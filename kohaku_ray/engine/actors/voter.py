"""The actor that votes on blocks and writes a run's files, alone or in the process of a small run's members."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kohaku_ray.answering.votes import settle_block, vote_block
from kohaku_ray.engine import metrics
from kohaku_ray.engine.actors.members import MemberProcess
from kohaku_ray.store.parts import JoinedParts

if TYPE_CHECKING:
    from kohaku_ray.config import Config
    from kohaku_ray.engine.actors.members import SentAnswer
    from kohaku_ray.models.summary import AnswerSummary
    from kohaku_ray.records import Question
    from kohaku_ray.store.parts import RunParts


class Voter:
    """Votes on blocks, without a state; the one on the driver's node writes the run's files.

    An actor, since each task would start a process.
    """

    def vote(self, config: Config, parts: RunParts, n_prepared: int, *given: Sequence[Any]) -> AnswerSummary:
        """See ``vote_block``; the block's rows become a part of the run. Equal pickled traces are read once."""
        read = functools.cache(pickle.loads)
        answered = [[None if row is None else row.unpack(read) for row in member] for member in given[n_prepared:]]
        result, tables = vote_block(config, n_prepared, *given[:n_prepared], *answered)
        parts.write(tables["votes"]["question_id"].to_pylist(), tables, asdict(result))
        n_in_error = result.n_questions_in_error
        metrics.add("kohaku_ray_questions_total", result.n_questions - n_in_error, outcome="answered")
        metrics.add("kohaku_ray_questions_total", n_in_error, outcome="error")
        return result

    def settle(self, config: Config, questions: Sequence[Question], *sent: Sequence[SentAnswer | None]) -> list[bool]:
        """See ``settle_block``."""
        answered = [[None if row is None else row.answered for row in member] for member in sent]
        return settle_block(config, questions, *answered)

    def write(self, config: Config, parts: RunParts, names: Sequence[str]) -> None:
        """Write a run's files from its parts in the order of their names; see ``write_run``."""
        # Of all voters, one alone writes.
        from kohaku_ray.answering.outputs import write_run
        from kohaku_ray.store.directory import RunDirectory

        write_run(config, RunDirectory(parts.path), JoinedParts(parts, names))


class MembersAndVoter(MemberProcess):
    """Members of a small run and its voter in one process, which takes two seconds of CPU to start."""

    def __init__(self) -> None:
        super().__init__()
        self._voter = Voter()

    async def vote(self, *arguments: Any) -> AnswerSummary:
        """See ``Voter``; in a thread, as every step of it: members answer meanwhile."""
        return await asyncio.to_thread(self._voter.vote, *arguments)

    async def settle(self, *arguments: Any) -> list[bool]:
        """See ``Voter``."""
        return await asyncio.to_thread(self._voter.settle, *arguments)

    async def write(self, *arguments: Any) -> None:
        """See ``Voter``."""
        await asyncio.to_thread(self._voter.write, *arguments)
