"""``label``: one of two labels for each question, read in the spellings that files and models use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations

from kohaku_ray.evaluation.metrics import Figures, Metric, Number, OutcomeMarks, Part, Points
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.table import Column, Table

CONSISTENT, CONTRADICT = LABELS = ("consistent", "contradict")

_SPELLINGS = {
    **dict.fromkeys(("consistent", "consistency", "1", "1.0", "true", "yes"), CONSISTENT),
    **dict.fromkeys(("contradict", "contradicts", "contradicted", "contradictory", "contradiction"), CONTRADICT),
    **dict.fromkeys(("inconsistent", "inconsistency", "0", "0.0", "false", "no"), CONTRADICT),
}
_Z = 1.959963984540054  # 97.5 % point of the normal distribution


def read_label(text: str | None) -> str | None:
    """Read a label in any spelling (``consistent``/``contradict``, 1/0, true/false); None for other text."""
    return _SPELLINGS.get((text or "").strip(" \t\r\n\"'.").casefold())


def wilson(n_right: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    share, spread = n_right / n, _Z**2 / n
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return max(min(low, share), 0.0), min(max(high, share), 1.0)


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
    return OutcomeMarks(by_value={"accuracy": lambda number, text: _accuracy(rows[number], text)})


def _guess(given: SubmissionRow | None) -> tuple[str | None, float | None]:
    """Read a label, and its probability in the column ``confidence`` where a submission has one."""
    if given is None:
        return None, None
    try:
        confidence = float(given.columns.get("confidence", ""))
    except ValueError:
        return read_label(given.answer_value), None
    return read_label(given.answer_value), confidence if 0 <= confidence <= 1 else None


def _true_labels(truth: Submission) -> dict[str, str]:
    return {key: label for key, row in truth.rows.items() if (label := _true_label(row)) is not None}


def set_figures(truth: Submission, given: Submission) -> Figures | None:
    """Compare predictions with true labels: shares, F1, Brier score, confusion, reliability by tenth of confidence.

    A missing prediction is wrong; None where no question has a true label.
    """
    labels = _true_labels(truth)
    if not labels:
        return None
    guesses = [(true, *_guess(given.rows.get(key))) for key, true in labels.items()]
    confusion = Counter((true, label) for true, label, _ in guesses)
    counts = Counter(labels.values())
    right = {label: confusion[label, label] for label in counts}
    n, n_right = len(labels), sum(right.values())
    called = sum(count for (_, label), count in confusion.items() if label == CONTRADICT) + counts[CONTRADICT]
    majority, n_majority = _majority(labels)
    balanced = sum(right[label] / counts[label] for label in counts) / len(counts)
    numbers = [
        Number("accuracy", n_right / n, wilson(n_right, n)),
        Number("majority class", n_majority / n, note=f"always {majority}"),
        Number("balanced accuracy", balanced, note="mean over the true labels"),
        Number(f"F1 of {CONTRADICT}", 2 * right.get(CONTRADICT, 0) / called if called else 0.0),
    ]
    sure = [(label == true, confidence) for true, label, confidence in guesses if label and confidence is not None]
    if sure:
        brier = sum((confidence - is_right) ** 2 for is_right, confidence in sure) / len(sure)
        numbers.append(Number("Brier score", brier, note=f"lower is better; {len(sure)} with a confidence"))
    tables, plots = _reliability(sure)
    columns = [*LABELS, *([None] if any(label is None for _, label in confusion) else [])]
    rows = [(true, *(confusion[true, label] for label in columns)) for true in LABELS]
    table = Table.of(["true label", *(f"read as {label or 'none'}" for label in columns)], rows, "Confusion")
    return Figures(n, tuple(numbers), (table, *tables), plots)


def _reliability(sure: Sequence[tuple[bool, float]]) -> tuple[tuple[Table, ...], tuple[Points, ...]]:
    """Show by tenth of confidence how often predictions are right: a table and a plot, none without a confidence."""
    if not sure:
        return (), ()
    tenths: dict[int, list[tuple[bool, float]]] = {}
    for is_right, confidence in sure:
        tenths.setdefault(min(int(confidence * 10), 9), []).append((is_right, confidence))
    bins = [
        (tenth / 10, len(pairs), sum(c for _, c in pairs) / len(pairs), sum(r for r, _ in pairs) / len(pairs))
        for tenth, pairs in sorted(tenths.items())
    ]
    shares = (Column(name, ".3f") for name in ("mean confidence", "share of right ones"))
    head = (Column("confidence", align="left"), "predictions", *shares)
    table = Table.of(head, [(f"{low:.1f} to {low + 0.1:.1f}", *counted) for low, *counted in bins], "Reliability")
    note = "Predictions by tenth of their confidence; on the line, they are right as often as they are confident."
    points = tuple((mean, right, n) for _, n, mean, right in bins)
    return (table,), (Points("Reliability", note, "mean confidence", "share of right labels", points),)


def _majority(labels: Mapping[str, str]) -> tuple[str, int]:
    return Counter(labels.values()).most_common(1)[0]


def _baseline(truth: Submission) -> str:
    labels = _true_labels(truth)
    if not labels:
        return ""
    label, n = _majority(labels)
    return f"Always {label}, the majority class, scores {n / len(labels):.4f} ({n} of {len(labels)})."


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
    baseline=_baseline,
)
