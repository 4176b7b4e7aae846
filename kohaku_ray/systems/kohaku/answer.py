"""From evidence to one member's answer: prompt, chat, parse, and retry deeper while the answer is blank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kohaku_ray.errors import ContextOverflowError, CutReplyError, ModelError
from kohaku_ray.index.views import IMAGE
from kohaku_ray.models.parse import parse_answer
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.records import Prediction, Question, Reply, TraceRow
from kohaku_ray.retrieval.context import Context, FoundImage, Match, Snippet, assemble
from kohaku_ray.retrieval.evidence import Evidence, find_images, rank, with_images, within
from kohaku_ray.retrieval.fusion import Ranked, append_lexical
from kohaku_ray.systems.base import Answer
from kohaku_ray.systems.kohaku.prepare import answer_prompt
from kohaku_ray.systems.kohaku.settings import KohakuSettings
from kohaku_ray.systems.tools import Tools

CHARS_PER_TOKEN = 3
"""Fewer characters per token than English has: an estimate for uncounted texts must not be too low."""

CUT = "length"
"""Finish reason of a reply that max_tokens cut off."""

OVERFLOW_STEP = 2
"""Matches dropped per query if the model refuses the prompt's length."""


async def answer(evidence: Evidence, tools: Tools, settings: KohakuSettings) -> Answer:
    """Call the model, and again with deeper evidence while the answer is blank and retries are left.

    If the model fails, the attempts end with a blank prediction that carries the error; nothing is raised.
    """
    for attempt in range(settings.max_retries + 1):
        asked = await _ask(evidence, tools, settings, attempt)
        prediction = _read(evidence.question, asked, attempt)
        if asked.error or not prediction.is_blank:
            break
    return Answer(
        prediction=prediction,
        trace=_trace(evidence, asked.context, attempt, settings.send_images),
        measures=_measures(asked),
        reply=asked.reply.text if asked.reply else None,
    )


@dataclass(frozen=True, slots=True)
class AttemptDepth:
    """How much of the evidence one attempt uses.

    Attributes:
        top_k: Matches per query.
        top_k_final: Dense matches kept; None: all.
        budget: Longest context, in tokens; None: bounded only by the model's window.
        image_top_k: Most images; 0: none.
    """

    top_k: int
    top_k_final: int | None
    budget: int | None
    image_top_k: int = 0

    @staticmethod
    def of(settings: KohakuSettings, attempt: int) -> AttemptDepth:
        """Return the depth of attempt ``a``: ``a + 1`` times that of attempt 0."""
        times = attempt + 1
        return AttemptDepth(
            top_k=settings.top_k * times,
            top_k_final=None if settings.top_k_final is None else settings.top_k_final * times,
            budget=None if settings.max_context_tokens is None else settings.max_context_tokens * times,
            image_top_k=settings.image_top_k * times,
        )

    def shallower(self, refused: Context) -> AttemptDepth:
        """Drop two matches per query and an image, and the same share of the refused context.

        Fewer matches alone do not help if the budget had cut the context: the next matches would fill it again.
        """
        top_k = max(self.top_k - OVERFLOW_STEP, 1)
        final = None if self.top_k_final is None else max(self.top_k_final - OVERFLOW_STEP, 1)
        budget = refused.n_tokens * top_k // max(self.top_k, OVERFLOW_STEP)
        return AttemptDepth(top_k, final, budget, max(len(refused.images) - 1, 0))


NOTHING = Context((), (), (), (), 0, False)
"""An empty context."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A context and its outcome: a reply, an error, or neither if the context is empty."""

    context: Context
    overflowed: bool
    reply: Reply | None = None
    error: str | None = None


async def _ask(evidence: Evidence, tools: Tools, settings: KohakuSettings, attempt: int) -> _Asked:
    """Ask with one depth of the evidence; if the model refuses the length, once more with less."""
    depth, context = AttemptDepth.of(settings, attempt), NOTHING
    try:
        context = await _context(evidence, depth, tools, settings)
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


async def _chat(
    question: Question, context: Context, tools: Tools, settings: KohakuSettings, attempt: int
) -> Reply | None:
    """Ask for the answer; without a document to cite, no call is made."""
    if not context.doc_ids:
        return None
    images = [tools.image(one.path, settings.image_pixels) for one in context.images if settings.send_images]
    prompt = answer_prompt(tools.prompts, question, context, settings.prompt_order, images)
    schema = answer_schema(context.doc_ids, settings.constrain_refs)
    reply = await tools.chat(prompt, schema=schema, attempt=attempt)
    if reply.finish_reason != CUT:
        return reply
    # Once more with up to twice the length, as the window allows: a truncated answer cannot be read.
    limits = tools.limits()
    room = 2 * limits.max_tokens
    if limits.window_tokens is not None:
        room = min(room, limits.window_tokens - reply.prompt_tokens)
    if room > limits.max_tokens:
        reply = await tools.chat(prompt, schema=schema, attempt=attempt, max_tokens=room)
    if reply.finish_reason == CUT:
        raise CutReplyError(
            f"the reply was cut off at {reply.completion_tokens} tokens (roles.answer.max_tokens is "
            f"{limits.max_tokens}): raise it, or serve the model with a longer window"
        )
    return reply


async def _context(evidence: Evidence, depth: AttemptDepth, tools: Tools, settings: KohakuSettings) -> Context:
    """Rank the evidence at a depth and assemble what fits the budget and the model's window."""
    ranked = await _ranked(evidence, depth, tools, settings)
    nodes, top_k, sends = evidence.nodes, depth.image_top_k, settings.send_images
    images = find_images(nodes, evidence.images, ranked, top_k=top_k, near=settings.images == "near") if top_k else []
    shown = [nodes.doc_id(row) for row in ranked.rows] + [image.doc_id for image in images]
    room = await _window_room(evidence.question, shown, tools, settings)
    budget = min((bound for bound in (depth.budget, room) if bound is not None), default=None)
    images, taken = within(images, budget, settings.image_tokens if sends else 0)
    context = assemble(
        nodes,
        ranked,
        budget=None if budget is None else budget - taken,
        once=settings.dedup != "none",
        paragraph_tokens=settings.longest_paragraph,
        siblings=settings.siblings,
        section_tokens=settings.section_tokens,
    )
    return with_images(context, images, taken, numbered=sends) if images else context


async def _ranked(evidence: Evidence, depth: AttemptDepth, tools: Tools, settings: KohakuSettings) -> Ranked:
    """Rank the evidence at a depth: by fusion over queries, then by the cross-encoder if set; BM25 matches follow."""
    reorders = settings.cross_encoder is not None
    ranked = rank(
        evidence,
        top_k=depth.top_k,
        top_k_final=None if reorders else depth.top_k_final,
        strategy=settings.rerank,
        normalise=settings.normalise,
        alpha=settings.alpha,
        dedup=settings.dedup,
        bm25_top_k=0 if reorders else settings.bm25_top_k,
    )
    if not reorders:
        return ranked
    nodes = evidence.nodes
    score = await tools.rank_pairs([(evidence.question.text, nodes.text_of(int(row))) for row in ranked.rows])
    order = np.argsort(-score, kind="stable")[: depth.top_k_final].astype(np.int64)
    best = replace(ranked, score=score).take(order)
    return append_lexical(best, evidence.lexical, settings.bm25_top_k, settings.dedup, nodes.parent)


async def _window_room(question: Question, shown: Sequence[str], tools: Tools, settings: KohakuSettings) -> int | None:
    """Return the tokens of the model's window left for the context after the reply and the rest of the prompt.

    Args:
        question: The question.
        shown: The document of each reference that the context may show.
        tools: Tells the window.
        settings: The settings.
    """
    limits = tools.limits()
    if limits.window_tokens is None:
        return None
    marks = tuple(Snippet(doc_id, "", "") for doc_id in shown)
    empty = Context(marks, (), (), (), 0, False)
    frame = answer_prompt(tools.prompts, question, empty, settings.prompt_order)
    n_tokens = await tools.prompt_tokens(frame)
    if n_tokens is None:
        n_tokens = math.ceil((len(frame.system) + len(frame.user)) / CHARS_PER_TOKEN)
    # A text joined to its reference mark may tokenise differently than alone.
    return limits.window_tokens - limits.max_tokens - n_tokens - len(marks)


def _read(question: Question, asked: _Asked, attempt: int) -> Prediction:
    """Parse the reply into a prediction; blank without a reply."""
    if asked.reply is not None:
        return parse_answer(asked.reply, allowed=asked.context.doc_ids, attempt=attempt, unit=question.answer_unit)
    error = asked.error
    if error is None and asked.context.is_cut:
        error = (
            "not one sentence of the evidence fits the context: raise kohaku.max_context_tokens, lower "
            "roles.answer.max_tokens or serve the model with a longer window"
        )
    explanation = "" if error else "No evidence was found."
    return Prediction(answer_unit=question.answer_unit or "", explanation=explanation, attempt=attempt, error=error)


def _trace(evidence: Evidence, context: Context, attempt: int, sends: bool) -> tuple[TraceRow, ...]:
    """Return the rows of every match in the context, of every snippet as shown, and of every image."""
    nodes = evidence.nodes
    matches = [_match_row(match, nodes.text_of(nodes.row_of(match.node_id)), attempt) for match in context.matches]
    kinds = {match.node_id: match.kind for match in context.matches}
    snippets = [
        TraceRow("context", place, part.text, part.node_id, part.doc_id, kinds.get(part.node_id), attempt=attempt)
        for place, part in enumerate(context.snippets)
    ]
    images = [_image_row(place, image, attempt, sends) for place, image in enumerate(context.images)]
    return (*matches, *snippets, *images)


def _image_row(place: int, image: FoundImage, attempt: int, is_sent: bool) -> TraceRow:
    scores = {} if image.similarity is None else {"similarity": image.similarity}
    note = f"{image.source}, sent" if is_sent else image.source
    return TraceRow("image", place, image.caption, image.node_id, image.doc_id, IMAGE, scores, note, attempt=attempt)


def _match_row(match: Match, text: str, attempt: int) -> TraceRow:
    scores = {"score": match.score, "n_tokens": float(match.n_tokens)}
    if match.source == "dense":
        scores |= {"frequency": float(match.frequency), "similarity": match.similarity, "max_similarity": match.highest}
    return TraceRow(
        "evidence", match.rank, text, match.node_id, match.doc_id, match.kind, scores, match.source, attempt=attempt
    )


def _measures(asked: _Asked) -> dict[str, float]:
    context = asked.context
    images = {"images": float(len(context.images))} if context.images else {}
    return {
        "matches": float(len(context.matches)),
        "snippets": float(len(context.snippets)),
        "characters": float(context.n_chars),
        "context_tokens": float(context.n_tokens),
        "cut": float(context.is_cut),
        "overflowed": float(asked.overflowed),
        **images,
    }


def _named(error: ModelError) -> str:
    return f"{type(error).__name__}: {error}"
