"""Adapt requests to a server: what it refuses is left out or written otherwise, once the changed request succeeded.

Servers of OpenAI's API differ in what they take: some want ``max_completion_tokens``, fix the temperature, take no JSON
schema or only some of its keywords, or no system message. Which it is stands in their refusal, which may also quote the
prompt: words of the prompt count for nothing.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.models.json_text import loads

Fields = Mapping[str, Any]

_TOLD = ("error", "detail", "message", "msg")
"""Where a refusal says what is wrong: OpenAI's, FastAPI's, Mistral's and Google's; not in FastAPI's ``input``."""

_BOUNDS_VALUE = re.compile(
    r"[<>]|(?:less|greater|smaller|larger|lower|higher) (?:than|values)|at (?:most|least)|between|range|exceed",
    re.IGNORECASE,
)
"""A refusal of a value, which another one would mend, and not of its parameter."""

_NO_SCHEMA = re.compile(r"response_format|json_schema|json_object|structured[_ ]outputs?|schemas?\b", re.IGNORECASE)
_NO_SYSTEM = re.compile(
    r"system (?:role|message|prompt|instruction)s?|developer instructions?|roles must alternate", re.IGNORECASE
)
"""Templates without a system role (ragflow#11021, conversations#197), and Google's words for the same."""

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

_SCHEMA_IN_PROMPT = "\n\nReply with one JSON object of this JSON schema, and with nothing else:\n"


@dataclass(frozen=True, slots=True)
class Change:
    """A way to write requests otherwise, and how it is said; two that say the same are the same."""

    note: str
    write: Callable[[dict[str, Any]], dict[str, Any]] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests to one server are written: its ``changes``, in the order in which they were learnt."""

    changes: tuple[Change, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What requests leave out or say otherwise."""
        return tuple(change.note for change in self.changes)

    def write(self, fields: Fields) -> dict[str, Any]:
        """Write a request's fields as the server takes them; fields of None are left out."""
        written = {name: value for name, value in fields.items() if value is not None}
        for change in self.changes:
            written = change.write(written)
        return written

    def __or__(self, other: Dialect) -> Dialect:
        """Return a dialect with the changes of both."""
        return Dialect(tuple(dict.fromkeys((*self.changes, *other.changes))))

    def adapted(self, sent: Fields, refusal: str) -> Dialect | None:
        """Return the dialect that writes a ``sent`` request otherwise, as its refusal suggests; None: it suggests none.

        It is a guess: keep it only if the request succeeds that it writes.
        """
        change = _suggest(sent, Refusal(refusal, sent))
        return None if change is None else self | Dialect((change,))


class Refusal:
    """What a server says of a refused request, and which of it are no words of the request's own messages."""

    def __init__(self, text: str, sent: Fields) -> None:
        values = loads(text)
        told = list(_find_told(values)) if isinstance(values, (dict, list)) else [(text, "")]
        self._message = _folded(message for message, _ in told)
        self._places = {part for _, place in told for part in re.findall(r"\w+", place)}
        self._asked = _folded(_texts_of(sent.get("messages") or ()))

    def says(self, pattern: re.Pattern[str]) -> bool:
        """Whether it says what matches, in words that the messages have not."""
        matched = {match[0] for match in pattern.finditer(self._message)}
        return any(re.search(_alone(words), self._asked, re.IGNORECASE) is None for words in matched)

    def names(self, word: str) -> bool:
        """Whether it names a field or keyword: as the place of the fault, or in such words."""
        return word in self._places or self.says(re.compile(_alone(word)))


def _folded(texts: Iterable[str]) -> str:
    return " ".join(" ".join(texts).split())


def _texts_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message["content"]
        for part in [{"text": content}] if isinstance(content, str) else content or ():
            yield str(part.get("text", ""))  # other parts are images


def _alone(words: str) -> str:
    return rf"(?<![\w.-]){re.escape(words)}(?![\w-])"


def _find_told(values: Any) -> Iterator[tuple[str, str]]:
    """Yield the messages of an error's JSON values, and the places that it says are at fault."""
    if isinstance(values, list):
        for value in values:
            yield from _find_told(value)
    elif isinstance(values, str):
        yield values, ""
    elif isinstance(values, dict):
        yield "", json.dumps([values.get("param"), values.get("loc")])
        for name in _TOLD:
            yield from _find_told(values.get(name))


def _suggest(sent: Fields, refusal: Refusal) -> Change | None:
    is_of_value = refusal.says(_BOUNDS_VALUE)
    if "max_tokens" in sent and refusal.names("max_completion_tokens") and not is_of_value:
        return Change("max_tokens is sent as max_completion_tokens", _rename_max_tokens)
    if refusal.says(_NO_SYSTEM) and any(message["role"] == "system" for message in sent["messages"]):
        return Change("the system's text is sent before the user's", _fold_system)
    if (keyword := _named_keyword(sent, refusal)) is not None:
        return Change(f"schemas are sent without {keyword}", functools.partial(_without_keyword, keyword=keyword))
    if "response_format" in sent and refusal.says(_NO_SCHEMA):
        if _schema_of(sent) is not None:
            return Change("schemas are sent in the prompt, with json_object", _with_json_object)
        return Change("response_format is not sent", functools.partial(_without_field, left_out="response_format"))
    named = [name for name in ("top_p", "temperature", "seed") if name in sent and refusal.names(name)]
    for name in named:
        if name in ("top_p", "temperature") and sent[name] == 1:
            return Change(f"{name} is not sent where it is 1", functools.partial(_without_neutral, name=name))
    if is_of_value or named[:2] == ["top_p", "temperature"]:  # leaving out either would change the replies
        return None
    for left_out in named:
        return Change(f"{left_out} is not sent", functools.partial(_without_field, left_out=left_out))
    return None


def _rename_max_tokens(fields: dict[str, Any]) -> dict[str, Any]:
    return {"max_completion_tokens" if name == "max_tokens" else name: value for name, value in fields.items()}


def _without_field(fields: dict[str, Any], left_out: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != left_out}


def _without_neutral(fields: dict[str, Any], name: str) -> dict[str, Any]:
    # Only for servers that refuse it: vLLM's default is the model's own top_p, which is 0.8 for Qwen2.5.
    return _without_field(fields, name) if fields.get(name) == 1 else fields


def _fold_system(fields: dict[str, Any]) -> dict[str, Any]:
    """Put the system's text before that of the message behind it."""
    messages, told = list[dict[str, Any]](), ""
    for message in fields["messages"]:
        if message["role"] == "system":
            told += f"{message['content']}\n\n"
        else:
            messages.append(_with_text(message, told, ""))
            told = ""
    return {**fields, "messages": messages + ([{"role": "user", "content": told}] if told else [])}


def _with_text(message: Mapping[str, Any], before: str, after: str) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{before}{content}{after}"}
    *images, text = content  # the text stands behind its images
    return {**message, "content": [*images, {**text, "text": f"{before}{text['text']}{after}"}]}


def _with_json_object(fields: dict[str, Any]) -> dict[str, Any]:
    schema = _schema_of(fields)
    if schema is None:
        return fields
    *others, last = fields["messages"]
    messages = [*others, _with_text(last, "", _SCHEMA_IN_PROMPT + json.dumps(schema, ensure_ascii=False))]
    return {**fields, "messages": messages, "response_format": {"type": "json_object"}}


def _named_keyword(sent: Fields, refusal: Refusal) -> str | None:
    """Find the schema keyword that a refusal names and the sent schema has."""
    schema = _schema_of(sent)
    return next((word for word in _BOUNDS if refusal.names(word) and _strip(schema, word) != schema), None)


def _schema_of(fields: Fields) -> Mapping[str, Any] | None:
    form = fields.get("response_format")
    return form["json_schema"]["schema"] if isinstance(form, Mapping) and "json_schema" in form else None


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
