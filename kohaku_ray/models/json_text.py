"""Find JSON in a model's reply, whatever stands around it, also where the reply was cut off."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

_MOST_STARTS = 2000  # brackets tried: bounds the time for a hostile reply
_MOST_CUT_STARTS = 20
_MOST_OPEN = 20
_STRICT = json.JSONDecoder()
_LENIENT = json.JSONDecoder(strict=False)  # takes a raw line break inside a string
_CLOSED_BY = {"{": "}", "[": "]"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]', re.DOTALL)
_TAIL_CHARS = 500
_LEAST_TAIL_CHARS = 200
_LOOP_SHARE = 0.46  # size after compression: replies of small models that do not loop have 0.5 to 0.75
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")


def find(text: str, accept: Callable[[Any], Any | None]) -> Any | None:
    """Return ``accept``'s result for the first JSON value that it accepts.

    Tried are the whole text; every balanced object or array after the last ``</think>``; every one anywhere.
    """
    accepted = accept(loads(text, strict=True))
    if accepted is not None:
        return accepted
    for part in _parts(text):
        for bracket in islice(re.finditer(r"[{\[]", part), _MOST_STARTS):
            try:
                value, _ = _LENIENT.raw_decode(part, bracket.start())
            except (ValueError, RecursionError):
                continue
            accepted = accept(value)
            if accepted is not None:
                return accepted
    return None


def find_cut(text: str, accept: Callable[[Any], Any | None], lists: Collection[str]) -> Any | None:
    """Return ``accept``'s result for an object or array that the text breaks off: what was complete by then.

    Args:
        text: The text.
        accept: Turns a value into a result; None: it is not what is looked for.
        lists: Names of the fields that count with fewer items; any other that is not complete is left out.
    """
    for part in _parts(text):
        for bracket in islice(re.finditer(r"[{\[]", part), _MOST_CUT_STARTS):
            accepted = accept(_complete(part[bracket.start() :], lists))
            if accepted is not None:
                return accepted
    return None


def loads(text: str, strict: bool = False) -> Any | None:
    """Parse a text that is JSON; None if it is not."""
    try:
        return (_STRICT if strict else _LENIENT).decode(text)
    except (ValueError, RecursionError):
        return None


def loops(text: str) -> bool:
    """Return whether a text ends in repetitions, also of a phrase whose numbers change."""
    tail = _DIGITS.sub("0", text)[-_TAIL_CHARS:].encode()
    return len(tail) >= _LEAST_TAIL_CHARS and len(zlib.compress(tail)) < _LOOP_SHARE * len(tail)


def _parts(text: str) -> Iterator[str]:
    _, _, after_thinking = text.rpartition("</think>")
    yield from dict.fromkeys((after_thinking, text))


def _complete(text: str, lists: Collection[str]) -> Any | None:
    """Close the brackets of a text that breaks off after its last complete value."""
    missing: list[str] = []  # brackets that close what is open, innermost first
    end, closing, before = 0, "", ""
    for token in _TOKEN.finditer(text):
        mark = token[0][0]
        if mark in _CLOSED_BY:
            missing.insert(0, _CLOSED_BY[mark])
        elif mark in "}]":
            if missing[:1] != [mark]:
                break
            missing.pop(0)
            end, closing = token.end(), "".join(missing)
        elif mark == ",":
            end, closing = token.start(), "".join(missing)
        elif mark == '"' and (before == ":" or missing[0] == "]"):
            end, closing = token.end(), "".join(missing)
        if len(missing) > _MOST_OPEN or not missing:
            break
        before = mark
    value = loads(text[:end] + closing)
    if isinstance(value, dict) and len(closing) > 1:
        broken = next(reversed(value), "")
        if broken.strip().casefold() not in lists:
            del value[broken]
    return value
