"""Answer a question as one member: prompt, chat, parse, and retry deeper while the answer is blank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.index.views import IMAGE
from kohaku_ray.models.json_text import loops
from kohaku_ray.models.parse import is_stated, parse_answer
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.models.schema import ANSWER_FIELDS, SHORT_FIELDS, answer_schema
from kohaku_ray.records import CUT, Prediction, Reply, TraceRow
from kohaku_ray.retrieval.context import Context, ContextSnippet, assemble
from kohaku_ray.retrieval.evidence import (
    Evidence,
    Passages,
    attribute,
    find_images,
    rank,
    terms_of,
    with_images,
    within,
)
from kohaku_ray.retrieval.fusion import Dedup, Ranked, append_lexical, best_first
from kohaku_ray.retrieval.windows import choose
from kohaku_ray.systems.base import Answer
from kohaku_ray.systems.kohaku.prepare import answer_prompt, plan_and_search
from kohaku_ray.systems.kohaku.settings import KohakuSettings
from kohaku_ray.systems.tools import Tools
from kohaku_ray.values.kinds import kind_of

CHARS_PER_TOKEN = 3
"""Fewer characters per token than English has: an estimate for uncounted texts must not be too low."""

IMAGE_PIXELS = 1 << 20
"""Most pixels per image that is sent; a larger one is scaled down."""

IMAGE_TOKENS = 1280
"""Tokens that a sent image takes of the context budget and of the model's window: about what one of ``IMAGE_PIXELS``
takes of Qwen2.5-VL (28 × 28 pixels a token: 1,337) and Qwen3-VL (32 × 32: 1,024)."""

OVERFLOW_STEP = 2
"""Matches dropped per query if the model refuses the prompt's length."""

EMPTY = Context((), (), (), (), 0, False)


async def answer(evidence: Evidence, tools: Tools, settings: KohakuSettings) -> Answer:
    """Call the model, and again with deeper evidence while the answer is blank and retries are left.

    With ``replan`` a retry plans and searches anew.

    The best try counts: a later one that is blank, cut off or unreadable does not hide an earlier answer. If the model
    fails, the attempts end with a blank prediction that carries the error; nothing is raised.
    """
    tries: list[Try] = []
    plans: list[TraceRow] = []
    # Retries of a blank answer alone. The others: a server's failures (models/openai.chat), a lost replica
    # (engine/serving/handles), a lost actor (engine/actors/pool). docs/operations.md has their product.
    for attempt in range(settings.max_retries + 1):
        if attempt and settings.replan:
            evidence = await plan_and_search(evidence.question, tools, settings, attempt)
            plans += evidence.trace
        tries += await Attempt(evidence, tools, settings, attempt).tries()
        if tries[-1].failed or any(not attempted.prediction.is_blank for attempted in tries):
            break
    best = max(reversed(tries), key=lambda attempted: attempted.worth)
    shown = {attempted.prediction.attempt: attempted.shown.trace for attempted in (*tries, best)}
    return Answer(
        prediction=best.prediction,
        trace=(*plans, *itertools.chain.from_iterable(shown.values())),
        measures=_measures(best),
        reply=best.reply.text if best.reply else None,
        other_replies=tuple(
            attempted.as_row(number)
            for number, attempted in enumerate(tries)
            if attempted is not best and (attempted.reply is not None or attempted.prediction.error)
        ),
    )


class Shown(NamedTuple):
    """What the model is shown in one attempt, the same for all members with equal models.

    Without a document to cite there is no prompt. ``overflowed``: the model had refused the prompt's length, and was
    shown less. ``passages``: the terms of its snippets by their numbers, where it matters which of them is quoted.
    ``titles``: those of its documents.
    """

    context: Context
    trace: tuple[TraceRow, ...] = ()
    prompt: Prompt | None = None
    schema: Mapping[str, Any] | None = None
    overflowed: bool = False
    passages: Passages = ()
    titles: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Try:
    """One reply as it was read, or why there is none.

    Attributes:
        prediction: What was read; blank without a reply.
        shown: What the model was shown.
        reply: The reply; None if the model failed, or had nothing to be shown.
        failed: The model failed, or needs more tokens than it may generate: as an attempt's last try, it ends them.
    """

    prediction: Prediction
    shown: Shown
    reply: Reply | None = None
    failed: bool = False

    @property
    def worth(self) -> int:
        """Rank: an answer, a failure of the model, an answer without its references, a blank, an unreadable reply."""
        read = self.prediction
        if not read.is_blank:
            return 4
        if read.error:
            return 3 if self.failed and self.reply is None else 0
        return 2 if read.flags else 1

    def as_row(self, number: int) -> TraceRow:
        """Return a row of the trace for a try that is not used: its reply, and what was wrong with it."""
        read, text = self.prediction, self.reply.text if self.reply else ""
        note = ", ".join((*read.flags, *(["blank"] if read.is_blank and not read.error else [])))
        return TraceRow("reply", number, text, note=note, error=read.error, attempt=read.attempt)


class AttemptDepth(NamedTuple):
    """How much of the evidence an attempt uses.

    Attributes:
        top_k: Matches per query.
        top_k_final: Dense matches kept; None: all.
        budget: Longest context, in tokens; None: bounded only by the model's window.
        image_top_k: Most images; 0: none.
    """

    top_k: int
    top_k_final: int | None
    budget: int | None
    image_top_k: int

    def shallower(self, refused: Context) -> AttemptDepth:
        """Drop two matches per query and an image, and the same share of the refused context.

        Fewer matches alone do not help if the budget had cut the context: the next matches would fill it again.
        """
        top_k = max(self.top_k - OVERFLOW_STEP, 1)
        final = None if self.top_k_final is None else max(self.top_k_final - OVERFLOW_STEP, 1)
        budget = refused.n_tokens * top_k // max(self.top_k, OVERFLOW_STEP)
        return AttemptDepth(top_k, final, budget, max(len(refused.images) - 1, 0))


class Attempt:
    """One member's attempt ``a`` at a question, with ``a + 1`` times the evidence of attempt 0."""

    def __init__(self, evidence: Evidence, tools: Tools, settings: KohakuSettings, attempt: int) -> None:
        self.evidence, self.tools, self.settings, self.attempt = evidence, tools, settings, attempt
        question = evidence.question
        self.kind = kind_of(question.text, question.answer_unit, question.answer_type)

    async def tries(self) -> list[Try]:
        """Ask with one depth of the evidence; if the model refuses the length, once more with less."""
        settings, times = self.settings, self.attempt + 1
        final, budget = settings.top_k_final, settings.max_context_tokens
        kept = final * times if final and settings.widen_final else final
        depth = AttemptDepth(settings.top_k * times, kept, budget and budget * times, settings.image_top_k * times)
        shown, error = Shown(EMPTY), None
        replies: list[Reply] = []
        try:
            try:
                shown = await self._shown(depth)
                await self._chat(shown, replies)
            except ContextOverflowError:
                shown = (await self._shown(depth.shallower(shown.context)))._replace(overflowed=True)
                if shown.prompt is None:
                    raise
                await self._chat(shown, replies)
        except ModelError as failed:
            error = f"{type(failed).__name__}: {failed}"
        tries = [self._read(reply, shown) for reply in replies]
        if error or not replies:
            tries.append(self._unasked(shown, error))
        return tries

    async def _shown(self, depth: AttemptDepth) -> Shown:
        """Make what the model is shown at a depth, once for all members."""

        async def make() -> Shown:
            settings, tools = self.settings, self.tools
            context = await self._context(depth)
            trace = self._trace(context)
            if not context.doc_ids:
                return Shown(context, trace)
            images = [tools.image(image.path, IMAGE_PIXELS) for image in context.images if settings.send_images]
            prompt = answer_prompt(tools.prompts, self.evidence.question, context, settings, self.kind, images)
            parts = context.snippets if settings.cite == "explanation" else ()
            passages = terms_of((str(number), part.text) for number, part in enumerate(parts))
            nodes = self.evidence.nodes
            titles = {doc_id: nodes.title_of(nodes.row_of(doc_id)) for doc_id in context.doc_ids}
            return Shown(context, trace, prompt, self._schema(context.doc_ids), passages=passages, titles=titles)

        key = ("shown", self.attempt, depth, self.evidence.queries)
        return await self.tools.shared_by_members(key, make)

    def _schema(self, doc_ids: Sequence[str]) -> dict[str, Any]:
        settings, most = self.settings, self.tools.limits().max_tokens
        fields = ANSWER_FIELDS if settings.instructions == "full" else SHORT_FIELDS
        return answer_schema(doc_ids, settings.constrain_refs, self.kind, most, settings.max_refs, fields)

    async def _chat(self, shown: Shown, replies: list[Reply]) -> None:
        """Ask for the answer, and add the replies; without a document to cite, no call is made.

        A reply that is cut off is asked for once more with up to twice the length, as the window allows, unless it
        loops.
        """
        if shown.prompt is None:
            return
        reply = await self.tools.chat(shown.prompt, schema=shown.schema, attempt=self.attempt)
        replies.append(reply)
        if reply.finish_reason != CUT or loops(reply.text):
            return
        limits = self.tools.limits()
        room = 2 * limits.max_tokens
        if limits.window_tokens is not None:
            room = min(room, limits.window_tokens - reply.prompt_tokens)
        if room > limits.max_tokens:
            longer = await self.tools.chat(shown.prompt, schema=shown.schema, attempt=self.attempt, max_tokens=room)
            replies.append(longer)

    def _read(self, reply: Reply, shown: Shown) -> Try:
        settings, context = self.settings, shown.context
        unit = self.evidence.question.answer_unit
        # What a model may have read in an image stands in no text.
        texts = None if settings.send_images and context.images else context.texts
        read = parse_answer(reply, context.doc_ids, self.attempt, unit, self.kind, shown=texts, titles=shown.titles)
        if settings.instructions == "short":  # which ask for none
            read = replace(read, answer=read.explanation)
        source = attribute(read.explanation, shown.passages)
        if settings.cite == "explanation" and source is not None and not self._is_cited_better(read, source, context):
            flags = tuple(flag for flag in read.flags if flag != "uncited")
            read = replace(read, ref_ids=(context.snippets[int(source)].doc_id,), flags=flags)
        if "uncited" in read.flags:
            read = replace(read, is_blank=True, answer_value="")
        needs_more = reply.finish_reason == CUT and read.is_blank and not loops(reply.text)
        return Try(read, shown, reply, failed=needs_more)

    def _is_cited_better(self, read: Prediction, source: str, context: Context) -> bool:
        """Whether a document that the reply cites states its value, and the passage that its explanation quotes not."""
        own = [part.text for part in context.snippets if part.doc_id in read.ref_ids]
        quoted = context.snippets[int(source)].text
        return read.is_blank or (is_stated(read.answer_value, own) and not is_stated(read.answer_value, [quoted]))

    def _unasked(self, shown: Shown, error: str | None) -> Try:
        """Say why there is no reply."""
        failed = error is not None
        if error is None and shown.context.is_cut:
            error = (
                "not one sentence of the evidence fits the context: raise kohaku.max_context_tokens, lower "
                "roles.answer.max_tokens or serve the model with a longer window"
            )
        explanation = "" if error else "No evidence was found."
        unit = self.evidence.question.answer_unit or ""
        read = Prediction(answer_unit=unit, explanation=explanation, attempt=self.attempt, error=error)
        return Try(read, shown, failed=failed)

    async def _context(self, depth: AttemptDepth) -> Context:
        """Rank the evidence at a depth and assemble what fits the budget and the model's window."""
        settings, nodes, images = self.settings, self.evidence.nodes, []
        key = ("ranked", self.attempt, depth, self.evidence.queries)
        ranked = await self.tools.shared_by_members(key, lambda: self._ranked(depth))
        if depth.image_top_k:
            near = settings.images == "near"
            images = find_images(nodes, self.evidence.images, ranked, top_k=depth.image_top_k, near=near)
        doc_ids = [nodes.doc_id(row) for row in ranked.rows] + [image.doc_id for image in images]
        room = await self._window_room(doc_ids)
        budget = min((bound for bound in (depth.budget, room) if bound is not None), default=None)
        images, taken = within(images, budget, IMAGE_TOKENS if settings.send_images else 0)
        left = None if budget is None else budget - taken
        if settings.context == "windows":
            context = choose(nodes, ranked, budget=left)
        else:
            context = assemble(
                nodes,
                ranked,
                budget=left,
                once=settings.dedup != "none",
                paragraph_tokens=settings.longest_paragraph,
                siblings=settings.siblings,
                section_tokens=settings.longest_section,
            )
        return with_images(context, images, taken, numbered=settings.send_images) if images else context

    async def _ranked(self, depth: AttemptDepth) -> Ranked:
        """Rank the evidence: by fusion over queries, then by the cross-encoder if set; BM25 matches follow."""
        settings, evidence, reranks = self.settings, self.evidence, self.settings.cross_encoder is not None
        dedup: Dedup = settings.dedup if settings.context == "groups" else "node"
        ranked = rank(
            evidence,
            top_k=depth.top_k,
            top_k_final=None if reranks and settings.truncate == "after_dedup" else depth.top_k_final,
            strategy=settings.rerank,
            normalise=settings.normalise,
            alpha=settings.alpha,
            dedup=dedup,
            bm25_top_k=0,
            truncate=settings.truncate,
            bm25=settings.bm25,
        )
        if reranks:
            texts = [evidence.nodes.text_of(row) for row in ranked.rows.tolist()]
            score = await self.tools.rank_pairs([(evidence.question.text, text) for text in texts])
            ranked = replace(ranked, score=score).take(best_first(score, depth.top_k_final))
        if settings.bm25 == "fuse":
            return ranked
        return append_lexical(ranked, evidence.lexical, settings.bm25_top_k, dedup, evidence.nodes.parent)

    async def _window_room(self, doc_ids: Sequence[str]) -> int | None:
        """Return the tokens of the model's window left for the context after the reply and the rest of the prompt.

        ``doc_ids`` has the document of each reference that the context may show.
        """
        limits = self.tools.limits()
        if limits.window_tokens is None:
            return None
        marked = replace(EMPTY, snippets=tuple(ContextSnippet(doc_id, "", "") for doc_id in doc_ids))
        frame = answer_prompt(self.tools.prompts, self.evidence.question, marked, self.settings, self.kind)
        n_tokens = await self.tools.prompt_tokens(frame)
        if n_tokens is None:
            n_tokens = math.ceil((len(frame.system) + len(frame.user)) / CHARS_PER_TOKEN)
        # A text joined to its reference mark may tokenise differently than alone.
        return limits.window_tokens - limits.max_tokens - n_tokens - len(doc_ids)

    def _trace(self, context: Context) -> tuple[TraceRow, ...]:
        """Return the rows of every match in the context, of every snippet as shown, and of every image."""
        nodes, attempt, rows = self.evidence.nodes, self.attempt, []
        for match in context.matches:
            scores = {"score": match.score, "n_tokens": float(match.n_tokens)}
            if match.source == "dense":
                scores |= {"frequency": float(match.frequency), "similarity": match.similarity}
                scores["max_similarity"] = match.highest
            text, ids = nodes.text_of(nodes.row_of(match.node_id)), (match.node_id, match.doc_id, match.kind)
            rows.append(TraceRow("evidence", match.rank, text, *ids, scores, match.source, attempt=attempt))
        kinds = {match.node_id: match.kind for match in context.matches}
        for number, part in enumerate(context.snippets):
            kind = kinds.get(part.node_id)
            rows.append(TraceRow("context", number, part.text, part.node_id, part.doc_id, kind, attempt=attempt))
        for number, image in enumerate(context.images):
            scores = {} if image.similarity is None else {"similarity": image.similarity}
            note = f"{image.source}, sent" if self.settings.send_images else image.source
            ids = (image.node_id, image.doc_id, IMAGE)
            rows.append(TraceRow("image", number, image.caption, *ids, scores, note, attempt=attempt))
        return tuple(rows)


def _measures(asked: Try) -> dict[str, float]:
    context = asked.shown.context
    images = {"images": float(len(context.images))} if context.images else {}
    return {
        "matches": float(len(context.matches)),
        "snippets": float(len(context.snippets)),
        "characters": float(context.n_chars),
        "context_tokens": float(context.n_tokens),
        "cut": float(context.is_cut),
        "overflowed": float(asked.shown.overflowed),
        **images,
    }
