"""What a sweep holds fixed: the settings that its own base decides and no axis varies, as every cell has them."""

from __future__ import annotations

from kohaku_ray.config.deployments import Deployment
from kohaku_ray.run.tracking import settings_of
from kohaku_ray.sweep.plan import Plan, PlannedTable

_SILENT = ("run", "documents", "questions", "deployments", "tracking", "cluster", "ledger")
_ANSWERS, _SHOWN = "answered by", ("index.encoder.model", "index.encoder.dim")


def fixed_lines(plan: Plan) -> list[str]:
    """List the fixed settings of each table with a cell that can be run, a line each.

    Shown are the keys of the sweep's own base and of its ``set``, and always generator, encoder and dimension.
    """
    return [line for table in plan.tables if (line := _line(plan, table))]


def _line(plan: Plan, table: PlannedTable) -> str:
    configs = [
        settings_of(config) | {_ANSWERS: ", ".join(map(_named, config.answering_deployments.items()))}
        for config in table.configs.values()
    ]
    if not configs:
        return ""
    keys = (_ANSWERS, *_SHOWN, *(key for key in plan.loaded.own if key.split(".")[0] not in _SILENT), *table.table.set)
    found = {key: {config[key] for config in configs if key in config} for key in dict.fromkeys(keys)}
    fixed = [f"{key} {values.pop()}" for key, values in found.items() if len(values) == 1]
    seeds = [] if table.table.pool is not None else [f"{len(plan.loaded.sweep.seeds)} seeds"]
    return f"{table.table.name}: {', '.join([*fixed, *seeds])}"


def _named(item: tuple[str, Deployment]) -> str:
    name, deployment = item
    model = getattr(deployment, "model", None)
    return f"{name} ({model})" if model else name
