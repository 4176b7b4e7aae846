"""A judgement with its dossier: excerpts of the book, verbatim, each with the claim it bears on and what it means."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TextIO

from kohaku_ray.ensemble.vote import Ballot
from kohaku_ray.models.json_text import FoundValue, find_values, why_nothing
from kohaku_ray.models.parse import value_text
from kohaku_ray.records import Reply, TraceRow
from kohaku_ray.systems.base import AnsweredQuestion, Rows, ballot_of
from kohaku_ray.systems.narrative.label import CONSISTENT, LABELS, read_label
from kohaku_ray.systems.narrative.names import unaccent
from kohaku_ray.systems.narrative.prepare import StoryEvidence
from kohaku_ray.systems.narrative.rules import BookPassage

MOST_CITED = 8
"""Excerpts that a judgement may cite."""

MOST_CHARS = 256
"""Longest text of a judgement in characters, and half of its longest rationale: with ``MOST_CITED`` excerpts it fits
2,048 tokens. Unbounded, a small model repeats an analysis until its reply is cut off."""

LEAST_WEIGHT = 1e-6
"""Weight of a ballot without any confidence: a label that nobody else gives still wins over none."""

_UNJUDGED = "Not judged, so taken as consistent: silence is no contradiction."
_LOOKALIKES = str.maketrans(dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("–—‐‑−", "-") | {"\u00a0": " "})
_EDGES = " \t\n\"'“”‘’.…"


@dataclass(frozen=True, slots=True)
class CitedExcerpt:
    """An excerpt that a judgement rests on, in a chunk of the book.

    Attributes:
        evidence: Verbatim: what the model quoted, as the book writes it; the whole chunk where it quoted nothing there.
        is_quoted: Whether the model's quotation stands in the chunk.
        claim: What of the story it bears on, and what it means for that.
    """

    node_id: str
    chapter: str
    progress_pct: float | None
    evidence: str
    is_quoted: bool
    claim: str
    analysis: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a model says of a story.

    Attributes:
        label: One of ``LABELS``.
        confidence: Its probability of that label.
        cited: What it rests on.
        n_foreign: Excerpts it cited that it was not shown; they are left out.
        reply: The text it was read from.
        n_calls: Model calls it took.
    """

    label: str
    confidence: float
    rationale: str
    cited: tuple[CitedExcerpt, ...]
    n_foreign: int
    reply: str
    n_calls: int = 1

    @property
    def contradiction(self) -> float:
        """Its probability of a contradiction."""
        return 1 - self.confidence if self.label == CONSISTENT else self.confidence


def judgement_schema(node_ids: Sequence[str]) -> dict[str, Any]:
    """Describe a judgement as JSON: what may be cited, and what it means, before the label it leads to."""
    text = {"type": "string", "maxLength": MOST_CHARS}
    node_id = {"type": "string", "enum": list(node_ids)}
    cited = _object(node_id=node_id, quote=text, claim=text, analysis=text)
    return _object(
        excerpts={"type": "array", "items": cited, "maxItems": MOST_CITED},
        rationale={"type": "string", "maxLength": 2 * MOST_CHARS},
        label={"type": "string", "enum": list(LABELS)},
        confidence={"type": "number"},
    )


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def read_judgement(reply: Reply, passages: Sequence[BookPassage]) -> Judgement | str:
    """Read a judgement on the passages that the model was shown; the text says why where there is none."""
    fields = next(filter(None, map(_judgement, find_values(reply))), None)
    if fields is None:
        return why_nothing(reply, "JSON object with a label and a confidence")
    excerpts = fields.get("excerpts")
    cited = [item for item in excerpts if isinstance(item, dict)] if isinstance(excerpts, list) else []
    cited = cited[:MOST_CITED]
    shown = {part.node_id: part for part in passages}
    known = [(shown[node_id], item) for item in cited if (node_id := str(item.get("node_id", "")).strip()) in shown]
    return Judgement(
        label=fields["label"],
        confidence=fields["confidence"],
        rationale=value_text(fields.get("rationale")),
        cited=tuple(_cited(part, item) for part, item in known),
        n_foreign=len(cited) - len(known),
        reply=reply.text,
    )


def _judgement(found: FoundValue) -> dict[str, Any] | None:
    """Take an object with a readable label; a missing or unreadable confidence is an even one, percent are shares."""
    value = found.value
    label = read_label(value_text(value.get("label"))) if isinstance(value, dict) else None
    if label is None or found.flag == "cut":
        return None
    confidence = value_text(value.get("confidence"))
    try:
        share = float(confidence.rstrip("% "))
    except ValueError:
        share = 0.5
    share = share / 100 if share > 1 else share
    return {**value, "label": label, "confidence": min(max(share, 0.0), 1.0) if share == share else 0.5}


def _cited(part: BookPassage, item: Mapping[str, Any]) -> CitedExcerpt:
    quote = find_quote(value_text(item.get("quote")), part.text)
    claim, analysis = value_text(item.get("claim")), value_text(item.get("analysis"))
    return CitedExcerpt(
        part.node_id, part.chapter, part.progress_pct, quote or part.text, quote is not None, claim, analysis
    )


def find_quote(quote: str, text: str) -> str | None:
    """Find a quotation in a text, whatever its line breaks, dashes, accents and quotation marks.

    Returns:
        The text's own characters; None where they do not stand there.
    """
    plain = _plain(quote)
    for words in (plain.split(), plain.strip(_EDGES).split()):
        match = re.search(r"\s+".join(map(re.escape, words)), _plain(text), re.IGNORECASE) if words else None
        if match:
            return text[match.start() : match.end()]
    return None


def _plain(text: str) -> str:
    """One character for one, so that spans fit."""
    return unaccent(text).translate(_LOOKALIKES)


def dossier(evidence: StoryEvidence, judgements: Mapping[str, Judgement], final: Judgement) -> str:
    """Write everything that led to a final label as JSON: evidence, claim and analysis of each excerpt."""
    parts = {
        "book": evidence.title,
        "character": evidence.story.character,
        "character_in_book": evidence.knows_character,
        **_judgement_record(final),
        "dossier": [asdict(cited) for cited in final.cited],
        "claims": [claim._asdict() for claim in evidence.check.claims],
        "facts": [{**fact._asdict(), "chapter": part.chapter} for fact, part in evidence.check.facts],
        "findings": [asdict(finding) for finding in evidence.check.findings],
        "stages": {name: _judgement_record(judged) for name, judged in judgements.items()},
    }
    return json.dumps(parts, ensure_ascii=False, sort_keys=True)


def _judgement_record(judgement: Judgement) -> dict[str, Any]:
    return {"label": judgement.label, "confidence": judgement.confidence, "rationale": judgement.rationale}


def dossier_rows(final: Judgement, doc_id: str) -> list[TraceRow]:
    """Lay the dossier out as three items per excerpt: the evidence, the claim and the analysis."""
    rows = []
    for number, cited in enumerate(final.cited, 1):
        note = f"evidence {number}: {place_text(cited.chapter, cited.progress_pct)}"
        rank = 3 * number - 3
        rows.append(TraceRow("dossier", rank, cited.evidence, cited.node_id, doc_id, "chunk", note=note))
        rows.append(TraceRow("dossier", rank + 1, cited.claim, note=f"claim {number}"))
        rows.append(TraceRow("dossier", rank + 2, cited.analysis, note=f"analysis {number}"))
    return rows


def place_text(chapter: str, progress_pct: float | None) -> str:
    """Say where a chunk stands."""
    return chapter if progress_pct is None else f"{chapter}, {progress_pct:.0f} % of the book"


def results_csv(questions: Iterable[AnsweredQuestion], file: TextIO) -> None:
    """Write results.csv: Story ID, Prediction (1 consistent, 0 contradict), Rationale, Confidence.

    The confidence is ``vote_confidence``. A story that nobody judged is predicted consistent, for silence is no
    contradiction: the rationale says so and why, and there is no confidence.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["Story ID", "Prediction", "Rationale", "Confidence"])
    for vote, answers, _ in questions:
        if vote["is_blank"]:
            errors = dict.fromkeys(row["error"] for row in answers if row["error"])
            why = " · ".join(errors) or vote["explanation"]
            writer.writerow([vote["question_id"], 1, f"{_UNJUDGED} {why}".strip(), ""])
            continue
        prediction = int(read_label(vote["answer_value"]) == CONSISTENT)
        writer.writerow([vote["question_id"], prediction, vote["explanation"], vote_confidence(vote, answers)])


def vote_confidence(vote: Mapping[str, Any], answers: Rows) -> str:
    """Write the mean probability that members who answered give the voted label; empty where nobody did."""
    label = read_label(vote["answer_value"])
    shares = []
    for row in answers:
        if not row["is_blank"]:
            confidence = float(row["measures"]["confidence"])
            shares.append(confidence if read_label(row["answer_value"]) == label else 1 - confidence)
    return "" if vote["is_blank"] or not shares else f"{sum(shares) / len(shares):.4f}"


def count_of(name: str, vote: Mapping[str, Any], answers: Rows) -> str:
    """Write a count that all members share; empty where nobody answered."""
    del vote
    return next((f"{row['measures'][name]:.0f}" for row in answers if row["measures"]), "")


def weighted_ballot(row: Mapping[str, Any]) -> Ballot:
    """Build a ballot that weighs as much as its confidence; an abstention has none and weighs 1."""
    ballot = ballot_of(row)
    confidence = 1.0 if row["is_blank"] else float(row["measures"]["confidence"])
    return replace(ballot, weight=max(confidence, LEAST_WEIGHT))
