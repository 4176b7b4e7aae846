"""The kind of value that a question asks for, and whether an answer is of that kind."""

from __future__ import annotations

import re
from typing import Literal

from kohaku_ray.values.amounts import MAGNITUDES, read_asked
from kohaku_ray.values.normalise import normalise, write_number
from kohaku_ray.values.read import BOOLEANS, is_blank
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

RANGED = re.compile(r"\b(?:what|which)\b[^?.]*(?<!-)\brange\b|\bbetween (?:what|which)\b", re.IGNORECASE)
"""Stands in a question that asks for a range (q296, q474)."""

_NORMAL = {"number": ("number", "pair"), "range": ("pair",)}
_FIRST_WORD = re.compile(r"[\W_]*(true|false|yes|no|[01])(?:\.0)?\b(?![.,]?[0-9])", re.IGNORECASE)

_ONE_NUMBER = re.compile(r"^\s*\[\s*([^,\]]+?)\s*,\s*\1\s*\]\s*$")  # a range from a number to itself


def kind_of(question: str, unit: str | None, answer_type: str | None) -> ValueKind | None:
    """Return the kind of value that a question asks for; None where neither its type, unit nor text says it."""
    stated = KINDS.get((answer_type or "").strip().lower())
    if stated is None and STATEMENT.match(question):
        return "boolean"
    if stated is None and unit and not is_blank(unit):
        if RANGED.search(question):
            return "range"
        if read_asked(unit).unit.dimension is not None or NUMERIC.search(question):
            return "number"
    return stated


def describe_scale(question: str, unit: str | None) -> str | None:
    """Say what a scaled unit of the question is in the unit asked for (q124): "1 million liters is 1000000 liters"."""
    if not unit or is_blank(unit):
        return None
    scaled = re.search(rf"\b({'|'.join(MAGNITUDES)})\s+{re.escape(unit)}(?!\w)", question, re.IGNORECASE)
    return scaled and f"1 {scaled[0]} is {MAGNITUDES[scaled[1].lower()]:.0f} {unit}"


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
        return value, len(value) <= LONGEST_VALUE
    if value.lower() in BOOLEANS:
        return value, False
    if kind == "number":
        value = write_number(_ONE_NUMBER.sub(r"\1", value), unit)
    return value, normalise(value, unit).kind in _NORMAL[kind]
