"""JSON schemas of replies, in the subset that xgrammar, llguidance and llama.cpp support.

The root is an object, since OpenAI's API takes no other. ``uniqueItems`` is left out (xgrammar and OpenAI's strict mode
reject it; the parser drops repeats), and no string has both a pattern and a bound (xgrammar then ignores one of them).
xgrammar compiles each distinct bound once for a tokenizer, in seconds: few bounds are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kohaku_ray.models.request import CHARS_PER_TOKEN
from kohaku_ray.records import BLANK
from kohaku_ray.values.kinds import ValueKind
from kohaku_ray.values.spelling import LONGEST_VALUE

ANSWER_FIELDS = ("explanation", "answer", "answer_value", "answer_unit", "ref_id")
"""Fields of an answer in the order they are generated: the reasoning comes before the value it leads to."""

SHORT_FIELDS = tuple(field for field in ANSWER_FIELDS if field != "answer")
"""Those of a small model: after an answer that is a value already, it gives the value as ``is_blank``."""

MOST_QUERY_CHARS = 200
"""Longest query of a plan, in characters."""

_NUMBER = r"-?[0-9]{1,18}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?"
_SEPARATED = r"-?([0-9]{1,3}(,[0-9]{3}){1,5}|[0-9]{1,18})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?"
_RANGE = rf"\[{_NUMBER},{_NUMBER}\]"
_SHORT = {"type": "string", "maxLength": LONGEST_VALUE}
_UNIT = {"type": "string", "maxLength": 40}
_VALUES: dict[ValueKind | None, dict[str, Any]] = {
    "range": {"type": "string", "pattern": f"^({BLANK}|{_RANGE})$"},
    "number": {"type": "string", "pattern": f"^({BLANK}|{_NUMBER}|{_RANGE})$"},
    # A small model whose answer is "True" writes is_blank where 1 and 0 are its only other choices.
    "boolean": {"type": "string", "enum": ["1", "0", "True", "False", BLANK]},
    "text": _SHORT,
    None: _SHORT,
}
# A small model copies a number with its separators: where it may not, 138,125 became [138,125].
_COPIED = {"type": "string", "pattern": f"^({BLANK}|{_SEPARATED}|{_RANGE})$"}


def answer_schema(
    doc_ids: Sequence[str],
    constrain: bool = True,
    kind: ValueKind | None = None,
    most_chars: int | None = None,
    most_refs: int | None = None,
    fields: Sequence[str] = ANSWER_FIELDS,
) -> dict[str, Any]:
    """Return the schema of an answer. It is blank where its value says so: no other field can contradict it.

    Args:
        doc_ids: Documents of the context; may repeat.
        constrain: List them as the only values of ``ref_id``, so that no other can be generated.
        kind: Kind of value asked for; None: any text.
        most_chars: Longest explanation and longest answer, in characters; None: unbounded.
        most_refs: Most references; None: as many as documents.
        fields: Those of ``ANSWER_FIELDS`` that a reply has.

    Returns:
        A JSON schema; without documents it allows an empty ``ref_id`` only.
    """
    prose = {"type": "string"} if most_chars is None else {"type": "string", "maxLength": most_chars}
    known = list(dict.fromkeys(doc_ids))
    cited = {"type": "string", "enum": known} if known and constrain else _SHORT
    refs = {"type": "array", "items": cited, "maxItems": min(len(known), most_refs or len(known))}
    value = _COPIED if kind == "number" and "answer" not in fields else _VALUES[kind]
    every = dict(zip(ANSWER_FIELDS, (prose, prose, value, _UNIT, refs), strict=True))
    return _object({name: every[name] for name in fields})


def plan_schema(most: int, least: int | None = None) -> dict[str, Any]:
    """Return the schema of a plan: ``least`` to ``most`` queries; by default exactly ``most``."""
    query = {"type": "string", "maxLength": MOST_QUERY_CHARS}
    least = most if least is None else least
    return _object({"queries": {"type": "array", "items": query, "minItems": least, "maxItems": most}})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def least_tokens(schema: Any) -> int:
    """Return the tokens that the shortest reply of a schema has, at about four characters each; 1 without a schema."""
    return -(-len(json.dumps(_shortest(schema))) // CHARS_PER_TOKEN) if schema else 1


def _shortest(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return min(schema["enum"], key=lambda value: len(json.dumps(value)))
    if schema.get("type") == "object":
        return {name: _shortest(schema.get("properties", {}).get(name, {})) for name in schema.get("required", ())}
    if schema.get("type") == "array":
        return [_shortest(schema.get("items", {}))] * schema.get("minItems", 0)
    return "" if schema.get("type") == "string" else 0
