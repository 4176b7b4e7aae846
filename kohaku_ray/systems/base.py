"""What a system is, and what it hands back beside the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from kohaku_ray.config.schema import Config
from kohaku_ray.records import Prediction, Question, Reply
from kohaku_ray.retrieval.context import Match
from kohaku_ray.systems.tools import Tools

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an answer: what the model was shown and what it cost.

    Attributes:
        attempt: From 0.
        n_matches: Matches that reached the context.
        n_snippets: Snippets shown.
        n_chars: Characters of snippets and captions.
        n_tokens: Tokens of them, as counted in the node table.
        is_cut: Whether the budget left something out.
        overflowed: The model refused the first context for its length; these are the numbers of the shorter one.
        reply: What the model sent back, text and token counts; None where it was not asked or failed.
    """

    attempt: int
    n_matches: int
    n_snippets: int
    n_chars: int
    n_tokens: int
    is_cut: bool
    overflowed: bool
    reply: Reply | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A member's answer and how it came about.

    Attributes:
        prediction: What is voted on.
        attempts: Every attempt, in order; the last one gave the prediction.
        matches: Ranked evidence of the last attempt.
    """

    prediction: Prediction
    attempts: tuple[Attempt, ...]
    matches: tuple[Match, ...]


class System(Protocol[E]):
    """A question-answering system: a module with these two functions is one.

    Neither keeps state between calls: questions run concurrently over the same settings.
    """

    async def prepare(self, question: Question, tools: Tools, settings: Config) -> E:
        """Gather what may answer the question: once a question, or once a member."""
        ...

    async def answer(self, evidence: E, tools: Tools, settings: Config) -> Answer:
        """Answer from it: once a member; a model's failure becomes a blank prediction with the error."""
        ...
