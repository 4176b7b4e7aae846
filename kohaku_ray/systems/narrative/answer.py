"""Judge a story as one member: stage 1 looks for a contradiction, stage 2 confirms or rejects it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kohaku_ray.errors import ContextOverflowError, KohakuRayError, ModelError
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.models.request import CHARS_PER_TOKEN
from kohaku_ray.records import Prediction, Question, Reply, TraceRow
from kohaku_ray.systems.base import Answer
from kohaku_ray.systems.narrative.dossier import (
    Judgement,
    dossier,
    dossier_rows,
    judgement_schema,
    place_text,
    read_judgement,
)
from kohaku_ray.systems.narrative.label import CONSISTENT, CONTRADICT
from kohaku_ray.systems.narrative.prepare import Story, StoryClaim, StoryEvidence
from kohaku_ray.systems.narrative.rules import BookPassage, Finding, StoryCheck
from kohaku_ray.systems.narrative.settings import NarrativeSettings
from kohaku_ray.systems.tools import Tools


def _variables(evidence: StoryEvidence, passages: Sequence[BookPassage]) -> dict[str, Any]:
    """What both templates show. Numbers are rounded here: what the offline judge reads is what the prompt says."""
    shown = {part.node_id for part in passages}
    return {
        "book": evidence.title,
        "character": evidence.story.character,
        "caption": evidence.story.caption,
        "content": evidence.story.content,
        "knows_character": evidence.knows_character,
        "passages": tuple(
            {"ref_id": part.node_id, "where": place_text(part.chapter, part.progress_pct), "text": part.text}
            for part in passages
        ),
        "claims": tuple(
            {"text": claim.text, "similarity": f"{claim.similarity:.2f}", "ref_id": claim.node_id}
            for claim in evidence.claims
        ),
        "findings": tuple(
            {
                "rule": finding.rule,
                "ref_id": finding.node_id,
                "claim": finding.claim,
                "excerpt": finding.excerpt,
                "reason": finding.reason,
            }
            for finding in evidence.check.findings
            if finding.node_id in shown
        ),
        "n_claims": len(evidence.check.claims),
        "n_facts": len(evidence.check.facts),
    }


def _examples() -> tuple[dict[str, Any], dict[str, Any]]:
    passage = BookPassage("d:sec0:c0", "d", "I", 50.0, "t", 1)
    finding = Finding("died_twice", "c", "t", "I", "d:sec0:c0", "r")
    story, claims = Story("c", "n", "b", "h"), (StoryClaim("c", 0.5, "d:sec0:c0"),)
    check = StoryCheck(findings=(finding,))
    evidence = StoryEvidence(Question("q", "c"), story, "d", "b", True, claims, (passage,), check, (), ())
    cited = {"ref_id": "d:sec0:c0", "quote": "t", "analysis": "a"}
    variables = _variables(evidence, (passage,))
    return variables, {**variables, "rationale": "r", "cited": (cited,), "bar": "90 %"}


SEARCH_EXAMPLE, VERIFY_EXAMPLE = _examples()

BOOK_SHARE = 0.75
"""Share of the model's window, less the reply, that a window of the book takes; the rest is for story and findings."""

_SMALLER = 0.75  # of the excerpts, when the model refuses a prompt that was counted as short enough


class NoJudgementError(KohakuRayError):
    """A reply holds no judgement, or nothing fits the model's window."""

    def __init__(self, message: str, reply: str | None = None) -> None:
        super().__init__(message)
        self.reply = reply


async def answer(evidence: StoryEvidence, tools: Tools, settings: NarrativeSettings) -> Answer:
    """Judge a story; a model's failure, or a reply that holds no judgement, is a blank prediction with the error."""
    stages: dict[str, Judgement] = {}
    error = unread = None
    try:
        if not evidence.passages:
            raise NoJudgementError(f"no chunk of {evidence.doc_id} was found: give the index a book with text")
        stages["search"] = await _search(evidence, tools, settings)
        if settings.stages == 2 and stages["search"].label == CONTRADICT:
            stages["verify"] = await _verify(evidence, stages["search"], tools, settings)
    except ModelError as failure:
        error = f"{type(failure).__name__}: {failure}"
    except NoJudgementError as failure:
        error, unread = str(failure), failure.reply
    rows = [
        TraceRow(name, 0, judgement.rationale, scores={"confidence": judgement.confidence}, note=judgement.label)
        for name, judgement in stages.items()
    ]
    if error is not None:
        failed = TraceRow("verify" if stages else "search", error=error)
        return Answer(Prediction(error=error), (*rows, failed), reply=unread)
    final = stages.get("verify", stages["search"])
    if "verify" in stages and final.label == CONTRADICT and final.confidence < settings.verify_bar:
        # Below the bar the story stands, at the probability that is left.
        bar = f"(A contradiction at {final.confidence:.2f}, below the bar of {settings.verify_bar:g}.)"
        rationale = f"{final.rationale} {bar}"
        final = replace(final, label=CONSISTENT, confidence=1 - final.confidence, rationale=rationale)
    verb = "is consistent with" if final.label == CONSISTENT else "contradicts"
    prediction = Prediction(
        answer=f"The backstory {verb} {evidence.title}.",
        answer_value=final.label,
        ref_ids=(evidence.doc_id,),
        explanation=final.rationale,
        is_blank=False,
        n_foreign_refs=sum(judgement.n_foreign for judgement in stages.values()),
    )
    return Answer(
        prediction,
        trace=(*rows, *dossier_rows(final, evidence.doc_id)),
        measures=_measures(evidence, final, stages),
        reply=final.reply,
        details=dossier(evidence, stages, final),
    )


async def _search(evidence: StoryEvidence, tools: Tools, settings: NarrativeSettings) -> Judgement:
    """Stage 1: one call on the retrieved excerpts, or one per window of the book; the surest contradiction counts."""
    if not evidence.book:
        return await _judge("search", evidence, evidence.passages, tools)
    limits, longest = tools.limits("search"), math.inf
    if settings.window_tokens is not None:
        longest = settings.window_tokens
    elif limits.window_tokens is not None:
        longest = BOOK_SHARE * (limits.window_tokens - limits.max_tokens)
    windows = [part for window in _windows(evidence.book, longest) for part in await _halved(window, evidence, tools)]
    asked = (_judge("search", evidence, window, tools) for window in windows)
    judgements: list[Judgement] = []
    for outcome in await asyncio.gather(*asked, return_exceptions=True):  # all are over before one's error is raised
        if isinstance(outcome, BaseException):
            raise outcome
        judgements.append(outcome)
    surest = max(judgements, key=lambda outcome: (outcome.label == CONTRADICT, outcome.contradiction))
    return replace(surest, n_calls=len(judgements))


def _windows(book: Sequence[BookPassage], n_tokens: float) -> list[Sequence[BookPassage]]:
    """Cut the book where a window is full: by the book alone, so that all stories have the same windows."""
    windows: list[list[BookPassage]] = []
    room = 0.0
    for part in book:
        if not windows or part.n_tokens > room:
            windows.append([])
            room = n_tokens
        windows[-1].append(part)
        room -= part.n_tokens
    return list(windows)


async def _halved(window: Sequence[BookPassage], evidence: StoryEvidence, tools: Tools) -> list[Sequence[BookPassage]]:
    """Halve a window until its prompt fits: no part of the book goes unread."""
    if len(window) == 1:
        return [window]
    if await _overrun(tools.prompts.render("search", _variables(evidence, window)), "search", tools) <= 1:
        return [window]
    middle = len(window) // 2
    return [*await _halved(window[:middle], evidence, tools), *await _halved(window[middle:], evidence, tools)]


async def _verify(evidence: StoryEvidence, claimed: Judgement, tools: Tools, settings: NarrativeSettings) -> Judgement:
    """Stage 2: the excerpts that stage 1 cites first, then the retrieved ones."""
    cited = {excerpt.node_id for excerpt in claimed.cited}
    first = [part for part in (*evidence.book, *evidence.passages) if part.node_id in cited]
    passages = tuple({part.node_id: part for part in (*first, *evidence.passages)}.values())
    accusation = {
        "rationale": claimed.rationale,
        "cited": tuple(
            {"ref_id": excerpt.node_id, "quote": excerpt.evidence, "analysis": excerpt.analysis}
            for excerpt in claimed.cited
        ),
        "bar": f"{100 * settings.verify_bar:g} %",
    }
    return await _judge("verify", evidence, passages, tools, accusation)


async def _judge(
    role: str,
    evidence: StoryEvidence,
    passages: Sequence[BookPassage],
    tools: Tools,
    accusation: Mapping[str, Any] | None = None,
) -> Judgement:
    """Ask about the first passages, as many as fit; fewer, once, where the model still refuses the length."""

    def render(passages: Sequence[BookPassage]) -> Prompt:
        return tools.prompts.render(role, {**_variables(evidence, passages), **(accusation or {})})

    async def chat(passages: Sequence[BookPassage]) -> Reply:
        schema = judgement_schema([part.node_id for part in passages])
        return await tools.chat(render(passages), role=role, schema=schema)

    while (over := await _overrun(render(passages), role, tools)) > 1:
        passages = passages[: min(len(passages) - 1, int(len(passages) / over))]
        if not passages:
            limits = tools.limits(role)
            raise NoJudgementError(
                f"{role}: not one excerpt fits the model's window of {limits.window_tokens} tokens beside the story "
                f"and roles.{role}.max_tokens, which is {limits.max_tokens}: lower that, or serve the model with a "
                "longer window"
            )
    try:
        reply = await chat(passages)
    except ContextOverflowError:
        passages = passages[: math.ceil(len(passages) * _SMALLER)]
        reply = await chat(passages)
    judgement = read_judgement(reply, passages)
    if isinstance(judgement, str):
        raise NoJudgementError(f"{role}: {judgement}", reply.text)
    return judgement


async def _overrun(prompt: Prompt, role: str, tools: Tools) -> float:
    """How many times what the window leaves beside the reply a prompt is long; at most 1: it fits."""
    limits = tools.limits(role)
    if limits.window_tokens is None:
        return 0.0
    n_tokens = await tools.prompt_tokens(prompt, role)
    if n_tokens is None:
        n_tokens = math.ceil((len(prompt.system) + len(prompt.user)) / CHARS_PER_TOKEN)
    return n_tokens / max(limits.window_tokens - limits.max_tokens, 1)


def _measures(evidence: StoryEvidence, final: Judgement, stages: Mapping[str, Judgement]) -> dict[str, float]:
    return {
        "confidence": final.confidence,
        "contradiction": final.contradiction,
        "stages": float(len(stages)),
        "calls": float(sum(item.n_calls for item in stages.values())),
        "excerpts": float(len(evidence.passages)),
        "claims": float(len(evidence.check.claims)),
        "facts": float(len(evidence.check.facts)),
        "findings": float(len(evidence.check.findings)),
        "cited": float(len(final.cited)),
        "misquoted": float(sum(not item.is_quoted for item in final.cited)),
        "character_in_book": float(evidence.knows_character),
    }
