"""KohakuRAG's paper as data (``configs/published/kohakurag.yaml``): tables, settings, figures."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.config.load import parse_file
from kohaku_ray.config.paths import PRESETS
from kohaku_ray.config.plain import label_of

PAPER = PRESETS / "published" / "kohakurag.yaml"

Labels = tuple[str, ...]
"""A cell's label per axis, in the axes' order."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table or figure of the paper.

    Attributes:
        questions: What the paper asks there.
        settings: The settings that it states for all cells, as labels by the names of ``paper.facts_of``.
        axes: The settings of each label of each axis.
        figures: By name and by labels.
        note: What is to be said of figures that stand beside no cell.
    """

    questions: str
    settings: Mapping[str, str]
    axes: Mapping[str, Mapping[str, Mapping[str, str]]]
    figures: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    note: str = ""

    def labels_of(self, cell: Mapping[str, str]) -> Labels | None:
        """Return the labels of the paper's cell among a cell's own labels or settings; None: the paper has it not."""
        found = tuple(cell.get(axis, "") for axis in self.axes)
        has_all = all(label in labels for label, labels in zip(found, self.axes.values(), strict=True))
        return found if self.axes and has_all else None

    def setting_of(self, labels: Labels) -> dict[str, str]:
        """Return the settings that the paper states for a cell."""
        setting = dict(self.settings)
        for label, choices in zip(labels, self.axes.values(), strict=True):
            setting |= choices[label]
        return setting


@dataclass(frozen=True, slots=True)
class PublishedPaper:
    """All tables of the paper, by place."""

    documents: str
    presets: Mapping[str, str]  # by encoder: what the paper leaves open of it
    tables: Mapping[str, PublishedTable]


@functools.cache
def read_paper() -> PublishedPaper:
    """Read the paper's data."""
    data = parse_file(PAPER)
    tables: dict[str, PublishedTable] = {}
    for place, table in data["tables"].items():
        axes = {
            axis: {label_of(key): _labels(choices[key]) for key in choices}
            if isinstance(choices, Mapping)
            else {label_of(value): {axis: label_of(value)} for value in choices}
            for axis, choices in table.get("axes", {}).items()
        }
        tables[place] = PublishedTable(
            questions=table.get("questions", data["questions"]),
            settings=_labels(data["settings"]) | _labels(table.get("settings", {})),
            axes=axes,
            figures={name: dict(_walk(values)) for name, values in table.get("figures", {}).items()},
            note=table.get("note", ""),
        )
    return PublishedPaper(str(data["documents"]), data["presets"], tables)


def _labels(settings: Mapping[str, Any]) -> dict[str, str]:
    return {key: label_of(value) for key, value in settings.items()}


def _walk(values: Any, labels: Labels = ()) -> list[tuple[Labels, float]]:
    if not isinstance(values, Mapping):
        return [(labels, float(values))]
    return [pair for key, inner in values.items() for pair in _walk(inner, (*labels, label_of(key)))]
