"""kohaku-ray: index, answer, sweep, vote, score, compare, validate, show, report, map, bench."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from kohaku_ray import __version__
from kohaku_ray.errors import ConfigError, KohakuRayError

if TYPE_CHECKING:
    from kohaku_ray.config import Config

OK, FAILED, BAD_CONFIG, ROWS_IN_ERROR = 0, 1, 2, 3

MANY_CELLS = 1000
"""Most cells of a sweep without a confirmation: a wrong axis costs days."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    0: all done; 3: finished with some rows in error; 2: configuration; 1: anything else.
    """
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except KohakuRayError as error:
        return _complain(arguments, error, BAD_CONFIG if isinstance(error, ConfigError) else FAILED)
    except KeyboardInterrupt:
        print("interrupted: repeat the same command to go on", file=sys.stderr)  # noqa: T201
        return FAILED
    except BrokenPipeError:
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kohaku-ray", description="Citation-precise, ensemble question answering in batch, on Ray."
    )
    parser.add_argument("--version", action="version", version=f"kohaku-ray {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    index = commands.add_parser("index", help="parse and encode documents, build the index")
    _add_config(index)
    index.set_defaults(command=_index)

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
    answer.set_defaults(command=_answer)

    sweep = commands.add_parser(
        "sweep", help="run a grid of configurations, compare the cells, write tables and a page"
    )
    sweep.add_argument("sweep", metavar="SWEEP", help="a YAML file, or the name of a sweep of configs/sweeps")
    sweep.add_argument(
        "--base", action="append", default=[], metavar="CONFIG", help="wins over the sweep's base: your documents"
    )
    _add_overrides(sweep)
    sweep.add_argument("-o", "--output", metavar="DIR", help="directory of the page (default runs/sweeps/NAME)")
    sweep.add_argument("--dry-run", action="store_true", help="print cells, indexes and calls; start nothing")
    sweep.add_argument("--yes", action="store_true", help=f"do not ask before more than {MANY_CELLS:,} cells")
    sweep.set_defaults(command=_sweep)

    vote = commands.add_parser("vote", help="vote over submission files")
    vote.add_argument("files", nargs="+", metavar="CSV", help="submissions, in member order")
    vote.add_argument("-o", "--output", required=True, metavar="CSV", help="the voted submission")
    vote.add_argument("--strategy", default="answer_priority", choices=_choices("strategy"))
    vote.add_argument("--ignore-blank", action="store_true", help="blanks do not vote if any run answers")
    vote.add_argument("--blank-quorum", type=_share, metavar="SHARE", help="abstain if at least this share is blank")
    vote.add_argument("--refs", default="set", choices=_choices("refs"), help="how references are chosen")
    vote.add_argument("--weights", default="uniform", choices=_choices("weights"), help="weights of members")
    vote.add_argument("--tiebreak", default="first", choices=_choices("tiebreak"))
    vote.add_argument("--compat", choices=["kohakurag"], help="reproduce the published string-for-string vote")
    vote.add_argument("--metadata", metavar="CSV", help="id and url of each document, for ref_url")
    vote.set_defaults(command=_vote)

    score = commands.add_parser("score", help="score submission files against gold answers")
    score.add_argument("files", nargs="+", metavar="CSV")
    score.add_argument("--truth", required=True, metavar="CSV")
    score.add_argument("--metric", action="append", metavar="METRIC", help=f"{_metrics()}; may be given twice")
    score.add_argument("--by", metavar="COLUMN", help="split by a column of the gold answers")
    score.add_argument("--errors", action="store_true", help="count the error classes")
    score.add_argument("--json", action="store_true", help="print a list of records")
    score.set_defaults(command=_score)

    compare = commands.add_parser("compare", help="list the questions that flipped between runs, with the paired test")
    compare.add_argument("runs", nargs="+", metavar="RUN", help="runs' directories or submission files")
    compare.add_argument("--truth", metavar="CSV", help="gold answers (default: the first run's question file)")
    compare.add_argument("--metric", default="wattbot", metavar="METRIC", help=_metrics())
    compare.add_argument("--by", metavar="COLUMN", help="split by a column of the gold answers")
    compare.set_defaults(command=_compare)

    report = commands.add_parser("report", help="write a run's page, report.html")
    report.add_argument("run", metavar="RUN", help="a run's directory")
    report.add_argument("--truth", metavar="CSV", help="gold answers (default: the run's question file if it has them)")
    report.add_argument("-o", "--output", metavar="HTML", help="the page (default RUN/report.html)")
    report.set_defaults(command=_report)

    index_map = commands.add_parser("map", help="plot an index's node vectors in two dimensions")
    index_map.add_argument("index", metavar="INDEX", help="an index's directory")
    index_map.add_argument("-o", "--output", metavar="FILE", help=".svg or .png (default INDEX/map.svg)")
    index_map.set_defaults(command=_map)

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
    bench.set_defaults(command=_bench)

    validate = commands.add_parser("validate", help="check configuration, files and cluster demand; start nothing")
    _add_config(validate)
    validate.add_argument("--probe", action="store_true", help="ask each deployment one short question")
    validate.set_defaults(command=_validate)

    show = commands.add_parser("show", help="print how one question was answered")
    show.add_argument("run", metavar="RUN", help="a run's directory")
    show.add_argument("question_id", metavar="QUESTION_ID")
    show.add_argument("--items", type=int, default=10, metavar="N", help="items per step (default 10, 0: all)")
    show.set_defaults(command=_show)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of a preset")
    parser.add_argument(
        "--with",
        dest="others",
        action="append",
        default=[],
        metavar="CONFIG",
        help="merged over CONFIG, such as models/ollama or encoders/bge_m3; may be given twice",
    )
    _add_overrides(parser)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key, such as kohaku.top_k=8",
    )


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


def _index(arguments: argparse.Namespace) -> int:
    from kohaku_ray.engine.jobs.index import run_index

    summary = run_index(_load(arguments))
    _print(summary.text())
    return ROWS_IN_ERROR if summary.n_rejects else OK


def _answer(arguments: argparse.Namespace) -> int:
    from kohaku_ray.runs.finished import finished_before
    from kohaku_ray.runs.results import describe_run

    config = _load(arguments)
    summary = None if arguments.again or arguments.retry else finished_before(config)
    page = not arguments.no_report
    if summary is not None:
        _print("finished before, with the same inputs: nothing to do (--again repeats it)\n")
        page = page and not os.path.exists(f"{summary.run}/report.html")
    else:
        _say("answer  starting")
        from kohaku_ray.engine.jobs.answer import run_answer

        summary = run_answer(config, retry_errors=arguments.retry == "errors", strict=arguments.strict)
    _print(describe_run(config, summary))
    if page:
        from kohaku_ray.reporting.report import write_report

        _print(f"page: {write_report(summary.run)}")
    return ROWS_IN_ERROR if summary.n_member_errors or summary.n_unanswered else OK


def _sweep(arguments: argparse.Namespace) -> int:
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


def _vote(arguments: argparse.Namespace) -> int:
    from kohaku_ray.ensemble.aggregate import run_vote
    from kohaku_ray.ensemble.vote import VoteRule
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
    result = run_vote(arguments.files, rule, metadata)
    write_submission(arguments.output, result.rows)
    n_blank = sum(verdict.is_blank for verdict in result.verdicts)
    _print(f"{len(result.rows)} questions, {len(arguments.files)} members, {n_blank} abstained: {arguments.output}")
    for file, missing in result.missing.items():
        if missing:
            _print(f"{file}: {len(missing)} questions missing, counted as blank: {', '.join(missing[:10])}")
    return OK


def _score(arguments: argparse.Namespace) -> int:
    from kohaku_ray.evaluation.report import render, run_score

    report = run_score(
        arguments.truth, arguments.files, arguments.metric or ["wattbot"], arguments.by, arguments.errors
    )
    _print(json.dumps(report.records, indent=2) if arguments.json else render(report))
    return OK


def _compare(arguments: argparse.Namespace) -> int:
    from kohaku_ray.evaluation.compare import compare_files, render
    from kohaku_ray.runs.directory import submission_of, truth_of

    truth = arguments.truth or truth_of(arguments.runs)
    files = [submission_of(run) for run in arguments.runs]
    _print(render(compare_files(truth, files, arguments.metric, arguments.by)))
    return OK


def _validate(arguments: argparse.Namespace) -> int:
    from kohaku_ray.config import as_yaml
    from kohaku_ray.runs.validate import validate

    config = _load(arguments)
    checks = validate(config)
    _print(f"{as_yaml(config)}\n" + config.hide("\n".join(checks)))
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


def _show(arguments: argparse.Namespace) -> int:
    from kohaku_ray.runs.show import show_question

    _print(show_question(arguments.run, arguments.question_id, arguments.items or None))
    return OK


def _report(arguments: argparse.Namespace) -> int:
    from kohaku_ray.reporting.report import write_report

    _print(write_report(arguments.run, arguments.truth, arguments.output))
    return OK


def _map(arguments: argparse.Namespace) -> int:
    from kohaku_ray.reporting.index_map import write_index_map

    _print(write_index_map(arguments.index, arguments.output))
    return OK


def _bench(arguments: argparse.Namespace) -> int:
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


def _choices(field: str) -> list[str]:
    """Return the values of a vote setting, as the configuration lists them."""
    from kohaku_ray.ensemble.vote import VoteRule

    return [str(value) for value in get_args(get_type_hints(VoteRule)[field])]


def _metrics() -> str:
    """Return the names of all metrics, as the registry lists them."""
    from kohaku_ray.evaluation.metrics import METRICS

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


def _complain(arguments: argparse.Namespace, error: Exception, code: int) -> int:
    """Print an error, with values of environment variables replaced by references."""
    hide: Callable[[str], str] = getattr(arguments, "hide", str)
    print(f"kohaku-ray: {hide(str(error))}", file=sys.stderr)  # noqa: T201
    return code


def _say(text: str) -> None:
    """Print a progress line to stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _print(text: Any) -> None:
    """Print without control characters: text of documents and models must not control the terminal."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in str(text))
    print(shown, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
