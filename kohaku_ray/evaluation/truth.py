"""Gold files: the answers that metrics score against.

A gold file is CSV, JSON lines or Parquet, one row per question, often the question file itself (`GOLD_COLUMNS`). Its
columns decide what can be scored: ``answer_value`` and ``ref_id`` by WattBot's metrics, ``answer_value`` alone by
``exact``, ``answer`` alone by ``answer``. No system ever sees a gold column.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kohaku_ray.documents.data.rows import RowTable
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.evaluation.submissions import Submission, lacking_columns, read_submission
from kohaku_ray.extensions import BUILT_IN
from kohaku_ray.records import BLANK

GOLD_COLUMNS: Mapping[str, str] = {
    "id": "the question's id, or question_id; unique",
    "question": "its text",
    "answer_unit": "unit that the answer is asked in; it is shown to the model, all columns below are not",
    "answer_value": "the bare value: a number, a [low, high] range, a name, 1 for true and 0 for false",
    "answer": "the answer as text; in JSON lines and Parquet also a list of acceptable answers, in CSV as JSON",
    "ref_id": 'ids of the documents that hold the answer; a list, in CSV as JSON: ["doc1", "doc2"]',
    "is_blank": "true: the documents do not answer the question, so an abstention is right",
    "label": "a class, for systems that answer with one",
}
"""Columns of a gold file, in the order of a template; all but the id may be missing."""

FALLBACKS = ("exact", "answer")
"""Metrics by which a file is scored that lacks the columns, or the gold, of all metrics asked for."""


class NoGoldError(DataError):
    """A file holds no gold answers for the metrics asked for."""


_TRUE = frozenset({"true", "1", "1.0", "yes"})


def gold_template() -> str:
    """Write a CSV with every gold column but the label, and two rows to be replaced."""
    return (
        "id,question,answer_unit,answer_value,answer,ref_id,is_blank\n"
        'q001,"How much water did the campus use in 2023?",m3,41200,"41,200 m3","[""water_report""]",\n'
        'q002,"What will it use in 2030?",m3,,,,true\n'
    )


def read_truth(path: str | os.PathLike[str], metrics: Sequence[Metric], table: RowTable | None = None) -> Submission:
    """Read a truth file, or take its ``table``, with the columns that some metrics need.

    Raises:
        DataError: The file cannot be read, or lacks a column.
    """
    columns = dict.fromkeys(column for metric in metrics for column in metric.truth_columns)
    name = os.fspath(path)
    truth = read_submission(name, (("id", "question_id"), *columns), table)
    if BLANK not in truth.header:
        return truth
    rows = dict(truth.rows)
    for key, row in rows.items():
        if row.columns.get(BLANK, "").strip().lower() in _TRUE:
            # In the cells that metrics read.
            blank: dict[str, Any] = {
                cell: getattr(row, cell) or BLANK for cell in ("answer", "answer_value", "refs_raw")
            }
            rows[key] = replace(row, **blank)
    return replace(truth, rows=rows)


def read_gold(
    path: str | os.PathLike[str], metrics: Sequence[Metric], table: RowTable | None = None
) -> tuple[Submission, tuple[Metric, ...], str]:
    """Read a gold file, or take its ``table``, and choose the metrics that it can be scored by.

    Returns:
        The truth; those of the metrics, the headline first, whose columns it has, or if none has gold there, the first
        of `FALLBACKS` that has; and which ones were left out and why, empty where none was.

    Raises:
        DataError: The file cannot be read.
        NoGoldError: It has no gold answers for any of the metrics; the message names one that it has some for.
    """
    truth = read_truth(path, (), table)
    fitting = tuple(metric for metric in metrics if not _lacking(truth, metric))
    if fitting and has_gold(truth, fitting):
        return truth, fitting, _left_out(truth, [metric for metric in metrics if metric not in fitting])
    for metric in map(find_metric, FALLBACKS):
        if _is_scored_by(truth, metric):
            return truth, (metric,), f"Scored by {metric.name} ({metric.title}). {_left_out(truth, metrics)}"
    name = os.path.basename(os.fspath(path))
    other = next((other for other in BUILT_IN["metrics"] if _is_scored_by(truth, find_metric(other))), "")
    if other:
        asked = ", ".join(metric.name for metric in metrics)
        raise NoGoldError(f"{name} has no gold for {asked}, but for {other}: `kohaku-ray score --metric {other}`.")
    if fitting:
        raise NoGoldError(f"{name} has no gold answers.")
    lacking = _lacking(truth, metrics[0])
    raise NoGoldError(f"{name} has no gold answers: it {lacking}; `kohaku-ray init DIR --gold` writes a template.")


def _lacking(truth: Submission, metric: Metric) -> str:
    """Say which columns of a metric a truth lacks; empty if none."""
    return lacking_columns(truth.header, metric.truth_columns).partition(";")[0]


def _is_scored_by(truth: Submission, metric: Metric) -> bool:
    return not _lacking(truth, metric) and has_gold(truth, [metric])


def _left_out(truth: Submission, metrics: Sequence[Metric]) -> str:
    if not metrics:
        return ""
    reasons = dict.fromkeys(_lacking(truth, metric) or "has no gold in their columns" for metric in metrics)
    names = ", ".join(metric.name for metric in metrics)
    return f"Not scored by {names}: {os.path.basename(truth.path)} {' and '.join(reasons)}."


def has_gold(truth: Submission, metrics: Sequence[Metric]) -> bool:
    """Tell whether any question has a gold answer."""
    return any(metric.gold(row) for row in truth.rows.values() for metric in metrics)


def scored_rows(truth: Submission, metrics: Sequence[Metric], limit: int | None = None) -> Submission:
    """Select the questions that are scored, among the first ``limit``.

    A question without gold is left out unless one of the metrics scores it (``Metric.needs_gold``).
    """
    first = list(truth.rows.items())[:limit]
    kept = {key: row for key, row in first if any(not metric.needs_gold or metric.gold(row) for metric in metrics)}
    return replace(truth, rows=kept)
