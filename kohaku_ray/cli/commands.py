"""The commands: each takes the parsed arguments and returns its outcome."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
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
    MapResult,
    PairResult,
    ParsedDocument,
    RejectedFile,
    ReplayResult,
    ReportResult,
    RunsResult,
    ScoreResult,
    ShowResult,
    SteerResult,
    SweepResult,
    ValidateResult,
    VoteResult,
    take_fields,
)
from kohaku_ray.errors import ConfigError, DataError, did_you_mean
from kohaku_ray.pages.terminal import Progress, print_error, print_progress, print_result
from kohaku_ray.run.record.outcomes import BAD_CONFIG, FAILED, OK, ROWS_IN_ERROR, Outcome, plain

if TYPE_CHECKING:
    from kohaku_ray.api import Run
    from kohaku_ray.config import Config
    from kohaku_ray.run.record.files import SentPrompt


T = TypeVar("T")
MANY_CELLS = 1000
"""Most cells of a sweep without a confirmation: a wrong axis costs days."""

SHELLS = ("bash", "zsh", "fish")


def _load(arguments: argparse.Namespace) -> Config:
    from kohaku_ray.config import load_config

    config = load_config([arguments.config, *arguments.others], arguments.overrides)
    arguments.hide = config.hide  # for messages of later errors
    return config


def init(arguments: argparse.Namespace) -> Outcome:
    """Write a commented my.yaml and templates to start from."""
    from kohaku_ray.run.exchange.starter import CONFIG, next_steps, write_converted, write_starter

    if arguments.source is None:
        written = write_starter(arguments.directory, with_gold=arguments.gold)
    else:
        written, left_out = write_converted(arguments.source, arguments.directory)
        for name, reason in left_out.items():
            print_progress(f"kohaku-ray: not taken over as written: {name} ({reason})")
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
    from kohaku_ray.run.record.summary import pluralize

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
    from kohaku_ray.pages.run_text import describe_collection, describe_tree
    from kohaku_ray.run.collection.documents import parse_collection, write_trees
    from kohaku_ray.run.record.summary import pluralize

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
    from kohaku_ray.run.record.directory import facts_of
    from kohaku_ray.run.record.scoring import headline, outputs_of, scores_of
    from kohaku_ray.run.record.tracking import check_tracking
    from kohaku_ray.storage import is_file, join_path

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
    print_result(describe_run(summary, facts_of(run.config), run.config.ensemble.members, scored, why_not))
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
    """Answer one question and print its evidence."""
    columns = dict(_column(text) for text in arguments.column)
    if arguments.question is None and not arguments.watch:
        raise ConfigError("ask has no question: give its text, or --watch to read questions line by line")
    config = _load(arguments)
    print_progress("ask     starting")
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
    from kohaku_ray.storage import join_path, read_file

    print_result(f"{asked.show(n_items=n_items or None)}\n")
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


def batch(arguments: argparse.Namespace) -> Outcome:
    """Answer the requests of a file in OpenAI's batch format, each different one once."""
    from kohaku_ray.engine.jobs.batch import run_batch

    summary = run_batch(_load(arguments), arguments.input, arguments.output)
    print_result(summary.text())
    code = _rows_code(arguments, summary.n_errors.total(), is_finished=not summary.stopped)
    return Outcome(summary.text().splitlines()[0], summary, code)


def sweep(arguments: argparse.Namespace) -> Outcome:
    """Run a grid of configurations, compare the cells, write tables and a page."""
    from kohaku_ray.engine.jobs.sweep import dry_run, finish_sweep, run_sweep
    from kohaku_ray.run.record.summary import pluralize
    from kohaku_ray.run.record.tracking import check_tracking
    from kohaku_ray.sweep.collect import track_sweep
    from kohaku_ray.sweep.load import load_sweep
    from kohaku_ray.sweep.plan import plan_sweep
    from kohaku_ray.sweep.race import Act, steer_sweep

    asked: dict[Act, list[str]] = {"stop": arguments.stop, "resume": arguments.resume}
    for act, requests in asked.items():
        if requests:
            output = arguments.sweep  # the directory of its page: no key, no base and no environment is needed
            if not os.path.isdir(output):
                given = (arguments.sweep, arguments.base, arguments.overrides, arguments.output, arguments.race)
                output = load_sweep(*given).sweep.output
            named = ", ".join(steer_sweep(output, act, what) for what in requests)
            print_result(f"{act} {named}: read before the next shard, by the job that runs or by the next one")
            return Outcome(f"{act} {named}", SteerResult(act, named))
    loaded = load_sweep(arguments.sweep, arguments.base, arguments.overrides, arguments.output, arguments.race)
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
    summary = run_sweep(plan)
    text, files, selection = finish_sweep(plan, summary)
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
    from kohaku_ray.ensemble.settings import VoteRule
    from kohaku_ray.evaluation.submissions import write_submission
    from kohaku_ray.run.collection.sources import read_metadata
    from kohaku_ray.run.exchange.vote_files import run_vote
    from kohaku_ray.run.record.directory import submission_of
    from kohaku_ray.run.record.outputs import answer_line, as_lines, counted_verdict
    from kohaku_ray.run.record.summary import pluralize
    from kohaku_ray.storage import publish

    rule = VoteRule(**{name: getattr(arguments, name) for name in VoteRule.model_fields})
    metadata = read_metadata(arguments.metadata) or None
    voted = run_vote([submission_of(run) for run in arguments.files], rule, metadata)
    write_submission(arguments.output, voted.rows)
    if arguments.jsonl:
        verdicts = zip(voted.rows, voted.verdicts, strict=True)
        lines = as_lines(answer_line(row, counted_verdict(verdict)) for row, verdict in verdicts)
        publish(arguments.jsonl, lines.encode())
    n_blank = sum(verdict.is_blank for verdict in voted.verdicts)
    counts = f"{pluralize(len(voted.rows), 'question')}, {pluralize(len(arguments.files), 'member')}"
    line = f"{counts}, {n_blank} abstained: {arguments.output}"
    print_result(line)
    missing = {file: lacking for file, lacking in voted.missing.items() if lacking}
    for file, lacking in missing.items():
        print_result(
            f"{file}: {pluralize(len(lacking), 'question')} missing, counted as blank: {', '.join(lacking[:10])}"
        )
    return Outcome(line, VoteResult(arguments.output, len(voted.rows), len(arguments.files), n_blank, missing))


def score(arguments: argparse.Namespace) -> Outcome:
    """Score submission files against gold answers."""
    from kohaku_ray.evaluation.metrics import find_metric
    from kohaku_ray.evaluation.report import run_score
    from kohaku_ray.evaluation.submissions import read_submission
    from kohaku_ray.evaluation.truth import read_gold, read_truth
    from kohaku_ray.pages.score_text import describe_scores
    from kohaku_ray.run.collection.sources import resolve
    from kohaku_ray.run.record.directory import submission_of, truth_of
    from kohaku_ray.run.record.outputs import as_lines, question_scores
    from kohaku_ray.storage import publish

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
    from kohaku_ray.evaluation.compare import compare_files
    from kohaku_ray.pages.score_text import describe_comparison
    from kohaku_ray.run.collection.sources import resolve
    from kohaku_ray.run.record.directory import submission_of, truth_of
    from kohaku_ray.run.record.summary import pluralize

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
    scores = ", ".join(f"{file} {score.score:.4f}" for file, score in scored)
    return Outcome(f"{compared.metric}: {scores}{flips}", result)


def validate(arguments: argparse.Namespace) -> Outcome:
    """Check configuration, files and what the cluster must have; start nothing."""
    from kohaku_ray.config import as_yaml
    from kohaku_ray.run.checks.validate import validate
    from kohaku_ray.run.record.directory import RunDirectory
    from kohaku_ray.run.record.identity import is_finished
    from kohaku_ray.storage import is_directory

    config = _load(arguments)
    if arguments.settings:
        print_result(as_yaml(config))
    findings = validate(config, deep=arguments.deep)
    if arguments.deep and is_finished(config.run) and is_directory(config.ledger.path):
        from kohaku_ray.run.segments import ledger_damage

        made = RunDirectory(config.run).read_table("usage", ["key"])["key"].unique().to_pylist()
        findings.problems += ledger_damage(config.ledger.path, made)
    print_result(config.hide("\n".join(findings.lines)))
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
        print_error(f"kohaku-ray: {config.hide(problem)}")
    line = "not valid" if problems else "valid, not usable" if unusable else "valid"
    result = ValidateResult(not problems, findings.lines, problems, probes)
    return Outcome(line, result, BAD_CONFIG if problems or unusable else OK)


def show(arguments: argparse.Namespace) -> Outcome:
    """Print how one question was answered, or list a run's questions."""
    from kohaku_ray.pages.run_text import describe_prompts, describe_question, describe_questions, describe_vote
    from kohaku_ray.run.record.files import question_rows, voted_questions
    from kohaku_ray.run.record.summary import pluralize

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
    """Pack a finished run or sweep into one zip that re-derives its tables."""
    from kohaku_ray.answering.bundle import find_source, make_bundle
    from kohaku_ray.pages.sweep_tables import write_tables
    from kohaku_ray.run.record.summary import pluralize

    source = find_source(arguments.source, arguments.base, arguments.overrides)
    made = make_bundle(source, arguments.output, write_tables, with_index=arguments.with_index)
    line = f"{pluralize(len(made.runs), 'run')}, {made.n_replies:,} replies, {made.n_bytes:,} bytes: {arguments.output}"
    print_result(line)
    return Outcome(line, made)


def replay(arguments: argparse.Namespace) -> Outcome:
    """Repeat a bundle's runs from its recorded replies, without model, key or network, and compare every table."""
    from kohaku_ray.answering.bundle import replay_bundle
    from kohaku_ray.pages.run_text import describe_replays
    from kohaku_ray.pages.sweep_tables import write_tables
    from kohaku_ray.run.record.summary import pluralize

    replays = {
        bundle: replay_bundle(bundle, write_tables, arguments.index, trust_code=arguments.trust_code)
        for bundle in arguments.bundles
    }
    runs = [{"bundle": bundle, **plain(run)} for bundle, replayed in replays.items() for run in replayed.runs]
    for replayed in replays.values():
        for text in (*(text for name, text in replayed.tables.items() if name.endswith(".md")), *replayed.differences):
            print_result(f"{text}\n")
    print_result(describe_replays(runs))
    n_other = sum(not replayed.same for replayed in replays.values())
    line = f"{pluralize(len(replays), 'bundle')}, {pluralize(len(runs), 'run')}: "
    line += f"{n_other} of the bundles differ" if n_other else "every table is the same"
    tables = [line for replayed in replays.values() for line in replayed.differences]
    return Outcome(line, ReplayResult(not n_other, runs, tables), FAILED if n_other else OK)


def runs(arguments: argparse.Namespace) -> Outcome:
    """List all runs below a directory: score, model, date, cost, and the settings in which they differ."""
    from dataclasses import asdict

    from kohaku_ray.pages.runs_page import describe_runs, write_runs
    from kohaku_ray.records import pluralize
    from kohaku_ray.run.record.listing import list_runs

    listed = list_runs(arguments.directory)
    print_result(describe_runs(listed))
    page = write_runs(listed) if arguments.page else None
    if page is not None:
        print_result(f"page: {page}")
    line = f"{pluralize(len(listed.runs), 'run')} in {arguments.directory}"
    each = [{**asdict(run), "date": run.date.isoformat(timespec="seconds")} for run in listed.runs]
    return Outcome(line, RunsResult(arguments.directory, each, listed.unread, page))


def report(arguments: argparse.Namespace) -> Outcome:
    """Write a run's page, report.html."""
    from kohaku_ray.pages.report import write_report
    from kohaku_ray.run.collection.sources import resolve

    truth = arguments.truth and resolve(arguments.truth)
    page = write_report(arguments.run, truth, arguments.output, arguments.cluster)
    print_result(page)
    return Outcome(page, ReportResult(page))


def _index_directory(name: str) -> str:
    """The directory of an index: as given, or that of the configuration of this name, as of a preset."""
    from kohaku_ray.config import load_config
    from kohaku_ray.config.paths import preset_names

    is_config = name.endswith((".yaml", ".yml")) or (name in preset_names() and not os.path.isdir(name))
    return load_config(name).index.path if is_config else name


def index_map(arguments: argparse.Namespace) -> Outcome:
    """Plot an index's node vectors in two dimensions."""
    from kohaku_ray.pages.index_map import write_index_map

    plot = write_index_map(_index_directory(arguments.index), arguments.output)
    print_result(plot)
    return Outcome(plot, MapResult(plot))


def bench(arguments: argparse.Namespace) -> Outcome:
    """Measure vLLM replicas against plain vLLM."""
    from kohaku_ray.engine.jobs.bench import Grid, run_bench
    from kohaku_ray.pages.throughput import FILES, describe
    from kohaku_ray.run.record.summary import pluralize

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
