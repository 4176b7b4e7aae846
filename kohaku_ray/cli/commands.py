"""The commands: each takes the parsed arguments and returns its outcome."""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from kohaku_ray.cli.results import (
    AnswerResult,
    AskResult,
    BenchResult,
    CompareResult,
    CompletionResult,
    DocsResult,
    DocumentsResult,
    FileScore,
    IndexResult,
    InitResult,
    PairResult,
    ParsedDocument,
    RejectedFile,
    ReplayResult,
    ReportResult,
    RunsResult,
    ScoreResult,
    ShowResult,
    SweepResult,
    ValidateResult,
    VoteResult,
    take_fields,
)
from kohaku_ray.errors import ConfigError, DataError, did_you_mean, is_mistake
from kohaku_ray.outcomes import BAD_CONFIG, FAILED, OK, ROWS_IN_ERROR, Outcome, plain
from kohaku_ray.pages.terminal import Progress, print_error, print_progress, print_result

if TYPE_CHECKING:
    from kohaku_ray.api import Run
    from kohaku_ray.config import Config
    from kohaku_ray.runs.files import SentPrompt


T = TypeVar("T")
MANY_CELLS = 1000
"""Most cells of a sweep without a confirmation: a wrong axis costs days."""

ITEMS = 5
"""Items per step that ``ask --trace`` shows."""

SHELLS = ("bash", "zsh", "fish")


def _load(arguments: argparse.Namespace) -> Config:
    from kohaku_ray.config import load_config

    config = load_config([arguments.config, *arguments.others], arguments.overrides)
    arguments.hide = lambda text: config.hide(_as_typed(text, arguments))  # for messages of later errors
    return config


_HINT = re.compile(r"kohaku-ray (\w+) CONFIG(?P<more>[^`]*`)(?:, or `run\.\w+\(\)` in Python,?)?")


def _as_typed(text: str, arguments: argparse.Namespace) -> str:
    """Write the configuration that was typed in a hint that names a command, ready to be copied."""
    others = (part for name in arguments.others for part in ("--with", name))
    overrides = (part for override in arguments.overrides for part in ("--set", override))
    typed = shlex.join([arguments.config, *others, *overrides])
    return _HINT.sub(lambda hint: f"kohaku-ray {hint[1]} {typed}{hint['more']}", text)


def init(arguments: argparse.Namespace) -> Outcome:
    """Write a commented my.yaml and templates to start from."""
    from kohaku_ray.cli.starter import CONFIG, next_steps, write_starter

    written = write_starter(arguments.directory, with_gold=arguments.gold)
    print_result(next_steps(arguments.directory, written))
    line = os.path.join(arguments.directory, CONFIG)
    return Outcome(line, InitResult(arguments.directory, written))


def docs(arguments: argparse.Namespace) -> Outcome:
    """Print a page of the documentation, or list the pages."""
    from kohaku_ray.config.paths import DOCS

    pages = {file.stem: file for file in sorted(DOCS.glob("*.md"))}
    if arguments.topic is None:
        titles = {
            name: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name, file in pages.items()
        }
        width = max(map(len, titles))
        print_result("\n".join(f"{name:{width}}  {title}" for name, title in titles.items()))
        return Outcome(str(DOCS), DocsResult(str(DOCS), tuple(titles)))
    name = arguments.topic.removesuffix(".md")
    if name not in pages:
        raise ConfigError(f"{name} is no page{did_you_mean(name, pages)}; there are: {', '.join(pages)}")
    print_result(pages[name].read_text(encoding="utf-8").rstrip())
    return Outcome(str(pages[name]), DocsResult(str(pages[name]), ()))


def completion(arguments: argparse.Namespace) -> Outcome:
    """Print a shell's completion script."""
    from argcomplete.shell_integration import shellcode

    script = str(shellcode(["kohaku-ray"], shell=arguments.shell)).strip()
    print_result(script)
    return Outcome(script, CompletionResult(arguments.shell, script))


def _rows_code(arguments: argparse.Namespace, n_errors: int, *, is_finished: bool = True) -> int:
    """Return the exit code of rows in error: success with ``--rows-in-error-ok``, if the work ``is_finished``."""
    return ROWS_IN_ERROR if n_errors and not (arguments.rows_in_error_ok and is_finished) else OK


def index(arguments: argparse.Namespace) -> Outcome:
    """Parse and encode documents, build the index."""
    from kohaku_ray.engine.jobs.index import run_index
    from kohaku_ray.records import pluralize

    summary = run_index(_load(arguments))
    print_result(summary.text())
    rejects = f", {summary.n_rejects} rejected" if summary.n_rejects else ""
    n_documents = pluralize(summary.counts["n_documents"], "document")
    seconds = {name: getattr(summary, f"{name}_s") for name in ("parse", "encode", "reduce")}
    rejected = [RejectedFile(*pair) for pair in summary.rejects]
    result = take_fields(IndexResult, summary, rejects=rejected, seconds={**seconds, "all": summary.wall_s})
    code = _rows_code(arguments, summary.n_rejects + summary.n_caption_errors)
    return Outcome(f"{n_documents}{rejects}: {summary.path}", result, code)


def documents(arguments: argparse.Namespace) -> Outcome:
    """Show how each file is parsed: its tree, what was rejected, what looks odd."""
    from kohaku_ray.collection.documents import parse_collection, write_trees
    from kohaku_ray.pages.run_text import describe_collection, describe_tree
    from kohaku_ray.records import pluralize

    config = _load(arguments)
    with Progress("parse", 0, "files") as progress:

        def report(n_parsed: int, n_files: int) -> None:
            progress.expect(n_files)
            progress.show(n_parsed)

        collection = parse_collection(config, report) if arguments.document is None else parse_collection(config)
    if arguments.document is not None:
        collection = collection.only(arguments.document)
        print_result("\n\n".join(map(describe_tree, collection.documents)))
    else:
        print_result(describe_collection(collection, config.documents.paths))
    if arguments.trees is not None:
        print_result(f"{len(write_trees(collection.documents, arguments.trees))} trees in {arguments.trees}")
    result = DocumentsResult(
        n_files=collection.n_files,
        documents=[
            take_fields(ParsedDocument, view.document, file=view.file, counts=view.counts, odd=view.odd)
            for view in collection.documents
        ],
        rejects=[RejectedFile(*pair) for pair in collection.rejects],
        trees=arguments.trees,
    )
    line = f"{pluralize(len(collection.documents), 'document')} of {pluralize(collection.n_files, 'file')}"
    return Outcome(f"{line}, {len(collection.rejects)} rejected", result, ROWS_IN_ERROR if collection.rejects else OK)


def answer(arguments: argparse.Namespace) -> Outcome:
    """Answer questions in an ensemble, vote, and score against gold answers."""
    from kohaku_ray.api import Run
    from kohaku_ray.pages.score_text import describe_run
    from kohaku_ray.runs.facts import facts_of
    from kohaku_ray.runs.scoring import headline, outputs_of, scores_of
    from kohaku_ray.runs.tracking import check_tracking
    from kohaku_ray.store.storage import is_file, join_path

    run = Run(_load(arguments))
    check_tracking(run.config)
    if finished_before := not arguments.again and run.find() and not arguments.retry:
        print_result(
            "finished before, with the same inputs: nothing to do (--again repeats it, calls that ledger.path lacks)\n"
        )
    else:
        print_progress("answer  starting")
        importlib.import_module("kohaku_ray.engine.jobs.answer")
        if not arguments.no_report:  # while Ray starts, and not before: imports of two threads wait for each other
            threading.Thread(target=_import_page, daemon=True).start()
        run.make(retry_errors=arguments.retry == "errors", strict=arguments.strict)
    summary = run.made
    scored, why_not = scores_of(run.config, summary)
    said = describe_run(summary, facts_of(run.config), run.config.ensemble.members, scored, why_not)
    print_result(arguments.hide(said))
    page = None if arguments.no_report else join_path(summary.run, "report.html")
    if page is not None and not (finished_before and is_file(page)):
        from kohaku_ray.pages.report import write_report

        print_result(f"page: {write_report(summary.run)}")
    tracked, untracked = _export_whole(lambda: run.export(scored))
    if tracked is not None:
        print_result(f"tracked: {tracked}")
    result = take_fields(
        AnswerResult,
        summary,
        finished_before=finished_before,
        n_errors=summary.n_member_errors,
        calls=summary.n_calls,
        used=summary.spent,
        seconds=summary.wall_s,
        scores=scored.report.records if scored is not None else [],
        why_unscored=why_not,
        outputs=outputs_of(run.config),
        page=page,
        tracked=tracked,
        why_untracked=untracked,
    )
    n_errors = summary.n_member_errors + summary.n_unanswered
    code = _rows_code(arguments, n_errors, is_finished=not summary.stopped)
    code = ROWS_IN_ERROR if untracked else code
    return Outcome(headline(scored, why_not, summary), result, code)


def _import_page() -> None:
    drawing = ("matplotlib.style", "matplotlib.figure", "matplotlib.backends.backend_svg")
    for name in ("kohaku_ray.pages.report", *drawing, "polars", "scipy.special"):
        importlib.import_module(name)


def _export_whole(export: Callable[[], T]) -> tuple[T | None, str]:
    """Export what is whole whatever the tracker does: the result, or why there is none, which is printed."""
    try:
        return export(), ""
    except DataError as error:
        print_error(f"kohaku-ray: {error}")
        return None, str(error)


def ask(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Answer one question, and print the answer with the passages it cites."""
    columns = dict(_column(text) for text in arguments.column)
    if arguments.question is None and not arguments.watch:
        raise ConfigError("ask has no question: give its text, or --watch to read questions line by line")
    config = _load(arguments)
    print_progress("ask     starting")
    from kohaku_ray.api import Run

    run, questions = Run(config), [arguments.question] if arguments.question is not None else []
    n_items = arguments.items if arguments.items is not None or not arguments.trace else ITEMS
    if not arguments.watch:
        with _no_collection():
            outcome = _asked(run.ask(questions[0], **columns), n_items)
        yield outcome
        return
    with ExitStack() as until_end:
        with _no_collection():
            until_end.enter_context(run)
        for question in itertools.chain(questions, sys.stdin):
            if question.strip():
                yield _asked(run.ask(question.strip(), **columns), n_items)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Load libraries without Python's garbage collector, which would look at all that they make, again at the exit.

    An ``ask`` of the demo takes 3.6 instead of 5.4 s of CPU.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _asked(asked: Run, n_items: int | None) -> Outcome:
    """Print a question's answer, or with ``n_items`` per step (0: all) how it was answered."""
    from kohaku_ray.store.storage import join_path, read_file

    text = asked.show_answer() if n_items is None else asked.show(n_items=n_items or None)
    print_result(f"{text}\n")
    line = json.loads(read_file(join_path(asked.path, "answers.jsonl")).splitlines()[0])
    value = "no answer" if line["answer_value"] is None else f"{line['answer_value']} {line['unit'] or ''}".rstrip()
    n_errors = asked.made.n_member_errors
    result = AskResult(asked.path, line, n_errors, asked.made.wall_s)
    return Outcome(f"{value}  [{', '.join(line['refs'])}]", result, ROWS_IN_ERROR if n_errors else OK)


def _column(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--column {text}: expected NAME=TEXT, such as --column answer_unit=kWh")
    return name.strip(), value


def sweep(arguments: argparse.Namespace) -> Outcome:
    """Run a grid of configurations, compare the cells, write tables and a page."""
    from kohaku_ray.engine.jobs.race import dry_run, make_sweep
    from kohaku_ray.records import pluralize
    from kohaku_ray.runs.tracking import check_tracking
    from kohaku_ray.sweep.collect import track_sweep
    from kohaku_ray.sweep.load import load_sweep
    from kohaku_ray.sweep.plan import plan_sweep

    loaded = load_sweep(
        arguments.sweep, arguments.base, arguments.overrides, arguments.output, arguments.race, arguments.cluster
    )
    n_cells = loaded.sweep.n_cells
    grid = f"{pluralize(n_cells, 'cell')} × {pluralize(len(loaded.sweep.seeds), 'seed')}"
    if n_cells > MANY_CELLS and not arguments.yes:
        reply = ""
        if sys.stdin.isatty():
            print_progress(f"{grid}: go on? [y/N]")
            reply = input()
        if reply.strip().lower() not in {"y", "yes"}:
            raise ConfigError(f"{arguments.sweep} has {grid} and nobody confirmed them: narrow its axes, or give --yes")
    plan = plan_sweep(loaded)
    if arguments.dry_run:
        described = dry_run(plan)
        print_result(described)
        result = SweepResult(n_cells, len(plan.runs), described)
        return Outcome(f"{pluralize(n_cells, 'cell')}, {pluralize(len(plan.runs), 'run')}", result)
    for config in plan.runs.values():
        check_tracking(config)
    summary, text, files, selection = make_sweep(plan)
    print_result(f"{text}\n\npage: {files[0]}")
    tracked, untracked = _export_whole(lambda: track_sweep(plan, files, summary.figures()))
    if tracked:
        print_result(f"tracked: {pluralize(len(tracked) - 1, 'run')} and {tracked[-1]}")
    for run_id, reason in list(summary.failed.items())[:10]:
        print_error(f"kohaku-ray: run {run_id}: {reason}")
    result = take_fields(
        SweepResult,
        summary,
        n_cells=n_cells,
        plan=None,
        page=files[0],
        files=files,
        tracked=tracked or (),
        why_untracked=untracked,
        selection=selection,
        seconds=summary.wall_s,
    )
    line = f"{pluralize(summary.n_runs, 'run')}, {summary.n_made} made now, {len(summary.failed)} failed: {files[0]}"
    n_errors = summary.n_errors + len(summary.failed)
    code = _rows_code(arguments, n_errors, is_finished=not summary.failed)
    return Outcome(line, result, ROWS_IN_ERROR if untracked else code)


def vote(arguments: argparse.Namespace) -> Outcome:
    """Vote over submission files."""
    from kohaku_ray.answering.outputs import answer_line, as_lines, count_verdict
    from kohaku_ray.answering.vote_files import run_vote
    from kohaku_ray.collection.sources import read_metadata
    from kohaku_ray.ensemble.settings import VoteRule
    from kohaku_ray.evaluation.submissions import write_submission
    from kohaku_ray.records import pluralize
    from kohaku_ray.store.directory import submission_of
    from kohaku_ray.store.storage import publish

    rule = VoteRule(**{name: getattr(arguments, name) for name in VoteRule.model_fields})
    odd: list[str] = []
    metadata = read_metadata(arguments.metadata, odd) or None
    voted = run_vote([submission_of(run) for run in arguments.files], rule, metadata, arguments.keep_spellings)
    write_submission(arguments.output, voted.rows)
    if arguments.jsonl:
        verdicts = zip(voted.rows, voted.verdicts, strict=True)
        lines = as_lines(answer_line(row, count_verdict(verdict)) for row, verdict in verdicts)
        publish(arguments.jsonl, lines.encode())
    n_blank = sum(verdict.is_blank for verdict in voted.verdicts)
    counts = f"{pluralize(len(voted.rows), 'question')}, {pluralize(len(arguments.files), 'member')}"
    line = f"{counts}, {n_blank} abstained: {arguments.output}"
    print_result("\n".join([line, *odd]))
    for file, notes in voted.notes.items():
        for note in notes:
            print_result(f"{file}: {note}")
    missing = {file: lacking for file, lacking in voted.missing.items() if lacking}
    for file, lacking in missing.items():
        print_result(
            f"{file}: {pluralize(len(lacking), 'question')} missing, counted as blank: {', '.join(lacking[:10])}"
        )
    return Outcome(line, VoteResult(arguments.output, len(voted.rows), len(arguments.files), n_blank, missing))


def score(arguments: argparse.Namespace) -> Outcome:
    """Score submission files against gold answers."""
    from kohaku_ray.answering.outputs import as_lines, question_scores
    from kohaku_ray.collection.sources import resolve
    from kohaku_ray.evaluation.metrics import find_metric
    from kohaku_ray.evaluation.report import run_score
    from kohaku_ray.evaluation.submissions import read_submission
    from kohaku_ray.evaluation.truth import read_gold, read_truth
    from kohaku_ray.pages.score_text import describe_scores
    from kohaku_ray.runs.truth import truth_of
    from kohaku_ray.store.directory import submission_of
    from kohaku_ray.store.storage import publish

    truth = resolve(arguments.truth or truth_of(arguments.files))
    files, metrics, note = [submission_of(run) for run in arguments.files], arguments.metric, ""
    if not metrics:
        _, gold_metrics, note = read_gold(truth, [find_metric("wattbot")])
        metrics = [metric.name for metric in gold_metrics]
    elif len(metrics) > 1:  # one whose columns the truth lacks is left out, and the note says so
        asked = {find_metric(name): name for name in metrics}
        _, gold_metrics, why_not = read_gold(truth, tuple(asked))
        if fitting := [asked[metric] for metric in gold_metrics if metric in asked]:
            metrics, note = fitting, why_not
    report = run_score(truth, files, metrics, arguments.by, arguments.errors, cluster=arguments.cluster)
    print_result("\n\n".join(part for part in (note, describe_scores(report)) if part))
    if arguments.jsonl:  # one line per file and question
        wanted = tuple(find_metric(name) for name in metrics)
        gold = read_truth(truth, wanted)
        scored = ((file, question_scores(gold, wanted, read_submission(file))) for file in files)
        rows = ({"file": file, "id": key, "score": score} for file, scores in scored for key, score in scores.items())
        publish(arguments.jsonl, as_lines(rows).encode())
    lines = [
        "  ".join(
            str(part)
            for part in (record["file"], record["metric"], record.get("label"), f"{record['score']:.4f}")
            if part
        )
        for record in report.records
    ]
    return Outcome("\n".join(lines), ScoreResult(truth, metrics, report.records, note))


def compare(arguments: argparse.Namespace) -> Outcome:
    """List the questions on which runs differ, with paired tests."""
    from kohaku_ray.collection.sources import resolve
    from kohaku_ray.evaluation.compare import compare_files
    from kohaku_ray.pages.score_text import describe_comparison
    from kohaku_ray.pages.text import leave_out_shared
    from kohaku_ray.records import pluralize
    from kohaku_ray.runs.truth import truth_of
    from kohaku_ray.store.directory import submission_of

    truth = resolve(arguments.truth or truth_of(arguments.runs))
    files = [submission_of(run) for run in arguments.runs]
    compared = compare_files(truth, files, arguments.metric, arguments.by, arguments.cluster)
    print_result(describe_comparison(compared))
    page = None
    if arguments.page:
        from kohaku_ray.pages.compare_page import write_comparison
        from kohaku_ray.pages.groups import write_groups

        if compared.split is not None and compared.pair is None:
            page = write_groups(compared, arguments.page)
        else:
            page = write_comparison(truth, arguments.runs, arguments.page, arguments.metric, arguments.cluster)
        print_result(f"\npage: {page}")
    pair = compared.pair
    scored = list(zip(compared.files, compared.scores, strict=True))
    flips = "" if pair is None else f"; {pluralize(pair.n_won, 'value')} won, {pair.n_lost} lost"
    result = CompareResult(
        truth=compared.truth,
        metric=compared.metric,
        n_questions=len(compared.question_ids),
        scores=[take_fields(FileScore, score, file=file) for file, score in scored],
        pair=PairResult.of(pair) if pair is not None else None,
        split=compared.split.record() if compared.split is not None else None,
        notes=compared.notes,
        page=page,
    )
    names = leave_out_shared(compared.files)
    scores = ", ".join(f"{name} {score.score:.4f}" for name, score in zip(names, compared.scores, strict=True))
    return Outcome(f"{compared.metric}: {scores}{flips}", result)


def validate(arguments: argparse.Namespace) -> Outcome:
    """Check configuration, files and what the cluster must have; start nothing."""
    from kohaku_ray.checks.validate import validate
    from kohaku_ray.config.described import write_settings
    from kohaku_ray.runs.identity import is_finished
    from kohaku_ray.store.directory import RunDirectory
    from kohaku_ray.store.storage import is_directory

    config = _load(arguments)
    if arguments.settings:
        print_result(write_settings(config))
    findings = validate(config, deep=arguments.deep)
    if arguments.deep and is_finished(config.run) and is_directory(config.ledger.path):
        from kohaku_ray.store.segments import ledger_damage

        made = RunDirectory(config.run).read_table("usage", ["key"])["key"].unique().to_pylist()
        findings.problems += ledger_damage(config.ledger.path, made)
    print_result(arguments.hide("\n".join(findings.lines)))
    problems, probes = [str(problem) for problem in findings.problems], []
    if arguments.probe and not problems:
        from kohaku_ray.engine.jobs.probe import run_probe

        probes = run_probe(config)
    for probe in probes:
        if probe.is_usable:
            print_result(config.hide(probe.text))
    unusable = [probe.text for probe in probes if not probe.is_usable]
    if not problems and not unusable:
        print_result("valid")
    for problem in (*problems, *unusable):
        print_error(f"kohaku-ray: {arguments.hide(problem)}")
    line = "not valid" if problems else "valid, not usable" if unusable else "valid"
    result = ValidateResult(not problems, findings.lines, problems, probes)
    is_bad = unusable or any(map(is_mistake, findings.problems))
    return Outcome(line, result, BAD_CONFIG if is_bad else FAILED if problems else OK)


def show(arguments: argparse.Namespace) -> Outcome:
    """Print how one question was answered, or list a run's questions."""
    from kohaku_ray.pages.run_text import describe_prompts, describe_question, describe_questions, describe_vote
    from kohaku_ray.records import pluralize
    from kohaku_ray.runs.files import question_rows, voted_questions

    if arguments.question_id is None:
        votes = voted_questions(arguments.run)
        print_result(describe_questions(votes))
        questions = [{"question_id": vote["question_id"], "question": vote["question"]} for vote in votes]
        line = f"{pluralize(len(votes), 'question')}: {arguments.run}"
        return Outcome(line, ShowResult(arguments.run, questions=questions))
    rows = question_rows(arguments.run, arguments.question_id)
    prompts: list[SentPrompt] = []
    if arguments.prompt:
        from kohaku_ray.answering.replay import sent_prompts

        prompts = sent_prompts(arguments.run, arguments.question_id)
        print_result(describe_prompts(prompts))
    else:
        print_result(describe_question(rows, arguments.items or None))
    [vote] = rows["votes"]
    tables = {name: rows[name] for name in ("answers", "trace", "usage")}
    return Outcome(describe_vote(vote), ShowResult(arguments.run, vote, prompts=prompts, **tables))


def bundle(arguments: argparse.Namespace) -> Outcome:
    """Pack a finished run into one zip that makes its tables again."""
    from kohaku_ray.answering.bundle import make_bundle

    made = make_bundle(arguments.run, arguments.output, with_index=arguments.with_index)
    line = f"{made.n_replies:,} replies, {made.n_bytes:,} bytes: {arguments.output}"
    print_result(line)
    return Outcome(line, made)


def replay(arguments: argparse.Namespace) -> Outcome:
    """Repeat runs from their bundles' replies, without model, key or network, and compare every table."""
    from kohaku_ray.answering.bundle import replay_bundle
    from kohaku_ray.pages.run_text import describe_replays
    from kohaku_ray.records import pluralize

    bundles = arguments.bundles
    replays = [replay_bundle(each, arguments.index, trust_code=arguments.trust_code) for each in bundles]
    runs = [{"bundle": each, **plain(replayed)} for each, replayed in zip(bundles, replays, strict=True)]
    print_result(describe_replays(runs))
    n_other = sum(not replayed.same for replayed in replays)
    line = f"{pluralize(len(replays), 'bundle')}: {f'{n_other} differ' if n_other else 'every table is the same'}"
    return Outcome(line, ReplayResult(not n_other, runs), FAILED if n_other else OK)


def runs(arguments: argparse.Namespace) -> Outcome:
    """List all runs below a directory: score, model, date, cost, and the settings in which they differ."""
    from dataclasses import asdict

    from kohaku_ray.pages.runs_page import describe_runs, write_runs
    from kohaku_ray.records import pluralize
    from kohaku_ray.store.listing import list_runs

    listed = list_runs(arguments.directory)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print_result(describe_runs(listed, width))
    page = write_runs(listed) if arguments.page else None
    if page is not None:
        print_result(f"page: {page}")
    line = f"{pluralize(len(listed.runs), 'run')} in {arguments.directory}"
    each = [{**asdict(run), "date": run.date.isoformat(timespec="seconds")} for run in listed.runs]
    return Outcome(line, RunsResult(arguments.directory, each, listed.unread, page))


def report(arguments: argparse.Namespace) -> Outcome:
    """Write a run's page, report.html."""
    from kohaku_ray.collection.sources import resolve
    from kohaku_ray.pages.report import write_report

    truth = arguments.truth and resolve(arguments.truth)
    page = write_report(arguments.run, truth, arguments.output, arguments.cluster)
    print_result(page)
    return Outcome(page, ReportResult(page))


def bench(arguments: argparse.Namespace) -> Outcome:
    """Measure vLLM replicas against plain vLLM."""
    from kohaku_ray.engine.jobs.bench import Grid, run_bench
    from kohaku_ray.pages.throughput import FILES, describe
    from kohaku_ray.records import pluralize

    names = ("replicas", "members", "concurrency", "questions", "context_tokens", "output_tokens", "answer_questions")
    grid = Grid(**{name: getattr(arguments, name) for name in names})
    try:
        bench = run_bench(_load(arguments), grid, arguments.output)
    except KeyboardInterrupt:
        print_error(f"what was measured is in {arguments.output}")
        raise
    print_result(f"{describe(bench)}\n\noutputs in {arguments.output}: {', '.join(FILES)}")
    result = BenchResult(arguments.output, FILES, len(bench.cells), bench.n_failed)
    line = f"{pluralize(len(bench.cells), 'cell')}, {bench.n_failed} failed: {arguments.output}"
    return Outcome(line, result, ROWS_IN_ERROR if bench.n_failed else OK)
