"""``citations``: precision, recall and F1 of the cited references against the gold ones."""

from __future__ import annotations

from functools import partial

from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, mend_refs, read_refs

GOLD_COLUMNS = ("gold", "gold_ref_id")
"""Columns of a truth file that hold the gold references; without them, ref_id is read."""


def gold_refs(truth: SubmissionRow) -> frozenset[str]:
    """The references that a question's answer should cite, lower-cased; none where it has no answer."""
    column = next((name for name in GOLD_COLUMNS if name in truth.columns), None)
    refs = truth.ref_ids if column is None else mend_refs(read_refs(truth.columns[column]))
    return frozenset(ref.lower() for ref in refs)


def cited_refs(given: SubmissionRow) -> dict[str, None]:
    """The references that a prediction cites, lower-cased, in the order cited."""
    return dict.fromkeys(ref.lower() for ref in given.ref_ids)


def citation_scores(cited: frozenset[str], gold: frozenset[str]) -> dict[str, float]:
    """Score one question's citations.

    Args:
        cited: Cited references.
        gold: Gold references.

    Returns:
        ``f1``, ``precision`` and ``recall``; all 1 where both are empty, all 0 where one of them is.
    """
    if not cited or not gold:
        return dict.fromkeys(("f1", "precision", "recall"), float(cited == gold))
    hits = len(cited & gold)
    return {"f1": 2 * hits / (len(cited) + len(gold)), "precision": hits / len(cited), "recall": hits / len(gold)}


def _mark(truth: Submission) -> OutcomeMarks:
    gold = [gold_refs(row) for row in truth.rows.values()]

    def part(name: str, at: int, refs: frozenset[str]) -> float:
        return citation_scores(refs, gold[at])[name]

    return OutcomeMarks(by_refs={name: partial(part, name) for name in CITATIONS.parts})


CITATIONS = Metric(
    name="citations",
    title="F1 of the references cited against the gold ones",
    parts={"f1": Part(1.0, "citation F1"), "precision": Part(0.0), "recall": Part(0.0)},
    rate=lambda truth, given: citation_scores(frozenset(cited_refs(given)), gold_refs(truth)),
    unanswerable=lambda truth: not gold_refs(truth),
    marks=_mark,
)
