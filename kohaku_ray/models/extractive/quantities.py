"""Numbers in prose: their values, ranges, magnitudes and units."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from kohaku_ray.models.extractive.terms import STOP_WORDS, before, content_stems, words_of
from kohaku_ray.values.units import PLAIN, PREFIXED, PlainRow, PrefixedRow, Unit, Units, spell_out

MAGNITUDES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_SUFFIX_MAGNITUDES = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "bn": 1e9, "T": 1e12}
_NUMBER_WORDS = {
        "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
        "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "twenty": 20,
        "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip

_ALSO_PREFIXED: tuple[PrefixedRow, ...] = (
    ("mass", 1e3, (), "", ("ton",)),
    ("frequency", 1.0, ("Hz",), "", ("hertz",)),
)
_ALSO_PLAIN: tuple[PlainRow, ...] = (
    ("volume", 3.785411784e-3, ("gallon",)),
    ("volume", 1.0, ("m3", "cubic meter", "cubic metre")),
    ("time", 604800.0, ("week",)),
    ("years", 1.0, ("year",)),
    ("length", 1e3, ("km",)),
    ("length", 1609.344, ("mile",)),
    ("share", 1.0, ("percentage point",)),
    ("multiple", 1.0, ("time", "factor")),
    ("money", 1.0, ("us dollar",)),
    ("EUR", 1.0, ("eur", "€", "euro")),
    ("GBP", 1.0, ("gbp", "£")),
    ("temperature", 1.0, ("°c",)),
)
# No units in prose, or version 1 of the backend would reply otherwise; "5 d" is seldom five days.
_VOTES_ONLY = re.compile(r"d|pct|us\$| fold|.*W[· ]h|.*watthours?|[kmgt](?:ib|[ei]bibytes?)|.+metric tons?")
# SI units in what version 1 takes a bare number for, whatever the unit asked for: Wh, litres.
_BARE: Mapping[str | None, float] = {"energy": 3600.0, "volume": 1e-3}
_GAS = re.compile(
    r"(?:\s*of)?\s*(?:CO2|carbon dioxide)[- ]?(?:equivalents?|eq|e)?(?![a-z])|(?<=[a-z])CO2\w*", re.IGNORECASE
)

_DIGITS = r"(?>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,40}(?!\d))(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2}(?!\w))?)"
_NUMBER = re.compile(
    rf"(?<![\w.,:/-])(?P<currency>(?:US)?[$€£]\s?)?(?P<sign>(?<!\S)[-−])?(?P<digits>{_DIGITS})(?!(?:st|nd|rd|th)\b)"
)
_SECOND = re.compile(rf"\s*(?P<joint>-|–|—|to|and)\s*[$€£]?(?P<digits>{_DIGITS})")
_MAGNITUDE = re.compile(r"[\s-]?(thousand|million|billion|trillion)\b|(bn|[kKMBT])(?![\w/])")
_COMPOUND = re.compile(r"-(?!fold\b)[A-Za-z]")
_LABEL = re.compile(
    r"(?:\b(?:table|tables|fig|figs|figure|figures|section|sec|chapter|equation|eq|appendix|page|pp?|step|ref|no)\.?\s*|\[)$",
    re.IGNORECASE,
)
_NAME_BEFORE = re.compile(r"(?<!\w)[A-Z][\w.-]*\s$")
_SIZE_SUFFIX = re.compile(r"[BM](?!\w)")
_FOLLOWING = re.compile(r"(?:(?![-–—][$€£]?\d)[^,;:()\[\]\n“”\"]){0,48}")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number or a range as it stands in a text.

    Attributes:
        start: First character of the number.
        end: One past its last digit.
        low: The number, or the lower end; digits as written, without separators.
        high: The upper end; None for a single number.
        magnitude: Factor of a word such as million.
        unit: Its unit, or the nouns that follow.
        is_change: Written ``from A to B``: two values as much as a range.
    """

    start: int
    end: int
    low: str
    high: str | None
    magnitude: float
    unit: Unit
    is_change: bool = False

    @property
    def looks_like_year(self) -> bool:
        """Whether it is a bare four-digit number from 1900 to 2099."""
        return bool(re.fullmatch(r"(?:19|20)\d\d", self.low)) and self.magnitude == 1 and self.unit.dimension is None


def parse_unit(text: str) -> Unit | None:
    """Read a unit such as ``MWh``, ``million litres``, ``gCO2e/kWh`` or ``kilograms per year``; None if it is none.

    The gas after a mass is dropped, and so is a denominator that is a thing, as in ``Wh per request``.
    """
    text = _GAS.sub("", " ".join(text.split())).strip(" .")
    first, _, rest = text.partition(" ")
    magnitude = MAGNITUDES.get(first.lower(), 1.0)
    numerator, _, denominator = re.sub(r"\s*/\s*|\s+per\s+(?!cent)", "/", rest if magnitude != 1.0 else text).partition(
        "/"
    )
    above, below = _lookup(numerator), _lookup(denominator)
    if above is None:
        return None
    scaled = replace(above, factor=above.factor * magnitude)
    return scaled if below is None else scaled.per(below)


def asked_unit(text: str) -> Unit:
    """Read the unit of a question: a unit, or the things to be counted, with a magnitude word before them."""
    unit = parse_unit(text)
    if unit is not None:
        return unit
    first, _, rest = text.strip().partition(" ")
    magnitude = MAGNITUDES.get(first.lower(), 1.0)
    return Unit(None, magnitude, content_stems(rest if magnitude != 1.0 else text))


@lru_cache(maxsize=16384)
def find_quantities(text: str) -> tuple[Quantity, ...]:
    """Find the numbers and ranges of a text.

    Not among them: digits that belong to a name (``A100-80GB``, ``GPT-3``, ``Tern 70B``), labels (``Table 3``,
    ``[12]``), ordinals and ``8-bit``. Two to ninety in words are among them.
    """
    found: list[Quantity] = []
    position = 0
    while (number := _NUMBER.search(text, position)) is not None:
        position = number.end()
        ahead = before(text, number.start())
        if _LABEL.search(ahead) or (_NAME_BEFORE.search(ahead) and _SIZE_SUFFIX.match(text, number.end())):
            continue
        quantity = _read_quantity(text, number)
        if quantity is not None:
            found.append(quantity)
            position = max(position, quantity.end)
    return (*found, *_spelled(text))


def in_unit(quantity: Quantity, unit: Unit) -> tuple[str, ...]:
    """Write the quantity's number, or both ends, in another unit of the same dimension; exact where nothing changes."""
    of_text = quantity.unit.factor if unit.dimension is not None and quantity.unit.dimension == unit.dimension else 1.0
    ratio = quantity.magnitude * of_text / unit.factor
    ends = (quantity.low,) if quantity.high is None else (quantity.low, quantity.high)
    return tuple(end if ratio == 1.0 else _plain(float(end) * ratio) for end in ends)


def _plain(value: float) -> str:
    text = f"{value:.10g}"
    return str(int(value)) if "e+" in text and abs(value) < 1e15 and value.is_integer() else text


def _read_quantity(text: str, number: re.Match[str]) -> Quantity | None:
    low = (("-" if number["sign"] else "") + number["digits"]).replace(",", "")
    first = _with_unit(text, number.start("digits"), number.end(), low, number["currency"])
    second = _SECOND.match(text, number.end()) or _SECOND.match(text, _unit_end(text, number.end()))
    if second is None or not _joins(text, number, second):
        return None if _COMPOUND.match(text, number.end()) else first
    high = second["digits"].replace(",", "")
    both = _with_unit(text, number.start("digits"), second.end(), low, number["currency"])
    scale = first.magnitude / both.magnitude if first.magnitude != 1.0 else 1.0
    if first.unit.dimension is not None and first.unit.dimension == both.unit.dimension:
        scale *= first.unit.factor / both.unit.factor
    if scale != 1.0:  # "300 W to 1 kW": the ends in the unit of the second
        both = replace(both, low=_plain(float(low) * scale))
    is_change = bool(re.search(r"\bfrom\s+(?:about\s+)?[$€£]?$", before(text, number.start("digits"))))
    return replace(both, high=high, is_change=is_change)


def _joins(text: str, number: re.Match[str], second: re.Match[str]) -> bool:
    """Return whether two numbers are a range, not a list or difference: ``and`` needs ``between``, low comes first."""
    if _COMPOUND.match(text, second.end()) or re.match(r"\w*[-–]\d", text[second.end() :]):
        return False
    if second["joint"] == "and":
        return before(text, number.start()).rstrip().lower().endswith(("between", "both"))
    if second["joint"] == "to":
        return True
    return float(number["digits"].replace(",", "")) < float(second["digits"].replace(",", ""))


def _unit_end(text: str, start: int) -> int:
    """Find where a magnitude and a unit that follow a number end."""
    magnitude = _MAGNITUDE.match(text, start)
    start = magnitude.end() if magnitude else start
    following = _FOLLOWING.match(text, start)
    token = re.search(r"\S+", following[0] if following else "")
    return start + token.end() if token and parse_unit(token[0]) is not None else start


def _with_unit(text: str, start: int, end: int, low: str, currency: str | None) -> Quantity:
    scale = _MAGNITUDE.match(text, end)
    magnitude = 1.0
    after = end
    if scale is not None:
        magnitude = MAGNITUDES[scale[1]] if scale[1] else _SUFFIX_MAGNITUDES[scale[2]]
        after = scale.end()
    unit = _unit_after(text, after)
    if currency:
        unit = parse_unit(currency.strip().removeprefix("US")) or unit
    if unit.dimension is None and re.search(r"factor of\s*(?:about\s*)?$", before(text, start)):
        unit = Unit("multiple")
    return Quantity(start, end, low, None, magnitude, unit)


def _unit_after(text: str, position: int) -> Unit:
    following = _FOLLOWING.match(text, position)
    after = following[0] if following else ""
    tokens = [token.rstrip(".") for token in after.replace("-fold", "fold").lstrip("- ").split()[:4]]
    for n in range(len(tokens), 0, -1):
        unit = parse_unit(" ".join(tokens[:n]))
        if unit is not None:
            return unit
    return Unit(None, 1.0, tuple(word.stem for word in words_of(after)[:4] if word.text.lower() not in STOP_WORDS))


def _spelled(text: str) -> Iterator[Quantity]:
    for word in words_of(text):
        number = _NUMBER_WORDS.get(word.text.lower())
        if number is not None:
            yield _with_unit(text, word.start, word.start + len(word.text), str(number), None)


@lru_cache(maxsize=8192)
def _lookup(text: str) -> Unit | None:
    """Find one unit by its symbol (case counts) or its name (case does not, nor the plural)."""
    text = text.strip(" .")
    if text in _SYMBOLS:
        return _SYMBOLS[text]
    lower = text.lower().replace("-", " ")
    return _NAMES.get(lower) or _NAMES.get(lower.removesuffix("s")) or _SYMBOLS.get(text.removesuffix("s"))


def _tables() -> tuple[Units, Units]:
    symbols, names = spell_out((*PREFIXED, *_ALSO_PREFIXED), (*PLAIN, *_ALSO_PLAIN), prefixes="nµμmckMGTPE")
    any_case = {name.lower().replace("-", " "): unit for name, unit in names.items()}
    return _of_prose(symbols), _of_prose(any_case)


def _of_prose(units: Units) -> Units:
    return {
        spelling: replace(unit, factor=unit.factor / _BARE.get(unit.dimension, 1.0))
        for spelling, unit in units.items()
        if not _VOTES_ONLY.fullmatch(spelling)
    }


_SYMBOLS, _NAMES = _tables()
