"""Read a sweep: tables of settings over one base; every combination is a configuration."""

# Over 400 lines: what the file may say stands beside how it is read.

from __future__ import annotations

import functools
import itertools
import math
import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kohaku_ray.config.load import (
    build_config,
    explain,
    merge,
    override,
    parse_file,
    put,
    read_values,
    validated,
)
from kohaku_ray.config.paths import PRESETS, directory_of, join_shared
from kohaku_ray.config.plain import expand, label_of, leaves, misread, shown
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError, ConflictError, did_you_mean
from kohaku_ray.settings import FilePath, PositiveInt, Settings, join_to_file
from kohaku_ray.sweep.published import read_paper
from kohaku_ray.systems.registry import system_names

SWEEPS = PRESETS / "sweeps"
"""Directory of the package's sweeps."""

KEYS_WITHOUT_EFFECT_ON_OUTPUTS = (
    "run",
    "index.path",
    "index.shards",
    "index.search_device",
    "index.encoders",
    "index.encoder_gpus",
    "ledger",
    "cluster",
    "fail_after",
    "budget",
    "tracking",
)
"""Keys that set where a run is made and change no output: a sweep sets its own paths."""


@dataclass(frozen=True, slots=True)
class LoadedSweep:
    """A sweep and its base."""

    sweep: SweepConfig
    where: str  # the file, for messages
    compose: Callable[
        [tuple[str, ...]], SweepValues
    ]  # the base on some preferred presets; command line and ``set`` win
    presets: Mapping[str, SweepValues] = field(default_factory=dict)  # values of those that tables and cells name
    given_keys: tuple[str, ...] = ()  # keys that the sweep's own base and its ``set`` give
    left_out: frozenset[str] = frozenset()  # preferred presets that are not used

    @property
    def base(self) -> SweepValues:
        """Plain values under every cell of a table that prefers nothing of its own."""
        return self.compose(self._used(self.sweep.prefer))

    def with_preferred(self, names: Sequence[str]) -> LoadedSweep:
        """Copy the sweep with these of its preferred presets alone."""
        return replace(self, left_out=frozenset(name for name in self.sweep.preferred if name not in names))

    def config(self, table: TableConfig, setting: Setting, seed: int) -> Config:
        """Build the configuration of one cell and seed, see ``built``."""
        return self.build({"seed": seed}, table.set, setting.values, prefer=table.prefer)

    def build(self, *layers: Mapping[str, Any], prefer: Sequence[str] | None = None) -> Config:
        """Build a configuration from the base and layers of dotted keys; presets they name lie under all keys.

        Args:
            layers: Keys and values; later ones win.
            prefer: Preferred presets under them; None: the sweep's own.

        Raises:
            ConfigError: A value does not fit.
            ConflictError: Each value fits, but not together.
        """
        values = deepcopy(self.compose(self._used(self.sweep.prefer if prefer is None else prefer)))
        for layer in layers:
            for name in preset_names(layer.get(WITH)):
                values = merge(values, deepcopy(self.presets[name]))
        for key, value in (item for layer in layers for item in layer.items() if item[0] != WITH):
            put(values, key, deepcopy(value), where=self.where)
        return build_config(values, where=self.where)

    def _used(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in self.left_out)


def load_sweep(
    path: str,
    base: Sequence[str] = (),
    overrides: Sequence[str] = (),
    output: str | None = None,
    race: bool | None = None,
    cluster: str | None = None,
) -> LoadedSweep:
    """Read a sweep and check every value of every axis separately.

    Args:
        path: A YAML file, or the name of a preset of ``configs/sweeps``.
        base: Configurations that win over the sweep's own base and its preferred presets, such as one with your
            documents and questions.
        overrides: Overrides ``a.b=c``; they win over everything but the tables.
        output: Replaces the sweep's own.
        race: Races the sweep, as by default if its file says nothing of it, or does not; None: as the file says.
        cluster: Replaces the sweep's own.

    Raises:
        ConfigError: The file cannot be read, an axis names no key, or a value does not fit.
    """
    file = _find_file(path)
    given = _read_tables(file)
    given |= {key: value for key, value in (("output", output), ("cluster", cluster)) if value}
    if race is not None and not (race and isinstance(given.get("race"), Mapping)):
        given["race"] = race
    sweep = _validate_sweep(given, str(file))
    if "seed" in sweep.set or any(text.partition("=")[0].strip() == "seed" for text in overrides):
        raise ConfigError(f"{file}: seed is set, but every cell is run with each of the sweep's seeds: set those")

    @functools.cache
    def compose(preferred: tuple[str, ...]) -> SweepValues:
        values = read_values([*sweep.base, *preferred, *base], beside=str(file))
        for key, value in sweep.set.items():
            put(values, key, value, where=str(file))
        for text in overrides:
            override(values, text)
        return values

    if shared := join_to_file(compose(sweep.prefer).get("shared")):
        moves = ("output", "runs", "indexes")
        given |= {name: join_shared(shared, given.get(name, getattr(sweep, name))) for name in moves}
        sweep = _validate_sweep(given, str(file))
    named = dict.fromkeys(name for table in sweep.tables for name in table.presets())
    presets = {name: read_values([name], beside=str(file)) for name in named}
    base_keys = (".".join(key_path) for key_path, _ in leaves(read_values(sweep.base, beside=str(file))))
    loaded = LoadedSweep(sweep, str(file), compose, presets, (*base_keys, *sweep.set))
    try:
        for table in sweep.tables:
            check_table(loaded, table)
    except ConflictError:
        raise
    except ConfigError as error:
        if not base or "settings of another system" not in str(error):
            raise
        stands_on = ", ".join(map(str, sweep.base)) or "its own"
        raise ConfigError(f"{error}; or leave out --base: this sweep stands on {stands_on}") from None
    return loaded


def _find_file(path: str, *first: Path) -> Path:
    for candidate in (*first, Path(path), SWEEPS / path, SWEEPS / f"{path}.yaml"):
        if os.path.isfile(candidate):
            return candidate
    presets = sorted(file.stem for file in SWEEPS.glob("*.yaml"))
    raise ConfigError(
        f"{path[:200]}: no such file and no such sweep{did_you_mean(path, presets)}; sweeps: {', '.join(presets)}"
    )


def _read_tables(file: Path) -> SweepValues:
    """Read a sweep; the names of other sweeps among its tables are replaced by their tables."""
    values = _read_mapping(file)
    if "tables" not in values:
        return _wrap_table(values, file)
    if not isinstance(values["tables"], list):
        raise ConfigError(f"{file}: tables is {shown(values['tables'])}, expected a list of tables and names of sweeps")
    tables: list[Any] = []
    for number, entry in enumerate(values["tables"], 1):
        if not isinstance(entry, str):
            tables.append({"name": f"table{number}", **entry} if isinstance(entry, Mapping) else entry)
            continue
        named = _find_file(entry, file.parent / entry, file.parent / f"{entry}.yaml")
        inner = _read_mapping(named)
        if "tables" in inner:
            raise ConfigError(f"{file}: tables names {entry}, which has tables of its own: name those")
        tables += _wrap_table(inner, named)["tables"]
    return {"output": f"runs/sweeps/{file.stem}", **values, "tables": tables}


def _wrap_table(values: SweepValues, file: Path) -> SweepValues:
    """Turn a file with axes and no tables into a sweep of one table: its keys are among the sweep's."""
    of_table = {key: value for key, value in values.items() if key in TableConfig.model_fields}
    rest = {key: value for key, value in values.items() if key not in of_table or key in ("title", "prefer")}
    return {"output": f"runs/sweeps/{file.stem}", **rest, "tables": [{"name": file.stem, **of_table}]}


def _read_mapping(file: Path) -> SweepValues:
    values = parse_file(file, directory_of(file))
    if values is None:
        raise ConfigError(f"{file} is empty: write a sweep's keys, such as `axes:`")
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__} at its top, expected keys such as `axes:`")
    return values


def _validate_sweep(values: SweepValues, where: str) -> SweepConfig:
    fields = {*SweepConfig.model_fields, *TableConfig.model_fields}
    for key in values:
        if key in {*Config.model_fields, *system_names()} and key not in fields:
            raise ConfigError(
                f"{where} is a run's configuration (it has {key}) and not a sweep's: give it as the base of one, "
                f"`kohaku-ray sweep SWEEP --base {where}`"
            )
        if key not in fields:
            raise ConfigError(f"{where}: no key {key}{did_you_mean(key, fields)}")
    errors: list[Any] = []
    sweep = validated(SweepConfig, values, errors)
    made = sweep.model_dump() if sweep is not None else {}
    faults = misread(values, made)
    if sweep is None or faults:
        raise ConfigError(f"{where}: " + "; ".join([*map(_explain_error, errors), *faults]))
    return sweep


def _explain_error(entry: Any) -> str:
    """Describe a pydantic error; for an unknown key, with the key it may have meant."""
    if entry["type"] != "extra_forbidden":
        return explain(entry)
    key, path = entry["loc"][-1], ".".join(entry["loc"])
    sections = (TableConfig, PoolConfig, RaceConfig)
    return f"no key {path}{did_you_mean(key, [name for section in sections for name in section.model_fields])}"


def check_table(loaded: LoadedSweep, table: TableConfig) -> None:
    """Check every value of every axis separately: conflicts between values are reported per cell."""
    where = f"{loaded.where}: table {table.name}"
    choices: list[Mapping[str, Any]] = list(table.cells)
    choices += [keys for name, values in table.axes.items() for _, keys in axis_choices(name, values)]
    for keys in choices:
        for key in (*table.set, *keys):
            if key == WITH and table.pool is None:
                continue
            if key == "seed":
                raise ConfigError(f"{where}: seed is no axis: every cell is run with each of the sweep's seeds")
            if key in KEYS_WITHOUT_EFFECT_ON_OUTPUTS or key.split(".")[0] in KEYS_WITHOUT_EFFECT_ON_OUTPUTS:
                raise ConfigError(
                    f"{where}: {key} changes no output, so its cells would be the same runs: leave it out"
                )
            if table.pool is not None and key not in table.set and key != MEMBERS and not key.startswith(VOTE):
                raise ConfigError(
                    f"{where}: {key} is an axis of a study of recorded members, which can vary {MEMBERS} and {VOTE}* "
                    "alone: leave pool out, and its cells are run"
                )
        try:
            replace(loaded, where=where).build(table.set, keys, prefer=table.prefer)
        except ConflictError:
            continue  # other keys of the cell may resolve it


MEMBERS, VOTE = "ensemble.members", "ensemble.vote."
"""Keys that a study of recorded members may vary: any other key needs new calls."""

WITH = "with"
"""Stands for a key in a table's or a cell's settings: presets, such as ``models/ollama``, that lie under its keys."""

SweepValues = dict[str, Any]


class PoolConfig(Settings):
    """Recorded members whose ensembles are studied without new calls."""

    members: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Members of the base that answer once; instead of `files` or `table`."""
    files: tuple[FilePath, ...] = ()
    """Submission CSVs, one per member; `*` and `?` are wildcards as in a shell."""
    table: str | None = None
    """An earlier table of the sweep: what each of its cells submits, under the first seed, is a member."""
    strata: str | None = None
    """Regular expression on a file's name without its suffix: members with an equal first group (or match) are a
    stratum, and every subsample has its share of each. None: all members are one stratum."""

    @field_validator("files", mode="before")
    @classmethod
    def _of_this_machine(cls, files: Any) -> Any:
        return expand(files)

    @model_validator(mode="after")
    def _one_source(self) -> PoolConfig:
        if sum((self.members is not None, bool(self.files), self.table is not None)) != 1:
            raise ValueError("pool needs members, files or table, one of them: say which recorded members are studied")
        if self.strata is not None:
            try:
                re.compile(self.strata)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"pool.strata is {self.strata!r}, no regular expression: {error}") from None
        return self


class TableConfig(Settings):
    """One table: axes over configuration keys, combined."""

    name: str = ""
    """Short name, unique in the sweep. Default: its file's name, or `table1`, `table2`, …"""
    title: str = ""
    """What the table compares."""
    prefer: tuple[str, ...] | None = None
    """Presets over the base of this table, instead of the sweep's `prefer`."""
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
    paper: str | None = None
    """The table of KohakuRAG's paper that this one repeats, by its place there, such as `Table 1, Figure 10`. Its
    figures stand beside the cells that have its setting; of the others is said what differs."""

    @field_validator("prefer", mode="before")
    @classmethod
    def _prefers_one_or_many(cls, names: Any) -> Any:
        return _as_tuple(names)

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
            labels = [label for label, _ in axis_choices(name, values)]
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

    @field_validator("paper")
    @classmethod
    def _is_in_the_paper(cls, place: str | None) -> str | None:
        if place is not None and place not in (places := read_paper().tables):
            raise ValueError(f"paper is {place}{did_you_mean(place, places)}: name one of {'; '.join(places)}")
        return place

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
        return {name: tuple(label for label, _ in axis_choices(name, values)) for name, values in self.axes.items()}

    def settings(self) -> Iterator[Setting]:
        """Every cell, in order."""
        if self.combine == "list":
            for cell in self.cells:
                yield Setting({key: label_of(value) for key, value in cell.items()}, dict(cell))
            return
        choices = [axis_choices(name, values) for name, values in self.axes.items()]
        every = zip(*choices, strict=True) if self.combine == "zip" else itertools.product(*choices)
        for chosen in every:
            labels = {name: label for name, (label, _) in zip(self.axes, chosen, strict=True)}
            values = {key: value for _, keys in chosen for key, value in keys.items()}
            presets = [name for _, keys in chosen for name in preset_names(keys.get(WITH))]
            yield Setting(labels, {**values, WITH: presets} if presets else values)

    def layers(self) -> Iterator[Mapping[str, Any]]:
        """Keys of the table, of each of its cells, and of each choice of its axes: every key that it sets."""
        yield self.set
        yield from self.cells
        for name, values in self.axes.items():
            for _, keys in axis_choices(name, values):
                yield keys

    def presets(self) -> tuple[str, ...]:
        """Names of the presets that the table and its cells lie on."""
        return tuple(dict.fromkeys(name for keys in self.layers() for name in preset_names(keys.get(WITH))))


class RaceConfig(Settings):
    """Dropping cells while the sweep runs: `race: on`, or these keys (docs/sweeps.md)."""

    error: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Greatest probability that the best cell of any table is dropped; 0: only cells are dropped that could not
    catch up on the remaining questions."""
    tolerance: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """A cell is dropped when its score is shown to be more than this below the best; closer ones stay."""
    shard: PositiveInt | None = None
    """Questions per shard; cells are compared after each. Default: a twentieth of all questions, at least four."""
    seed: int = 0
    """Seed of the random order of the questions, the same for all cells."""


class SweepConfig(Settings):
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
    """Directory of the cells' indexes, shared by all sweeps; the base's own index is used by cells that it fits."""
    by: str | None = None
    """Column of the gold answers that groups the questions, such as public and private ones: scores, ranks and their
    correlation are then also shown by group."""
    cluster: str | None = None
    """Column of the gold answers, such as `ref_id`, whose questions of one value are not independent: intervals and
    tests resample and flip them together. Default: every question by itself."""
    concurrency: PositiveInt | None = None
    """Cells in flight; None: four, or as many as fill the models' replicas."""
    race: RaceConfig | None = None
    """Drops cells that are beaten while the sweep runs (docs/sweeps.md): `on`, or its keys. `off`: every cell
    answers all questions."""
    tables: Annotated[tuple[TableConfig, ...], Field(min_length=1)]
    """Tables of the sweep."""

    @field_validator("base", "prefer", mode="before")
    @classmethod
    def _one_or_many(cls, names: Any) -> Any:
        return _as_tuple(names)

    @field_validator("race", mode="before")
    @classmethod
    def _on_or_off(cls, race: Any) -> Any:
        return {} if race in (True, "on") else None if race in (False, "off") else race

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

    @model_validator(mode="after")
    def _pools_are_earlier_tables(self) -> SweepConfig:
        earlier: list[str] = []
        for table in self.tables:
            if table.pool is None:
                earlier.append(table.name)
            elif table.pool.table is not None and table.pool.table not in earlier:
                raise ValueError(
                    f"pool.table of {table.name} is {table.pool.table!r}, no earlier table whose cells are run"
                    f"{did_you_mean(table.pool.table, earlier)}: name one of {', '.join(earlier) or 'those before it'}"
                )
        return self

    @property
    def preferred(self) -> tuple[str, ...]:
        """Every preset that the sweep or one of its tables prefers."""
        return tuple(dict.fromkeys([*self.prefer, *(name for table in self.tables for name in table.prefer or ())]))

    @property
    def n_cells(self) -> int:
        """Cells of all tables, without making them."""
        return sum(table.n_cells for table in self.tables)


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell: its labels and its settings."""

    labels: Mapping[str, str]  # label by axis
    values: Mapping[str, Any]  # by dotted key


def axis_choices(name: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[str, SweepValues]]:
    """Return an axis's labels, each with the keys it sets."""
    if not isinstance(values, Mapping):
        return [(label_of(value), {name: value}) for value in values]
    return [(label, dict(keys) if isinstance(keys, Mapping) else {name: keys}) for label, keys in values.items()]


def _as_tuple(names: Any) -> Any:
    return (names,) if isinstance(names, str) else names


def preset_names(presets: Any) -> tuple[str, ...]:
    """Return the names under ``with``: one, a list of them, or none."""
    return (presets,) if isinstance(presets, str) else tuple(presets or ())
