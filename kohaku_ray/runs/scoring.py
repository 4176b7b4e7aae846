"""Score a run against gold answers, for its page and for the terminal, and list its files for readers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kohaku_ray.errors import ConfigError, DataError, MetricError
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.evaluation.report import ScoreReport, run_score
from kohaku_ray.evaluation.submissions import Submission, read_submission
from kohaku_ray.evaluation.truth import NoGoldError, read_gold, scored_rows
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.records import pluralize
from kohaku_ray.store.storage import is_file, join_path, read_file, without_options
from kohaku_ray.store.tables import ANSWER_FILES, SCHEMAS
from kohaku_ray.values.read import clean_text

if TYPE_CHECKING:
    from kohaku_ray.config import Config


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run's scores by its metrics, the headline first; the note says which were left out, or replaced, and why."""

    truth: Submission
    metrics: tuple[Metric, ...]
    report: ScoreReport
    note: str = ""


def score_run(
    run: str, truth: str, metrics: Sequence[str], limit: int | None, split_by: Sequence[str] = ()
) -> tuple[ScoredRun | None, str]:
    """Score a run's submission; returns the scores, or None with the reason.

    Args:
        run: The run's directory.
        truth: A file that may hold gold answers (see ``read_gold``).
        metrics: Names of metrics, the headline first.
        limit: The run's ``questions.limit``: it answered so many first questions of its file; None: all.
        split_by: Columns of the truth by which figures of the whole run are split.
    """
    left_out = ""
    for _ in metrics:
        try:
            scored, reason = _score_run(run, truth, metrics, limit, split_by)
        except MetricError as error:  # a metric of the user's own: the others, and the page, go on without it
            metrics = [name for name in metrics if find_metric(name).name != error.metric]
            left_out += f"{clean_text(str(error))}. "
            continue
        if scored is not None:
            scored = replace(scored, note=f"{left_out}{scored.note}".strip())
        return scored, reason
    return None, f"Nothing is scored: {left_out.strip()}"


def _score_run(
    run: str, truth: str, metrics: Sequence[str], limit: int | None, split_by: Sequence[str]
) -> tuple[ScoredRun | None, str]:
    name, predicted = os.path.basename(without_options(truth)), join_path(run, "submission.csv")
    path = join_path(run, "run.json")
    facts = json.loads(read_file(path)) if is_file(path) else {}
    n_answers, n_errors, n_unanswered = (
        facts.get(count) or 0 for count in ("n_answers", "n_member_errors", "n_unanswered")
    )
    if n_answers and n_errors >= n_answers and n_unanswered >= n_answers:  # its blank answers would have a score
        reason = next(iter(facts.get("errors") or {}), "no reason given")
        return None, f"Nothing is scored: no model call got a reply ({reason})."
    try:
        asked = {find_metric(metric): metric for metric in metrics}
        given, fitting, note = read_gold(truth, tuple(asked))
    except (ConfigError, NoGoldError) as error:
        return None, f"Nothing is scored: {error}"
    except DataError as error:
        return None, f"Nothing is scored, {name} is no truth file: {error}"
    answered = dict.fromkeys(read_submission(predicted).rows)
    if answered and not given.rows.keys() & answered.keys():
        return None, (
            f"Nothing is scored: none of the {len(given.rows)} ids of {name} is in the run: there it is "
            f"{next(iter(given.rows), 'nothing')}, here {next(iter(answered))}: make the ids agree."
        )
    first = dict(list(given.rows.items())[:limit])
    if first.keys() != answered.keys():
        limit = None  # the first questions of another file are not those the run answered
    names = [asked.get(metric, metric.name) for metric in fitting]
    report = run_score(truth, [predicted], names, errors=True, limit=limit, split_by=split_by)
    return ScoredRun(scored_rows(given, fitting, limit), fitting, report, note), ""


def outputs_of(config: Config) -> tuple[str, ...]:
    """List the files that a run writes for its readers."""
    return (*ANSWER_FILES, *(f"{name}.parquet" for name in SCHEMAS), *config.declaration.outputs)


def scores_of(config: Config, summary: AnswerSummary) -> tuple[ScoredRun | None, str]:
    """Score a finished run against its own question file; see ``score_run``."""
    from kohaku_ray.collection.sources import resolve  # pages import this module, and no configuration

    system, questions = config.declaration, config.questions
    return score_run(summary.run, resolve(questions.path), config.metrics, questions.limit, system.columns.split_by)


def headline(scored: ScoredRun | None, why_not: str, summary: AnswerSummary) -> str:
    """Say in one line how a run ended: its scores, its errors, its directory."""
    scores = (
        ", ".join(f"{record['metric']} {record['score']:.4f}" for record in scored.report.records)
        if scored
        else why_not
    )
    errors = f", {pluralize(summary.n_member_errors, 'answer')} with an error" if summary.n_member_errors else ""
    return f"{scores.rstrip('.')}; {pluralize(summary.n_questions, 'question')}{errors}: {summary.run}"
