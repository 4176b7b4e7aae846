"""The last stage: votes on blocks and writes the run's files, on the driver's node."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import ray

from kohaku_ray.config import Config
from kohaku_ray.engine.metrics import count_questions
from kohaku_ray.records import Question
from kohaku_ray.run.block import Answered, settle_block, vote_block
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.outputs import write_run
from kohaku_ray.run.summary import AnswerSummary
from kohaku_ray.run.tables import Parts, Tables


class Voter:
    """A process on the driver's node that votes on blocks and writes runs (an actor: each task would start a process).

    It has no state.
    """

    def vote(self, config: Config, n_prepared: int, *parts: Sequence[Any]) -> tuple[AnswerSummary, Tables]:
        """See ``vote_block``; the answers are in lists, one per task of ``Member.answer``."""
        voted = vote_block(config, n_prepared, *parts[:n_prepared], *chain.from_iterable(parts[n_prepared:]))
        count_questions(voted[0].n_questions, voted[0].n_questions_in_error)
        return voted

    def settle(
        self, config: Config, questions: Sequence[Question], *answered: Sequence[Sequence[Answered | None]]
    ) -> list[bool]:
        """See ``settle_block``; the answers are in lists, one per task of ``Member.answer``."""
        return settle_block(config, questions, *chain.from_iterable(answered))

    def finish(self, config: Config, run: str, blocks: Sequence[Any]) -> None:
        """Write the run's files from its blocks, in the questions' order, one block at a time.

        Args:
            config: The run's configuration.
            run: Directory of the outputs.
            blocks: Refs of every block's tables, in order.

        Raises:
            DataError: The directory cannot be written.
        """
        write_run(config, RunDirectory(run), Parts(blocks, ray.get))
