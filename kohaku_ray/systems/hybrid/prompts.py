"""What hybrid says to its models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kohaku_ray.models.prompts import Prompt, Prompts, asked
from kohaku_ray.records import Question
from kohaku_ray.systems.hybrid.texts import Text, plain

_SAMPLE = Question("q", "?", answer_unit="u", answer_type="t")
_TEXT = {"ref_id": "1", "mark": "[1 / s / d]", "title": "t", "text": "t"}

EXPAND_EXAMPLES: tuple[dict[str, Any], ...] = tuple(
    {**asked(_SAMPLE), "context": context, "n_queries": 2} for context in ((), ("t",))
)
ANSWER_EXAMPLES: tuple[dict[str, Any], ...] = ({**asked(_SAMPLE), "texts": (_TEXT,)},)


def expand_prompt(prompts: Prompts, question: Question, context: Sequence[Text], n_queries: int) -> Prompt:
    """Ask for ``n_queries`` keyword-like sub-queries in the corpus's own words."""
    variables = {**asked(question), "context": tuple(text.text for text in context), "n_queries": n_queries}
    return prompts.render("expand", variables)


def answer_prompt(prompts: Prompts, question: Question, texts: Sequence[Text]) -> Prompt:
    """Ask for the answer; a text holds no brackets, so that it cannot pose as another's heading."""
    shown = tuple(
        {"ref_id": text.ref_id, "mark": text.mark, "title": plain(text.title), "text": plain(text.text)}
        for text in texts
    )
    return prompts.render("answer", {**asked(question), "texts": shown})
