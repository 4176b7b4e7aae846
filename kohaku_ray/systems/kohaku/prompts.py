"""kohaku's prompts and reply schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kohaku_ray.models.images import PromptImage
from kohaku_ray.models.prompts import Prompt, Prompts, Snippet, asked
from kohaku_ray.models.schema import plan_schema
from kohaku_ray.records import Question
from kohaku_ray.retrieval.context import Context
from kohaku_ray.systems.base import Ask
from kohaku_ray.systems.kohaku.settings import KohakuSettings

_SAMPLE = Question("q", "?", answer_unit="u", answer_type="t")

PLAN_EXAMPLES: tuple[dict[str, Any], ...] = ({**asked(_SAMPLE), "n_queries": 2},)
ANSWER_EXAMPLES: tuple[dict[str, Any], ...] = tuple(
    {**asked(_SAMPLE), "snippets": (Snippet("d", "t"),), "media": (Snippet("d", "c"),), "order": order}
    for order in ("context_first", "question_first")
)


def plan_prompt(prompts: Prompts, question: Question, n_queries: int) -> Prompt:
    """Ask for ``n_queries`` search queries."""
    return prompts.render("plan", {**asked(question), "n_queries": n_queries})


def answer_prompt(
    prompts: Prompts, question: Question, context: Context, order: str, images: Sequence[PromptImage] = ()
) -> Prompt:
    """Ask for the answer: the documents and their captions before or after the question and its instructions."""
    variables = {
        **asked(question),
        "snippets": tuple(Snippet(part.doc_id, part.text) for part in context.snippets),
        "media": tuple(Snippet(part.doc_id, part.text) for part in context.captions),
        "order": order,
    }
    return replace(prompts.render("answer", variables), images=tuple(images))


def opening(question: Question, prompts: Prompts, settings: KohakuSettings) -> list[Ask]:
    """Return the calls before any search: the plan, unless the question is the only query."""
    n = settings.queries
    return [] if n == 1 else [Ask("plan", plan_prompt(prompts, question, n), plan_schema(n))]
