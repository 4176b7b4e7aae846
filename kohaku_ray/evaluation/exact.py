"""``exact``: a value is right or wrong, for truths without WattBot's conventions."""

from __future__ import annotations

from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.scores import close
from kohaku_ray.evaluation.submissions import Submission
from kohaku_ray.values.read import fold, is_blank_strict, parse_number


def exact_value(truth: str, given: str) -> float:
    """Score a value: 1.0 when the texts are equal folded, or both are numbers within 0.1 %; 0.0 otherwise.

    Only an empty cell and ``is_blank`` are no answer: ``NA`` or ``none`` may be one.
    """
    if is_blank_strict(truth) or is_blank_strict(given):
        return float(is_blank_strict(truth) and is_blank_strict(given))
    true_number, number = parse_number(truth), parse_number(given)
    if true_number is not None and number is not None:
        return float(close(true_number, number))
    return float(fold(truth) == fold(given))


def _mark(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    return OutcomeMarks(by_value={"value": lambda at, text: exact_value(rows[at].answer_value, text)})


EXACT = Metric(
    name="exact",
    title="Share of values that are the true ones",
    parts={"value": Part()},
    rate=lambda truth, given: {"value": exact_value(truth.answer_value, given.answer_value)},
    unanswerable=lambda truth: is_blank_strict(truth.answer_value),
    marks=_mark,
    truth_columns=("answer_value",),
)
