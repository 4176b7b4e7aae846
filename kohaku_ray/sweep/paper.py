"""Set a paper's figures beside the cells of a sweep that have its setting; of other cells, say what differs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.plain import label_of, leaves
from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.models.vllm import join_adapter
from kohaku_ray.records import digest
from kohaku_ray.run.sources import find_sources
from kohaku_ray.run.summary import pluralize
from kohaku_ray.sweep.compare import SweepTable
from kohaku_ray.sweep.load import KEYS_WITHOUT_EFFECT_ON_OUTPUTS, PaperConfig, figures_in
from kohaku_ray.sweep.plan import PlannedCell, PlannedTable, SweepPlan, truth_of_sweep

WATTBOT = "cae5b03d25e03ef4"
"""Digest of the ids of WattBot's 41 training questions, which the paper's tables are over."""

_PAPERS = {"questions": PaperConfig.model_fields["questions"].default, "documents": "32"}

_ELSEWHERE = (
    *KEYS_WITHOUT_EFFECT_ON_OUTPUTS,
    *("seed", "shared", "documents", "questions", "deployments", "model", "roles", "ensemble.models"),
    *("index.encoder", "index.prefer", "index.captions", "index.nprobe"),
)
"""Keys that decide nothing, or are compared by what they come to."""

_QWEN_VL = re.compile(r"qwen.*vl", re.IGNORECASE)  # the paper does not say which of them

_ENCODER_ELSEWHERE = {"kind", "model", "revision", "device", "batch_tokens", "trust_remote_code"}


def paper_lines(plan: SweepPlan) -> list[str]:
    """Say of every table of the paper which cells have its setting, and what differs in the others; a line each."""
    return [f"{planned.table.name}: {line}" for planned in plan.tables for line in _compared(plan, planned)[1]]


def with_paper(plan: SweepPlan, planned: PlannedTable, table: SweepTable) -> SweepTable:
    """Put the paper's figures beside the cells that have its setting, and what differs in the others into the notes."""
    figures, lines = _compared(plan, planned)
    cells = (replace(cell, paper=of_cell) for cell, of_cell in zip(table.cells, figures, strict=True))
    return replace(table, cells=tuple(cells), notes=(*lines, *table.notes))


def model_name(deployment: Deployment) -> str:
    """Name a deployment's model without the directory or the owner before it."""
    name = str(getattr(deployment, "model", deployment.kind)).rstrip("/").rsplit("/", 1)[-1]
    return name if deployment.adapter is None else join_adapter(name, deployment.adapter)


def _compared(plan: SweepPlan, planned: PlannedTable) -> tuple[list[Mapping[str, float]], list[str]]:
    """Return the paper's figures of every cell, none where its setting is another, and what is to be said of them."""
    table, cells, published = planned.table, planned.cells, plan.loaded.published
    shown: list[Mapping[str, float]] = [{} for _ in cells]
    if table.paper is None or published is None:
        return shown, []
    figures: dict[tuple[str, ...], dict[str, float]] = {}
    for name, labels, figure in figures_in(table.paper.figures or {}):
        figures.setdefault(labels, {}).update({} if figure is None else {name: float(figure)})
    live = [position for position, cell in enumerate(cells) if not cell.reason]
    has_all = table.paper.figures is not None and not figures
    published_cells = [
        position for position, cell in enumerate(cells) if has_all or tuple(cell.labels.values()) in figures
    ]
    tested = [position for position in published_cells if position in live]
    differing: dict[str, list[int]] = {}
    collections: dict[str, dict[str, str]] = {}  # read once
    for position, setting in enumerate(table.settings()):
        if position not in tested:
            continue
        config = planned.configs[cells[position].cell_id]
        if (asked := repr((config.documents, config.questions))) not in collections:
            rows = truth_of_sweep(config, find_metric(config.declaration.metrics[0])).rows
            is_wattbot = digest(sorted(rows)) == WATTBOT
            collections[asked] = {
                "questions": _PAPERS["questions"]
                if is_wattbot
                else f"{len(rows)} of {Path(config.questions.path).name}",
                "documents": str(len(find_sources(config))),
            }
        try:
            facts = _facts(published.config(table, setting, config.seed))
            theirs = facts | _PAPERS | {"questions": table.paper.questions}
            ours = _facts(config) | collections[asked]
            if ours["encoder"] != theirs["encoder"]:  # its dimensions and prompts are its own
                ours, theirs = (
                    {key: value for key, value in of.items() if not key.startswith("encoder.")} for of in (ours, theirs)
                )
            pairs = [(key, ours.get(key, "none"), theirs.get(key, "none")) for key in dict.fromkeys([*ours, *theirs])]
            differences = [f"{key} {config.hide(mine)} (paper: {paper})" for key, mine, paper in pairs if mine != paper]
        except ConfigError as error:
            differences = [f"the sweep's own base makes no configuration: {error}"]
        for text in differences:
            differing.setdefault(text, []).append(position)
        if not differences:
            shown[position] = figures.get(tuple(cells[position].labels.values()), {})
    others = {position for positions in differing.values() for position in positions}
    n_same, n_skipped = len(tested) - len(others), len(published_cells) - len(tested)
    notes = (
        [f"{n_same} of {pluralize(len(published_cells), 'cell')} tested there have its setting"]
        if published_cells
        else []
    )
    if any(shown):
        notes.append("its figures stand beside them")
    elif not any(figures.values()) and not table.paper.note:
        notes.append("it gives no figures")
    notes += [f"{n_skipped} skipped here"] if n_skipped else []
    told = [f"{'; '.join(notes)}." if notes else "", table.paper.note]
    lines = [f"{table.paper.place} of the paper: {' '.join(filter(None, told))}"]
    together: dict[tuple[int, ...], list[str]] = {}
    for text, positions in differing.items():
        together.setdefault(tuple(positions), []).append(text)
    lines += [
        f"Not the paper's setting in {_named(cells, positions, tested, 'all of them')}: {'; '.join(texts)}."
        for positions, texts in together.items()
    ]
    if unknown := [position for position in live if position not in published_cells]:
        is_all = len(unknown) == len(live)
        named = "" if is_all else f"The paper does not have {_named(cells, unknown, live, '')}."
        lines.append(named or "None of the cells that can be run is in the paper.")
    return shown, lines


def _named(cells: Sequence[PlannedCell], named_cells: Collection[int], among: Sequence[int], everything: str) -> str:
    """Name cells among others: all of them, those with certain labels of an axis, or each by its labels."""
    if len(named_cells) == len(among):
        return everything
    for axis in cells[0].labels:
        labels = list(dict.fromkeys(cells[position].labels[axis] for position in named_cells))
        if sum(cells[position].labels[axis] in labels for position in among) == len(named_cells):
            return f"{axis.rpartition('.')[2]} {', '.join(labels)}"
    return ", ".join(f"({', '.join(cells[position].labels.values())})" for position in named_cells)


def _facts(config: Config) -> dict[str, str]:
    index, uses, members = config.index, config.uses, range(config.ensemble.members)
    models = dict.fromkeys(config.role(role, member).model for role in uses.roles for member in members)
    captions = [model_name(deployment) for deployment in config.caption_deployments.values()]
    captions = ["Qwen-VL" if _QWEN_VL.match(name) else name for name in captions]
    encoder = index.encoder.model_dump(exclude=_ENCODER_ELSEWHERE)
    played = {role: asdict(config.role(role)) for role in uses.roles}
    values = config.model_dump(mode="json")
    values[config.declaration.name] = values.pop("settings")
    rest = {".".join(key_path): label_of(value) for key_path, value in leaves(values)}
    return {
        "answered by": ", ".join(dict.fromkeys(model_name(config.models[name]) for name in models)),
        "encoder": index.encoder.model.rstrip("/").rsplit("/", 1)[-1],
        "captions": ", ".join(captions) or (index.captions if index.images else "none"),
        **{f"encoder.{key}": label_of(value) for key, value in encoder.items()},
        **{
            f"roles.{role}.{k}": label_of(v)
            for role, settings in played.items()
            for k, v in settings.items()
            if k != "model"
        },
        **{
            key: value
            for key, value in rest.items()
            if not any(f"{key}.".startswith(f"{prefix}.") for prefix in _ELSEWHERE)
        },
    }
