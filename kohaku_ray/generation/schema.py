"""JSON schemas of replies, in the subset that grammar engines share.

``uniqueItems`` stands in neither: xgrammar and the strict mode of OpenAI refuse it, and the parser drops repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ANSWER_FIELDS = ("explanation", "answer", "answer_value", "answer_unit", "ref_id", "is_blank")
"""Fields of an answer in the order they are generated: the reasoning comes before the value it leads to."""


def answer_schema(doc_ids: Sequence[str], constrain: bool = True) -> dict[str, Any]:
    """Describe an answer as JSON.

    Args:
        doc_ids: Documents of the context; repeats are fine.
        constrain: List them as the only values of ``ref_id``, so that nothing else can be generated.

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
    """Describe a plan as JSON: an array of one to ``n`` queries."""
    return {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": n}


def _refs(doc_ids: tuple[str, ...], constrain: bool) -> dict[str, Any]:
    if not doc_ids:
        return {"type": "array", "items": {"type": "string"}, "maxItems": 0}
    if not constrain:
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "array", "items": {"type": "string", "enum": list(doc_ids)}}
