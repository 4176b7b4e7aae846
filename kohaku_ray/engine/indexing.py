"""The index job: files → document trees → vectors → index.

Two passes of Ray Data. The first parses (CPU tasks) and counts what is new; the second encodes it (an actor pool, on
GPUs where there are any). So progress knows its total, no vector is computed twice, and blocks divide evenly among the
encoders. Vectors go to the index directory as they are made: an interrupted job repeats none of them. What needs no
vector, BM25, is made meanwhile; a reducer does the rest.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from kohaku_ray.arrays import Mask
from kohaku_ray.config import Config
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.parse import parse_file, read_bytes
from kohaku_ray.engine.cluster import check_demand, connected, index_demand, say
from kohaku_ray.engine.errors import fetch, unwrapped
from kohaku_ray.engine.sources import anchored, find_sources, read_metadata
from kohaku_ray.engine.tools import encoder_settings, index_settings
from kohaku_ray.errors import DataError
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import REJECT_SCHEMA, build_index, build_terms
from kohaku_ray.index.identity import KEY_BYTES, no_keys, vector_keys
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.index.store import known_vectors
from kohaku_ray.index.tokens import token_counter
from kohaku_ray.tree.flatten import document_table, flatten
from kohaku_ray.tree.nodes import NodeTable

BLOCK_ROWS = 8192
"""Most texts of one encoding block; fewer where that would leave encoders without work."""
MIN_BLOCK_ROWS = 256
BLOCKS_PER_ENCODER = 16
"""At least so many, so that no encoder works on for long when the others are done."""


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What an index job did.

    Attributes:
        path: Where the index lies.
        counts: As ``build_index`` returns them.
        n_files: Files found.
        n_rejects: Files that could not be used, listed with their reasons in the index.
        rejects: The first of them, as (file, reason).
        texts_by_encoder: Texts each encoder actor was given.
        parse_s: Wall time of parsing, start-up of the cluster excluded.
        encode_s: Wall time of encoding, the encoders' start-up included.
        reduce_s: Wall time of propagation and index building.
        wall_s: Whole job, start-up included.
    """

    path: str
    counts: Mapping[str, Any]
    n_files: int
    n_rejects: int
    rejects: tuple[tuple[str, str], ...]
    texts_by_encoder: tuple[int, ...]
    parse_s: float
    encode_s: float
    reduce_s: float
    wall_s: float

    def text(self) -> str:
        """Lay it out for a terminal."""
        counts = self.counts
        lines = [
            f"{counts['n_documents']} documents of {self.n_files} files, {counts['n_sentences']} sentences, "
            f"{counts['n_vectors']} vectors searched: {counts['n_encoded']} texts encoded, {counts['n_reused']} known",
            f"parse {self.parse_s:.1f} s, encode {self.encode_s:.1f} s, reduce {self.reduce_s:.1f} s, "
            f"all {self.wall_s:.1f} s",
            f"index at {self.path}",
        ]
        if self.n_rejects:
            shown = "".join(f"\n  {file}: {reason}" for file, reason in self.rejects)
            more = self.n_rejects - len(self.rejects)
            lines.append(f"{self.n_rejects} files rejected:{shown}" + (f"\n  … and {more} more" if more else ""))
        return "\n".join(lines)


def run_index(config: Config) -> IndexSummary:
    """Index the configured documents; what an earlier index of the same encoder holds is not encoded again.

    Raises:
        ConfigError: The configuration or the cluster does not fit.
        DataError: No document can be used, or the index cannot be written.
    """
    began, config = time.perf_counter(), anchored(config)
    files = find_sources(config)
    read_metadata(config.documents.metadata)
    if not files:
        raise DataError(f"{', '.join(config.documents.paths)} holds metadata and questions but no document: add some")
    index_settings(config)  # an encoder that is not there is found here, not in a worker
    PendingVectors(config.index.path).check_writable()
    with connected(config.cluster):
        resources = ray.cluster_resources()
        # Where nodes come on demand, the device that was asked for decides; else what is there.
        device = config.index.encoder.device
        gpu = device == "cuda" or (device == "auto" and resources.get("GPU", 0) >= 1)
        n_encoders = config.index.encoders or max(int(resources.get("GPU" if gpu else "CPU", 0)), 1)
        check_demand(index_demand(config, n_encoders, gpu), resources, autoscaling=config.cluster.autoscaling)
        _configure_data()
        started = time.perf_counter()
        job = uuid.uuid4().hex
        with unwrapped():
            parsed = _parse(config, files, job)
        rejects, dropped = _find_rejects(parsed.select_columns(["file", "doc_id", "reason"]).take_all())
        keys = parsed.select_columns(["file", "keys"]).to_arrow_refs()
        counted, owned = ray.remote(own_texts).options(num_cpus=0, num_returns=2).remote(keys, dropped)
        n_texts = fetch(counted)
        say(f"parse   {len(files)}/{len(files)} files, {len(rejects)} rejected, {n_texts} texts to encode")
        if len(rejects) == len(files):
            raise DataError(f"none of {len(files)} files can be used; the first: {rejects[0][0]}: {rejects[0][1]}")
        blocks = parsed.to_arrow_refs()
        # Holds no CPU: it must not wait for the encoders, which take them all and last longer.
        terms = ray.remote(terms_of).options(num_cpus=0).remote(config, blocks, dropped)
        parse_s = time.perf_counter() - started
        started = time.perf_counter()
        with unwrapped():
            by_encoder = _encode(config, parsed, owned, n_texts, n_encoders, gpu, job) if n_texts else ()
        encode_s = time.perf_counter() - started
        started = time.perf_counter()
        reduce = ray.remote(_reduce).options(num_cpus=1, max_retries=1)
        counts = fetch(reduce.remote(config, blocks, rejects, terms))
        reduce_s = time.perf_counter() - started
    return IndexSummary(
        path=config.index.path,
        counts=counts,
        n_files=len(files),
        n_rejects=len(rejects),
        rejects=tuple(rejects[:10]),
        texts_by_encoder=by_encoder,
        parse_s=parse_s,
        encode_s=encode_s,
        reduce_s=reduce_s,
        wall_s=time.perf_counter() - began,
    )


def _configure_data() -> None:
    context = ray.data.DataContext.get_current()
    # A stage's own error comes back as itself: its cause would be lost on the way.
    context.raise_original_map_exception = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.verbose_progress = False
    # Ray Data's own lines would stand between ours.
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _parse(config: Config, files: Sequence[str], job: str) -> Any:
    """One row a file: its tree and which of its texts are new, or why it cannot be used."""
    n_blocks = min(len(files), 4 * (config.index.parsers or int(ray.cluster_resources().get("CPU", 1))))
    dataset = ray.data.from_items([{"file": file} for file in files], override_num_blocks=n_blocks)
    stage = functools.partial(parse, config=config, job=job)
    concurrency = {} if config.index.parsers is None else {"concurrency": config.index.parsers}
    return dataset.map_batches(stage, batch_size=None, batch_format="pyarrow", **concurrency).materialize()


def parse(batch: pa.Table, config: Config, job: str) -> pa.Table:
    """Parse files into trees (a Ray Data task).

    Args:
        batch: Column ``file``.
        config: The job's configuration.
        job: Unique name of this job.

    Returns:
        Columns file, doc_id, reason (null when the file is good), keys (of the texts that are new to the index, one
        after another), document and nodes (Arrow streams).
    """
    metadata = read_metadata(config.documents.metadata)
    unknown = _unknown(config.model_dump_json(), job)
    count = token_counter(config.index.encoder.model, config.index.encoder.revision)
    rows = []
    for file in batch["file"].to_pylist():
        row = {"file": file, "doc_id": None, "reason": None, "keys": b"", "document": b"", "nodes": b""}
        try:
            document = _with_metadata(parse_file(file, read_bytes(file)), metadata)
            nodes = _counted(flatten(document), count)
            _, texts = texts_to_encode(NodeTable(nodes), config.index.paragraph_vectors)
            row |= {"doc_id": document.doc_id, "keys": b"".join(unknown.of_texts(texts).values())}
            row |= {"document": _packed(document_table([document])), "nodes": _packed(nodes)}
        except DataError as error:
            row["reason"] = str(error)
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_PARSED_SCHEMA)


_PARSED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("doc_id", pa.string()),
        ("reason", pa.string()),
        ("keys", pa.large_binary()),
        ("document", pa.large_binary()),
        ("nodes", pa.large_binary()),
    ]
)


def _find_rejects(rows: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, str]], frozenset[str]]:
    """Files that cannot be used: unreadable ones, and all but the first of those that share a document id."""
    rejects: list[tuple[str, str]] = []
    owner: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row["file"]):
        if row["reason"] is not None:
            rejects.append((row["file"], row["reason"]))
        elif row["doc_id"] in owner:
            reason = f"doc_id {row['doc_id']!r} is already that of {owner[row['doc_id']]}: rename one of them"
            rejects.append((row["file"], reason))
        else:
            owner[row["doc_id"]] = row["file"]
    return rejects, frozenset(file for file, _ in rejects)


def own_texts(blocks: Sequence[Any], dropped: frozenset[str]) -> tuple[int, dict[str, Mask]]:
    """Give every new text to the first file that holds it (a task).

    Args:
        blocks: Refs of tables with columns file and keys.
        dropped: Files that are not used.

    Returns:
        How many texts there are, and by file which of its new texts it owns, shape ``(n,)``.
    """
    rows = sorted((row["file"], row["keys"]) for block in ray.get(list(blocks)) for row in block.to_pylist())
    used = [(file, keys) for file, keys in rows if file not in dropped]
    all_keys = np.frombuffer(b"".join(keys for _, keys in used), no_keys().dtype)
    first = np.zeros(len(all_keys), bool)
    first[np.unique(all_keys.view(f"S{KEY_BYTES}"), return_index=True)[1]] = True
    ends = np.cumsum([len(keys) // KEY_BYTES for _, keys in used])
    masks = np.split(first, ends[:-1]) if used else []
    return int(first.sum()), {file: mask for (file, _), mask in zip(used, masks, strict=True)}


def _encode(
    config: Config, parsed: Any, owned: Any, n_texts: int, n_encoders: int, gpu: bool, job: str
) -> tuple[int, ...]:
    """Encode what is new, spread over the encoders however the documents are sized; returns how many each had."""
    block_rows = min(max(-(-n_texts // (BLOCKS_PER_ENCODER * n_encoders)), MIN_BLOCK_ROWS), BLOCK_ROWS)
    texts = (
        parsed.select_columns(["file", "nodes"])
        .map_batches(
            functools.partial(new_texts, config=config, owned=owned, job=job),
            batch_size=None,
            batch_format="pyarrow",
        )
        .repartition(target_num_rows_per_block=block_rows, strict=True)
        .materialize()
    )
    # Materialised first: encoders may then take every CPU without starving the tasks that feed them.
    encoded = texts.map_batches(
        Encode,
        fn_constructor_args=(config,),
        compute=ray.data.ActorPoolStrategy(size=min(n_encoders, -(-n_texts // block_rows))),
        batch_size=None,
        batch_format="pyarrow",
        resources=config.index.resources or None,
        **({"num_gpus": 1} if gpu else {"num_cpus": 1}),
    )
    began, by_encoder = time.perf_counter(), Counter[str]()
    for row in encoded.iter_rows():
        by_encoder[row["encoder"]] += row["n_texts"]
        n_done = by_encoder.total()
        say(f"encode  {n_done}/{n_texts} texts  {n_done / (time.perf_counter() - began):.0f}/s")
    return tuple(sorted(by_encoder.values()))


def new_texts(batch: pa.Table, config: Config, owned: Any, job: str) -> pa.Table:
    """List the texts of some documents that no index knows, each in one document of all (a Ray Data task).

    Args:
        batch: Columns file and nodes.
        config: The job's configuration.
        owned: Ref of what ``own_texts`` found.
        job: Unique name of this job.

    Returns:
        Columns key and text.
    """
    unknown = _unknown(config.model_dump_json(), job)
    mine: Mapping[str, Mask] = ray.get(owned)
    keys: list[bytes] = []
    found: list[str] = []
    for file, nodes in zip(batch["file"].to_pylist(), batch["nodes"], strict=True):
        if file not in mine:
            continue
        _, texts = texts_to_encode(NodeTable(_unpacked(nodes)), config.index.paragraph_vectors)
        new = unknown.of_texts(texts)
        keys += compress(new.values(), mine[file])
        found += compress(new, mine[file])
    return pa.table({"key": pa.array(keys, pa.binary(KEY_BYTES)), "text": pa.array(found, pa.large_string())})


class Encode:
    """Encodes blocks of texts and keeps their vectors in the index directory (an actor of Ray Data)."""

    def __init__(self, config: Config) -> None:
        from kohaku_ray.engine.tools import make_encoder

        self._encoder = make_encoder(config)
        self._pending = PendingVectors(config.index.path)
        self._identity = encoder_settings(config)
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Encode one block.

        Args:
            batch: Columns key and text.

        Returns:
            One row: how many texts are done, and by whom.
        """
        if len(batch):
            vectors = self._encoder.encode_passages(batch["text"].to_pylist())
            self._pending.write(self._identity, batch["key"].to_pylist(), vectors)
        return pa.table({"n_texts": [len(batch)], "encoder": [self._name]})


def terms_of(config: Config, blocks: Sequence[Any], dropped: frozenset[str]) -> dict[str, pa.Table]:
    """Build BM25 over all documents (a task).

    Args:
        config: The job's configuration.
        blocks: Refs of what ``parse`` returns.
        dropped: Files that are not used.
    """
    return build_terms(NodeTable(_joined(_used(blocks, dropped), "nodes")), index_settings(config))


def _reduce(
    config: Config, blocks: Sequence[Any], rejects: Sequence[tuple[str, str]], terms: Mapping[str, pa.Table]
) -> dict[str, Any]:
    """Put all documents together, propagate and build (the reducer task)."""
    used = _used(blocks, frozenset(file for file, _ in rejects))
    pending = PendingVectors(config.index.path)
    keys, vectors = pending.load(encoder_settings(config))
    counts = build_index(
        config.index.path,
        nodes=_joined(used, "nodes"),
        documents=_joined(used, "document"),
        rejects=pa.table(
            {"file": [file for file, _ in rejects], "reason": [reason for _, reason in rejects]}, schema=REJECT_SCHEMA
        ),
        keys=keys,
        vectors=vectors,
        settings=index_settings(config),
        terms=terms,
    )
    pending.clear()
    return counts


def _used(blocks: Sequence[Any], dropped: frozenset[str]) -> list[dict[str, Any]]:
    """Rows of what ``parse`` returns, by document id, those of dropped files left out."""
    rows = [row for block in ray.get(list(blocks)) for row in block.to_pylist() if row["file"] not in dropped]
    return sorted(rows, key=lambda row: row["doc_id"])


def _joined(rows: Sequence[Mapping[str, Any]], column: str) -> pa.Table:
    return pa.concat_tables(_unpacked(row[column]) for row in rows)


class _Unknown:
    """Tells which texts have no vector yet, in an index or left by an interrupted job."""

    def __init__(self, config: Config) -> None:
        self._identity = encoder_settings(config)
        self._known = known_vectors(config.index.path, self._identity)
        self._left = PendingVectors(config.index.path).keys(self._identity)

    def of_texts(self, texts: Sequence[str]) -> dict[str, bytes]:
        """The distinct texts among these that are new, with their keys."""
        distinct = list(dict.fromkeys(texts))
        keys = vector_keys(self._identity, distinct)
        found, _ = self._known.lookup(keys)
        return {
            text: key
            for text, key, known in zip(distinct, keys.tolist(), found, strict=True)
            if not known and key not in self._left
        }


@functools.lru_cache(maxsize=1)
def _unknown(config_json: str, job: str) -> _Unknown:
    """One a worker and job: the keys of a large index are read once, and never those of an earlier job."""
    return _Unknown(Config.model_validate_json(config_json))


def _with_metadata(document: Document, metadata: Mapping[str, Mapping[str, str]]) -> Document:
    row = metadata.get(document.doc_id)
    if row is None:
        return document
    return replace(document, title=row.get("title", document.title), metadata={**document.metadata, **row})


def _counted(nodes: pa.Table, count: Any) -> pa.Table:
    """Fill in token counts: a sentence's own, and sums upwards, so that a node's count is that of its sentences."""
    tree = NodeTable(nodes)
    leaf = np.array(nodes["kind"].to_pylist()) == "sentence"
    own = np.zeros(len(nodes), np.int64)
    own[leaf] = count(nodes["text"].filter(pa.array(leaf)).to_pylist())
    before = np.r_[0, np.cumsum(own)]
    total = before[tree.end] - before[np.arange(len(nodes))]
    place = nodes.schema.get_field_index("n_tokens")
    return nodes.set_column(place, nodes.schema.field(place), pa.array(total, nodes.schema.field(place).type))


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(data: Any) -> pa.Table:
    return pa.ipc.open_stream(data.as_buffer() if isinstance(data, pa.Scalar) else data).read_all()
