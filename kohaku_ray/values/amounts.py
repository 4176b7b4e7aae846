"""Read one amount in a text: a hedge, a number in any of its spellings, and the unit that it or the question gives.

All texts here are written in plain characters (``plain_characters``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from kohaku_ray.values.read import NUMBER, fold
from kohaku_ray.values.units import Unit, find_unit

POINT = re.compile(NUMBER)
_HEDGE = re.compile(
    r"(?:[~<>]=?|=|\+/-|±)\s*|"
    r"(?:(?:more|less|greater|fewer|higher|lower|larger|smaller)\s+than(?:\s+or\s+equal\s+to)?|"
    r"(?:no|not)\s+(?:more|less|fewer)\s+than|more\s+or\s+less|(?:a\s+)?(?:max|min)imum\s+of|an?\s+(?:little|bit)|"
    r"as\s+(?:much|many|few|little|high|low|large|small|long|short)\s+as|at\s+(?:least|most)|up\s+to|close\s+to|"
    r"(?:(?:o|i)n\s+|of\s+)?the\s+order\s+of|in\s+excess\s+of|upwards\s+of|an?\s+(?:estimated|average\s+of|total\s+of)|"
    r"estimated(?:\s+at)?|approximately|approx\.?|about|around|roughly|circa|ca?\.|ca|nearly|almost|over|under|above|"
    r"below|some|just|only|well|slightly|exactly|precisely|maximum|minimum|max\.?|min\.?|environ|etwa|rund|"
    r"exceed(?:s|ing)|beyond|(?:just\s+)?shy\s+of|north\s+of|very|somewhere|at(?=\s+(?:about|around|roughly|approx))|"
    r"probably|likely|reportedly|on\s+average|averaging|in\s+total)\s+|"
    r"(?:in\s+(?:the\s+)?(?:year\s+)?|(?:the\s+)?year\s+)(?=(?:1[5-9]|20)[0-9]{2}$)",
    re.IGNORECASE,
)
_HEDGE_AFTER = re.compile(
    r"(?:\s*\+|-?ish|\s+(?:or\s+(?:more|less|so|fewer|higher|lower|above|below)|and\s+(?:above|over|more)|at\s+(?:the\s+)?(?:least|most)|"
    r"approximately|approx\.?|roughly|estimated|est\.|(?:in\s+)?total|plus|max\.?)|\s*\((?:approximately|approx\.?|estimated|est\.?|about|ca\.)\))$",
    re.IGNORECASE,
)
_SPREAD = re.compile(r"\s*(?:±|\+/-|\bplus\s+or\s+minus\b)\s*[0-9][0-9.,]*\s*%?|\s*\((?:±|\+/-)[^()]*\)", re.IGNORECASE)
_END = " .,;:!?\"'"
_MINUS = re.compile(r"^(?:minus|negative)\s+(?=[0-9])", re.IGNORECASE)

_GROUPS = "|".join(
    (
        r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?",
        r"[1-9][0-9]{0,2}(?:'[0-9]{3})+(?:[.,][0-9]+)?",
        r"[1-9][0-9]{0,2}(?: [0-9]{3})+(?:[.,][0-9]+)?",
        r"[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?",  # lakh and crore
        r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+,[0-9]+",
        r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}",
    )
)
_CURRENCIES = {
    **dict.fromkeys(("$", "us$", "usd", "usd$"), "$"),
    **dict.fromkeys(("€", "eur"), "€"),
    **dict.fromkeys(("£", "gbp"), "£"),
    **dict.fromkeys(("¥", "jpy"), "¥"),
    **dict.fromkeys(("₹", "inr"), "₹"),
    **dict.fromkeys(("cny", "rmb"), "CNY"),
    "chf": "CHF",
    "a$": "A$",
    "c$": "C$",
}
_WORDS = {
    **dict.fromkeys(("hundred",), 1e2),
    **dict.fromkeys(("thousand", "tausend"), 1e3),
    **dict.fromkeys(("万", "萬"), 1e4),
    "lakh": 1e5,
    **dict.fromkeys(("million", "millionen", "mio.", "mio", "mln"), 1e6),
    "crore": 1e7,
    **dict.fromkeys(("億", "亿"), 1e8),
    **dict.fromkeys(("billion", "milliard", "milliarden", "mrd.", "mrd"), 1e9),
    **dict.fromkeys(("trillion", "兆"), 1e12),
}
_WORD = "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True))
_AMOUNT = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<currency>(?:usd?|[ac])?\$|[€£¥₹]|(?:usd|eur|gbp|jpy|cny|rmb|inr|chf)(?=[\s0-9]))\s*)?"
    r"(?P<second_sign>[+-]?)\s*(?:"
    r"(?:(?P<whole>[0-9]{1,3})\s+(?:and\s+)?)?(?P<over>[0-9]{1,3})\s?/\s?(?P<under>1000|[1-9][0-9]{0,2})(?![0-9/])|"
    r"(?:x\s*)?(?P<base>[0-9]{1,4})\s*(?:\^|\*\*)\s*\(?(?P<power>[+-]?[0-9]{1,3})\)?(?![0-9])|"
    rf"(?:x\s*)?(?P<number>{_GROUPS}|{NUMBER.removeprefix('[+-]?')}|[0-9]+,[0-9]+)(?![0-9])"
    r"(?:\s*(?:[x*·]|times)\s*10\s*(?:\^|\*\*)\s*\(?(?P<exponent>[+-]?[0-9]{1,3})\)?(?![0-9]))?"
    r")"
    rf"(?:\s*\+)?(?:[\s-]*(?P<word>(?:hundred\s+(?=[tmb]))?(?:{_WORD}))s?(?![a-z]))?"
    r"(?:[\s-]*(?P<unit>[^\W0-9_]|[%‰$€£¥¢°]|/\s*[a-z]).*)?",
    re.IGNORECASE | re.DOTALL,
)
_SUFFIX = re.compile(r"(k|mn|bn|tn|[mbt])(?![a-z])\.?\s*", re.IGNORECASE)
_SUFFIXES = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12, "tn": 1e12}
_UNITS_TOO = frozenset("mt")  # a metre and a tonne, unless a count or money is asked for
_FOREIGN = {
    **dict.fromkeys(("prozent", "pour cent", "por ciento", "per cento"), "%"),
    **dict.fromkeys(("tonnen", "toneladas"), "t"),
    **dict.fromkeys(("stunden", "heures", "horas"), "h"),
    **dict.fromkeys(("tage", "tagen", "jours", "dias", "días"), "days"),
    **dict.fromkeys(("millionen", "millones", "mio.", "mio"), "million"),
    **dict.fromkeys(("milliarden", "milliards", "mrd.", "mrd"), "billion"),
}
_FOREIGN_WORD = re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, _FOREIGN))})(?![^\W_])", re.IGNORECASE)

_SMALL = {
    word: number
    for number, word in enumerate(
        (
            *(
                "zero",
                "one",
                "two",
                "three",
                "four",
                "five",
                "six",
                "seven",
                "eight",
                "nine",
                "ten",
                "eleven",
                "twelve",
            ),
            *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
        )
    )
} | {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_PARTS = {
    **dict.fromkeys(("half", "halves"), 2),
    **dict.fromkeys(("third", "thirds"), 3),
    **dict.fromkeys(("quarter", "quarters"), 4),
    **dict.fromkeys(("fourth", "fourths"), 4),
    **dict.fromkeys(("fifth", "fifths"), 5),
    **dict.fromkeys(("sixth", "sixths"), 6),
    **dict.fromkeys(("seventh", "sevenths"), 7),
    **dict.fromkeys(("eighth", "eighths"), 8),
    **dict.fromkeys(("ninth", "ninths"), 9),
    **dict.fromkeys(("tenth", "tenths"), 10),
    **dict.fromkeys(("hundredth", "hundredths"), 100),
    **dict.fromkeys(("thousandth", "thousandths"), 1000),
}
_FOLDS = {"once": 1, "twice": 2, "thrice": 3, "double": 2, "triple": 3, "quadruple": 4}
_ODDS = re.compile(
    r"(?P<over>[a-z]+|[0-9.,]+)\s+(?:in|out\s+of)\s+(?:every\s+)?(?P<under>[a-z]+|[0-9.,]+)", re.IGNORECASE
)


_BARE = Unit(None)
_SHORT = {"params": "parameter", "param": "parameter"}
_BETWEEN_WORDS = re.compile(r"[\s_-]+")

MAY_COUNT = re.compile(rf"[0-9]|\b(?:{'|'.join((*_SMALL, *_PARTS, *_FOLDS, *_WORDS, 'dozen'))})|fold\b", re.IGNORECASE)
"""Found in every amount: a text without it is none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The unit that a question asks for.

    Attributes:
        text: As written; ``rest`` is what follows its magnitude (``gallons`` of ``million gallons``).
        unit: What it measures, its magnitude included.
        magnitude: 1e6 in ``million gallons``.
    """

    text: str = ""
    rest: str = ""
    unit: Unit = _BARE
    magnitude: float = 1.0


@lru_cache(maxsize=4096)
def read_asked(text: str) -> Asked:
    """Read the unit that a question asks for, perhaps with a magnitude before it (``million litres``)."""
    text = " ".join(text.replace("_", " ").split())
    first, _, rest = text.partition(" ")
    magnitude = _WORDS.get(first.lower(), 1.0)
    rest = text if magnitude == 1.0 else rest.removeprefix("of ")
    unit = find_unit(rest) or _ASKED_ONLY.get(rest.lower()) or _BARE
    return Asked(text, rest, Unit(unit.dimension, unit.factor * magnitude), magnitude)


_ASKED_ONLY = {
    **dict.fromkeys(("fraction", "share", "proportion"), Unit("share", 100.0)),
    **dict.fromkeys(("ratio", "factor", "multiple"), Unit("multiple")),
}


class Amount(NamedTuple):
    """An amount before its unit is looked up; ``scale`` is its word's (million), 0 where it has none."""

    number: float
    scale: float
    unit: str
    currency: str
    is_share: bool
    is_comma: bool


def without_hedges(text: str) -> str:
    """Drop hedges, bounds and end punctuation around a value."""
    spread = _SPREAD.search(text) if "±" in text or "+/-" in text or "minus" in text else None
    text = text[: spread.start()] + text[spread.end() :] if spread is not None and spread.start() else text
    text = text.lstrip(" \"'").rstrip(_END)
    while (hedge := _HEDGE.match(text)) is not None and hedge.end() < len(text):
        text = text[hedge.end() :]
    return _HEDGE_AFTER.sub("", text)


def parse_amount(text: str, asked: Asked) -> Amount | None:
    """Read an amount; None where the text is anything else."""
    text = without_hedges(text)
    if POINT.fullmatch(text):
        return Amount(float(text), 0.0, "", "", False, False)
    text, unit = _without_asked(_MINUS.sub("-", text), asked)
    text, n_foreign = _FOREIGN_WORD.subn(lambda word: _FOREIGN[word[0].lower()], text)
    share = _read_odds(text)
    if share is not None:
        return Amount(100.0 * share, 0.0, "%", "", False, False)
    spelled = _without_words(text, asked)
    text, is_share = spelled if spelled is not None else (text, False)
    match = _AMOUNT.fullmatch(text)
    if match is None or _is_a_name(match, asked):
        return None
    number = _number_of(match, bool(n_foreign))
    if not math.isfinite(number):
        return None
    scale = math.prod(_WORDS[word] for word in match["word"].lower().split()) if match["word"] else 0.0
    after = text[match.start("unit") :].strip() if match["unit"] else ""
    plain = match["number"] or ""
    is_comma = "," in plain and "." not in plain and re.fullmatch(_GROUPS, plain) is None
    return Amount(
        -number if "-" in match["sign"] + match["second_sign"] else number,
        scale,
        f"{after} {unit}".strip(),
        _CURRENCIES[match["currency"].lower()] if match["currency"] else "",
        is_share or match["over"] is not None,
        is_comma and not n_foreign and match["exponent"] is None,
    )


def _is_a_name(match: re.Match[str], asked: Asked) -> bool:
    """Tell ``24/7``, ``50/50``, ``9/11`` and, where no multiple is asked for, ``x86`` from numbers.

    Where no multiple is asked for, a fraction is below one. Where no quantity is, a bare one has a denominator that is
    in use for parts: up to ten, a multiple of ten or a power of two; with another it is a date, a score or a name.
    """
    if match["over"] is not None and match["whole"] is None and asked.unit.dimension != "multiple":
        over, under = int(match["over"]), int(match["under"])
        is_measure = bool(asked.unit.dimension or match["word"] or match["unit"])
        return over >= under or not (is_measure or under <= 10 or under % 10 == 0 or under.bit_count() == 1)
    return match[0][:1] in ("x", "X") and match["base"] is None and asked.unit.dimension != "multiple"


def _without_asked(text: str, asked: Asked) -> tuple[str, str]:
    """Cut the unit asked for off a text, before or after the number: the rest, and the unit where it stood there."""
    for unit in dict.fromkeys((asked.text, asked.rest)):
        same_case = asked.unit.dimension is not None
        known, whole = (unit, text) if same_case else (unit.lower(), text.lower())
        n_chars = len(known)
        if unit and whole.endswith(known) and not whole[:-n_chars][-1:].isalpha():
            return text[:-n_chars].rstrip(" -"), unit
        if n_chars > 1 and whole.startswith(known) and whole[n_chars : n_chars + 1] in (" ", ":", "="):
            return re.sub(r"^\s*(?:of|is|was)?\s*[:=]?\s*", "", text[n_chars:]), unit
    return text, ""


def _read_odds(text: str) -> float | None:
    """Read ``1 in 5`` or ``three out of four`` as a share of 1."""
    odds = _ODDS.fullmatch(text)
    if odds is None:
        return None
    if re.fullmatch("(?:19|20)[0-9]{2}", odds["under"]):  # 7 in 2024
        return None
    over, under = (_SMALL.get(odds[name].lower(), odds[name].replace(",", "")) for name in ("over", "under"))
    try:
        return float(over) / float(under)
    except (ValueError, ZeroDivisionError):
        return None


def _without_words(text: str, asked: Asked) -> tuple[str, bool] | None:
    """Write number words at the beginning as digits: the text, and whether they name parts (``two thirds``)."""
    words = text.lower().replace("-", " ").split()
    is_mixed = len(words) > 2 and words[0].isdigit() and words[1] in _WORDS  # 2 million 500 thousand
    if not words or not words[0].isascii() or not (words[0].isalpha() or is_mixed):
        return None
    if len(words) == 1 and asked.unit.dimension in (None, "multiple"):
        fold_of = words[0].removesuffix("fold")
        if fold_of != words[0] and fold_of in _SMALL:
            return f"{_SMALL[fold_of]}x", False
        if asked.unit.dimension and words[0].removesuffix("d") in ("double", "triple", "quadruple"):
            return f"{_FOLDS[words[0].removesuffix('d')]}", False
        if asked.unit.dimension and words[0] in _FOLDS:
            return f"{_FOLDS[words[0]]}", False
    if words[:2] == ["factor", "of"] or words[:3] == ["a", "factor", "of"]:
        return re.sub(r"^(?:a\s+)?factor\s+of\s+", "", text, flags=re.IGNORECASE) + "x", False
    number, n_read, is_share = _count_words(words)
    if not n_read:
        return None
    first, word = n_read, words[n_read] if n_read < len(words) else ""
    least = scale = 0.0 if is_share else _WORDS.get(word, 0.0)
    while least:  # two thousand five hundred: 2.5 thousand
        start = n_read + 1 + (words[n_read + 1 : n_read + 2] == ["and"])
        below, n_below, is_part = _count_words(words[start:])
        end = start + n_below
        factor = _WORDS.get(words[end], 0.0) if end < len(words) else 0.0
        below *= factor or 1.0
        if not n_below or is_part or below >= least:
            break
        number, n_read, least = number + below / scale, end, factor
    word = word if n_read > first else ""
    rest = re.split(r"[\s-]+", text, maxsplit=n_read + bool(word and least))
    after = rest[-1] if len(rest) > n_read + bool(word and least) else ""
    return f"{number!r} {word} {after}".strip(), is_share


def _count_words(words: list[str]) -> tuple[float, int, bool]:
    """Read number words below a thousand: the number, how many words it has (0: none), whether they name parts."""
    number, n_read, last = 0.0, 0, math.inf
    if not words or words[0].isdigit():
        return (float(words[0]), 1, False) if words else (0.0, 0, False)
    if words[0] == "half":
        return 0.5, 2 if words[1:2] and words[1] in ("a", "an", "of") else 1, True
    if words[0] in ("a", "an") and len(words) > 1:
        follows = words[1]
        if follows in _PARTS:
            return 1 / _PARTS[follows], 2, True
        if follows == "dozen":
            return 12.0, 2, False
        return (1.0, 1, False) if follows in _WORDS else (0.0, 0, False)
    for word in words:
        if word in _SMALL and (small := _SMALL[word]) < last and (last == math.inf or small):
            number, last = number + small, 10 if small >= 20 else 0
        elif word == "hundred" and 0 < number < 20:
            number, last = number * 100, 100
        elif word == "and" and last == 100 and words[n_read + 1 : n_read + 2] and words[n_read + 1] in _SMALL:
            pass
        else:
            break
        n_read += 1
    after = words[n_read : n_read + 3]
    if n_read and after and after[0] in _PARTS and number < 20:
        return number / _PARTS[after[0]], n_read + 1, True
    if n_read and after[:1] == ["and"] and after[2:] and after[2] in _PARTS:  # two and a half
        over = 1 if after[1] == "a" else _SMALL.get(after[1], 0)
        if 0 < over < _PARTS[after[2]]:
            return number + over / _PARTS[after[2]], n_read + 3, False
    if n_read and after[:1] == ["dozen"]:
        return number * 12, n_read + 1, False
    return number, n_read, False


def _number_of(match: re.Match[str], is_foreign: bool) -> float:
    """Compute an amount's number, without its word; infinite where it is too large."""
    try:
        if match["over"] is not None:
            return float(match["whole"] or 0) + int(match["over"]) / int(match["under"])
        if match["base"] is not None:
            return float(match["base"]) ** int(match["power"])
        text = match["number"].replace("'", "").replace(" ", "")
        points, commas = text.count("."), text.count(",")
        if is_foreign or (points and commas and text.rindex(",") > text.rindex(".")) or points > 1:
            groups = re.fullmatch(r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]+)?", text)
            text = (text.replace(".", "") if groups else text).replace(",", ".")
        elif commas and re.fullmatch(_GROUPS, match["number"]) is None:
            text = text.replace(",", ".")
        elif commas:  # beside spaces or apostrophes in groups, it is a decimal mark
            text = text.replace(",", "" if text == match["number"] else ".")
        return float(text) * 10.0 ** int(match["exponent"] or 0)
    except (OverflowError, ZeroDivisionError, ValueError):
        return math.inf


def measure(amount: Amount, asked: Asked) -> tuple[float, str] | None:
    """Convert an amount to SI base units.

    Returns:
        The number and its dimension, empty where it has none; None where its unit is not known.
    """
    scale, unit = amount.scale or 1.0, amount.unit
    if not unit and not amount.currency:
        base = asked.unit
        if amount.is_share and base.dimension == "share":
            base = Unit("share", 100.0)
        elif amount.scale:
            base = replace(base, factor=base.factor / asked.magnitude)
        is_known = not amount.is_comma or base.dimension is not None
    else:
        looked_up = _find_currency(amount.currency, unit) if amount.currency else _find_own(unit, asked)
        if looked_up is None:
            return None
        base, suffix = looked_up
        scale, is_known = scale * suffix, True
    number = amount.number * scale * base.factor
    return (number, base.dimension or "") if is_known and math.isfinite(number) else None


def _find_currency(currency: str, rest: str) -> tuple[Unit, float] | None:
    suffix = _SUFFIX.match(rest)
    scale = _SUFFIXES[suffix[1].lower()] if suffix else 1.0
    rest = rest[suffix.end() :] if suffix else rest
    money = find_unit(currency)
    if money is None or not rest or find_unit(rest) == money:
        return None if money is None else (money, scale)
    unit = find_unit(f"{currency} {rest}" if not rest.startswith("/") else currency + rest)
    named = find_unit(rest)  # $5 USD per hour
    if unit is None and named is not None and (named.dimension or "").startswith(f"{money.dimension}/"):
        unit = named
    return None if unit is None else (unit, scale)


def _find_own(unit: str, asked: Asked) -> tuple[Unit, float] | None:
    """Find an amount's own unit, and the magnitude of a letter before it (5 B parameters); the unit decides."""
    if asked.magnitude != 1.0 and fold(unit) == fold(asked.text):
        return asked.unit, 1.0
    if _names_asked(unit, asked.rest):
        return replace(asked.unit, factor=asked.unit.factor / asked.magnitude), 1.0
    known, suffix = find_unit(unit.replace("^", "").replace("_", " ")), _SUFFIX.match(unit)
    if suffix is None or (known is not None and (known.dimension == asked.unit.dimension or suffix.end() < len(unit))):
        return None if known is None else (known, 1.0)
    rest = unit[suffix.end() :]
    counts = bool(asked.text) and asked.unit.dimension in (None, "money")
    if known is not None and not rest and unit in _UNITS_TOO and not counts:
        return known, 1.0
    base = Asked(asked.text, asked.rest, replace(asked.unit, factor=asked.unit.factor / asked.magnitude))
    suffixed = (base.unit, 1.0) if not rest else _find_own(rest, base) if not _SUFFIX.match(rest) else None
    if suffixed is None:
        return None if known is None else (known, 1.0)
    return suffixed[0], suffixed[1] * _SUFFIXES[suffix[1].lower()]


@lru_cache(maxsize=4096)
def _names_asked(unit: str, asked: str) -> bool:
    """Tell whether a unit is the one asked for, in one of its spellings.

    Its last word decides what is counted, and adjectives may be missing or added (GPUs, H100 GPUs). Where that word is
    itself a measure, none may be missing: GPU hours are no hours.
    """
    words, wanted = (
        [_SHORT.get(word, word.removesuffix("s")) for word in _BETWEEN_WORDS.split(fold(text.replace("/", " per ")))]
        for text in (unit, asked)
    )
    if words == wanted:
        return find_unit(unit) in (None, find_unit(asked))  # mW is not MW
    if find_unit(asked) is not None or words[-1:] != wanted[-1:] or ("per" in words) != ("per" in wanted):
        return False
    is_measure = wanted[-1] in ("month", "year") or find_unit(wanted[-1]) is not None
    return (set(wanted) <= set(words) and words[0] not in _SUFFIXES) or (not is_measure and set(words) <= set(wanted))
