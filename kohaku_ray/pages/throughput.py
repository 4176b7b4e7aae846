"""Results of a throughput benchmark: figures, table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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


_NONE = "-"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Counts and times of a number of calls.

    Attributes:
        n_questions: Questions asked.
        n_calls: Calls, one per member and question.
        wall_s: Seconds from the first call to the last reply.
        prompt_tokens: Tokens of all prompts.
        completion_tokens: Generated tokens.
        cached_tokens: Prompt tokens from the prefix cache; None where they are not counted.
        cpu_s: CPU seconds spent outside the engine's own process; None where it could not be measured.
    """

    n_questions: int
    n_calls: int
    wall_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    cpu_s: float | None = None

    @property
    def questions_per_s(self) -> float:
        """Questions per second."""
        return self.n_questions / self.wall_s

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens that came from the prefix cache."""
        return None if self.cached_tokens is None else self.cached_tokens / self.prompt_tokens

    @property
    def cpu_ms(self) -> float | None:
        """CPU milliseconds per call outside the engine."""
        return None if self.cpu_s is None else 1000 * self.cpu_s / self.n_calls


@dataclass(frozen=True, slots=True)
class BenchCell:
    """One combination of the swept settings.

    Attributes:
        replicas: Replicas that answered.
        members: Calls per question.
        concurrency: Questions in flight per replica.
        measured: The measurement; None where there is none.
        reason: Why there is none.
        is_skipped: The cluster cannot hold this many replicas, which is not an error.
    """

    replicas: int
    members: int
    concurrency: int
    measured: Measurement | None = None
    reason: str = ""
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain vLLM on one replica's resources: the limit.

    Attributes:
        members: Samples per prompt.
        measured: The measurement; None where there is none.
        reason: Why there is none.
    """

    members: int
    measured: Measurement | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Throughput:
    """A benchmark so far.

    Attributes:
        facts: Configuration and hardware of the benchmark.
        plain: The limit by number of members.
        cells: The measured combinations, in the order of the sweep.
    """

    facts: Mapping[str, str | int]
    plain: Sequence[Plain] = ()
    cells: Sequence[BenchCell] = ()

    @property
    def n_failed(self) -> int:
        """Count the failed measurements."""
        missing = [cell for cell in self.cells if cell.measured is None and not cell.is_skipped]
        return len(missing) + sum(one.measured is None for one in self.plain)

    def cost_ratio(self, cell: BenchCell) -> float | None:
        """Time of a cell's members over that of one, at the same replicas and concurrency."""
        return _over(self._rate(cell.replicas, 1, cell.concurrency), cell.measured)

    def plain_cost_ratio(self, plain: Plain) -> float | None:
        """The same for plain sampling."""
        return _over(self._plain_rate(1), plain.measured)

    def scaling(self, cell: BenchCell) -> float | None:
        """Questions per second over replicas times those of one replica."""
        one = self._rate(1, cell.members, cell.concurrency)
        return None if one is None or cell.measured is None else cell.measured.questions_per_s / (cell.replicas * one)

    def of_plain(self, cell: BenchCell) -> float | None:
        """Questions per second over replicas times those of plain sampling with as many members."""
        limit = self._plain_rate(cell.members)
        if limit is None or cell.measured is None:
            return None
        return cell.measured.questions_per_s / (cell.replicas * limit)

    def _rate(self, *key: int) -> float | None:
        found = (cell for cell in self.cells if (cell.replicas, cell.members, cell.concurrency) == key)
        return next((cell.measured.questions_per_s for cell in found if cell.measured is not None), None)

    def _plain_rate(self, members: int) -> float | None:
        found = (one.measured for one in self.plain if one.members == members)
        return next((measured.questions_per_s for measured in found if measured is not None), None)


def cached_bound(members: int) -> float:
    """Largest share of prompt tokens that a prefix cache can give: all but the first member's."""
    return (members - 1) / members


def describe(bench: Throughput) -> str:
    """Lay a benchmark out for a terminal."""
    rows = [COLUMNS, *table(bench)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    facts = [f"{name}: {value}" for name, value in bench.facts.items()]
    return "\n".join([*facts, "", *lines, *([""] if (notes := absences(bench)) else []), *notes, "", *LEGEND])


def table(bench: Throughput) -> list[tuple[str, ...]]:
    """Lay the measured rows out, plain vLLM first, one text per column."""
    rows = [
        _row("plain", plain.members, "all", plain.measured, cost=bench.plain_cost_ratio(plain))
        for plain in bench.plain
        if plain.measured is not None
    ]
    return rows + [
        _row(
            f"{cell.replicas}",
            cell.members,
            f"{cell.concurrency}",
            cell.measured,
            bound=cached_bound(cell.members),
            cost=bench.cost_ratio(cell),
            scaling=bench.scaling(cell),
            of_plain=bench.of_plain(cell),
        )
        for cell in bench.cells
        if cell.measured is not None
    ]


def absences(bench: Throughput) -> list[str]:
    """List what was not measured and why, one line per reason."""
    lines: dict[str, None] = {}
    for plain in bench.plain:
        if plain.measured is None:
            lines[f"plain, n = {plain.members}: not measured: {plain.reason}"] = None
    for cell in bench.cells:
        if cell.is_skipped:
            lines[f"{replicas_text(cell.replicas)}: skipped: {cell.reason}"] = None
        elif cell.measured is None:
            where = f"{replicas_text(cell.replicas)}, members {cell.members}, {cell.concurrency} in flight"
            lines[f"{where}: failed: {cell.reason}"] = None
    return list(lines)


def records(bench: Throughput) -> list[dict[str, Any]]:
    """List every row with all its figures, for other programs; None is a figure that is not known."""
    rows: list[dict[str, Any]] = []
    for plain in bench.plain:
        status = "measured" if plain.measured else "failed"
        rows.append(
            _record("plain", 1, plain.members, None, status, plain.reason, plain.measured)
            | {"cost_ratio": bench.plain_cost_ratio(plain)}
        )
    for cell in bench.cells:
        status = "measured" if cell.measured else "skipped" if cell.is_skipped else "failed"
        rows.append(
            _record("serve", cell.replicas, cell.members, cell.concurrency, status, cell.reason, cell.measured)
            | {
                "cached_bound": cached_bound(cell.members),
                "cost_ratio": bench.cost_ratio(cell),
                "scaling": bench.scaling(cell),
                "of_plain": bench.of_plain(cell),
            }
        )
    return rows


def as_json(bench: Throughput) -> str:
    """Write facts and records as JSON."""
    return json.dumps({"facts": dict(bench.facts), "rows": records(bench)}, indent=2) + "\n"


def as_csv(bench: Throughput) -> str:
    """Write the records as CSV; an empty cell is a figure that is not known."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(_record("", 0, 0, None, "", "", None)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records(bench))
    return buffer.getvalue()


def _over(rate: float | None, measured: Measurement | None) -> float | None:
    return None if rate is None or measured is None else rate / measured.questions_per_s


def _row(
    replicas: str,
    members: int,
    in_flight: str,
    measured: Measurement,
    *,
    bound: float | None = None,
    cost: float | None = None,
    scaling: float | None = None,
    of_plain: float | None = None,
) -> tuple[str, ...]:
    return (
        replicas,
        f"{members}",
        in_flight,
        f"{measured.questions_per_s:,.2f}",
        f"{measured.completion_tokens / measured.wall_s:,.0f}",
        f"{measured.prompt_tokens / measured.wall_s:,.0f}",
        *(
            _NONE if value is None else f"{value:.{digits}f}"
            for value, digits in (
                *((measured.cached_share, 3), (bound, 3), (cost, 2), (scaling, 2), (of_plain, 2)),
                (measured.cpu_ms, 1),
            )
        ),
    )


def _record(
    kind: str,
    replicas: int,
    members: int,
    concurrency: int | None,
    status: str,
    reason: str,
    measured: Measurement | None,
) -> dict[str, Any]:
    nothing = dict.fromkeys(Measurement.__slots__)
    wall_s = measured.wall_s if measured is not None else None
    return {
        "kind": kind,
        "replicas": replicas,
        "members": members,
        "concurrency": concurrency,
        "status": status,
        "reason": reason,
        **(asdict(measured) if measured is not None else nothing),
        "questions_per_s": measured.questions_per_s if measured is not None else None,
        "generated_per_s": measured.completion_tokens / wall_s if measured is not None and wall_s else None,
        "prompt_per_s": measured.prompt_tokens / wall_s if measured is not None and wall_s else None,
        "cached_share": measured.cached_share if measured is not None else None,
        "cached_bound": None,
        "cost_ratio": None,
        "scaling": None,
        "of_plain": None,
        "cpu_ms": measured.cpu_ms if measured is not None else None,
    }


def replicas_text(n: int) -> str:
    """Count replicas in words."""
    return f"{n} replica" if n == 1 else f"{n} replicas"
