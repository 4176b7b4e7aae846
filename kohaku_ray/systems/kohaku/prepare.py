"""From a question to evidence: plan, then search every query once, to the depth of the last retry."""

from __future__ import annotations

import asyncio

from kohaku_ray.errors import ModelError
from kohaku_ray.index.hits import Hits
from kohaku_ray.models.parse import parse_plan
from kohaku_ray.records import Question, TraceRow
from kohaku_ray.retrieval.evidence import Evidence, at_least, distinct_rows, localise
from kohaku_ray.systems.kohaku.prompts import opening
from kohaku_ray.systems.kohaku.settings import KohakuSettings
from kohaku_ray.systems.tools import Tools


async def prepare(question: Question, tools: Tools, settings: KohakuSettings) -> Evidence:
    """Plan, then search every query once, to the depth of the last retry."""
    queries, error = await _plan(question, tools, settings)
    vectors = await tools.embed(queries)
    deepest = settings.top_k * (settings.max_retries + 1)
    if settings.bm25_top_k:
        found, lexical = await asyncio.gather(
            tools.search("nodes", vectors, deepest), tools.lexical("paragraphs", queries, settings.bm25_top_k)
        )
    else:
        found, lexical = await tools.search("nodes", vectors, deepest), []
    dense = [at_least(hits, settings.retrieval_threshold) for hits in found]
    images: list[Hits] = []
    if settings.image_top_k:
        seen = await tools.embed(queries, "images")
        images = await tools.search("images", seen, settings.image_top_k * (settings.max_retries + 1))
    nodes = await tools.nodes(distinct_rows([*dense, *lexical, *images]), settings.section_tokens)
    return Evidence(
        question=question,
        queries=queries,
        dense=localise(dense, nodes),
        lexical=localise(lexical, nodes),
        nodes=nodes,
        images=localise(images, nodes),
        trace=tuple(TraceRow("plan", rank, query, error=error) for rank, query in enumerate(queries)),
    )


async def _plan(question: Question, tools: Tools, settings: KohakuSettings) -> tuple[tuple[str, ...], str | None]:
    """Return the queries, the question always among them, and the reason if there is no plan."""
    for ask in opening(question, tools.prompts, settings):
        try:
            reply = await tools.chat(ask.prompt, role=ask.role, schema=ask.schema)
        except ModelError as error:
            return (question.text,), f"{type(error).__name__}: {error}"
        return parse_plan(reply, question.text, settings.queries)
    return (question.text,), None
