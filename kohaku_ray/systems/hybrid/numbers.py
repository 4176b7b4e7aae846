"""Numbers as French prose writes them (``1 234,5``, ``18,5 millions``), and what an answer is compared by."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_COUNT = (
    r"[0-9]{1,3}(?:[ \u00a0\u2009\u202f][0-9]{3})+(?![0-9])(?:,[0-9]+)?"  # 1 234,5
    r"|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+"  # 1.234,5
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9])"  # 1.234.567
    r"|[0-9]{1,40}(?:[.,][0-9]{1,40})?"
)
_NUMBER = re.compile(
    rf"(?<![\w.,])(?P<sign>[-−](?=[0-9]))?(?P<count>{_COUNT})(?!\w)(?:[ \u00a0\u202f](?P<scale>mille|millions?|milliards?)\b)?",  # noqa: E501
    re.IGNORECASE,
)
_SCALE = re.compile(r"\b(mille|million|milliard)s?\b", re.IGNORECASE)
_SCALES = {"mille": 1e3, "million": 1e6, "milliard": 1e9}


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text.

    Attributes:
        value: What it is.
        text: How it is written, "millions" and the like with it.
        end: One past its last character.
    """

    value: float
    text: str
    end: int


def read_numbers(text: str) -> list[Number]:
    """Read every number of a text, in reading order.

    Args:
        text: French prose; a comma is a decimal one, spaces (or dots, before a decimal comma) separate thousands.
    """
    found = (Number(_value(match), match[0], match.end()) for match in _NUMBER.finditer(text))
    return [number for number in found if math.isfinite(number.value)]


def numbers_of(text: str) -> tuple[float, ...]:
    """The values of a text's numbers, ascending, as often as they stand there: a multiset."""
    return tuple(sorted(number.value for number in read_numbers(text)))


def write_number(number: float) -> str:
    """Write a number with a decimal point and no separators; at most 12 digits count."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.12g}"


def bare_value(value: str, unit: str | None) -> str:
    """Write a value that is one number without separators and unit, in the unit asked for; leave any other as it is.

    Args:
        value: As a model wrote it: ``1 150 emplois``, ``9,6 millions d'euros``.
        unit: The unit asked for; ``millions d'euros`` makes the latter 9.6.
    """
    found = numbers_of(value)
    if len(found) != 1 or not _NUMBER.match(value.strip()):
        return value
    asked = _SCALE.search(unit or "")
    scale = _SCALES[asked[1].lower()] if asked and _SCALE.search(value) else 1.0
    return write_number(found[0] / scale)


def numbers_key(text: str) -> str:
    """Name a text by its multiset of numbers; empty where it has none."""
    return "; ".join(map(write_number, numbers_of(text)))


def _value(match: re.Match[str]) -> float:
    count = re.sub(r"\s", "", match["count"])
    if "," in count or count.count(".") > 1:
        count = count.replace(".", "").replace(",", ".")
    scale = _SCALES[match["scale"].lower().removesuffix("s")] if match["scale"] else 1.0
    return (-1 if match["sign"] else 1) * float(count) * scale
