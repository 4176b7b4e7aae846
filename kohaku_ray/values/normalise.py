"""Bring answer values to one normal form, which decides what votes, metrics and typed replies take for equal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from kohaku_ray.values.amounts import (
    Amount,
    Asked,
    measure,
    parse_amount,
    read_asked,
    without_hedges,
    words_of,
)
from kohaku_ray.values.read import BOOLEANS, is_abstention, is_blank, parse_number, parse_pair, split_list
from kohaku_ray.values.spelling import LONGEST_VALUE, plain_characters, text_key

TOLERANCE = 1e-3
"""Two numbers are one answer when they differ by at most this share of the larger one."""

_BRACKETED = re.compile(r"([\[({]\s*(.*?)\s*[\])}])\s*([^\[\](){}]*)", re.DOTALL)
_SEPARATED = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_OPENING = re.compile(r"(?:from|between)\s+", re.IGNORECASE)
_TO = re.compile(
    r"\s+(?:to|through|-|~)\s+|(?<=[\w%.)])\s*[-~]\s*(?=[$€£¥]?[+-]?\.?[0-9])",
    re.IGNORECASE,
)
_YEARS = re.compile(r"((?:1[5-9]|20)[0-9]{2})\s?[-/]\s?((?:1[5-9]|20)?[0-9]{2})")
NEXT_ITEM = re.compile(r",\s+(?:and\s+)?|\s+and\s+|;\s+|\s*&\s*", re.IGNORECASE)
_MOST_WORDS, _MOST_ITEMS = 4, 12  # of a name in a list, and of items in a list without brackets
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
    r"""Bring an answer value to normal form; never raises.

    A number may be hedged or bounded (``~4.3``, ``over 40``), grouped, a power of ten, a fraction, a small word
    (``five``), with a magnitude (``2.5 million``, ``5 bn``), TeX (``\frac{1}{2}``), and in a unit of the table
    (``units``) or a currency; true and yes are 1, false and no 0. ``[80,90]``, ``80-90``, ``80 to 90`` and ``80 and
    90`` are a pair, ``2023-24`` is the years 2023 and 2024, ``(a, b)`` and names with commas, "and" or "&" between them
    are a list without order. A bare number is in the question's unit, and a value in another unit of the same dimension
    is converted, so that 2.5 kWh answers a question in Wh as 2500 does; the unit also decides whether ``5B`` is bytes
    or billions, whether a half is 50 percent, and whether ``12,5`` has a decimal comma. A number with an unknown unit,
    and anything else (``A100-80GB``, ``1990s``), is text.
    """
    if len(value) <= LONGEST_VALUE:
        return _normalise(value, unit)
    return BLANK_VALUE if is_abstention(value) else Value("text", text=text_key(value))


@lru_cache(maxsize=65536)
def _normalise(value: str, unit: str | None) -> Value:
    if is_abstention(value):
        return BLANK_VALUE
    value, asked = value.strip(), _asked(unit)
    text = plain_characters(value)
    if text != value and is_abstention(text):
        return BLANK_VALUE
    return _read(text, asked) or Value("text", text=text_key(value))


def _read(text: str, asked: Asked) -> Value | None:
    """Read a number, a pair or a list; None: it is text."""
    bare = text.strip(" .,;:!?\"'").lower()
    if bare in BOOLEANS:
        return Value("number", (float(BOOLEANS[bare]),))
    bracketed = _BRACKETED.fullmatch(text) if text[:1] in ("[", "(", "{") else None
    if bracketed is not None:
        return _list(bracketed, asked)
    return _years(text, asked) or _number(text, asked) or _pair(text, asked) or _listed(text, asked)


def _years(text: str, asked: Asked) -> Value | None:
    """Read a span of years: ``2023-24`` and ``2023-2024`` are one."""
    years = _YEARS.fullmatch(text.rstrip(" .")) if asked.unit.dimension is None else None
    if years is None:
        return None
    first, last = years[1], years[1][: -len(years[2])] + years[2]
    return Value("pair", (float(first), float(last))) if first < last else None


def _number(text: str, asked: Asked) -> Value | None:
    amount = parse_amount(text, asked)
    measured = None if amount is None else measure(amount, asked)
    return None if measured is None else Value("number", (measured[0],), measured[1])


def _list(bracketed: re.Match[str], asked: Asked) -> Value | None:
    """Read what is in brackets, with a unit after them: two numbers are a pair, one item is itself."""
    cell, inner, after = bracketed.groups()
    cell = _SEPARATED.sub("", cell) if ", " in inner else cell
    parts = [f"{part.strip()} {after}".strip() for part in split_list(cell) or () if part.strip()]
    items = [_read(part, asked) or Value("text", text=text_key(part)) for part in parts]
    if len(items) == 1:
        return items[0]
    return _gather(items) if items and not (after and any(item.kind == "text" for item in items)) else None


def _listed(text: str, asked: Asked) -> Value | None:
    """Read names or numbers with commas, "and" or "&" between them; a text where both are among them."""
    bare = text.strip(" .,;:!?\"'")
    parts = NEXT_ITEM.split(bare) if NEXT_ITEM.search(bare) and not set(bare) & set("()[]{}") else []
    if not 1 < len(parts) <= _MOST_ITEMS or any(not part or len(part.split()) > _MOST_WORDS for part in parts):
        return None
    numbers = [_number(part, asked) for part in parts]
    if all(numbers):
        return _gather([number for number in numbers if number])
    return None if any(numbers) else _gather([Value("text", text=text_key(part)) for part in parts])


def _gather(items: list[Value]) -> Value:
    """Make a list without order of its items, or a pair of two numbers."""
    if len(items) == 2 and all(item.kind == "number" for item in items) and items[0].dimension == items[1].dimension:
        return Value("pair", tuple(sorted(items[0].numbers + items[1].numbers)), items[0].dimension)
    return Value("list", items=tuple(sorted(items, key=_order)))


def _order(item: Value) -> tuple[str, str, tuple[float, ...], str]:
    return item.kind, item.dimension, item.numbers, item.text


def _pair(text: str, asked: Asked) -> Value | None:
    text = without_hedges(text)
    text = text[opening.end() :] if (opening := _OPENING.match(text)) else text
    for cut in list(_TO.finditer(text))[:_MOST_CUTS]:
        ends = parse_amount(text[: cut.start()], asked), parse_amount(text[cut.end() :], asked)
        if ends[0] is not None and ends[1] is not None:
            # An end without a unit takes the other's, and the low one the high one's "million" too.
            low, high = _borrow(ends[0], ends[1]), _borrow(ends[1], ends[0])
            if not ends[0].scale and not (ends[0].unit and ends[1].unit):
                low = low._replace(scale=high.scale)
            first_end, last_end = measure(low, asked), measure(high, asked)
            # 5--3 is no range, -5--3 is one
            is_range = high.number >= 0 or low.number <= high.number or " " in cut[0]
            if is_range and first_end is not None and last_end is not None and first_end[1] == last_end[1]:
                return Value("pair", tuple(sorted((first_end[0], last_end[0]))), first_end[1])
    listed = _listed(text, asked) if opening else None  # between 80 and 90
    return listed if listed is not None and listed.kind == "pair" else None


def _borrow(amount: Amount, other: Amount) -> Amount:
    return amount if amount.unit else amount._replace(unit=other.unit)


def same(first: Value, other: Value) -> bool:
    """Tell whether two values are one answer."""
    if first.kind != other.kind or first.dimension != other.dimension or first.text != other.text:
        return False
    if first.kind == "list":
        return len(first.items) == len(other.items) and all(map(same, first.items, other.items))
    tolerance = 0.0 if _is_years(first) and _is_years(other) else TOLERANCE
    pairs = zip(first.numbers, other.numbers, strict=True)
    return all(abs(a - b) <= tolerance * max(abs(a), abs(b)) for a, b in pairs)


def _is_years(value: Value) -> bool:
    """Whether it is a span of years: of those, 2021-22 and 2023-24, a tolerance would make one answer."""
    is_bare = value.kind == "pair" and not value.dimension
    return is_bare and all(1500 <= number < 2100 and number.is_integer() for number in value.numbers)


def write_number(value: str, unit: str | None = None) -> str:
    """Write a value that is one number without a unit as a plain one: ``about 5.6 billion`` as ``5600000000``.

    Any other value is returned as it is.
    """
    amount = None if len(value) > LONGEST_VALUE else parse_amount(plain_characters(value), _asked(unit))
    return value if amount is None or amount.unit else read_quantity(value, None, unit).text


class Quantity(NamedTuple):
    """A value in the unit asked for.

    Attributes:
        text: In the form that metrics read, where it is read without doubt: a plain number, ``[low,high]``,
            ``(a, b, c)``, 1 or 0 for true or false; else as it is written.
        value: In normal form.
        unit: The unit that the text is in: the one asked for, or its own where none is or it measures something else.
        differs: Whether it measures something else than is asked for.
    """

    text: str
    value: Value
    unit: str
    differs: bool


@lru_cache(maxsize=65536)
def read_quantity(value: str, own: str | None, asked: str | None) -> Quantity:
    """Read a value in its own unit, and convert it to the unit asked for.

    Args:
        value: May name a unit, which then counts.
        own: The unit given beside it; None, blank or not known: it is in the one asked for.
        asked: The unit asked for; None or blank: its own.
    """
    given, wanted = _asked(own), _asked(asked)
    if given.text and not given.rest and wanted.text:  # in millions, of what is asked for
        own = f"{given.text} {wanted.rest}"
        given = _asked(own)
    fits = bool(given.text) and (
        not wanted.text
        or (given.dimension == wanted.dimension if given.dimension else words_of(given.rest) == words_of(wanted.rest))
    )
    is_other = measures_other(own, asked)
    read, text = normalise(value, own if fits or is_other else asked), value.strip()
    target = wanted if wanted.text else given
    items = read.items or (read,)
    if {item.kind for item in items} <= {"number", "pair"} and {item.dimension for item in items} == {target.dimension}:
        is_scaled = fits and given.unit.factor != target.unit.factor
        low, high = parse_pair(text) or (1.0, 0.0)
        is_list = text[0] in "({" or (text[0] != "[" and (bool(read.items) or _is_enumeration(text)))
        if is_list and read.kind != "number":
            numbers = tuple(number for item in items for number in item.numbers)
            text = f"({write_value(replace(read, numbers=numbers), target.text).strip('[]').replace(',', ', ')})"
        elif not read.items and (is_scaled or (parse_number(text) is None and low > high)):
            text = write_value(read, target.text)
    dimensions = {read.dimension, *(item.dimension for item in read.items)} - {"", wanted.dimension}
    differs = read.kind != "blank" and (is_other or bool(wanted.dimension and dimensions))
    return Quantity(text, read, (asked if fits and wanted.text else own) or "", differs)


def _is_enumeration(text: str) -> bool:
    """Whether a text lists its two numbers (``44; 90``, ``28 and 35``), which may be no range."""
    return NEXT_ITEM.search(text) is not None and _OPENING.match(text) is None


def measures_other(own: str | None, asked: str | None) -> bool:
    """Tell whether two known units measure different things, as two currencies do."""
    dimensions = {_asked(own).dimension, _asked(asked).dimension}
    return len(dimensions) == 2 and "" not in dimensions


def unit_of_question(asked: str | None, own: Iterable[str | None]) -> str:
    """The unit of a question's values: the one asked for, or the known one that most have, ties to the first."""
    if _asked(asked).text:
        return asked or ""
    units = Counter(unit for unit in own if unit and _asked(unit).dimension)
    return units.most_common(1)[0][0] if units else ""


def write_value(value: Value, unit: str | None = None) -> str:
    """Write a number, or a pair as ``[low,high]``, in the unit asked for, plainly: the reverse of ``normalise``."""
    factor = _asked(unit).unit.factor
    numbers = [write_plain_number(number / factor) for number in value.numbers]
    return numbers[0] if value.kind == "number" else f"[{','.join(numbers)}]"


def write_plain_number(number: float) -> str:
    """Write a number with a decimal point and no separators; at most 12 digits count."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.12g}"


def _asked(unit: str | None) -> Asked:
    return read_asked("" if unit is None or is_blank(unit) else plain_characters(unit))


def group_values(values: Sequence[str], unit: str | None = None, own: Sequence[str | None] | None = None) -> list[int]:
    """Group members by answer, given in member order their values, the question's unit and their own.

    Each joins the earliest group whose first member gave the same answer, or opens a new one.

    Returns:
        One group index per member, counted from 0 in order of first appearance; -1 where the member is blank.
    """
    own = [None] * len(values) if own is None else own
    unit = unit_of_question(unit, [given for value, given in zip(values, own, strict=True) if not is_abstention(value)])
    firsts: list[Value] = []
    groups = []
    for value, given in zip(values, own, strict=True):
        key = read_quantity(value, given, unit).value
        if key.kind == "blank":
            groups.append(-1)
            continue
        group = next((index for index, first in enumerate(firsts) if same(first, key)), len(firsts))
        if group == len(firsts):
            firsts.append(key)
        groups.append(group)
    return groups
