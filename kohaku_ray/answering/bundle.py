"""Pack a finished run with its recorded replies into one file, and make the run again from such a file.

A bundle is a zip of the run's directory, of the recorded replies that it used as one segment of a ledger, of what it
was made from but for the index (questions, metadata, templates), and of what encoders and tokenizers returned. To
replay it is to answer from these: in this process, by a ledger that asks no model. Its bytes depend on its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from kohaku_ray import sample
from kohaku_ray.answering.replay import (
    Models,
    RecordedEncoders,
    RecordedReplies,
    config_of,
    make_again,
    models_by_member,
    open_recorded,
)
from kohaku_ray.collection.indexes import open_index
from kohaku_ray.collection.sources import read_source, resolve
from kohaku_ray.config import Config, build_config
from kohaku_ray.config.load import expand, merge, parse_file
from kohaku_ray.config.plain import unset_variables, value_at
from kohaku_ray.documents.data.rows import read_rows
from kohaku_ray.errors import CodeRefusedError, ConfigError, DataError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.extensions import refuse_named_code
from kohaku_ray.index.identity import check_faiss
from kohaku_ray.index.store import MANIFEST as INDEX_MANIFEST
from kohaku_ray.index.store import Index, all_files, image_files
from kohaku_ray.models.backend import PriceConfig
from kohaku_ray.models.calls import Model
from kohaku_ray.models.target import Target
from kohaku_ray.models.vllm import join_adapter
from kohaku_ray.outcomes import plain
from kohaku_ray.records import canonical_json, digest_text
from kohaku_ray.removed import without_removed
from kohaku_ray.runs.identity import is_finished
from kohaku_ray.runs.scoring import score_run
from kohaku_ray.settings import Settings
from kohaku_ray.store.directory import RunDirectory, is_whole
from kohaku_ray.store.segments import Entry, SegmentStore
from kohaku_ray.store.storage import Directory, checksum, is_directory, is_file, is_uri, publish_with, read_file
from kohaku_ray.store.tables import ANSWER_FILES, SCHEMAS, grouped
from kohaku_ray.version import __version__

FORMAT = 3
"""Version of the layout."""

MANIFEST, RECORDED = "bundle.json", "recorded.parquet"
RUN_FILES = ("config.yaml", "run.json", *(f"{name}.parquet" for name in SCHEMAS))
MOST_BYTES = 4 * 2**30
"""Most bytes of a bundle's files, unpacked."""

REPRODUCED = "runs/reproduce/index"
"""Index of the bundles that come with the package; that of `demo` is read from other files, with the same texts."""

TEXTS: Mapping[str, str] = {"answers": "details", "trace": "text"}
"""Columns that hold documents' text: without the index their cells are digests, and are compared as such."""

_ROUNDED: Mapping[str, str] = {"trace": "scores", "answers": "measures", "votes": "group_weights"}
"""Columns that are not compared: another processor may round them otherwise, and no prompt or vote is made of them."""

_OPTIONAL_OF_NODES, _OPTIONAL_OF_DOCUMENTS = ("attachment_kind", "attachment_path", "attributes"), ("url",)
"""Columns that runs read, and in which many an index has no value."""

_BY_KEY: Mapping[str, tuple[str, ...]] = {
    "usage": ("question_id", "member", "role", "attempt", "key"),
    "trace": ("question_id", "member", "attempt", "step", "rank"),
    "answers": ("question_id", "member"),
    "votes": ("question_id",),
}
_MEANING = {"usage": "prompts", "trace": "steps", "answers": "replies as read", "votes": "votes"}
_GOLD_TEXTS = ("supporting_materials", "explanation")
_USED = ("prompt_tokens", "cached_tokens", "completion_tokens", "service_s")
_NAMED = 3
_ROWS_AT_ONCE = 4096
_AGAIN = "copy it again, or make it again by `kohaku-ray bundle`"
_NO_BUNDLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Bundled:
    """What was bundled: the name of the run, its replies, and the bytes of the zip at ``bundle``."""

    bundle: str
    run: str
    n_replies: int
    n_bytes: int


class BundledModel(Settings):
    """A member's model of a role as its requests need it, which the run's configuration may take elsewhere."""

    identity: str
    temperature: float
    top_p: float
    max_tokens: int
    reasoning_tokens: int
    window_tokens: int
    reads_prose: bool
    deployment: str
    tokenizer: str | None
    revision: str | None
    adapter: str | None = None

    @classmethod
    def of(cls, model: Model) -> BundledModel:
        """Take it from a configured model."""
        return cls(**{name: getattr(model, name) for name in cls.model_fields})

    def as_model(self) -> Model:
        """Return a model that is called nowhere and costs nothing."""
        return Model(target=Target(self.deployment), price=PriceConfig(), **self.model_dump())


class Manifest(Settings):
    """What a bundle says of itself: its run, the identity of the index (``identify_index``), and members' models."""

    format: int = FORMAT
    version: str = __version__
    run: str
    index: str
    models: Annotated[tuple[dict[str, BundledModel], ...], Field(min_length=1)]

    @property
    def models_by_member(self) -> Models:
        """The models of the run by role, per member."""
        return tuple({role: model.as_model() for role, model in roles.items()} for roles in self.models)


def identify_index(index: Index) -> str:
    """Digest the settings of an index, its encoder by content alone, and all that a run reads of nodes and documents.

    Vectors stand aside: another processor rounds them otherwise. All else of a node follows from its id, its text and
    the settings, but for its page and place there, which no run reads. Columns are digested some thousand rows at once.
    """
    settings = dict(index.manifest["settings"])
    settings["encoder"] = {key: value for key, value in settings["encoder"].items() if key != "model"}
    hashed = hashlib.blake2b(canonical_json(settings).encode(), digest_size=8)
    nodes, documents = index.nodes.table, index.documents
    columns = [nodes[name] for name in ("node_id", "text", "title")]
    for table, names in ((nodes, _OPTIONAL_OF_NODES), (documents, _OPTIONAL_OF_DOCUMENTS)):
        for name in names:
            if table[name].null_count < len(table):  # an index without any keeps the digest of its texts
                hashed.update(f"{name}\n".encode())
                columns.append(table[name])
    for column in columns:
        for first in range(0, len(column), _ROWS_AT_ONCE):
            # One list in pieces: the digest must not depend on how many values are taken at once.
            hashed.update(canonical_json(column.slice(first, _ROWS_AT_ONCE).to_pylist())[1:-1].encode() + b",")
        hashed.update(b"\n")
    return hashed.hexdigest()


def make_bundle(run: str, path: str, *, with_index: bool = False) -> Bundled:
    """Bundle a finished run, which is made again first: what cannot be replayed is not bundled.

    ``with_index`` puts the index in, and the documents' text in the tables; otherwise that text is left out, but for
    what replies quote, and a replay needs the index.

    Raises:
        ConfigError: It ranks with a cross-encoder, or its configuration cannot be used, for want of a variable too.
        DataError: It is not finished or damaged, its ledger lacks replies, or it is not the same when made again.
    """
    if not is_directory(run) or not is_finished(run):
        raise DataError(
            f"{run} is no finished run: name the directory of one, or finish it with `kohaku-ray answer` (a sweep's "
            "runs lie below its `runs`)"
        )
    directory = RunDirectory(run)
    for error in directory.damage():
        raise error
    if unset := unset_variables(read_file(directory.file("config.yaml")).decode()):
        raise ConfigError(f"{run} was made with {' and '.join(unset)} in the environment: set what it was made with")
    config, recorded = config_of(run), RecordedEncoders()
    index = open_index(config)
    replies = _check_replays(directory, config, index, recorded)
    files = outputs_of(directory, config, with_index) | _inputs_of(config, with_index)
    files |= {RECORDED: recorded.as_parquet(), **segment_of(replies)}
    if with_index:
        index_files = {entry["name"] for entry in all_files(index.manifest).values()}
        index_files |= {INDEX_MANIFEST, *image_files(index.directory, index.manifest)}
        files |= {f"index/{file}": index.directory.read(file) for file in index_files}
    models = tuple({role: BundledModel.of(model) for role, model in of.items()} for of in models_by_member(config))
    name = os.path.basename(os.path.abspath(run)) or "run"
    size = write_bundle(path, Manifest(run=name, index=identify_index(index), models=models), files)
    return Bundled(path, name, len(replies), size)


def _check_replays(
    directory: RunDirectory, config: Config, index: Index, recorded: RecordedEncoders
) -> Mapping[str, Entry]:
    """Make a run again from its ledger, and check that it is the same; returns the replies that it used."""
    keys = set(directory.read_table("usage", ["key"])["key"].to_pylist())
    replies = SegmentStore(config.ledger.path).load(keys.__contains__).entries
    if missing := keys - replies.keys():
        raise DataError(f"the ledger {config.ledger.path} lacks {len(missing)} of {len(keys)} replies of {config.run}")
    with tempfile.TemporaryDirectory() as home:
        again = config.model_copy(update={"run": home})
        make_again(
            again, models_by_member(config), RecordedReplies(replies), recorded, open_recorded(again, index, recorded)
        )
        differences = compare_runs(directory, RunDirectory(home), config.declaration.outputs, with_text=True)
    if differences:
        raise DataError(
            f"{config.run} is not the same when it is made again from its ledger by this version: "
            f"{'; '.join(differences)}; `kohaku-ray answer --again` makes it anew"
        )
    return replies


def outputs_of(directory: RunDirectory, config: Config, with_text: bool) -> dict[str, Any]:
    """Read a run's directory, by name in the bundle; without text, digests stand for texts of documents.

    A submission and a system's own files quote documents: without text they are left out, and ``run.json`` has their
    checksums.
    """
    names = [*RUN_FILES, "answers.jsonl", *((*ANSWER_FILES, *config.declaration.outputs) if with_text else ())]
    outputs: dict[str, Any] = {f"run/{name}": read_file(directory.file(name)) for name in names}
    for name in () if with_text else TEXTS:
        sink = pa.BufferOutputStream()
        pq.write_table(_without_texts(name, directory.read_table(name)), sink, compression="zstd")
        outputs[f"run/{name}.parquet"] = sink.getvalue()
    return outputs


def _without_texts(name: str, table: pa.Table) -> pa.Table:
    if (column := TEXTS.get(name)) is None:
        return table
    cells = [text and digest_text(text, 16) for text in table[column].to_pylist()]
    return table.set_column(table.schema.get_field_index(column), column, pa.array(cells, pa.string()))


def _inputs_of(config: Config, with_text: bool) -> dict[str, Any]:
    """Read what a run was made from but for the index, by name in the bundle.

    Without text, columns of gold that hold documents' text and that no metric of the run reads are left out.
    """
    name, data = read_source(config.questions.path)
    read: set[str] = set()
    for metric in config.metrics:
        for column in find_metric(metric).truth_columns:
            read.update([column] if isinstance(column, str) else column)
    left_out = () if with_text else [column for column in _GOLD_TEXTS if column not in read]
    rows = read_rows(name, data, "questions")
    is_whole_file = not any(column.strip().casefold() in left_out for row in rows for column in row if column)
    if is_whole_file and Path(name).suffix in (".csv", ".jsonl", ".parquet"):
        inputs = {f"inputs/questions{Path(name).suffix}": data}
    else:
        kept = ({key: value for key, value in row.items() if key.strip().casefold() not in left_out} for row in rows)
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in kept)
        inputs = {"inputs/questions.jsonl": lines.encode()}
    if config.documents.metadata is not None:
        suffix = os.path.splitext(resolve(config.documents.metadata))[1]
        inputs[f"inputs/metadata{suffix}"] = read_source(config.documents.metadata)[1]
    if config.prompts is not None:
        inputs |= {f"inputs/prompts/{file.name}": file.read_bytes() for file in Path(config.prompts).glob("*.j2")}
    return inputs


def segment_of(replies: Mapping[str, Entry]) -> dict[str, bytes]:
    """Write recorded replies as a ledger of one segment, by name in the bundle."""
    with tempfile.TemporaryDirectory() as home:
        data = Directory(home).read(SegmentStore(home).write(sorted(replies.items()))).to_pybytes()
    return {f"ledger/segments/{0:020d}-{checksum(data)}.arrow": data}


def write_bundle(path: str, manifest: Manifest, files: Mapping[str, Any]) -> int:
    """Write a bundle to a local disk in one step; returns its size in bytes. ``files``: anything with a buffer."""
    about = json.dumps(manifest.model_dump(mode="json"), indent=1).encode()

    def write(temporary: str) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, content in ((MANIFEST, about), *sorted(files.items())):
                entry = zipfile.ZipInfo(name)  # of 1980
                entry.create_system, entry.external_attr = 3, 0o644 << 16
                archive.writestr(entry, memoryview(content), zipfile.ZIP_DEFLATED, 9)

    publish_with(path, write, "free the disk or choose another output")
    return os.path.getsize(path)


@dataclass(frozen=True, slots=True)
class Replay:
    """A run that was made again from a bundle."""

    name: str
    differences: tuple[str, ...]  # what is not as in the bundle, a line each; empty: every table is the same
    model: str  # names of the models that answer
    scores: tuple[dict[str, Any], ...]  # a record per metric; low and high are the ends of the 95 % interval
    n_questions: int
    n_members: int
    used: Mapping[str, float]  # sums of tokens and of the models' seconds, as recorded with the replies

    @property
    def same(self) -> bool:
        """Whether every table is the same."""
        return not self.differences


def replay_bundle(path: str, index: str | None = None, home: str | None = None, *, trust_code: bool = False) -> Replay:
    """Make the run of a bundle again from its replies, and compare every table; no model, key or network is used.

    ``index`` is the directory of the index, if the bundle has none; default: that of the run's configuration. The run
    stays in ``home``, an empty directory, under ``again``; default: it is not kept. ``trust_code``: modules that the
    configuration names may be imported; else ``extensions.check_code_trusted`` refuses them.

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
            return _replay(path, home, manifest, index)
        except CodeRefusedError as error:
            raise ConfigError(f"{path}: {error}") from None


def _replay(path: str, home: str, manifest: Manifest, given: str | None) -> Replay:
    was, config = RunDirectory(f"{home}/run"), configure_replay(path, home, manifest, given)
    index = _open_same(config.index.path, manifest.index, path)
    now, outputs = RunDirectory(config.run), config.declaration.outputs
    try:
        replies, recorded = (
            SegmentStore(f"{home}/ledger").load(lambda _: True),
            RecordedEncoders.read(f"{home}/{RECORDED}"),
        )
    except (OSError, pa.ArrowException, LookupError) as error:
        raise ConfigError(f"{path}: its ledger cannot be read ({error}): make it again") from None
    if replies.damaged:
        raise ConfigError(f"{path}: {replies.damaged[0]} is not what its name says: make the bundle again")
    opened = open_recorded(config, index, recorded)
    make_again(config, manifest.models_by_member, RecordedReplies(replies.entries), recorded, opened)
    try:
        differences = compare_runs(was, now, outputs, with_text=os.path.isdir(f"{home}/index"))
    except (DataError, pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: a table of {manifest.run} cannot be read ({error}): make it again") from None
    split_by = config.declaration.columns.split_by
    scored = score_run(now.path, config.questions.path, config.metrics, config.questions.limit, split_by)[0]
    scores = []
    if scored is not None:
        submission = read_submission(scored.report.files[0].file)
        intervals = {m.name: score_interval(m, m.score(scored.truth, submission)) for m in scored.metrics}
        for record in scored.report.records:
            ends = intervals[record["metric"]]
            kept = {key: plain(value) for key, value in record.items() if key != "file"}
            scores.append({**kept, "low": ends.low, "high": ends.high})
    identities = [roles[config.declaration.lead].identity.split()[0] for roles in manifest.models]
    used = now.read_table("usage", _USED)
    for file in ("config.yaml", "run.json"):  # a kept replay is a finished run
        shutil.copy(was.file(file), now.file(file))
    return Replay(
        name=manifest.run,
        differences=tuple(differences),
        model=", ".join(dict.fromkeys(re.sub(r"([0-9a-f]{12})[0-9a-f]{20,}", r"\1…", name) for name in identities)),
        scores=tuple(scores),
        n_questions=len(now.read_table("votes", ["question_id"])),
        n_members=config.ensemble.members,
        used={column: sum(used[column].to_pylist()) for column in _USED},
    )


def unpack(path: str, directory: str) -> Manifest:
    """Unpack a bundle; the zip's own checksums tell a torn one.

    Raises:
        ConfigError: It is no bundle, of another version, torn, too large, lacks files, or one of its names leaves it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(entry.file_size for entry in archive.infolist())
            if n_bytes > MOST_BYTES:
                raise ConfigError(
                    f"{path} unpacks to {n_bytes:,} bytes, at most {MOST_BYTES:,} bytes are read: leave the index out"
                )
            manifest = _manifest_of(path, archive)
            for name in archive.namelist():
                to = archive.extract(name, directory)  # leaves out what leads out of the directory
                if os.path.relpath(to, directory) != name:
                    raise ConfigError(f"{path}: the name {name[:200]!r} leads out of the bundle: it is not replayed")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file: name a bundle that `kohaku-ray bundle` wrote") from None
    except _NO_BUNDLE as error:
        raise ConfigError(f"{path} is no bundle, or a torn one ({error}): {_AGAIN}") from None
    for name in (RECORDED, *(f"run/{file}" for file in RUN_FILES), "inputs/questions.*"):
        if not any(Path(directory).glob(name)):
            raise ConfigError(f"{path} holds no {name}: {_AGAIN}")
    return manifest


def _manifest_of(path: str, archive: zipfile.ZipFile) -> Manifest:
    values = dict(json.loads(archive.read(MANIFEST)))
    if values.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has bundle format {str(values.get('format'))[:40]} (written by kohaku_ray "
            f"{str(values.get('version'))[:40]}), and this version, {__version__}, reads {FORMAT}: make it anew from "
            "its run by `kohaku-ray bundle RUN OUT.zip`, or replay it with the version that wrote it"
        )
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {MANIFEST} is damaged ({where}: {first['msg']}): {_AGAIN}") from None


def configure_replay(path: str, home: str, manifest: Manifest, given: str | None) -> Config:
    """Return the configuration of a bundle that is unpacked in ``home``; ``given``: its index, if named.

    Its models answer nothing, so their settings do not matter; nor does where it ran.

    Raises:
        ConfigError: It cannot be used, or names an index at an address.
    """
    where = f"config.yaml of {manifest.run} in {path}"
    values = parse_file(Path(home, "run/config.yaml"))
    values = without_removed(values) if isinstance(values, dict) else {}
    index = f"{home}/index" if os.path.isdir(f"{home}/index") else given or _named_index(values, path)
    closed: dict[str, Any] = {
        model.deployment: {"kind": "openai", "base_url": "http://127.0.0.1:9", "model": "closed", "api_key_env": None}
        | {"vision": True, "tokenizer": model.tokenizer, "revision": model.revision}
        for roles in manifest.models
        for model in roles.values()
    }
    deployments = _section(values, "deployments")
    adapters = [join_adapter(name, key) for name in deployments for key in _section(deployments[name], "adapters")]
    unused = {name: {"kind": "extractive"} for name in (*deployments, *adapters)}
    questions, metadata = (
        next(map(str, Path(home, "inputs").glob(f"{kind}.*")), None) for kind in ("questions", "metadata")
    )
    own_prompts = f"{home}/inputs/prompts"
    moved: dict[str, Any] = {
        "run": f"{home}/again",
        "shared": None,
        "documents": {"paths": [], "metadata": metadata, "images": None},
        "index": {"path": index, "captions": "printed"},
        "questions": {"path": questions},
        "prompts": own_prompts if os.path.isdir(own_prompts) else None,
        "tracking": {"to": None},
    }
    replaced: dict[str, Any] = {"ledger": {"path": f"{home}/ledger"}, "cluster": {}}
    config = build_config({**merge(values, moved), **replaced, "deployments": {**unused, **closed}}, where)
    if len(manifest.models) != config.ensemble.members:
        raise ConfigError(f"{where} has {config.ensemble.members} members, the bundle models of {len(manifest.models)}")
    return config


def _section(values: Any, key: str) -> Mapping[str, Any]:
    inner = values.get(key) if isinstance(values, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _named_index(values: Any, bundle: str) -> str:
    """Find the index that a run searched: where its configuration says, or at the end of that path, from here.

    Another machine's ``/home/x/runs/demo/index`` is ``runs/demo/index`` here; whatever is found must be the same index.
    No address of a bundle is asked, nor told the environment's variables.
    """
    if Path(bundle).resolve().is_relative_to(Path(sample.__file__).parent):
        return REPRODUCED
    written = str(value_at(values, ("index", "path"), ""))
    index_path = str(expand(written))
    if is_uri(index_path):
        raise ConfigError(
            f"{bundle} holds no index and names one at an address, {written[:200]}, that was not asked: give --index "
            "with the address or a directory if you trust it"
        )
    parts = Path(index_path).parts
    ends = (os.path.join(*parts[start:]) for start in range(1, len(parts)))
    return next((path for path in (index_path, *ends) if is_file(os.path.join(path, INDEX_MANIFEST))), index_path)


def _open_same(path: str, wanted: str, bundle: str) -> Index:
    try:
        index = Index.open(path)
    except DataError as error:
        if path == REPRODUCED:
            raise DataError(f"{bundle} holds no index: `kohaku-ray index reproduce` makes it, here at {path}") from None
        raise DataError(
            f"{bundle} holds no index, and {error}, in a directory of such a name here, or name it by --index DIR"
        ) from None
    if (identity := identify_index(index)) != wanted:
        raise DataError(
            f"the index at {path} is not that of {bundle}: it was made with other settings or from other documents "
            f"({identity} here, {wanted} there): build it from the same, or name another by --index DIR"
        )
    return index


def compare_runs(was: RunDirectory, now: RunDirectory, outputs: Mapping[str, Any], with_text: bool) -> list[str]:
    """Name what of a run is otherwise when it is made again, a line each: tables by row, ``outputs`` by checksum.

    ``with_text``: ``was`` holds documents' texts, and no digests in their place.

    Raises:
        DataError: A table cannot be read.
    """
    differences, facts = [], was.facts()
    for name, by in _BY_KEY.items():
        again = now.read_table(name) if with_text else _without_texts(name, now.read_table(name))
        # Of the calls, only what was asked is the same again.
        columns = [*by] if name == "usage" else [each for each in again.column_names if each != _ROUNDED.get(name)]
        then, rows = (
            grouped(table.select(columns).to_pylist(), itemgetter(*by)) for table in (was.read_table(name), again)
        )
        odd = [key for key in dict.fromkeys([*then, *rows]) if then.get(key) != rows.get(key)]
        if odd:
            told = [_describe_row(by, key, then.get(key), rows.get(key)) for key in odd[:_NAMED]]
            more = ["…"] if len(odd) > _NAMED else []
            n_rows = f"{len(odd)} of {len(then)} rows of {name}.parquet differ"
            differences.append(f"{_MEANING[name]}: {n_rows} ({'; '.join([*told, *more])})")
    written = dict(facts.get("checksums", {}))
    for name in (*ANSWER_FILES, *outputs):
        file = was.file(name)
        if checksum(read_file(now.file(name))) != (checksum(read_file(file)) if is_file(file) else written.get(name)):
            differences.append(f"{name}: its bytes are others")
    if not is_whole(facts):
        differences.append("facts: run.json is not what the run wrote, its checksum is another")
    return differences


def _describe_row(by: tuple[str, ...], key: Any, old: list[Any] | None, new: list[Any] | None) -> str:
    values = [key] if len(by) == 1 else key
    where = " ".join(f"{column} {value}" for column, value in zip(by, values, strict=True) if column != "key")
    if old is None or new is None:
        return f"{where}: {'new' if old is None else 'not there any more'}"
    columns = [column for column in old[0] if [row[column] for row in old] != [row[column] for row in new]]
    return f"{where}: {', '.join(columns)}"
