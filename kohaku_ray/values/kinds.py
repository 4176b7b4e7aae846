"""The kind of value that a question asks for, and whether an answer is of that kind."""

from __future__ import annotations

import re
from typing import Literal

from kohaku_ray.values.amounts import read_asked
from kohaku_ray.values.normalise import normalise, write_number
from kohaku_ray.values.read import BOOLEANS
from kohaku_ray.values.spelling import LONGEST_VALUE

ValueKind = Literal["number", "range", "boolean", "text"]
"""A range answers a question for a number too: many truths are ranges."""

KINDS: dict[str, ValueKind] = {
    **dict.fromkeys(("number", "numeric", "integer", "float", "count", "percentage"), "number"),
    **dict.fromkeys(("range", "interval"), "range"),
    **dict.fromkeys(("boolean", "bool", "true/false", "yes/no"), "boolean"),
    **dict.fromkeys(("name", "text", "string", "term", "entity", "categorical"), "text"),
}
"""Spellings of a question file's `answer_type`."""

STATEMENT = re.compile(r"^\s*(?:true or false|true/false|yes or no)\s*[:?,.–-]?\s*", re.IGNORECASE)
"""Begins a question that asks whether a statement is true."""

NUMERIC = re.compile(
    r"\bhow (?:many|much|large|big|long|far|high|low|fast|old|heavy|deep)\b|\bpercent|\bfactor\b|\bnumber of\b",
    re.IGNORECASE,
)
"""Stands in a question that asks for a number."""

LONGEST_TEXT = LONGEST_VALUE
"""Longest answer value, in characters: a longer one is prose."""

_NORMAL = {"number": ("number", "pair"), "range": ("pair",)}
_FIRST_WORD = re.compile(r"[\W_]*(true|false|yes|no|[01])(?:\.0)?\b(?![.,]?[0-9])", re.IGNORECASE)

_ONE_NUMBER = re.compile(r"^\s*\[\s*([^,\]]+?)\s*,\s*\1\s*\]\s*$")  # a range from a number to itself


def kind_of(question: str, unit: str | None, answer_type: str | None) -> ValueKind | None:
    """Return the kind of value that a question asks for; None where neither its type, unit nor text says it."""
    stated = KINDS.get((answer_type or "").strip().lower())
    if stated is None and STATEMENT.match(question):
        return "boolean"
    if stated is None and unit and (read_asked(unit).unit.dimension is not None or NUMERIC.search(question)):
        return "number"
    return stated


def read_as(value: str, kind: ValueKind | None, unit: str | None = None) -> tuple[str, bool]:
    """Read a value as the kind that is asked for (None: any), in the unit that is asked for.

    Returns:
        The value, ``1`` or ``0`` for a true or false one and a plain number where one is asked for and no unit
        written (a hedge stays in the answer's sentence), and whether it is of that kind.
    """
    if kind == "boolean":
        word = _FIRST_WORD.match(value)
        return (value, False) if word is None else (BOOLEANS.get(word[1].lower(), word[1]), True)
    if kind is None or kind == "text":
        return value, len(value) <= LONGEST_TEXT
    if value.lower() in BOOLEANS:
        return value, False
    if kind == "number":
        value = write_number(_ONE_NUMBER.sub(r"\1", value), unit)
    return value, normalise(value, unit).kind in _NORMAL[kind]
