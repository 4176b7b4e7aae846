"""The arguments of every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn, get_args

from kohaku_ray.cli import commands as run
from kohaku_ray.cli.commands import MANY_CELLS, SHELLS
from kohaku_ray.errors import did_you_mean
from kohaku_ray.removed import removed_usage
from kohaku_ray.version import __version__


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands; ``arguments.command`` is the one to call."""
    from kohaku_ray.ensemble import rule

    parser = _Parser(
        prog="kohaku-ray",
        description="Citation-precise, ensemble question answering in batch, on Ray.",
        epilog="To try it on the sample: kohaku-ray index demo && kohaku-ray answer demo",
    )
    parser.add_argument("--version", action="version", version=f"kohaku-ray {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    init = _add(commands, run.init)
    init.add_argument(
        "directory", nargs="?", default=".", metavar="DIR", help="directory to write into (default: here)"
    )
    init.add_argument("--gold", action="store_true", help="write questions with gold answers, so that runs are scored")

    index = _add(commands, run.index)
    _add_config(index)
    _add_rows_in_error(index)

    documents = _add(commands, run.documents)
    _add_config(documents)
    documents.add_argument("--document", metavar="ID", help="show one document with its whole tree")
    documents.add_argument(
        "--trees", metavar="DIR", help="write each tree as KohakuRAG JSON, which can be indexed again"
    )

    answer = _add(commands, run.answer)
    _add_config(answer)
    answer.add_argument(
        "--retry", choices=["errors"], help="ask again where the recorded reply could not be used (rows with an error)"
    )
    answer.add_argument(
        "--again",
        action="store_true",
        help="repeat a finished run, or replace the run of another configuration; recorded replies are used again",
    )
    answer.add_argument(
        "--strict", action="store_true", help="stop if the index was made from other documents than the configured ones"
    )
    answer.add_argument("--no-report", action="store_true", help="do not write report.html")
    _add_rows_in_error(answer)

    ask = _add(commands, run.ask)
    _add_config(ask)
    ask.add_argument("question", nargs="?", metavar="QUESTION", help="the question; with --watch, the first one")
    ask.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="another column of the question, such as answer_unit=kWh",
    )
    ask.add_argument("--trace", action="store_true", help="show how it was answered: plan, evidence, context, members")
    ask.add_argument("--items", type=int, metavar="N", help="the same with N items per step (--trace: 5; 0: all)")
    ask.add_argument(
        "--watch",
        action="store_true",
        help="keep the models loaded and read more questions from standard input, one per line",
    )

    sweep = _add(commands, run.sweep)
    _completed(
        sweep.add_argument("sweep", metavar="SWEEP", help="a YAML file, or the name of a sweep, such as paper"),
        _sweeps,
    )
    sweep.add_argument(
        "--base",
        action="append",
        default=[],
        metavar="CONFIG",
        help="your configuration, whose settings replace those of the sweep's own base",
    )
    _add_overrides(sweep)
    sweep.add_argument("-o", "--output", metavar="DIR", help="directory of page and tables (default runs/sweeps/NAME)")
    sweep.add_argument(
        "--dry-run", action="store_true", help="print the planned cells, indexes and model calls, and stop"
    )
    sweep.add_argument(
        "--cluster",
        metavar="COLUMN",
        help="take questions of one value, such as of one ref_id, as one in intervals and tests",
    )
    _add_rows_in_error(sweep)
    sweep.add_argument("--yes", action="store_true", help=f"do not ask before more than {MANY_CELLS:,} cells")
    sweep.add_argument(
        "--race", action=argparse.BooleanOptionalAction, help="drop cells that are beaten, whatever the file says"
    )

    vote = _add(commands, run.vote)
    vote.add_argument("files", nargs="+", metavar="RUN", help="runs' directories or submission files, in member order")
    vote.add_argument("-o", "--output", required=True, metavar="CSV", help="the voted submission")
    vote.add_argument(
        "--strategy",
        default="answer_priority",
        choices=get_args(rule.Strategy),
        help="how answer and references are chosen: the answer first and the references among its runs (default), each "
        "on its own, the references first, the references of all runs with the answer or those they share, of all "
        "runs, or the first run that answers",
    )
    vote.add_argument(
        "--ignore-blank",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="count no blank vote if any run answers, as `answer` does (default: on)",
    )
    vote.add_argument(
        "--blank-quorum", type=_share, metavar="SHARE", help="abstain if at least this share of the runs is blank"
    )
    vote.add_argument(
        "--refs",
        default="set",
        choices=get_args(rule.RefsRule),
        help="how references are chosen: the most frequent set, or each that half of the members cite",
    )
    vote.add_argument(
        "--weights",
        default="uniform",
        choices=get_args(rule.Weighting),
        help="weights of the members: all equal, or by how often each agrees with the others",
    )
    vote.add_argument(
        "--tiebreak",
        default="first",
        choices=get_args(rule.Tiebreak),
        help="on equal votes for two answers: the earliest run's (default), or abstain",
    )
    vote.add_argument(
        "--keep-spellings",
        action="store_true",
        help="write values as the runs spell them, and not as metrics read them: 80-90 and not [80,90]",
    )
    vote.add_argument("--compat", choices=get_args(rule.Compat), help="reproduce the published string-for-string vote")
    vote.add_argument("--jsonl", metavar="FILE", help="write the voted answers as JSON lines too (see answers.jsonl)")
    vote.add_argument("--metadata", metavar="CSV", help="id and url of each document, for ref_url")

    score = _add(commands, run.score)
    score.add_argument("files", nargs="+", metavar="RUN", help="runs' directories or submission files")
    score.add_argument(
        "--truth",
        metavar="FILE",
        help="gold answers: CSV, JSON lines or Parquet (default: the first run's question file)",
    )
    score.add_argument("--metric", action="append", metavar="METRIC", help=f"{_metrics()}; may be repeated")
    score.add_argument("--by", metavar="COLUMN", help="split by a column of the gold answers")
    score.add_argument(
        "--cluster",
        metavar="COLUMN",
        help="give each score its 95 %% interval, with questions of one value, such as of one ref_id, taken as one",
    )
    score.add_argument("--errors", action="store_true", help="count the error classes")
    score.add_argument("--jsonl", metavar="FILE", help="write the score of every file and question as JSON lines")

    compare = _add(commands, run.compare)
    compare.add_argument("runs", nargs="+", metavar="RUN", help="runs' directories or submission files")
    compare.add_argument(
        "--truth",
        metavar="FILE",
        help="gold answers: CSV, JSON lines or Parquet (default: the first run's question file)",
    )
    compare.add_argument("--metric", default="wattbot", metavar="METRIC", help=_metrics())
    compare.add_argument("--by", metavar="COLUMN", help="split by a column of the gold answers")
    compare.add_argument(
        "--cluster",
        metavar="COLUMN",
        help="take questions of one value, such as of one ref_id, as one in interval and test",
    )
    page = "also write a page: two runs' answers side by side; of more runs, the groups of --by"
    compare.add_argument("--page", metavar="HTML", help=page)

    bundle = _add(commands, run.bundle)
    bundle.add_argument("run", metavar="RUN", help="a finished run's directory")
    bundle.add_argument("output", metavar="ZIP", help="the bundle")
    bundle.add_argument(
        "--with-index",
        action="store_true",
        help="include the index with the documents' text; without it, the bundle holds only the text that "
        "replies quote",
    )

    replay = _add(commands, run.replay)
    replay.add_argument("bundles", nargs="+", metavar="ZIP", help="bundles")
    replay.add_argument(
        "--index", metavar="DIR", help="the index to use if the bundle has none (default: the run's own)"
    )
    replay.add_argument(
        "--trust-code",
        action="store_true",
        help="allow the bundle to import the modules that it names for its system and metrics",
    )

    report = _add(commands, run.report)
    report.add_argument("run", metavar="RUN", help="a run's directory")
    report.add_argument(
        "--truth",
        metavar="FILE",
        help="gold answers: CSV, JSON lines or Parquet (default: the run's question file if it has them)",
    )
    report.add_argument(
        "--cluster",
        metavar="COLUMN",
        help="interval of the scores with questions of one value, such as of one ref_id, taken as one",
    )
    report.add_argument("-o", "--output", metavar="HTML", help="the page (default RUN/report.html)")

    runs = _add(commands, run.runs)
    runs.add_argument("directory", nargs="?", default="runs", metavar="DIR", help="where runs lie (default: runs)")
    runs.add_argument("--page", action="store_true", help="also write DIR/runs.html, sorted and filtered in a browser")

    bench = _add(commands, run.bench)
    _add_config(bench)
    bench.add_argument(
        "--replicas", type=_counts, default=(1, 2), metavar="N,N", help="numbers of replicas to measure (default 1,2)"
    )
    bench.add_argument(
        "--members", type=_counts, default=(1, 9), metavar="N,N", help="numbers of members to measure (default 1,9)"
    )
    bench.add_argument(
        "--concurrency",
        type=_counts,
        default=(8, 32),
        metavar="N,N",
        help="questions in flight per replica (default 8,32)",
    )
    bench.add_argument(
        "--questions", type=_count, default=16, metavar="N", help="questions per replica and cell (default 16)"
    )
    bench.add_argument(
        "--context-tokens", type=_count, default=2000, metavar="N", help="tokens of context per prompt (default 2000)"
    )
    bench.add_argument("--output-tokens", type=_count, default=128, metavar="N", help="tokens per reply (default 128)")
    bench.add_argument(
        "--answer-questions",
        type=int,
        metavar="N",
        help="questions per replica of a whole answer run after the grid; 0: no such run (default 10 × the largest "
        "concurrency; 0 on CPUs)",
    )
    bench.add_argument(
        "-o", "--output", default="runs/bench", metavar="DIR", help="directory of the results (default runs/bench)"
    )

    validate = _add(commands, run.validate)
    _add_config(validate)
    validate.add_argument(
        "--deep", action="store_true", help="also compare every file of the index and the run with its checksum"
    )
    validate.add_argument("--probe", action="store_true", help="also ask each model one short question")
    validate.add_argument(
        "--settings", action="store_true", help="also print every setting, defaults included, with its meaning"
    )

    show = _add(commands, run.show)
    show.add_argument("run", metavar="RUN", help="a run's directory")
    show.add_argument(
        "question_id", nargs="?", metavar="QUESTION_ID", help="a question of the run; without it, list the questions"
    )
    show.add_argument("--prompt", action="store_true", help="print its prompts as they were sent")
    show.add_argument("--items", type=int, default=10, metavar="N", help="items shown per step (default 10; 0: all)")

    docs = _add(commands, run.docs)
    docs.add_argument("topic", nargs="?", metavar="TOPIC", help="a page; without it, list the pages")

    shell = _add(commands, run.completion)
    shell.add_argument("shell", choices=SHELLS, help='bash: eval "$(kohaku-ray completion bash)"')

    parser.add_argument("-q", "--quiet", action="store_true", help="print errors and one line of result")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the rest to stderr")
    for name, command in commands.choices.items():
        command.set_defaults(name=name)
        # Before or after the command: without it here, what was said before it holds.
        flag: dict[str, Any] = {"action": "store_true", "default": argparse.SUPPRESS}
        command.add_argument("-q", "--quiet", help="print errors and one line of result", **flag)
        command.add_argument("--json", help="print one JSON object; the rest to stderr", **flag)
    return parser


EXAMPLES = {
    "init": "kohaku-ray init myproject --gold",
    "index": "kohaku-ray index my.yaml",
    "documents": "kohaku-ray documents my.yaml --document report2023",
    "answer": "kohaku-ray answer my.yaml --with models/ollama --set questions.limit=5",
    "ask": 'kohaku-ray ask my.yaml "How much water was used in 2023?"',
    "sweep": "kohaku-ray sweep top_k_final --base my.yaml --dry-run",
    "vote": "kohaku-ray vote runs/a runs/b -o voted.csv",
    "score": "kohaku-ray score runs/mine --truth questions.csv --errors",
    "compare": "kohaku-ray compare runs/a runs/b --page compare.html",
    "bundle": "kohaku-ray bundle runs/mine mine.zip --with-index",
    "replay": "kohaku-ray replay mine.zip",
    "runs": "kohaku-ray runs runs --page",
    "report": "kohaku-ray report runs/mine",
    "bench": "kohaku-ray bench my.yaml --replicas 1,2 --members 1,9",
    "validate": "kohaku-ray validate my.yaml --probe",
    "show": "kohaku-ray show runs/mine q001 --prompt",
    "docs": "kohaku-ray docs sweeps",
    "completion": 'eval "$(kohaku-ray completion bash)"',
}
"""What a person types, by command: the last line of each command's help."""


class _Parser(argparse.ArgumentParser):
    """Answers a word that is no choice with the nearest one, and an option that left with what to do instead."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all words; what is left over is answered with the option that takes it, or the nearest one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            [commands] = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
            command, words = commands.choices[parsed.name], " ".join(unknown)
            options = command._option_string_actions
            if words.startswith("-"):
                command.error(f"unrecognized arguments: {words}{did_you_mean(unknown[0].partition('=')[0], options)}")
            if parsed.name == "ask":
                command.error(f'the question goes on after "{parsed.question}": put all its words in quotes')
            if "--with" in options:
                command.error(f"one CONFIG is taken, further ones by --with: --with {words}")
            if "--base" in options:
                command.error(f"a configuration is taken by --base: --base {words}")
            command.error(f"unrecognized arguments: {words}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """End with what is wrong."""
        unknown = message.partition("unrecognized arguments: ")[2].split()
        instead = (removed_usage(word.partition("=")[0]) for word in unknown)
        super().error("; ".join(filter(None, instead)) or message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)
            if is_command and (instead := removed_usage(str(value))):
                raise argparse.ArgumentError(action, instead)
            names = [str(choice) for choice in action.choices]
            what = "no command" if is_command else "no choice"
            raise argparse.ArgumentError(
                action, f"{value} is {what}{did_you_mean(str(value), names)}; there are: {', '.join(names)}"
            )


def _add(commands: Any, function: Callable[..., Any]) -> argparse.ArgumentParser:
    """Add a command: its name is the function's, its description the first line of the function's docstring."""
    name = function.__name__
    summary = (function.__doc__ or "").partition("\n")[0].rstrip(".")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary[:1].lower() + summary[1:],
        description=f"{summary}.",
        epilog=f"Example: {EXAMPLES[name]}. All commands: kohaku-ray docs commands",
    )
    parser.set_defaults(command=function)
    return parser


def _add_rows_in_error(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows-in-error-ok",
        action="store_true",
        help="exit code 0 instead of 3 if rows are in error and nothing else went wrong, so that no "
        "scheduler repeats the job",
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    _completed(
        parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of a preset, such as demo"),
        _presets,
    )
    others = parser.add_argument(
        "--with",
        dest="others",
        action="append",
        default=[],
        metavar="CONFIG",
        help="a preset or YAML file whose settings replace those of CONFIG, such as models/ollama; may be repeated",
    )
    _completed(others, _presets)
    _add_overrides(parser)


def _completed(argument: argparse.Action, completer: Callable[..., list[str]]) -> None:
    argument.completer = completer  # type: ignore[attr-defined]  # argcomplete's name


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting, such as kohaku.top_k=8; may be repeated",
    )


def _metrics() -> str:
    from kohaku_ray.extensions import BUILT_IN

    return f"{', '.join(BUILT_IN['metrics'])}, or your own as module:NAME"


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share above 0 and at most 1")
    return share


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _presets(prefix: str, **_: Any) -> list[str]:
    from kohaku_ray.config.paths import preset_names

    return [*preset_names(), *_files(prefix)]


def _sweeps(prefix: str, **_: Any) -> list[str]:
    from kohaku_ray.sweep.load import SWEEPS

    return [*sorted(file.stem for file in SWEEPS.glob("*.yaml")), *_files(prefix)]


def _files(prefix: str) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter(("yaml", "yml", "json"))(prefix))
