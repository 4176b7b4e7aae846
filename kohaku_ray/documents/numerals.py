"""Numbers as written in prose: 12, XII, twelve, twelfth, one hundred and seventeen."""

from __future__ import annotations

import re
from functools import cache

_UNITS = re.findall(
    r"\w+",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_ROMAN = re.compile(r"(?=[IVXLCDM])M{0,3}(CM|CD|D?C{0,4})(XC|XL|L?X{0,4})(IX|IV|V?I{0,4})", re.IGNORECASE)
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_GAPS = re.compile(r"[\s-]+")

_BELOW = rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_UNITS[:9])}))?|{'|'.join(reversed(_UNITS))})\b"
CARDINAL = rf"(?:(?:a|one|two|three) hundred\b(?:(?: and)? {_BELOW})?|{_BELOW})".replace(" ", r"\s")
"""Pattern of a cardinal number in words, 1 to 399, to be matched without regard to case."""


def number_of(text: str) -> int | None:
    """Read a number.

    Args:
        text: Digits, a roman numeral, or a cardinal or ordinal below 400 in words, in any case.

    Returns:
        Its value, or None when the text is no such number.
    """
    text = text.strip()
    if text.isdecimal():
        return int(text)
    return roman(text) or _words().get(_GAPS.sub(" ", text.lower().replace("hundred and", "hundred")))


def roman(text: str) -> int | None:
    """Read a roman numeral below 4000, in capitals or small letters; None when it is none (``IC``, ``IVI``)."""
    if _ROMAN.fullmatch(text) is None:
        return None
    values = [_ROMAN_VALUES[letter] for letter in text.upper()]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


@cache
def _words() -> dict[str, int]:
    """Cardinals and ordinals from 1 to 399; parts are joined by one space."""
    below: dict[str, int] = {}
    for value, word in enumerate(_UNITS, 1):
        below[word] = below[_ordinal(word)] = value
    for value, word in zip(range(20, 100, 10), _TENS, strict=True):
        below[word] = below[_ordinal(word)] = value
        below |= {f"{word} {text}": value + unit for text, unit in list(below.items()) if unit < 10}
    words = dict(below)
    for prefix, value in (("a", 100), ("one", 100), ("two", 200), ("three", 300)):
        words[f"{prefix} hundred"] = words[f"{prefix} hundredth"] = value
        words |= {f"{prefix} hundred {text}": value + rest for text, rest in below.items()}
    return words


def _ordinal(word: str) -> str:
    if word in _ORDINALS:
        return _ORDINALS[word]
    return {"twelve": "twelfth"}.get(word) or (word[:-1] + "ieth" if word.endswith("y") else word + "th")
