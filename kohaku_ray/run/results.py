"""What the answer command prints when it is done."""

from __future__ import annotations

from dataclasses import replace

from kohaku_ray.config import Config
from kohaku_ray.evaluation.report import render
from kohaku_ray.run.directory import baseline_note, facts_of
from kohaku_ray.run.failures import describe_errors
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


def describe_run(config: Config, summary: AnswerSummary, scores: tuple[ScoredRun | None, str] | None = None) -> str:
    """Format counts, scores if the question file holds gold answers, and the paths of the outputs.

    Args:
        config: The run.
        summary: Its counts.
        scores: See ``scores_of``, which is called without them.
    """
    scored, why_not = scores or scores_of(config, summary)
    calls = summary.n_calls
    n_calls = sum(calls.values())
    n_answers, n_full = summary.n_answers, summary.n_questions * config.ensemble.members
    parts = [
        f"{summary.n_questions} questions × {config.ensemble.members} members in {summary.wall_s:.1f} s: "
        f"{n_calls} model calls ({calls['made']} made, {calls['ledger']} from the ledger, "
        f"{calls['joined']} sharing the reply of an equal call under way)"
    ]
    if n_answers < n_full:
        saved = n_full - n_answers
        parts.append(f"votes settled early: {saved} of {n_full} answers not asked ({saved / n_full:.0%})")
    if summary.spent.get("prompt_tokens"):
        parts.append(_spent(summary))
    if note := baseline_note(facts_of(config)):
        parts.append(note)
    if summary.n_member_errors:
        parts.append(
            f"{summary.n_member_errors} of {n_answers} answers carry an error (column `error` of answers.parquet); "
            f"{summary.n_questions_in_error} questions have no answer without an error"
        )
    parts += describe_errors(summary.errors)
    if summary.stopped:
        parts.append(f"stopped asking: {summary.stopped}")
    if summary.n_unanswered:
        parts.append(f"{summary.n_unanswered} model calls got no reply: repeat the command to make them again")
    elif summary.n_member_errors:
        parts.append("those replies are recorded: `kohaku-ray answer CONFIG --retry errors` asks for them again")
    if scored is None:
        parts.append(why_not)
    else:
        parts += [*([scored.note] if scored.note else []), render(replace(scored.report, errors=False))]
    parts.append(
        f"outputs in {summary.run}: {', '.join(outputs_of(config))}\n"
        f"`kohaku-ray show {summary.run} QUESTION_ID` shows how one was answered"
    )
    return "\n\n".join(parts)


def _spent(summary: AnswerSummary) -> str:
    spent = summary.spent
    share = spent["cached_tokens"] / spent["prompt_tokens"]
    parts = [
        f"{spent['prompt_tokens']:,.0f} prompt tokens ({share:.0%} from the prefix cache)",
        f"{spent['completion_tokens']:,.0f} generated",
        f"{spent['queue_s']:.1f} s of waiting for a replica and {spent['service_s']:.1f} s in replicas, summed over "
        "the calls",
    ]
    if spent["gpu_s"]:
        parts.append(f"{spent['gpu_s']:.1f} GPU s")
    if spent.get("joules"):
        parts.append(f"{spent['joules'] / 1000:.1f} kJ")
    if spent["dollars"]:
        parts.append(f"${spent['dollars']:.4f}")
    n_placed, n_moved = sum(summary.n_placed.values()), sum(summary.n_moved.values())
    if n_placed:
        parts.append(f"{n_placed} questions placed on replicas, {n_moved} of them moved off an overloaded one")
    return "used by the calls made: " + ", ".join(parts)
