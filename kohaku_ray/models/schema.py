"""JSON schemas of replies, in the subset that all grammar engines support.

No schema has ``uniqueItems``: xgrammar and OpenAI's strict mode reject it, and the parser drops repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ANSWER_FIELDS = ("explanation", "answer", "answer_value", "answer_unit", "ref_id", "is_blank")
"""Fields of an answer in the order they are generated: the reasoning comes before the value it leads to."""


def answer_schema(doc_ids: Sequence[str], constrain: bool = True) -> dict[str, Any]:
    """Return the schema of an answer.

    Args:
        doc_ids: Documents of the context; may repeat.
        constrain: List them as the only values of ``ref_id``, so that no other can be generated.

    Returns:
        A JSON schema; without documents it allows an empty ``ref_id`` only.
    """
    string = {"type": "string"}
    return {
        "type": "object",
        "properties": {
            "explanation": string,
            "answer": string,
            "answer_value": string,
            "answer_unit": string,
            "ref_id": _refs(tuple(dict.fromkeys(doc_ids)), constrain),
            "is_blank": {"type": "boolean"},
        },
        "required": list(ANSWER_FIELDS),
        "additionalProperties": False,
    }


def plan_schema(n: int) -> dict[str, Any]:
    """Return the schema of a plan: an array of one to ``n`` queries."""
    return {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": n}


def _refs(doc_ids: tuple[str, ...], constrain: bool) -> dict[str, Any]:
    if not doc_ids:
        return {"type": "array", "items": {"type": "string"}, "maxItems": 0}
    if not constrain:
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "array", "items": {"type": "string", "enum": list(doc_ids)}}
