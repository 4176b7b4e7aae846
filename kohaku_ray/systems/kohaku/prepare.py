"""Gather the evidence for a question: plan, then search every query once, to the depth of the last retry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

from kohaku_ray.errors import ModelError
from kohaku_ray.index.arrays import I64, Hits
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.models.parse import Plan, parse_plan
from kohaku_ray.models.prompts import Prompt, Prompts, PromptSnippet, asked
from kohaku_ray.models.request import PromptImage
from kohaku_ray.models.schema import plan_schema
from kohaku_ray.records import Question, TraceRow
from kohaku_ray.retrieval.context import Context
from kohaku_ray.retrieval.evidence import Evidence, at_least, distinct_rows, localise
from kohaku_ray.retrieval.fusion import with_parents
from kohaku_ray.systems.base import Ask, Rows
from kohaku_ray.systems.kohaku.settings import KohakuSettings
from kohaku_ray.systems.tools import Tools
from kohaku_ray.values.kinds import ValueKind, describe_scale

_SAMPLE = Question("q", "?", answer_unit="u", answer_type="t")

PLAN_EXAMPLES: tuple[dict[str, Any], ...] = ({**asked(_SAMPLE), "n_queries": 2},)
ANSWER_EXAMPLES: tuple[dict[str, Any], ...] = tuple(
    {
        **asked(_SAMPLE),
        "snippets": (PromptSnippet("d", "t"),),
        "media": (PromptSnippet("d", "c"),),
        "order": order,
        "instructions": instructions,
        "kind": kind,
        "scaled": scaled,
    }
    for order in ("context_first", "question_first")
    for instructions, kind in product(("full", "short"), (None, *get_args(ValueKind)))
    for scaled in (None, "1 million u is 1000000 u")
)


def answer_prompt(
    prompts: Prompts,
    question: Question,
    context: Context,
    settings: KohakuSettings,
    kind: ValueKind | None,
    images: Sequence[PromptImage] = (),
) -> Prompt:
    """Ask for the answer: the documents and their captions before or after the question and its instructions."""
    variables = {
        **asked(question),
        "snippets": tuple(PromptSnippet(part.doc_id, part.text) for part in context.snippets),
        "media": tuple(PromptSnippet(part.doc_id, part.text) for part in context.captions),
        "order": settings.prompt_order,
        "instructions": settings.instructions,
        "kind": kind,
        "scaled": describe_scale(question.text, question.answer_unit),
    }
    return replace(prompts.render("answer", variables), images=tuple(images))


def opening(question: Question, prompts: Prompts, settings: KohakuSettings) -> list[Ask]:
    """Return the calls before any search: the plan, unless the question is the only query."""
    if settings.queries == 1:
        return []
    n = settings.queries if settings.spare_query else settings.queries - 1
    return [Ask("plan", prompts.render("plan", {**asked(question), "n_queries": n}), plan_schema(n))]


def snippets_with_parents(trace: Rows, nodes: NodeTable, settings: KohakuSettings) -> float:
    """Count the matches that ``dedup`` leaves, each with its parent."""
    return float(len(_expanded(trace, nodes)))


def characters_with_parents(trace: Rows, nodes: NodeTable, settings: KohakuSettings) -> float:
    """Sum the characters of the matches that ``dedup`` leaves, each with its parent."""
    return float(nodes.chars[_expanded(trace, nodes)].sum())


def _expanded(trace: Rows, nodes: NodeTable) -> I64:
    matches = nodes.rows_of([row["node_id"] for row in trace if row["step"] == "evidence"])
    return with_parents(matches, nodes.parent)


async def prepare(question: Question, tools: Tools, settings: KohakuSettings) -> Evidence:
    """Plan, then search every query once: to the depth of the last retry, or with ``replan`` of the first attempt."""
    return await plan_and_search(question, tools, settings, 0)


async def plan_and_search(question: Question, tools: Tools, settings: KohakuSettings, attempt: int) -> Evidence:
    """Plan with the seed of an attempt, and search to its depth; without ``replan``, to that of the last retry."""
    times = (attempt if settings.replan else settings.max_retries) + 1
    plan = Plan((question.text,))
    for ask in opening(question, tools.prompts, settings):
        try:
            reply = await tools.chat(ask.prompt, role=ask.role, schema=ask.schema, attempt=attempt)
            plan = parse_plan(reply, question.text, settings.queries)
        except ModelError as error:
            plan = Plan((question.text,), error=f"{type(error).__name__}: {error}")
    return await search_plan(question, plan, tools, settings, times, attempt)


async def search_plan(
    question: Question, plan: Plan, tools: Tools, settings: KohakuSettings, times: int, attempt: int
) -> Evidence:
    """Search every query of a plan to ``times`` the depth of the first attempt."""
    queries = plan.queries
    vectors = await tools.embed(queries)
    searches = [tools.search("nodes", vectors, settings.top_k * times)]
    if settings.bm25 == "fuse":
        searches.append(tools.lexical("terms", queries, settings.top_k * times))
    elif settings.bm25_top_k:
        searches.append(tools.lexical("paragraphs", queries, settings.bm25_top_k))
    nearest, *more = await asyncio.gather(*searches)
    lexical = more[0] if more else []
    dense = [at_least(hits, settings.retrieval_threshold) for hits in nearest]
    images: list[Hits] = []
    if settings.image_top_k:
        seen = await tools.embed(queries, "images")
        images = await tools.search("images", seen, settings.image_top_k * times)
    nodes = await tools.nodes(distinct_rows([*dense, *lexical, *images]), settings.longest_section)
    return Evidence(
        question=question,
        queries=queries,
        dense=localise(dense, nodes),
        lexical=localise(lexical, nodes),
        nodes=nodes,
        images=localise(images, nodes),
        trace=(
            *(TraceRow("plan", rank, query, error=plan.error, attempt=attempt) for rank, query in enumerate(queries)),
            *trace_dropped(plan, attempt),
        ),
    )


def trace_dropped(plan: Plan, attempt: int) -> list[TraceRow]:
    """Return the rows of a plan's queries that are not searched, with the reason."""
    return [
        TraceRow("plan", rank, query, note=f"not searched: {reason}", attempt=attempt)
        for rank, (query, reason) in enumerate(plan.dropped, len(plan.queries))
    ]
