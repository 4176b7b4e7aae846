"""Compare answers with the truth: values and references, by the rules of the paper and of the competition."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from kohaku_ray.evaluation.submissions import read_refs
from kohaku_ray.values.read import fold, is_abstention, is_blank, parse_number, parse_pair, split_list

_KAGGLE_TOLERANCE = 1e-3
_HEDGE = re.compile(
    r"(?:(?:more|less|greater|fewer)\s+than|approximately|about|around|over|under|nearly|roughly|up\s+to|at\s+(?:least|most))"
    r"\s+|[~≈<>]\s*"
)
_SUFFIX = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*([kmbt])")
_MAGNITUDES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_RANGE = re.compile(r"(?:from\s+)?(-?[0-9.]+)\s*(?:[-–—]|to)\s*(-?[0-9.]+)")
_BOOLEANS = {"true": "1", "yes": "1", "false": "0", "no": "0"}


def close(truth: float, given: float) -> bool:
    """Tell whether a number is within 0.1 % of the true one, 1e-9 around zero (``wattbot``)."""
    return abs(truth - given) <= max(abs(truth) * 0.001, 1e-9)


def wattbot_value(truth: str, given: str) -> float:
    """Score a value by the paper's rule: 1.0 or 0.0.

    Blank matches blank; a range needs both ends; numbers match within 0.1 %, text when folded; another type is wrong.
    """
    if is_blank(truth) or is_blank(given):
        return float(is_blank(truth) and is_blank(given))
    true_pair, pair = parse_pair(truth), parse_pair(given)
    if true_pair and pair:
        return float(close(true_pair[0], pair[0]) and close(true_pair[1], pair[1]))
    true_number, number = parse_number(truth), parse_number(given)
    if true_number is not None and number is not None:
        return float(close(true_number, number))
    if true_pair or true_number is not None or number is not None:
        return 0.0
    return float(fold(truth) == fold(given))


def wattbot_refs(text: str) -> frozenset[str]:
    """Read a reference set, lower-cased; ``is_blank`` is no reference."""
    return frozenset(token.lower() for token in read_refs(text) if not is_blank(token))


def kaggle_refs(text: str) -> frozenset[str]:
    """Read a reference set, lower-cased; ``is_blank`` is a token like any other."""
    return frozenset(token.lower() for token in read_refs(text))


def jaccard(truth: frozenset[str], given: frozenset[str]) -> float:
    """Jaccard index of two sets: intersection over union, 1.0 where both are empty."""
    return len(truth & given) / len(truth | given) if truth or given else 1.0


def kaggle_value(truth: str, given: str) -> float:
    """Score a value by the competition's rule: 1.0 or 0.0.

    A blank truth counts as right. Lists and sets match in any order; one number inside a true range of two is right;
    numbers match within 1e-3, relative or absolute; text matches lower-cased.
    """
    if is_abstention(truth):
        return 1.0
    if is_abstention(given):
        return 0.0
    given = kaggle_normal(given)
    true_items, items = _items(truth), _items(given)
    if true_items is not None:
        return float(_same_items(true_items, items) if items is not None else _inside(true_items, given))
    true_number, number = parse_number(truth), parse_number(given)
    if true_number is not None and number is not None:
        return float(_isclose(true_number, number))
    return float(truth.strip().lower() == given.strip().lower())


def kaggle_normal(given: str) -> str:
    """Convert a submitted value to the competition's form: lower-case, no hedge, no separators, ``[low,high]``."""
    text = given.strip().lower()
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    text = _without_separators(text)
    hedge = _HEDGE.match(text)
    if hedge:
        text = _without_separators(text[hedge.end() :].strip())
    suffix = _SUFFIX.fullmatch(text)
    if suffix:
        return repr(float(suffix[1]) * _MAGNITUDES[suffix[2]])
    span = _RANGE.fullmatch(text)
    if span:
        low, high = parse_number(span[1]), parse_number(span[2])
        if low is not None and high is not None:
            return f"[{min(low, high)!r},{max(low, high)!r}]"
    return text


def _without_separators(text: str) -> str:
    bare = text.replace(",", "")
    return bare if parse_number(bare) is not None else text


def _isclose(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_KAGGLE_TOLERANCE, abs_tol=_KAGGLE_TOLERANCE)


def _items(text: str) -> list[float | str] | None:
    """Split a bracketed list or a set into numbers and lower-cased texts; a set has no repeats."""
    text = text.strip()
    parts = split_list(text) if text[:1] in {"[", "{"} else None
    if parts is None:
        return None
    if text[0] == "{":
        parts = tuple(sorted({part.strip().lower() for part in parts}))
    numbers = [parse_number(part) for part in parts]
    return [part.strip().lower() if number is None else number for part, number in zip(parts, numbers, strict=True)]


def _numeric(items: Sequence[float | str]) -> list[float] | None:
    numbers = sorted(item for item in items if isinstance(item, float))
    return numbers if len(numbers) == len(items) else None


def _same_items(truth: list[float | str], given: list[float | str]) -> bool:
    true_numbers, numbers = _numeric(truth), _numeric(given)
    if true_numbers is not None and numbers is not None:
        return len(numbers) == len(true_numbers) and all(map(_isclose, true_numbers, numbers))
    return sorted(map(str, truth)) == sorted(map(str, given))


def _inside(truth: list[float | str], given: str) -> bool:
    ends, number = _numeric(truth), parse_number(given)
    if ends is None or len(ends) != 2 or number is None:
        return False
    return ends[0] - _KAGGLE_TOLERANCE <= number <= ends[1] + _KAGGLE_TOLERANCE
