"""WattBot's two metrics: ``wattbot`` is the paper's (the published validator), ``kaggle`` the competition's own.

They read the same files. They differ in how values are compared, in the meaning of ``is_blank`` among references and
in the third part: ``wattbot`` averages it over all questions, ``kaggle`` over the truly unanswerable ones (its recall).
"""

from __future__ import annotations

from kohaku_ray.evaluation.errors import CLASS_NOTES, ERROR_CLASSES, classify
from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.scores import jaccard, kaggle_refs, kaggle_value, wattbot_refs, wattbot_value
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.records import BLANK
from kohaku_ray.values.read import is_abstention, is_blank

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
        by_value={"value": lambda at, text: wattbot_value(rows[at].answer_value, text)},
        by_refs={"ref": lambda at, refs: jaccard(gold[at], refs)},
        by_blank={"abstain": lambda at, blank: float(blank or not is_blank(rows[at].answer_value))},
    )


def _rate_kaggle(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    return {
        "value": kaggle_value(truth.answer_value, given.answer_value),
        "ref": jaccard(kaggle_refs(truth.refs_raw), kaggle_refs(given.refs_raw)),
        "abstain": float(not is_abstention(truth.answer_value) or is_abstention(given.answer_value)),
    }


def _mark_kaggle(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    gold = [kaggle_refs(row.refs_raw) for row in rows]
    blank = frozenset({BLANK})  # written by a submission that cites nothing
    return OutcomeMarks(
        by_value={"value": lambda at, text: kaggle_value(rows[at].answer_value, text)},
        by_refs={"ref": lambda at, refs: jaccard(gold[at], refs or blank)},
        by_blank={"abstain": lambda at, blank: float(blank or not is_abstention(rows[at].answer_value))},
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
    rate=_rate_kaggle,
    unanswerable=lambda truth: is_abstention(truth.answer_value),
    marks=_mark_kaggle,
    classify=classify,
    classes=ERROR_CLASSES,
    class_notes=CLASS_NOTES,
)
