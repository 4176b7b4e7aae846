"""Parse a model's reply into a prediction or a plan: tolerant, never an exception.

A reply is read in this order: the whole text as JSON; the first balanced object with a field of the schema, after the
last ``</think>`` if there is one, then anywhere; nothing: a blank prediction with the reason in ``error``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from kohaku_ray.models.schema import ANSWER_FIELDS
from kohaku_ray.records import Prediction, Reply
from kohaku_ray.values.read import WRAPPING, clean_text, is_blank_lenient

MAX_QUERY_CHARS = 1000

_TRUE_WORDS = frozenset({"true", "yes", "1", "is_blank"})
_MAX_DEPTH = 6  # nesting inside one field: deeper is noise
_MAX_STARTS = 2000  # brackets tried: bounds the time for a hostile reply
_REF_PREFIX = re.compile(r"^(?:ref|doc|document)?[_ ]?ids?\s*[=:]\s*", re.IGNORECASE)
_REF_SPLIT = re.compile(r"[,;|\n]|\]\s*\[")
_REF_KEYS = ("ref_id", "ref_ids", "doc_id", "id")
_STRICT = json.JSONDecoder()
_LENIENT = json.JSONDecoder(strict=False)  # takes a raw line break inside a string


def parse_answer(reply: Reply | str, allowed: Collection[str], attempt: int = 0, unit: str | None = None) -> Prediction:
    """Read an answer.

    Args:
        reply: The model's reply.
        allowed: Ids of the documents in the context: any other citation is dropped and counted.
        attempt: Attempt, from 0.
        unit: The unit asked for, used if the model names none.

    Returns:
        A prediction; blank if the model abstained, and blank with ``error`` if nothing could be read.
    """
    found = _find(_text_of_reply(reply), _answer_fields)
    if found is None:
        return Prediction(
            answer_unit=unit or "", attempt=attempt, error=_why_nothing(reply, "JSON object of an answer")
        )
    value = value_text(found["answer_value"] if "answer_value" in found else found.get("answer"))
    is_blank = is_blank_lenient(value) or _is_true(found.get("is_blank"))
    refs, n_foreign = match_refs(found.get("ref_id"), allowed)
    own_unit = value_text(found.get("answer_unit"))
    return Prediction(
        answer=_prose(found.get("answer")),
        answer_value="" if is_blank else value,
        answer_unit=(unit or "") if is_blank_lenient(own_unit) else own_unit,
        ref_ids=() if is_blank else refs,
        explanation=_prose(found.get("explanation")),
        is_blank=is_blank,
        n_foreign_refs=n_foreign,
        attempt=attempt,
    )


def parse_plan(reply: Reply | str, question_text: str, n: int) -> tuple[tuple[str, ...], str | None]:
    """Read a plan: a JSON array of queries, or an object with an array under ``queries``.

    Args:
        reply: The model's reply.
        question_text: The question, always the first query, unchanged.
        n: Most queries kept.

    Returns:
        At most ``n`` distinct queries, and the reason if the question is the only one (else None).
    """
    if n <= 1:
        return (question_text,), None
    found = _find(_text_of_reply(reply), _query_list)
    if found is None:
        return (question_text,), _why_nothing(reply, "JSON array of queries")
    distinct = {_fold(question_text): question_text}
    for query in found:
        text = " ".join(query.split())[:MAX_QUERY_CHARS].rstrip()
        if text:
            distinct.setdefault(_fold(text), text)
    return tuple(distinct.values())[:n], None


def value_text(value: Any) -> str:
    """Write a JSON value as the plain text of an answer.

    null is empty, true and false are 1 and 0, a whole float loses its ``.0``, a list of several is ``[a,b]``, a list
    of one is its element.
    """
    return _value_text(value, 0)


def match_refs(value: Any, allowed: Collection[str]) -> tuple[tuple[str, ...], int]:
    """Match the value of ``ref_id`` with the documents of the context.

    An id matches exactly, or else ignoring case and a ``ref_id=`` or brackets around it. A blank spelling is no
    citation.

    Returns:
        The matched ids in the order cited, without repeats, and the number of other ids cited.
    """
    folded: dict[str, list[str]] = {}
    for doc_id in allowed:
        folded.setdefault(doc_id.casefold(), []).append(doc_id)
    known = {
        key: doc_ids[0] for key, doc_ids in folded.items() if len(doc_ids) == 1
    }  # two that differ by case: exact only
    matched: dict[str, None] = {}
    foreign: set[str] = set()
    for cited in _cited(value, lambda text: _match_ref(text, allowed, known) is not None, 0):
        match = _match_ref(cited, allowed, known)
        if match is not None:
            matched[match] = None
        elif not is_blank_lenient(cited):
            foreign.add(_bare_ref(cited).casefold())
    return tuple(matched), len(foreign)


def _cited(value: Any, is_known: Callable[[str], bool], depth: int) -> Iterator[str]:
    """Walk a ``ref_id`` of any shape: a list, a string, JSON in a string, an object, any of them nested."""
    if depth > _MAX_DEPTH or value is None or isinstance(value, bool):
        return
    if isinstance(value, Mapping):
        own = [value[key] for key in _REF_KEYS if key in value]
        for item in own or value.values():
            yield from _cited(item, is_known, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _cited(item, is_known, depth + 1)
    elif not isinstance(value, str):
        yield _value_text(value, depth)
    elif is_known(value):
        yield value
    else:
        yield from _cited_in_text(clean_text(value).strip(), is_known, depth)


def _cited_in_text(text: str, is_known: Callable[[str], bool], depth: int) -> Iterator[str]:
    inner = _loads(text, _LENIENT) if text[:1] in ("[", "{", '"') else None
    if inner is not None:
        yield from _cited(inner, is_known, depth + 1)
        return
    for part in _REF_SPLIT.split(text):
        if part.strip(WRAPPING):
            yield part.strip()


def _match_ref(text: str, allowed: Collection[str], known: Mapping[str, str]) -> str | None:
    for candidate in (text, text.strip(), _bare_ref(text)):
        if candidate in allowed:
            return candidate
    return known.get(text.strip().casefold()) or known.get(_bare_ref(text).casefold())


def _bare_ref(text: str) -> str:
    return _REF_PREFIX.sub("", text.strip(WRAPPING)).strip(WRAPPING)


def _find(text: str, accept: Callable[[Any], Any | None]) -> Any | None:
    """Return ``accept``'s result for the first JSON value in the text that it accepts."""
    accepted = accept(_loads(text, _STRICT))
    if accepted is not None:
        return accepted
    _, _, after_thinking = text.rpartition("</think>")
    for part in dict.fromkeys((after_thinking, text)):
        for value in _json_values(part):
            accepted = accept(value)
            if accepted is not None:
                return accepted
    return None


def _json_values(text: str) -> Iterator[Any]:
    """Yield every balanced object or array in order of its start, whatever surrounds it."""
    for bracket in islice(re.finditer(r"[{\[]", text), _MAX_STARTS):
        try:
            value, _ = _LENIENT.raw_decode(text, bracket.start())
        except (ValueError, RecursionError):
            continue
        yield value


def _loads(text: str, decoder: json.JSONDecoder) -> Any | None:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        return None


def _answer_fields(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):  # JSON encoded twice
        value = _loads(value, _LENIENT)
    if not isinstance(value, dict):
        return None
    fields: dict[str, Any] = {}
    for name, item in value.items():
        fields.setdefault(name.strip().casefold(), item)
    return fields if any(name in fields for name in ANSWER_FIELDS) else None


def _query_list(value: Any) -> list[str] | None:
    if isinstance(value, dict):
        value = value.get("queries")
    if not isinstance(value, list):
        return None
    queries = [clean_text(item) for item in value if isinstance(item, str) and item.strip()]
    return queries or None


def _text_of_reply(reply: Reply | str) -> str:
    return reply if isinstance(reply, str) else reply.text


def _why_nothing(reply: Reply | str, wanted: str) -> str:
    text = _text_of_reply(reply)
    if not isinstance(reply, str) and reply.finish_reason == "length":
        return f"no {wanted}: the reply was cut at {reply.completion_tokens} tokens: raise max_tokens"
    if not text.strip():
        return f"no {wanted}: the reply is empty"
    begin = clean_text(" ".join(text[:400].split()))[:120]
    return f"no {wanted} in a reply of {len(text)} characters that begins {begin!r}"


def _value_text(value: Any, depth: int) -> str:
    if value is None or depth > _MAX_DEPTH:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (int, float)):
        return _number_text(value)
    if isinstance(value, str):
        return clean_text(value).strip()
    if isinstance(value, Mapping):
        return _value_text(value["value"] if "value" in value else list(value.values()), depth + 1)
    texts = [text for item in value if (text := _value_text(item, depth + 1))]
    return texts[0] if len(texts) == 1 else f"[{','.join(texts)}]" if texts else ""


def _number_text(value: float) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits
        return ""


def _prose(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(filter(None, map(value_text, value)))
    return value_text(value)


def _is_true(value: Any) -> bool:
    return value_text(value).casefold() in _TRUE_WORDS


def _fold(query: str) -> str:
    return " ".join(query.split()).casefold()
