"""What a sweep's file says: tables of settings, and what is run around them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kohaku_ray.config.environment import expand
from kohaku_ray.config.paths import FilePath
from kohaku_ray.config.plain import label_of, shown
from kohaku_ray.settings import PositiveInt, Section

MEMBERS, VOTE = "ensemble.members", "ensemble.vote."
"""Keys that a study of recorded members may vary: any other key needs new calls."""

WITH = "with"
"""Stands for a key in a table's or a cell's settings: presets, such as ``models/ollama``, that lie under its keys."""

Values = dict[str, Any]


class PoolConfig(Section):
    """Recorded members whose ensembles are studied without new calls."""

    members: PositiveInt | None = None
    """Members of the base that answer once; instead of `files`."""
    files: tuple[FilePath, ...] = ()
    """Submission CSVs, one per member; `*` and `?` are wildcards as in a shell."""
    strata: str | None = None
    """Regular expression on a file's name without its suffix: members with an equal first group (or match) are a
    stratum, and every subsample has its share of each. None: all members are one stratum."""

    @field_validator("files", mode="before")
    @classmethod
    def _of_this_machine(cls, files: Any) -> Any:
        return expand(files)

    @model_validator(mode="after")
    def _one_source(self) -> PoolConfig:
        if (self.members is None) == (not self.files):
            raise ValueError("pool needs members or files, and not both: say which recorded members are studied")
        if self.strata is not None:
            try:
                re.compile(self.strata)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"pool.strata is {self.strata!r}, no regular expression: {error}") from None
        return self


class TableConfig(Section):
    """One table: axes over configuration keys, combined."""

    name: str = ""
    """Short name, unique in the sweep. Default: its file's name, or `table1`, `table2`, …"""
    title: str = ""
    """What the table compares."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys set in the whole table; `with` names presets under them."""
    axes: dict[str, tuple[Any, ...] | dict[str, Any]] = Field(default_factory=dict)
    """Values by key; or, under a name of your own, labels with the keys that each sets (`with`: presets under these
    keys). The last axis makes the columns."""
    combine: Literal["grid", "zip", "list"] = "grid"
    """grid: every combination of the axes' values; zip: the first of each, the second of each, …; list: `cells`."""
    cells: tuple[dict[str, Any], ...] = ()
    """For `combine: list`: keys and values of each cell."""
    show: tuple[str, ...] = ()
    """Measures shown with the score, as means over answers: the system's own, `attempts` and `blanks`; `tokens` and
    `seconds` in the models; parts of the score by name; `recall@10 STEP`: of the gold references, after a trace's
    step."""
    spread: Literal["seeds", "questions"] = "seeds"
    """The standard deviation of the measures shown is that over seeds, or over questions."""
    pool: PoolConfig | None = None
    """Makes the table a study of recorded members: axes only over `ensemble.members` and `ensemble.vote`."""
    subsamples: PositiveInt | Literal["all"] = 32
    """Ensembles of each size drawn from the pool; all: the exact expectation."""

    @field_validator("axes", mode="before")
    @classmethod
    def _are_lists(cls, axes: Any) -> Any:
        if isinstance(axes, Mapping):
            for name, values in axes.items():
                if not isinstance(values, (list, tuple, dict)):
                    raise ValueError(f"axis {name} is {shown(values)}: write its values as a list, or by labels")
        return axes

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        if name and not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"name is {name!r}: it becomes a file's name, so letters, digits, . - and _ only")
        return name

    @model_validator(mode="after")
    def _has_cells(self) -> TableConfig:
        if self.combine == "list":
            if self.axes or not self.cells:
                raise ValueError("combine is list: write the settings under cells, and no axes")
            if any(list(cell) != list(self.cells[0]) for cell in self.cells):
                raise ValueError("cells differ in their keys: give each cell the same keys in the same order")
        elif self.cells or not self.axes:
            raise ValueError(f"combine is {self.combine}: write axes, and no cells")
        for name, values in self.axes.items():
            if not values:
                raise ValueError(f"axis {name} has no values, so the grid is empty: give it one at least")
            labels = [label for label, _ in choices_of(name, values)]
            if len(set(labels)) != len(labels):
                raise ValueError(f"axis {name} has the same value twice: {', '.join(labels)}")
        lengths = {name: len(values) for name, values in self.axes.items()}
        if self.combine == "zip" and len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} {n}" for name, n in lengths.items())
            raise ValueError(f"combine is zip but the axes differ in length ({counts}): make them equal, or use grid")
        return self

    @model_validator(mode="after")
    def _presets_are_named(self) -> TableConfig:
        for keys in self.layers():
            given = keys.get(WITH, ())
            if not all(isinstance(name, str) for name in ([given] if isinstance(given, str) else given or ())):
                raise ValueError(f"with is {shown(given)}: name presets, such as [models/ollama, encoders/bge_m3]")
        return self

    @model_validator(mode="after")
    def _all_are_all(self) -> TableConfig:
        if self.pool is not None and self.subsamples == "all" and self.pool.strata is not None:
            raise ValueError("subsamples is all but pool.strata is set: only drawn ones have shares, drop one of them")
        return self

    @property
    def n_cells(self) -> int:
        """Number of cells, counted without building them."""
        if self.combine == "list":
            return len(self.cells)
        lengths = [len(values) for values in self.axes.values()]
        return lengths[0] if self.combine == "zip" else math.prod(lengths)

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Labels per axis, in order."""
        if self.combine == "list":
            keys = list(self.cells[0])
            return {key: tuple(dict.fromkeys(label_of(cell[key]) for cell in self.cells)) for key in keys}
        return {name: tuple(label for label, _ in choices_of(name, values)) for name, values in self.axes.items()}

    def settings(self) -> Iterator[Setting]:
        """Every cell, in order."""
        if self.combine == "list":
            for cell in self.cells:
                yield Setting({key: label_of(value) for key, value in cell.items()}, dict(cell))
            return
        choices = [choices_of(name, values) for name, values in self.axes.items()]
        every = zip(*choices, strict=True) if self.combine == "zip" else itertools.product(*choices)
        for chosen in every:
            at = {name: label for name, (label, _) in zip(self.axes, chosen, strict=True)}
            values = {key: value for _, keys in chosen for key, value in keys.items()}
            presets = [name for _, keys in chosen for name in names_of(keys.get(WITH))]
            yield Setting(at, {**values, WITH: presets} if presets else values)

    def layers(self) -> Iterator[Mapping[str, Any]]:
        """Keys of the table, of each of its cells, and of each choice of its axes: every key that it sets."""
        yield self.set
        yield from self.cells
        for name, values in self.axes.items():
            for _, keys in choices_of(name, values):
                yield keys

    def presets(self) -> tuple[str, ...]:
        """Names of the presets that the table and its cells lie on."""
        return tuple(dict.fromkeys(name for keys in self.layers() for name in names_of(keys.get(WITH))))


class SweepConfig(Section):
    """The configuration of a sweep."""

    title: str = ""
    """Title of the page."""
    base: tuple[str, ...] = ("default",)
    """Configurations (files or presets) under every cell; later ones win."""
    prefer: tuple[str, ...] = ()
    """Presets over the base, such as a study's own encoder and model. One that is not on this machine is left out and
    named on the page; the base's own setting stands then."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys set in every cell."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    """Base seeds: every cell is run once per seed."""
    output: FilePath = ""
    """Directory of the page and the tables. Default: `runs/sweeps/NAME`."""
    runs: FilePath = "runs/sweeps/runs"
    """Directory of the cells' runs, shared by all sweeps: a finished run is never repeated."""
    indexes: FilePath = "runs/sweeps/indexes"
    """Directory of the cells' indexes, shared by all sweeps."""
    by: str | None = None
    """Column of the gold answers that groups the questions, such as public and private ones: scores, ranks and their
    correlation are then also shown by group."""
    concurrency: PositiveInt = 4
    """Cells in flight."""
    tables: Annotated[tuple[TableConfig, ...], Field(min_length=1)]
    """Tables of the sweep."""

    @field_validator("base", "prefer", mode="before")
    @classmethod
    def _one_or_many(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names

    @field_validator("seeds")
    @classmethod
    def _differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds are {list(seeds)}: the same seed twice gives the same run twice")
        return seeds

    @model_validator(mode="after")
    def _names_differ(self) -> SweepConfig:
        names = [table.name for table in self.tables]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ValueError(f"two tables are named {double!r}: give each a name of its own")
        return self

    @property
    def n_cells(self) -> int:
        """Cells of all tables, without making them."""
        return sum(table.n_cells for table in self.tables)


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell: its labels and its settings.

    Attributes:
        at: Label by axis.
        values: Values by dotted key.
    """

    at: Mapping[str, str]
    values: Mapping[str, Any]


def choices_of(name: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[str, Values]]:
    """Return an axis's labels, each with the keys it sets."""
    if not isinstance(values, Mapping):
        return [(label_of(value), {name: value}) for value in values]
    return [(label, dict(keys) if isinstance(keys, Mapping) else {name: keys}) for label, keys in values.items()]


def names_of(presets: Any) -> tuple[str, ...]:
    """Return the names under ``with``: one, a list of them, or none."""
    return (presets,) if isinstance(presets, str) else tuple(presets or ())
