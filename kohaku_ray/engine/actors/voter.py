"""The actor that votes on blocks and writes a run's files, alone or in the process of a small run's members."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray

from kohaku_ray.answering.votes import settle_block, vote_block, vote_by_agreement
from kohaku_ray.engine import metrics
from kohaku_ray.engine.actors.members import MemberProcess
from kohaku_ray.run.tables import Parts, Tables

if TYPE_CHECKING:
    from kohaku_ray.config import Config
    from kohaku_ray.engine.actors.members import SentAnswer
    from kohaku_ray.records import Question
    from kohaku_ray.run.record.summary import AnswerSummary


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
        # Of all voters, one alone writes.
        from kohaku_ray.run.record.directory import RunDirectory
        from kohaku_ray.run.record.outputs import write_run

        write_run(config, RunDirectory(run), Parts(blocks, ray.get, votes))


class MembersAndVoter(MemberProcess):
    """Members of a small run and its voter in one process, which takes two seconds of CPU to start."""

    def __init__(self) -> None:
        super().__init__()
        self._voter = Voter()

    async def vote(self, *arguments: Any) -> tuple[AnswerSummary, Tables]:
        """See ``Voter``; in a thread, as every step of it: members answer meanwhile."""
        return await asyncio.to_thread(self._voter.vote, *arguments)

    async def settle(self, *arguments: Any) -> list[bool]:
        """See ``Voter``."""
        return await asyncio.to_thread(self._voter.settle, *arguments)

    async def vote_by_agreement(self, config: Config, blocks: Sequence[Any]) -> list[pa.Table]:
        """See ``Voter``."""
        return await asyncio.to_thread(self._voter.vote_by_agreement, config, blocks)

    async def write(self, *arguments: Any) -> None:
        """See ``Voter``."""
        await asyncio.to_thread(self._voter.write, *arguments)
