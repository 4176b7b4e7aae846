"""What narrative says to its models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kohaku_ray.models.prompts import Prompt, Prompts
from kohaku_ray.records import Question
from kohaku_ray.systems.narrative.dossier import Judgement, place_text
from kohaku_ray.systems.narrative.prepare import Claim, Passage, StoryEvidence
from kohaku_ray.systems.narrative.questions import Story
from kohaku_ray.systems.narrative.rules import Finding


def search_prompt(prompts: Prompts, evidence: StoryEvidence, passages: Sequence[Passage]) -> Prompt:
    """Ask whether some passages contradict the story: the passages first, so that stories on a window share them."""
    return prompts.render("search", _variables(evidence, passages))


def verify_prompt(
    prompts: Prompts, evidence: StoryEvidence, passages: Sequence[Passage], claimed: Judgement, bar: float
) -> Prompt:
    """Ask whether a claimed contradiction holds."""
    cited = tuple({"ref_id": one.node_id, "quote": one.excerpt, "analysis": one.analysis} for one in claimed.cited)
    accusation = {"rationale": claimed.rationale, "cited": cited, "bar": f"{100 * bar:g} %"}
    return prompts.render("verify", {**_variables(evidence, passages), **accusation})


def _variables(evidence: StoryEvidence, passages: Sequence[Passage]) -> dict[str, Any]:
    """What both templates show. Numbers are rounded here: what the offline judge reads is what the prompt says."""
    shown = {part.node_id for part in passages}
    return {
        "book": evidence.title,
        "character": evidence.story.character,
        "caption": evidence.story.caption,
        "content": evidence.story.content,
        "knows_character": evidence.knows_character,
        "passages": tuple(
            {
                "ref_id": part.node_id,
                "where": place_text(part.chapter, part.progress_pct),
                "text": part.text,
            }
            for part in passages
        ),
        "claims": tuple(
            {"text": claim.text, "similarity": f"{claim.similarity:.2f}", "ref_id": claim.node_id}
            for claim in evidence.claims
        ),
        "findings": tuple(
            {
                "rule": one.rule,
                "ref_id": one.node_id,
                "claim": one.claim,
                "excerpt": one.excerpt,
                "reason": one.reason,
            }
            for one in evidence.findings
            if one.node_id in shown
        ),
    }


def _examples() -> tuple[dict[str, Any], dict[str, Any]]:
    """Variables that the templates are tried with."""
    passage = Passage("d:sec0:c0", "d", "I", 50.0, "t", 1)
    finding = Finding("died_twice", "c", "t", "I", "d:sec0:c0", "r")
    story, claims = Story("c", "n", "b", "h"), (Claim("c", 0.5, "d:sec0:c0"),)
    evidence = StoryEvidence(Question("q", "c"), story, "d", "b", True, claims, (passage,), (finding,), (), ())
    cited = {"ref_id": "d:sec0:c0", "quote": "t", "analysis": "a"}
    variables = _variables(evidence, (passage,))
    return variables, {**variables, "rationale": "r", "cited": (cited,), "bar": "90 %"}


SEARCH_EXAMPLE, VERIFY_EXAMPLE = _examples()
