"""Find the numbers and ranges that a text states, each read as an answer's value is (``normalise``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kohaku_ray.values.amounts import MAY_COUNT, Amount, parse_amount, read_asked
from kohaku_ray.values.normalise import NEXT_ITEM, TOLERANCE, Value, normalise, same
from kohaku_ray.values.read import fold
from kohaku_ray.values.spelling import plain_characters
from kohaku_ray.values.units import find_unit

MOST_TOKENS = 8
"""Longest amount, in tokens: ``1.2 million to 3.4 million metric tons CO2e``."""

_AROUND = " \t\"'“”‘’*`.,;:!?…"
_OPEN, _CLOSE = "([{", ")]}"
_LEADING = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?=-[^\W\d])")  # 12-layer
_YEAR = re.compile(r"(?:1[5-9]|20)[0-9]{2}")
_NONE = read_asked("")


@dataclass(frozen=True, slots=True)
class Stated:
    """A number or a range of a text.

    Attributes:
        text: As it is written, its unit included.
        value: In normal form; a number without a unit is in the one asked for.
        has_unit: Whether the unit asked for, or another of its dimension, is written.
    """

    text: str
    value: Value
    has_unit: bool

    def says(self, value: Value, written: str) -> bool:
        """Tell whether it is a value, or the number that is ``written`` for it, whatever unit or sign stands there."""
        if same(value, self.value) or {value.kind, self.value.kind} != {"number"}:
            return same(value, self.value)
        ours, other = _amount(self.text), _amount(written)
        if ours is None or other is None:
            return False
        sizes = [abs(amount.number) * (amount.scale or 1.0) for amount in (ours, other)]
        return abs(sizes[0] - sizes[1]) <= TOLERANCE * max(sizes)


@lru_cache(maxsize=4096)
def find_stated(text: str, unit: str | None = None) -> tuple[Stated, ...]:
    """Find every number and range of a text, in order, none inside another; ``unit`` is the one asked for.

    Each is the longest run of tokens that ``normalise`` reads as a number or a pair; two numbers with "and" between
    them are a pair only after "from" or "between". A number inside a name (``GPT-3``, ``A100``) is none. Each of a list
    (``80, 85 and 90 %``) has the unit at its end.
    """
    tokens, stated, start = text.replace("—", " — ").split(), list[Stated](), 0
    gaps, past = list[str](), 0  # the text before each, and the token after the last one
    while start < len(tokens):
        longest = _longest(tokens, start, unit) if MAY_COUNT.search(tokens[start]) else None
        start += 1
        if longest is not None:
            n_tokens, amount = longest
            end = tokens[past - 1][len(tokens[past - 1].rstrip(_AROUND)) :] if past else ""
            gaps.append(" ".join([end, *tokens[past : start - 1], ""]))
            stated.append(amount)
            start = past = start - 1 + n_tokens
    for last in range(len(stated) - 1, 0, -1):
        if stated[last].has_unit and NEXT_ITEM.fullmatch(gaps[last]) and _is_bare(stated[last - 1].text):
            stated[last - 1] = replace(stated[last - 1], has_unit=True)
    return tuple(stated)


def _is_bare(text: str) -> bool:
    """Tell whether an amount has no unit, and is no year, which stands beside a number: in 2022, 30 %."""
    amount = _amount(text)
    return amount is not None and not amount.unit and _YEAR.fullmatch(text) is None


def _longest(tokens: Sequence[str], start: int, unit: str | None) -> tuple[int, Stated] | None:
    """Read the longest amount that begins at a token; returns its number of tokens too."""
    end, is_open = start + 1, _is_open(tokens[start])
    while end < min(start + MOST_TOKENS, len(tokens)) and (is_open or tokens[end - 1][-1] not in ".,;:!?)]}—"):
        is_open = is_open and not _closes(tokens[end])
        end += 1
    before = tokens[start - 1] if start else "is"
    for stop in range(end, start, -1):
        span = " ".join(tokens[start:stop]).strip(_AROUND)
        for written in dict.fromkeys((span, span.lstrip(_OPEN), span.rstrip(_CLOSE), span.strip(_OPEN + _CLOSE))):
            is_listed = written[:1] not in _OPEN and NEXT_ITEM.search(written)
            value = normalise(f"{before} {written}" if is_listed else written, unit)
            if value.kind in ("number", "pair") and MAY_COUNT.search(written):
                return stop - start, Stated(written, value, _has_unit(written, value, unit))
    leading = _LEADING.match(tokens[start].lstrip(_OPEN + _AROUND))
    return None if leading is None else (1, Stated(leading[0], normalise(leading[0], unit), False))


def _is_open(token: str) -> bool:
    return token[0] in _OPEN and not _closes(token)


def _closes(token: str) -> bool:
    return any(char in _CLOSE for char in token)


def _has_unit(written: str, value: Value, unit: str | None) -> bool:
    asked = read_asked(plain_characters(unit or ""))
    if asked.unit.dimension is None:
        return bool(asked.text) and fold(written).endswith(fold(asked.rest))
    if value.kind == "pair":
        return normalise(written).dimension == asked.unit.dimension
    amount = _amount(written)
    own = find_unit(amount.unit) if amount is not None and amount.unit else None
    return own is not None and own.dimension == asked.unit.dimension


def _amount(text: str) -> Amount | None:
    return parse_amount(plain_characters(text), _NONE)
