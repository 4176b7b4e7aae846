"""The scores of a finished run, and the files it wrote."""

from __future__ import annotations

from kohaku_ray.config import Config
from kohaku_ray.run.scoring import ScoredRun, score_run
from kohaku_ray.run.sources import resolve
from kohaku_ray.run.summary import AnswerSummary
from kohaku_ray.run.tables import ANSWER_FILES, SCHEMAS


def outputs_of(config: Config) -> tuple[str, ...]:
    """List the files that a run writes for its readers."""
    return (*ANSWER_FILES, *(f"{name}.parquet" for name in SCHEMAS), *config.declaration.outputs)


def scores_of(config: Config, summary: AnswerSummary) -> tuple[ScoredRun | None, str]:
    """Score a finished run against its own question file; see ``score_run``."""
    system, questions = config.declaration, config.questions
    return score_run(summary.run, resolve(questions.path), system.metrics, questions.limit, system.columns.split_by)


def headline(scored: ScoredRun | None, why_not: str, summary: AnswerSummary) -> str:
    """Say in one line how a run ended: its scores, its errors, its directory."""
    scores = ", ".join(f"{one['metric']} {one['score']:.4f}" for one in scored.report.records) if scored else why_not
    errors = f", {summary.n_member_errors} answers with an error" if summary.n_member_errors else ""
    return f"{scores.rstrip('.')}; {summary.n_questions} questions{errors}: {summary.run}"
