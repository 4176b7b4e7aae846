"""From a model's reply to a prediction whose citations all stand in the context, and from that to a ballot."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kohaku_ray.ensemble.vote import Ballot
from kohaku_ray.models.parse import parse_answer
from kohaku_ray.records import Prediction, Question, Reply
from kohaku_ray.systems.base import ballot_of
from kohaku_ray.systems.hybrid.citations import check_citations, without_citations
from kohaku_ray.systems.hybrid.numbers import bare_value, numbers_key
from kohaku_ray.systems.hybrid.texts import Text
from kohaku_ray.values.read import clean_text, fold

NO_INFORMATION = "Le corpus ne contient aucune information sur cette question."
"""What is answered, without a model, where no text is relevant; and what a model may say itself."""

WORDS = "texte"
"""Value of an answer in words alone; such answers are alike when they cite alike and hold the same numbers."""

_NO_VALUE = frozenset({"inconnu", "inconnue", "non précisé", "non précisée", "non indiqué", "non indiquée"})
_REFUSAL = re.compile(
    r"(?:le corpus|les (?:textes|articles|documents|sources)[^.]{0,40}) ne "
    r"(?:contien(?:t|nent)|permet(?:tent)?|comporte(?:nt)?|mentionne(?:nt)?)(?: pas| aucune?)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Read:
    """A reply as it was understood.

    Attributes:
        prediction: What is voted on.
        cut: Citations that were cut out, as they were written.
    """

    prediction: Prediction
    cut: tuple[str, ...] = ()


def read_reply(reply: Reply, question: Question, texts: Sequence[Text], attempt: int) -> Read:
    """Read an answer as JSON, or as prose that cites the context; blank with its reason where it is neither.

    Args:
        reply: What the model sent.
        question: What was asked.
        texts: What it was shown: any other citation is cut out and counted.
        attempt: Which attempt this is, from 0.
    """
    found = parse_answer(_with_value(reply), [text.ref_id for text in texts], attempt, question.answer_unit)
    if found.error is not None:
        return _read_prose(reply, found, texts)
    answer, analysis = check_citations(found.answer, texts), check_citations(found.explanation, texts)
    cut = (*answer.cut, *analysis.cut)
    value = without_citations(found.answer_value).strip()
    is_blank = found.is_blank or not answer.text or fold(value) in _NO_VALUE
    prediction = replace(
        found,
        answer=answer.text,
        explanation=analysis.text,
        answer_value="" if is_blank else bare_value(value, question.answer_unit) or WORDS,
        ref_ids=() if is_blank else tuple(dict.fromkeys((*answer.ref_ids, *found.ref_ids))),
        is_blank=is_blank,
        n_foreign_refs=found.n_foreign_refs + len(cut),
    )
    return Read(prediction, cut)


def ballot(row: Mapping[str, Any]) -> Ballot:
    """Make a ballot: references as they stand; an answer in words counts by the multiset of its numbers."""
    plain = ballot_of(row)
    if row["is_blank"] or fold(row["answer_value"]) != WORDS:
        return plain
    return replace(plain, answer_value=numbers_key(without_citations(row["answer"])) or WORDS)


def _with_value(reply: Reply) -> Reply:
    """Let an empty value of an answer that is not blank say that the answer is in words."""
    try:
        fields = json.loads(reply.text)
    except (ValueError, RecursionError):
        return reply
    if not isinstance(fields, dict) or fields.get("is_blank") is not False or fields.get("answer_value"):
        return reply
    return replace(reply, text=json.dumps({**fields, "answer_value": WORDS}))


def _read_prose(reply: Reply, found: Prediction, texts: Sequence[Text]) -> Read:
    """Take prose for the answer: blank when it says that the texts do not answer, unreadable when it cites none."""
    _, _, prose = clean_text(reply.text).rpartition("</think>")
    cited = check_citations(prose, texts)
    is_refusal = _REFUSAL.search(prose) is not None
    if not (cited.ref_ids or is_refusal) or reply.finish_reason == "length":
        return Read(found, cited.cut)
    prediction = Prediction(
        answer=cited.text,
        answer_value="" if is_refusal else WORDS,
        answer_unit=found.answer_unit,
        ref_ids=() if is_refusal else cited.ref_ids,
        is_blank=is_refusal,
        n_foreign_refs=len(cited.cut),
        attempt=found.attempt,
    )
    return Read(prediction, cited.cut)
