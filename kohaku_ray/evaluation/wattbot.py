"""WattBot's two metrics: ``wattbot`` is the paper's (the published validator), ``kaggle`` the competition's own.

They read the same files. They differ in how values are compared, in the meaning of ``is_blank`` among references and
in the third part: ``wattbot`` averages it over all questions, ``kaggle`` over the truly unanswerable ones (its recall).
Wrong predictions fall into the classes of the paper's decision tree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, read_refs
from kohaku_ray.records import BLANK
from kohaku_ray.values.normalise import normalise, same
from kohaku_ray.values.read import BOOLEANS, fold, is_abstention, is_blank, parse_number, parse_pair, split_list

_KAGGLE_TOLERANCE = 1e-3
_HEDGE = re.compile(
    r"(?:(?:more|less|greater|fewer)\s+than|approximately|about|around|over|under|nearly|roughly|up\s+to|at\s+(?:least|most))"
    r"\s+|[~≈<>]\s*"
)
_SUFFIX = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*([kmbt])")
_MAGNITUDES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_RANGE = re.compile(r"(?:from\s+)?(-?[0-9.]+)\s*(?:[-–—]|to)\s*(-?[0-9.]+)")


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
        if items is None:
            return float(_inside(true_items, given))
        true_numbers, numbers = _numeric(true_items), _numeric(items)
        if true_numbers is not None and numbers is not None:
            return float(len(numbers) == len(true_numbers) and all(map(_isclose, true_numbers, numbers)))
        return float(sorted(map(str, true_items)) == sorted(map(str, items)))
    true_number, number = parse_number(truth), parse_number(given)
    if true_number is not None and number is not None:
        return float(_isclose(true_number, number))
    return float(truth.strip().lower() == given.strip().lower())


def kaggle_normal(given: str) -> str:
    """Convert a submitted value to the competition's form: lower-case, no hedge, no separators, ``[low,high]``."""
    text = given.strip().lower()
    if text in BOOLEANS:
        return BOOLEANS[text]
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


def _inside(truth: list[float | str], given: str) -> bool:
    ends, number = _numeric(truth), parse_number(given)
    if ends is None or len(ends) != 2 or number is None:
        return False
    return ends[0] - _KAGGLE_TOLERANCE <= number <= ends[1] + _KAGGLE_TOLERANCE


FALSE_POSITIVE = "false positive"
FALSE_NEGATIVE = "false negative"
UNIT_CONVERSION = "unit conversion"
ROUNDING = "rounding"
VALUE_SELECTION = "value selection"
TYPE_MISMATCH = "type mismatch"
CATEGORICAL_MISMATCH = "categorical mismatch"
REFERENCE_MISMATCH = "reference mismatch"

CLASS_NOTES = {
    FALSE_POSITIVE: "answered, but the truth is that there is no answer",
    FALSE_NEGATIVE: "abstained, but the truth has an answer",
    UNIT_CONVERSION: "off by a power of ten, within 5 %",
    ROUNDING: "at most 10 % off the true number",
    VALUE_SELECTION: "another number, farther off than rounding",
    TYPE_MISMATCH: "a number where the truth is a range or text, or the other way round; "
    "or the right value, spelled as the scorer does not read it",
    CATEGORICAL_MISMATCH: "another text than the truth, or no for yes",
    REFERENCE_MISMATCH: "the right value, but other references than the truth",
}
"""What each class means, in a few words."""

ERROR_CLASSES = tuple(CLASS_NOTES)


def classify(truth: SubmissionRow, given: SubmissionRow) -> str | None:
    """Name the class of a wrong prediction; None where nothing is wrong.

    Wrong means less than the full ``wattbot`` score; see ``class_of``.
    """
    return class_of(truth, given, wattbot_value(truth.answer_value, given.answer_value))


def class_of(truth: SubmissionRow, given: SubmissionRow, value_score: float) -> str | None:
    """Name the class of a prediction whose value has a score (1.0: right); None where nothing is wrong.

    The decision tree of KohakuRAG's paper (C.1), with values read as a vote reads them: of a right value the references
    are compared, and a range is a unit conversion or a rounding error when each of its wrong ends is one.
    """
    if is_blank(truth.answer_value) and not is_blank(given.answer_value):
        return FALSE_POSITIVE
    if is_blank(given.answer_value) and not is_blank(truth.answer_value):
        return FALSE_NEGATIVE
    if value_score:
        return None if wattbot_refs(truth.refs_raw) == wattbot_refs(given.refs_raw) else REFERENCE_MISMATCH
    true_value, value = (normalise(row.answer_value, truth.answer_unit) for row in (truth, given))
    true_numbers, numbers = true_value.numbers, value.numbers
    kinds = {"text" if read.kind == "list" else read.kind for read in (true_value, value)}
    if same(true_value, value) or len(kinds) > 1 or true_value.dimension != value.dimension:
        return TYPE_MISMATCH
    if not numbers or {fold(truth.answer_value), fold(given.answer_value)} <= BOOLEANS.keys():
        return CATEGORICAL_MISMATCH
    pairs = list(zip(true_numbers, numbers, strict=True))
    wrong = [pair for pair in pairs if not close(*pair)] or pairs
    if all(is_unit_conversion(truth, given) for truth, given in wrong):
        return UNIT_CONVERSION
    if all(is_rounding(truth, given) for truth, given in wrong):
        return ROUNDING
    return VALUE_SELECTION


def is_unit_conversion(truth: float, given: float) -> bool:
    """Tell whether ``given / truth`` lies within 5 % of a power of ten other than 1."""
    ratio = given / truth if truth else 0.0
    if not 0.0 < ratio < math.inf:
        return False
    exponent = round(math.log10(ratio))
    return exponent != 0 and abs(ratio / 10.0**exponent - 1.0) <= 0.05


def is_rounding(truth: float, given: float) -> bool:
    """Tell whether a number misses the true one by at most 10 %."""
    return abs(given - truth) <= 0.1 * abs(truth)


_VALUE, _REF = Part(0.75), Part(0.15, "references")


def _rate_wattbot(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    refs = wattbot_refs(given.refs_raw)
    return {
        "value": wattbot_value(truth.answer_value, given.answer_value),
        "ref": jaccard(wattbot_refs(truth.refs_raw), refs),
        "abstain": float(not is_blank(truth.answer_value) or (is_blank(given.answer_value) and not refs)),
    }


def _mark_wattbot(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    gold = [wattbot_refs(row.refs_raw) for row in rows]
    return OutcomeMarks(
        by_value={"value": lambda number, text: wattbot_value(rows[number].answer_value, text)},
        by_refs={"ref": lambda number, refs: jaccard(gold[number], refs)},
        by_blank={"abstain": lambda number, blank: float(blank or not is_blank(rows[number].answer_value))},
    )


def _mark_kaggle(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    gold = [kaggle_refs(row.refs_raw) for row in rows]
    blank = frozenset({BLANK})  # written by a submission that cites nothing
    return OutcomeMarks(
        by_value={"value": lambda number, text: kaggle_value(rows[number].answer_value, text)},
        by_refs={"ref": lambda number, refs: jaccard(gold[number], refs or blank)},
        by_blank={"abstain": lambda number, blank: float(blank or not is_abstention(rows[number].answer_value))},
    )


WATTBOT = Metric(
    name="wattbot",
    title="WattBot's score by the paper's rules",
    parts={"value": _VALUE, "ref": _REF, "abstain": Part(0.10, "abstention")},
    rate=_rate_wattbot,
    unanswerable=lambda truth: is_blank(truth.answer_value),
    marks=_mark_wattbot,
    classify=classify,
    classes=ERROR_CLASSES,
    class_notes=CLASS_NOTES,
)

KAGGLE = Metric(
    name="kaggle",
    title="WattBot's score by the competition's rules",
    parts={"value": _VALUE, "ref": _REF, "abstain": Part(0.10, "abstention", of_unanswerable=True)},
    rate=lambda truth, given: {
        "value": kaggle_value(truth.answer_value, given.answer_value),
        "ref": jaccard(kaggle_refs(truth.refs_raw), kaggle_refs(given.refs_raw)),
        "abstain": float(not is_abstention(truth.answer_value) or is_abstention(given.answer_value)),
    },
    unanswerable=lambda truth: is_abstention(truth.answer_value),
    marks=_mark_kaggle,
    classify=classify,
    classes=ERROR_CLASSES,
    class_notes=CLASS_NOTES,
)
