"""Read one amount in a text: a number in any of its spellings, and the unit that it or the question gives.

All texts here are written in plain characters (``plain_characters``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from kohaku_ray.values.read import NUMBER, fold, parse_number
from kohaku_ray.values.units import Unit, find_unit

# What the competition's scorer drops (``wattbot.kaggle_normal``), and "as much as" of the gold answers of 2026.
_HEDGE = re.compile(
    r"(?:[~<>]=?\s*|(?:(?:more|less|greater|fewer)\s+than|approximately|approx\.|about|around|over|under|nearly|almost|"
    r"roughly|up\s+to|at\s+(?:least|most)|as\s+much\s+as)\s+)+",
    re.IGNORECASE,
)
# Of the gold answers of 2026 (q122) and of reports (deepconf#15).
_SMALL_NUMBERS = "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_SMALL_NUMBER = re.compile(rf"^(?:{_SMALL_NUMBERS})(?![^\W_])", re.IGNORECASE)
_GROUPED = "|".join(rf"[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+(?:\.[0-9]+)?" for mark in ", ")
# One comma behind groups is a decimal one (CodexBar#135, ledger#2545); of 12,5 and 1.300 that is not certain.
_CONTINENTAL = "|".join(rf"[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+,[0-9]+" for mark in (r"\.", " "))
_AMOUNT = re.compile(
    r"(?P<sign>[+-]?)\s*(?P<currency>[a-z]{0,2}[$€£¥₹]|[a-z]{3}(?=[\s0-9]))?\s*(?P<second_sign>[+-]?)(?:"
    r"(?P<over>[0-9]{1,9})\s?/\s?(?P<under>[1-9][0-9]{0,8})(?![0-9/])|"
    rf"(?P<number>{_CONTINENTAL}|{_GROUPED}|{NUMBER}|[0-9]+,[0-9]{{1,2}})(?![0-9])"
    r"(?:\s*[x*·]\s*10\s?\^\s?(?P<exponent>[+-]?[0-9]{1,3}))?)(?![0-9])"
    r"(?:[\s-]*(?P<magnitude>thousand|million|billion|trillion)s?(?![a-z]))?"
    r"(?:[\s-]*(?P<unit>(?:[^\W0-9_]|[%‰$€£¥¢°]|/\s*[a-z]).*))?",
    re.IGNORECASE | re.DOTALL,
)
MAGNITUDES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_OF_UNIT = rf"({'|'.join(MAGNITUDES)})s?"  # million litres, in millions of USD, USD millions; not USD per million
_ASKED = re.compile(rf"(?:(?:in )?{_OF_UNIT}(?: of)?(?: |$))?(.*?)(?:(?<!per) {_OF_UNIT})?", re.IGNORECASE | re.DOTALL)
_SUFFIX = re.compile(r"(k|mm|mn|bn|tn|[mbt])(?![a-z])\s*", re.IGNORECASE)
_SUFFIXES = {"k": 1e3, "m": 1e6, "mm": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12, "tn": 1e12}
_DECADE = re.compile(r"(?:1[5-9]|20)[0-9]0s")  # quantulum3#45: no seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """The unit that a question asks for.

    Attributes:
        text: As written; ``rest`` is what follows its magnitude (``gallons`` of ``million gallons``).
        unit: What it measures, its magnitude included.
        magnitude: 1e6 in ``million gallons``.
    """

    text: str
    rest: str
    unit: Unit
    magnitude: float

    @property
    def dimension(self) -> str:
        """As of a ``Value``: empty where it is not known, and of a multiple."""
        return "" if self.unit.dimension in (None, "multiple") else self.unit.dimension or ""

    @property
    def base(self) -> Unit:
        """What it measures, without its magnitude."""
        return replace(self.unit, factor=self.unit.factor / self.magnitude)


@lru_cache(maxsize=4096)
def read_asked(text: str) -> Asked:
    """Read the unit that a question asks for, perhaps with a magnitude (``million litres``, ``USD millions``)."""
    text = " ".join(text.replace("_", " ").split())
    match = _ASKED.fullmatch(text)
    before, rest, behind = match.groups() if match else ("", text, "")
    word = before or behind
    magnitude = MAGNITUDES[word.lower()] if word else 1.0
    unit = find_unit(rest) or Unit(None)
    return Asked(text, rest, replace(unit, factor=unit.factor * magnitude), magnitude)


class Amount(NamedTuple):
    """An amount before its unit is looked up; ``scale`` is its magnitude's (million), 0 where it has none."""

    number: float
    scale: float
    unit: str
    is_fraction: bool
    has_comma: bool


def without_hedges(text: str) -> str:
    """Drop hedges and bounds before a value, and quotes and end punctuation round it."""
    text = text.lstrip(" \"'").rstrip(" .,;:!?\"'")
    hedge = _HEDGE.match(text)
    return text[hedge.end() :] if hedge is not None and hedge.end() < len(text) else text


def parse_amount(text: str, asked: Asked) -> Amount | None:
    """Read an amount; None where the text is anything else."""
    text = without_hedges(text)
    if (number := parse_number(text)) is not None:
        return Amount(number, 0.0, "", False, False)
    if _DECADE.fullmatch(text) and asked.unit.dimension != "time":
        return None
    text, asked_unit = _without_asked(text, asked)
    match = _AMOUNT.fullmatch(
        _SMALL_NUMBER.sub(lambda word: str(_SMALL_NUMBERS.split("|").index(word[0].lower())), text)
    )
    if match is None:
        return None
    number, currency = _number_of(match), match["currency"]
    scale = MAGNITUDES[match["magnitude"].lower()] if match["magnitude"] else 0.0
    unit = f"{match['unit'] or ''} {asked_unit}".strip()
    if currency is not None:
        money = find_unit(currency)
        if money is None or not (money.dimension or "").startswith("money"):
            return None
        if (suffix := _SUFFIX.match(unit)) is not None:  # $2.5M
            scale, unit = _SUFFIXES[suffix[1].lower()], unit[suffix.end() :]
        unit = f"{currency} {unit}".strip()
    if not math.isfinite(number):
        return None
    has_comma = "," in (match["number"] or "") and re.fullmatch(f"{_GROUPED}|{_CONTINENTAL}", match["number"]) is None
    return Amount(number, scale, unit, match["over"] is not None, has_comma)


def _without_asked(text: str, asked: Asked) -> tuple[str, str]:
    """Cut the unit asked for off a text, after or before the number: the rest, and the unit."""
    for unit in dict.fromkeys((asked.text, asked.rest)):
        known, whole = (unit, text) if asked.unit.dimension is not None else (unit.lower(), text.lower())
        if unit and whole.endswith(known) and not text[: -len(unit)][-1:].isalpha():
            return text[: -len(unit)].rstrip(" -"), unit
        if unit and whole.startswith(f"{known} "):  # Scope 2
            return text[len(unit) :].strip(), unit
    return text, ""


def _number_of(match: re.Match[str]) -> float:
    """Compute an amount's number, without its magnitude; infinite where it is too large."""
    sign = -1.0 if "-" in match["sign"] + match["second_sign"] else 1.0
    try:
        if match["over"] is not None:
            return sign * int(match["over"]) / int(match["under"])
        text = match["number"]
        if re.fullmatch(_GROUPED, text):
            text = re.sub("[, ]", "", text)
        elif "," in text:
            text = re.sub("[. ]", "", text).replace(",", ".")
        return sign * float(text) * 10.0 ** int(match["exponent"] or 0)
    except OverflowError:
        return math.inf


def measure(amount: Amount, asked: Asked) -> tuple[float, str] | None:
    """Convert an amount to SI base units.

    Returns:
        The number and its dimension, empty where it has none, as a multiple (``4.3x``) has; None where its unit is not
        known, or a comma in it may part two numbers (``13,81`` without a unit).
    """
    if amount.unit:
        unit = _find_own(amount.unit, asked)
    elif amount.is_fraction and asked.unit.dimension == "share":  # a half is 50 percent
        unit = Unit("share", 100.0)
    else:
        unit = asked.base if amount.scale else asked.unit
    if unit is None or (amount.has_comma and unit.dimension is None):
        return None
    number = amount.number * (amount.scale or 1.0) * unit.factor
    dimension = "" if unit.dimension in (None, "multiple") else unit.dimension
    return (number, dimension) if math.isfinite(number) else None


def _find_own(unit: str, asked: Asked) -> Unit | None:
    """Find an amount's own unit, with the magnitude of a letter before it (5 B parameters).

    Of a single letter, the unit asked for decides whether it is one (5 m) or a magnitude (5 m parameters).
    """
    if asked.magnitude != 1.0 and fold(unit) == fold(asked.text):
        return asked.unit
    known, suffix = find_unit(unit), _SUFFIX.match(unit)
    counts = bool(asked.text) and asked.unit.dimension in (None, "money")
    is_letter = suffix is not None and suffix.end() == len(unit)
    if known is not None and not (is_letter and (counts or (unit in "bB" and asked.unit.dimension != "data"))):
        return known
    if words_of(unit) == words_of(asked.rest):
        return asked.base
    is_kelvin = is_letter and asked.dimension.startswith("temperature")  # js-abbreviation-number#16: K is no thousand
    if suffix is None or is_kelvin:
        return None
    after = unit[suffix.end() :]
    base = _find_own(after, asked) if after else asked.base
    return None if base is None else replace(base, factor=base.factor * _SUFFIXES[suffix[1].lower()])


def words_of(unit: str) -> list[str]:
    """Fold a unit's words, in the singular."""
    return [word.removesuffix("s") for word in re.split(r"[\s_-]+", fold(unit))]
