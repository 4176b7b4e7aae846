"""Results of a throughput benchmark: one record per measurement, which terminal, page and JSON read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kohaku_ray.pages.plots import Chart, PlotLine, lines
from kohaku_ray.pages.tables import as_text
from kohaku_ray.records import pluralize
from kohaku_ray.store.storage import make_directory, publish
from kohaku_ray.table import Column, Table

FILES = ("throughput.html", "throughput.json")
"""Names of the files, the page first."""

COLUMNS: Mapping[str, Column] = {
    "replicas": Column("replicas", ",.0f"),
    "members": Column("members", ",.0f"),
    "concurrency": Column("in flight", ",.0f", tooltip="questions at once per replica"),
    "n_questions": Column("questions", ",.0f"),
    "n_calls": Column("calls", ",.0f"),
    "questions_per_s": Column("questions/s", ",.2f"),
    "answers_per_s": Column("answers/s", ",.2f", tooltip="members' answers without an error per second"),
    "usable_share": Column("usable", ",.3f", tooltip="their share of all answers"),
    "calls_per_s": Column("calls/s", ",.2f"),
    "generated_per_s": Column("generated/s", ",.0f", tooltip="tokens generated per second"),
    "prompt_per_s": Column(
        "prompt/s", ",.0f", tooltip="tokens of prompts per second, a prompt counted once per member"
    ),
    "cached_share": Column("cached", ",.3f", tooltip="share of prompt tokens from the prefix cache"),
    "cached_bound": Column("bound", ",.3f", tooltip="(m - 1) / m for m members, if one fills the cache for all"),
    "cost_ratio": Column("cost", ",.2f", tooltip="time of m members over the time of one"),
    "scaling": Column(
        "scaling",
        ",.2f",
        tooltip="questions (of answer runs: answers) per second of R replicas over R times those of one",
    ),
    "of_plain": Column(
        "of plain",
        ",.2f",
        tooltip="calls per second and replica over plain vLLM's (one replica's resources, as many questions in flight)",
    ),
    "cpu_ms": Column(
        "CPU ms/call",
        ",.1f",
        tooltip="CPU time outside vLLM's engine process; plain: of the process that feeds the engine",
    ),
    "generated_per_s_gpu": Column("generated/s/GPU", ",.0f"),
    "prompt_per_s_gpu": Column("prompt/s/GPU", ",.0f"),
    "mfu": Column(
        "MFU",
        ",.3f",
        tooltip="2 × parameters × uncached tokens per second, over the GPUs' dense bf16 FLOP/s",
    ),
    "joules_per_1000": Column("J/1,000", ",.0f", tooltip="energy of the replicas' GPUs per 1,000 usable answers"),
    "dollars_per_1000": Column("$/1,000", ",.2f", tooltip="price of the calls per 1,000 usable answers"),
}
"""By the figure of a record, the column that it stands in."""

RUN_NOTES = (
    "whole runs of the configured system: retrieval, members, ledger, vote and files; replies end by their grammar",
    "plain: vLLM's engine on one replica's resources: the first run's prompts, seeds, schemas and sampling, with "
    "as many questions in flight",
)

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
        """Rates computed from the counts; None where one is not known."""
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


_FIGURES = (
    *Measurement.__slots__,
    *("questions_per_s", "generated_per_s", "prompt_per_s", "calls_per_s", "answers_per_s", "usable_share"),
    *("cached_share", "cached_bound", "cost_ratio", "scaling", "of_plain", "cpu_ms"),
    *("joules_per_1000", "dollars_per_1000", "generated_per_s_gpu", "prompt_per_s_gpu", "mfu"),
)


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
    """Plain vLLM on one replica's resources, the most that a replica could reach."""

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
        (entry.replicas, entry.members, entry.concurrency): entry.measured.questions_per_s
        for entry in bench.cells
        if entry.measured
    }
    limit = {entry.members: entry.measured.questions_per_s for entry in bench.plain if entry.measured}
    rows = []
    for plain in bench.plain:
        row = _record("plain", 1, plain.members, None, plain)
        rows.append(row | {"cost_ratio": _over(limit.get(1), limit.get(plain.members))})
    for cell in bench.cells:
        n, m, c = cell.replicas, cell.members, cell.concurrency
        own_rate = rate.get((n, m, c))
        row = _record("serve", n, m, c, cell)
        row |= {"cached_bound": (m - 1) / m, "cost_ratio": _over(rate.get((n, 1, c)), own_rate)}
        rows.append(
            row | {"scaling": _over(own_rate, rate.get((1, m, c)), n), "of_plain": _over(own_rate, limit.get(m), n)}
        )
    rows += _run_records(bench)
    return [row | _of_gpus(row, bench.gpus) for row in rows]


def _run_records(bench: Throughput) -> list[Record]:
    rows, calls_per_s = [], None
    if bench.plain_run is not None:
        rows.append(_record("plain answers", 1, bench.plain_run.members, None, bench.plain_run))
        calls_per_s = rows[0]["calls_per_s"]
    runs = [_record("answers", run.replicas, run.members, None, run) for run in bench.runs]
    rate_of_one = next((row["answers_per_s"] for row in runs if row["replicas"] == 1), None)
    for row in runs:
        n = row["replicas"]
        row["scaling"] = _over(row["answers_per_s"], rate_of_one, n) if rate_of_one else None
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
    row |= {"status": "measured" if of.measured else missing, "reason": of.reason} | dict.fromkeys(_FIGURES)
    return row | (asdict(of.measured) | of.measured.rates if of.measured else {})


def _over(rate: float | None, other: float | None, n: int = 1) -> float | None:
    return None if rate is None or other is None else rate / (n * other)


def tables(bench: Throughput) -> list[Table]:
    """Lay out what was measured, the grid and the answer runs, plain vLLM first in each."""
    measured = [row for row in records(bench) if row["status"] == "measured"]
    runs = [row for row in measured if row["kind"].endswith("answers")]
    grid = [row for row in measured if row not in runs]
    if not runs:
        return [_table("Grid", grid)]
    wrong = [run for run in bench.runs if run.errors]
    errors = [f"{pluralize(run.replicas, 'replica')}, errors: {'; '.join(run.errors)}" for run in wrong]
    return [_table("Grid", grid), _table("Answer runs", runs, [*RUN_NOTES, *errors])]


def _table(title: str, rows: Sequence[Record], notes: Sequence[str] = ()) -> Table:
    """Lay out records, with a note on each column that needs one; a column of which nothing is known is left out."""
    columns = {name: column for name, column in COLUMNS.items() if any(row[name] is not None for row in rows)}
    meanings = [f"{column.label}: {column.tooltip}" for column in columns.values() if column.tooltip]
    lines = []
    for row in rows:
        shown = {**row, "replicas": "plain"} if row["kind"].startswith("plain") else row
        lines.append(tuple("-" if shown[name] is None else shown[name] for name in columns))
    return Table(tuple(columns.values()), tuple(lines), title, (*meanings, *notes))


def absences(bench: Throughput) -> list[str]:
    """List what was not measured and why, one line per reason."""
    lines = []
    for row in records(bench):
        replicas = pluralize(row["replicas"], "replica")
        where = {
            "plain": f"plain, n = {row['members']}",
            "serve": f"{replicas}, members {row['members']}, {row['concurrency']} in flight",
            "plain answers": "plain, calls of an answer run",
            "answers": f"{replicas}, answer run",
        }[row["kind"]]
        if row["status"] != "measured":
            lines.append(f"{replicas if row['status'] == 'skipped' else where}: {row['status']}: {row['reason']}")
    return list(dict.fromkeys(lines))


def describe(bench: Throughput) -> str:
    """Lay a benchmark out for a terminal."""
    parts = ["\n".join(f"{name}: {value}" for name, value in bench.facts.items()), "\n".join(absences(bench))]
    for table in tables(bench):
        parts += [f"{table.title}\n\n{as_text(table)}", "\n".join(table.notes)]
    return "\n\n".join(filter(None, parts))


def write_throughput(bench: Throughput, directory: str) -> list[str]:
    """Write page and JSON, each atomically; returns their paths.

    Raises:
        DataError: A file cannot be written.
    """
    make_directory(directory)
    told = json.dumps({"facts": dict(bench.facts), "rows": records(bench)}, indent=2) + "\n"
    paths = [os.path.join(directory, name) for name in FILES]
    for path, text in zip(paths, (page(bench), told), strict=True):
        publish(path, text.encode())
    return paths


def page(bench: Throughput) -> str:
    """Render the page: one HTML file that needs nothing beside it and runs no script."""
    from kohaku_ray.pages.page import page_environment

    template = page_environment().get_template("throughput.html.j2")
    return template.render(facts=bench.facts, tables=tables(bench), absences=absences(bench), charts=charts(bench))


def charts(bench: Throughput) -> list[Chart]:
    """Draw the rates over the number of replicas, of the grid and of the answer runs, each with its limit."""
    rows = [row for row in records(bench) if row["status"] == "measured"]
    limit = "Dashed: plain vLLM on one replica's resources, times the number of replicas."
    grid = _lines(rows, "serve", "m = {members}, {concurrency} in flight", "plain", "plain, n = {members}")
    runs = _lines(rows, "answers", "answer runs", "plain answers", "plain, the same calls", "calls_per_s")
    drawn = (("Generated tokens per second", grid), ("Calls per second of answer runs", runs))
    return [
        Chart(
            title,
            limit,
            lines(every, x_label="replicas", y_label=title.lower(), label=f"{title}. {_describe_lines(every)}"),
        )
        for title, every in drawn
        if every
    ]


def _lines(
    rows: Sequence[Record], kind: str, name: str, plain: str, limit: str, figure: str = "generated_per_s"
) -> list[PlotLine]:
    """Join what was measured of a kind over replicas, with the limits of its peer; none without any."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["kind"] == kind:
            points.setdefault(name.format_map(row), []).append((row["replicas"], row[figure]))
    counts = sorted({n for pairs in points.values() for n, _ in pairs})
    limits = {limit.format_map(row): row[figure] for row in rows if row["kind"] == plain} if points else {}
    return [
        *(PlotLine(name, sorted(pairs)) for name, pairs in points.items()),
        *(PlotLine(name, [(n, n * rate) for n in counts], is_limit=True) for name, rate in limits.items()),
    ]


def _describe_lines(every: Iterable[PlotLine]) -> str:
    return "; ".join(f"{line.name}: {', '.join(f'{y:.3g} at {x:g}' for x, y in line.points)}" for line in every)
