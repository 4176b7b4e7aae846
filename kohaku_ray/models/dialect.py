"""Adapt requests to a server: what it has refused by name is left out or written otherwise from then on.

Servers of OpenAI's API differ in what they take: some want ``max_completion_tokens``, fix the temperature, refuse
temperature and top_p together, or keywords of a schema. The refusal names it, so that the request can be written again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

Fields = Mapping[str, Any]

_REFUSES = re.compile(
    r"not (?:be )?(?:supported|permitted|allowed|available|accepted|recognized|specified|both)|unsupported|"
    r"unrecognized|unexpected|unknown|extra inputs|extra_forbidden|cannot|can't|may not|must not|only one of|"
    r"only the default|does not support|doesn't support|no longer|deprecated|incompatible|invalid schema",
    re.IGNORECASE,
)
_ASKS_FOR_OTHER = re.compile(r"\buse\W+max_completion_tokens|max_completion_tokens\W+instead", re.IGNORECASE)
_BOUNDS_VALUE = re.compile(
    r"[<>]=|(?:less|greater|smaller|larger|lower|higher) (?:than|values)|at (?:most|least)|between|range|exceed",
    re.IGNORECASE,
)
"""A refusal of a value, which another one would mend, and not of its parameter."""

_OF_SCHEMA = re.compile("schema|response_format|strict|grammar", re.IGNORECASE)
_BOUNDS = (
    *("maxLength", "minLength", "pattern", "format", "maxItems", "minItems", "uniqueItems", "contains"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("maxProperties", "minProperties", "default"),
)
"""Keywords of a schema without which its replies have the same shape."""

_SUBSCHEMAS = ("properties", "$defs", "definitions", "patternProperties")
"""Keywords whose values are schemas by name: a property may be called ``pattern``."""

_VALUES = ("enum", "const", "default", "examples")
"""Keywords whose values are no schemas."""


class Dialect:
    """How requests to one server are written; it knows nothing until the server has refused something."""

    def __init__(self) -> None:
        self._changes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}

    @property
    def note(self) -> str:
        """What requests leave out or say otherwise, in one line; empty: nothing."""
        return "; ".join(self._changes)

    def write(self, fields: Fields) -> dict[str, Any]:
        """Write a request's fields as the server takes them; fields of None are left out."""
        written = {name: value for name, value in fields.items() if value is not None}
        for change in self._changes.values():
            written = change(written)
        return written

    def learn(self, sent: Fields, refusal: str) -> None:
        """Learn from the refusal of a request that was ``sent``; a refusal that names nothing known changes nothing."""
        if _ASKS_FOR_OTHER.search(refusal) and "max_tokens" in sent:
            self._changes["max_tokens is sent as max_completion_tokens"] = lambda fields: {
                "max_completion_tokens" if name == "max_tokens" else name: value for name, value in fields.items()
            }
        elif not _REFUSES.search(refusal) or _BOUNDS_VALUE.search(refusal):
            return
        elif _OF_SCHEMA.search(refusal) and (keyword := _named_keyword(sent, refusal)) is not None:
            self._changes[f"schemas are sent without {keyword}"] = lambda fields: _without_keyword(fields, keyword)
        elif _names(refusal, "temperature") and _names(refusal, "top_p"):
            if 1 in (sent.get("top_p"), sent.get("temperature")):
                self._changes["of temperature and top_p the one that is 1 is not sent"] = _without_one
        else:
            for name in ("temperature", "top_p", "seed", "priority"):
                if name in sent and _names(refusal, name):
                    self._changes[f"{name} is not sent"] = functools.partial(_without_field, left_out=name)
                    return


def _without_field(fields: dict[str, Any], left_out: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != left_out}


def _without_one(fields: dict[str, Any]) -> dict[str, Any]:
    """Of two that may not both be given, leave out the one that changes nothing; other requests are refused."""
    if not {"temperature", "top_p"} <= fields.keys():
        return fields
    neutral = next((name for name in ("top_p", "temperature") if fields[name] == 1), None)
    return fields if neutral is None else _without_field(fields, neutral)


def _names(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) is not None


def _named_keyword(sent: Fields, refusal: str) -> str | None:
    """Find the schema keyword that a refusal names and the sent schema has."""
    schema = _schema_of(sent)
    if schema is None:
        return None
    used = _keywords(schema)
    return next((word for word in _BOUNDS if word in used and _names(refusal, word)), None)


def _schema_of(fields: Fields) -> Mapping[str, Any] | None:
    form = fields.get("response_format")
    return form["json_schema"]["schema"] if isinstance(form, Mapping) and "json_schema" in form else None


def _keywords(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(_keywords, schema))
    if not isinstance(schema, Mapping):
        return set()
    used = set(schema)
    for key, value in schema.items():
        inner = list(value.values()) if key in _SUBSCHEMAS and isinstance(value, Mapping) else value
        used |= set() if key in _VALUES else _keywords(inner)
    return used


def _without_keyword(fields: dict[str, Any], keyword: str) -> dict[str, Any]:
    schema = _schema_of(fields)
    if schema is None:
        return fields
    named = {**fields["response_format"]["json_schema"], "schema": _strip(schema, keyword)}
    return {**fields, "response_format": {**fields["response_format"], "json_schema": named}}


def _strip(schema: Any, keyword: str) -> Any:
    if isinstance(schema, list):
        return [_strip(inner, keyword) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: _strip(inner, keyword) for name, inner in value.items()}
        if key in _SUBSCHEMAS and isinstance(value, Mapping)
        else value
        if key in _VALUES
        else _strip(value, keyword)
        for key, value in schema.items()
        if key != keyword
    }
