"""``label``: one of two labels for each question, read in the spellings that files and models use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from kohaku_ray.evaluation.figures import Figures, FigureTable, Number, Points
from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow

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


@dataclass(frozen=True, slots=True)
class Guess:
    """A prediction.

    Attributes:
        label: One of `LABELS`; None: none was given.
        confidence: The predictor's probability of that label; None: not known.
    """

    label: str | None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class LabelFigures:
    """Agreement of predictions with the truth.

    Attributes:
        n: Questions with a true label.
        accuracy: Share of right labels; a missing one is wrong.
        interval: 95 % interval of the accuracy (Wilson).
        balanced: Balanced accuracy: mean over the labels of the share of right ones.
        f1: F1 of ``contradict``.
        majority: Accuracy of always giving the more frequent true label.
        confusion: Counts by true label and given label, None where none was given.
        brier: Mean squared error of the probability of ``contradict``, over those with a confidence; None: none has.
        bins: Reliability: per tenth of confidence with any prediction, its lower end, their number, mean confidence and
            share of right ones.
    """

    n: int
    accuracy: float
    interval: tuple[float, float]
    balanced: float
    f1: float
    majority: float
    confusion: Mapping[tuple[str, str | None], int]
    brier: float | None
    bins: tuple[tuple[float, int, float, float], ...]


def label_figures(truth: Mapping[str, str], given: Mapping[str, Guess]) -> LabelFigures | None:
    """Compare predictions with true labels.

    Args:
        truth: True label by question, in any spelling; questions without a readable one are left out.
        given: Prediction by question.

    Returns:
        The figures; None when no question has a true label.
    """
    pairs = [
        (true, given.get(question_id, Guess(None)))
        for question_id, text in truth.items()
        if (true := read_label(text)) is not None
    ]
    if not pairs:
        return None
    confusion = Counter((true, guess.label) for true, guess in pairs)
    there = Counter(true for true, _ in pairs)
    right = {label: confusion[label, label] for label in there}
    n, n_right = len(pairs), sum(right.values())
    called = sum(count for (_, label), count in confusion.items() if label == CONTRADICT)
    sure = [
        (guess.label == true, guess.confidence) for true, guess in pairs if guess.label and guess.confidence is not None
    ]
    return LabelFigures(
        n=n,
        accuracy=n_right / n,
        interval=wilson(n_right, n),
        balanced=sum(right[label] / there[label] for label in there) / len(there),
        f1=2 * right.get(CONTRADICT, 0) / (called + there[CONTRADICT]) if called + there[CONTRADICT] else 0.0,
        majority=max(there.values()) / n,
        confusion=dict(confusion),
        brier=sum((confidence - is_right) ** 2 for is_right, confidence in sure) / len(sure) if sure else None,
        bins=_reliability(sure),
    )


def wilson(n_right: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    share, spread = n_right / n, _Z**2 / n
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return max(min(low, share), 0.0), min(max(high, share), 1.0)


def _reliability(sure: Sequence[tuple[bool, float]]) -> tuple[tuple[float, int, float, float], ...]:
    tenths: dict[int, list[tuple[bool, float]]] = {}
    for is_right, confidence in sure:
        tenths.setdefault(min(int(confidence * 10), 9), []).append((is_right, confidence))
    return tuple(
        (tenth / 10, len(pairs), sum(c for _, c in pairs) / len(pairs), sum(r for r, _ in pairs) / len(pairs))
        for tenth, pairs in sorted(tenths.items())
    )


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


def _guess(given: SubmissionRow | None) -> Guess:
    """Read a prediction and the column ``confidence``, where a submission has one."""
    if given is None:
        return Guess(None)
    try:
        confidence = float(given.columns.get("confidence", ""))
    except ValueError:
        return Guess(read_label(given.answer_value))
    return Guess(read_label(given.answer_value), confidence if 0 <= confidence <= 1 else None)


def _true_labels(truth: Submission) -> dict[str, str]:
    return {key: label for key, row in truth.rows.items() if (label := _true_label(row)) is not None}


def set_figures(truth: Submission, given: Submission) -> Figures | None:
    """Compute the figures of ``label_figures``, to be shown."""
    labels = _true_labels(truth)
    found = label_figures(labels, {key: _guess(given.rows.get(key)) for key in labels})
    if found is None:
        return None
    numbers = [
        Number("accuracy", found.accuracy, found.interval),
        Number("majority class", found.majority, note=f"always {_majority(labels)[0]}"),
        Number("balanced accuracy", found.balanced, note="mean over the true labels"),
        Number(f"F1 of {CONTRADICT}", found.f1),
    ]
    if found.brier is not None:
        n_sure = sum(n for _, n, *_ in found.bins)
        numbers.append(Number("Brier score", found.brier, note=f"lower is better; {n_sure} with a confidence"))
    return Figures(found.n, tuple(numbers), (_confusion_table(found), *_bin_tables(found)), _bin_plots(found))


def _confusion_table(found: LabelFigures) -> FigureTable:
    columns = [*LABELS, *([None] if any(label is None for _, label in found.confusion) else [])]
    rows = tuple((true, *(str(found.confusion.get((true, label), 0)) for label in columns)) for true in LABELS)
    return FigureTable("Confusion", ("true label", *(f"read as {label or 'none'}" for label in columns)), rows)


def _bin_tables(found: LabelFigures) -> tuple[FigureTable, ...]:
    rows = tuple(
        (f"{low:.1f} to {low + 0.1:.1f}", str(n), f"{mean:.3f}", f"{right:.3f}") for low, n, mean, right in found.bins
    )
    head = ("confidence", "predictions", "mean confidence", "share of right ones")
    return (FigureTable("Reliability", head, rows),) if rows else ()


def _bin_plots(found: LabelFigures) -> tuple[Points, ...]:
    points = tuple((mean, right, n) for _, n, mean, right in found.bins)
    note = "Predictions by tenth of their confidence; on the line, they are right as often as they are confident."
    plot = Points("Reliability", note, "mean confidence", "share of right labels", points)
    return (plot,) if points else ()


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
