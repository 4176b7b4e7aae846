"""WattBot 2026's metric, ``wattbot2026``, as participants describe it: the official scorer could not be read.

Values are read as a vote reads them (``values.normalise``), so that two members whose values a vote groups have the
same score, but for a band, which holds many numbers. References are compared by F1.
"""

from __future__ import annotations

from dataclasses import replace

from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.references import citation_scores
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.evaluation.wattbot import CLASS_NOTES, ERROR_CLASSES, class_of, wattbot_refs
from kohaku_ray.values.normalise import TOLERANCE, normalise, same
from kohaku_ray.values.read import is_abstention, is_blank, parse_pair, split_list

BLANK_COLUMNS = ("ref_url", "supporting_materials")
"""Columns that an abstention leaves blank, beside answer_value and ref_id."""


def wattbot2026_value(truth: str, given: str, unit: str | None = None) -> float:
    """Score a value: 1.0 or 0.0.

    Args:
        truth: A number, a band ``[low,high]``, values in any order ``(a,b)``, 1 or 0, a text, or a blank.
        given: A number, which lies in a band, or a range inside it; otherwise the same value as a vote takes it.
        unit: The unit that both are in where they name none.
    """
    if is_abstention(truth) or is_abstention(given):
        return float(is_abstention(truth) and is_abstention(given))
    true_value, value = normalise(truth, unit), normalise(given, unit)
    if true_value.kind == "pair" and truth.strip()[0] == "[" and value.dimension == true_value.dimension:
        low, high = true_value.numbers
        slack = (TOLERANCE * abs(low), TOLERANCE * abs(high))
        return float(bool(value.numbers) and all(low - slack[0] <= x <= high + slack[1] for x in value.numbers))
    return float(same(true_value, value))


def describe_oddity(truth: SubmissionRow) -> str:
    """Say what is odd about a gold value, and how it is read; empty where nothing is."""
    value = truth.answer_value.strip()
    band = parse_pair(value)
    if band is not None and band[0] > band[1]:
        low, high = value.strip("[] ").split(",")
        return (
            f"the band {value} has its low end {low.strip()} above its high end {high.strip()}: it is read as "
            f"[{high.strip()},{low.strip()}]; swap them"
        )
    items = split_list(value) if value[:1] == "(" else None
    if items is not None and len(items) == 1:
        return f"the list {value} has one element: it is read as {items[0]}; add the others, or leave the brackets out"
    return ""


def _rate(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    f1 = citation_scores(wattbot_refs(given.refs_raw), wattbot_refs(truth.refs_raw))["f1"]
    cells = [given.columns[name] for name in BLANK_COLUMNS if name in given.columns]
    abstains = all(map(is_blank, (given.answer_value, given.refs_raw, *cells)))
    return {
        "value": wattbot2026_value(truth.answer_value, given.answer_value, truth.answer_unit),
        "ref": f1,
        "abstain": float(not is_blank(truth.answer_value) or abstains),
    }


def _mark(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    gold = [wattbot_refs(row.refs_raw) for row in rows]
    return OutcomeMarks(
        by_value={
            "value": lambda number, text: wattbot2026_value(rows[number].answer_value, text, rows[number].answer_unit)
        },
        by_refs={"ref": lambda number, refs: citation_scores(refs, gold[number])["f1"]},
        by_blank={"abstain": lambda number, blank: float(blank or not is_blank(rows[number].answer_value))},
    )


def _classify(truth: SubmissionRow, given: SubmissionRow) -> str | None:
    """Name a wrong prediction's class; a number outside a band is compared with the band's nearer end."""
    unit, value = truth.answer_unit, normalise(given.answer_value, truth.answer_unit)
    score, band = wattbot2026_value(truth.answer_value, given.answer_value, unit), parse_pair(truth.answer_value)
    if not score and band and value.kind == "number":
        ends = {abs(normalise(repr(end), unit).numbers[0] - value.numbers[0]): repr(end) for end in band}
        truth = replace(truth, answer_value=ends[min(ends)])
    return class_of(truth, given, score)


WATTBOT2026 = Metric(
    name="wattbot2026",
    title="WattBot 2026's score, as participants describe it",
    parts={"value": Part(0.75), "ref": Part(0.20, "F1 of references"), "abstain": Part(0.05, "abstention")},
    rate=_rate,
    unanswerable=lambda truth: is_blank(truth.answer_value),
    marks=_mark,
    classify=_classify,
    classes=ERROR_CLASSES,
    class_notes=CLASS_NOTES,
    given_columns=BLANK_COLUMNS,
    oddity=describe_oddity,
)
