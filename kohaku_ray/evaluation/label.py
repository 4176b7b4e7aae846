"""``label``: one of two labels for each question, read in the spellings that files and models use."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow

CONSISTENT, CONTRADICT = LABELS = ("consistent", "contradict")

_SPELLINGS = {
    **dict.fromkeys(("consistent", "consistency", "1", "1.0", "true", "yes"), CONSISTENT),
    **dict.fromkeys(("contradict", "contradicts", "contradicted", "contradictory", "contradiction"), CONTRADICT),
    **dict.fromkeys(("inconsistent", "inconsistency", "0", "0.0", "false", "no"), CONTRADICT),
}


def read_label(text: str | None) -> str | None:
    """Read a label in any spelling (``consistent``/``contradict``, 1/0, true/false); None for other text."""
    return _SPELLINGS.get((text or "").strip(" \t\r\n\"'.").casefold())


def _true_label(row: SubmissionRow) -> str | None:
    return read_label(row.answer_value or row.columns.get("label"))


def _accuracy(truth: SubmissionRow, text: str) -> float:
    """1.0 for the true label; without a true label, 1.0 for no label."""
    return float(read_label(text) == _true_label(truth))


def _confused(truth: SubmissionRow, given: SubmissionRow) -> str | None:
    true, label = _true_label(truth), read_label(given.answer_value)
    return None if label == true else f"{true or 'none'} read as {label or 'none'}"


def _mark(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    return OutcomeMarks(by_value={"accuracy": lambda at, text: _accuracy(rows[at], text)})


def _guess(given: SubmissionRow | None) -> tuple[str | None, float | None]:
    """Read a label, and its probability in the column ``confidence`` where a submission has one."""
    if given is None:
        return None, None
    try:
        confidence = float(given.columns.get("confidence", ""))
    except ValueError:
        return read_label(given.answer_value), None
    return read_label(given.answer_value), confidence if 0 <= confidence <= 1 else None


def set_figures(truth: Submission, given: Submission) -> dict[str, float]:
    """Compare predictions with true labels: shares, F1 and, where there are confidences, the Brier score.

    A missing prediction is wrong; empty where no question has a true label.
    """
    labels = {key: label for key, row in truth.rows.items() if (label := _true_label(row)) is not None}
    if not labels:
        return {}
    guesses = [(true, *_guess(given.rows.get(key))) for key, true in labels.items()]
    confusion = Counter((true, label) for true, label, _ in guesses)
    there = Counter(labels.values())
    right = {label: confusion[label, label] for label in there}
    called = sum(count for (_, label), count in confusion.items() if label == CONTRADICT) + there[CONTRADICT]
    found = {
        "majority class": max(there.values()) / len(labels),
        "balanced accuracy": sum(right[label] / there[label] for label in there) / len(there),
        f"F1 of {CONTRADICT}": 2 * right.get(CONTRADICT, 0) / called if called else 0.0,
    }
    sure = [(label == true, confidence) for true, label, confidence in guesses if label and confidence is not None]
    if sure:
        found["Brier score"] = sum((confidence - is_right) ** 2 for is_right, confidence in sure) / len(sure)
    return found


LABEL = Metric(
    name="label",
    title="Share of right labels",
    parts={"accuracy": Part()},
    rate=lambda truth, given: {"accuracy": _accuracy(truth, given.answer_value)},
    unanswerable=lambda truth: _true_label(truth) is None,
    marks=_mark,
    classify=_confused,
    classes=tuple(f"{true} read as {label}" for true, label in permutations((*LABELS, "none"), 2)),
    truth_columns=(("label", "answer_value"),),
    gold=lambda truth: _true_label(truth) or "",
    needs_gold=True,
    figures=set_figures,
)
