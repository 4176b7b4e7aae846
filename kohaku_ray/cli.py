"""kohaku-ray: init, index, documents, answer, ask, sweep, vote, score, compare, validate, show, report, map, bench."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from kohaku_ray import __version__
from kohaku_ray.errors import ConfigError, KohakuRayError
from kohaku_ray.pages.terminal import complain, conclude, say, shown_as, tell
from kohaku_ray.run.outcomes import (
    BAD_CONFIG,
    FAILED,
    OK,
    ROWS_IN_ERROR,
    Answered,
    Asked,
    Benched,
    Compared,
    Completion,
    Indexed,
    Initialised,
    Mapped,
    Outcome,
    Parsed,
    Reported,
    Scored,
    Shown,
    Swept,
    Validated,
    Voted,
    failure,
)

if TYPE_CHECKING:
    from kohaku_ray.api import Run
    from kohaku_ray.config import Config

MANY_CELLS = 1000
"""Most cells of a sweep without a confirmation: a wrong axis costs days."""

SHELLS = ("bash", "zsh", "fish")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    0: all done; 3: finished with some rows in error; 2: configuration; 1: anything else.
    """
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments = parser.parse_args(argv)
    with shown_as(quiet=arguments.quiet, as_json=arguments.json):
        try:
            return _concluded(arguments)
        except KohakuRayError as error:
            return _complain(arguments, error, BAD_CONFIG if isinstance(error, ConfigError) else FAILED)
        except KeyboardInterrupt:
            complain("interrupted: repeat the same command to go on")
            return FAILED
        except BrokenPipeError:
            return OK


def _concluded(arguments: argparse.Namespace) -> int:
    """Run a command and print its results as the flags ask; ``ask --watch`` has many."""
    command: Callable[[argparse.Namespace], Outcome | Iterable[Outcome]] = arguments.command
    returned, code = command(arguments), OK
    for outcome in [returned] if isinstance(returned, Outcome) else returned:
        conclude(outcome.line, outcome.as_json(arguments.name, _hider(arguments)))
        code = max(code, outcome.code)
    return code


def _complain(arguments: argparse.Namespace, error: Exception, code: int) -> int:
    """Print an error, with values of environment variables replaced by references."""
    hide = _hider(arguments)
    complain(f"kohaku-ray: {hide(str(error))}")
    conclude("", failure(arguments.name, error, code, hide)) if arguments.json else None
    return code


def _hider(arguments: argparse.Namespace) -> Callable[[str], str]:
    hide: Callable[[str], str] = getattr(arguments, "hide", str)
    return hide


# The commands: each takes the parsed arguments and returns its outcome.


def _load(arguments: argparse.Namespace) -> Config:
    from kohaku_ray.config import load_config

    config = load_config([arguments.config, *arguments.others], arguments.overrides)
    arguments.hide = config.hide  # for messages of later errors
    return config


def _init(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.run.starter import CONFIG, next_steps, write_converted, write_starter

    if arguments.source is None:
        written = write_starter(arguments.directory, with_gold=arguments.gold)
    else:
        written, left_out = write_converted(arguments.source, arguments.directory)
        for name, reason in left_out.items():
            say(f"kohaku-ray: not taken over as written: {name} ({reason})")
    tell(next_steps(arguments.directory, written))
    line = os.path.join(arguments.directory, CONFIG)
    return Initialised(line=line, directory=arguments.directory, files=written)


def _completion(arguments: argparse.Namespace) -> Outcome:
    from argcomplete.shell_integration import shellcode

    script = str(shellcode(["kohaku-ray"], shell=arguments.shell)).strip()
    tell(script)
    return Completion(line=script, shell=arguments.shell, script=script)


def _index(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.engine.jobs.index import run_index

    summary = run_index(_load(arguments))
    tell(summary.text())
    rejects = f", {summary.n_rejects} rejected" if summary.n_rejects else ""
    return Indexed(
        line=f"{summary.counts['n_documents']} documents{rejects}: {summary.path}",
        code=ROWS_IN_ERROR if summary.n_rejects or summary.n_caption_errors else OK,
        path=summary.path,
        n_files=summary.n_files,
        counts=summary.counts,
        n_rejects=summary.n_rejects,
        rejects=[{"file": file, "reason": reason} for file, reason in summary.rejects],
        seconds={name: getattr(summary, f"{name}_s") for name in ("parse", "encode", "reduce")}
        | {"all": summary.wall_s},
    )


def _documents(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.pages.run_text import describe_collection, describe_tree
    from kohaku_ray.run.documents import parse_collection, write_trees

    config = _load(arguments)
    found = parse_collection(config, say)
    if arguments.document is not None:
        found = found.only(arguments.document)
        tell("\n\n".join(map(describe_tree, found.documents)))
    else:
        tell(describe_collection(found))
    if arguments.trees is not None:
        tell(f"{len(write_trees(found.documents, arguments.trees))} trees in {arguments.trees}")
    return Parsed(
        line=f"{len(found.documents)} documents of {found.n_files} files, {len(found.rejects)} rejected",
        code=ROWS_IN_ERROR if found.rejects else OK,
        n_files=found.n_files,
        documents=[
            {"doc_id": one.document.doc_id, "title": one.document.title, "file": one.file}
            | {"counts": one.counts, "odd": one.odd}
            for one in found.documents
        ],
        rejects=[{"file": file, "reason": reason} for file, reason in found.rejects],
        trees=arguments.trees,
    )


def _answer(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.api import Run
    from kohaku_ray.pages.score_text import describe_run
    from kohaku_ray.run.directory import facts_of
    from kohaku_ray.run.scoring import headline, outputs_of, scores_of
    from kohaku_ray.run.tracking import check_tracking
    from kohaku_ray.storage import below, is_file

    run = Run(_load(arguments))
    check_tracking(run.config)
    if found := not arguments.again and not arguments.retry and run.find():
        tell("finished before, with the same inputs: nothing to do (--again repeats it)\n")
    else:
        say("answer  starting")
        if not arguments.no_report:  # its drawing library is imported while Ray starts
            threading.Thread(target=importlib.import_module, args=("kohaku_ray.pages.report",), daemon=True).start()
        run.make(retry_errors=arguments.retry == "errors", strict=arguments.strict)
    summary = run.made
    scored, why_not = scores_of(run.config, summary)
    tell(describe_run(summary, facts_of(run.config), run.config.ensemble.members, scored, why_not))
    page = None if arguments.no_report else below(summary.run, "report.html")
    if page is not None and not (found and is_file(page)):
        from kohaku_ray.pages.report import write_report

        tell(f"page: {write_report(summary.run)}")
    if (tracked := run.export(scored)) is not None:
        tell(f"tracked: {tracked}")
    return Answered(
        line=headline(scored, why_not, summary),
        code=ROWS_IN_ERROR if summary.n_member_errors or summary.n_unanswered else OK,
        run=summary.run,
        finished_before=found,
        n_questions=summary.n_questions,
        n_answers=summary.n_answers,
        n_errors=summary.n_member_errors,
        n_unanswered=summary.n_unanswered,
        stopped=summary.stopped,
        errors=summary.errors,
        calls=summary.n_calls,
        used=summary.spent,
        seconds=summary.wall_s,
        scores=scored.report.records if scored is not None else [],
        why_unscored=why_not,
        outputs=outputs_of(run.config),
        page=page,
        tracked=tracked,
    )


def _ask(arguments: argparse.Namespace) -> Iterator[Outcome]:
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
    value = "no answer" if line["answer_value"] is None else f"{line['answer_value']} {line['unit'] or ''}".rstrip()
    return Asked(
        line=f"{value}  [{', '.join(line['refs'])}]",
        code=ROWS_IN_ERROR if asked.made.n_member_errors else OK,
        run=asked.path,
        answer=line,
        n_errors=asked.made.n_member_errors,
        seconds=asked.made.wall_s,
    )


def _column(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--column {text}: expected NAME=TEXT, such as --column answer_unit=kWh")
    return name.strip(), value


def _sweep(arguments: argparse.Namespace) -> Outcome:
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
    if arguments.dry_run:
        described, n_runs = dry_run(plan), len(plan.runs)
        tell(described)
        return Swept(line=f"{n_cells:,} cells, {n_runs:,} runs", plan=described, n_cells=n_cells, n_runs=n_runs)
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
    return Swept(
        line=f"{summary.n_runs} runs, {summary.n_made} made now, {len(summary.failed)} failed: {files[0]}",
        code=ROWS_IN_ERROR if summary.failed or summary.n_errors else OK,
        n_cells=n_cells,
        n_runs=len(plan.runs),
        n_made=summary.n_made,
        n_errors=summary.n_errors,
        failed=summary.failed,
        skipped=summary.skipped,
        page=files[0],
        files=files,
        tracked=tracked,
        seconds=summary.wall_s,
    )


def _confirmed(what: str) -> bool:
    """Ask for a confirmation if the input is a terminal."""
    if not sys.stdin.isatty():
        return False
    say(f"{what}: go on? [y/N]")
    return input().strip().lower() in {"y", "yes"}


def _vote(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.ensemble.rule import VoteRule
    from kohaku_ray.evaluation.submissions import write_submission
    from kohaku_ray.run.directory import submission_of
    from kohaku_ray.run.outputs import answer_line, as_lines, counted_verdict
    from kohaku_ray.run.sources import read_metadata
    from kohaku_ray.run.vote_files import run_vote
    from kohaku_ray.storage import publish

    rule = VoteRule(**{one.name: getattr(arguments, one.name) for one in fields(VoteRule)})
    metadata = read_metadata(arguments.metadata) or None
    result = run_vote([submission_of(run) for run in arguments.files], rule, metadata)
    write_submission(arguments.output, result.rows)
    if arguments.jsonl:
        voted = zip(result.rows, result.verdicts, strict=True)
        lines = as_lines(answer_line(row, counted_verdict(one)) for row, one in voted)
        publish(arguments.jsonl, "".join(lines).encode())
    n_blank = sum(verdict.is_blank for verdict in result.verdicts)
    line = f"{len(result.rows)} questions, {len(arguments.files)} members, {n_blank} abstained: {arguments.output}"
    tell(line)
    missing = {file: lacking for file, lacking in result.missing.items() if lacking}
    for file, lacking in missing.items():
        tell(f"{file}: {len(lacking)} questions missing, counted as blank: {', '.join(lacking[:10])}")
    return Voted(
        line=line,
        output=arguments.output,
        n_questions=len(result.rows),
        n_members=len(arguments.files),
        n_abstained=n_blank,
        missing=missing,
    )


def _score(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.evaluation.metrics import find_metric
    from kohaku_ray.evaluation.report import run_score
    from kohaku_ray.evaluation.submissions import read_submission
    from kohaku_ray.evaluation.truth import read_gold, read_truth
    from kohaku_ray.pages.score_text import describe_scores
    from kohaku_ray.run.directory import submission_of, truth_of
    from kohaku_ray.run.outputs import as_lines, question_scores
    from kohaku_ray.storage import publish

    truth = arguments.truth or truth_of(arguments.files)
    files, metrics, note = [submission_of(run) for run in arguments.files], arguments.metric, ""
    if not metrics:
        _, found, note = read_gold(truth, [find_metric("wattbot")])
        metrics = [metric.name for metric in found]
    report = run_score(truth, files, metrics, arguments.by, arguments.errors)
    tell("\n\n".join(part for part in (note, describe_scores(report)) if part))
    if arguments.jsonl:  # one line per file and question
        found = tuple(find_metric(name) for name in metrics)
        gold = read_truth(truth, found)
        scored = ((file, question_scores(gold, found, read_submission(file))) for file in files)
        rows = ({"file": file, "id": key, "score": score} for file, scores in scored for key, score in scores.items())
        publish(arguments.jsonl, "".join(as_lines(rows)).encode())
    lines = [
        "  ".join(str(part) for part in (one["file"], one["metric"], one.get("label"), f"{one['score']:.4f}") if part)
        for one in report.records
    ]
    return Scored(line="\n".join(lines), truth=truth, metrics=metrics, records=report.records, note=note)


def _compare(arguments: argparse.Namespace) -> Outcome:
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
    scored = list(zip(compared.files, compared.scores, strict=True))
    flips = "" if pair is None else f"; {pair.n_won} values won, {pair.n_lost} lost"
    return Compared(
        line=f"{compared.metric}: {', '.join(f'{file} {one.score:.4f}' for file, one in scored)}{flips}",
        truth=compared.truth,
        metric=compared.metric,
        n_questions=len(compared.question_ids),
        scores=[{"file": file, "score": one.score, "parts": one.parts, "n": one.n} for file, one in scored],
        pair=None
        if pair is None
        else {
            "difference": pair.interval.mean,
            "low": pair.interval.low,
            "high": pair.interval.high,
            "p": pair.permutation.p,
            "n_lost": pair.n_lost,
            "n_won": pair.n_won,
            "flips": pair.flips,
        },
        notes=compared.notes,
        page=page,
    )


def _validate(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.config import as_yaml
    from kohaku_ray.run.validate import validate

    config = _load(arguments)
    if arguments.settings:
        tell(as_yaml(config))
    found = validate(config)
    tell(config.hide("\n".join(found.lines)))
    problems, probes = [str(problem) for problem in found.problems], []
    if arguments.probe and not problems:
        from kohaku_ray.engine.jobs.probe import run_probe

        probes = run_probe(config)
    for one in probes:
        if one.is_usable:
            tell(config.hide(one.text))
    unusable = [one.text for one in probes if not one.is_usable]
    if not problems and not unusable:
        tell("valid")
    for problem in (*problems, *unusable):
        complain(f"kohaku-ray: {config.hide(problem)}")
    is_config = unusable or any(isinstance(one, ConfigError) for one in found.problems)
    return Validated(
        line="not valid" if problems else "valid, not usable" if unusable else "valid",
        code=BAD_CONFIG if is_config else FAILED if problems else OK,
        valid=not problems,
        findings=found.lines,
        problems=problems,
        probes=[{"text": one.text, "is_usable": one.is_usable} for one in probes],
    )


def _show(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.pages.run_text import describe_question, describe_vote
    from kohaku_ray.run.files import question_rows

    rows = question_rows(arguments.run, arguments.question_id)
    tell(describe_question(rows, arguments.items or None))
    [vote] = rows["votes"]
    return Shown(
        line=describe_vote(vote),
        run=arguments.run,
        vote=vote,
        answers=rows["answers"],
        trace=rows["trace"],
        usage=rows["usage"],
    )


def _report(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.pages.report import write_report

    page = write_report(arguments.run, arguments.truth, arguments.output)
    tell(page)
    return Reported(line=page, page=page)


def _index_map(arguments: argparse.Namespace) -> Outcome:
    from kohaku_ray.pages.index_map import write_index_map

    plot = write_index_map(arguments.index, arguments.output)
    tell(plot)
    return Mapped(line=plot, plot=plot)


def _bench(arguments: argparse.Namespace) -> Outcome:
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
    return Benched(
        line=f"{len(bench.cells)} cells, {bench.n_failed} failed: {arguments.output}",
        code=ROWS_IN_ERROR if bench.n_failed else OK,
        output=arguments.output,
        files=FILES,
        n_cells=len(bench.cells),
        n_failed=bench.n_failed,
    )


# The parser.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kohaku-ray", description="Citation-precise, ensemble question answering in batch, on Ray."
    )
    parser.add_argument("--version", action="version", version=f"kohaku-ray {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    init = commands.add_parser("init", help="write a commented my.yaml and templates to start from")
    init.add_argument("directory", nargs="?", default=".", metavar="DIR", help="where (default: here)")
    of = init.add_mutually_exclusive_group()
    of.add_argument("--gold", action="store_true", help="questions with gold answers, so that a run is scored")
    of.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="my.yaml from a configuration of KohakuRAG (.py) or of the hybrid pipeline (.env, YAML), which is not run",
    )
    init.set_defaults(command=_init, outcome=Initialised)

    index = commands.add_parser("index", help="parse and encode documents, build the index")
    _add_config(index)
    index.set_defaults(command=_index, outcome=Indexed)

    documents = commands.add_parser(
        "documents", help="show what the parser makes of each file: trees, rejects, odd pages"
    )
    _add_config(documents)
    documents.add_argument("--document", metavar="ID", help="one document, with its whole tree")
    documents.add_argument(
        "--trees", metavar="DIR", help="write each tree as KohakuRAG JSON, which is read back the same"
    )
    documents.set_defaults(command=_documents, outcome=Parsed)

    answer = commands.add_parser("answer", help="answer questions in an ensemble, vote, and score against gold answers")
    _add_config(answer)
    answer.add_argument(
        "--retry", choices=["errors"], help="repeat calls whose recorded reply could not be used (rows with an error)"
    )
    answer.add_argument(
        "--again", action="store_true", help="repeat a finished run; recorded replies are not asked for"
    )
    answer.add_argument(
        "--strict", action="store_true", help="refuse an index that was made from other documents than the configured"
    )
    answer.add_argument("--no-report", action="store_true", help="write no report.html")
    answer.set_defaults(command=_answer, outcome=Answered)

    ask = commands.add_parser("ask", help="answer one question and print its evidence")
    _add_config(ask)
    ask.add_argument("question", nargs="?", metavar="QUESTION", help="its text; with --watch the first one")
    ask.add_argument(
        "--column", action="append", default=[], metavar="NAME=TEXT", help="a further column, such as answer_unit=kWh"
    )
    ask.add_argument("--items", type=int, default=5, metavar="N", help="items per step (default 5, 0: all)")
    ask.add_argument(
        "--watch", action="store_true", help="keep actors and replicas up; read further questions, one per line"
    )
    ask.set_defaults(command=_ask, outcome=Asked)

    sweep = commands.add_parser(
        "sweep", help="run a grid of configurations, compare the cells, write tables and a page"
    )
    _completed(
        sweep.add_argument("sweep", metavar="SWEEP", help="a YAML file, or the name of a sweep of configs/sweeps"),
        _sweeps,
    )
    sweep.add_argument(
        "--base", action="append", default=[], metavar="CONFIG", help="wins over the sweep's base: your documents"
    )
    _add_overrides(sweep)
    sweep.add_argument("-o", "--output", metavar="DIR", help="directory of the page (default runs/sweeps/NAME)")
    sweep.add_argument("--dry-run", action="store_true", help="print cells, indexes and calls; start nothing")
    sweep.add_argument("--yes", action="store_true", help=f"do not ask before more than {MANY_CELLS:,} cells")
    sweep.set_defaults(command=_sweep, outcome=Swept)

    vote = commands.add_parser("vote", help="vote over submission files")
    vote.add_argument("files", nargs="+", metavar="RUN", help="runs' directories or submission files, in member order")
    vote.add_argument("-o", "--output", required=True, metavar="CSV", help="the voted submission")
    vote.add_argument("--strategy", default="answer_priority", choices=_choices("strategy"))
    vote.add_argument(
        "--ignore-blank",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="blanks do not vote if any run answers, as in `answer` (default: on)",
    )
    vote.add_argument("--blank-quorum", type=_share, metavar="SHARE", help="abstain if at least this share is blank")
    vote.add_argument("--refs", default="set", choices=_choices("refs"), help="how references are chosen")
    vote.add_argument("--weights", default="uniform", choices=_choices("weights"), help="weights of members")
    vote.add_argument("--tiebreak", default="first", choices=_choices("tiebreak"))
    vote.add_argument("--compat", choices=["kohakurag"], help="reproduce the published string-for-string vote")
    vote.add_argument("--jsonl", metavar="FILE", help="write the voted answers as JSON lines too (see answers.jsonl)")
    vote.add_argument("--metadata", metavar="CSV", help="id and url of each document, for ref_url")
    vote.set_defaults(command=_vote, outcome=Voted)

    score = commands.add_parser("score", help="score submission files against gold answers")
    score.add_argument("files", nargs="+", metavar="RUN", help="runs' directories or submission files")
    score.add_argument(
        "--truth",
        metavar="FILE",
        help="gold answers: CSV, JSON lines or Parquet (default: the first run's question file)",
    )
    score.add_argument("--metric", action="append", metavar="METRIC", help=f"{_metrics()}; may be given twice")
    score.add_argument("--by", metavar="COLUMN", help="split by a column of the gold answers")
    score.add_argument("--errors", action="store_true", help="count the error classes")
    score.add_argument("--jsonl", metavar="FILE", help="write the score of every file and question as JSON lines")
    score.set_defaults(command=_score, outcome=Scored)

    compare = commands.add_parser("compare", help="list the questions that flipped between runs, with the paired test")
    compare.add_argument("runs", nargs="+", metavar="RUN", help="runs' directories or submission files")
    compare.add_argument("--truth", metavar="CSV", help="gold answers (default: the first run's question file)")
    compare.add_argument("--metric", default="wattbot", metavar="METRIC", help=_metrics())
    compare.add_argument("--by", metavar="COLUMN", help="split by a column of the gold answers")
    compare.add_argument("--page", metavar="HTML", help="also write a page: two runs' answers side by side")
    compare.set_defaults(command=_compare, outcome=Compared)

    report = commands.add_parser("report", help="write a run's page, report.html")
    report.add_argument("run", metavar="RUN", help="a run's directory")
    report.add_argument("--truth", metavar="CSV", help="gold answers (default: the run's question file if it has them)")
    report.add_argument("-o", "--output", metavar="HTML", help="the page (default RUN/report.html)")
    report.set_defaults(command=_report, outcome=Reported)

    index_map = commands.add_parser("map", help="plot an index's node vectors in two dimensions")
    index_map.add_argument("index", metavar="INDEX", help="an index's directory")
    index_map.add_argument("-o", "--output", metavar="FILE", help=".svg or .png (default INDEX/map.svg)")
    index_map.set_defaults(command=_index_map, outcome=Mapped)

    bench = commands.add_parser("bench", help="measure vLLM replicas against plain vLLM")
    _add_config(bench)
    bench.add_argument("--replicas", type=_counts, default=(1, 2), metavar="N,N", help="default 1,2")
    bench.add_argument("--members", type=_counts, default=(1, 9), metavar="N,N", help="default 1,9")
    bench.add_argument(
        "--concurrency", type=_counts, default=(8, 32), metavar="N,N", help="questions in flight per replica: 8,32"
    )
    bench.add_argument("--questions", type=_count, default=16, metavar="N", help="per replica and cell (default 16)")
    bench.add_argument("--context-tokens", type=_count, default=2000, metavar="N", help="default 2000")
    bench.add_argument("--output-tokens", type=_count, default=128, metavar="N", help="default 128")
    bench.add_argument("-o", "--output", default="runs/bench", metavar="DIR", help="default runs/bench")
    bench.set_defaults(command=_bench, outcome=Benched)

    validate = commands.add_parser("validate", help="check configuration, files and cluster demand; start nothing")
    _add_config(validate)
    validate.add_argument("--probe", action="store_true", help="ask each deployment one short question")
    validate.add_argument("--settings", action="store_true", help="print every setting first, defaults included")
    validate.set_defaults(command=_validate, outcome=Validated)

    show = commands.add_parser("show", help="print how one question was answered")
    show.add_argument("run", metavar="RUN", help="a run's directory")
    show.add_argument("question_id", metavar="QUESTION_ID")
    show.add_argument("--items", type=int, default=10, metavar="N", help="items per step (default 10, 0: all)")
    show.set_defaults(command=_show, outcome=Shown)

    shell = commands.add_parser("completion", help="print a shell's completion script")
    shell.add_argument("shell", choices=SHELLS, help='bash: eval "$(kohaku-ray completion bash)"')
    shell.set_defaults(command=_completion, outcome=Completion)

    parser.add_argument("-q", "--quiet", action="store_true", help="print errors and one line of result")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the rest to stderr")
    for name, command in commands.choices.items():
        command.set_defaults(name=name)
        # Before or after the command: without it here, what was said before it holds.
        flag: dict[str, Any] = {"action": "store_true", "default": argparse.SUPPRESS}
        command.add_argument("-q", "--quiet", help="print errors and one line of result", **flag)
        shape = ", ".join(command.get_default("outcome").shape())
        command.add_argument("--json", help=f"print one JSON object ({shape}); the rest to stderr", **flag)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    _completed(parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of a preset"), _presets)
    others = parser.add_argument(
        "--with",
        dest="others",
        action="append",
        default=[],
        metavar="CONFIG",
        help="merged over CONFIG, such as models/ollama or encoders/bge_m3; may be given twice",
    )
    _completed(others, _presets)
    _add_overrides(parser)


def _completed(argument: argparse.Action, completer: Callable[..., list[str]]) -> None:
    """Say what a shell offers for an argument."""
    argument.completer = completer  # type: ignore[attr-defined]  # argcomplete's name


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key, such as kohaku.top_k=8",
    )


def _choices(field: str) -> list[str]:
    """Return the values of a vote setting, as the configuration lists them."""
    from kohaku_ray.ensemble.rule import VoteRule

    return [str(value) for value in get_args(get_type_hints(VoteRule)[field])]


def _metrics() -> str:
    """Return the names of all metrics, as the registry lists them."""
    from kohaku_ray.evaluation.builtin import METRICS

    return f"{', '.join(METRICS)}, or your own as module:NAME"


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share: above 0, at most 1")
    return value


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _presets(prefix: str, **_: Any) -> list[str]:
    """Complete a configuration: presets, beside files."""
    from kohaku_ray.config.paths import preset_names

    return [*preset_names(), *_files(prefix)]


def _sweeps(prefix: str, **_: Any) -> list[str]:
    """Complete a sweep: those of ``configs/sweeps``, beside files."""
    from kohaku_ray.sweep.load import SWEEPS

    return [*sorted(file.stem for file in SWEEPS.glob("*.yaml")), *_files(prefix)]


def _files(prefix: str) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter(("yaml", "yml", "json", "toml"))(prefix))


if __name__ == "__main__":
    sys.exit(main())
