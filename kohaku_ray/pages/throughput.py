"""Results of a throughput benchmark: one record per measurement, which text, page, JSON and CSV read."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kohaku_ray.pages.charts import Chart
from kohaku_ray.pages.plots import Line, grouped_bars, lines
from kohaku_ray.run.summary import counted
from kohaku_ray.storage import make_directory, publish

FILES = ("throughput.html", "throughput.json", "throughput.csv")
"""Names of the files, the page first."""

COLUMNS = (
    *("replicas", "members", "in flight", "questions/s", "generated/s", "prompt/s", "cached", "bound"),
    *("cost", "scaling", "of plain", "CPU ms/call"),
)
"""Heads of the table."""

LEGEND = (
    "in flight: questions at once per replica",
    "generated/s, prompt/s: tokens per second, a prompt counted once per member",
    "cached: share of prompt tokens from the prefix cache; bound: (m - 1) / m for m members, if one fills it for all",
    "cost: time of m members over the time of one",
    "scaling: questions per second of R replicas over R times those of one",
    "of plain: questions per second and replica over plain vLLM's (LLM.generate, n = m, one replica's resources)",
    "CPU ms/call: CPU time of driver and replica, without vLLM's engine process; plain: the process calling generate",
)
"""Meaning of the heads."""

RUN_COLUMNS = {
    "replicas": "",
    "members": "",
    "questions": "n_questions",
    "calls": "n_calls",
    "answers/s": "answers_per_s",
    "usable": "usable_share",
    "generated/s": "generated_per_s",
    "prompt/s": "prompt_per_s",
    "cached": "cached_share",
    "calls/s": "calls_per_s",
    "of plain": "of_plain",
    "scaling": "scaling",
    "CPU ms/call": "cpu_ms",
    "generated/s/GPU": "generated_per_s_gpu",
    "prompt/s/GPU": "prompt_per_s_gpu",
    "MFU": "mfu",
    "J/1,000": "joules_per_1000",
    "$/1,000": "dollars_per_1000",
}
"""Heads of the answer runs' table, with the figure of a record that stands below; one known of no run is left out."""

RUN_LEGEND = (
    "whole runs of the configured system: retrieval, members, ledger, vote and files; replies end by their grammar",
    "plain: LLM.generate on one replica's resources: the first run's prompts, seeds, schemas and sampling, all at once",
    "answers/s: members' answers without an error per second; usable: their share of all answers",
    "of plain: calls per second and replica over plain vLLM's",
    "scaling: answers per second of R replicas over R times those of one",
    "CPU ms/call: CPU time of driver, retrievers, members, ledger, voters and replicas, without vLLM's engine process",
    "MFU: 2 × parameters × tokens per second, those from the prefix cache left out, over the GPUs' dense bf16 FLOP/s",
    "J/1,000: energy of the replicas' GPUs per 1,000 usable answers",
    "$/1,000: price of the calls per 1,000 usable answers",
)
"""Meaning of these heads."""

_DIGITS = {"cached_share": 3, "cached_bound": 3, "cost_ratio": 2, "scaling": 2, "of_plain": 2, "cpu_ms": 1}
_RUN_DIGITS = {**_DIGITS, "answers_per_s": 2, "usable_share": 3, "calls_per_s": 2, "mfu": 3, "dollars_per_1000": 2}
_ANSWERS = ("n_answers", "n_usable", "joules", "dollars")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Counts and times of a number of calls."""

    n_questions: int
    n_calls: int  # one per member and question
    wall_s: float  # from the first call to the last reply
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None  # prompt tokens from the prefix cache; None where they are not counted
    cpu_s: float | None = None  # CPU seconds outside the engine's own process; None where it could not be measured
    n_answers: int | None = None  # of members; None where calls were measured, not answers
    n_usable: int | None = None  # answers without an error
    joules: float | None = None  # of the replicas' GPUs; None where it was not measured
    dollars: float | None = None  # None without prices

    @property
    def questions_per_s(self) -> float:
        """Questions per second."""
        return self.n_questions / self.wall_s

    @property
    def rates(self) -> Record:
        """What follows from the counts; None is a figure that is not known."""
        return {
            "questions_per_s": self.questions_per_s,
            "generated_per_s": self.completion_tokens / self.wall_s,
            "prompt_per_s": self.prompt_tokens / self.wall_s,
            "cached_share": None if self.cached_tokens is None else self.cached_tokens / self.prompt_tokens,
            "cpu_ms": None if self.cpu_s is None else 1000 * self.cpu_s / self.n_calls,
            "calls_per_s": self.n_calls / self.wall_s,
            "answers_per_s": None if self.n_usable is None else self.n_usable / self.wall_s,
            "usable_share": None if self.n_usable is None or not self.n_answers else self.n_usable / self.n_answers,
            "joules_per_1000": self._per_1000(self.joules),
            "dollars_per_1000": self._per_1000(self.dollars),
        }

    def _per_1000(self, amount: float | None) -> float | None:
        return None if amount is None or not self.n_usable else 1000 * amount / self.n_usable


_CALLS = tuple(name for name in Measurement.__slots__ if name not in _ANSWERS)


@dataclass(frozen=True, slots=True)
class BenchCell:
    """One combination of the swept settings."""

    replicas: int
    members: int  # calls per question
    concurrency: int  # questions in flight per replica
    measured: Measurement | None = None
    reason: str = ""  # why there is no measurement
    is_skipped: bool = False  # the cluster cannot hold this many replicas, which is not an error


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain vLLM on one replica's resources: the limit."""

    members: int  # samples per prompt
    measured: Measurement | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AnswerRun:
    """A whole run of the configured system on a number of replicas."""

    replicas: int
    members: int
    measured: Measurement | None = None
    reason: str = ""  # why there is no measurement
    is_skipped: bool = False  # see ``BenchCell``
    errors: Sequence[str] = ()  # of its answers, with their numbers


@dataclass(frozen=True, slots=True)
class Gpus:
    """What a replica's GPUs compute, and for what model."""

    n_gpus: float  # per replica
    flops: float | None = None  # dense bf16 FLOP/s of one GPU; None: not known
    n_parameters: int | None = None  # of the model; None: not known


@dataclass(frozen=True, slots=True)
class Throughput:
    """A benchmark so far."""

    facts: Mapping[str, str | int]  # configuration and hardware
    plain: Sequence[Plain] = ()
    cells: Sequence[BenchCell] = ()  # in the order of the sweep
    runs: Sequence[AnswerRun] = ()  # one per number of replicas
    plain_run: Plain | None = None  # plain vLLM, given the calls of the first run
    gpus: Gpus | None = None  # None: the replicas run on CPUs

    @property
    def n_failed(self) -> int:
        """Count the failed measurements."""
        return sum(record["status"] == "failed" for record in records(self))


def records(bench: Throughput) -> list[Record]:
    """List every measurement with all its figures, plain vLLM first, answer runs last; None is not known.

    ``cost_ratio`` is the time of a cell's members over that of one, at the same replicas and concurrency; ``scaling``
    its questions per second over replicas times those of one; ``of_plain`` the same over those of plain sampling.
    ``cached_bound`` is the largest share that a prefix cache can give: all but the first member's. Answer runs (of kind
    ``answers``, after their peer ``plain answers``) are compared by their answers per second in ``scaling``, by their
    calls per second in ``of_plain``.
    """
    rate = {
        (one.replicas, one.members, one.concurrency): one.measured.questions_per_s
        for one in bench.cells
        if one.measured
    }
    limit = {one.members: one.measured.questions_per_s for one in bench.plain if one.measured}
    rows = []
    for plain in bench.plain:
        row = _record("plain", 1, plain.members, None, plain)
        rows.append(row | {"cost_ratio": _over(limit.get(1), limit.get(plain.members))})
    for cell in bench.cells:
        n, m, c = cell.replicas, cell.members, cell.concurrency
        own = rate.get((n, m, c))
        row = _record("serve", n, m, c, cell)
        row |= {"cached_bound": (m - 1) / m, "cost_ratio": _over(rate.get((n, 1, c)), own)}
        rows.append(row | {"scaling": _over(own, rate.get((1, m, c)), n), "of_plain": _over(own, limit.get(m), n)})
    rows += _run_records(bench)
    return [row | _of_gpus(row, bench.gpus) for row in rows]


def _run_records(bench: Throughput) -> list[Record]:
    rows, calls_per_s = [], None
    if bench.plain_run is not None:
        rows.append(_record("plain answers", 1, bench.plain_run.members, None, bench.plain_run))
        calls_per_s = rows[0]["calls_per_s"]
    runs = [_record("answers", run.replicas, run.members, None, run) for run in bench.runs]
    one = next((row["answers_per_s"] for row in runs if row["replicas"] == 1), None)
    for row in runs:
        n = row["replicas"]
        row["scaling"] = _over(row["answers_per_s"], one, n) if one else None
        row["of_plain"] = _over(row["calls_per_s"], calls_per_s, n)
    return rows + runs


def _of_gpus(row: Record, gpus: Gpus | None) -> Record:
    """Return a record's figures per GPU, and its share of what its GPUs compute (MFU: Chowdhery et al., 2022, app. B).

    A token takes 2 FLOP per parameter, attention left out. Tokens whose cached share is not known give no MFU.
    """
    if gpus is None or row["status"] != "measured":
        return {}
    n = row["replicas"] * gpus.n_gpus
    figures = {f"{name}_gpu": row[name] / n for name in ("generated_per_s", "prompt_per_s")}
    if gpus.flops and gpus.n_parameters and row["cached_tokens"] is not None:
        n_tokens = row["prompt_tokens"] - row["cached_tokens"] + row["completion_tokens"]
        figures["mfu"] = 2 * gpus.n_parameters * n_tokens / row["wall_s"] / (n * gpus.flops)
    return figures


def _record(
    kind: str, replicas: int, members: int, concurrency: int | None, of: Plain | BenchCell | AnswerRun
) -> Record:
    missing = "skipped" if not isinstance(of, Plain) and of.is_skipped else "failed"
    row: Record = {"kind": kind, "replicas": replicas, "members": members, "concurrency": concurrency}
    row |= {"status": "measured" if of.measured else missing, "reason": of.reason}
    row |= dict.fromkeys((*_CALLS, "questions_per_s", "generated_per_s", "prompt_per_s", "cached_share"))
    row |= dict.fromkeys(("cached_bound", "cost_ratio", "scaling", "of_plain", "cpu_ms"))
    row |= dict.fromkeys((*_ANSWERS, "calls_per_s", "answers_per_s", "usable_share"))
    row |= dict.fromkeys(("joules_per_1000", "dollars_per_1000", "generated_per_s_gpu", "prompt_per_s_gpu", "mfu"))
    return row | (asdict(of.measured) | of.measured.rates if of.measured else {})


def _over(rate: float | None, other: float | None, n: int = 1) -> float | None:
    return None if rate is None or other is None else rate / (n * other)


def table(bench: Throughput) -> list[tuple[str, ...]]:
    """Lay the measured rows out, plain vLLM first, one text per column."""
    return [
        (
            "plain" if row["kind"] == "plain" else f"{row['replicas']}",
            f"{row['members']}",
            "all" if row["kind"] == "plain" else f"{row['concurrency']}",
            f"{row['questions_per_s']:,.2f}",
            f"{row['generated_per_s']:,.0f}",
            f"{row['prompt_per_s']:,.0f}",
            *("-" if row[name] is None else f"{row[name]:.{digits}f}" for name, digits in _DIGITS.items()),
        )
        for row in records(bench)
        if row["status"] == "measured" and row["kind"] in {"plain", "serve"}
    ]


def run_table(bench: Throughput) -> list[tuple[str, ...]]:
    """Lay the answer runs out, heads first, then plain vLLM; empty without any that was measured."""
    rows = [row for row in records(bench) if row["status"] == "measured" and row["kind"].endswith("answers")]
    figures = {
        head: [_run_text(row[name], _RUN_DIGITS.get(name, 0)) for row in rows]
        for head, name in RUN_COLUMNS.items()
        if name and any(row[name] is not None for row in rows)
    }
    named = {
        "replicas": ["plain" if row["kind"] == "plain answers" else f"{row['replicas']}" for row in rows],
        "members": [f"{row['members']}" for row in rows],
    }
    columns = [(head, *texts) for head, texts in {**named, **figures}.items()]
    return list(zip(*columns, strict=True)) if rows else []


def run_notes(bench: Throughput) -> list[str]:
    """Explain the heads that are shown of the answer runs, and list the errors in each run."""
    heads = set(run_table(bench)[0])
    unseen = tuple(head for head in ("MFU", "J/1,000", "$/1,000", "scaling", "of plain") if head not in heads)
    errors = [
        f"{counted(run.replicas, 'replica')}, errors: {'; '.join(run.errors)}" for run in bench.runs if run.errors
    ]
    return [line for line in RUN_LEGEND if not line.startswith(unseen)] + errors


def _run_text(figure: float | None, digits: int) -> str:
    return "-" if figure is None else f"{figure:,.{digits}f}"


def absences(bench: Throughput) -> list[str]:
    """List what was not measured and why, one line per reason."""
    lines = []
    for row in records(bench):
        replicas = counted(row["replicas"], "replica")
        if row["kind"] == "plain" and row["status"] == "failed":
            lines.append(f"plain, n = {row['members']}: not measured: {row['reason']}")
        elif row["kind"] == "plain answers" and row["status"] == "failed":
            lines.append(f"plain, calls of an answer run: not measured: {row['reason']}")
        elif row["status"] == "skipped":
            lines.append(f"{replicas}: skipped: {row['reason']}")
        elif row["kind"] == "answers" and row["status"] == "failed":
            lines.append(f"{replicas}, answer run: failed: {row['reason']}")
        elif row["status"] == "failed":
            where = f"{replicas}, members {row['members']}, {row['concurrency']} in flight"
            lines.append(f"{where}: failed: {row['reason']}")
    return list(dict.fromkeys(lines))


def describe(bench: Throughput) -> str:
    """Lay a benchmark out for a terminal."""
    facts = [f"{name}: {value}" for name, value in bench.facts.items()]
    notes = absences(bench)
    lines = [*facts, "", *_aligned([COLUMNS, *table(bench)]), *([""] if notes else []), *notes, "", *LEGEND]
    if runs := run_table(bench):
        lines += ["", "Answer runs", *_aligned(runs), "", *run_notes(bench)]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]


def write_throughput(bench: Throughput, directory: str) -> list[str]:
    """Write page, JSON and CSV, each atomically; returns their paths.

    Raises:
        DataError: A file cannot be written.
    """
    make_directory(directory)
    paths = [os.path.join(directory, name) for name in FILES]
    for path, text in zip(paths, (page(bench), as_json(bench), as_csv(bench)), strict=True):
        publish(path, text.encode())
    return paths


def page(bench: Throughput) -> str:
    """Render the page: one HTML file that needs nothing beside it and runs no script."""
    from kohaku_ray.pages.page import page_environment

    template = page_environment().get_template("throughput.html.j2")
    tables: list[tuple[str, list[tuple[str, ...]], Sequence[str]]] = [("", [COLUMNS, *table(bench)], LEGEND)]
    if runs := run_table(bench):
        tables.append(("Answer runs", runs, run_notes(bench)))
    values = {"facts": bench.facts, "tables": tables}
    return template.render(values, absences=absences(bench), charts=charts(bench))


def as_json(bench: Throughput) -> str:
    """Write facts and records as JSON."""
    return json.dumps({"facts": dict(bench.facts), "rows": records(bench)}, indent=2) + "\n"


def as_csv(bench: Throughput) -> str:
    """Write the records as CSV; an empty cell is a figure that is not known."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(_record("", 0, 0, None, Plain(0))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records(bench))
    return buffer.getvalue()


def charts(bench: Throughput) -> list[Chart]:
    """Draw the plots of a benchmark that have data: rates, costs, caching and CPU."""
    rows = records(bench)
    served, plain = ([row for row in rows if row["kind"] == kind] for kind in ("serve", "plain"))
    drawn = (
        _rates(served, plain),
        _chart(
            "Cost of an ensemble",
            "Time of m members over the time of one. It is m where prefill takes all the time and no prefix is shared.",
            _by_members(served, plain, "cost_ratio", "plain sampling"),
            "members",
            "time over that of one member",
        ),
        _caching(served),
        _chart(
            "CPU time outside the engine",
            "Driver and replica, without vLLM's engine process; plain: the process that calls generate.",
            _by_members(served, plain, "cpu_ms", "plain"),
            "members",
            "CPU milliseconds per call",
        ),
        _runs(rows),
    )
    return [chart for chart in drawn if chart is not None]


def _rates(served: Sequence[Record], plain: Sequence[Record]) -> Chart | None:
    name = "m = {members}, {concurrency} in flight".format_map
    rates = _lines(served, name, "replicas", "generated_per_s")
    counts = sorted({row["replicas"] for row in served if row["status"] == "measured"})
    for row in plain:
        if row["status"] == "measured":
            points = [(n, n * row["generated_per_s"]) for n in counts]
            rates.append(Line(f"plain, n = {row['members']}", points, is_limit=True))
    note = "Dashed lines: plain LLM.generate on one replica's resources, times the number of replicas."
    return _chart("Generated tokens per second", note, rates, "replicas", "generated tokens per second")


def _runs(rows: Sequence[Record]) -> Chart | None:
    runs = _lines([row for row in rows if row["kind"] == "answers"], lambda _: "answer runs", "replicas", "calls_per_s")
    for row in rows:
        if row["kind"] == "plain answers" and row["status"] == "measured":
            points = [(n, n * row["calls_per_s"]) for line in runs for n, _ in line.points]
            runs = [*runs, Line("plain, the same calls", points, is_limit=True)]
    note = "Dashed line: LLM.generate, given a run's calls at once on one replica's resources, times their number."
    return _chart("Calls per second of answer runs", note, runs, "replicas", "calls per second")


def _caching(served: Iterable[Record]) -> Chart | None:
    shares: dict[int, list[float]] = {}
    for row in served:
        if row["cached_share"] is not None:
            shares.setdefault(row["members"], []).append(row["cached_share"])
    if not shares:
        return None
    members = sorted(shares)
    least = [min(shares[m]) for m in members]
    title = "Prompt tokens from the prefix cache"
    svg = grouped_bars(
        [f"{m}" for m in members],
        {"least of all cells": least, "bound (m - 1) / m": [(m - 1) / m for m in members]},
        x_label="members",
        y_label="share of prompt tokens",
        label=f"{title}, by members: {_said(zip(members, least, strict=True))}",
    )
    return Chart(title, "The first member of a question fills the cache for the others.", svg)


def _lines(rows: Iterable[Record], name: Callable[[Record], str], x: str, y: str) -> list[Line]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row[y] is not None:
            points.setdefault(name(row), []).append((row[x], row[y]))
    return [Line(name, sorted(of_name)) for name, of_name in points.items()]


def _by_members(served: Iterable[Record], plain: Iterable[Record], y: str, limit: str) -> list[Line]:
    found = _lines(served, _named, "members", y)
    return found + [Line(limit, line.points, is_limit=True) for line in _lines(plain, lambda _: limit, "members", y)]


def _chart(title: str, note: str, every: Sequence[Line], x_label: str, y_label: str) -> Chart | None:
    drawn = [line for line in every if line.points]
    if all(line.is_limit for line in drawn):
        return None
    label = f"{title}. " + "; ".join(f"{line.name}: {_said(line.points)}" for line in drawn)
    return Chart(title, note, lines(drawn, x_label=x_label, y_label=y_label, label=label))


def _said(points: Iterable[tuple[float, float]]) -> str:
    return ", ".join(f"{y:.3g} at {x:g}" for x, y in points)


def _named(row: Record) -> str:
    return f"{counted(row['replicas'], 'replica')}, {row['concurrency']} in flight"
