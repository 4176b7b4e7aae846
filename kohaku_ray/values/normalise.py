"""Bring answer values to one normal form, which decides what votes, metrics and typed replies take for equal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kohaku_ray.values.amounts import MAY_COUNT, POINT, Amount, Asked, measure, parse_amount, read_asked, without_hedges
from kohaku_ray.values.read import BOOLEANS, is_abstention, is_blank, parse_number, split_list
from kohaku_ray.values.spelling import plain_characters, text_key

LONGEST_NUMBER = 200
"""Longest value, in characters, that is parsed; a longer one is text."""

TOLERANCE = 1e-3
"""Two numbers are one answer when they differ by at most this share of the larger one."""

_SLACK = 1.0 + 1e-9  # a converted value may miss the bound by a rounding error
_BRACKETED = re.compile(r"([\[({])\s*(.*?)\s*([\])}])\s*([^\[\](){}]*)", re.DOTALL)
_ITEM = r"[\[({][^\[\](){}]*[\])}]"
_ITEMS = re.compile(rf"{_ITEM}(?:\s*(?:[,;]|,?\s*\band)\s*{_ITEM})+", re.IGNORECASE)  # (a), (b) and (c)
_CLOSING = {"[": "])", "(": "])", "{": "}"}  # a half-open interval too
_SEPARATED = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_BETWEEN = re.compile(
    r"(?:(?:anywhere\s+|rang(?:es|ing)\s+)?(?:from|between)|in\s+the\s+range|(?:in\s+)?(?:the\s+|a\s+)?range(?::|\s+(?:of|from)))\s+",
    re.IGNORECASE,
)
_TO = re.compile(
    r"\s+(?:(?:up\s+)?to|through|bis|à|-|~)\s+|\s*\.{2,3}\s*|(?<=[\w%.)])\s*[-~]\s*(?=[$€£¥]?[+-]?\.?[0-9])",
    re.IGNORECASE,
)
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)"
)
_DATE = re.compile(
    r"(?P<year1>[0-9]{4})(?P<mark>[-/.])(?P<month1>[0-9]{1,2})(?P=mark)(?P<day1>[0-9]{1,2})|"
    rf"(?P<month2>{_MONTH})\.?(?:\s+(?P<day2>[0-9]{{1,2}})(?:st|nd|rd|th)?)?,?\s+(?P<year2>[0-9]{{4}})|"
    rf"(?P<day3>[0-9]{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month3>{_MONTH})\.?,?\s+(?P<year3>[0-9]{{4}})",
    re.IGNORECASE,
)
_NEXT_AMOUNT = re.compile(r"(?<=[a-z])(?:,?\s+and\s+|,?\s+)(?=[0-9])", re.IGNORECASE)
_NOTHING_ASKED = read_asked("")
_GLOSSED = re.compile(r"([^()]+?)\s*\(([^()]+)\)")
_NEXT_ITEM = re.compile(r",\s+(?:and\s+)?|\s+and\s+|;\s+", re.IGNORECASE)
_MOST_WORDS, _MOST_ITEMS = 4, 12  # of a name in a list, and of names in a list without brackets
_MOST_CUTS = 4  # places at which a range may be cut in two that are tried


@dataclass(frozen=True, slots=True)
class Value:
    """An answer value in normal form.

    Attributes:
        kind: What it is; a pair is a range, or two numbers in any order.
        numbers: The number, or low and high of a pair; in SI base units where the unit is known.
        dimension: Quantity that the numbers measure; empty where it is not known.
        text: The key of a text (``text_key``); set only for text.
        items: The values of a list, in an order of their own; set only for a list.
    """

    kind: Literal["blank", "number", "pair", "list", "text"]
    numbers: tuple[float, ...] = ()
    dimension: str = ""
    text: str = ""
    items: tuple[Value, ...] = ()


BLANK_VALUE = Value("blank")


def normalise(value: str, unit: str | None = None) -> Value:
    """Bring an answer value to normal form; never raises.

    A number may be hedged or bounded (``~4.3``, ``over 40``), grouped, a power, a fraction, a word (``five``,
    ``2.5 million``, ``5 bn``), in digits of any script, and in a unit of the table (``units``) or a currency; true and
    yes are 1, false and no 0. ``[80,90]``, ``80-90`` and ``80 to 90`` are a pair, ``(a, b)`` and names with commas or
    "and" between them a list without order; ``January 15, 2023`` is the text ``2023 01 15``. A bare number is in the
    question's unit, and a value in another unit of the same dimension is converted, so that 2.5 kWh answers a question
    in Wh as 2500 does; the unit also decides whether ``5B`` is bytes or billions, whether a half is 50 percent, and
    whether ``12,5`` has a decimal comma. A number with an unknown unit, and anything else (``A100-80GB``,
    ``28 and 35``), is text.
    """
    if len(value) <= LONGEST_NUMBER:
        return _normalise(value, unit)
    return BLANK_VALUE if is_abstention(value) else Value("text", text=text_key(value))


@lru_cache(maxsize=65536)
def _normalise(value: str, unit: str | None) -> Value:
    if is_abstention(value):
        return BLANK_VALUE
    value, unit = value.strip(), "" if unit is None or is_blank(unit) else plain_characters(unit)
    if POINT.fullmatch(value):
        asked = read_asked(unit).unit
        number = float(value) * asked.factor
        return (
            Value("number", (number,), asked.dimension or "")
            if math.isfinite(number)
            else Value("text", text=text_key(value))
        )
    text = plain_characters(value)
    if not value.isascii() and is_abstention(text):
        return BLANK_VALUE
    return _read(text, read_asked(unit)) or Value("text", text=text_key(value))


def _read(text: str, asked: Asked) -> Value | None:
    """Read a number, a pair or a list; None: it is text."""
    bare = text.strip(" .,;:!?\"'").lower()
    if bare in BOOLEANS:
        return Value("number", (float(BOOLEANS[bare]),))
    bracketed = _BRACKETED.fullmatch(text) if text[:1] in _CLOSING else None
    if bracketed and _ITEMS.fullmatch(text):
        items = [_read(item, asked) or Value("text", text=text_key(item)) for item in re.findall(_ITEM, text)]
        return _gather(items)
    if bracketed and bracketed[3] in _CLOSING[bracketed[1]]:
        return _list(bracketed, asked)
    read = _date(text) or _number(text, asked) or _pair(text, asked) or _sum(text) if MAY_COUNT.search(text) else None
    return read or (_glossed(text, asked) if text.endswith(")") else None) or _listed(text, asked)


def _date(text: str) -> Value | None:
    """Read a date whose month is written out or whose year comes first; 1/2/2024 is one of two."""
    match = _DATE.fullmatch(text.rstrip(" ."))
    if match is None:
        return None
    fields = {name.rstrip("0123456789"): given for name, given in match.groupdict().items() if given}
    month = fields["month"].lower()
    number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
    if not (1 <= number <= 12 and 1 <= int(fields.get("day", 1)) <= 31):
        return None
    day = f" {int(fields['day']):02}" if "day" in fields else ""
    return Value("text", text=f"{fields['year']} {number:02}{day}")


def _sum(text: str) -> Value | None:
    """Read a time in several units, from the longest: ``1 h 30 min``."""
    parts = _NEXT_AMOUNT.split(text)
    amounts = [parse_amount(part, _NOTHING_ASKED) for part in parts] if 1 < len(parts) < 5 else []
    measured = [amount and amount.unit and measure(amount, _NOTHING_ASKED) for amount in amounts]
    times = [part[0] for part in measured if part and part[1] == "time"]
    if not times or len(times) < len(amounts) or len({amount.unit for amount in amounts if amount}) < len(amounts):
        return None
    return Value("number", (sum(times),), "time") if times == sorted(times, reverse=True) else None


def _glossed(text: str, asked: Asked) -> Value | None:
    """Read a value that is written twice: ``two (2)``."""
    match = _GLOSSED.fullmatch(text)
    if match is None:
        return None
    first, other = (_read(part, asked) for part in match.groups())
    return first if first is not None and other is not None and same(first, other) else None


def _number(text: str, asked: Asked) -> Value | None:
    amount = parse_amount(text, asked)
    measured = None if amount is None else measure(amount, asked)
    return None if measured is None else Value("number", (measured[0],), measured[1])


def _list(bracketed: re.Match[str], asked: Asked) -> Value | None:
    """Read what is in brackets, with a unit after them: two numbers are a pair, one item is itself."""
    inner, after = bracketed[2], bracketed[4].strip()
    inner = _SEPARATED.sub("", inner) if ", " in inner else inner
    parts = inner.split(";") if ";" in inner else split_list(f"[{inner}]") or ()
    parts = [part.strip() for part in parts if part.strip()]
    units = [f"{part} {after}" if after else part for part in parts]
    items = [_read(part, asked) or Value("text", text=text_key(part)) for part in units]
    items = list(dict.fromkeys(items)) if bracketed[1] == "{" else items
    if len(items) == 1:
        return items[0]
    if after and any(item.kind == "text" for item in items):
        return None
    return _gather(items) if items else None


def _listed(text: str, asked: Asked) -> Value | None:
    """Read names with commas or "and" between them: a list without brackets. A number among them makes it a text."""
    parts = (
        _NEXT_ITEM.split(text.strip(" .,;:!?\"'")) if _NEXT_ITEM.search(text) and not set(text) & set("()[]{}") else []
    )
    if not 1 < len(parts) <= _MOST_ITEMS or any(not part or len(part.split()) > _MOST_WORDS for part in parts):
        return None
    if any(_read(part, asked) is not None for part in parts):
        return None
    return _gather([Value("text", text=text_key(part)) for part in parts])


def _gather(items: list[Value]) -> Value:
    """Make a list without order of its items, or a pair of two numbers."""
    if len(items) == 2 and all(item.kind == "number" for item in items) and items[0].dimension == items[1].dimension:
        return Value("pair", tuple(sorted(items[0].numbers + items[1].numbers)), items[0].dimension)
    return Value("list", items=tuple(sorted(items, key=_order)))


def _order(item: Value) -> tuple[str, str, tuple[float, ...], str]:
    return item.kind, item.dimension, item.numbers, item.text


def _pair(text: str, asked: Asked) -> Value | None:
    text = without_hedges(text)
    opening = _BETWEEN.match(text)
    text = text[opening.end() :] if opening else text
    cuts = list(_TO.finditer(text))
    if opening and opening[0].lower().startswith("between"):
        cuts += _AND.finditer(text)
    for cut in cuts[:_MOST_CUTS]:
        ends = parse_amount(text[: cut.start()], asked), parse_amount(text[cut.end() :], asked)
        if ends[0] is not None and ends[1] is not None:
            # An end without a unit takes the other's, and the low one the high one's "million" too.
            low, high = _borrow(ends[0], ends[1]), _borrow(ends[1], ends[0])
            if not ends[0].scale and not ends[0].unit:
                low = low._replace(scale=high.scale)
            first, last = measure(low, asked), measure(high, asked)
            # 5--3 is no range, -5--3 is one
            is_range = high.number >= 0 or low.number <= high.number or " " in cut[0]
            if is_range and first is not None and last is not None and first[1] == last[1]:
                return Value("pair", tuple(sorted((first[0], last[0]))), first[1])
    return None


def _borrow(amount: Amount, other: Amount) -> Amount:
    has_unit = amount.unit or amount.currency
    return amount if has_unit else amount._replace(unit=other.unit, currency=other.currency)


def same(first: Value, other: Value) -> bool:
    """Tell whether two values are one answer."""
    if first.kind != other.kind or first.dimension != other.dimension or first.text != other.text:
        return False
    if first.kind == "list":
        return len(first.items) == len(other.items) and all(map(same, first.items, other.items))
    pairs = zip(first.numbers, other.numbers, strict=True)
    return all(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) * _SLACK for a, b in pairs)


def write_number(value: str, unit: str | None = None) -> str:
    """Write a value that is one number without a unit as a plain one: ``about 5.6 billion`` as ``5600000000``.

    Any other value is returned as it is.
    """
    if parse_number(value) is not None or len(value) > LONGEST_NUMBER or is_abstention(value):
        return value
    asked = read_asked(plain_characters("" if unit is None or is_blank(unit) else unit))
    amount = parse_amount(plain_characters(value), asked)
    if amount is None or amount.unit or amount.currency or (measured := measure(amount, asked)) is None:
        return value
    number = measured[0] / asked.unit.factor
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.12g}"


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
