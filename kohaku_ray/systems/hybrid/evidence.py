"""What ``prepare`` hands to ``answer``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kohaku_ray.records import Question, TraceRow
from kohaku_ray.systems.hybrid.texts import Text


@dataclass(frozen=True, slots=True)
class HybridEvidence:
    """Texts of the corpus on one question.

    Attributes:
        question: The question.
        queries: The sub-queries, the question first.
        texts: What is shown to the model, best first; none: the corpus holds no information on the question.
        why_nothing: Why there is none.
        measures: Named numbers: items after each stage, distinct sites and documents of the texts.
        warning: What a reader should know of the texts; empty: nothing.
        trace: The nine stages.
    """

    question: Question
    queries: tuple[str, ...]
    texts: tuple[Text, ...]
    why_nothing: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    warning: str = ""
    trace: tuple[TraceRow, ...] = ()
