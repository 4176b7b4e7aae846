"""A sweep: tables of settings over one base; every combination is a configuration."""

from __future__ import annotations

import itertools
import math
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kohaku_ray.config.anchor import PRESETS, anchored_sweep, directory_of
from kohaku_ray.config.environment import expand
from kohaku_ray.config.load import (
    build_config,
    explain,
    override,
    parse_file,
    put,
    read_values,
    validated,
)
from kohaku_ray.config.plain import label_of as label_of
from kohaku_ray.config.plain import leaves, misread, shown, value_at
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError, ConflictError, did_you_mean
from kohaku_ray.settings import PositiveInt, Section

SWEEPS = PRESETS / "sweeps"
"""Directory of the package's sweeps."""

MEMBERS, VOTE = "ensemble.members", "ensemble.vote."
"""Keys that a study of recorded members may vary: any other key needs new calls."""

DECIDE_NOTHING = ("run", "index.path", "ledger", "cluster", "fail_after")
"""Keys that set where a run is made and change no output: a sweep sets its own paths."""

Values = dict[str, Any]


class PoolConfig(Section):
    """Recorded members whose ensembles are studied without new calls."""

    members: PositiveInt | None = None
    """Members of the base that answer once; instead of `files`."""
    files: tuple[str, ...] = ()
    """Submission CSVs, one per member; `*` and `?` are wildcards as in a shell."""
    strata: str | None = None
    """Regular expression on a file's name without its suffix: members with an equal first group (or match) are a
    stratum, and every subsample has its share of each. None: all members are one stratum."""

    @field_validator("files")
    @classmethod
    def _of_this_machine(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(expand(file) for file in files)

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
    """Dotted keys set in the whole table."""
    axes: dict[str, tuple[Any, ...] | dict[str, Any]] = Field(default_factory=dict)
    """Values by key; or, under a name of your own, labels with the keys that each sets. The last axis makes the
    columns."""
    combine: Literal["grid", "zip", "list"] = "grid"
    """grid: every combination of the axes' values; zip: the first of each, the second of each, …; list: `cells`."""
    cells: tuple[dict[str, Any], ...] = ()
    """For `combine: list`: keys and values of each cell."""
    show: tuple[str, ...] = ()
    """Measures shown with the score, as means over answers: the system's own, `attempts` and `blanks`; `tokens` and
    `seconds` in the models; parts of the score by name; `recall@10 STEP`: of the gold references, after a trace's
    step."""
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
            labels = [label for label, _ in _choices(name, values)]
            if len(set(labels)) != len(labels):
                raise ValueError(f"axis {name} has the same value twice: {', '.join(labels)}")
        lengths = {name: len(values) for name, values in self.axes.items()}
        if self.combine == "zip" and len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} {n}" for name, n in lengths.items())
            raise ValueError(f"combine is zip but the axes differ in length ({counts}): make them equal, or use grid")
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
        return {name: tuple(label for label, _ in _choices(name, values)) for name, values in self.axes.items()}

    def settings(self) -> Iterator[Setting]:
        """Every cell, in order."""
        if self.combine == "list":
            for cell in self.cells:
                yield Setting({key: label_of(value) for key, value in cell.items()}, dict(cell))
            return
        choices = [_choices(name, values) for name, values in self.axes.items()]
        every = zip(*choices, strict=True) if self.combine == "zip" else itertools.product(*choices)
        for chosen in every:
            at = {name: label for name, (label, _) in zip(self.axes, chosen, strict=True)}
            yield Setting(at, {key: value for _, keys in chosen for key, value in keys.items()})


class SweepConfig(Section):
    """The configuration of a sweep."""

    title: str = ""
    """Title of the page."""
    base: tuple[str, ...] = ("default",)
    """Configurations (files or presets) under every cell; later ones win."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys set in every cell."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    """Base seeds: every cell is run once per seed."""
    output: str = ""
    """Directory of the page and the tables. Default: `runs/sweeps/NAME`."""
    runs: str = "runs/sweeps/runs"
    """Directory of the cells' runs, shared by all sweeps: a finished run is never repeated."""
    indexes: str = "runs/sweeps/indexes"
    """Directory of the cells' indexes, shared by all sweeps."""
    concurrency: PositiveInt = 4
    """Cells in flight."""
    tables: Annotated[tuple[TableConfig, ...], Field(min_length=1)]
    """Tables of the sweep."""

    @field_validator("base", mode="before")
    @classmethod
    def _one_or_many(cls, base: Any) -> Any:
        return (base,) if isinstance(base, str) else base

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


@dataclass(frozen=True, slots=True)
class LoadedSweep:
    """A sweep and its base.

    Attributes:
        sweep: The sweep's configuration.
        base: Its base as plain values; the sweep's own keys and the command line's win.
        where: The file, for messages.
    """

    sweep: SweepConfig
    base: Values
    where: str

    def config(self, table: TableConfig, setting: Setting, seed: int) -> Config:
        """Build the configuration of one cell and seed.

        Raises:
            ConfigError: A value does not fit.
            ConflictError: Each value fits, but not together.
        """
        values = deepcopy(self.base)
        for key, value in {**table.set, **setting.values, "seed": seed}.items():
            put(values, key, deepcopy(value), where=self.where)
        return build_config(values, where=self.where)


def load_sweep(
    path: str, base: Sequence[str] = (), overrides: Sequence[str] = (), output: str | None = None
) -> LoadedSweep:
    """Read a sweep and check every value of every axis separately.

    Args:
        path: A YAML file, or the name of a preset of ``configs/sweeps``.
        base: Configurations that win over the sweep's own base, such as one with your documents and questions.
        overrides: Overrides ``a.b=c``; they win over everything but the tables.
        output: Replaces the sweep's own.

    Raises:
        ConfigError: The file cannot be read, an axis names no key, or a value does not fit.
    """
    file = _find(path)
    sweep = _validated(_whole(file) | ({"output": output} if output else {}), str(file))
    values = read_values([*sweep.base, *base], beside=str(file))
    for key, value in sweep.set.items():
        put(values, key, value, where=str(file))
    for text in overrides:
        override(values, text)
    if "seed" in sweep.set or any(text.partition("=")[0].strip() == "seed" for text in overrides):
        raise ConfigError(f"{file}: seed is set, but every cell is run with each of the sweep's seeds: set those")
    loaded = LoadedSweep(sweep, values, str(file))
    for table in sweep.tables:
        _check_table(loaded, table)
    return loaded


def _choices(name: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[str, Values]]:
    """Return an axis's labels, each with the keys it sets."""
    if not isinstance(values, Mapping):
        return [(label_of(value), {name: value}) for value in values]
    return [(label, dict(keys) if isinstance(keys, Mapping) else {name: keys}) for label, keys in values.items()]


def _find(path: str) -> Path:
    for candidate in (Path(path), SWEEPS / path, SWEEPS / f"{path}.yaml"):
        if os.path.isfile(candidate):
            return candidate
    presets = sorted(file.stem for file in SWEEPS.glob("*.yaml"))
    raise ConfigError(
        f"{path[:200]}: no such file and no such sweep{did_you_mean(path, presets)}; sweeps: {', '.join(presets)}"
    )


def _whole(file: Path) -> Values:
    """Read a sweep; the names of other sweeps among its tables are replaced by their tables."""
    values = _read(file)
    if "tables" not in values:
        return _of_one_table(values, file)
    if not isinstance(values["tables"], list):
        raise ConfigError(f"{file}: tables is {shown(values['tables'])}, expected a list of tables and names of sweeps")
    tables: list[Any] = []
    for number, entry in enumerate(values["tables"], 1):
        inline = [{"name": f"table{number}", **entry}] if isinstance(entry, Mapping) else [entry]
        tables += _tables_of(entry, file) if isinstance(entry, str) else inline
    return {"output": f"runs/sweeps/{file.stem}", **values, "tables": tables}


def _tables_of(name: str, beside: Path) -> list[Any]:
    file = next((one for one in (beside.parent / name, beside.parent / f"{name}.yaml") if os.path.isfile(one)), None)
    inner = _read(file if file is not None else _find(name))
    if "tables" in inner:
        raise ConfigError(f"{beside}: tables names {name}, which has tables of its own: name those")
    return list(_of_one_table(inner, file or _find(name))["tables"])


def _of_one_table(values: Values, file: Path) -> Values:
    """Turn a file with axes and no tables into a sweep of one table: its keys are among the sweep's."""
    own = {key: value for key, value in values.items() if key in TableConfig.model_fields}
    rest = {key: value for key, value in values.items() if key not in own or key == "title"}
    return {"output": f"runs/sweeps/{file.stem}", **rest, "tables": [{"name": file.stem, **own}]}


def _read(file: Path) -> Values:
    values = parse_file(file)
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__} at its top, expected keys such as `axes:`")
    return anchored_sweep(values, directory_of(file))


def _validated(values: Values, where: str) -> SweepConfig:
    fields = {*SweepConfig.model_fields, *TableConfig.model_fields}
    for key in values:
        if key in Config.model_fields and key not in fields:
            raise ConfigError(
                f"{where} is a run's configuration (it has {key}) and no sweep: give it as a sweep's base, "
                f"`kohaku-ray sweep SWEEP --base {where}`"
            )
        if key not in fields:
            raise ConfigError(f"{where}: no key {key}{did_you_mean(key, fields)}")
    errors: list[Any] = []
    sweep = validated(SweepConfig, values, errors)
    made = sweep.model_dump() if sweep is not None else {}
    faults = [fault for place, given in leaves(values) if (fault := misread(given, value_at(made, place), place))]
    if sweep is None or faults:
        raise ConfigError(f"{where}: " + "; ".join([*map(_explained, errors), *faults]))
    return sweep


def _explained(entry: Any) -> str:
    """Describe a pydantic error; for an unknown key, with the key it may have meant."""
    if entry["type"] != "extra_forbidden":
        return explain(entry)
    key, place = entry["loc"][-1], ".".join(entry["loc"])
    return f"no key {place}{did_you_mean(key, [*TableConfig.model_fields, *PoolConfig.model_fields])}"


def _check_table(loaded: LoadedSweep, table: TableConfig) -> None:
    """Check every value of every axis separately: conflicts between values are reported per cell."""
    where = f"{loaded.where}: table {table.name}"
    choices: list[Mapping[str, Any]] = list(table.cells)
    choices += [keys for name, values in table.axes.items() for _, keys in _choices(name, values)]
    for keys in choices:
        for key in (*table.set, *keys):
            _check_key(table, key, where)
        values = deepcopy(loaded.base)
        for key, value in {**table.set, **keys}.items():
            put(values, key, deepcopy(value), where=where)
        try:
            build_config(values, where=where)
        except ConflictError:
            continue  # other keys of the cell may resolve it


def _check_key(table: TableConfig, key: str, where: str) -> None:
    if key == "seed":
        raise ConfigError(f"{where}: seed is no axis: every cell is run with each of the sweep's seeds")
    if key in DECIDE_NOTHING or key.split(".")[0] in DECIDE_NOTHING:
        raise ConfigError(f"{where}: {key} changes no output, so its cells would be the same runs: leave it out")
    if table.pool is not None and key not in table.set and key != MEMBERS and not key.startswith(VOTE):
        raise ConfigError(
            f"{where}: {key} is an axis of a study of recorded members, which can vary {MEMBERS} and {VOTE}* "
            "alone: leave pool out, and its cells are run"
        )
