"""The jobs that bundle finished runs and replay bundles.

Both make each run again in this process, from recorded replies alone: a call without one is never made. What an encoder
or a tokenizer said is recorded with the bundle, so that a replay needs neither.
"""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from kohaku_ray.config import Config, build_config
from kohaku_ray.config.load import expand, merge
from kohaku_ray.engine.actors.index_access import LocalIndex
from kohaku_ray.engine.actors.members import answer_one, each, prepare_one
from kohaku_ray.engine.actors.pool import block_size, waves_of
from kohaku_ray.engine.actors.tools import RunContext
from kohaku_ray.engine.ledger.segments import Entry, SegmentStore
from kohaku_ray.engine.ledger.shard import Asked
from kohaku_ray.errors import ConfigError, ContextOverflowError, DataError, ModelError
from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.store import MANIFEST, Index, all_files, image_files
from kohaku_ray.index.tokens import Counter, prompt_counter, token_counter
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.records import Question, digest
from kohaku_ray.run.block import settle_block, vote_block
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
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.identity import is_finished
from kohaku_ray.run.indexes import make_image_query_encoder, make_query_encoder, open_index
from kohaku_ray.run.models import Model, models_of
from kohaku_ray.run.outcomes import plain
from kohaku_ray.run.outputs import write_run
from kohaku_ray.run.scoring import ScoredRun, score_run
from kohaku_ray.run.sources import questions_of, read_source, resolve
from kohaku_ray.run.tables import Parts, Tables
from kohaku_ray.storage import Directory, below, checksum, is_directory, read_file
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep

RECORDED = "recorded.parquet"
_MOST_NAMED = 5


@dataclass(slots=True)
class _Replies:
    """A ledger that makes no call.

    Attributes:
        entries: Recorded replies.
        refused: Keys of calls that the backend refused for their length, which a ledger does not record.
        learns: Whether a call without a reply is taken for such a one, and noted; otherwise it fails.
    """

    entries: Mapping[str, Entry]
    refused: set[str]
    learns: bool

    async def ask(self, request: ChatRequest, application: str, again: bool = False) -> Asked:
        key = request_key(request)
        if key in self.entries:
            return Asked(self.entries[key], "ledger", key)
        if self.learns:
            self.refused.add(key)
        if key in self.refused:
            raise ContextOverflowError("the prompt was longer than the model takes")
        raise ModelError("this call has no reply in the bundle")


@dataclass(slots=True)
class _Recorded:
    """What encoders and tokenizers said, by the digest of what they were asked.

    Attributes:
        known: Vectors, and counts as vectors of one number.
        is_closed: Whether nothing else is asked; otherwise what is new is asked and kept.
    """

    known: dict[str, F32] = field(default_factory=dict)
    is_closed: bool = False

    @classmethod
    def read(cls, file: str) -> _Recorded:
        rows = pq.read_table(file).to_pylist()
        return cls({row["key"]: np.array(row["values"], np.float32) for row in rows}, is_closed=True)

    def written(self) -> pa.Buffer:
        rows = [{"key": key, "values": self.known[key]} for key in sorted(self.known)]
        schema, sink = pa.schema([("key", pa.string()), ("values", pa.list_(pa.float32()))]), pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema), sink, compression="zstd", use_dictionary=False)
        return sink.getvalue()

    def ask(self, of: str, texts: Sequence[str], compute: Callable[[list[str]], Any]) -> list[F32]:
        keys = [digest([of, text]) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        if new and self.is_closed:
            raise ModelError(f"the bundle has no {of} {next(iter(new.values()))[:80]!r}")
        if new:
            for key, found in zip(new, compute(list(new.values())), strict=True):
                self.known[key] = np.atleast_1d(np.asarray(found, np.float32))
        return [self.known[key] for key in keys]

    def token_counter(self, model: str, revision: str | None) -> Counter:
        def count(texts: Sequence[str]) -> I64:
            found = self.ask(f"tokens by {model} of", texts, lambda new: token_counter(model, revision)(new))
            return np.array([int(one[0]) for one in found], np.int64)

        return count

    def prompt_counter(self, model: str, revision: str | None) -> Callable[[str, str], int]:
        def count(system: str, user: str) -> int:
            ask = functools.partial(self.ask, f"tokens by {model} of prompt", [f"{system}\0{user}"])
            return int(ask(lambda _: [prompt_counter(model, revision)(system, user)])[0][0])

        return count


class _Encoder:
    """An encoder whose vectors are recorded; it is loaded when it is needed."""

    def __init__(self, recorded: _Recorded, of: str, load: Callable[[], Any]) -> None:
        self._recorded, self._of, self._load = recorded, of, functools.cache(load)

    def encode_queries(self, texts: Sequence[str]) -> list[F32]:
        return self._recorded.ask(self._of, texts, lambda new: self._load().encode_queries(new))


@dataclass(frozen=True, slots=True)
class Bundled:
    """What was bundled: names of the runs, replies, and bytes of the zip."""

    runs: tuple[str, ...]
    n_replies: int
    n_bytes: int


def runs_of(source: str, base: Sequence[str] = (), overrides: Sequence[str] = ()) -> dict[str, str]:
    """List the directories of a run, or of a sweep's finished runs, by the names that they get in a bundle.

    Args:
        source: A run's directory, or a sweep, as ``load_sweep`` takes it.
        base: See ``load_sweep``.
        overrides: See ``load_sweep``.

    Raises:
        ConfigError: There is neither, or the sweep does not fit.
        DataError: None of the sweep's runs is finished.
    """
    if is_directory(source):
        return {os.path.basename(os.path.abspath(source)) or "run": source}
    plan = plan_sweep(load_sweep(source, base, overrides))
    if not plan.finished:
        raise DataError(f"{source}: none of its {len(plan.runs)} runs is finished: run `kohaku-ray sweep` first")
    return {run_id: config.run for run_id, config in plan.finished.items()}


def make_bundle(runs: Mapping[str, str], path: str, *, with_index: bool = False) -> Bundled:
    """Bundle finished runs, each made again first: what cannot be replayed is not bundled.

    Args:
        runs: Directories of the runs, by the name that each gets in the bundle.
        path: The zip.
        with_index: Put the index in, and the documents' text in the tables; otherwise that text is left out, but for
            what replies quote, and a replay needs the index.

    Raises:
        ConfigError: A run ranks with a cross-encoder, or its configuration cannot be used.
        DataError: A run is not finished or damaged, its ledger lacks replies, or it is not the same when made again.
    """
    recorded, entries = _Recorded(), dict[str, Entry]()
    files: dict[str, Any] = {}
    bundled: dict[str, BundledRun] = {}
    indexes: dict[str, IndexIdentity] = {}
    for name, run in runs.items():
        config = _config_of(run)
        index = open_index(config)
        identity = IndexIdentity.of(index)
        indexes[identity.key] = identity
        replies, models, scored = _checked(run, config, index, identity.key, recorded)
        entries |= replies.entries
        questions, data = questions_file(config, with_index)
        inputs = {questions: data}
        metadata = prompts = None
        if config.documents.metadata is not None:
            metadata = f"metadata{os.path.splitext(resolve(config.documents.metadata))[1]}"
            inputs[metadata] = read_source(config.documents.metadata)[1]
        if config.prompts is not None:
            prompts = f"runs/{name}/prompts"
            inputs |= {f"prompts/{one}": read_file(below(config.prompts, one)) for one in _templates(config.prompts)}
        for one in ("config.yaml", "run.json"):
            inputs[one] = read_file(below(run, one))
        inputs |= outputs_in(RunDirectory(run), config, with_index)
        files |= {f"runs/{name}/{one}": content for one, content in inputs.items()}
        if with_index:
            names = {one["name"] for one in all_files(index.manifest).values()}
            names |= {MANIFEST, *image_files(index.directory, index.manifest)}
            files |= {f"indexes/{identity.key}/{one}": index.directory.read(one) for one in names}
        bundled[name] = BundledRun(
            index=identity.key,
            models=models,
            questions=f"runs/{name}/{questions}",
            metadata=metadata and f"runs/{name}/{metadata}",
            prompts=prompts,
            refused=tuple(sorted(replies.refused)),
            scores=_records(scored),
        )
    files[RECORDED] = recorded.written()
    with tempfile.TemporaryDirectory() as home:
        segment = SegmentStore(home).write(sorted(entries.items()))
        data = Directory(home).read(segment).to_pybytes()
    files[f"ledger/segments/{0:020d}-{checksum(data)}.arrow"] = data
    size = write_bundle(path, Manifest(with_text=with_index, indexes=indexes, runs=bundled), files)
    return Bundled(tuple(runs), len(entries), size)


def _config_of(run: str) -> Config:
    if not is_directory(run) or not is_finished(run):
        raise DataError(f"{run} is no finished run: name the directory of one, or finish it with `kohaku-ray answer`")
    for error in RunDirectory(run).damage():
        raise error
    config = build_config(yaml.safe_load(read_file(below(run, "config.yaml"))), below(run, "config.yaml"))
    if config.uses.cross_encoder is not None:
        raise ConfigError(f"{run} ranks with a cross-encoder, whose scores no ledger records: it cannot be bundled")
    return config


def _checked(
    run: str, config: Config, index: Index, key: str, recorded: _Recorded
) -> tuple[_Replies, tuple[dict[str, Model], ...], ScoredRun | None]:
    """Make a run again from its ledger, and check that it is the same."""
    directory = RunDirectory(run)
    keys = set(directory.read_table("usage", ["key"])["key"].to_pylist())
    replies = _Replies(SegmentStore(config.ledger.path).load(keys.__contains__).entries, set(), learns=True)
    if missing := keys - replies.entries.keys():
        raise DataError(f"the ledger {config.ledger.path} lacks {len(missing)} of {len(keys)} replies of {run}")
    applications = {name: name for name in config.deployments}
    models = tuple(models_of(config, applications, member) for member in range(config.ensemble.members))
    with tempfile.TemporaryDirectory() as home:
        again = config.model_copy(update={"run": home})
        _make_again(again, models, replies, recorded, index, key)
        found = compare_outputs(outputs_in(directory, config, True), outputs_in(RunDirectory(home), config, True))
    if found.differences:
        raise DataError(
            f"{run} is not the same when it is made again from its ledger by this version: "
            f"{'; '.join(found.differences)}; `kohaku-ray answer --again` makes it anew"
        )
    return replies, models, _scored(run, resolve(config.questions.path), config)


def _templates(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".j2"))


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A run that was made again from a bundle.

    Attributes:
        name: Its name there.
        differences: What is not as in the bundle, a line each; empty: every table is the same.
        n_rounded: Rows whose numbers differ by rounding alone, as on another processor.
        model: Identity of the lead role's model.
        scores: Its scores, a record per metric; ``low`` and ``high`` are the ends of the 95 % interval.
        n_questions: Questions.
        n_members: Members of its ensemble.
        used: Sums of tokens and of the models' seconds, when the calls were made.
    """

    name: str
    differences: tuple[str, ...]
    n_rounded: int
    model: str
    scores: tuple[dict[str, Any], ...]
    n_questions: int
    n_members: int
    used: Mapping[str, float]


def replay_bundle(path: str, index: str | None = None) -> list[ReplayedRun]:
    """Make the runs of a bundle again from its replies, and compare every table; no model, key or network is used.

    Args:
        path: The zip.
        index: Directory of the index, if the bundle has none. Default: that of the run's configuration.

    Raises:
        ConfigError: It is no whole bundle of this version (see ``unpack``).
        DataError: There is no index, or another one.
    """
    with tempfile.TemporaryDirectory() as home:
        manifest = unpack(path, home)
        try:
            replies = SegmentStore(f"{home}/ledger").load(lambda _: True)
            recorded = _Recorded.read(f"{home}/{RECORDED}")
        except (OSError, pa.ArrowException, LookupError) as error:
            raise ConfigError(f"{path}: its ledger cannot be read ({error}): make it again") from None
        if replies.damaged:
            raise ConfigError(f"{path}: {replies.damaged[0]} is not what its name says: make the bundle again")
        return [
            _replayed(path, home, manifest, name, _Replies(replies.entries, {*run.refused}, False), recorded, index)
            for name, run in manifest.runs.items()
        ]


def _replayed(
    path: str, home: str, manifest: Manifest, name: str, replies: _Replies, recorded: _Recorded, given: str | None
) -> ReplayedRun:
    run, there, where = manifest.runs[name], f"{home}/runs/{name}", f"config.yaml of {name} in {path}"
    values = yaml.safe_load(read_file(f"{there}/config.yaml"))
    if not isinstance(values, dict):
        raise ConfigError(f"{where} holds no keys: make the bundle again")
    own = f"{home}/indexes/{run.index}"
    at = own if os.path.isdir(own) else given or str(expand(values.get("index", {}).get("path", "")))
    config = build_config(_closed(values, run, home, at), where)
    opened = _open_same(at, manifest.indexes[run.index], path)
    again = RunDirectory(config.run)
    _make_again(config, run.models, replies, recorded, opened, run.index)
    now = outputs_in(again, config, manifest.with_text)
    was = {one: read_file(f"{there}/{one}") for one in now if os.path.isfile(f"{there}/{one}")}
    try:
        found = compare_outputs(was, now)
        used = {one: sum(column.to_pylist()) for one, column in zip(_USED, _columns(was), strict=True)}
    except (pa.ArrowException, LookupError) as error:
        raise ConfigError(f"{path}: a table of {name} cannot be read ({error}): make the bundle again") from None
    scored = _scored(again.path, config.questions.path, config)
    if not same(list(run.scores), list(plain(_records(scored)))):
        found.differences.append(f"scores: {_said(run.scores)} in the bundle, {_said(_records(scored))} here")
    return ReplayedRun(
        name=name,
        differences=tuple(found.differences),
        n_rounded=found.n_rounded,
        model=run.models[0][config.declaration.lead].identity,
        scores=_with_intervals(scored),
        n_questions=len(again.read_table("votes", ["question_id"])),
        n_members=config.ensemble.members,
        used=used,
    )


_USED = ("prompt_tokens", "cached_tokens", "completion_tokens", "service_s")


def _columns(outputs: Mapping[str, Any]) -> list[Any]:
    return list(pq.read_table(pa.BufferReader(outputs["usage.parquet"]), columns=list(_USED)).select(_USED).columns)


def _closed(values: Mapping[str, Any], run: BundledRun, home: str, index: str) -> dict[str, Any]:
    """Point a configuration to the files of a bundle; its models answer nothing, so their settings do not matter."""
    counted = {model.deployment: (model.tokenizer, model.revision) for roles in run.models for model in roles.values()}
    closed: dict[str, Any] = {
        name: {"kind": "openai", "base_url": "http://127.0.0.1:9", "model": "closed", "api_key_env": None}
        | {"vision": True, "tokenizer": tokenizer, "revision": revision}
        for name, (tokenizer, revision) in counted.items()
    }
    given = {name: {"kind": "extractive"} for name in values.get("deployments") or {}}

    def inside(name: str | None) -> str | None:
        return name and f"{home}/{name}"

    own: dict[str, Any] = {
        "run": f"{home}/again/{digest(run.questions)}",
        "shared": None,
        "documents": {"paths": [], "metadata": inside(run.metadata), "images": None},
        "index": {"path": index, "captions": "printed"},
        "questions": {"path": inside(run.questions)},
        "prompts": inside(run.prompts),
        "ledger": {"path": f"{home}/ledger"},
        "tracking": {"to": None},
    }
    return {**merge(values, own), "deployments": {**given, **closed}}


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


def _make_again(
    config: Config, models: tuple[dict[str, Model], ...], replies: _Replies, recorded: _Recorded, index: Index, key: str
) -> None:
    """Make a run in this process, from recorded replies; ``key`` names the index in what is recorded."""

    @functools.cache
    def shard(number: int) -> LocalIndex:
        texts = _Encoder(recorded, f"vector of query of {key}", lambda: make_query_encoder(config))
        images = _Encoder(recorded, f"vector of image query of {key}", lambda: make_image_query_encoder(config))
        return LocalIndex(
            index.shards[number],
            texts,  # type: ignore[arg-type]
            image_encoder=images,  # type: ignore[arg-type]
            peer=shard,
            count=recorded.token_counter,
        )

    prompts = config.declaration.prompts(config.prompts)
    context = RunContext(config, replies, models, prompts, prompt_counter=recorded.prompt_counter)
    questions = questions_of(config)
    size = block_size(config, len(questions))
    blocks = [questions[start : start + size] for start in range(0, len(questions), size)]

    async def all_blocks() -> list[Tables]:
        return [await _block(context, shard(0), block) for block in blocks]

    os.makedirs(config.run, exist_ok=True)
    write_run(config, RunDirectory(config.run), Parts(asyncio.run(all_blocks()), lambda tables: tables))


async def _block(context: RunContext, index: LocalIndex, questions: Sequence[Question]) -> Tables:
    """Answer a block as the actor pool does."""
    config = context.config
    prepared: list[Any] = []
    answered: list[Any] = []
    for wave in waves_of(config):
        settled = settle_block(config, questions, *answered) if answered else None
        for member in wave:
            if not prepared or config.ensemble.scope == "question":
                prepare = functools.partial(prepare_one, index, context, member=member)
                prepared.append(await each(questions, settled, prepare))
            answered.append(await each(prepared[-1], settled, functools.partial(answer_one, context, member, index)))
    return vote_block(config, len(prepared), *prepared, *answered)[1]


def _scored(run: str, truth: str, config: Config) -> ScoredRun | None:
    system = config.declaration
    return score_run(run, truth, system.metrics, config.questions.limit, system.columns.split_by)[0]


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
