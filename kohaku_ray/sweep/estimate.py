"""What a sweep will do, told before it starts: what it holds fixed, its cells, and a bound of its answer calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from kohaku_ray.config.deployments import Deployment
from kohaku_ray.run.sources import questions_of
from kohaku_ray.run.summary import counted
from kohaku_ray.run.tracking import settings_of
from kohaku_ray.sweep.plan import Plan, PlannedTable, is_there

_SILENT = ("run", "documents", "questions", "deployments", "tracking", "cluster", "ledger")
_ANSWERS, _SHOWN = "answered by", ("index.encoder.model", "index.encoder.dim")


def fixed_lines(plan: Plan) -> list[str]:
    """List the fixed settings of each table with a cell that can be run, a line each.

    Shown are the keys of the sweep's own base and of its ``set``, and always generator, encoder and dimension.
    """
    return [line for table in plan.tables if (line := _line(plan, table))]


def _line(plan: Plan, table: PlannedTable) -> str:
    configs = [
        settings_of(config) | {_ANSWERS: ", ".join(map(_named, config.answering_models.items()))}
        for config in table.configs.values()
    ]
    if not configs:
        return ""
    keys = (_ANSWERS, *_SHOWN, *(key for key in plan.loaded.own if key.split(".")[0] not in _SILENT), *table.table.set)
    found = {key: {config[key] for config in configs if key in config} for key in dict.fromkeys(keys)}
    fixed = [f"{key} {values.pop()}" for key, values in found.items() if len(values) == 1]
    seeds = [] if table.table.pool is not None else [counted(len(plan.loaded.sweep.seeds), "seed")]
    return f"{table.table.name}: {', '.join([*fixed, *seeds])}"


def _named(item: tuple[str, Deployment]) -> str:
    name, deployment = item
    model = getattr(deployment, "model", None)
    return f"{name} ({model})" if model else name


Recorded = Callable[[str], AbstractSet[str]]
"""Reads the keys of the ledger at a path."""


def describe_plan(plan: Plan, recorded: Recorded) -> str:
    """Describe what a sweep will do, for ``--dry-run``; ``recorded`` reads the keys of a ledger.

    Raises:
        DataError: Questions or ledger cannot be read.
    """
    lines = [plan.loaded.sweep.title or "", *(_described(table, plan.loaded.sweep.seeds) for table in plan.tables), ""]
    lines += [f"fixed     {line}" for line in fixed_lines(plan)]
    cells = [cell for table in plan.tables for cell in table.cells]
    n_there = sum(map(is_there, plan.indexes))
    runs = plan.runs.values()
    asked = [(len(questions_of(config)) * config.ensemble.members, config.uses.attempts) for config in runs]
    n_most = sum(n * attempts for n, attempts in asked)
    n_recorded = sum(len(recorded(path)) for path in {config.ledger.path for config in runs})
    lines += [
        "",
        f"cells     {len(cells)}, {sum(bool(cell.reason) for cell in cells)} skipped; "
        f"{counted(len(plan.runs), 'distinct run')}, {len(plan.finished)} finished",
        f"indexes   {len(plan.indexes)}: {n_there} there, {len(plan.indexes) - n_there} to build",
        f"answers   at most {sum(n for n, _ in asked):,} calls, {n_most:,} with every retry; equal ones are made once",
        f"ledger    {n_recorded:,} replies",
    ]
    if said := missing_lines(plan):
        lines += ["", *said]
    return "\n".join(lines).lstrip()


def missing_lines(plan: Plan) -> list[str]:
    """Name the preferred presets that are left out and the cells that are skipped, each reason once."""
    reasons: dict[str, list[str]] = {}
    for table in plan.tables:
        for cell in table.cells:
            if cell.reason:
                reasons.setdefault(cell.reason, []).append(f"{table.table.name} ({', '.join(cell.at.values())})")
    return [*plan.notes, *(f"skipped   {', '.join(where)}: {reason}" for reason, where in reasons.items())]


def _described(planned: PlannedTable, seeds: Sequence[int]) -> str:
    table = planned.table
    axes = " × ".join(f"{name} ({', '.join(labels)})" for name, labels in table.labels().items())
    n_skipped = sum(bool(cell.reason) for cell in planned.cells)
    skipped = f", {n_skipped} skipped" if n_skipped else ""
    repeats = counted(len(seeds), "seed") if table.pool is None else f"{table.subsamples} subsamples, no new calls"
    return f"{table.name:<20}{counted(len(planned.cells), 'cell'):>11}, {repeats}{skipped}: {axes}"
