"""The units a value may have: a small, explicit table. A value with any other unit is text.

A CO2 or CO2e mass is a mass (kgCO2e, tCO2e, "lbs CO2"): within one question both spell the same quantity. Symbols are
case-sensitive first, since mW is not MW; a spelling all in small or all in capital letters is accepted where it fits
only one unit (kwh). "gb" is gigabytes, Gb and Gbit are gigabits. "ton" and "MT" are left out (several masses have those
names), and so are months and years.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Unit:
    """What a unit measures, and its size in SI base units.

    Attributes:
        dimension: ``mass``, ``energy`` and so on; ``volume/energy`` for a rate; None for a bare number or count.
        factor: SI base units (percent, multiples, bytes, FLOP and US dollars count as base units) in one of it.
    """

    dimension: str | None
    factor: float = 1.0

    def per(self, below: Unit) -> Unit:
        """Divide by another unit: a rate, such as ``volume/energy``."""
        return Unit(f"{self.dimension}/{below.dimension}", self.factor / below.factor)


Units = dict[str, Unit]
"""Spelling → unit."""

_PREFIXES = {
    "n": ("nano", 1e-9),
    **dict.fromkeys("uµμ", ("micro", 1e-6)),
    "m": ("milli", 1e-3),
    "c": ("centi", 1e-2),
    "": ("", 1.0),
    **dict.fromkeys("kK", ("kilo", 1e3)),
    "M": ("mega", 1e6),
    "G": ("giga", 1e9),
    "T": ("tera", 1e12),
    "P": ("peta", 1e15),
    "E": ("exa", 1e18),
    "Z": ("zetta", 1e21),
}
# Dimension, factor of the unit without prefix, its symbols, the prefixes in use, its names in the singular.
PREFIXED: tuple[tuple[str, float, tuple[str, ...], str, tuple[str, ...]], ...] = (
    ("power", 1.0, ("W",), "mkKMGT", ("watt",)),
    ("energy", 3600.0, ("Wh", "W·h", "W h"), "mkKMGT", ("watt-hour", "watt hour", "watthour")),
    ("energy", 1.0, ("J",), "umkKMGTPE", ("joule",)),
    ("mass", 1e-3, ("g",), "numkK", ("gram", "gramme")),
    ("mass", 1e3, ("t",), "kKMG", ("tonne", "metric ton", "metric tonne")),
    ("volume", 1e-3, ("L", "l"), "umckKMG", ("liter", "litre")),
    ("length", 1.0, ("m",), "numck", ("meter", "metre")),
    ("time", 1.0, ("s",), "num", ("second",)),
    ("data", 1.0, ("B",), "kKMGTPE", ("byte",)),
    ("data", 0.125, ("bit",), "kKMGTPE", ("bit",)),
    ("data/time", 0.125, ("bps", "bit/s"), "kKMGTPE", ()),
    ("operations", 1.0, ("FLOP", "FLOPs"), "MGTPEZ", ("floating-point operation",)),
    ("operations/time", 1.0, ("FLOPS", "FLOP/s", "FLOPs/s"), "MGTPEZ", ()),
)
# Dimension, factor, spellings.
PLAIN: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("mass", 0.45359237, ("lb", "lbs", "pound", "pounds")),
    ("time", 60.0, ("min", "mins", "minute", "minutes")),
    ("time", 3600.0, ("h", "hr", "hrs", "hour", "hours")),
    ("time", 86400.0, ("d", "day", "days")),
    ("time", 604800.0, ("week", "weeks")),
    ("data", 2.0**10, ("KiB", "kibibyte", "kibibytes")),
    ("data", 2.0**20, ("MiB", "mebibyte", "mebibytes")),
    ("data", 2.0**30, ("GiB", "gibibyte", "gibibytes")),
    ("data", 2.0**40, ("TiB", "tebibyte", "tebibytes")),
    ("share", 1.0, ("%", "percent", "per cent", "pct", "percentage", "percentage point", "percentage points", "pp")),
    ("share", 0.01, ("basis point", "basis points")),
    ("share", 100.0, ("share", "fraction", "proportion")),
    ("multiple", 1.0, ("x", "X", "×", "times", "fold", "-fold", "multiplier")),
    ("share", 0.1, ("‰", "per mille")),
    ("money", 1.0, ("$", "USD", "US$", "US dollars", "U.S. dollars", "dollar", "dollars")),
    ("money", 0.01, ("cent", "cents", "¢")),
    ("money EUR", 1.0, ("€", "EUR", "euro", "euros")),
    ("money GBP", 1.0, ("£", "GBP", "pounds sterling")),
    ("money JPY", 1.0, ("¥", "JPY", "yen")),
    ("money CNY", 1.0, ("CNY", "RMB", "yuan")),
    ("money INR", 1.0, ("₹", "INR", "rupee", "rupees")),
    ("money CHF", 1.0, ("CHF", "Swiss francs")),
    ("money AUD", 1.0, ("A$", "AUD")),
    ("money CAD", 1.0, ("C$", "CAD")),
    ("volume", 3.785411784e-3, ("gallon", "gallons", "gal")),
    ("volume", 1.0, ("m3", "cubic meter", "cubic meters", "cubic metre", "cubic metres")),
    ("length", 1609.344, ("mi", "mile", "miles")),
    ("length", 0.3048, ("ft", "foot", "feet")),
    ("area", 0.09290304, ("sq ft", "ft2", "square foot", "square feet")),
    ("area", 4046.8564224, ("acre", "acres")),
    ("temperature", 1.0, ("°C", "Celsius", "degree Celsius", "degrees Celsius", "degrees C")),
    ("temperature F", 1.0, ("°F", "Fahrenheit", "degree Fahrenheit", "degrees Fahrenheit", "degrees F")),
    ("area", 1.0, ("m2", "sq m", "sqm", "square meter", "square meters", "square metre", "square metres")),
    ("area", 1e6, ("km2", "square kilometer", "square kilometers", "square kilometre", "square kilometres")),
)
_CO2 = re.compile(
    r"(?<=[a-zA-Z])\s*[- ]?(?:of\s+)?(?:co ?2|carbon\s+dioxide)(?:[- ]?eq?\.?|[- ]?equivalents?)?$", re.IGNORECASE
)


def _spell_out() -> tuple[Units, Units]:
    """List the spellings of every unit: symbols with prefixes; names in singular and plural, and plain ones."""
    symbols: Units = {}
    names: Units = {}
    for dimension, factor, bare, prefixes, singular in PREFIXED:
        for prefix in ("", *prefixes):
            name, scale = _PREFIXES[prefix]
            unit = Unit(dimension, factor * scale)
            symbols.update(dict.fromkeys((prefix + symbol for symbol in bare), unit))
            names.update(dict.fromkeys((name + base + ending for base in singular for ending in ("", "s")), unit))
    for dimension, factor, spellings in PLAIN:
        names.update(dict.fromkeys(spellings, Unit(dimension, factor)))
    return symbols, names


def _any_case(units: Units) -> Units:
    """Map lower-cased spellings to their unit where there is only one; a single letter and "mt" are ambiguous."""
    meanings: dict[str, set[Unit]] = {}
    for spelling, unit in units.items():
        meanings.setdefault(spelling.lower(), set()).add(unit)
    clear = {
        name: units_of_name
        for name, units_of_name in meanings.items()
        if len(units_of_name) == 1 and len(name) > 1 and name != "mt"
    }
    return {name: next(iter(units_of_name)) for name, units_of_name in clear.items()}


_SYMBOLS, _NAMES = _spell_out()
_UNITS = _SYMBOLS | _NAMES | {f"{prefix}b": _SYMBOLS[f"{prefix}bit"] for prefix in "KMGTPE"}
_ANY_CASE = _any_case(_SYMBOLS | _NAMES)


@lru_cache(maxsize=4096)
def find_unit(text: str) -> Unit | None:
    """Look up ``kWh``, ``megawatts``, ``tCO2e``, ``liters per kWh``; None where it is unknown.

    A word behind "per" that is no unit goes without saying: ``MWh/yr`` and ``MWh per site`` are MWh.
    """
    text = " ".join(text.split()).replace("µ", "u").replace("μ", "u").replace("^", "").strip(".")
    simple = _find_simple(text)
    if simple is not None:
        return simple
    over, per, under = text.replace(" per ", "/").partition("/")
    above, below = _find_simple(over.strip()), _find_simple(under.strip())
    if not per or above is None:
        return None
    if below is not None:
        return above.per(below)
    return above if under.strip().isalpha() else None


def _find_simple(text: str) -> Unit | None:
    unit = _spelled(text)
    if unit is not None:
        return unit
    bare = _CO2.sub("", text)
    mass = _spelled(bare) if bare != text else None
    return mass if mass is not None and mass.dimension == "mass" else None


def _spelled(text: str) -> Unit | None:
    """Look a spelling up as written, then in any case: a mixed one (Gb, Mwh) only where it is a word (Watts)."""
    plain = text.islower() or text.isupper() or len(text) > 5 or (text.istitle() and len(text) > 3)
    return _UNITS.get(text) or (_ANY_CASE.get(text.lower()) if plain else None)
