"""Plan a sweep: its cells, their runs, the indexes these need, and which of them exist."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kohaku_ray.checks.demand import cluster_address, deployment_demand
from kohaku_ray.checks.deployments import (
    Addresses,
    add_addresses,
    check_deployment,
    check_vision,
    check_windows,
    shared_identities,
)
from kohaku_ray.collection.indexes import difference, index_settings, open_index, parser_note, preferred_note
from kohaku_ray.collection.sources import find_sources, format_name, resolve
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.errors import ConfigError, ConflictError, DataError
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.evaluation.report import clusters_of, file_report, gold_oddities
from kohaku_ray.evaluation.submissions import Submission
from kohaku_ray.evaluation.truth import has_gold, read_truth, scored_rows
from kohaku_ray.index.cuda import local_gpus, unusable_gpus
from kohaku_ray.index.store import Index
from kohaku_ray.records import digest, pluralize
from kohaku_ray.runs.identity import file_digest, is_finished, output_determinants, run_identity
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.storage import is_uri, join_path
from kohaku_ray.sweep.load import MEMBERS, LoadedSweep, PoolConfig, Setting, TableConfig
from kohaku_ray.version import __version__


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One cell of a table."""

    cell_id: str  # digest of its settings without the seed
    labels: Mapping[str, str]  # label by axis
    runs: Mapping[int, str] = field(default_factory=dict)  # by seed, of a pool's table by member; none if it is skipped
    reason: str = ""  # why it is skipped


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """One table with its resolved cells."""

    table: TableConfig
    cells: tuple[PlannedCell, ...]  # in order; in a study, one per setting, all on the pool's run
    configs: Mapping[str, Config]  # of each cell that is not skipped, by its id


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A resolved sweep."""

    loaded: LoadedSweep
    tables: tuple[PlannedTable, ...]
    runs: Mapping[str, Config]  # every distinct run, by its id, with its own paths
    indexes: Mapping[str, Config]  # every distinct index they need, by path, with a configuration that builds it
    notes: tuple[str, ...] = ()  # preferred presets and encoders that are left out, each with the reason
    output: str = ""  # directory of page and tables, absolute: a job's working directory may be gone at its end

    @property
    def configs(self) -> list[Config]:
        """The configurations of all runs, then of all cells."""
        return [*self.runs.values(), *(config for table in self.tables for config in table.configs.values())]

    @property
    def metric(self) -> str:
        """The metric that compares the cells: the headline of the first run."""
        return self.configs[0].metrics[0]

    @property
    def finished(self) -> dict[str, Config]:
        """Finished runs."""
        return {run_id: config for run_id, config in self.runs.items() if is_finished(config.run)}

    @property
    def unfinished(self) -> dict[str, Config]:
        """Runs to make, in order."""
        return {run_id: config for run_id, config in self.runs.items() if not is_finished(config.run)}


def plan_sweep(loaded: LoadedSweep) -> SweepPlan:
    """Resolve every cell; a cell that cannot be run keeps the reason.

    Raises:
        ConfigError: A value does not fit, or no cell can be run.
        DataError: Questions, metadata or documents cannot be read.
    """
    loaded, notes = _leave_out_preferred(loaded)
    planner = _Planner(loaded)
    tables = tuple(planner.table(table) for table in loaded.sweep.tables)
    for note in (preferred_note, _parser_note):
        notes += filter(None, dict.fromkeys(map(note, planner.indexes.values())))
    plan = SweepPlan(loaded, tables, planner.runs, planner.indexes, (), _absolute_path(loaded.sweep.output))
    notes += dict.fromkeys(note for config in plan.configs for note in planner.check_truth(config))
    plan = replace(plan, notes=tuple(notes))
    if shared := shared_identities(planner.addresses):
        raise ConfigError(f"{loaded.where}: {plan.configs[0].hide('; '.join(shared))}")
    cells = [cell for table in tables for cell in table.cells]
    if all(cell.reason for cell in cells):
        reasons = "; ".join(dict.fromkeys(cell.reason for cell in cells))
        raise ConfigError(f"{loaded.where}: none of {pluralize(len(cells), 'cell')} can be run: {reasons}")
    return plan


def _leave_out_preferred(loaded: LoadedSweep) -> tuple[LoadedSweep, list[str]]:
    """Leave out the preferred presets whose encoder or model is not here, and say so."""
    sweep = loaded.sweep
    if sweep.preferred and (reason := _find_missing(loaded, ())):
        return loaded, [f"The base itself cannot be run, whatever is preferred: {reason}"]
    lists = [sweep.prefer if table.prefer is None else table.prefer for table in sweep.tables]
    reasons: dict[str, str] = {}
    for names in dict.fromkeys([sweep.prefer, *lists]):
        kept: list[str] = []
        for name in names:
            if name in reasons or (reason := _find_missing(loaded, [*kept, name])):
                reasons.setdefault(name, reason)
            else:
                kept.append(name)
    notes = []
    for name, reason in reasons.items():
        tables = [table.name for table, names in zip(sweep.tables, lists, strict=True) if name in names]
        where = "" if len(tables) == len(lists) else f" in {', '.join(tables)}"
        notes.append(f"{name} is preferred but left out, and the base's own setting stands{where}: {reason}")
    return loaded.with_preferred([name for name in sweep.preferred if name not in reasons]), notes


def _find_missing(loaded: LoadedSweep, prefer: Sequence[str]) -> str:
    try:
        _Planner(loaded).check(resolve_paths(loaded.build({"seed": loaded.sweep.seeds[0]}, prefer=prefer)))
    except (ConfigError, _MissingError) as error:
        return _describe_error(error, loaded)
    return ""


def _describe_error(error: Exception, loaded: LoadedSweep) -> str:
    return " ".join(str(error).removeprefix(f"{loaded.where}: ").split())


def truth_of_sweep(config: Config, metric: Metric) -> Submission:
    """Read the gold answers to a run's questions.

    Raises:
        DataError: There are none, or the file is no CSV with the columns that the metric needs.
    """
    path = resolve(config.questions.path)
    truth = scored_rows(read_truth(path, [metric]), [metric], config.questions.limit)
    if not has_gold(truth, [metric]):
        column = metric.truth_columns[0]
        where = column if isinstance(column, str) else " or ".join(column)
        raise DataError(f"{path} has no gold answers in {where}: a sweep compares scores, so add them")
    return truth


def _absolute_path(path: str) -> str:
    return path if is_uri(path) else os.path.abspath(path)


class _MissingError(Exception):
    """Something that a cell needs does not exist."""


class _Planner:
    """Resolves cells, and names their runs and indexes so that cells share them."""

    def __init__(self, loaded: LoadedSweep) -> None:
        self._loaded = loaded
        self.runs: dict[str, Config] = {}
        self.indexes: dict[str, Config] = {}
        self.addresses: Addresses = {}
        self._tables: dict[str, PlannedTable] = {}
        self._known: dict[str, Any] = {}

    def table(self, table: TableConfig) -> PlannedTable:
        """Resolve a table; one cell that cannot be run does not stop the others."""
        table = resolve_paths(table)  # a study reads its pool's files at the end
        cells: list[PlannedCell] = []
        configs: dict[str, Config] = {}
        for setting in table.settings():
            try:
                cell, config = self._add_cell(table, setting)
            except (ConflictError, _MissingError) as error:
                cells.append(
                    PlannedCell(
                        digest(dict(setting.labels)), setting.labels, reason=_describe_error(error, self._loaded)
                    )
                )
            else:
                cells.append(cell)
                configs[cell.cell_id] = resolve_paths(config)
        self._tables[table.name] = PlannedTable(table, tuple(cells), configs)
        return self._tables[table.name]

    def check_truth(self, config: Config) -> list[str]:
        """Check that there are gold answers, with the column that names clusters; return what is odd about them."""
        questions = config.questions
        metric = find_metric(config.metrics[0])
        truth = self._cached(("truth", questions, metric.name), lambda: truth_of_sweep(config, metric))
        if cluster := self._loaded.sweep.cluster:
            clusters_of(truth, cluster)
        odd = [*file_report(truth, truth).notes, *gold_oddities(truth, [metric])]
        return [f"{truth.path}: {what}" for what in odd]

    def check(self, config: Config) -> None:
        """Check that a configuration's encoder and models are here, that which describes images among them."""
        self._index_settings(config)
        self._check_models(config)
        self._check_captioner(config)

    def _add_cell(self, table: TableConfig, setting: Setting) -> tuple[PlannedCell, Config]:
        seeds = self._loaded.sweep.seeds
        if table.pool is not None:
            return self._add_study(table, table.pool, setting, seeds[0])
        runs, cell_id = {}, ""
        for seed in seeds:
            config = self._loaded.config(table, setting, seed)
            cell_id, runs[seed] = self._add_run(config)
        return PlannedCell(cell_id, setting.labels, runs), config

    def _add_study(
        self, table: TableConfig, pool: PoolConfig, setting: Setting, seed: int
    ) -> tuple[PlannedCell, Config]:
        """Resolve a cell of a study: every size and rule uses the run of the whole pool, or the runs of its table."""
        config = self._loaded.config(table, setting, seed)
        cell = {"pool": pool.model_dump(mode="json"), "cell": config.model_dump(mode="json")}
        if pool.table is not None:
            cells = self._tables[pool.table].cells
            runs = dict(enumerate(planned.runs[seed] for planned in cells if not planned.reason))
            if len(runs) < (size := config.ensemble.members):
                left_out = "; ".join(
                    f"{', '.join(planned.labels.values())}: {planned.reason}" for planned in cells if planned.reason
                )
                why = f" ({left_out})" if left_out else ""
                raise _MissingError(f"{size} cells of table {pool.table} are needed, and {len(runs)} can be run{why}")
            return PlannedCell(digest({**cell, "runs": [*runs.values()]}), setting.labels, runs), config
        cell_id = digest(cell)
        if pool.members is None:
            return PlannedCell(cell_id, setting.labels), config
        whole = Setting({}, {MEMBERS: pool.members, "ensemble.early_stop": "never", "ensemble.vote": {}})
        _, run_id = self._add_run(self._loaded.config(table, whole, seed))
        return PlannedCell(cell_id, setting.labels, {seed: run_id}), config

    def _add_run(self, config: Config) -> tuple[str, str]:
        """Name a run by everything that decides its outputs, and set its path and its index's."""
        config = resolve_paths(config)
        sweep = self._loaded.sweep
        documents, metadata = config.documents, config.documents.metadata
        built_of = {
            "version": __version__,
            "settings": self._index_settings(config),
            "read_as": format_name(config),
            "documents": self._cached(
                ("documents", documents, config.questions.path), lambda: _digest_files(find_sources(config))
            ),
            "metadata": self._cached(("file", metadata), lambda: file_digest(metadata)),
        }
        index_id = digest(built_of)
        add_addresses(config, self.addresses)
        decides = output_determinants(config, index_id, self._cached)
        cell_id, run_id = digest(decides), run_identity(decides, config.seed)
        is_base_usable = self._cached(
            ("index of the base", config.system, config.index, documents), lambda: _is_usable(config)
        )
        path = config.index.path if is_base_usable else join_path(sweep.indexes, index_id)
        index = config.index.model_copy(update={"path": _absolute_path(path)})
        run = _absolute_path(join_path(sweep.runs, run_id))
        run_config = config.model_copy(update={"run": run, "index": index})
        if not is_finished(run):  # a finished run needs no model
            self._check_models(config)
            if not self._cached(("there", index.path), lambda: index_exists(index.path)):
                self._check_captioner(config)
        self.runs.setdefault(run_id, run_config)
        self.indexes.setdefault(index.path, run_config)
        return cell_id, run_id

    def _index_settings(self, config: Config) -> dict[str, Any]:
        """Return the index's settings with the encoder's files by hash instead of path."""
        try:
            key = ("index", config.system, config.index)
            settings: dict[str, Any] = self._cached(key, lambda: index_settings(config).as_mapping())
        except ConfigError as error:
            raise _MissingError(str(error)) from None
        encoder = {key: value for key, value in settings["encoder"].items() if key != "model"}
        return {**settings, "encoder": encoder}

    def _check_models(self, config: Config) -> None:
        try:
            self._check_deployments(config, config.used_deployments)
            check_vision(config)
            check_windows(config)
        except ConfigError as error:
            raise _MissingError(str(error)) from None

    def _check_captioner(self, config: Config) -> None:
        try:
            self._check_deployments(config, config.caption_deployments)
        except ConfigError as error:
            raise _MissingError(f"its index cannot be built: {error}") from None

    def _check_deployments(self, config: Config, deployments: Mapping[str, Deployment]) -> None:
        for name, deployment in deployments.items():
            self._cached(
                ("deployment", name, deployment), functools.partial(_check_on_this_machine, config, name, deployment)
            )

    def _cached(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        name = repr(key)
        if name not in self._known:
            self._known[name] = compute()
        return self._known[name]


def _check_on_this_machine(config: Config, name: str, deployment: Deployment) -> None:
    is_local = cluster_address(config.cluster) is None
    check_deployment(name, deployment, here=is_local)
    n_gpus = deployment_demand(deployment)["GPU"]
    if is_local and n_gpus > local_gpus():
        has = unusable_gpus() or f"this machine has {local_gpus()}"
        raise ConfigError(f"deployments.{name}: its replicas need {n_gpus:g} GPUs and {has}")


def _digest_files(paths: Sequence[str]) -> str:
    return digest([[os.path.basename(path), file_digest(path)] for path in paths])


def _parser_note(config: Config) -> str:
    """Say of an index that is there that another parser made it; see ``parser_note``."""
    try:
        return parser_note(Index.open(config.index.path), config)
    except DataError:
        return ""


def _is_usable(config: Config) -> bool:
    """Return whether the configured index is there, of these settings and of these documents."""
    try:
        return not difference(open_index(config), config)
    except (ConfigError, DataError):
        return False


def index_exists(path: str) -> bool:
    """Return whether an index is complete; its path names its settings, or it is the base's, which fits."""
    try:
        Index.open(path)
    except DataError:
        return False
    return True
