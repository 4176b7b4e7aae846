"""Set a paper's figures beside the cells of a sweep that have its setting; of other cells, say what differs."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from kohaku_ray.collection.sources import find_sources
from kohaku_ray.config import Config, load_config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.paths import PRESETS
from kohaku_ray.config.plain import label_of, leaves
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.models.vllm import join_adapter
from kohaku_ray.records import digest, pluralize
from kohaku_ray.sweep.compare import SweepTable
from kohaku_ray.sweep.load import KEYS_WITHOUT_EFFECT_ON_OUTPUTS
from kohaku_ray.sweep.plan import PlannedCell, PlannedTable, SweepPlan, truth_of_sweep
from kohaku_ray.sweep.published import read_paper

WATTBOT = "cae5b03d25e03ef4"
"""Digest of the ids of WattBot's 41 training questions, which the paper's tables are over."""

WATTBOT_QUESTIONS = "WattBot's 41"

_ELSEWHERE = (
    *KEYS_WITHOUT_EFFECT_ON_OUTPUTS,
    *("seed", "shared", "documents", "questions", "deployments", "model", "roles", "ensemble.models"),
    *("index.encoder", "index.prefer", "index.captions"),
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
    place, cells, paper = planned.table.paper, planned.cells, read_paper()
    shown: list[Mapping[str, float]] = [{} for _ in cells]
    if place is None:
        return shown, []
    published = paper.tables[place]
    live = [position for position, cell in enumerate(cells) if not cell.reason]
    differing: dict[str, list[int]] = {}
    published_cells: list[int] = []
    collections: dict[str, dict[str, str]] = {}  # read once
    for position, cell in enumerate(cells):
        config = None if cell.reason else planned.configs[cell.cell_id]
        ours = {} if config is None else facts_of(config)
        if (labels := published.labels_of(ours | dict(cell.labels))) is None:
            continue
        published_cells.append(position)
        if config is None:
            continue
        if (asked := repr((config.documents, config.questions))) not in collections:
            collections[asked] = _collection(config)
        stated = published.setting_of(labels)
        preset = paper.presets[stated["encoder"]]
        theirs = _facts_of_presets(preset) | stated
        theirs |= {"questions": published.questions, "documents": paper.documents}
        ours |= {"runs": theirs["runs"] if planned.table.pool else str(len(plan.loaded.sweep.seeds))}
        ours |= collections[asked]
        if ours["encoder"] != theirs["encoder"]:  # its dimensions and prompts are its own
            ours, theirs = (
                {key: value for key, value in of.items() if not key.startswith("index.encoder.")}
                for of in (ours, theirs)
            )
        differences = [
            f"{key} {config.hide(ours.get(key, 'none'))} (paper: {theirs.get(key, 'none')})"
            for key in dict.fromkeys([*ours, *theirs])
            if ours.get(key, "none") != theirs.get(key, "none")
        ]
        for text in differences:
            differing.setdefault(text, []).append(position)
        if not differences:
            shown[position] = {name: of[labels] for name, of in published.figures.items() if labels in of}
    tested = [position for position in published_cells if position in live]
    others = {position for positions in differing.values() for position in positions}
    n_same, n_skipped = len(tested) - len(others), len(published_cells) - len(tested)
    notes = (
        [f"{n_same} of {pluralize(len(published_cells), 'cell')} tested there have its setting"]
        if published_cells
        else []
    )
    if any(shown):
        notes.append("its figures stand beside them")
    elif not published.figures and not published.note:
        notes.append("it gives no figures")
    notes += [f"{n_skipped} skipped here"] if n_skipped else []
    told = [f"{'; '.join(notes)}." if notes else "", published.note]
    lines = [f"{place} of the paper: {' '.join(filter(None, told))}"]
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


def _collection(config: Config) -> dict[str, str]:
    """Name a configuration's questions and count its documents."""
    rows = truth_of_sweep(config, find_metric(config.declaration.metrics[0])).rows
    is_wattbot = digest(sorted(rows)) == WATTBOT
    questions = WATTBOT_QUESTIONS if is_wattbot else f"{len(rows)} of {Path(config.questions.path).name}"
    return {"questions": questions, "documents": str(len(find_sources(config)))}


@functools.cache
def _facts_of_presets(encoder: str) -> dict[str, str]:
    """Return the settings that the paper does not name, as preset ``paper`` and an encoder's preset have them."""
    return facts_of(load_config([str(PRESETS / "paper.yaml"), str(PRESETS / f"{encoder}.yaml")]))


def facts_of(config: Config) -> dict[str, str]:
    """Return every setting that decides an output, as labels by key; models and encoder by their names."""
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
        **{f"index.encoder.{key}": label_of(value) for key, value in encoder.items()},
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
