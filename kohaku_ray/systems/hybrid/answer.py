"""Answer as one member: an analysis per source, a synthesis, citations of the context alone; and its ballot."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kohaku_ray.ensemble.vote import Ballot
from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.json_text import final_part
from kohaku_ray.models.parse import is_stated, parse_answer
from kohaku_ray.models.request import is_finished
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.records import CUT, Prediction, Question, Reply, TraceRow
from kohaku_ray.systems.base import Answer, ballot_of
from kohaku_ray.systems.hybrid.settings import ANSWER_TRIES, HybridSettings
from kohaku_ray.systems.hybrid.stages import FEW, HybridEvidence, Text, answer_prompt, plain
from kohaku_ray.systems.tools import Tools
from kohaku_ray.values.normalise import write_plain_number
from kohaku_ray.values.read import clean_text, fold

_COUNT = (
    r"[0-9]{1,3}(?:[ \u00a0\u2009\u202f][0-9]{3})+(?![0-9])(?:,[0-9]+)?"  # 1 234,5
    r"|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+"  # 1.234,5
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9])"  # 1.234.567
    r"|[0-9]{1,40}(?:[.,][0-9]{1,40})?"
)
_NUMBER = re.compile(
    rf"(?<![\w.,])(?P<sign>[-−](?=[0-9]))?(?P<count>{_COUNT})(?!\w)(?:[ \u00a0\u202f](?P<scale>mille|millions?|milliards?)\b)?",  # noqa: E501
    re.IGNORECASE,
)
_SCALE = re.compile(r"\b(mille|million|milliard)s?\b", re.IGNORECASE)
_SCALES = {"mille": 1e3, "million": 1e6, "milliard": 1e9}


class FrenchNumber(NamedTuple):
    """A number in a text: its value, as it is written (with "millions"), and one past its last character."""

    value: float
    text: str
    end: int


def read_numbers(text: str) -> list[FrenchNumber]:
    """Read every number of French prose: a decimal comma; spaces, or dots before one, separate thousands."""
    numbers = (FrenchNumber(_value(match), match[0], match.end()) for match in _NUMBER.finditer(text))
    return [number for number in numbers if math.isfinite(number.value)]


def numbers_of(text: str) -> tuple[float, ...]:
    """The values of a text's numbers, ascending, as often as they stand there: a multiset."""
    return tuple(sorted(number.value for number in read_numbers(text)))


def bare_value(value: str, unit: str | None) -> str:
    """Write a value that is one number without separators and unit; leave any other as it is.

    ``9,6 millions d'euros`` becomes 9.6 where the unit asked for is ``millions d'euros``, else 9600000.
    """
    numbers = numbers_of(value)
    if len(numbers) != 1 or not _NUMBER.match(value.strip()):
        return value
    return _in_unit(numbers[0], value, unit)


def stated_value(value: str, answer: str, unit: str | None) -> str:
    """Write the value of an answer as ``bare_value`` does; ``WORDS`` where it has none.

    Where a unit is asked for, a value that is the unit or words alone gives way to the answer's number, if it has one:
    small models write ``"answer": "412 habitants", "answer_value": "habitants"``.
    """
    value = bare_value(value, unit)
    if not unit or fold(value) not in ("", WORDS, fold(unit)):
        return value or WORDS
    prose = without_citations(answer)
    numbers = numbers_of(prose)
    return _in_unit(numbers[0], prose, unit) if len(numbers) == 1 else WORDS


def _in_unit(number: float, text: str, unit: str | None) -> str:
    asked = _SCALE.search(unit or "")
    scale = _SCALES[asked[1].lower()] if asked and _SCALE.search(text) else 1.0
    return write_plain_number(number / scale)


def _value(match: re.Match[str]) -> float:
    count = re.sub(r"\s", "", match["count"])
    if "," in count or count.count(".") > 1:
        count = count.replace(".", "").replace(",", ".")
    scale = _SCALES[match["scale"].lower().removesuffix("s")] if match["scale"] else 1.0
    return (-1 if match["sign"] else 1) * float(count) * scale


_BRACKET = re.compile(r"([ \t\u00a0\u202f]{0,4})\[([^\[\]]{1,2000})\]")
_BETWEEN = re.compile(r"\s*[;|]\s*")
_SLASH = re.compile(r"\s/\s|/")
_LABEL = re.compile(r"^(?:id|ref_id)\s*[=:]\s*", re.IGNORECASE)


class CheckedProse(NamedTuple):
    """Prose whose citations all stand in the context.

    Attributes:
        text: The prose; citations have the form of the texts' headings.
        ref_ids: What is cited, in order of first citation.
        cut: Citations that were cut out, as they were written.
    """

    text: str
    ref_ids: tuple[str, ...]
    cut: tuple[str, ...]


def check_citations(prose: str, texts: Iterable[Text]) -> CheckedProse:
    """Read the citations of a prose.

    A bracket is a citation when it holds a slash, or nothing but the id of a text; several may share a bracket,
    separated by semicolons. The id counts, whatever is said of site and date. Other brackets stay.
    """
    known = {plain(text.ref_id).casefold(): text for text in texts}
    cited: dict[str, None] = {}
    cut: list[str] = []

    def checked(bracket: re.Match[str]) -> str:
        marks, is_citation = [], False
        for part in _BETWEEN.split(bracket[2].strip()):
            text = _named(part, known)
            if text is not None:
                marks.append(text.mark)
                cited.setdefault(text.ref_id)
            elif "/" in part:
                cut.append(f"[{part}]")
            is_citation = is_citation or text is not None or "/" in part
        if not is_citation:
            return bracket[0]
        return f"{bracket[1]}{' '.join(dict.fromkeys(marks))}" if marks else ""

    return CheckedProse(_BRACKET.sub(checked, prose).strip(), tuple(cited), tuple(cut))


def without_citations(prose: str) -> str:
    """Drop every bracket that holds a slash, such as a citation: its id and date are no numbers of the answer."""
    return _BRACKET.sub(lambda bracket: " " if "/" in bracket[2] else bracket[0], prose)


def _named(part: str, known: dict[str, Text]) -> Text | None:
    """Find the text that a part of a bracket names: an id may hold slashes itself."""
    bare = _LABEL.sub("", " ".join(part.split())).casefold()
    ends = [slash.start() for slash in _SLASH.finditer(bare)][:16]
    return next((known[name] for end in (*ends, len(bare)) if (name := bare[:end].strip(" '\"")) in known), None)


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


def read_reply(
    reply: Reply, question: Question, texts: Sequence[Text], attempt: int
) -> tuple[Prediction, tuple[str, ...]]:
    """Read an answer as JSON, or as prose that cites the context; blank with its reason where it is neither.

    Returns:
        The prediction, and the citations of anything but ``texts``, which are cut out of it, as they were written.
    """
    refs, shown = [text.ref_id for text in texts], [f"{plain(text.title)}\n{plain(text.text)}" for text in texts]

    def marks(prose: str) -> tuple[str, ...]:
        return check_citations(prose, texts).ref_ids

    parsed = parse_answer(reply, refs, attempt, question.answer_unit, words=WORDS, shown=shown, read_marks=marks)
    if parsed.error is not None:
        return _read_prose(reply, parsed, texts)
    answer, analysis = check_citations(parsed.answer, texts), check_citations(parsed.explanation, texts)
    cut = (*answer.cut, *analysis.cut)
    value = without_citations(parsed.answer_value).strip()
    is_blank = parsed.is_blank or not answer.text or (fold(value) in _NO_VALUE and not is_stated(value, shown))
    ref_ids = () if is_blank else tuple(dict.fromkeys((*answer.ref_ids, *parsed.ref_ids)))
    prediction = replace(
        parsed,
        answer=answer.text,
        explanation=analysis.text,
        answer_value="" if is_blank else stated_value(value, answer.text, question.answer_unit),
        ref_ids=ref_ids,
        flags=tuple(flag for flag in parsed.flags if flag != "uncited" or not ref_ids),
        is_blank=is_blank,
        n_foreign_refs=parsed.n_foreign_refs + len(cut),
    )
    return prediction, cut


def ballot(row: Mapping[str, Any]) -> Ballot:
    """Make a ballot: references as they stand; an answer in words counts by the multiset of its numbers."""
    plain = ballot_of(row)
    if row["is_blank"] or fold(row["answer_value"]) != WORDS:
        return plain
    numbers = numbers_of(without_citations(row["answer"]))
    return replace(plain, answer_value="; ".join(map(write_plain_number, numbers)) or WORDS)


def _read_prose(reply: Reply, parsed: Prediction, texts: Sequence[Text]) -> tuple[Prediction, tuple[str, ...]]:
    """Take prose for the answer: blank when it says that the texts do not answer, unreadable when it cites none."""
    prose, is_open = final_part(clean_text(reply.text))
    cited = check_citations(prose, texts)
    is_refusal = _REFUSAL.search(prose) is not None
    if not (cited.ref_ids or is_refusal) or is_open or not is_finished(reply) or reply.finish_reason == CUT:
        return parsed, cited.cut
    prediction = Prediction(
        answer=cited.text,
        answer_value="" if is_refusal else WORDS,
        answer_unit=parsed.answer_unit,
        ref_ids=() if is_refusal else cited.ref_ids,
        is_blank=is_refusal,
        n_foreign_refs=len(cited.cut),
        attempt=parsed.attempt,
    )
    return prediction, cited.cut


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
    for attempt in range(ANSWER_TRIES if evidence.texts else 0):
        try:
            evidence, reply = await _ask(evidence, tools, attempt)
        except ModelError as error:
            prediction = replace(blank, attempt=attempt, error=f"{type(error).__name__}: {error}")
            cut, reply = (), None
            break
        prediction, cut = read_reply(reply, evidence.question, evidence.texts, attempt)
        if prediction.error is None or attempt + 1 == ANSWER_TRIES:
            break
        unreadable.append(TraceRow("reply", attempt, reply.text, error=prediction.error, attempt=attempt))
    if 0 < len(evidence.texts) < FEW:
        prediction = replace(prediction, flags=(*prediction.flags, "few_sources"))
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
