"""The commands: each takes the parsed arguments and returns its outcome."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kohaku_ray.errors import ConfigError
from kohaku_ray.outcome import BAD_CONFIG, FAILED, OK, ROWS_IN_ERROR, Outcome
from kohaku_ray.pages.terminal import complain, say, tell

if TYPE_CHECKING:
    from kohaku_ray.api import Run
    from kohaku_ray.config import Config
    from kohaku_ray.run.probe import Probed

MANY_CELLS = 1000
"""Most cells of a sweep without a confirmation: a wrong axis costs days."""


def _load(arguments: argparse.Namespace) -> Config:
    from kohaku_ray.config import load_config

    config = load_config([arguments.config, *arguments.others], arguments.overrides)
    arguments.hide = config.hide  # for messages of later errors
    return config


def init(arguments: argparse.Namespace) -> Outcome:
    """Write a configuration and templates to start from."""
    from kohaku_ray.run.starter import CONFIG, next_steps, write_converted, write_starter

    if arguments.source is None:
        written = write_starter(arguments.directory, with_gold=arguments.gold)
    else:
        written, left_out = write_converted(arguments.source, arguments.directory)
        for name, reason in left_out.items():
            say(f"kohaku-ray: not taken over as written: {name} ({reason})")
    tell(next_steps(arguments.directory, written))
    line = os.path.join(arguments.directory, CONFIG)
    return Outcome("init", line, {"directory": arguments.directory, "files": written})


def completion(arguments: argparse.Namespace) -> Outcome:
    """Print a shell's completion script."""
    from kohaku_ray.completion import script_of

    script = script_of(arguments.shell)
    tell(script)
    return Outcome("completion", script, {"shell": arguments.shell, "script": script})


def index(arguments: argparse.Namespace) -> Outcome:
    """Index the documents."""
    from kohaku_ray.engine.jobs.index import run_index

    summary = run_index(_load(arguments))
    tell(summary.text())
    rejects = f", {summary.n_rejects} rejected" if summary.n_rejects else ""
    seconds = {"parse": summary.parse_s, "encode": summary.encode_s, "reduce": summary.reduce_s, "all": summary.wall_s}
    values = {
        "path": summary.path,
        "n_files": summary.n_files,
        "counts": summary.counts,
        "n_rejects": summary.n_rejects,
        "rejects": [{"file": file, "reason": reason} for file, reason in summary.rejects],
        "seconds": seconds,
    }
    line = f"{summary.counts['n_documents']} documents{rejects}: {summary.path}"
    return Outcome("index", line, values, ROWS_IN_ERROR if summary.n_rejects or summary.n_caption_errors else OK)


def documents(arguments: argparse.Namespace) -> Outcome:
    """Show what the parser makes of each file."""
    from kohaku_ray.run.documents import (
        describe_collection,
        describe_tree,
        parse_collection,
        write_trees,
    )

    config = _load(arguments)
    found = parse_collection(config, say)
    if arguments.document is not None:
        found = found.only(arguments.document)
    if arguments.document is not None:
        tell("\n\n".join(map(describe_tree, found.documents)))
    else:
        tell(describe_collection(found))
    if arguments.trees is not None:
        tell(f"{len(write_trees(found.documents, arguments.trees))} trees in {arguments.trees}")
    values = {
        "n_files": found.n_files,
        "documents": [
            {
                "doc_id": view.document.doc_id,
                "title": view.document.title,
                "file": view.file,
                "counts": view.counts,
                "odd": view.odd,
            }
            for view in found.documents
        ],
        "rejects": [{"file": file, "reason": reason} for file, reason in found.rejects],
        "trees": arguments.trees,
    }
    line = f"{len(found.documents)} documents of {found.n_files} files, {len(found.rejects)} rejected"
    return Outcome("documents", line, values, ROWS_IN_ERROR if found.rejects else OK)


def answer(arguments: argparse.Namespace) -> Outcome:
    """Answer the questions, unless the run is finished."""
    from kohaku_ray.pages.score_text import describe_run
    from kohaku_ray.run.directory import facts_of
    from kohaku_ray.run.identity import finished_before
    from kohaku_ray.run.results import headline, outputs_of, scores_of
    from kohaku_ray.run.tracking import check_tracking, is_tracked, track
    from kohaku_ray.storage import below, is_file

    config = _load(arguments)
    check_tracking(config)
    summary = None if arguments.again or arguments.retry else finished_before(config)
    is_done, page = summary is not None, None
    if summary is not None:
        tell("finished before, with the same inputs: nothing to do (--again repeats it)\n")
    else:
        say("answer  starting")
        from kohaku_ray.engine.jobs.answer import run_answer

        if not arguments.no_report:  # its drawing library is imported while Ray starts
            threading.Thread(target=importlib.import_module, args=("kohaku_ray.pages.report",), daemon=True).start()
        summary = run_answer(config, retry_errors=arguments.retry == "errors", strict=arguments.strict)
    scored, why_not = scores_of(config, summary)
    tell(describe_run(summary, facts_of(config), config.ensemble.members, scored, why_not))
    if not arguments.no_report:
        from kohaku_ray.pages.report import write_report

        page = below(summary.run, "report.html")
        if not is_done or not is_file(page):
            tell(f"page: {write_report(summary.run)}")
    tracked = None if is_done and is_tracked(config) else track(config, summary, scored)
    if tracked is not None:
        tell(f"tracked: {tracked}")
    values = {
        "run": summary.run,
        "finished_before": is_done,
        "n_questions": summary.n_questions,
        "n_answers": summary.n_answers,
        "n_errors": summary.n_member_errors,
        "n_unanswered": summary.n_unanswered,
        "stopped": summary.stopped,
        "errors": summary.errors,
        "calls": summary.n_calls,
        "used": summary.spent,
        "seconds": summary.wall_s,
        "scores": scored.report.records if scored is not None else [],
        "why_unscored": why_not,
        "outputs": outputs_of(config),
        "page": page,
        "tracked": tracked,
    }
    code = ROWS_IN_ERROR if summary.n_member_errors or summary.n_unanswered else OK
    return Outcome("answer", headline(scored, why_not, summary), values, code)


def ask(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Answer single questions."""
    columns = dict(_column(text) for text in arguments.column)
    if arguments.question is None and not arguments.watch:
        raise ConfigError("ask has no question: give its text, or --watch to read questions line by line")
    config = _load(arguments)
    say("ask     starting")
    from kohaku_ray.api import Run

    run, questions = Run(config), [arguments.question] if arguments.question is not None else []
    if not arguments.watch:
        yield _asked(run.ask(questions[0], **columns), arguments.items)
        return
    with run:
        for question in itertools.chain(questions, sys.stdin):
            if question.strip():
                yield _asked(run.ask(question.strip(), **columns), arguments.items)


def _asked(asked: Run, n_items: int) -> Outcome:
    from kohaku_ray.storage import below, read_file

    tell(f"{asked.show(n_items=n_items or None)}\n")
    line = json.loads(read_file(below(asked.path, "answers.jsonl")).splitlines()[0])
    n_errors = asked.summary.n_member_errors if asked.summary else 0
    seconds = asked.summary.wall_s if asked.summary else 0.0
    values = {"run": asked.path, "answer": line, "n_errors": n_errors, "seconds": seconds}
    value = "no answer" if line["answer_value"] is None else f"{line['answer_value']} {line['unit'] or ''}".rstrip()
    said = f"{value}  [{', '.join(line['refs'])}]"
    return Outcome("ask", said, values, ROWS_IN_ERROR if n_errors else OK)


def _column(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--column {text}: expected NAME=TEXT, such as --column answer_unit=kWh")
    return name.strip(), value


def sweep(arguments: argparse.Namespace) -> Outcome:
    """Run a sweep."""
    from kohaku_ray.engine.jobs.sweep import dry_run, finish_sweep, run_sweep
    from kohaku_ray.run.tracking import check_tracking
    from kohaku_ray.sweep.collect import track_sweep
    from kohaku_ray.sweep.load import load_sweep
    from kohaku_ray.sweep.plan import plan_sweep

    loaded = load_sweep(arguments.sweep, arguments.base, arguments.overrides, arguments.output)
    n_cells, n_seeds = loaded.sweep.n_cells, len(loaded.sweep.seeds)
    if n_cells > MANY_CELLS and not (arguments.yes or _confirmed(f"{n_cells:,} cells × {n_seeds} seeds")):
        raise ConfigError(
            f"{arguments.sweep} has {n_cells:,} cells × {n_seeds} seeds and nobody confirmed them: narrow its axes, or "
            "give --yes"
        )
    plan = plan_sweep(loaded)
    values: dict[str, Any] = {"plan": None, "n_cells": n_cells, "n_runs": len(plan.runs)}
    if arguments.dry_run:
        described = dry_run(plan)
        tell(described)
        none = {
            "n_made": 0,
            "n_errors": 0,
            "failed": {},
            "skipped": {},
            "page": None,
            "files": [],
            "tracked": [],
            "seconds": 0.0,
        }
        return Outcome("sweep", f"{n_cells:,} cells, {len(plan.runs):,} runs", values | none | {"plan": described})
    for config in plan.runs.values():
        check_tracking(config)
    summary = run_sweep(plan)
    text, files = finish_sweep(plan, summary)
    tell(f"{text}\n\npage: {files[0]}")
    tracked = track_sweep(plan, files, summary.figures())
    if tracked:
        tell(f"tracked: {len(tracked) - 1} runs and {tracked[-1]}")
    for run_id, reason in list(summary.failed.items())[:10]:
        complain(f"kohaku-ray: run {run_id}: {reason}")
    values |= {
        "n_made": summary.n_made,
        "n_errors": summary.n_errors,
        "failed": summary.failed,
        "skipped": summary.skipped,
        "page": files[0],
        "files": files,
        "tracked": tracked,
        "seconds": summary.wall_s,
    }
    line = f"{summary.n_runs} runs, {summary.n_made} made now, {len(summary.failed)} failed: {files[0]}"
    return Outcome("sweep", line, values, ROWS_IN_ERROR if summary.failed or summary.n_errors else OK)


def _confirmed(what: str) -> bool:
    """Ask for a confirmation if the input is a terminal."""
    if not sys.stdin.isatty():
        return False
    say(f"{what}: go on? [y/N]")
    return input().strip().lower() in {"y", "yes"}


def validate(arguments: argparse.Namespace) -> Outcome:
    """Check a configuration."""
    from kohaku_ray.config import as_yaml
    from kohaku_ray.run.validate import validate

    config = _load(arguments)
    if arguments.settings:
        tell(as_yaml(config))
    found = validate(config)
    tell(config.hide("\n".join(found.lines)))
    problems, probes = [str(problem) for problem in found.problems], []
    if not problems:
        probes = _probed(config) if arguments.probe else []
        if all(one.is_usable for one in probes):
            tell("valid")
    for problem in (*problems, *(one.text for one in probes if not one.is_usable)):
        complain(f"kohaku-ray: {config.hide(problem)}")
    is_config = any(isinstance(one, ConfigError) for one in found.problems) or any(not one.is_usable for one in probes)
    code = BAD_CONFIG if is_config else FAILED if problems else OK
    values = {
        "valid": not problems,
        "findings": found.lines,
        "problems": problems,
        "probes": [{"text": one.text, "is_usable": one.is_usable} for one in probes],
    }
    return Outcome(
        "validate", "valid" if code == OK else "not valid" if problems else "valid, not usable", values, code
    )


def _probed(config: Config) -> list[Probed]:
    from kohaku_ray.engine.jobs.probe import run_probe

    probed = run_probe(config)
    for one in probed:
        if one.is_usable:
            tell(config.hide(one.text))
    return probed


def bench(arguments: argparse.Namespace) -> Outcome:
    """Measure throughput."""
    from kohaku_ray.engine.jobs.bench import run_bench
    from kohaku_ray.engine.jobs.bench_grid import Grid
    from kohaku_ray.pages.throughput import FILES, describe

    names = ("replicas", "members", "concurrency", "questions", "context_tokens", "output_tokens")
    grid = Grid(**{name: getattr(arguments, name) for name in names})
    try:
        bench = run_bench(_load(arguments), grid, arguments.output)
    except KeyboardInterrupt:
        complain(f"what was measured is in {arguments.output}")
        raise
    tell(f"{describe(bench)}\n\noutputs in {arguments.output}: {', '.join(FILES)}")
    values = {"output": arguments.output, "files": FILES, "n_cells": len(bench.cells), "n_failed": bench.n_failed}
    line = f"{len(bench.cells)} cells, {bench.n_failed} failed: {arguments.output}"
    return Outcome("bench", line, values, ROWS_IN_ERROR if bench.n_failed else OK)
