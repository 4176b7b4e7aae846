"""KohakuRAG: plan queries, search a tree of text, answer with citations, look deeper while the answer is blank."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ContextOverflowError, CutReplyError, ModelError
from kohaku_ray.generation.parse import parse_answer, parse_plan
from kohaku_ray.generation.schema import answer_schema, plan_schema
from kohaku_ray.records import Prediction, Question, Reply
from kohaku_ray.retrieval.context import Context, assemble
from kohaku_ray.retrieval.evidence import Evidence, at_least, distinct_rows, localise, rank
from kohaku_ray.retrieval.fusion import Ranked
from kohaku_ray.systems.base import Answer, Attempt
from kohaku_ray.systems.tools import Tools

CHARS_PER_TOKEN = 3
"""Fewer than English has: for what no node counts, the estimate must not fall short."""

CUT = "length"
"""Finish reason of a reply that max_tokens cut off."""

OVERFLOW_STEP = 2
"""How many matches a query gives up when the model refuses the prompt's length."""


async def prepare(question: Question, tools: Tools, settings: Config) -> Evidence:
    """Plan, then search every query once, as deep as the last retry may look."""
    retrieval = settings.retrieval
    queries, plan, plan_error = await _plan(question, tools, settings)
    vectors = await tools.embed(queries)
    deepest = retrieval.top_k * (settings.generation.max_retries + 1)
    if retrieval.bm25_top_k:
        found, lexical = await asyncio.gather(
            tools.search(vectors, deepest), tools.lexical(queries, retrieval.bm25_top_k)
        )
    else:
        found, lexical = await tools.search(vectors, deepest), []
    dense = [at_least(hits, retrieval.retrieval_threshold) for hits in found]
    nodes = await tools.nodes(distinct_rows([*dense, *lexical]))
    return Evidence(
        question=question,
        queries=queries,
        dense=localise(dense, nodes),
        lexical=localise(lexical, nodes),
        nodes=nodes,
        plan=plan,
        plan_error=plan_error,
    )


async def answer(evidence: Evidence, tools: Tools, settings: Config) -> Answer:
    """Ask, and ask again with deeper evidence while the answer is blank and retries are left.

    A model that fails ends the attempts with a blank prediction that carries the error; it raises nothing.
    """
    attempts = []
    for attempt in range(settings.generation.max_retries + 1):
        asked = await _ask(evidence, tools, settings, attempt)
        attempts.append(_record(attempt, asked))
        prediction = _read(evidence.question, asked, attempt)
        if asked.error or not prediction.is_blank:
            break
    return Answer(prediction, tuple(attempts), asked.context.matches)


@dataclass(frozen=True, slots=True)
class Depth:
    """How much one attempt may take from the evidence.

    Attributes:
        top_k: Matches of each query.
        top_k_final: Dense matches kept; None: all.
        budget: Most tokens of context; None: no bound but the model's window.
    """

    top_k: int
    top_k_final: int | None
    budget: int | None

    @staticmethod
    def of(settings: Config, attempt: int) -> Depth:
        """Attempt ``a`` takes ``a + 1`` times as much as attempt 0."""
        retrieval, times = settings.retrieval, attempt + 1
        return Depth(
            top_k=retrieval.top_k * times,
            top_k_final=None if retrieval.top_k_final is None else retrieval.top_k_final * times,
            budget=None if retrieval.max_context_tokens is None else retrieval.max_context_tokens * times,
        )

    def shallower(self, refused: Context) -> Depth:
        """Give up two matches of each query, and the like share of the refused context.

        Fewer matches alone would not do where the budget had cut the context: the next ones would fill it up again.
        """
        top_k = max(self.top_k - OVERFLOW_STEP, 1)
        final = None if self.top_k_final is None else max(self.top_k_final - OVERFLOW_STEP, 1)
        return Depth(top_k, final, refused.n_tokens * top_k // max(self.top_k, OVERFLOW_STEP))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was shown, and what came back: a reply, an error, or neither where there was nothing to show."""

    context: Context
    overflowed: bool
    reply: Reply | None = None
    error: str | None = None


async def _plan(question: Question, tools: Tools, settings: Config) -> tuple[tuple[str, ...], Reply | None, str | None]:
    """Queries, the planner's reply, and why there is no plan; the question is always among the queries."""
    n = settings.retrieval.queries
    if n == 1:
        return (question.text,), None, None
    try:
        reply = await tools.chat(tools.prompts.plan(question, n), schema=plan_schema(n), role="plan")
    except ModelError as error:
        return (question.text,), None, _named(error)
    queries, error_text = parse_plan(reply, question.text, n)
    return tuple(queries), reply, error_text


async def _ask(evidence: Evidence, tools: Tools, settings: Config, attempt: int) -> _Asked:
    """Show one depth of the evidence; if the model refuses the length, a little less, once."""
    depth = Depth.of(settings, attempt)
    context = await _context(evidence, depth, tools, settings)
    try:
        return _Asked(context, False, await _chat(evidence.question, context, tools, settings, attempt))
    except ContextOverflowError as error:
        context = await _context(evidence, depth.shallower(context), tools, settings)
        if not context.doc_ids:
            return _Asked(context, True, error=_named(error))
    except ModelError as error:
        return _Asked(context, False, error=_named(error))
    try:
        return _Asked(context, True, await _chat(evidence.question, context, tools, settings, attempt))
    except ModelError as error:
        return _Asked(context, True, error=_named(error))


async def _chat(question: Question, context: Context, tools: Tools, settings: Config, attempt: int) -> Reply | None:
    """Ask for the answer; without a document to cite there is nothing to ask."""
    if not context.doc_ids:
        return None
    generation = settings.generation
    snippets = [(snippet.doc_id, snippet.text) for snippet in context.snippets]
    captions = [(caption.doc_id, caption.text) for caption in context.captions]
    prompt = tools.prompts.answer(question, snippets, captions, generation.prompt_order)
    schema = answer_schema(context.doc_ids, generation.constrain_refs)
    reply = await tools.chat(prompt, schema=schema, attempt=attempt)
    if reply.finish_reason != CUT:
        return reply
    # Once more, with all the room there is up to twice as much: half an answer is none.
    room = 2 * generation.max_tokens
    if tools.window_tokens is not None:
        room = min(room, tools.window_tokens - reply.prompt_tokens)
    if room > generation.max_tokens:
        reply = await tools.chat(prompt, schema=schema, attempt=attempt, max_tokens=room)
    if reply.finish_reason == CUT:
        raise CutReplyError(
            f"the reply was cut off at {reply.completion_tokens} tokens (generation.max_tokens is "
            f"{generation.max_tokens}): raise it, or serve the model with a longer window"
        )
    return reply


async def _context(evidence: Evidence, depth: Depth, tools: Tools, settings: Config) -> Context:
    """Rank the evidence at a depth and assemble what fits the budget and the model's window."""
    retrieval = settings.retrieval
    ranked = rank(
        evidence,
        top_k=depth.top_k,
        top_k_final=depth.top_k_final,
        strategy=retrieval.rerank,
        normalise=retrieval.normalise,
        alpha=retrieval.alpha,
        dedup=retrieval.dedup,
        bm25_top_k=retrieval.bm25_top_k,
    )
    room = await _window_room(evidence, ranked, tools, settings)
    return assemble(
        evidence.nodes,
        ranked,
        budget=min((bound for bound in (depth.budget, room) if bound is not None), default=None),
        once=retrieval.dedup != "none",
        paragraph_tokens=retrieval.longest_paragraph,
        siblings=retrieval.siblings,
        section_tokens=retrieval.section_tokens,
    )


async def _window_room(evidence: Evidence, ranked: Ranked, tools: Tools, settings: Config) -> int | None:
    """Tokens that the model's window leaves for the context, beside the reply and the rest of the prompt."""
    if tools.window_tokens is None:
        return None
    marks = [(evidence.nodes.doc_id(row), "") for row in ranked.rows]
    frame = tools.prompts.answer(evidence.question, marks, [], settings.generation.prompt_order)
    n_tokens = await tools.prompt_tokens(frame)
    if n_tokens is None:
        n_tokens = math.ceil((len(frame.system) + len(frame.user)) / CHARS_PER_TOKEN)
    # Where a text joins its mark, tokens may split otherwise than they did alone.
    return tools.window_tokens - settings.generation.max_tokens - n_tokens - len(marks)


def _read(question: Question, asked: _Asked, attempt: int) -> Prediction:
    """Make a prediction of what came back; blank where nothing did."""
    if asked.reply is not None:
        return parse_answer(asked.reply, allowed=asked.context.doc_ids, attempt=attempt, unit=question.answer_unit)
    error = asked.error
    if error is None and asked.context.is_cut:
        error = (
            "not one sentence of the evidence fits the context: raise retrieval.max_context_tokens, lower "
            "generation.max_tokens or serve the model with a longer window"
        )
    explanation = "" if error else "No evidence was found."
    return Prediction(answer_unit=question.answer_unit or "", explanation=explanation, attempt=attempt, error=error)


def _record(attempt: int, asked: _Asked) -> Attempt:
    context = asked.context
    return Attempt(
        attempt=attempt,
        n_matches=len(context.matches),
        n_snippets=len(context.snippets),
        n_chars=context.n_chars,
        n_tokens=context.n_tokens,
        is_cut=context.is_cut,
        overflowed=asked.overflowed,
        reply=asked.reply,
    )


def _named(error: ModelError) -> str:
    return f"{type(error).__name__}: {error}"
