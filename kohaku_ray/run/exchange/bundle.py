"""The format of a bundle: runs with all that re-derives them, in one zip whose bytes depend on its content alone.

It holds each run's configuration, tables and scores, the replies of its calls (a segment of the ledger), its questions,
metadata and own templates, what encoder and tokenizers said, and the index or its identity; all by checksum.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from kohaku_ray.config import Config
from kohaku_ray.documents.data.rows import read_rows
from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.index.store import Index
from kohaku_ray.models.backend import PriceConfig
from kohaku_ray.records import canonical_json, digest, digest_text, pluralize
from kohaku_ray.run.collection.sources import read_source
from kohaku_ray.run.models import Model
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.tables import ANSWER_FILES, SCHEMAS, grouped
from kohaku_ray.settings import Settings
from kohaku_ray.storage import Directory, checksum, publish_with, read_file
from kohaku_ray.version import __version__

FORMAT = 1
"""Version of the layout."""

MANIFEST = "bundle.json"
MOST_BYTES = 4 * 2**30
"""Most bytes of a bundle's files, unpacked."""

TEXTS: Mapping[str, tuple[str, ...]] = {"answers": ("details",), "trace": ("text",)}
"""Columns that hold documents' text: without the index their cells are digests, and are compared as such."""

_GOLD_TEXTS = ("supporting_materials", "explanation")
_SUFFIX = ".checksum"
_NAMED = 3
_ROWS_AT_ONCE = 4096
_BATCHES_PER_GROUP = 8
"""Batches of a run's table in a row group: some 20 MiB of the trace; groups of one take a quarter more of the zip."""


class Listed(Settings):
    """A file of a bundle."""

    size: Annotated[int, Field(ge=0)]
    checksum: str


class IndexIdentity(Settings):
    """What an index was made of: its settings and its documents."""

    settings: str
    documents: str

    @classmethod
    def of(cls, index: Index) -> IndexIdentity:
        """Digest the settings of an index, its encoder by content alone, and the texts of its nodes."""
        settings = dict(index.manifest["settings"])
        settings["encoder"] = {key: value for key, value in settings["encoder"].items() if key != "model"}
        texts = index.nodes.table.select(["node_id", "text", "title"])
        return cls(settings=digest(settings), documents=_digest_columns(texts))

    @property
    def key(self) -> str:
        """Its name in the bundle."""
        return digest([self.settings, self.documents], 6)


def _digest_columns(table: pa.Table) -> str:
    """Return ``digest`` of a table's columns as lists, a few thousand values at a time: an index has millions."""
    hashed = hashlib.blake2b(digest_size=8)
    for number, name in enumerate(sorted(table.column_names)):
        hashed.update(f"{',' if number else '{'}{json.dumps(name)}:[".encode())
        for first in range(0, len(table), _ROWS_AT_ONCE):
            values = canonical_json(table[name].slice(first, _ROWS_AT_ONCE).to_pylist())
            hashed.update(f"{',' if first else ''}{values[1:-1]}".encode())
        hashed.update(b"]")
    hashed.update(b"}")
    return hashed.hexdigest()


class BundledRun(Settings):
    """A run: what its replay takes from elsewhere in the bundle, and its scores."""

    index: str
    models: Annotated[tuple[dict[str, Model], ...], Field(min_length=1)]
    questions: str
    metadata: str | None
    prompts: str | None
    refused: tuple[str, ...]
    scores: tuple[dict[str, Any], ...]


# ``Model`` names its prices for type checkers alone: actors that count calls import no configuration.
BundledRun.model_rebuild(_types_namespace={"PriceConfig": PriceConfig})


class Manifest(Settings):
    """The manifest of a bundle."""

    format: int = FORMAT
    version: str = __version__
    with_text: bool
    indexes: dict[str, IndexIdentity]
    runs: Annotated[dict[str, BundledRun], Field(min_length=1)]
    sweep: dict[str, Any] | None = None
    files: dict[str, Listed] = Field(default_factory=dict)

    def missing(self) -> list[str]:
        """List what the runs name and the bundle does not hold: no name may lead out of it."""
        wanted = ["recorded.parquet"]
        for name, run in self.runs.items():
            inputs = [run.questions, run.metadata, *(f"runs/{name}/{file}" for file in ("config.yaml", "run.json"))]
            wanted += [file for file in inputs if file is not None]
            if run.prompts not in (None, f"runs/{name}/prompts"):
                wanted.append(str(run.prompts))
            if run.index not in self.indexes or self.indexes[run.index].key != run.index:
                wanted.append(f"index {run.index}")
        return [file for file in wanted if file not in self.files]


def write_bundle(path: str, manifest: Manifest, files: Mapping[str, Any]) -> int:
    """Write a bundle to a local disk in one step; returns its size in bytes.

    ``manifest`` is yet without files; these are bytes, or anything with a buffer, by name.
    """
    buffers = {name: memoryview(data) for name, data in sorted(files.items())}
    listed = {name: Listed(size=data.nbytes, checksum=checksum(data)) for name, data in buffers.items()}
    values = manifest.model_copy(update={"files": listed}).model_dump(mode="json")

    def write(temporary: str) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, data in ((MANIFEST, json.dumps(values, indent=1).encode()), *buffers.items()):
                entry = zipfile.ZipInfo(name)  # of 1980
                entry.create_system, entry.external_attr = 3, 0o644 << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)  # type: ignore[arg-type]  # any buffer

    publish_with(path, write, "free the disk or choose another output")
    return os.path.getsize(path)


def unpack(path: str, directory: str) -> Manifest:
    """Unpack a bundle and compare every file with its checksum.

    Raises:
        ConfigError: It is no bundle, of another version, torn, changed, too large, or one of its names leaves it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(entry.file_size for entry in archive.infolist())
            if n_bytes > MOST_BYTES:
                raise ConfigError(
                    f"{path} unpacks to {n_bytes:,} bytes, at most {MOST_BYTES:,} bytes are read: bundle fewer runs, "
                    "or leave the index out"
                )
            manifest = _manifest_of(path, archive)
            if odd := sorted(({*archive.namelist()} - {MANIFEST}) ^ manifest.files.keys()):
                raise ConfigError(f"{path}: {odd[0][:200]!r} is in the zip or in its manifest, not in both: {_AGAIN}")
            for name, listed in manifest.files.items():
                to = archive.extract(name, directory)  # leaves out what leads out of the directory
                if os.path.relpath(to, directory) != name:
                    raise ConfigError(f"{path}: the name {name[:200]!r} leads out of the bundle: nothing was unpacked")
                if os.path.getsize(to) != listed.size or Directory(directory).checksum(name) != listed.checksum:
                    raise ConfigError(
                        f"{path}: {name[:200]} is not what was bundled, its checksum is another: {_AGAIN}"
                    )
            return manifest
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file: name a bundle that `kohaku-ray bundle` wrote") from None
    except _NO_BUNDLE as error:
        raise ConfigError(f"{path} is no bundle, or a torn one ({error}): {_AGAIN}") from None


_AGAIN = "copy it again, or make it again by `kohaku-ray bundle`"
_NO_BUNDLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, LookupError, TypeError, ValueError)


def _manifest_of(path: str, archive: zipfile.ZipFile) -> Manifest:
    values = dict(json.loads(archive.read(MANIFEST)))
    if values.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has bundle format {str(values.get('format'))[:40]} (written by kohaku_ray "
            f"{str(values.get('version'))[:40]}), and this version, {__version__}, reads {FORMAT}: replay it with the "
            "version that wrote it"
        )
    try:
        manifest = Manifest.model_validate(values)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {MANIFEST} is damaged ({where}: {first['msg']}): {_AGAIN}") from None
    if missing := manifest.missing():
        raise ConfigError(f"{path}: {MANIFEST} names {missing[0][:200]!r}, which the bundle does not hold: {_AGAIN}")
    return manifest


def questions_file(config: Config, with_text: bool) -> tuple[str, bytes]:
    """Return a run's questions as a file: its name and bytes.

    Without text, columns of gold that hold documents' text and that no metric of the run reads are left out.
    """
    name, data = read_source(config.questions.path)
    read: set[str] = set()
    for metric in config.metrics:
        for column in find_metric(metric).truth_columns:
            read.update([column] if isinstance(column, str) else column)
    left_out = () if with_text else [column for column in _GOLD_TEXTS if column not in read]
    rows = read_rows(name, data, "questions")
    is_whole = not any(column.strip().casefold() in left_out for row in rows for column in row if column)
    if is_whole and Path(name).suffix in (".csv", ".jsonl", ".parquet"):
        return f"questions{Path(name).suffix}", data
    kept = ({key: value for key, value in row.items() if key.strip().casefold() not in left_out} for row in rows)
    return "questions.jsonl", "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in kept).encode()


def outputs_in(directory: RunDirectory, config: Config, with_text: bool) -> dict[str, Any]:
    """Read a run's outputs as a bundle holds them, by name; without text, cells and files with some are digests."""
    outputs: dict[str, Any] = {}
    for name, schema in SCHEMAS.items():
        sink, texts = pa.BufferOutputStream(), () if with_text else TEXTS.get(name, ())
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            batches = directory.stream_table(name)
            while group := [_without_texts(batch, texts) for batch in islice(batches, _BATCHES_PER_GROUP)]:
                writer.write_table(pa.Table.from_batches(group))
        outputs[f"{name}.parquet"] = sink.getvalue()
    for name in (*ANSWER_FILES, *config.declaration.outputs):
        data = read_file(directory.file(name))
        if with_text or name == "answers.jsonl":
            outputs[name] = data
        else:
            outputs[f"{name}{_SUFFIX}"] = checksum(data).encode()
    return outputs


def _without_texts(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Put digests in the place of documents' text."""
    for column in columns:
        cells = [text and digest_text(text, 16) for text in batch[column].to_pylist()]
        batch = batch.set_column(batch.schema.get_field_index(column), column, pa.array(cells, pa.string()))
    return batch


@dataclass(slots=True)
class Compared:
    """The differences of a replay from its bundle: a line per table or file.

    Attributes:
        rounded: Rows that another processor's rounding changed, by column, such as ``trace.scores``.
    """

    differences: list[str]
    rounded: Counter[str] = field(default_factory=Counter)


_BY_KEY: Mapping[str, tuple[str, ...]] = {
    "usage": ("question_id", "member", "role", "attempt", "key"),
    "trace": ("question_id", "member", "attempt", "step", "rank"),
    "answers": ("question_id", "member"),
    "votes": ("question_id",),
}
_ROUNDED: Mapping[str, str] = {"trace": "scores", "answers": "measures", "votes": "group_weights"}
"""The one column of each table whose numbers another processor may round otherwise. All others, among them each that a
prompt or a vote is made of, are equal or are a difference."""

_MEANING = {"usage": "prompts", "trace": "steps", "answers": "replies as read", "votes": "votes"}


def compare_outputs(was: Mapping[str, Any], now: Mapping[str, Any]) -> Compared:
    """Compare the outputs of a run with those of its replay; see ``outputs_in``."""
    compared, tables = Compared([]), {f"{name}.parquet": name for name in _MEANING}
    for name in (
        output for output in (*tables, *sorted((was.keys() | now.keys()) - tables.keys())) if output in {**was, **now}
    ):
        if name not in was or name not in now:
            compared.differences.append(
                f"{name.removesuffix(_SUFFIX)}: {'new' if name in now else 'not there any more'}"
            )
        elif name in tables:
            _compare_tables(tables[name], was[name], now[name], compared)
        else:
            lines = [bytes(data).decode(errors="replace").splitlines() for data in (was[name], now[name])]
            pairs = list(zip_longest(*lines, fillvalue=""))
            if odd := [number for number, (a, b) in enumerate(pairs, 1) if a != b]:
                differ = f"{len(odd)} of {pluralize(len(pairs), 'line')} differ, first line {odd[0]}"
                compared.differences.append(f"{name.removesuffix(_SUFFIX)}: {differ}")
    return compared


def _compare_tables(name: str, was: Any, now: Any, compared: Compared) -> None:
    by, files = _BY_KEY[name], [pq.ParquetFile(pa.BufferReader(data)) for data in (was, now)]
    # Of the calls, only what was asked is the same again.
    columns = list(by) if name == "usage" else files[1].schema_arrow.names
    questions = _differing_questions(files, columns)
    if not questions:
        return
    tables = [file.read(columns) for file in files]
    n_rows = tables[0].group_by(list(by)).aggregate([]).num_rows
    tables = [table.filter(pc.is_in(table["question_id"], pa.array(questions, pa.string()))) for table in tables]
    then, replayed = (grouped(table.to_pylist(), lambda row: tuple(row[column] for column in by)) for table in tables)
    rounded = _ROUNDED.get(name)

    def differs(column: str, a: Any, b: Any) -> bool:
        return not same(a, b) if column == rounded else bool(a != b)

    differing = []
    for key in dict.fromkeys([*then, *replayed]):
        pair = then.get(key, []), replayed.get(key, [])
        both = list(zip(*pair, strict=False))
        odd = dict.fromkeys(column for a, b in both for column in columns if differs(column, a[column], b[column]))
        if not odd and len(pair[0]) == len(pair[1]):
            compared.rounded.update([f"{name}.{rounded}"] if pair[0] != pair[1] else [])
        else:
            row_key = " ".join(f"{column} {value}" for column, value in zip(by, key, strict=True) if column != "key")
            differing.append(f"{row_key}: {', '.join(odd) or ('not there any more' if pair[0] else 'new')}")
    if differing:
        rows = "; ".join([*differing[:_NAMED], *(["…"] if len(differing) > _NAMED else [])])
        compared.differences.append(
            f"{_MEANING[name]}: {len(differing)} of {n_rows} rows of {name}.parquet differ ({rows})"
        )


def _differing_questions(files: Sequence[pq.ParquetFile], columns: list[str]) -> list[str]:
    """Find the questions whose rows may differ, by comparing columns a few thousand rows at a time."""
    questions: dict[str, None] = {}
    for batches in zip_longest(*(file.iter_batches(_ROWS_AT_ONCE, columns=columns) for file in files)):
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch is not None]
        if len(tables) < len(files) or not tables[0].equals(tables[1]):
            questions |= {key: None for table in tables for key in table["question_id"].to_pylist()}
    return list(questions)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, numbers up to the rounding of another processor."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5) or (a != a and b != b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return bool(a == b)
