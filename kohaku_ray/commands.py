"""The commands: each takes the parsed arguments and returns the exit code."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kohaku_ray.errors import ConfigError

if TYPE_CHECKING:
    from kohaku_ray.api import Run
    from kohaku_ray.config import Config

OK, FAILED, BAD_CONFIG, ROWS_IN_ERROR = 0, 1, 2, 3
"""Exit codes: all done; anything else; configuration; finished with some rows in error."""

MANY_CELLS = 1000
"""Most cells of a sweep without a confirmation: a wrong axis costs days."""


def _load(arguments: argparse.Namespace) -> Config:
    from kohaku_ray.config import load_config

    with _warnings_told():
        config = load_config([arguments.config, *arguments.others], arguments.overrides)
    arguments.hide = config.hide  # for messages of later errors
    return config


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Print warnings as lines of this command."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        print(f"kohaku-ray: warning: {warning.message}", file=sys.stderr)  # noqa: T201


def index(arguments: argparse.Namespace) -> int:
    """Index the documents."""
    from kohaku_ray.engine.jobs.index import run_index

    summary = run_index(_load(arguments))
    _print(summary.text())
    return ROWS_IN_ERROR if summary.n_rejects else OK


def documents(arguments: argparse.Namespace) -> int:
    """Show what the parser makes of each file."""
    from kohaku_ray.runs.documents import (
        describe_collection,
        describe_tree,
        look_at_pages,
        parse_collection,
        write_trees,
    )

    config = _load(arguments)
    found = parse_collection(config, _say)
    if arguments.document is not None:
        found = found.only(arguments.document)
    found = look_at_pages(found, config, arguments.pictures if arguments.page else 0)
    if arguments.document is not None:
        _print("\n\n".join(map(describe_tree, found.documents)))
    else:
        _print(describe_collection(found))
    if arguments.json is not None:
        _print(f"{len(write_trees(found.documents, arguments.json))} trees in {arguments.json}")
    if arguments.page is not None:
        from kohaku_ray.reporting.documents_page import describe_limits, write_documents_page

        _print(f"page: {write_documents_page(found, arguments.page)}")
        if limits := describe_limits(found.documents):
            _print(limits)
    return ROWS_IN_ERROR if found.rejects else OK


def answer(arguments: argparse.Namespace) -> int:
    """Answer the questions, unless the run is finished."""
    from kohaku_ray.files import is_file
    from kohaku_ray.runs.finished import finished_before
    from kohaku_ray.runs.results import describe_run
    from kohaku_ray.storage import below

    config = _load(arguments)
    summary = None if arguments.again or arguments.retry else finished_before(config)
    page = not arguments.no_report
    if summary is not None:
        _print("finished before, with the same inputs: nothing to do (--again repeats it)\n")
        page = page and not is_file(below(summary.run, "report.html"))
    else:
        _say("answer  starting")
        from kohaku_ray.engine.jobs.answer import run_answer

        summary = run_answer(config, retry_errors=arguments.retry == "errors", strict=arguments.strict)
    _print(describe_run(config, summary))
    if page:
        from kohaku_ray.reporting.report import write_report

        _print(f"page: {write_report(summary.run)}")
    return ROWS_IN_ERROR if summary.n_member_errors or summary.n_unanswered else OK


def ask(arguments: argparse.Namespace) -> int:
    """Answer single questions."""
    columns = dict(_column(text) for text in arguments.column)
    if arguments.question is None and not arguments.watch:
        raise ConfigError("ask has no question: give its text, or --watch to read questions line by line")
    config = _load(arguments)
    _say("ask     starting")
    from kohaku_ray.api import Run

    run, questions = Run(config), [arguments.question] if arguments.question is not None else []
    if not arguments.watch:
        return _show_asked(run.ask(questions[0], **columns), arguments.items)
    code = OK
    with run:
        for question in itertools.chain(questions, sys.stdin):
            if question.strip():
                code = max(code, _show_asked(run.ask(question.strip(), **columns), arguments.items))
    return code


def _show_asked(asked: Run, n_items: int) -> int:
    _print(f"{asked.show(n_items=n_items or None)}\n")
    return ROWS_IN_ERROR if asked.summary and asked.summary.n_member_errors else OK


def _column(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--column {text}: expected NAME=TEXT, such as --column answer_unit=kWh")
    return name.strip(), value


def sweep(arguments: argparse.Namespace) -> int:
    """Run a sweep."""
    from kohaku_ray.config.sweep import load_sweep
    from kohaku_ray.engine.jobs.sweep import dry_run, finish_sweep, run_sweep
    from kohaku_ray.runs.sweep_plan import plan_sweep

    with _warnings_told():
        loaded = load_sweep(arguments.sweep, arguments.base, arguments.overrides, arguments.output)
    n_cells, n_seeds = loaded.sweep.n_cells, len(loaded.sweep.seeds)
    if n_cells > MANY_CELLS and not (arguments.yes or _confirmed(f"{n_cells:,} cells × {n_seeds} seeds")):
        raise ConfigError(
            f"{arguments.sweep} has {n_cells:,} cells × {n_seeds} seeds and nobody confirmed them: narrow its axes, or "
            "give --yes"
        )
    plan = plan_sweep(loaded)
    if arguments.dry_run:
        _print(dry_run(plan))
        return OK
    summary = run_sweep(plan)
    text, files = finish_sweep(plan, summary)
    _print(f"{text}\n\npage: {files[0]}")
    for run_id, reason in list(summary.failed.items())[:10]:
        print(f"kohaku-ray: run {run_id}: {reason}", file=sys.stderr)  # noqa: T201
    return ROWS_IN_ERROR if summary.failed or summary.n_errors else OK


def _confirmed(what: str) -> bool:
    """Ask for a confirmation if the input is a terminal."""
    if not sys.stdin.isatty():
        return False
    return input(f"{what}: go on? [y/N] ").strip().lower() in {"y", "yes"}


def vote(arguments: argparse.Namespace) -> int:
    """Vote over submissions."""
    from kohaku_ray.ensemble.aggregate import run_vote
    from kohaku_ray.ensemble.vote import VoteRule
    from kohaku_ray.runs.directory import submission_of
    from kohaku_ray.runs.sources import read_metadata
    from kohaku_ray.submissions import write_submission

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
    n_blank = sum(verdict.is_blank for verdict in result.verdicts)
    _print(f"{len(result.rows)} questions, {len(arguments.files)} members, {n_blank} abstained: {arguments.output}")
    for file, missing in result.missing.items():
        if missing:
            _print(f"{file}: {len(missing)} questions missing, counted as blank: {', '.join(missing[:10])}")
    return OK


def score(arguments: argparse.Namespace) -> int:
    """Score submissions."""
    from kohaku_ray.evaluation.metrics import find_metric
    from kohaku_ray.evaluation.report import render, run_score
    from kohaku_ray.evaluation.truth import read_gold
    from kohaku_ray.runs.directory import submission_of

    files = [submission_of(run) for run in arguments.files]
    metrics = arguments.metric or [metric.name for metric in read_gold(arguments.truth, [find_metric("wattbot")])[1]]
    report = run_score(arguments.truth, files, metrics, arguments.by, arguments.errors)
    _print(json.dumps(report.records, indent=2) if arguments.json else render(report))
    return OK


def compare(arguments: argparse.Namespace) -> int:
    """Compare runs question by question."""
    from kohaku_ray.evaluation.compare import compare_files, render
    from kohaku_ray.runs.directory import submission_of, truth_of

    truth = arguments.truth or truth_of(arguments.runs)
    files = [submission_of(run) for run in arguments.runs]
    _print(render(compare_files(truth, files, arguments.metric, arguments.by)))
    if arguments.page:
        from kohaku_ray.reporting.compare_page import write_comparison

        _print(f"\npage: {write_comparison(truth, arguments.runs, arguments.page, arguments.metric)}")
    return OK


def validate(arguments: argparse.Namespace) -> int:
    """Check a configuration."""
    from kohaku_ray.config import as_yaml
    from kohaku_ray.runs.validate import validate

    config = _load(arguments)
    if arguments.settings:
        _print(as_yaml(config))
    found = validate(config)
    _print(config.hide("\n".join(found.lines)))
    for problem in found.problems:
        print(f"kohaku-ray: {config.hide(str(problem))}", file=sys.stderr)  # noqa: T201
    if found.problems:
        return BAD_CONFIG if any(isinstance(one, ConfigError) for one in found.problems) else FAILED
    _print("valid")
    return _probe(config) if arguments.probe else OK


def _probe(config: Config) -> int:
    from kohaku_ray.engine.jobs.probe import run_probe

    probed = run_probe(config)
    for one in probed:
        if one.is_usable:
            _print(config.hide(one.text))
    if unusable := [one.text for one in probed if not one.is_usable]:
        raise ConfigError("\nkohaku-ray: ".join(unusable))
    return OK


def show(arguments: argparse.Namespace) -> int:
    """Print how a question was answered."""
    from kohaku_ray.runs.show import show_question

    _print(show_question(arguments.run, arguments.question_id, arguments.items or None))
    return OK


def report(arguments: argparse.Namespace) -> int:
    """Write a run's page."""
    from kohaku_ray.reporting.report import write_report

    _print(write_report(arguments.run, arguments.truth, arguments.output))
    return OK


def index_map(arguments: argparse.Namespace) -> int:
    """Plot an index's vectors."""
    from kohaku_ray.reporting.index_map import write_index_map

    _print(write_index_map(arguments.index, arguments.output))
    return OK


def bench(arguments: argparse.Namespace) -> int:
    """Measure throughput."""
    from kohaku_ray.engine.jobs.bench import run_bench
    from kohaku_ray.engine.jobs.bench_grid import Grid
    from kohaku_ray.reporting.throughput import describe
    from kohaku_ray.reporting.throughput_page import FILES

    names = ("replicas", "members", "concurrency", "questions", "context_tokens", "output_tokens")
    grid = Grid(**{name: getattr(arguments, name) for name in names})
    try:
        bench = run_bench(_load(arguments), grid, arguments.output)
    except KeyboardInterrupt:
        print(f"interrupted: what was measured is in {arguments.output}", file=sys.stderr)  # noqa: T201
        return FAILED
    _print(f"{describe(bench)}\n\noutputs in {arguments.output}: {', '.join(FILES)}")
    return ROWS_IN_ERROR if bench.n_failed else OK


def _say(text: str) -> None:
    """Print a progress line to stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _print(text: Any) -> None:
    """Print without control characters: text of documents and models must not control the terminal."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in str(text))
    print(shown, flush=True)  # noqa: T201
