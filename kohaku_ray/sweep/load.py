"""A sweep: tables of settings over one base; every combination is a configuration."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from kohaku_ray.config.paths import PRESETS, directory_of
from kohaku_ray.config.plain import leaves, misread, shown, value_at
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError, ConflictError, did_you_mean
from kohaku_ray.sweep.schema import (
    MEMBERS,
    VOTE,
    WITH,
    PoolConfig,
    Setting,
    SweepConfig,
    TableConfig,
    Values,
    choices_of,
    names_of,
)
from kohaku_ray.systems.registry import system_names

SWEEPS = PRESETS / "sweeps"
"""Directory of the package's sweeps."""

DECIDE_NOTHING = (
    "run",
    "index.path",
    "index.shards",
    "index.search_device",
    "index.search_float16",
    "index.encoders",
    "index.encoder_gpus",
    "index.build_gpus",
    "index.parsers",
    "ledger",
    "cluster",
    "fail_after",
    "tracking",
)
"""Keys that set where a run is made and change no output: a sweep sets its own paths."""


@dataclass(frozen=True, slots=True)
class LoadedSweep:
    """A sweep and its base.

    Attributes:
        sweep: The sweep's configuration.
        base: Its base as plain values, with all preferred presets; the sweep's own keys and the command line's win.
        where: The file, for messages.
        compose: Builds the base with some of the preferred presets.
        presets: Plain values of the presets that tables and cells name, by name.
        own: Keys that the sweep's own base and its ``set`` give.
    """

    sweep: SweepConfig
    base: Values
    where: str
    compose: Callable[[Sequence[str]], Values]
    presets: Mapping[str, Values] = field(default_factory=dict)
    own: tuple[str, ...] = ()

    def preferring(self, names: Sequence[str]) -> LoadedSweep:
        """Copy the sweep with these of its preferred presets alone."""
        return replace(self, base=self.compose(names))

    def config(self, table: TableConfig, setting: Setting, seed: int) -> Config:
        """Build the configuration of one cell and seed.

        Raises:
            ConfigError: A value does not fit.
            ConflictError: Each value fits, but not together.
        """
        return self.built({"seed": seed}, table.set, setting.values)

    def built(self, *layers: Mapping[str, Any]) -> Config:
        """Build a configuration from the base and layers of dotted keys; presets they name lie under all keys.

        Raises:
            ConfigError: A value does not fit.
            ConflictError: Each value fits, but not together.
        """
        values = deepcopy(self.base)
        for layer in layers:
            for name in names_of(layer.get(WITH)):
                values = merge(values, deepcopy(self.presets[name]))
        for key, value in (item for layer in layers for item in layer.items() if item[0] != WITH):
            put(values, key, deepcopy(value), where=self.where)
        return build_config(values, where=self.where)


def load_sweep(
    path: str, base: Sequence[str] = (), overrides: Sequence[str] = (), output: str | None = None
) -> LoadedSweep:
    """Read a sweep and check every value of every axis separately.

    Args:
        path: A YAML file, or the name of a preset of ``configs/sweeps``.
        base: Configurations that win over the sweep's own base and its preferred presets, such as one with your
            documents and questions.
        overrides: Overrides ``a.b=c``; they win over everything but the tables.
        output: Replaces the sweep's own.

    Raises:
        ConfigError: The file cannot be read, an axis names no key, or a value does not fit.
    """
    file = _find(path)
    sweep = _validated(_whole(file) | ({"output": output} if output else {}), str(file))
    if "seed" in sweep.set or any(text.partition("=")[0].strip() == "seed" for text in overrides):
        raise ConfigError(f"{file}: seed is set, but every cell is run with each of the sweep's seeds: set those")

    def compose(preferred: Sequence[str]) -> Values:
        values = read_values([*sweep.base, *preferred, *base], beside=str(file))
        for key, value in sweep.set.items():
            put(values, key, value, where=str(file))
        for text in overrides:
            override(values, text)
        return values

    named = dict.fromkeys(name for table in sweep.tables for name in table.presets())
    presets = {name: read_values([name], beside=str(file)) for name in named}
    own = (".".join(place) for place, _ in leaves(read_values(sweep.base, beside=str(file))))
    loaded = LoadedSweep(sweep, compose(sweep.prefer), str(file), compose, presets, (*own, *sweep.set))
    try:
        for table in sweep.tables:
            _check_table(loaded, table)
    except ConflictError:
        raise
    except ConfigError as error:
        if not base or "settings of another system" not in str(error):
            raise
        stands_on = ", ".join(map(str, sweep.base)) or "its own"
        raise ConfigError(f"{error}; or leave out --base: this sweep stands on {stands_on}") from None
    return loaded


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
    values = parse_file(file, directory_of(file))
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__} at its top, expected keys such as `axes:`")
    return values


def _validated(values: Values, where: str) -> SweepConfig:
    fields = {*SweepConfig.model_fields, *TableConfig.model_fields}
    for key in values:
        if key in {*Config.model_fields, *system_names()} and key not in fields:
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
    choices += [keys for name, values in table.axes.items() for _, keys in choices_of(name, values)]
    for keys in choices:
        for key in (*table.set, *keys):
            _check_key(table, key, where)
        try:
            replace(loaded, where=where).built(table.set, keys)
        except ConflictError:
            continue  # other keys of the cell may resolve it


def _check_key(table: TableConfig, key: str, where: str) -> None:
    if key == WITH and table.pool is None:
        return
    if key == "seed":
        raise ConfigError(f"{where}: seed is no axis: every cell is run with each of the sweep's seeds")
    if key in DECIDE_NOTHING or key.split(".")[0] in DECIDE_NOTHING:
        raise ConfigError(f"{where}: {key} changes no output, so its cells would be the same runs: leave it out")
    if table.pool is not None and key not in table.set and key != MEMBERS and not key.startswith(VOTE):
        raise ConfigError(
            f"{where}: {key} is an axis of a study of recorded members, which can vary {MEMBERS} and {VOTE}* "
            "alone: leave pool out, and its cells are run"
        )
