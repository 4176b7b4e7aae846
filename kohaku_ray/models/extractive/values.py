"""Extract the value that a question asks for from a passage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kohaku_ray.models.extractive.quantities import Quantity, asked_unit, find_quantities, in_unit, parse_unit
from kohaku_ray.models.extractive.terms import (
    STOP_WORDS,
    Coverage,
    Passage,
    before,
    content_stems,
    normalise,
    proximity,
    stem,
    word_set,
    words_of,
)
from kohaku_ray.values.read import is_blank_strict
from kohaku_ray.values.units import Unit

Kind = Literal["number", "year", "boolean", "name"]

_KIND_OF_TYPE: Mapping[str, Kind] = {
    **dict.fromkeys(("number", "numeric", "integer", "float", "count", "percentage", "range", "interval"), "number"),
    **dict.fromkeys(("boolean", "bool", "true/false", "yes/no", "truefalse"), "boolean"),
    **dict.fromkeys(("name", "text", "string", "term", "entity", "categorical"), "name"),
}
_STATEMENT = re.compile(r"^\s*(?:true or false|true/false|t/f|yes or no)\s*[:?,.–-]?\s*", re.IGNORECASE)
_YES_NO = re.compile(r"^\s*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(?:what|which|in which|in what) year\b|^\s*when\b", re.IGNORECASE)
_PERCENT = re.compile(r"\b(?:percent|percentage|per cent|share|fraction|proportion)\b|%", re.IGNORECASE)
_MULTIPLE = re.compile(r"\b(?:what|which) factor\b|\bhow many times\b|\bspeed-?up\b|\bfactor of\b", re.IGNORECASE)
_COUNTED = re.compile(
    r"\bhow many\s+([^?,;]+?)"
    r"(?=\s+(?:did|does|do|is|are|was|were|has|have|had|can|could|must|will|would|to|in|on|of|for|from|with)\b|[?,;]|$)",
    re.IGNORECASE,
)
_NUMERIC = re.compile(
    r"\bhow (?:many|much|large|big|long|far|high|low|hot|fast|old|heavy|deep)\b|\b(?:number|amount) of\b|\bcount\b",
    re.IGNORECASE,
)
_UNIT_IN_TEXT = re.compile(r"\bin ([^\s,;()?]+(?: [^\s,;()?]+){0,3})(?=[?,;]|$)|\((?:in )?([^()]+)\)", re.IGNORECASE)
_RANGE = re.compile(r"\brange\b|\bbetween\b|\bfrom what\b|\bbefore and after\b|\bvary\b", re.IGNORECASE)
_OPTIONS = re.compile(r":\s*([^:?]+?)\?\s*$")
_HEAD_NOUN = re.compile(
    r"\b(?:which|what)(?: (?:is|was|are|were) the (?:\w+ )?(?:name|term|title) (?:of|for) (?:the|a|an))?"
    r"\s+((?:[\w.-]+ ){0,3}?[\w-]+?)"
    r"(?=\s+(?:is|are|was|were|does|do|did|has|have|had|can|of|in|for|on|with|that|called)\b|[,?]|$)",
    re.IGNORECASE,
)
_NAME_PART = r"[A-Z][\w&/’'-]*(?:\.[A-Z]\w*)*"
_NAME = re.compile(
    rf"(?<![\w-])(?:{_NAME_PART}|\d+[A-Z][\w-]*)"
    rf"(?:(?: (?:of|for|and|the|de))?(?: {_NAME_PART}| \d+(?:\.\d+)?[A-Z]*(?![\w%])))*"
)
_CAPITAL_STOP_WORD = re.compile(
    r"(?:^|\s+)(?:" + "|".join(word.capitalize() for word in sorted(STOP_WORDS)) + r")(?:\s+|$)"
)
_QUOTED = re.compile(r"[“\"]([^“”\"]{2,60})[”\"]")
_NAMING = re.compile(
    r"\b(?:called|named|known as|termed|dubbed|name is|introduce|present|propose)\s*(?:the|a|an)?\s*[“\"]?$",
    re.IGNORECASE,
)
_DEFINED = re.compile(
    r"^[“\"]?((?:[\w-]+ ){0,3}[\w-]+)[”\"]?(?: \([A-Z]\w*\))? "
    r"(?:is|are) (?:defined as|the (?:amount|ratio|term|share|sum|quantity)|a term)",
    re.IGNORECASE,
)
_MEASURED = {
    "energy": ("energy", "electricity"),
    "power": ("power",),
    "mass": ("weight", "weigh", "mass"),
    "volume": ("volume",),
    "time": ("time", "duration"),
    "money": ("cost", "price", "dollars"),
    "EUR": ("cost", "price", "euros"),
}
_NEGATIONS = word_set("""
    not no never none neither nor without cannot nobody nothing lack lacks lacked exempt exempts exempted exclude
    excludes excluded unable fails failed voluntary optional
    stopped ended ceased abandoned discontinued removed withdrawn withdrew refused rejected
""")
_OPPOSED = """
    increase-decrease increased-decreased increases-decreases rose-fell rise-fall higher-lower highest-lowest more-less
    more-fewer larger-smaller largest-smallest faster-slower better-worse always-never before-after above-below
    major-minor majority-minority public-private maximum-minimum first-last mandatory-voluntary direct-indirect
    gained-lost outperforms-underperforms agree-disagree excluding-including
"""
_PAIRS = [tuple(pair.split("-")) for pair in word_set(_OPPOSED)]
_COMPARATORS = {
    "more": re.compile(
        r"\b(?:more than|over|above|at least|exceed\w*|greater than|higher than)\s*(?:about\s*)?$", re.IGNORECASE
    ),
    "less": re.compile(
        r"\b(?:less than|under|below|at most|fewer than|lower than|up to)\s*(?:about\s*)?$", re.IGNORECASE
    ),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The value a question asks for.

    Attributes:
        kind: The kind of value.
        text: The question without ``True or False:``.
        unit: The unit or the things counted; None: any number fits.
        shown_unit: The unit as the answer names it.
        wants_range: Whether it asks for a range.
        numbers: The numbers in the question, which are not its answer.
        stems: Stems of all its words.
        implied: Stems that a number in the right unit covers by itself: the unit's own words, and what it measures.
        head: Stems of the kind of name, such as ``campus`` in "which campus".
        options: Names to choose from.
    """

    kind: Kind
    text: str
    unit: Unit | None
    shown_unit: str
    wants_range: bool
    numbers: frozenset[str]
    stems: frozenset[str]
    implied: frozenset[str]
    head: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value a passage offers, and its score apart from the passage's."""

    value: str
    bonus: float
    unit: str = ""


def read_question(question: str, answer_unit: str | None, answer_type: str | None) -> Asked:
    """Read what a question asks for from its text, and from its unit and type if the file has them."""
    unit_text = None if is_blank_strict(answer_unit) else answer_unit
    text = " ".join(normalise(_STATEMENT.sub("", question)).split())
    kind = _kind(question, unit_text, (answer_type or "").strip().lower())
    unit = _unit(text, unit_text) if kind == "number" else None
    head = _HEAD_NOUN.search(text)
    return Asked(
        kind=kind,
        text=text,
        unit=unit,
        shown_unit=unit_text or "",
        wants_range=bool(_RANGE.search(text)) or (answer_type or "").strip().lower() in ("range", "interval"),
        numbers=frozenset(end for q in find_quantities(text) for end in (q.low, q.high) if end),
        stems=frozenset(word.stem for word in words_of(text)),
        implied=_implied(text, unit),
        head=content_stems(head[1])[-2:] if head else (),
        options=_options(text),
    )


def candidates(asked: Asked, passage: Passage, found: Coverage, weights: Mapping[str, float]) -> list[Candidate]:
    """List the values a passage offers for a question."""
    if asked.kind == "boolean":
        return [Candidate("1" if entails(asked, passage, found) else "0", 0.0)]
    if asked.kind == "name":
        return list(_names(asked, passage, found, weights))
    return list(_numbers(asked, passage, found, weights))


def entails(asked: Asked, passage: Passage, found: Coverage) -> bool:
    """Return whether a passage supports a statement, by its words: coverage, negations, opposites and numbers."""
    if found.share < 0.5:
        return False
    mine, theirs = _lower_words(asked.text), _lower_words(passage.text)
    flips = len(mine & _NEGATIONS) % 2 != bool(theirs & _NEGATIONS)
    flips ^= any(
        word in mine and word not in theirs and other in theirs
        for one, two in _PAIRS
        for word, other in ((one, two), (two, one))
    )
    return not flips and _numbers_agree(asked.text, passage.text)


def _kind(question: str, unit: str | None, answer_type: str) -> Kind:
    if answer_type in _KIND_OF_TYPE:
        return "year" if _YEAR.search(question) and unit is None else _KIND_OF_TYPE[answer_type]
    if _STATEMENT.match(question) or _YES_NO.match(question):
        return "boolean"
    if unit is not None:
        return "number"
    if _YEAR.search(question):
        return "year"
    wants_number = any(pattern.search(question) for pattern in (_NUMERIC, _PERCENT, _MULTIPLE))
    return "number" if wants_number or _unit_in_text(question) else "name"


def _unit(text: str, unit_text: str | None) -> Unit | None:
    if unit_text is not None:
        return asked_unit(unit_text)
    in_text = _unit_in_text(text)
    if in_text is not None:
        return in_text
    if _MULTIPLE.search(text):
        return Unit("multiple")
    if _PERCENT.search(text):
        return Unit("share")
    counted = _COUNTED.search(text)
    return asked_unit(counted[1]) if counted else None


def _implied(text: str, unit: Unit | None) -> frozenset[str]:
    if unit is None or unit.dimension is None:
        return frozenset()
    own = [word.stem for word in words_of(text) if parse_unit(word.text) is not None]
    return frozenset(own) | {stem(word) for word in _MEASURED.get(unit.dimension, ())}


def _unit_in_text(text: str) -> Unit | None:
    units = (parse_unit(found[1] or found[2]) for found in _UNIT_IN_TEXT.finditer(text))
    return next((unit for unit in units if unit is not None), None)


def _options(text: str) -> tuple[str, ...]:
    listed = _OPTIONS.search(text)
    if listed is None:
        return ()
    parts = [part.strip() for part in re.split(r",\s*(?:or |and )?|\s+or\s+", listed[1])]
    return tuple(parts) if len(parts) > 1 and all(0 < len(part) < 60 for part in parts) else ()


def _numbers(asked: Asked, passage: Passage, found: Coverage, weights: Mapping[str, float]) -> Iterator[Candidate]:
    for quantity in _singles_too(find_quantities(passage.text)):
        if asked.kind == "year":
            if quantity.looks_like_year and quantity.low not in asked.numbers:
                yield Candidate(quantity.low, _closeness(quantity, passage, found, weights))
            continue
        fit = _unit_fit(quantity, asked.unit)
        if fit is None or quantity.looks_like_year or {quantity.low, quantity.high} & asked.numbers:
            continue
        is_range = quantity.high is not None
        bonus = fit + _closeness(quantity, passage, found, weights)
        bonus += (0.3 if is_range else 0.0) if asked.wants_range else (-0.1 if is_range and quantity.is_change else 0.0)
        ends = in_unit(quantity, asked.unit or quantity.unit)
        yield Candidate(f"[{','.join(ends)}]" if is_range else ends[0], bonus, asked.shown_unit)


def _singles_too(quantities: Sequence[Quantity]) -> Iterator[Quantity]:
    """Offer both ends of a change ("fell from 6.2 J to 0.71 J") as well as the pair."""
    for quantity in quantities:
        yield quantity
        if quantity.is_change and quantity.high is not None:
            for end in (quantity.low, quantity.high):
                yield Quantity(quantity.start, quantity.end, end, None, quantity.magnitude, quantity.unit)


def _unit_fit(quantity: Quantity, unit: Unit | None) -> float | None:
    """Score how a number's unit fits the one asked for; None if it cannot be the answer."""
    if unit is None:
        return 0.0 if quantity.unit.dimension is None else -0.1
    if unit.dimension is not None:
        if quantity.unit.dimension == unit.dimension:
            return 0.37 if quantity.unit.factor == unit.factor else 0.35
        return -0.2 if quantity.unit.dimension is None and not quantity.unit.nouns else None
    if quantity.unit.dimension is not None:
        return None if unit.nouns else 0.0
    return 0.35 if set(unit.nouns) & set(quantity.unit.nouns) else -0.1


def _closeness(quantity: Quantity, passage: Passage, found: Coverage, weights: Mapping[str, float]) -> float:
    return 0.3 * proximity(passage, quantity.start, quantity.end, weights, found.found)


def _names(asked: Asked, passage: Passage, found: Coverage, weights: Mapping[str, float]) -> Iterator[Candidate]:
    if asked.options:
        for option in asked.options:
            start = passage.text.lower().find(option.lower())
            if start >= 0:
                end = start + len(option)
                yield Candidate(option, 0.2 + 0.3 * proximity(passage, start, end, weights, found.found))
        return
    for start, end in _name_spans(passage.text):
        name = passage.text[start:end]
        stems = [word.stem for word in words_of(name)]
        if not stems or set(stems) <= asked.stems or all(s in STOP_WORDS for s in name.lower().split()):
            continue
        bonus = 0.3 * proximity(passage, start, end, weights, found.found)
        bonus += 0.3 if _NAMING.search(before(passage.text, start)) else 0.0
        bonus += 0.2 if _is_beside_head(asked, passage, start, end) else 0.0
        bonus += 0.05 * min(len(name.split()), 3)
        bonus -= 0.15 if start == 0 and len(stems) == 1 else 0.0
        yield Candidate(_without_head(name, asked), bonus)
    defined = _DEFINED.match(passage.text)
    if defined and not set(content_stems(defined[1])) <= asked.stems:
        yield Candidate(defined[1], 0.25)


def _name_spans(text: str) -> Iterator[tuple[int, int]]:
    for run in _NAME.finditer(text):
        position = run.start()
        for name in _CAPITAL_STOP_WORD.split(run[0]):  # "The Kalpur campus", "Data Our"
            start = position = text.index(name, position)
            kept = name.rstrip(" .'’-/&")
            if kept:
                yield start, start + len(kept)
    for quoted in _QUOTED.finditer(text):
        yield quoted.span(1)


def _is_beside_head(asked: Asked, passage: Passage, start: int, end: int) -> bool:
    around = [*words_of(passage.text[start:end]), *words_of(passage.text[end : end + 30])[:2]]
    return bool(set(asked.head) & {word.stem for word in around})


def _without_head(name: str, asked: Asked) -> str:
    """Drop leading words that are in the question: the answer to "which lab" is not "Lab Mirova"."""
    words = name.split()
    while len(words) > 1 and stem(words[0]) in asked.stems and stem(words[0]) in asked.head:
        words.pop(0)
    return " ".join(words)


def _lower_words(text: str) -> set[str]:
    return {
        "not" if word.endswith("n't") else word
        for word in re.findall(r"[a-z]+(?:n't)?", text.lower().replace("’", "'"))
    }


def _numbers_agree(statement: str, passage: str) -> bool:
    """Check each number of a statement against the passage's of its unit; "more than" and "less than" are bounds."""
    theirs = find_quantities(passage)
    for mine in find_quantities(statement):
        if mine.looks_like_year or mine.unit.dimension is None:
            continue
        like = [other for other in theirs if other.unit.dimension == mine.unit.dimension]
        if like and not any(_agrees(mine, other, statement) for other in like):
            return False
    return True


def _agrees(mine: Quantity, other: Quantity, statement: str) -> bool:
    bound = float(in_unit(mine, mine.unit)[0])
    values = [float(end) for end in in_unit(other, mine.unit)]
    ahead = before(statement, mine.start)
    if _COMPARATORS["more"].search(ahead):
        return max(values) >= bound
    if _COMPARATORS["less"].search(ahead):
        return min(values) <= bound
    return any(abs(value - bound) <= 1e-3 * max(abs(bound), 1e-9) for value in values)
