"""Parse a model's reply into a prediction or a plan: tolerant, never an exception.

What can be scored is kept, whatever another field of the reply says; `Prediction.flags` says what was wrong with it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kohaku_ray.index.terms import stop_words
from kohaku_ray.models.json_text import FoundValue, find_values, loads, why_nothing
from kohaku_ray.models.schema import ANSWER_FIELDS, MISSING, MOST_QUERY_CHARS
from kohaku_ray.records import Prediction, Reply
from kohaku_ray.values.kinds import STATEMENT, ValueKind, read_as
from kohaku_ray.values.read import BOOLEANS, WRAPPING, clean_text, is_blank_lenient

_TRUE_WORDS = frozenset({"true", "yes", "1", "is_blank"})
_MAX_DEPTH = 6  # nesting inside one field: deeper is noise
_REF_PREFIX = re.compile(r"^(?:ref|doc|document)?[_ ]?ids?\s*[=:]\s*", re.IGNORECASE)
_REF_SPLIT = re.compile(r"[,;|\n]|\]\s*\[")
_REF_KEYS = ("ref_id", "ref_ids", "doc_id", "id")
_LISTS = frozenset(_REF_KEYS)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]\w*")  # a CJK character is a word
_LEAST_WORDS = 3  # of a query that shares none with the question, as one that spells out an abbreviation
_STEM_CHARS = 5


def parse_answer(
    reply: Reply | str,
    allowed: Collection[str],
    attempt: int = 0,
    unit: str | None = None,
    kind: ValueKind | None = None,
    words: str | None = None,
) -> Prediction:
    """Read an answer.

    ``is_blank: true`` beside a value of the kind asked for and a reference of the context is not believed; beside any
    other value it is, and flagged.

    Args:
        reply: The model's reply.
        allowed: Ids of the documents in the context: any other citation is dropped and counted.
        attempt: Attempt, from 0.
        unit: The unit asked for, used if the model names none.
        kind: The kind of value asked for; None: any.
        words: The value of an answer that has a sentence and no value; None: it is blank.

    Returns:
        A prediction; blank if the model abstained, and blank with ``error`` if nothing could be read.
    """
    reply = Reply(reply) if isinstance(reply, str) else reply
    fields, flag = next(filter(None, map(_answer_fields, find_values(reply))), (None, ""))
    if fields is None:
        return Prediction(answer_unit=unit or "", attempt=attempt, error=why_nothing(reply, "JSON object of an answer"))
    if words and fields.get("answer") and not (fields.get("answer_value") or fields.get("is_blank")):
        fields["answer_value"] = words
    own_unit = value_text(fields.get("answer_unit"))
    refs, n_foreign = match_refs(fields.get("ref_id"), allowed)
    value, is_typed, odd = _value_of(fields, kind, unit)
    says_blank = value_text(fields.get("is_blank")).casefold() in _TRUE_WORDS
    is_blank = is_blank_lenient(value) or (says_blank and not (refs and is_typed))
    flags = {
        "contradictory": not is_blank and (says_blank or odd == "contradictory"),
        "withheld": says_blank and is_blank and not is_blank_lenient(value),
        "uncited": not is_blank and not refs,
        "mistyped": not is_blank and (odd == "mistyped" or not is_typed),
        "cut": flag == "cut",
        "repaired": flag == "repaired",
    }
    return Prediction(
        answer=value_text(fields.get("answer")),
        answer_value="" if is_blank else value,
        answer_unit=(unit or "") if is_blank_lenient(own_unit) else own_unit,
        ref_ids=() if is_blank else refs,
        explanation=value_text(fields.get("explanation")),
        is_blank=is_blank,
        n_foreign_refs=n_foreign,
        attempt=attempt,
        flags=tuple(flag for flag, holds in flags.items() if holds),
    )


class Plan(NamedTuple):
    """A plan as it was read.

    Attributes:
        queries: Distinct queries, the question first.
        dropped: What is not searched, and why.
        error: Why the question is the only query; None where it is not.
    """

    queries: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...] = ()
    error: str | None = None


def parse_plan(reply: Reply | str, question_text: str, n: int, shown: Iterable[str] = ()) -> Plan:
    """Read a plan: an object with queries, or an array of them; of one that is cut off, the complete queries.

    Args:
        reply: The model's reply.
        question_text: The question, always the first query, unchanged.
        n: Most queries kept.
        shown: Texts that the model was shown: their words count as the question's.
    """
    if n <= 1:
        return Plan((question_text,))
    reply = Reply(reply) if isinstance(reply, str) else reply
    queries = next(filter(None, map(_query_list, find_values(reply))), None)
    if queries is None:
        return Plan((question_text,), error=why_nothing(reply, "JSON object with queries"))
    return sift_queries(queries, question_text, n, shown)


def parse_missing(reply: Reply, question_text: str) -> Plan:
    """Read what a reply says is missing (``schema.MISSING``) as a query beside the question; alone: it says nothing."""
    fields = next((found[0] for found in map(_answer_fields, find_values(reply)) if found), {})
    missing = value_text(fields.get(MISSING))
    return sift_queries([missing] if missing else [], question_text, 2)


def sift_queries(queries: Sequence[str], question_text: str, n: int, shown: Iterable[str] = ()) -> Plan:
    """Keep the queries that can be searched; arguments as of ``parse_plan``."""
    asked = _words(" ".join((STATEMENT.sub("", question_text), *shown)))
    distinct = {_fold(question_text): question_text}
    dropped: dict[str, str] = {}
    for query in (" ".join(query.split()) for query in queries):
        if len(query) > max(MOST_QUERY_CHARS, 2 * len(question_text)):
            reason = f"it has {len(query)} characters"
        elif not (words := _words(query)):
            reason = "it has no words"
        elif len(words) < _LEAST_WORDS and words.isdisjoint(asked):
            reason = "it shares no word with the question"
        else:
            distinct.setdefault(_fold(query), query)
            continue
        dropped.setdefault(query[:MOST_QUERY_CHARS], reason)
    none_left = queries and len(dropped) == len(queries)
    error = f"none of the {len(queries)} queries can be searched" if none_left else None
    return Plan(tuple(distinct.values())[:n], tuple(dropped.items()), error)


def _words(text: str) -> set[str]:
    """The beginnings of a text's words, stop words left out."""
    words = {word.lower() for word in _WORD.findall(text)}
    return {word[:_STEM_CHARS] for word in words - stop_words()}


def value_text(value: Any, depth: int = 0) -> str:
    """Write a JSON value as the plain text of an answer.

    null is empty, true and false are 1 and 0, a whole float loses its ``.0``, a list of several is ``[a,b]``, a list
    of one is its element. ``depth`` is how deep the value is nested already.
    """
    if value is None or depth > _MAX_DEPTH:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return ""
    if isinstance(value, (int, float)):
        return str(int(value) if abs(value) < 1e15 and value == int(value) else value)
    if isinstance(value, str):
        return clean_text(value).strip()
    if isinstance(value, Mapping):
        return value_text(value["value"] if "value" in value else list(value.values()), depth + 1)
    texts = [text for item in value if (text := value_text(item, depth + 1))]
    if len(texts) > 1:
        return f"[{','.join(texts)}]"
    return "".join(texts)


def match_refs(value: Any, allowed: Collection[str]) -> tuple[tuple[str, ...], int]:
    """Match the value of ``ref_id`` with the documents of the context.

    An id matches exactly, or else ignoring case and a ``ref_id=`` or brackets around it. A blank spelling is no
    citation.

    Returns:
        The matched ids in the order cited, without repeats, and the number of other ids cited.
    """
    n_folded = Counter(map(str.casefold, allowed))  # of ids that differ by case alone: exact matches only
    known = {doc_id.casefold(): doc_id for doc_id in allowed if n_folded[doc_id.casefold()] == 1}
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
    """Walk a ``ref_id`` of any shape: a list, a string of several, an object, any of them nested."""
    if depth > _MAX_DEPTH or value is None or isinstance(value, bool):
        return
    if isinstance(value, Mapping):
        named = [value[key] for key in _REF_KEYS if key in value]
        for item in named or value.values():
            yield from _cited(item, is_known, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _cited(item, is_known, depth + 1)
    elif not isinstance(value, str):
        yield value_text(value, depth)
    elif is_known(value):
        yield value
    else:
        yield from (part.strip() for part in _REF_SPLIT.split(clean_text(value)) if part.strip(WRAPPING))


def _match_ref(text: str, allowed: Collection[str], known: Mapping[str, str]) -> str | None:
    text = unicodedata.normalize("NFC", text)  # the form of document ids
    for candidate in (text, text.strip(), _bare_ref(text)):
        if candidate in allowed:
            return candidate
    return known.get(text.strip().casefold()) or known.get(_bare_ref(text).casefold())


def _bare_ref(text: str) -> str:
    return _REF_PREFIX.sub("", text.strip(WRAPPING)).strip(WRAPPING)


def _value_of(fields: Mapping[str, Any], kind: ValueKind | None, unit: str | None) -> tuple[str, bool, str]:
    """Return the value, whether it is of the kind asked for, and the flag of an ``answer`` that stands in."""
    given = value_text(fields["answer_value"] if "answer_value" in fields else fields.get("answer"))
    answer = value_text(fields.get("answer"))
    if kind == "boolean" and is_blank_lenient(given) and answer.strip(". ").lower() in BOOLEANS:
        return read_as(answer, kind)[0], True, "contradictory"
    value, is_typed = read_as(given, kind, unit)
    if is_typed or kind == "text" or is_blank_lenient(given):
        return value, is_typed, ""
    answer, fits = read_as(answer, kind, unit)
    return (answer, True, "mistyped") if fits and not is_blank_lenient(answer) else (value, False, "")


def _answer_fields(found: FoundValue) -> tuple[dict[str, Any], str] | None:
    """Return the fields of an answer and its flag; one that is not whole counts only with its value."""
    value = found.value
    if isinstance(value, str):  # JSON encoded twice
        value = loads(value)
    if not isinstance(value, dict):
        return None
    fields: dict[str, Any] = {}
    for name, item in value.items():
        fields.setdefault(name.strip().casefold(), item)
    if (broken := found.broken.strip().casefold()) not in _LISTS:
        fields.pop(broken, None)
    is_answer = "answer_value" in fields if found.flag else any(name in fields for name in ANSWER_FIELDS)
    return (fields, found.flag) if is_answer else None


def _query_list(found: FoundValue) -> list[str] | None:
    value = found.value
    if isinstance(value, dict):
        value = value.get("queries")
    if not isinstance(value, list):
        return None
    queries = [clean_text(item) for item in value if isinstance(item, str) and item.strip()]
    return queries or None


def _fold(query: str) -> str:
    return " ".join(query.split()).casefold()
