"""Parse a model's reply into a prediction or a plan: tolerant, never an exception.

What can be scored is kept, whatever another field of the reply says; `Prediction.flags` says what was wrong with it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import groupby, islice
from typing import Any, NamedTuple
from urllib.parse import unquote

from kohaku_ray.documents.formats import FORMATS
from kohaku_ray.documents.text.content import valid_doc_id
from kohaku_ray.errors import DataError
from kohaku_ray.index.terms import stop_words
from kohaku_ray.models.json_text import FoundValue, find_values, why_nothing
from kohaku_ray.models.schema import ANSWER_FIELDS, MOST_QUERY_CHARS
from kohaku_ray.records import BLANK, Prediction, Reply
from kohaku_ray.values.kinds import STATEMENT, ValueKind, read_as
from kohaku_ray.values.normalise import group_values, normalise, read_quantity
from kohaku_ray.values.read import BOOLEANS, WRAPPING, clean_text, is_blank_lenient, is_blank_strict
from kohaku_ray.values.spelling import one_form
from kohaku_ray.values.tex import restore_tex

_TRUE_WORDS = frozenset({"true", "yes", "1", "is_blank"})
_PAGE = re.compile(
    r"[\s,;:(\[#?_-]*(?:\b(?:p{1,2}\b\.?|pg\b\.?|pages?\b|sec\b\.?|sections?\b|chunk\b)|§)"
    r"[\s=:.]*\d+(?:\.\d+)*(?:\s?[-–]\s?\d+)?[\s)\]]*\Z"
    r"|(?<=\w)(?::\d+(?:[-–]\d+)?)+\Z",  # report.pdf:81
    re.IGNORECASE,
)
_NODE = re.compile(r":(?:sec|p|s)\d+.*\Z")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BETWEEN = re.compile(r"[\W_]+")
_MAX_DEPTH = 6  # nesting inside one field: deeper is noise
_REF_PREFIX = re.compile(r"^(?:ref|doc|document)?[_ ]?ids?\s*[=:]\s*", re.IGNORECASE)
_REF_SPLIT = re.compile(r"[,;|\n]|\]\s*\[")
_REF_KEYS = ("ref_id", "ref_ids", "doc_id", "id")
_LISTS = frozenset(_REF_KEYS)
_FIELDS = {name.replace("_", ""): name for name in (*ANSWER_FIELDS, BLANK)}
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]\w*")  # a CJK character is a word
_PLACEHOLDER = re.compile(r"[\W_]*|<[^<>]*>")  # "...", <value>
_LEAST_WORDS = 3  # of a query that shares none with the question, as one that spells out an abbreviation
_STEM_CHARS = 5
_LONGEST_ARTICLE = 3  # of stop words in any language, in characters


def parse_answer(
    reply: Reply | str,
    allowed: Collection[str],
    attempt: int = 0,
    unit: str | None = None,
    kind: ValueKind | None = None,
    words: str | None = None,
    shown: Sequence[str] | None = None,
    titles: Mapping[str, str] | None = None,
    read_marks: Callable[[str], Collection[str]] | None = None,
) -> Prediction:
    """Read an answer.

    ``is_blank: true`` beside a value of the kind asked for and a reference of the context is not believed, unless the
    value is a text that stands nowhere in the context; beside any other value it is, and flagged. A text abstains where
    the context does not bear it: one that may mean "no answer" (``None``) unless it is cited and stands there, any
    other if it stands nowhere and is not cited, or no passage has most of its words.

    Args:
        reply: The model's reply.
        allowed: Ids of the documents in the context: any other citation is dropped and counted.
        attempt: Attempt, from 0.
        unit: The unit asked for, used if the model names none.
        kind: The kind of value asked for; None: any.
        words: The value of an answer that has a sentence and no value, which is borne out where it is cited; None: it
            is blank.
        shown: The texts of the context; None: not known, and what may mean "no answer" does.
        titles: The titles of the context's documents, by which they may be cited.
        read_marks: Reads the documents of the context that the answer's sentence cites; None: it cites none.

    Returns:
        A prediction; blank if the model abstained, and blank with ``error`` if nothing could be read.
    """
    reply = Reply(reply) if isinstance(reply, str) else reply
    fields, flag, is_one = _find_answer(reply, allowed, unit, titles)
    if fields is None:
        return Prediction(answer_unit=unit or "", attempt=attempt, error=why_nothing(reply, "JSON object of an answer"))
    if words and fields.get("answer") and not (fields.get("answer_value") or fields.get("is_blank")):
        fields["answer_value"] = words
    own_unit = value_text(fields.get("answer_unit"))
    refs, n_foreign = match_refs(fields.get("ref_id"), allowed, titles)
    value, is_typed, odd = _value_of(fields, kind, unit)
    says_blank = value_text(fields.get("is_blank")).casefold() in _TRUE_WORDS
    is_cited = bool(refs or (read_marks is not None and read_marks(value_text(fields.get("answer")))))
    may_be_none = is_blank_lenient(value)
    is_supported = _is_supported(value, unit, is_cited, says_blank, shown)
    is_supported = is_cited if words and shown is not None and value.casefold() == words else is_supported
    is_blank = not is_supported or (says_blank and (may_be_none or not (refs and is_typed)))
    flags = {
        "contradictory": not is_blank and (says_blank or odd == "contradictory"),
        "withheld": says_blank and is_blank and not may_be_none,
        "uncited": not (refs or may_be_none or (is_blank and says_blank)),
        "mistyped": not is_blank and (odd == "mistyped" or not is_typed),
        "unit": not is_blank and read_quantity(value, own_unit, unit).differs,
        "several": not is_one,
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
        return clean_text(restore_tex(value)).strip()
    if isinstance(value, Mapping):
        text, unit = (value_text(part, depth + 1) for part in _split_quantity(value))
        return text if is_blank_lenient(text) or is_blank_lenient(unit) else f"{text} {unit}"
    texts = [text for item in value if (text := value_text(item, depth + 1))]
    if len(texts) > 1:
        return f"[{','.join(texts)}]"
    return "".join(texts)


def _split_quantity(value: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what an object holds beside its unit (``{"value": 77, "unit": "MWh"}``), and that; None where it has none.

    A ``value`` is all that counts of the others.
    """
    items = {name.strip().casefold(): item for name, item in value.items()}
    unit = items.pop("units", None)
    unit = items.pop("unit", unit)
    return items.get("value", list(items.values())), unit


def match_refs(
    value: Any, allowed: Collection[str], titles: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], int]:
    """Match the value of ``ref_id`` with the documents of the context.

    An id matches exactly, or else in one Unicode form, without case, a ``ref_id=`` or brackets around it; or else a
    path, file name, page or title from which the id of exactly one document is made, or that names it. A blank spelling
    is no citation.

    Args:
        value: As the model wrote it.
        allowed: Ids of the documents in the context.
        titles: Their titles, where they have one.

    Returns:
        The matched ids in the order cited, without repeats, and the number of other ids cited.
    """
    keys = [(key, doc_id) for doc_id in allowed for key in {one_form(doc_id), one_form(doc_id).casefold()}]
    n_alike = Counter(key for key, _ in keys)  # of ids that differ by case or form alone: exact matches only
    known = {key: doc_id for key, doc_id in keys if n_alike[key] == 1}
    matched: dict[str, None] = {}
    foreign: set[str] = set()

    @cache
    def named() -> Mapping[str, Set[str]]:
        return _names_of(allowed, titles or {})

    @cache
    def match(text: str) -> str | None:
        doc_id = _match_ref(text, allowed, known)
        return _match_name(text, named()) if doc_id is None and not is_blank_lenient(text) else doc_id

    for cited in _cited(value, lambda text: match(text) is not None, 0):
        doc_id = match(cited)
        if doc_id is not None:
            matched[doc_id] = None
        elif not is_blank_lenient(cited):
            foreign.add(_bare_ref(cited).casefold())
    return tuple(matched), len(foreign)


def _names_of(allowed: Iterable[str], titles: Mapping[str, str]) -> Mapping[str, Set[str]]:
    """Return the documents by each of their names: their id, that without a suffix, their title."""
    named: dict[str, set[str]] = {}
    for doc_id in allowed:
        for name in (doc_id, _without_suffix(doc_id), titles.get(doc_id, "")):
            for key in _name_keys(name):
                named.setdefault(key, set()).add(doc_id)
    return named


def _match_name(text: str, named: Mapping[str, Set[str]]) -> str | None:
    """Find the only document that a path, a file name or a title names.

    A page may stand behind it (nexus-rag#880), and a word with a colon before it (azure-search-openai-demo#2305).
    """
    text = _bare_ref(one_form(text))
    behind = text if "://" in text else text.partition(":")[2].strip()
    for name in dict.fromkeys((text, _PAGE.sub("", text), _NODE.sub("", text), behind, _PAGE.sub("", behind))):
        *folders, file = name.replace("\\", "/").rstrip("/").split("/")
        stem = _without_suffix(unquote(file.partition("?")[0] if "://" in name else file))
        paths = ["-".join((*folders[n:], stem)) for n in range(len(folders) + 1)]
        for key in (key for candidate in (name, *paths, _made_id(stem)) for key in _name_keys(candidate)):
            if len(fitting := named.get(key, ())) == 1:
                return next(iter(fitting))
    return None


def _made_id(stem: str) -> str:
    try:
        return valid_doc_id(stem, "")
    except DataError:
        return ""


def _without_suffix(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return stem if f"{dot}{suffix.lower()}" in FORMATS else name


def _name_keys(name: str) -> Iterable[str]:
    """Fold a name: letters and digits count, and where others stand between them; then these alone (axial#797)."""
    key = _BETWEEN.sub("-", one_form(name).casefold()).strip("-")
    return dict.fromkeys(filter(None, (key, key.replace("-", ""))))


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
    for candidate in (text, text.strip(), _bare_ref(text)):
        if candidate in allowed:
            return candidate
        if (doc_id := known.get(one_form(candidate))) or (doc_id := known.get(one_form(candidate).casefold())):
            return doc_id
    return None


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
    if not isinstance(value, dict):
        return None
    fields: dict[str, Any] = {}
    for name, item in value.items():
        fields.setdefault(name.strip().casefold(), item)
    for name, item in value.items():
        fields.setdefault(_field_name(name), item)
    if isinstance(quantity := fields.get("answer_value"), Mapping):
        number, unit = _split_quantity(quantity)
        if not is_blank_lenient(value_text(unit)):
            fields["answer_value"], fields["answer_unit"] = number, unit
    if (broken := _field_name(found.broken)) not in _LISTS:
        fields.pop(broken, None)
    is_answer = "answer_value" in fields if found.flag else any(name in fields for name in ANSWER_FIELDS)
    return (fields, found.flag) if is_answer else None


def _field_name(name: str) -> str:
    """Spell a field as the schema does: models write another case (jac#7442, langchain-mcp-adapters#277)."""
    name = name.strip().casefold()
    return _FIELDS.get(_BETWEEN.sub("", name), name)


def _is_supported(value: str, unit: str | None, is_cited: bool, says_blank: bool, shown: Sequence[str] | None) -> bool:
    """Whether the context bears a value out, as far as a text tells; see ``parse_answer``."""
    may_be_none = is_blank_lenient(value)
    if shown is None or is_blank_strict(value.strip(WRAPPING)):
        return not may_be_none
    if not may_be_none and normalise(value, unit).kind != "text":
        return True
    if may_be_none:  # "Na" is sodium, "na" is not
        return is_cited and is_stated(value, shown, any_case=False)
    if is_stated(value, shown):
        return True
    words = set() if any(map(str.isdigit, value)) else _words(value)
    words = {word for word in words if len(word) > _LONGEST_ARTICLE} or words
    has_most = not says_blank and any(2 * len(words & _words(text)) > len(words) for text in shown)
    return is_cited and (not words or has_most)


def is_stated(value: str, shown: Iterable[str], *, any_case: bool = True) -> bool:
    """Whether a text or number stands in one of the texts shown, not within a word."""
    bare = _as_stated(value.strip(WRAPPING)).rstrip(".")
    stated = re.compile(rf"(?<![A-Za-z0-9]){re.escape(bare)}(?![A-Za-z0-9])", re.IGNORECASE if any_case else re.NOFLAG)
    return any(map(str.isalnum, bare)) and any(stated.search(_as_stated(text)) for text in shown)


def _as_stated(text: str) -> str:
    return " ".join(_THOUSANDS.sub("", one_form(text)).split())


def _find_answer(
    reply: Reply, allowed: Collection[str], unit: str | None, titles: Mapping[str, str] | None
) -> tuple[dict[str, Any] | None, str, bool]:
    """Return the fields of the object that is most like an answer, its flag, and whether no equal one differs in value.

    A whole object goes before one that is cut, and that before a repaired one. Of equals the first counts: what a model
    goes on to ask and answer itself stands behind (dify#42006).
    """
    answers = filter(None, map(_answer_fields, find_values(reply, as_written=True)))
    for flag, same_flag in groupby(answers, lambda answer: answer[1]):
        likely = [fields for fields, _ in (islice(same_flag, 1) if flag == "cut" else same_flag)]
        if len(likely) == 1:
            return likely[0], flag, True
        ranks = [_rank(fields, allowed, titles) for fields in likely]
        best = [fields for fields, rank in zip(likely, ranks, strict=True) if rank == max(ranks)]
        values = [value_text(fields.get("answer_value", fields.get("answer"))) for fields in best]
        units = [value_text(fields.get("answer_unit")) for fields in best]
        return best[0], flag, len(set(group_values(values, unit, units))) == 1
    return None, "", True


def _rank(
    fields: Mapping[str, Any], allowed: Collection[str], titles: Mapping[str, str] | None
) -> tuple[int, bool, bool]:
    """Rank an object by the schema: has it both fields, no placeholder, and references of the context or says none."""
    value, n_fields = fields.get("answer_value"), ("answer_value" in fields) + ("ref_id" in fields)
    text = value_text(value)
    is_value = not isinstance(value, Mapping) and _PLACEHOLDER.fullmatch(text) is None
    says_none = is_value and is_blank_lenient(text)
    return n_fields, is_value, says_none or bool(match_refs(fields.get("ref_id"), allowed, titles)[0])


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
