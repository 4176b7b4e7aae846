"""Classes of errors: the paper's decision tree, one class per wrong prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kohaku_ray.evaluation.scores import close, wattbot_refs, wattbot_value
from kohaku_ray.evaluation.submissions import SubmissionRow
from kohaku_ray.values.read import is_blank, parse_number, parse_pair

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
    TYPE_MISMATCH: "a number where the truth is a range or text, or the other way round",
    CATEGORICAL_MISMATCH: "another text than the truth",
    REFERENCE_MISMATCH: "the right value, but other references than the truth",
}
"""What each class means, in a few words."""

ERROR_CLASSES = tuple(CLASS_NOTES)


def classify(truth: SubmissionRow, given: SubmissionRow) -> str | None:
    """Name the class of a wrong prediction; None where nothing is wrong.

    Wrong means less than the full ``wattbot`` score. References are checked only where the value is right. A range
    is a unit conversion or a rounding error when each of its wrong ends is one.
    """
    if is_blank(truth.answer_value) and not is_blank(given.answer_value):
        return FALSE_POSITIVE
    if is_blank(given.answer_value) and not is_blank(truth.answer_value):
        return FALSE_NEGATIVE
    if wattbot_value(truth.answer_value, given.answer_value):
        return None if wattbot_refs(truth.refs_raw) == wattbot_refs(given.refs_raw) else REFERENCE_MISMATCH
    true_numbers, numbers = _numbers(truth.answer_value), _numbers(given.answer_value)
    if len(true_numbers) != len(numbers):
        return TYPE_MISMATCH
    if not numbers:
        return CATEGORICAL_MISMATCH
    return _numeric_class([pair for pair in zip(true_numbers, numbers, strict=True) if not close(*pair)])


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


def _numbers(text: str) -> tuple[float, ...]:
    """Read a number as one, a range as two, text as none."""
    number = parse_number(text)
    return (number,) if number is not None else parse_pair(text) or ()


def _numeric_class(wrong: Sequence[tuple[float, float]]) -> str:
    if all(is_unit_conversion(truth, given) for truth, given in wrong):
        return UNIT_CONVERSION
    if all(is_rounding(truth, given) for truth, given in wrong):
        return ROUNDING
    return VALUE_SELECTION
