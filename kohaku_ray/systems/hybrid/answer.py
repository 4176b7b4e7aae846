"""From texts to one member's answer: an analysis per source, a synthesis, citations that stand in the context."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.records import Prediction, Reply, TraceRow
from kohaku_ray.systems.base import Answer
from kohaku_ray.systems.hybrid.reading import NO_INFORMATION, Read, read_reply
from kohaku_ray.systems.hybrid.settings import COSINE, HybridSettings
from kohaku_ray.systems.hybrid.stages import STAND_IN
from kohaku_ray.systems.hybrid.texts import HybridEvidence, answer_prompt
from kohaku_ray.systems.tools import Tools


async def answer(evidence: HybridEvidence, tools: Tools, settings: HybridSettings) -> Answer:
    """Ask until a reply can be read; where no text is relevant, say so without asking.

    A model that refuses the prompt's length is shown the better half of the texts; one that fails otherwise ends the
    attempts with a blank prediction that carries the error.
    """
    if not evidence.texts:
        prediction = Prediction(
            answer=NO_INFORMATION, answer_unit=evidence.question.answer_unit or "", explanation=evidence.why_nothing
        )
        return _answer(evidence, Read(prediction), settings)
    unreadable: list[TraceRow] = []
    for attempt in range(settings.answer_tries):
        try:
            evidence, reply = await _ask(evidence, tools, attempt)
        except ModelError as error:
            unit = evidence.question.answer_unit or ""
            failed = Prediction(answer_unit=unit, attempt=attempt, error=f"{type(error).__name__}: {error}")
            return _answer(evidence, Read(failed), settings, None, unreadable)
        read = read_reply(reply, evidence.question, evidence.texts, attempt)
        if read.prediction.error is None or attempt + 1 == settings.answer_tries:
            break
        unreadable.append(TraceRow("reply", attempt, reply.text, error=read.prediction.error, attempt=attempt))
    return _answer(evidence, read, settings, reply, unreadable)


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


def _answer(
    evidence: HybridEvidence,
    read: Read,
    settings: HybridSettings,
    reply: Reply | None = None,
    unreadable: Sequence[TraceRow] = (),
) -> Answer:
    """Put beside the prediction what was shown, cited and cut."""
    prediction = read.prediction
    cited = [text for text in evidence.texts if text.ref_id in prediction.ref_ids]
    details = {
        "warning": evidence.warning,
        "queries": evidence.queries,
        "sources": [{"mark": text.mark, "title": text.title, "url": text.url} for text in cited],
        "citations_cut": read.cut,
        "cross_encoder": STAND_IN if settings.cross_encoder == COSINE else settings.cross_encoder,
    }
    measures = {
        **evidence.measures,
        "shown": float(len(evidence.texts)),
        "citations": float(len(prediction.ref_ids)),
        "citations_cut": float(prediction.n_foreign_refs),
        "cited_netlocs": float(len({text.netloc or text.doc_id for text in cited})),
    }
    trace = tuple(
        TraceRow("citations", rank, "", text.node_id, text.doc_id, text.kind, {}, text.mark)
        for rank, text in enumerate(cited)
    ) + tuple(
        TraceRow("citations", len(cited) + at, mark, note="not in the context, cut out")
        for at, mark in enumerate(read.cut)
    )
    return Answer(
        prediction=prediction,
        trace=tuple(replace(row, attempt=prediction.attempt) for row in trace),
        measures=measures,
        reply=reply.text if reply else None,
        details=json.dumps({key: value for key, value in details.items() if value}, ensure_ascii=False),
        other_replies=tuple(unreadable),
    )
