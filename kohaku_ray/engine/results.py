"""What the answer command prints when it is done."""

from __future__ import annotations

import os

from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.answering import AnswerSummary
from kohaku_ray.engine.sources import resolve
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.report import ScoreReport, render, run_score
from kohaku_ray.reporting.report import write_report


def describe_run(config: Config, summary: AnswerSummary) -> str:
    """Lay out counts, scores where the question file holds gold answers, and where the outputs lie."""
    calls = summary.n_calls
    n_calls = sum(calls.values())
    n_answers = summary.n_questions * config.ensemble.members
    parts = [
        f"{summary.n_questions} questions × {config.ensemble.members} members in {summary.wall_s:.1f} s: "
        f"{n_calls} model calls ({calls['made']} made, {calls['ledger']} from the ledger, {calls['joined']} shared)"
    ]
    if config.deployments[config.generation.model].kind == "extractive":
        parts.append("answered by the extractive backend: no model, a floor to compare models with")
    if summary.n_member_errors:
        parts.append(
            f"{summary.n_member_errors} of {n_answers} answers carry an error (column `error` of answers.parquet); "
            f"{summary.n_questions_in_error} questions have no answer without one"
        )
    report = score_run(config, summary.run)
    if report is not None:
        parts.append(render(report))
    parts.append(
        f"outputs in {summary.run}: submission.csv, answers.parquet, votes.parquet, plans.parquet, evidence.parquet, "
        f"usage.parquet\n`kohaku-ray show {summary.run} QUESTION_ID` shows how one was answered"
    )
    return "\n\n".join(parts)


def score_run(config: Config, run: str) -> ScoreReport | None:
    """Score a run against its question file; None where that holds no gold answers."""
    truth = resolve(config.questions.path)
    if not truth.endswith(".csv"):
        return None
    try:
        return run_score(truth, [f"{run}/submission.csv"], ("wattbot", "kaggle"), limit=config.questions.limit)
    except DataError:
        return None


def write_run_report(run: str, truth: str | None = None, output: str | None = None) -> str:
    """Write a run's page and return its path; gold answers come from the run's own question file unless named.

    Raises:
        DataError: The run has not finished, or a file cannot be read or written.
    """
    if truth is None:
        config = load_config(f"{run}/config.yaml") if os.path.exists(f"{run}/config.yaml") else Config()
        questions = resolve(config.questions.path)
        truth = questions if questions.endswith(".csv") and os.path.exists(questions) else None
    return write_report(run, truth, output)
