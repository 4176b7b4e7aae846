"""The jobs that bundle finished runs and replay bundles.

Both make each run again in this process, from recorded replies alone: a call without one is never made. What an encoder
or a tokenizer said is recorded with the bundle, so that a replay needs neither.
"""

# Over 400 lines: what a bundle takes in and what its replay makes of it must not part.

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
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
from kohaku_ray.config.plain import leaves, unset_variables, value_at
from kohaku_ray.ensemble.settings import EnsembleConfig
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.index.store import MANIFEST, Index, all_files, image_files
from kohaku_ray.models.vllm import join_adapter
from kohaku_ray.pages.sweep_tables import compute_sweep_stats, write_csv, write_markdown
from kohaku_ray.records import digest
from kohaku_ray.run.bundle import (
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
from kohaku_ray.run.directory import RunDirectory, facts_of, is_whole
from kohaku_ray.run.identity import is_finished
from kohaku_ray.run.indexes import open_index
from kohaku_ray.run.outcomes import plain
from kohaku_ray.run.scoring import ScoredRun, score_run
from kohaku_ray.run.segments import Entry, SegmentStore
from kohaku_ray.run.sources import read_source, resolve
from kohaku_ray.run.summary import AnswerSummary
from kohaku_ray.run.tables import SPENT
from kohaku_ray.settings import Settings
from kohaku_ray.storage import Directory, checksum, is_directory, join_path, read_file
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.load import LoadedSweep, SweepConfig, TableConfig, load_sweep
from kohaku_ray.sweep.plan import PlannedCell, PlannedTable, SweepPlan, plan_sweep

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
class Source:
    """What is bundled: directories of runs, by the name that each gets in the bundle, and the sweep they are of."""

    runs: Mapping[str, str]
    sweep: SweepFacts | None = None


def find_source(source: str, base: Sequence[str] = (), overrides: Sequence[str] = ()) -> Source:
    """Find a run by its directory, or a sweep's finished runs (see ``load_sweep``).

    Raises:
        ConfigError: There is neither, or the sweep does not fit.
        DataError: None of the sweep's runs is finished.
    """
    if is_directory(source):
        return Source({os.path.basename(os.path.abspath(source)) or "run": source})
    plan = plan_sweep(load_sweep(source, base, overrides))
    if not plan.finished:
        raise DataError(f"{source}: none of its {len(plan.runs)} runs is finished: run `kohaku-ray sweep` first")
    studies = [one for one in plan.tables if one.table.pool is not None]
    facts = SweepFacts(
        sweep=plan.loaded.sweep,
        cells=tuple(one.cells for one in plan.tables),
        studied={cell_id: config.ensemble for one in studies for cell_id, config in one.configs.items()},
    )
    return Source({run_id: config.run for run_id, config in plan.finished.items()}, facts)


def make_bundle(source: Source, path: str, *, with_index: bool = False) -> Bundled:
    """Bundle finished runs, each made again first: what cannot be replayed is not bundled.

    ``with_index`` puts the index in, and the documents' text in the tables; otherwise that text is left out, but for
    what replies quote, and a replay needs the index.

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
        config = configs[name] = _config_of(run)
        index = open_index(config)
        identity = IndexIdentity.of(index)
        indexes[identity.key] = identity
        replies, models, scored = _checked(run, config, index, identity.key, recorded)
        entries |= replies.entries
        inputs, places = _inputs_of(run, config, with_index)
        inputs |= outputs_in(RunDirectory(run), config, with_index)
        files |= {f"runs/{name}/{one}": content for one, content in inputs.items()}
        if with_index:
            names = {one["name"] for one in all_files(index.manifest).values()}
            names |= {MANIFEST, *image_files(index.directory, index.manifest)}
            files |= {f"indexes/{identity.key}/{one}": index.directory.read(one) for one in names}
        bundled[name] = BundledRun(
            index=identity.key,
            models=models,
            **{kind: place and f"runs/{name}/{place}" for kind, place in places.items()},
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
        files |= {f"sweep/{name}": text.encode() for name, text in _tables(source.sweep, configs).items()}
    size = write_bundle(path, Manifest(with_text=with_index, indexes=indexes, runs=bundled, sweep=sweep), files)
    return Bundled(path, tuple(bundled), len(entries), size)


def _inputs_of(run: str, config: Config, with_text: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what a run was made from but for the index: files, and the places of those that a replay reads by kind."""
    questions, data = questions_file(config, with_text)
    inputs = {questions: data, **{one: read_file(join_path(run, one)) for one in _FACTS}}
    metadata = prompts = None
    if config.documents.metadata is not None:
        metadata = f"metadata{os.path.splitext(resolve(config.documents.metadata))[1]}"
        inputs[metadata] = read_source(config.documents.metadata)[1]
    if config.prompts is not None:
        prompts = "prompts"
        inputs |= {f"prompts/{one.name}": one.read_bytes() for one in Path(config.prompts).glob("*.j2")}
    return inputs, {"questions": questions, "metadata": metadata, "prompts": prompts}


def _tables(facts: SweepFacts, runs: Mapping[str, Config]) -> dict[str, str]:
    """Write the tables of a sweep from its finished runs: CSV and Markdown, by name."""
    pairs = zip(facts.sweep.tables, facts.cells, strict=True)
    tables = tuple(
        PlannedTable(*pair, configs) for pair in pairs if (configs := _studied(facts, *pair, runs)) is not None
    )
    loaded = LoadedSweep(facts.sweep, "the bundle", lambda _: {})
    plan = SweepPlan(loaded, tables, runs, {})
    found = compute_sweep_stats(collect(plan, {}, metric=plan.metric))
    writers = (("csv", write_csv), ("md", write_markdown))
    return {f"{one.table.name}.{end}": write(one) for one in found for end, write in writers}


def _studied(
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
    return {one: runs[run].model_copy(update={"ensemble": facts.studied[one]}) for one, run in of_cell.items()}


def _config_of(run: str) -> Config:
    if not is_directory(run) or not is_finished(run):
        raise DataError(
            f"{run} is no finished run: name the directory of one, or finish it with `kohaku-ray answer`; of a sweep, "
            "name its YAML file"
        )
    for error in RunDirectory(run).damage():
        raise error
    if unset := unset_variables(read_file(join_path(run, "config.yaml")).decode()):
        raise ConfigError(f"{run} was made with {' and '.join(unset)} in the environment: set what it was made with")
    return config_of(run)


def _checked(
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
        found = compare_outputs(outputs_in(directory, config, True), outputs_in(RunDirectory(home), config, True))
    if found.differences:
        raise DataError(
            f"{run} is not the same when it is made again from its ledger by this version: "
            f"{'; '.join(found.differences)}; `kohaku-ray answer --again` makes it anew"
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


def replay_bundle(path: str, index: str | None = None, home: str | None = None, *, trust_code: bool = False) -> Replay:
    """Make the runs of a bundle again from its replies, and compare every table; no model, key or network is used.

    ``index`` is the directory of the index, if the bundle has none; default: that of the run's configuration. The runs
    stay in ``home``, an empty directory, under ``again``; default: they are not kept. ``trust_code``: modules that a
    configuration of the bundle names may be imported.

    Raises:
        ConfigError: It is no whole bundle of this version (see ``unpack``), or its code is not trusted.
        DataError: There is no index, or another one.
    """
    with nullcontext(home) if home else tempfile.TemporaryDirectory() as home:
        manifest = unpack(path, home)
        if not trust_code and (code := [one for name in manifest.runs for one in _code_of(home, name)]):
            raise ConfigError(
                f"{path} was made with code that is not of an installed system: {', '.join(dict.fromkeys(code))}; "
                "nothing was imported: give --trust-code if you trust whoever made the bundle"
            )
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
            again, configs[name] = _replayed(path, home, manifest, name, closed, recorded, index)
            runs.append(again)
        if manifest.sweep is None:
            return Replay(tuple(runs))
        tables = _tables(_sweep_of(path, manifest.sweep), configs)
        was = {file.name: file.read_bytes() for file in Path(home, "sweep").glob("*")}
        found = compare_outputs(was, {name: text.encode() for name, text in tables.items()})
        return Replay(tuple(runs), tables, tuple(found.differences))


def _code_of(home: str, name: str) -> list[str]:
    """List the code that a run's configuration names by module or lets a model bring: key and value."""
    found = []
    for place, value in leaves(parse_file(Path(home, "runs", name, "config.yaml"))):
        names_system = place == ("system",) or (place[:1], place[-1:]) == (("deployments",), ("system",))
        if names_system or place[:2] == ("questions", "metrics"):
            is_code = ":" in str(expand(value))
        else:
            name = place[-1].replace("-", "_") if place else ""
            is_package = name == "spacy" and "." in str(expand(value))  # whose parent would be imported to look for it
            is_code = is_package or (name == "trust_remote_code" and value not in (False, None))
        found += [f"{'.'.join(place)} {value}"[:200]] if is_code else []
    return found


def _sweep_of(path: str, values: dict[str, Any]) -> SweepFacts:
    try:
        return SweepFacts.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: its sweep cannot be read ({error.errors()[0]['msg']}): make it again") from None


def _replayed(
    path: str,
    home: str,
    manifest: Manifest,
    name: str,
    replies: RecordedReplies,
    recorded: RecordedEncoders,
    given: str | None,
) -> tuple[ReplayedRun, Config]:
    run, there, where = manifest.runs[name], f"{home}/runs/{name}", f"config.yaml of {name} in {path}"
    values, own = parse_file(Path(there, "config.yaml")), f"{home}/indexes/{run.index}"
    at = own if os.path.isdir(own) else given or str(expand(value_at(values, ("index", "path"), "")))
    config = build_config(_closed(values if isinstance(values, dict) else {}, run, home, at), where)
    if len(run.models) != config.ensemble.members:
        raise ConfigError(f"{where} has {config.ensemble.members} members, the bundle models of {len(run.models)}")
    opened = _open_same(at, manifest.indexes[run.index], path)
    again = RunDirectory(config.run)
    counts = make_again(config, run.models, replies, recorded, open_recorded(config, opened, recorded, run.index))
    now = outputs_in(again, config, manifest.with_text)
    was = {one: read_file(f"{there}/{one}") for one in now if os.path.isfile(f"{there}/{one}")}
    try:
        found = compare_outputs(was, now)
        usage = pq.read_table(pa.BufferReader(was["usage.parquet"]), columns=["source", *SPENT])
        used = {one: sum(usage[one].to_pylist()) for one in _USED}
        found.differences += _other_facts(json.loads(read_file(f"{there}/run.json")), config, counts, usage.to_pylist())
    except (pa.ArrowException, LookupError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: a table of {name} cannot be read ({error}): make the bundle again") from None
    scored = _scored(again.path, config.questions.path, config)
    if not same(list(run.scores), list(plain(_records(scored)))):
        found.differences.append(f"scores: {_said(run.scores)} in the bundle, {_said(_records(scored))} here")
    replayed = ReplayedRun(
        name=name,
        differences=tuple(found.differences),
        rounded=dict(found.rounded),
        model=", ".join(dict.fromkeys(_named(roles[config.declaration.lead].identity) for roles in run.models)),
        scores=_with_intervals(scored),
        n_questions=len(again.read_table("votes", ["question_id"])),
        n_members=config.ensemble.members,
        used=used,
    )
    for one in _FACTS:  # a sweep's tables are made of finished runs
        shutil.copy(f"{there}/{one}", again.file(one))
    return replayed, config


def _other_facts(
    facts: dict[str, Any], config: Config, counts: AnswerSummary, usage: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Compare the facts of a run that follow from its configuration and tables: a line per other one."""
    made = [row for row in usage if row["source"] == "made"]
    sums = {name: [row[name] for row in made if row[name] is not None] for name in SPENT}
    spent = {
        name: sum(some) if some or not made else None for name, some in sums.items() if len(some) in (0, len(made))
    }
    n_calls = {source: sum(row["source"] == source for row in usage) for source in counts.n_calls}
    follow = {name: getattr(counts, name) for name in _COUNTED} | {"status": "finished", "n_calls": n_calls}
    follow |= {name: value for name, value in facts_of(config).items() if name in _CONFIGURED}
    follow |= {f"spent.{name}": value for name, value in spent.items()}
    there = facts | {f"spent.{name}": value for name, value in dict(facts.get("spent", {})).items()}
    wrong = [
        f"facts: run.json says {name} {there[name]}, and {value} follows"
        for name, value in plain(follow).items()
        if name in there and not same(there[name], value)
    ]
    return wrong if wrong or is_whole(facts) else ["facts: run.json is not what the run wrote, its checksum is another"]


_COUNTED = (
    *("n_questions", "n_answers", "n_member_errors", "n_questions_in_error", "n_unanswered"),
    *("errors", "flags", "adapted", "shortened", "stopped"),
)
_CONFIGURED = ("system", "metrics", "lead", "n_answering", "limit", "outputs", "split_by")


def _named(identity: str) -> str:
    """The name in a model's identity; of a digest twelve digits."""
    return re.sub(r"([0-9a-f]{12})[0-9a-f]{20,}", r"\1…", identity.split()[0])


def _closed(values: Mapping[str, Any], run: BundledRun, home: str, index: str) -> dict[str, Any]:
    """Point a configuration to the files of a bundle; its models answer nothing, so their settings do not matter."""
    counted = {model.deployment: (model.tokenizer, model.revision) for roles in run.models for model in roles.values()}
    closed: dict[str, Any] = {
        name: {"kind": "openai", "base_url": "http://127.0.0.1:9", "model": "closed", "api_key_env": None}
        | {"vision": True, "tokenizer": tokenizer, "revision": revision}
        for name, (tokenizer, revision) in counted.items()
    }
    there = values.get("deployments") or {}
    with_adapters = [
        join_adapter(name, one) for name, own in there.items() for one in (own or {}).get("adapters") or {}
    ]
    given = {name: {"kind": "extractive"} for name in (*there, *with_adapters)}
    own: dict[str, Any] = {
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
    return {**merge(values, own), **replaced, "deployments": {**given, **closed}}


def _open_same(path: str, wanted: IndexIdentity, bundle: str) -> Index:
    try:
        index = Index.open(path)
    except DataError as error:
        raise DataError(f"{bundle} holds no index, and {error}; or name its directory by --index DIR") from None
    there = IndexIdentity.of(index)
    if there != wanted:
        what = "with other settings" if there.documents == wanted.documents else "from other documents"
        raise DataError(
            f"the index at {path} is not that of {bundle}: it was made {what} ({there.key} here, {wanted.key} there): "
            "build it from the same documents with the same settings, or name another by --index DIR"
        )
    return index


def _scored(run: str, truth: str, config: Config) -> ScoredRun | None:
    system = config.declaration
    return score_run(run, truth, config.metrics, config.questions.limit, system.columns.split_by)[0]


def _records(scored: ScoredRun | None) -> tuple[dict[str, Any], ...]:
    records = [] if scored is None else scored.report.records
    return tuple({key: plain(value) for key, value in record.items() if key != "file"} for record in records)


def _said(records: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one.get('metric')} {one.get('score'):.4f}" for one in records) or "none"


def _with_intervals(scored: ScoredRun | None) -> tuple[dict[str, Any], ...]:
    if scored is None:
        return ()
    given = read_submission(scored.report.files[0].file)
    ends = {one.name: score_interval(one, one.score(scored.truth, given)) for one in scored.metrics}
    return tuple({**one, "low": ends[one["metric"]].low, "high": ends[one["metric"]].high} for one in _records(scored))
