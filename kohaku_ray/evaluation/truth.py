"""Truth files: the gold answers that metrics score against."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.submissions import Submission, read_submission


def read_truth(path: str | os.PathLike[str], metrics: Sequence[Metric]) -> Submission:
    """Read a truth file, with the columns that some metrics need.

    Raises:
        DataError: The file cannot be read, or lacks a column.
    """
    columns = dict.fromkeys(column for metric in metrics for column in metric.truth_columns)
    return read_submission(path, ("id", *columns))


def has_gold(truth: Submission, metrics: Sequence[Metric]) -> bool:
    """Tell whether any question has a gold answer."""
    return any(metric.gold(row) for row in truth.rows.values() for metric in metrics)


def scored_rows(truth: Submission, metrics: Sequence[Metric], limit: int | None = None) -> Submission:
    """Select the questions that are scored.

    Args:
        truth: All questions.
        metrics: A question without gold is left out unless one of them scores it (``Metric.needs_gold``).
        limit: How many questions, from the first; None: all.
    """
    first = list(truth.rows.items())[:limit]
    kept = {
        key: row for key, row in first if any(not metric.needs_gold or bool(metric.gold(row)) for metric in metrics)
    }
    return replace(truth, rows=kept)
