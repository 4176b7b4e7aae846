"""The units a value may be written in: a small, explicit table. What is not in it is text.

A CO2 or CO2e mass is a mass (kgCO2e, tCO2e, "lbs CO2"): within one question both spell the same quantity. Symbols are
read by case first, since mW is not MW; a spelling all in small or all in capital letters is understood where only one
unit could be meant (kwh, gb). "ton" and "MT" are left out (several masses bear those names), and so are bits, months
and years.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Unit:
    """What a unit measures, and how much of the SI base unit it is.

    Attributes:
        dimension: Such as ``mass`` or ``energy``; ``volume/energy`` for a rate.
        factor: SI base units (percent, multiples, bytes, FLOP and US dollars count as base units) in one of it.
    """

    dimension: str
    factor: float


_SYMBOL_PREFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "c": 1e-2,
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Z": 1e21,
}
_NAME_PREFIXES = {
    "nano": 1e-9,
    "micro": 1e-6,
    "milli": 1e-3,
    "centi": 1e-2,
    "": 1.0,
    "kilo": 1e3,
    "mega": 1e6,
    "giga": 1e9,
    "tera": 1e12,
    "peta": 1e15,
    "exa": 1e18,
    "zetta": 1e21,
}

# dimension, factor of the bare unit, symbols, symbol prefixes in use, names
_PREFIXED = (
    ("power", 1.0, ("W",), ("m", "", "k", "K", "M", "G", "T"), ("watt",)),
    (
        "energy",
        3600.0,
        ("Wh", "W·h", "W h"),
        ("m", "", "k", "K", "M", "G", "T"),
        ("watt-hour", "watt hour", "watthour"),
    ),
    ("energy", 1.0, ("J",), ("u", "m", "", "k", "K", "M", "G", "T", "P", "E"), ("joule",)),
    ("mass", 1e-3, ("g",), ("n", "u", "m", "", "k", "K"), ("gram", "gramme")),
    ("mass", 1e3, ("t",), ("", "k", "K", "M", "G"), ("tonne", "metric ton")),
    ("volume", 1e-3, ("L", "l"), ("u", "m", "c", "", "k", "K", "M", "G"), ("liter", "litre")),
    ("length", 1.0, ("m",), ("n", "u", "m", "c", "", "k"), ("meter", "metre")),
    ("time", 1.0, ("s",), ("n", "u", "m", ""), ("second",)),
    ("data", 1.0, ("B",), ("", "k", "K", "M", "G", "T", "P", "E"), ("byte",)),
    ("operations", 1.0, ("FLOP", "FLOPs"), ("", "M", "G", "T", "P", "E", "Z"), ("floating-point operation",)),
    ("operations/time", 1.0, ("FLOPS", "FLOP/s", "FLOPs/s"), ("", "M", "G", "T", "P", "E", "Z"), ()),
)
_PLAIN = (
    ("mass", 0.45359237, ("lb", "lbs", "pound", "pounds")),
    ("time", 60.0, ("min", "mins", "minute", "minutes")),
    ("time", 3600.0, ("h", "hr", "hrs", "hour", "hours")),
    ("time", 86400.0, ("d", "day", "days")),
    ("data", 2.0**10, ("KiB", "kibibyte", "kibibytes")),
    ("data", 2.0**20, ("MiB", "mebibyte", "mebibytes")),
    ("data", 2.0**30, ("GiB", "gibibyte", "gibibytes")),
    ("data", 2.0**40, ("TiB", "tebibyte", "tebibytes")),
    ("share", 1.0, ("%", "percent", "per cent", "pct", "percentage")),
    ("multiple", 1.0, ("x", "X", "×", "times", "fold", "-fold", "multiplier")),
    ("money", 1.0, ("$", "USD", "US$", "US dollars", "dollar", "dollars")),
)
_CO2 = re.compile(r"(?<=[a-zA-Z])\s*[- ]?(?:of\s+)?co2(?:[- ]?eq?\.?|[- ]?equivalents?)?$", re.IGNORECASE)


def _table() -> dict[str, Unit]:
    """Spell every unit out with its prefixes."""
    units: dict[str, Unit] = {}
    for dimension, factor, symbols, prefixes, names in _PREFIXED:
        scales = [_SYMBOL_PREFIXES[prefix] for prefix in prefixes]
        for prefix, scale in zip(prefixes, scales, strict=True):
            units.update({prefix + symbol: Unit(dimension, factor * scale) for symbol in symbols})
        for prefix, scale in _NAME_PREFIXES.items():
            if scale in scales:
                spellings = [prefix + name + ending for name in names for ending in ("", "s")]
                units.update(dict.fromkeys(spellings, Unit(dimension, factor * scale)))
    for dimension, factor, spellings_of_one in _PLAIN:
        units.update(dict.fromkeys(spellings_of_one, Unit(dimension, factor)))
    return units


def _any_case(units: dict[str, Unit]) -> dict[str, Unit]:
    """Map lower-cased spellings to their unit where there is but one; a single letter and "mt" say too little."""
    meanings: dict[str, set[Unit]] = {}
    for spelling, unit in units.items():
        meanings.setdefault(spelling.lower(), set()).add(unit)
    clear = {name: found for name, found in meanings.items() if len(found) == 1 and len(name) > 1 and name != "mt"}
    return {name: next(iter(found)) for name, found in clear.items()}


_UNITS = _table()
_ANY_CASE = _any_case(_UNITS)


@lru_cache(maxsize=4096)
def find_unit(text: str) -> Unit | None:
    """Look a unit up (``kWh``, ``megawatt-hours``, ``tCO2e``, ``liters per kWh``); None where it is unknown."""
    text = " ".join(text.split()).replace("µ", "u").replace("μ", "u").strip(".")
    simple = _find_simple(text)
    if simple is not None:
        return simple
    over, per, under = text.replace(" per ", "/").partition("/")
    above, below = _find_simple(over.strip()), _find_simple(under.strip())
    if not per or above is None or below is None:
        return None
    return Unit(f"{above.dimension}/{below.dimension}", above.factor / below.factor)


def _find_simple(text: str) -> Unit | None:
    found = _spelled(text)
    if found is not None:
        return found
    bare = _CO2.sub("", text)
    mass = _spelled(bare) if bare != text else None
    return mass if mass is not None and mass.dimension == "mass" else None


def _spelled(text: str) -> Unit | None:
    """Look a spelling up as it stands, then in any case: a mixed one (Gb, Mwh) only where it is a word (Watts)."""
    plain = text.islower() or text.isupper() or len(text) > 5 or (text.istitle() and len(text) > 3)
    return _UNITS.get(text) or (_ANY_CASE.get(text.lower()) if plain else None)
