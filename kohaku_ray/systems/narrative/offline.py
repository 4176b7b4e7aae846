"""The offline judge: rules and similarity alone, no language model; it says so in every rationale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.models.baseline import Baseline, Draw
from kohaku_ray.systems.narrative.dossier import MOST_CHARS, MOST_CITED
from kohaku_ray.systems.narrative.label import CONSISTENT, CONTRADICT
from kohaku_ray.systems.narrative.names import folded_words

CONFIDENCE = 0.95
"""Of a contradiction that a rule found."""

_SAYS = "Offline judge, no language model: "
_SHOWN = 4  # claims whose nearest excerpt is cited where no rule found anything


class OfflineJudge(Baseline):
    """Decides from the findings, and without any from the similarity of each claim's nearest excerpt.

    Stage 1 claims a contradiction where a rule found one, or where a claim has no excerpt as near as
    ``abstain_below``. Stage 2 confirms what a rule found alone: silence is no contradiction.
    """

    name, version = "narrative-offline", 2
    needs: ClassVar = dict.fromkeys(("search", "verify"), ("findings", "claims", "passages", "n_claims", "n_facts"))

    def reply(self, variables: Mapping[str, Any], draw: Draw) -> Any:
        """Judge; nothing is drawn."""
        if findings := variables["findings"]:
            reasons = "; ".join(f"{finding['rule']}: {finding['reason']}" for finding in findings)
            return {
                "excerpts": [
                    _cited(finding["ref_id"], finding["excerpt"], finding["claim"], finding["reason"])
                    for finding in findings[:MOST_CITED]
                ],
                "rationale": f"{_SAYS}the rules found a contradiction: {reasons}."[: 2 * MOST_CHARS],
                "label": CONTRADICT,
                "confidence": CONFIDENCE,
            }
        # The claim that the book is least near to decides: in stage 1 only, for being far is no contradiction.
        claims = sorted(variables["claims"], key=lambda claim: float(claim["similarity"]))
        least = float(claims[0]["similarity"]) if claims else 0.0
        is_near = least >= self.abstain_below
        is_far = not is_near and variables["role"] == "search"
        bar = f"{'at least' if is_near else 'below'} {self.abstain_below:g}"
        means = "" if is_near or is_far else " Silence is no contradiction."
        texts = {part["ref_id"]: part["text"] for part in variables["passages"]}
        excerpts = []
        for claim in [claim for claim in claims if claim["ref_id"] in texts][:_SHOWN]:
            text, wanted = texts[claim["ref_id"]], set(folded_words(claim["text"]))
            sentences = [text[span.start : span.end] for span in split_sentences(text)]
            quote = max(sentences, key=lambda sentence: len(wanted & set(folded_words(sentence))), default="")
            means_near = f"The nearest excerpt, similarity {claim['similarity']}."
            excerpts.append(_cited(claim["ref_id"], quote, claim["text"], means_near))
        return {
            "excerpts": excerpts,
            "rationale": f"{_SAYS}the rules found nothing, so similarity alone decides, which cannot tell support "
            f"from contradiction: the claim farthest from the book has an excerpt at {least:.2f}, {bar}.{means} "
            f"The rules read {variables['n_claims']} dated or placed claims of the story and {variables['n_facts']} of "
            "the book.",
            "label": CONTRADICT if is_far else CONSISTENT,
            "confidence": round(1 - max(least, 0.0) if is_far else max(least, 0.5), 4),
        }


def _cited(node_id: str, quote: str, claim: str, analysis: str) -> dict[str, str]:
    texts = {"quote": quote, "claim": claim, "analysis": analysis}
    return {"node_id": node_id} | {name: text[:MOST_CHARS] for name, text in texts.items()}
