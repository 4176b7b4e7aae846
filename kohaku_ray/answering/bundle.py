"""Pack finished runs with their recorded replies into one file, and make the runs again from such a file.

Both make each run again in this process, from recorded replies alone: a call without one is never made. What an encoder
or a tokenizer returned is recorded with the bundle, so that a replay needs neither.
"""

# Over 400 lines: one module, because a replay must undo exactly what a bundle packs.

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from kohaku_ray.answering.replay import (
    Models,
    RecordedEncoders,
    RecordedReplies,
    config_of,
    make_again,
    models_by_member,
    open_recorded,
)
from kohaku_ray.config import Config, build_config
from kohaku_ray.config.load import expand, merge, parse_file
from kohaku_ray.config.plain import unset_variables, value_at
from kohaku_ray.ensemble.settings import EnsembleConfig
from kohaku_ray.errors import CodeRefusedError, ConfigError, DataError
from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.extensions import refuse_named_code
from kohaku_ray.index.identity import check_faiss
from kohaku_ray.index.store import MANIFEST, Index, all_files, image_files
from kohaku_ray.models.vllm import join_adapter
from kohaku_ray.records import digest, pluralize
from kohaku_ray.run.collection.indexes import open_index
from kohaku_ray.run.collection.sources import read_source, resolve
from kohaku_ray.run.exchange.bundle import (
    BundledRun,
    IndexIdentity,
    Manifest,
    compare_outputs,
    outputs_in,
    questions_file,
    same,
    unpack,
    write_bundle,
)
from kohaku_ray.run.record.directory import RunDirectory, facts_of, is_whole
from kohaku_ray.run.record.identity import is_finished
from kohaku_ray.run.record.outcomes import plain
from kohaku_ray.run.record.scoring import ScoredRun, score_run
from kohaku_ray.run.record.summary import AnswerSummary
from kohaku_ray.run.segments import Entry, SegmentStore
from kohaku_ray.run.tables import SPENT
from kohaku_ray.settings import Settings
from kohaku_ray.storage import Directory, checksum, is_directory, is_uri, join_path, read_file
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.compare import SweepRecord
from kohaku_ray.sweep.load import LoadedSweep, SweepConfig, TableConfig, load_sweep
from kohaku_ray.sweep.plan import PlannedCell, PlannedTable, SweepPlan, plan_sweep
from kohaku_ray.sweep.race import SweepRace

SweepWriter = Callable[[SweepRecord], Mapping[str, str]]
"""Writes the tables of a sweep: their texts by file name. ``pages`` has the one that bundles are made with."""

RECORDED = "recorded.parquet"
_FACTS = ("config.yaml", "run.json")
_USED = ("prompt_tokens", "cached_tokens", "completion_tokens", "service_s")


@dataclass(frozen=True, slots=True)
class Bundled:
    """What was bundled: names of the runs, replies, and bytes of the zip."""

    bundle: str  # path of the zip
    runs: tuple[str, ...]
    n_replies: int
    n_bytes: int


class SweepFacts(Settings):
    """A sweep: its configuration, and the cells of each table."""

    sweep: SweepConfig
    cells: tuple[tuple[PlannedCell, ...], ...]
    studied: dict[str, EnsembleConfig] = Field(default_factory=dict)
    """Of recorded members: what each cell votes by, by the cell's id."""


@dataclass(frozen=True, slots=True)
class BundleSource:
    """What is bundled: directories of runs, by the name that each gets in the bundle, and the sweep they are of."""

    runs: Mapping[str, str]
    sweep: SweepFacts | None = None


def find_source(source: str, base: Sequence[str] = (), overrides: Sequence[str] = ()) -> BundleSource:
    """Find a run by its directory, or a sweep's finished runs (see ``load_sweep``).

    Raises:
        ConfigError: There is neither, or the sweep does not fit.
        DataError: None of the sweep's runs is finished.
    """
    if is_directory(source):
        return BundleSource({os.path.basename(os.path.abspath(source)) or "run": source})
    plan = plan_sweep(load_sweep(source, base, overrides))
    race = None if plan.loaded.sweep.race is None else SweepRace(plan)
    if race is not None:
        race.advance((), lambda: None)  # as far as its answers are there
        plan = race.plan  # with the cells that were added
    if not plan.finished:
        raise DataError(
            f"{source} has {pluralize(len(plan.runs), 'run')} and none is finished: run `kohaku-ray sweep` first"
        )
    studies = [planned for planned in plan.tables if planned.table.pool is not None]
    facts = SweepFacts(
        sweep=plan.loaded.sweep,
        cells=tuple(
            tuple(
                cell
                if race is None or plan.finished.keys() & {*cell.runs.values()}
                else replace(cell, reason=cell.reason or race.dropped(cell.cell_id, planned.table.name))
                for cell in planned.cells
            )
            for planned in plan.tables
        ),
        studied={cell_id: config.ensemble for study in studies for cell_id, config in study.configs.items()},
    )
    return BundleSource({run_id: config.run for run_id, config in plan.finished.items()}, facts)


def make_bundle(source: BundleSource, path: str, write_sweep: SweepWriter, *, with_index: bool = False) -> Bundled:
    """Bundle finished runs, each made again first: what cannot be replayed is not bundled.

    ``write_sweep`` writes the tables of a sweep. ``with_index`` puts the index in, and the documents' text in the
    tables; otherwise that text is left out, but for what replies quote, and a replay needs the index.

    Raises:
        ConfigError: A run ranks with a cross-encoder, or its configuration cannot be used, for want of a variable too.
        DataError: A run is not finished or damaged, its ledger lacks replies, or it is not the same when made again.
    """
    recorded, entries = RecordedEncoders(), dict[str, Entry]()
    files: dict[str, Any] = {}
    bundled: dict[str, BundledRun] = {}
    indexes: dict[str, IndexIdentity] = {}
    configs: dict[str, Config] = {}
    for name, run in source.runs.items():
        if not is_directory(run) or not is_finished(run):
            raise DataError(
                f"{run} is no finished run: name the directory of one, or finish it with `kohaku-ray answer`; of a "
                "sweep, name its YAML file"
            )
        for error in RunDirectory(run).damage():
            raise error
        if unset := unset_variables(read_file(join_path(run, "config.yaml")).decode()):
            raise ConfigError(
                f"{run} was made with {' and '.join(unset)} in the environment: set what it was made with"
            )
        config = configs[name] = config_of(run)
        index = open_index(config)
        identity = IndexIdentity.of(index)
        indexes[identity.key] = identity
        replies, models, scored = _check_replays(run, config, index, identity.key, recorded)
        entries |= replies.entries
        contents, file_of = _read_inputs(run, config, with_index)
        contents |= outputs_in(RunDirectory(run), config, with_index)
        files |= {f"runs/{name}/{file}": content for file, content in contents.items()}
        if with_index:
            index_files = {entry["name"] for entry in all_files(index.manifest).values()}
            index_files |= {MANIFEST, *image_files(index.directory, index.manifest)}
            files |= {f"indexes/{identity.key}/{file}": index.directory.read(file) for file in index_files}
        bundled[name] = BundledRun(
            index=identity.key,
            models=models,
            **{kind: file and f"runs/{name}/{file}" for kind, file in file_of.items()},
            refused=tuple(sorted(replies.refused)),
            scores=_records(scored),
        )
    files[RECORDED] = recorded.as_parquet()
    with tempfile.TemporaryDirectory() as home:
        segment = SegmentStore(home).write(sorted(entries.items()))
        data = Directory(home).read(segment).to_pybytes()
    files[f"ledger/segments/{0:020d}-{checksum(data)}.arrow"] = data
    sweep = None
    if source.sweep is not None:
        sweep = source.sweep.model_dump(mode="json")
        files |= {
            f"sweep/{name}": text.encode() for name, text in _tables_of(source.sweep, configs, write_sweep).items()
        }
    size = write_bundle(path, Manifest(with_text=with_index, indexes=indexes, runs=bundled, sweep=sweep), files)
    return Bundled(path, tuple(bundled), len(entries), size)


def _read_inputs(run: str, config: Config, with_text: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what a run was made from but for the index: contents by file, and the files that a replay reads by kind."""
    questions, data = questions_file(config, with_text)
    inputs = {questions: data, **{file: read_file(join_path(run, file)) for file in _FACTS}}
    metadata = prompts = None
    if config.documents.metadata is not None:
        metadata = f"metadata{os.path.splitext(resolve(config.documents.metadata))[1]}"
        inputs[metadata] = read_source(config.documents.metadata)[1]
    if config.prompts is not None:
        prompts = "prompts"
        inputs |= {f"prompts/{file.name}": file.read_bytes() for file in Path(config.prompts).glob("*.j2")}
    return inputs, {"questions": questions, "metadata": metadata, "prompts": prompts}


def _tables_of(facts: SweepFacts, runs: Mapping[str, Config], write: SweepWriter) -> Mapping[str, str]:
    """Write the tables of a sweep from its finished runs, by file name."""
    pairs = zip(facts.sweep.tables, facts.cells, strict=True)
    tables = tuple(
        PlannedTable(*pair, configs) for pair in pairs if (configs := _study_configs(facts, *pair, runs)) is not None
    )
    loaded = LoadedSweep(facts.sweep, "the bundle", lambda _: {})
    plan = SweepPlan(loaded, tables, runs, {})
    return write(collect(plan, {}, metric=plan.metric))


def _study_configs(
    facts: SweepFacts, table: TableConfig, cells: Sequence[PlannedCell], runs: Mapping[str, Config]
) -> dict[str, Config] | None:
    """Return the configurations of a study's cells, of another table none; None: its members are not in the bundle."""
    if table.pool is None:
        return {}
    of_cell = {cell.cell_id: run for cell in cells for run in cell.runs.values()}
    if (
        table.pool.members is None
        or not of_cell.keys() <= facts.studied.keys()
        or not runs.keys() >= {*of_cell.values()}
    ):
        return None
    return {cell: runs[run].model_copy(update={"ensemble": facts.studied[cell]}) for cell, run in of_cell.items()}


def _check_replays(
    run: str, config: Config, index: Index, key: str, recorded: RecordedEncoders
) -> tuple[RecordedReplies, Models, ScoredRun | None]:
    """Make a run again from its ledger, and check that it is the same."""
    directory = RunDirectory(run)
    keys = set(directory.read_table("usage", ["key"])["key"].to_pylist())
    replies = RecordedReplies(SegmentStore(config.ledger.path).load(keys.__contains__).entries, learns=True)
    if missing := keys - replies.entries.keys():
        raise DataError(f"the ledger {config.ledger.path} lacks {len(missing)} of {len(keys)} replies of {run}")
    models = models_by_member(config)
    with tempfile.TemporaryDirectory() as home:
        again = config.model_copy(update={"run": home})
        make_again(again, models, replies, recorded, open_recorded(again, index, recorded, key))
        comparison = compare_outputs(outputs_in(directory, config, True), outputs_in(RunDirectory(home), config, True))
    if comparison.differences:
        raise DataError(
            f"{run} is not the same when it is made again from its ledger by this version: "
            f"{'; '.join(comparison.differences)}; `kohaku-ray answer --again` makes it anew"
        )
    return replies, models, _scored(run, resolve(config.questions.path), config)


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A run that was made again from a bundle."""

    name: str
    differences: tuple[str, ...]  # what is not as in the bundle, a line each; empty: every table is the same
    rounded: Mapping[str, int]  # rows that another processor's rounding alone changed, by column (trace.scores)
    model: str  # names of the models that answer
    scores: tuple[dict[str, Any], ...]  # a record per metric; low and high are the ends of the 95 % interval
    n_questions: int
    n_members: int
    used: Mapping[str, float]  # sums of tokens and of the models' seconds, when the calls were made


@dataclass(frozen=True, slots=True)
class Replay:
    """A bundle's runs, made again; of a sweep, its tables as text, and which are not as in the bundle, a line each."""

    runs: tuple[ReplayedRun, ...]
    tables: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every table is the same."""
        return not self.differences and not any(run.differences for run in self.runs)


def replay_bundle(
    path: str, write_sweep: SweepWriter, index: str | None = None, home: str | None = None, *, trust_code: bool = False
) -> Replay:
    """Make the runs of a bundle again from its replies, and compare every table; no model, key or network is used.

    ``write_sweep`` writes the tables of a sweep. ``index`` is the directory of the index, if the bundle has none;
    default: that of the run's configuration. The runs stay in ``home``, an empty directory, under ``again``; default:
    they are not kept. ``trust_code``: modules that a configuration of the bundle names may be imported; else
    ``extensions.check_code_trusted`` refuses them.

    Raises:
        ConfigError: It is no whole bundle of this version (see ``unpack``), its code is not trusted, or no FAISS is
            installed: a search that fails would be one more difference.
        DataError: There is no index, or another one.
    """
    check_faiss()
    trust = nullcontext() if trust_code else refuse_named_code("give --trust-code if you trust whoever made the bundle")
    with trust, nullcontext(home) if home else tempfile.TemporaryDirectory() as home:
        manifest = unpack(path, home)
        try:
            replies = SegmentStore(f"{home}/ledger").load(lambda _: True)
            recorded = RecordedEncoders.read(f"{home}/{RECORDED}")
        except (OSError, pa.ArrowException, LookupError) as error:
            raise ConfigError(f"{path}: its ledger cannot be read ({error}): make it again") from None
        if replies.damaged:
            raise ConfigError(f"{path}: {replies.damaged[0]} is not what its name says: make the bundle again")
        runs, configs = [], dict[str, Config]()
        for name, run in manifest.runs.items():
            closed = RecordedReplies(replies.entries, {*run.refused})
            try:
                again, configs[name] = _replay_run(path, home, manifest, name, closed, recorded, index)
            except CodeRefusedError as error:
                raise ConfigError(f"{path}: {error}") from None
            runs.append(again)
        if manifest.sweep is None:
            return Replay(tuple(runs))
        try:
            sweep = SweepFacts.model_validate(manifest.sweep)
        except ValidationError as error:
            raise ConfigError(f"{path}: its sweep cannot be read ({error.errors()[0]['msg']}): make it again") from None
        tables = _tables_of(sweep, configs, write_sweep)
        before = {file.name: file.read_bytes() for file in Path(home, "sweep").glob("*")}
        comparison = compare_outputs(before, {name: text.encode() for name, text in tables.items()})
        return Replay(tuple(runs), tables, tuple(comparison.differences))


def _replay_run(
    path: str,
    home: str,
    manifest: Manifest,
    name: str,
    replies: RecordedReplies,
    recorded: RecordedEncoders,
    given: str | None,
) -> tuple[ReplayedRun, Config]:
    run, directory, where = manifest.runs[name], f"{home}/runs/{name}", f"config.yaml of {name} in {path}"
    values, index_path = parse_file(Path(directory, "config.yaml")), f"{home}/indexes/{run.index}"
    if not os.path.isdir(index_path):
        index_path = given or _find_local_index(values, path)
    config = build_config(_point_to_bundle(values if isinstance(values, dict) else {}, run, home, index_path), where)
    if len(run.models) != config.ensemble.members:
        raise ConfigError(f"{where} has {config.ensemble.members} members, the bundle models of {len(run.models)}")
    index = open_recorded(config, _open_same(index_path, manifest.indexes[run.index], path), recorded, run.index)
    again = RunDirectory(config.run)
    counts = make_again(config, run.models, replies, recorded, index)
    now = outputs_in(again, config, manifest.with_text)
    before = {file: read_file(f"{directory}/{file}") for file in now if os.path.isfile(f"{directory}/{file}")}
    try:
        comparison = compare_outputs(before, now)
        usage = pq.read_table(pa.BufferReader(before["usage.parquet"]), columns=["source", *SPENT])
        used = {column: sum(usage[column].to_pylist()) for column in _USED}
        facts = json.loads(read_file(f"{directory}/run.json"))
        comparison.differences += _compare_facts(facts, config, counts, usage.to_pylist())
    except (pa.ArrowException, LookupError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: a table of {name} cannot be read ({error}): make the bundle again") from None
    scored = _scored(again.path, config.questions.path, config)
    records = _records(scored)
    pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]] = zip_longest(run.scores, records, fillvalue={})
    for old, new in pairs:
        metric = {**old, **new}.get("metric")
        for key in dict.fromkeys([*old, *new]):
            if not same(old.get(key), new.get(key)):
                comparison.differences.append(
                    f"scores: {metric} {key} {old.get(key)} in the bundle, {new.get(key)} here"
                )
    with_intervals: tuple[dict[str, Any], ...] = ()
    if scored is not None:
        submission = read_submission(scored.report.files[0].file)
        intervals = {m.name: score_interval(m, m.score(scored.truth, submission)) for m in scored.metrics}
        ends = {name: {"low": interval.low, "high": interval.high} for name, interval in intervals.items()}
        with_intervals = tuple({**record, **ends[record["metric"]]} for record in records)
    identities = [roles[config.declaration.lead].identity.split()[0] for roles in run.models]
    replayed = ReplayedRun(
        name=name,
        differences=tuple(comparison.differences),
        rounded=dict(comparison.rounded),
        model=", ".join(dict.fromkeys(re.sub(r"([0-9a-f]{12})[0-9a-f]{20,}", r"\1…", name) for name in identities)),
        scores=with_intervals,
        n_questions=len(again.read_table("votes", ["question_id"])),
        n_members=config.ensemble.members,
        used=used,
    )
    for file in _FACTS:  # a sweep's tables are made of finished runs
        shutil.copy(f"{directory}/{file}", again.file(file))
    return replayed, config


def _compare_facts(
    facts: dict[str, Any], config: Config, counts: AnswerSummary, usage: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Compare the facts of a run that follow from its configuration and tables: a line per difference."""
    made = [row for row in usage if row["source"] == "made"]
    sums = {name: [row[name] for row in made if row[name] is not None] for name in SPENT}
    spent = {
        name: sum(known) if known or not made else None for name, known in sums.items() if len(known) in (0, len(made))
    }
    n_calls = {source: sum(row["source"] == source for row in usage) for source in counts.n_calls}
    follow = {name: getattr(counts, name) for name in _COUNTED} | {"status": "finished", "n_calls": n_calls}
    follow |= {name: value for name, value in facts_of(config).items() if name in _CONFIGURED}
    follow |= {f"spent.{name}": value for name, value in spent.items()}
    written = facts | {f"spent.{name}": value for name, value in dict(facts.get("spent", {})).items()}
    wrong = [
        f"facts: run.json says {name} {written[name]}, and {value} follows"
        for name, value in plain(follow).items()
        if name in written and not same(written[name], value)
    ]
    return wrong if wrong or is_whole(facts) else ["facts: run.json is not what the run wrote, its checksum is another"]


_COUNTED = (
    *("n_questions", "n_answers", "n_member_errors", "n_questions_in_error", "n_unanswered"),
    *("errors", "flags", "adapted", "finish_reasons", "shortened", "stopped"),
)
_CONFIGURED = ("system", "metrics", "lead", "n_answering", "limit", "outputs", "split_by")


def _point_to_bundle(values: Mapping[str, Any], run: BundledRun, home: str, index: str) -> dict[str, Any]:
    """Point a configuration to the files of a bundle; its models answer nothing, so their settings do not matter."""
    counted = {model.deployment: (model.tokenizer, model.revision) for roles in run.models for model in roles.values()}
    closed: dict[str, Any] = {
        name: {"kind": "openai", "base_url": "http://127.0.0.1:9", "model": "closed", "api_key_env": None}
        | {"vision": True, "tokenizer": tokenizer, "revision": revision}
        for name, (tokenizer, revision) in counted.items()
    }
    deployments = values.get("deployments") or {}
    adapters = [
        join_adapter(name, key) for name, value in deployments.items() for key in (value or {}).get("adapters") or {}
    ]
    unused = {name: {"kind": "extractive"} for name in (*deployments, *adapters)}
    moved: dict[str, Any] = {
        "run": f"{home}/again/{digest(run.questions)}",
        "shared": None,
        "documents": {"paths": [], "metadata": run.metadata and f"{home}/{run.metadata}", "images": None},
        "index": {"path": index, "captions": "printed"},
        "questions": {"path": f"{home}/{run.questions}"},
        "prompts": run.prompts and f"{home}/{run.prompts}",
        "tracking": {"to": None},
    }
    # Where it ran does not matter, so that a key of these sections may go without making old bundles void.
    replaced: dict[str, Any] = {"ledger": {"path": f"{home}/ledger"}, "cluster": {}}
    return {**merge(values, moved), **replaced, "deployments": {**unused, **closed}}


def _find_local_index(values: Any, bundle: str) -> str:
    """Find the index that a run searched; no address of a bundle is asked, nor told the environment's variables."""
    written = str(value_at(values, ("index", "path"), ""))
    index_path = str(expand(written))
    if is_uri(index_path):
        raise ConfigError(
            f"{bundle} holds no index and names one at an address, {written[:200]}, that was not asked: give --index "
            "with the address or a directory if you trust it"
        )
    return index_path


def _open_same(path: str, wanted: IndexIdentity, bundle: str) -> Index:
    try:
        index = Index.open(path)
    except DataError as error:
        raise DataError(f"{bundle} holds no index, and {error}; or name its directory by --index DIR") from None
    identity = IndexIdentity.of(index)
    if identity != wanted:
        what = "with other settings" if identity.documents == wanted.documents else "from other documents"
        keys = f"{identity.key} here, {wanted.key} there"
        raise DataError(
            f"the index at {path} is not that of {bundle}: it was made {what} ({keys}): "
            "build it from the same documents with the same settings, or name another by --index DIR"
        )
    return index


def _scored(run: str, truth: str, config: Config) -> ScoredRun | None:
    system = config.declaration
    return score_run(run, truth, config.metrics, config.questions.limit, system.columns.split_by)[0]


def _records(scored: ScoredRun | None) -> tuple[dict[str, Any], ...]:
    records = [] if scored is None else scored.report.records
    return tuple({key: plain(value) for key, value in record.items() if key != "file"} for record in records)
