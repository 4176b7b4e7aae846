"""A run scored against gold answers, for its page and for the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.evaluation.report import ScoreReport, run_score
from kohaku_ray.evaluation.truth import has_gold, read_truth, scored_rows
from kohaku_ray.storage import below, without_options
from kohaku_ray.submissions import Submission, read_submission


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run's scores.

    Attributes:
        truth: The gold answers.
        metrics: Metrics, the headline first.
        report: Scores and counts of error classes.
    """

    truth: Submission
    metrics: tuple[Metric, ...]
    report: ScoreReport


def score_run(
    run: str, truth: str, metrics: Sequence[str], limit: int | None, split_by: Sequence[str] = ()
) -> tuple[ScoredRun | None, str]:
    """Score a run's submission.

    Args:
        run: The run's directory.
        truth: A CSV that may hold gold answers.
        metrics: Names of metrics, the headline first.
        limit: The run's ``questions.limit``: it answered so many first questions of its file; None: all.
        split_by: Columns of the truth by which figures of the whole run are split.

    Returns:
        The scores, or None with the reason.
    """
    name, predicted = os.path.basename(without_options(truth)), below(run, "submission.csv")
    try:
        found = tuple(map(find_metric, metrics))
        given = read_truth(truth, found)
    except DataError as error:
        return None, f"Nothing is scored, {name} is no truth file: {error}"
    except ConfigError as error:
        return None, f"Nothing is scored: {error}"
    if not has_gold(given, found):
        return None, f"Nothing is scored: {name} has no gold answers."
    first = dict(list(given.rows.items())[:limit])
    if first.keys() != read_submission(predicted).rows.keys():
        limit = None  # the first questions of another file are not those the run answered
    report = run_score(truth, [predicted], metrics, errors=True, limit=limit, split_by=split_by)
    return ScoredRun(scored_rows(given, found, limit), found, report), ""
