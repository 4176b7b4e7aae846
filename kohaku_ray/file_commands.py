"""The commands that read runs and files and start nothing; each returns its outcome."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from kohaku_ray.outcome import Outcome
from kohaku_ray.pages.terminal import tell


def vote(arguments: argparse.Namespace) -> Outcome:
    """Vote over submissions."""
    from kohaku_ray.ensemble.rule import VoteRule
    from kohaku_ray.evaluation.submissions import write_submission
    from kohaku_ray.run.answer_lines import answer_line, as_lines, counted_verdict
    from kohaku_ray.run.directory import submission_of
    from kohaku_ray.run.sources import read_metadata
    from kohaku_ray.run.vote_files import run_vote
    from kohaku_ray.storage import publish

    rule = VoteRule(
        strategy=arguments.strategy,
        ignore_blank=arguments.ignore_blank,
        blank_quorum=arguments.blank_quorum,
        refs=arguments.refs,
        weights=arguments.weights,
        tiebreak=arguments.tiebreak,
        compat=arguments.compat,
    )
    metadata = read_metadata(arguments.metadata) or None
    result = run_vote([submission_of(run) for run in arguments.files], rule, metadata)
    write_submission(arguments.output, result.rows)
    if arguments.jsonl:
        voted = zip(result.rows, result.verdicts, strict=True)
        publish(
            arguments.jsonl, "".join(as_lines(answer_line(row, counted_verdict(one)) for row, one in voted)).encode()
        )
    n_blank = sum(verdict.is_blank for verdict in result.verdicts)
    line = f"{len(result.rows)} questions, {len(arguments.files)} members, {n_blank} abstained: {arguments.output}"
    tell(line)
    missing = {file: lacking for file, lacking in result.missing.items() if lacking}
    for file, lacking in missing.items():
        tell(f"{file}: {len(lacking)} questions missing, counted as blank: {', '.join(lacking[:10])}")
    values = {
        "output": arguments.output,
        "n_questions": len(result.rows),
        "n_members": len(arguments.files),
        "n_abstained": n_blank,
        "missing": missing,
    }
    return Outcome("vote", line, values)


def score(arguments: argparse.Namespace) -> Outcome:
    """Score submissions."""
    from kohaku_ray.evaluation.metrics import find_metric
    from kohaku_ray.evaluation.report import run_score
    from kohaku_ray.evaluation.truth import read_gold
    from kohaku_ray.pages.score_text import describe_scores
    from kohaku_ray.run.directory import submission_of, truth_of

    truth = arguments.truth or truth_of(arguments.files)
    files, metrics, note = [submission_of(run) for run in arguments.files], arguments.metric, ""
    if not metrics:
        _, found, note = read_gold(truth, [find_metric("wattbot")])
        metrics = [metric.name for metric in found]
    report = run_score(truth, files, metrics, arguments.by, arguments.errors)
    tell("\n\n".join(part for part in (note, describe_scores(report)) if part))
    if arguments.jsonl:
        _write_question_scores(truth, files, metrics, arguments.jsonl)
    values = {"truth": truth, "metrics": metrics, "records": report.records, "note": note}
    lines = [
        "  ".join(str(part) for part in (one["file"], one["metric"], one.get("label"), f"{one['score']:.4f}") if part)
        for one in report.records
    ]
    return Outcome("score", "\n".join(lines), values)


def _write_question_scores(truth: str, files: list[str], metrics: list[str], output: str) -> None:
    """Write one JSON line per file and question."""
    from kohaku_ray.evaluation.metrics import find_metric
    from kohaku_ray.evaluation.submissions import read_submission
    from kohaku_ray.evaluation.truth import read_truth
    from kohaku_ray.run.answer_lines import as_lines, question_scores
    from kohaku_ray.storage import publish

    found = [find_metric(name) for name in metrics]
    gold = read_truth(truth, found)
    scored = ((file, question_scores(gold, found, read_submission(file))) for file in files)
    lines = ({"file": file, "id": key, "score": score} for file, scores in scored for key, score in scores.items())
    publish(output, "".join(as_lines(lines)).encode())


def compare(arguments: argparse.Namespace) -> Outcome:
    """Compare runs question by question."""
    from kohaku_ray.evaluation.compare import compare_files
    from kohaku_ray.pages.score_text import describe_comparison
    from kohaku_ray.run.directory import submission_of, truth_of

    truth = arguments.truth or truth_of(arguments.runs)
    files = [submission_of(run) for run in arguments.runs]
    compared = compare_files(truth, files, arguments.metric, arguments.by)
    tell(describe_comparison(compared))
    page = None
    if arguments.page:
        from kohaku_ray.pages.compare_page import write_comparison

        page = write_comparison(truth, arguments.runs, arguments.page, arguments.metric)
        tell(f"\npage: {page}")
    pair = compared.pair
    scores = [
        {"file": file, "score": one.score, "parts": one.parts, "n": one.n}
        for file, one in zip(compared.files, compared.scores, strict=True)
    ]
    values = {
        "truth": compared.truth,
        "metric": compared.metric,
        "n_questions": len(compared.question_ids),
        "scores": scores,
        "pair": pair
        and {
            "difference": pair.interval.mean,
            "low": pair.interval.low,
            "high": pair.interval.high,
            "p": pair.permutation.p,
            "n_lost": pair.n_lost,
            "n_won": pair.n_won,
            "flips": [asdict(flip) for flip in pair.flips],
        },
        "notes": compared.notes,
        "page": page,
    }
    flips = "" if pair is None else f"; {pair.n_won} values won, {pair.n_lost} lost"
    shown = ", ".join(f"{one['file']} {one['score']:.4f}" for one in scores)
    return Outcome("compare", f"{compared.metric}: {shown}{flips}", values)


def show(arguments: argparse.Namespace) -> Outcome:
    """Print how a question was answered."""
    from kohaku_ray.run.show import describe_question, describe_vote, question_rows

    rows = question_rows(arguments.run, arguments.question_id)
    tell(describe_question(rows, arguments.items or None))
    tables = {name: rows[name] for name in ("answers", "trace", "usage")}
    vote = rows["votes"][0]
    return Outcome("show", describe_vote(vote), {"run": arguments.run, "vote": vote, **tables})


def report(arguments: argparse.Namespace) -> Outcome:
    """Write a run's page."""
    from kohaku_ray.pages.report import write_report

    page = write_report(arguments.run, arguments.truth, arguments.output)
    tell(page)
    return Outcome("report", page, {"page": page})


def index_map(arguments: argparse.Namespace) -> Outcome:
    """Plot an index's vectors."""
    from kohaku_ray.pages.index_map import write_index_map

    plot = write_index_map(arguments.index, arguments.output)
    tell(plot)
    return Outcome("map", plot, {"plot": plot})
