"""What a sweep will do: its cells, the runs they stand on, the indexes these need, and what is there already."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kohaku_ray import __version__
from kohaku_ray.config import Config
from kohaku_ray.config.schema import Deployment, OpenAIConfig
from kohaku_ray.config.sweep import MEMBERS, LoadedSweep, PoolConfig, Setting, TableConfig
from kohaku_ray.engine.jobs.answer import questions_of
from kohaku_ray.engine.cluster import cluster_address, deployment_demand, local_gpus
from kohaku_ray.runs.directory import TABLES
from kohaku_ray.engine.ledger.segments import SegmentStore
from kohaku_ray.engine.serving.applications import check_deployment, model_identity, models_of
from kohaku_ray.runs.sources import resolve_paths, find_sources, read_source, resolve
from kohaku_ray.engine.actors.tools import chat_request, index_settings
from kohaku_ray.errors import ConfigError, ConflictError, DataError
from kohaku_ray.generation.prompts import Prompts
from kohaku_ray.generation.schema import plan_schema
from kohaku_ray.generation.seeds import request_key, seed_for
from kohaku_ray.index.store import Index
from kohaku_ray.records import Question
from kohaku_ray.submissions import Submission, read_submission

DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One cell of a table.

    Attributes:
        cell_id: Digest of its setting without the seed.
        at: Label by axis.
        runs: Runs by seed; none where the cell is skipped.
        reason: Why it is skipped; empty where it is not.
    """

    cell_id: str
    at: Mapping[str, str]
    runs: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """One table, its cells resolved.

    Attributes:
        table: As configured.
        cells: In order; of a study, one for each setting, all on the pool's run.
        configs: Configuration of each cell that is not skipped, by its id.
    """

    table: TableConfig
    cells: tuple[PlannedCell, ...]
    configs: Mapping[str, Config]


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep, resolved.

    Attributes:
        loaded: What was asked for.
        tables: In order.
        runs: Every distinct run, by its id, with paths of its own.
        indexes: Every distinct index that they need, by path, with a configuration that builds it.
    """

    loaded: LoadedSweep
    tables: tuple[PlannedTable, ...]
    runs: Mapping[str, Config]
    indexes: Mapping[str, Config]

    @property
    def finished(self) -> dict[str, Config]:
        """Runs that need nothing more."""
        return {run_id: config for run_id, config in self.runs.items() if is_finished(config.run)}

    @property
    def unfinished(self) -> dict[str, Config]:
        """Runs to be made, in order."""
        return {run_id: config for run_id, config in self.runs.items() if not is_finished(config.run)}


def plan_sweep(loaded: LoadedSweep) -> Plan:
    """Resolve every cell; what cannot be run is kept with the reason.

    Raises:
        ConfigError: A value does not fit, or not one cell can be run.
        DataError: Questions, metadata or documents cannot be read.
    """
    planner = _Planner(loaded)
    tables = tuple(planner.table(table) for table in loaded.sweep.tables)
    for config in (*planner.runs.values(), *(one for table in tables for one in table.configs.values())):
        planner.check_truth(config)
    cells = [cell for table in tables for cell in table.cells]
    if all(cell.reason for cell in cells):
        reasons = "; ".join(dict.fromkeys(cell.reason for cell in cells))
        raise ConfigError(f"{loaded.where}: not one of {len(cells)} cells can be run: {reasons}")
    return Plan(loaded, tables, planner.runs, planner.indexes)


def read_truth(config: Config) -> Submission:
    """Read the gold answers of the questions a run is asked.

    Raises:
        DataError: There are none, or the file is no CSV with id, answer_value and ref_id.
    """
    path, limit = resolve(config.questions.path), config.questions.limit
    truth = read_submission(path)
    if not any(row.answer_value for row in truth.rows.values()):
        raise DataError(f"{path} has no gold answers in answer_value: a sweep compares scores, so add them")
    return replace(truth, rows=dict(list(truth.rows.items())[:limit]))


def is_finished(run: str) -> bool:
    """Tell whether a run is whole; answers that got no reply are asked again, whatever else went wrong is recorded."""
    try:
        facts = json.loads(Path(run, "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    files = ("config.yaml", "submission.csv", *(f"{name}.parquet" for name in TABLES))
    whole = all(os.path.exists(f"{run}/{name}") for name in files)
    return whole and facts.get("status") == "finished" and not facts.get("n_unanswered")


class _MissingError(Exception):
    """What a cell needs is not there."""


class _Planner:
    """Resolves cells, and names what they share."""

    def __init__(self, loaded: LoadedSweep) -> None:
        self._loaded = loaded
        self.runs: dict[str, Config] = {}
        self.indexes: dict[str, Config] = {}
        self._known: dict[str, Any] = {}

    def table(self, table: TableConfig) -> PlannedTable:
        """Resolve a table; one cell that cannot be run does not stop the others."""
        cells: list[PlannedCell] = []
        configs: dict[str, Config] = {}
        for setting in table.settings():
            try:
                cell, config = self._cell(table, setting)
            except (ConflictError, _MissingError) as error:
                reason = str(error).removeprefix(f"{self._loaded.where}: ")
                cells.append(PlannedCell(digest(dict(setting.at)), setting.at, reason=" ".join(reason.split())))
            else:
                cells.append(cell)
                configs[cell.cell_id] = resolve_paths(config)
        return PlannedTable(table, tuple(cells), configs)

    def check_truth(self, config: Config) -> None:
        """Check that there is something to score by, before anything is run."""
        questions = config.questions
        self._once(("truth", questions), lambda: read_truth(config))

    def _cell(self, table: TableConfig, setting: Setting) -> tuple[PlannedCell, Config]:
        seeds = self._loaded.sweep.seeds
        if table.pool is not None:
            return self._studied(table, table.pool, setting, seeds[0])
        runs, cell_id = {}, ""
        for seed in seeds:
            config = self._loaded.config(table, setting, seed)
            cell_id, runs[seed] = self._add(config)
        return PlannedCell(cell_id, setting.at, runs), config

    def _studied(self, table: TableConfig, pool: PoolConfig, setting: Setting, seed: int) -> tuple[PlannedCell, Config]:
        """A cell of a study stands on the run of the whole pool, whatever its own size and rule."""
        config = self._loaded.config(table, setting, seed)
        cell_id = digest({"pool": pool.model_dump(mode="json"), "cell": config.model_dump(mode="json")})
        if pool.members is None:
            return PlannedCell(cell_id, setting.at), config
        whole = Setting(
            {}, {MEMBERS: pool.members, "ensemble.stop": "never", "ensemble.waves": None, "ensemble.vote": {}}
        )
        _, run_id = self._add(self._loaded.config(table, whole, seed))
        return PlannedCell(cell_id, setting.at, {seed: run_id}), config

    def _add(self, config: Config) -> tuple[str, str]:
        """Name a run by everything that decides its outputs, and give it and its index their places."""
        config = resolve_paths(config)
        sweep = self._loaded.sweep
        inputs = self._inputs(config)
        built_of = {"version": __version__, "settings": self._index_settings(config)}
        index_id = digest({**built_of, "documents": inputs["documents"], "metadata": inputs["metadata"]})
        decides = _what_decides({"index": index_id, **inputs}, config)
        cell_id, run_id = digest(decides), digest({**decides, "seed": config.seed})
        index = config.index.model_copy(update={"path": os.path.abspath(f"{sweep.indexes}/{index_id}")})
        run = os.path.abspath(f"{sweep.runs}/{run_id}")
        placed = config.model_copy(update={"run": run, "index": index})
        if not is_finished(run):  # what is finished needs no model any more
            self._check_models(config)
        self.runs.setdefault(run_id, placed)
        self.indexes.setdefault(index.path, placed)
        return cell_id, run_id

    def _index_settings(self, config: Config) -> dict[str, Any]:
        """Say what the index is made of, but for where the encoder's files lie: they are hashed."""
        try:
            settings: dict[str, Any] = self._once(("index", config.index), lambda: index_settings(config).as_mapping())
        except ConfigError as error:
            raise _MissingError(str(error)) from None
        encoder = {key: value for key, value in settings["encoder"].items() if key != "model"}
        return {**settings, "encoder": encoder}

    def _check_models(self, config: Config) -> None:
        try:
            for name, deployment in config.used_deployments.items():
                self._once(("deployment", name, deployment), functools.partial(_check_here, config, name, deployment))
        except ConfigError as error:
            raise _MissingError(str(error)) from None

    def _inputs(self, config: Config) -> dict[str, str]:
        """Digests of the files a run reads."""
        documents, questions, prompts = config.documents, config.questions.path, config.generation.prompts
        return {
            "documents": self._once(("documents", documents, questions), lambda: _files(find_sources(config))),
            "metadata": self._once(("file", documents.metadata), lambda: _file(documents.metadata)),
            "questions": self._once(("file", questions), lambda: _file(questions)),
            "prompts": self._once(("prompts", prompts), lambda: Prompts(prompts).digest),
        }

    def _once(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """Compute what many cells have in common once."""
        name = repr(key)
        if name not in self._known:
            self._known[name] = compute()
        return self._known[name]


def _check_here(config: Config, name: str, deployment: Deployment) -> None:
    """Check that a deployment can be served, by a cluster of this machine where no other is named."""
    is_local = cluster_address(config.cluster) is None
    check_deployment(name, deployment, here=is_local)
    n_gpus = deployment_demand(deployment)["GPU"]
    if is_local and n_gpus > local_gpus():
        raise ConfigError(f"deployments.{name}: its replicas need {n_gpus:g} GPUs and this machine has {local_gpus()}")


def _what_decides(inputs: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Everything that a run's outputs depend on but its seed: not where files lie or who computes."""
    asked = [config.deployment_of(member) for member in range(config.ensemble.members)]
    names = list(dict.fromkeys(asked))
    return {
        **inputs,
        "version": __version__,
        "system": config.system,
        "limit": config.questions.limit,
        "retrieval": config.retrieval.model_dump(mode="json"),
        "generation": config.generation.model_dump(mode="json", exclude={"model", "planner_model", "prompts"}),
        "ensemble": config.ensemble.model_dump(mode="json", exclude={"models"}),
        "answers": [_model(config.deployments[name]) for name in names],
        "members": [names.index(name) for name in asked],
        "plans": _model(config.deployments[config.planner]) if config.retrieval.queries > 1 else None,
    }


def _model(deployment: Deployment) -> list[Any]:
    # What counts tokens decides what is shown; a vLLM model's own tokenizer belongs to its identity.
    counts = [deployment.tokenizer, deployment.revision] if isinstance(deployment, OpenAIConfig) else []
    return [model_identity(deployment), deployment.window_tokens, *counts]


def _files(paths: Sequence[str]) -> str:
    return digest([[os.path.basename(path), _file(path)] for path in paths])


def _file(path: str | None) -> str:
    return "" if path is None else hashlib.blake2b(read_source(path)[1], digest_size=DIGEST_BYTES).hexdigest()


def digest(value: Any) -> str:
    """Name plain values by their canonical JSON: 16 hexadecimal characters."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sweep will ask, as far as it can be known before retrieval.

    Attributes:
        n_plans: Distinct plan calls.
        n_plans_recorded: How many of them the ledger holds.
        n_answers: Distinct answer calls when no answer is blank.
        n_answers_most: The same when every retry is used.
        n_asked: Plan and answer calls of all runs when no answer is blank.
        n_recorded: Replies in the ledger, of whatever runs.
        prompt_tokens: Of the distinct answer calls, when no answer is blank: their number times the budget.
    """

    n_plans: int
    n_plans_recorded: int
    n_answers: int
    n_answers_most: int
    n_asked: int
    n_recorded: int
    prompt_tokens: int

    @property
    def share_distinct(self) -> float:
        """Share of the calls asked that no other run asks too."""
        return (self.n_plans + self.n_answers) / self.n_asked if self.n_asked else 1.0


def estimate(plan: Plan) -> Estimate:
    """Count a sweep's model calls without making one.

    Plans are counted by their keys. What a run shows the answering model follows from its plans, so answers are counted
    by what decides their prompts: runs that agree in it ask the same.

    Raises:
        DataError: Questions or ledger cannot be read.
    """
    plans: dict[str, set[str]] = {}
    answers: dict[str, tuple[int, int, int]] = {}
    n_asked = 0
    for config in plan.runs.values():
        questions = questions_of(config)
        members, retries = config.ensemble.members, config.generation.max_retries
        keys = _plan_keys(config, questions)
        plans.setdefault(config.ledger.path, set()).update(keys)
        n_asked += len(keys) + len(questions) * members
        for name in dict.fromkeys(config.deployment_of(member) for member in range(members)):
            n_members = sum(config.deployment_of(member) == name for member in range(members))
            shown = _what_is_shown(config, name)
            budget = config.retrieval.max_context_tokens or config.deployments[name].window_tokens
            least, most, tokens = answers.get(shown, (0, 0, 0))
            n = len(questions) * n_members
            answers[shown] = (max(least, n), max(most, n * (retries + 1)), max(tokens, n * budget))
    recorded = {path: set(_recorded(path)) for path in plans}
    return Estimate(
        n_plans=sum(map(len, plans.values())),
        n_plans_recorded=sum(len(keys & recorded[path]) for path, keys in plans.items()),
        n_answers=sum(least for least, _, _ in answers.values()),
        n_answers_most=sum(most for _, most, _ in answers.values()),
        n_asked=n_asked,
        n_recorded=sum(map(len, recorded.values())),
        prompt_tokens=sum(tokens for _, _, tokens in answers.values()),
    )


def _plan_keys(config: Config, questions: Sequence[Question]) -> list[str]:
    """Keys of a run's plan calls, one for each question and planning member."""
    n = config.retrieval.queries
    if n == 1:
        return []
    prompts = Prompts(config.generation.prompts)
    model = models_of(config, dict.fromkeys(config.deployments, ""), 0)["plan"]
    planning = range(config.ensemble.members if config.ensemble.scope == "question" else 1)
    keys = []
    for question in questions:
        prompt = prompts.plan(question, n)
        for member in planning:
            seed = seed_for(config.seed, question.question_id, member, 0, "plan")
            keys.append(request_key(chat_request(model, prompt, seed, plan_schema(n))))
    return keys


def _what_is_shown(config: Config, name: str) -> str:
    """Name all that decides what a member of a deployment is asked, but the question and the attempt."""
    exclude = {"max_retries", "model", "planner_model", "prompts"}
    return digest(
        {
            "index": config.index.path,
            "questions": config.questions.model_dump(mode="json"),
            "retrieval": config.retrieval.model_dump(mode="json"),
            "generation": config.generation.model_dump(mode="json", exclude=exclude),
            "prompts": config.generation.prompts,
            "model": _model(config.deployments[name]),
            "planner": _model(config.deployments[config.planner]),
            "scope": config.ensemble.scope,
            "seed": config.seed,
            "ledger": config.ledger.path,
        }
    )


def _recorded(path: str) -> list[str]:
    return list(SegmentStore(path).load(lambda _: True).entries)


def describe_plan(plan: Plan) -> str:
    """Lay out what a sweep will do, for ``--dry-run``.

    Raises:
        DataError: Questions or ledger cannot be read.
    """
    lines = [_described(table, plan.loaded.sweep.seeds) for table in plan.tables]
    cells = [cell for table in plan.tables for cell in table.cells]
    n_finished, found = len(plan.finished), estimate(plan)
    n_there = sum(map(is_there, plan.indexes))
    lines += [
        "",
        f"cells     {len(cells)}, {sum(bool(cell.reason) for cell in cells)} skipped; "
        f"{len(plan.runs)} distinct runs, {n_finished} finished",
        f"indexes   {len(plan.indexes)}: {n_there} there, {len(plan.indexes) - n_there} to build",
        f"plans     {found.n_plans:,} distinct calls, {found.n_plans_recorded:,} in the ledger",
        f"answers   {found.n_answers:,} distinct calls, up to {found.n_answers_most:,} with every retry",
        f"asked     {found.n_asked:,} calls before retries, {found.share_distinct:.0%} of them distinct",
        f"ledger    {found.n_recorded:,} replies; which answers are among them shows when their plans are there",
        f"tokens    at most {found.prompt_tokens:,} of context in the distinct answers before retries",
    ]
    reasons: dict[str, list[str]] = {}
    for table in plan.tables:
        for cell in table.cells:
            if cell.reason:
                reasons.setdefault(cell.reason, []).append(f"{table.table.name} ({', '.join(cell.at.values())})")
    lines += ["", *(f"skipped   {', '.join(where)}: {reason}" for reason, where in reasons.items())] if reasons else []
    return "\n".join(lines)


def _described(planned: PlannedTable, seeds: Sequence[int]) -> str:
    table = planned.table
    axes = " × ".join(f"{name} ({', '.join(labels)})" for name, labels in table.labels().items())
    n_skipped = sum(bool(cell.reason) for cell in planned.cells)
    skipped = f", {n_skipped} skipped" if n_skipped else ""
    repeats = f"{len(seeds)} seeds" if table.pool is None else f"{table.subsamples} subsamples, no new calls"
    return f"{table.name:<20}{len(planned.cells):>5} cells, {repeats}{skipped}: {axes}"


def is_there(path: str) -> bool:
    """Tell whether an index is whole; its path says what it is made of."""
    try:
        Index.open(path)
    except DataError:
        return False
    return True
