"""From texts to one member's answer: an analysis per source, a synthesis, citations that stand in the context."""

from __future__ import annotations

import json
from dataclasses import replace

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.records import Prediction, Reply, TraceRow
from kohaku_ray.systems.base import Answer
from kohaku_ray.systems.hybrid.reading import NO_INFORMATION, read_reply
from kohaku_ray.systems.hybrid.settings import HybridSettings
from kohaku_ray.systems.hybrid.stages import HybridEvidence, Text, answer_prompt
from kohaku_ray.systems.tools import Tools


async def answer(evidence: HybridEvidence, tools: Tools, settings: HybridSettings) -> Answer:
    """Ask until a reply can be read; where no text is relevant, say so without asking.

    A model that refuses the prompt's length is shown the better half of the texts; one that fails otherwise ends the
    attempts with a blank prediction that carries the error.
    """
    blank = Prediction(answer_unit=evidence.question.answer_unit or "")
    prediction = replace(blank, answer=NO_INFORMATION, explanation=evidence.why_nothing)
    cut: tuple[str, ...] = ()
    reply: Reply | None = None
    unreadable: list[TraceRow] = []
    for attempt in range(settings.answer_tries if evidence.texts else 0):
        try:
            evidence, reply = await _ask(evidence, tools, attempt)
        except ModelError as error:
            prediction = replace(blank, attempt=attempt, error=f"{type(error).__name__}: {error}")
            cut, reply = (), None
            break
        prediction, cut = read_reply(reply, evidence.question, evidence.texts, attempt)
        if prediction.error is None or attempt + 1 == settings.answer_tries:
            break
        unreadable.append(TraceRow("reply", attempt, reply.text, error=prediction.error, attempt=attempt))
    cited = [text for text in evidence.texts if text.ref_id in prediction.ref_ids]
    details = {
        "warning": evidence.warning,
        "queries": evidence.queries,
        "sources": [{"mark": text.mark, "title": text.title, "url": text.url} for text in cited],
        "citations_cut": cut,
        "cross_encoder": settings.ranker,
    }
    measures = {
        **evidence.measures,
        "shown": float(len(evidence.texts)),
        "citations": float(len(prediction.ref_ids)),
        "citations_cut": float(prediction.n_foreign_refs),
        "cited_netlocs": float(len({text.netloc or text.doc_id for text in cited})),
    }
    return Answer(
        prediction=prediction,
        trace=_trace(cited, cut, prediction.attempt),
        measures=measures,
        reply=reply.text if reply else None,
        details=json.dumps({key: value for key, value in details.items() if value}, ensure_ascii=False),
        other_replies=tuple(unreadable),
    )


async def _ask(evidence: HybridEvidence, tools: Tools, attempt: int) -> tuple[HybridEvidence, Reply]:
    """Ask once, with fewer texts as long as the model refuses the length; returns what it was shown, and its reply."""
    while True:
        prompt = answer_prompt(tools.prompts, evidence.question, evidence.texts)
        schema = answer_schema([text.ref_id for text in evidence.texts])
        try:
            return evidence, await tools.chat(prompt, schema=schema, attempt=attempt)
        except ContextOverflowError:
            if len(evidence.texts) == 1:
                raise
            evidence = replace(evidence, texts=evidence.texts[: len(evidence.texts) // 2])


def _trace(cited: list[Text], cut: tuple[str, ...], attempt: int) -> tuple[TraceRow, ...]:
    rows = [TraceRow("citations", 0, "", text.node_id, text.doc_id, text.kind, {}, text.mark) for text in cited]
    rows += [TraceRow("citations", 0, mark, note="not in the context, cut out") for mark in cut]
    return tuple(replace(row, rank=rank, attempt=attempt) for rank, row in enumerate(rows))
