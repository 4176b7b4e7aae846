"""Answer values in one normal form, so that equal answers in different spellings vote together."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kohaku_ray.values.read import NUMBER, fold, is_abstention, is_blank
from kohaku_ray.values.units import Unit, find_unit

LONGEST_NUMBER = 200
"""Longest value, in characters, that is parsed; a longer one is text."""

TOLERANCE = 1e-3
"""Two numbers are one answer when they differ by at most this share of the group's first member."""

_SLACK = 1.0 + 1e-9  # a converted value may miss the bound by a rounding error
_COUNT = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]+)?|{NUMBER.removeprefix('[+-]?')})"
_AMOUNT = re.compile(
    rf"(?P<currency>(?:US)?\$)?\s*(?P<sign>[+-]?)\s*(?P<number>{_COUNT})"
    r"(?:\s*[x×*]\s*10\s*(?:\^|\*\*)\s*(?P<exponent>[+-]?[0-9]{1,3}))?"
    r"\s*(?P<word>thousand|million|billion|trillion)?(?![0-9])\s*(?P<unit>.*)",
    re.IGNORECASE | re.DOTALL,
)
_MONEY_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12}
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_BRACKETED = re.compile(rf"\[\s*({NUMBER})\s*,\s*({NUMBER})\s*\]\s*(.*)", re.DOTALL)
_SPAN = re.compile(
    r"(?:(?:from\s+|between\s+)?(?P<low>\S.*?)\s+(?:to|and|-)\s+(?P<high>\S.*)"
    rf"|(?P<dash_low>\$?[+-]?{_COUNT}\s*[^0-9-]*?)\s*-\s*(?P<dash_high>\$?[0-9.].*))",
    re.IGNORECASE | re.DOTALL,
)
_BOOLEANS = {"true": 1.0, "false": 0.0}
_LOOKALIKES = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "‑": "-", "₂": "2"} | dict.fromkeys("\u00a0\u2009\u202f", " ")
)
_SPACED_THOUSANDS = re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")


@dataclass(frozen=True, slots=True)
class Value:
    """An answer value in normal form.

    Attributes:
        kind: What it is.
        numbers: The number, or low and high of a pair; in SI base units where the unit is known.
        dimension: Quantity that the numbers measure; empty where it is not known.
        text: The folded text; set only for text.
    """

    kind: Literal["blank", "number", "pair", "text"]
    numbers: tuple[float, ...] = ()
    dimension: str = ""
    text: str = ""


BLANK_VALUE = Value("blank")


def normalise(value: str, unit: str | None = None) -> Value:
    """Bring an answer value to normal form; never raises.

    Numbers lose thousands separators, exponents, "million" and units of the table (``units``); ``true`` and ``false``
    are 1 and 0; ``[80,90]``, ``80-90`` and ``80 to 90`` are a pair. A bare number is in the question's unit, and a
    value in another unit of the same dimension is converted, so that 2.5 kWh answers a question in Wh as 2500 does.
    A number with an unknown unit, and anything else (``A100-80GB``, ``28 and 35``), is text.
    """
    if is_abstention(value):
        return BLANK_VALUE
    if len(value) > LONGEST_NUMBER:
        return Value("text", text=fold(value))
    return _normalise(value, "" if unit is None or is_blank(unit) else unit)


@lru_cache(maxsize=65536)
def _normalise(value: str, asked: str) -> Value:
    text = " ".join(_SPACED_THOUSANDS.sub("", value).translate(_LOOKALIKES).split())
    if text.lower() in _BOOLEANS:
        return Value("number", (_BOOLEANS[text.lower()],))
    return _number(text, asked) or _pair(text, asked) or Value("text", text=fold(text))


def _number(text: str, asked: str) -> Value | None:
    amount = _AMOUNT.fullmatch(text)
    if amount is None:
        return None
    found = _unit_of(amount, asked)
    number = _count_of(amount)
    if found is None or not math.isfinite(number * found.factor):
        return None
    return Value("number", (number * found.factor,), found.dimension or "")


def _count_of(amount: re.Match[str]) -> float:
    number = float(amount["number"].replace(",", ""))
    exponent = int(amount["exponent"] or 0)
    scale = 10.0**exponent if exponent < 300 else math.inf
    if amount["word"]:
        scale *= _WORDS[amount["word"].lower()]
    if amount["currency"]:
        scale *= _MONEY_SUFFIXES.get(amount["unit"].lower(), 1.0)
    return -number * scale if amount["sign"] == "-" else number * scale


def _unit_of(amount: re.Match[str], asked: str) -> Unit | None:
    """Find the unit of an amount: its own, else the question's; None where its own is unknown."""
    own = amount["unit"].strip()
    if amount["currency"]:
        money = find_unit("$")
        return money if not own or own.lower() in _MONEY_SUFFIXES or find_unit(own) == money else None
    known = find_unit(own) if own else None
    if known is None and (not own or fold(own).removesuffix("s") == fold(asked).removesuffix("s")):
        return find_unit(asked) or Unit(None)
    return known


def _pair(text: str, asked: str) -> Value | None:
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        ends = (f"{bracketed[1]} {bracketed[3]}", f"{bracketed[2]} {bracketed[3]}")
    else:
        span = _SPAN.fullmatch(text)
        if span is None or (" and " in text.lower() and not text.lower().startswith("between ")):
            return None
        ends = (span["low"] or span["dash_low"], span["high"] or span["dash_high"])
    return _pair_of(ends[0].strip(), ends[1].strip(), asked)


def _pair_of(low_text: str, high_text: str, asked: str) -> Value | None:
    """Read both ends; an end without a unit takes the other's, and the low one the high one's "million" too."""
    low, high = _AMOUNT.fullmatch(low_text), _AMOUNT.fullmatch(high_text)
    if low is None or high is None:
        return None
    word = "" if low["word"] or low["unit"] else high["word"] or ""
    first = _number(f"{low_text} {word} {_borrowed(low, high)}".strip(), asked)
    second = _number(f"{high_text} {_borrowed(high, low)}".strip(), asked)
    if first is None or second is None or first.dimension != second.dimension:
        return None
    return Value("pair", tuple(sorted(first.numbers + second.numbers)), first.dimension)


def _borrowed(amount: re.Match[str], other: re.Match[str]) -> str:
    if amount["unit"] or amount["currency"]:
        return ""
    return other["unit"].strip() or ("$" if other["currency"] else "")


def same(first: Value, other: Value) -> bool:
    """Tell whether a value equals the answer of a group's first member."""
    if first.kind != other.kind or first.dimension != other.dimension or first.text != other.text:
        return False
    pairs = zip(first.numbers, other.numbers, strict=True)
    return all(abs(a - b) <= TOLERANCE * abs(a) * _SLACK for a, b in pairs)


def group_values(values: Sequence[str], unit: str | None = None) -> list[int]:
    """Group members by answer, given their values in member order and the question's unit.

    Each joins the earliest group whose first member gave the same answer, or opens a new one.

    Returns:
        One group index per member, counted from 0 in order of first appearance; -1 where the member is blank.
    """
    firsts: list[Value] = []
    groups = []
    for value in values:
        key = normalise(value, unit)
        if key.kind == "blank":
            groups.append(-1)
            continue
        group = next((index for index, first in enumerate(firsts) if same(first, key)), len(firsts))
        if group == len(firsts):
            firsts.append(key)
        groups.append(group)
    return groups
