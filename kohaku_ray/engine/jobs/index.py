"""The index job: files → document trees → vectors → index.

Two passes of Ray Data. The first parses (CPU tasks) and counts what is new; the second encodes it (an actor pool, on
GPUs where there are any). So progress knows its total, no vector is computed twice, and texts are sorted by length over
all documents: blocks of equal cost, with little padding, for the encoders. Vectors go to the index directory as they
are made: an interrupted job repeats none of them. Meanwhile the reducer makes what needs no vector, BM25; then it does
the rest.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from kohaku_ray.arrays import I64
from kohaku_ray.config import Config
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.parse import parse_file, read_bytes
from kohaku_ray.engine.actors.tools import encoder_settings, index_settings
from kohaku_ray.engine.cluster import check_demand, connected, index_demand, say
from kohaku_ray.engine.errors import ray_get, unwrapped
from kohaku_ray.errors import DataError
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import REJECT_SCHEMA, build_index, build_terms
from kohaku_ray.index.files import column_keys
from kohaku_ray.index.identity import KEY_BYTES, vector_keys
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.index.store import known_vectors
from kohaku_ray.index.tokens import token_counter
from kohaku_ray.runs.sources import find_sources, read_metadata, resolve_paths
from kohaku_ray.tree.flatten import document_table, flatten
from kohaku_ray.tree.nodes import NodeTable

BLOCKS_PER_ENCODER = 32
"""So many blocks or more, unless they would be too small."""
LAST_BLOCKS_PER_ENCODER = 4
"""What is left at any time is at least so many, unless they would be too small."""
MIN_BLOCK_TOKENS = 4096
MAX_BLOCK_ROWS = 8192
SPECIAL_TOKENS = 2
"""What a text costs beside its own tokens."""


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
    began, config = time.perf_counter(), resolve_paths(config)
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
        blocks = parsed.to_arrow_refs()
        gather = ray.remote(sorted_texts).options(num_cpus=0, num_returns="streaming")
        first, *refs = gather.remote(blocks, n_encoders)
        work = ray_get(first)
        rejects = work.rejects
        say(f"parse   {len(files)}/{len(files)} files, {len(rejects)} rejected, {work.n_texts} texts to encode")
        if len(rejects) == len(files):
            raise DataError(f"none of {len(files)} files can be used; the first: {rejects[0][0]}: {rejects[0][1]}")
        texts = ray.data.from_arrow_refs(refs)
        # Holds no CPU: it must not wait for the encoders, which take them all and last longer.
        reducer = ray.remote(reduced).options(
            num_cpus=0, max_retries=1, num_returns="streaming", _generator_backpressure_num_objects=1
        )
        reducing = reducer.remote(config, blocks, rejects)
        parse_s = time.perf_counter() - started
        started = time.perf_counter()
        with unwrapped():
            by_encoder = _encode(config, texts, work, n_encoders, gpu) if refs else ()
        encode_s = time.perf_counter() - started
        started = time.perf_counter()
        ray_get(next(reducing))
        counts = ray_get(next(reducing))
        reduce_s = time.perf_counter() - started
    return IndexSummary(
        path=config.index.path,
        counts=counts,
        n_files=len(files),
        n_rejects=len(rejects),
        rejects=rejects[:10],
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
        Columns file, doc_id, reason (null when the file is good), and as Arrow streams document, nodes and texts: those
        that are new to the index, with columns key, n_tokens and text.
    """
    metadata = read_metadata(config.documents.metadata)
    unknown = _unknown(config.model_dump_json(), job)
    count = token_counter(config.index.encoder.model, config.index.encoder.revision)
    rows = []
    for file in batch["file"].to_pylist():
        row = {"file": file, "doc_id": None, "reason": None, "document": b"", "nodes": b"", "texts": b""}
        try:
            document = _with_metadata(parse_file(file, read_bytes(file)), metadata)
            nodes = _counted(flatten(document), count)
            row |= {"doc_id": document.doc_id, "document": _packed(document_table([document]))}
            row |= {"nodes": _packed(nodes), "texts": _packed(_new_texts(nodes, unknown, config))}
        except DataError as error:
            row["reason"] = str(error)
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_PARSED_SCHEMA)


_PARSED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("doc_id", pa.string()),
        ("reason", pa.string()),
        ("document", pa.large_binary()),
        ("nodes", pa.large_binary()),
        ("texts", pa.large_binary()),
    ]
)


def _new_texts(nodes: pa.Table, unknown: _Unknown, config: Config) -> pa.Table:
    """List what an encoder has to read of a document: texts that no index knows."""
    tree = NodeTable(nodes)
    at, texts = texts_to_encode(tree, config.index.paragraph_vectors)
    n_tokens = dict(zip(texts, tree.tokens[at].tolist(), strict=True))
    new = unknown.of_texts(texts)
    columns = (new.values(), [n_tokens[text] + SPECIAL_TOKENS for text in new], new)
    return pa.table([pa.array(list(of), field.type) for of, field in zip(columns, _TEXTS, strict=True)], schema=_TEXTS)


_TEXTS = pa.schema([("key", pa.binary(KEY_BYTES)), ("n_tokens", pa.int64()), ("text", pa.large_string())])


@dataclass(frozen=True, slots=True)
class Work:
    """What the parsed files leave to do.

    Attributes:
        rejects: Files that cannot be used, with their reasons.
        n_texts: Texts of the others that no index knows, each counted once.
        n_tokens: Tokens of these, special ones included.
    """

    rejects: tuple[tuple[str, str], ...]
    n_texts: int
    n_tokens: int


def sorted_texts(blocks: Sequence[Any], n_encoders: int) -> Iterator[Work | pa.Table]:
    """Sort the new texts of all documents by length, and divide them among the encoders (a generator task).

    Args:
        blocks: Refs of what ``parse`` returns.
        n_encoders: Encoders that share the texts.

    Yields:
        What there is to do; then the texts, each once, the longest first, in blocks of about as many tokens.
    """
    rows = _rows(blocks, "file", "doc_id", "reason", "texts")
    rejects = _find_rejects(rows)
    texts = pa.concat_tables([_TEXTS.empty_table(), *(_unpacked(row["texts"]) for row in _used(rows, rejects))])
    keys = column_keys(texts["key"]).view(f"S{KEY_BYTES}")
    texts = texts.take(pa.array(np.unique(keys, return_index=True)[1]))
    # Keys decide among equals: the same texts make the same batches, and so the same vectors to the bit.
    texts = texts.sort_by([("n_tokens", "descending"), ("key", "ascending")])
    n_tokens = texts["n_tokens"].to_numpy()
    yield Work(rejects, len(texts), int(n_tokens.sum()))
    for first, last in pairwise(_bounds(n_tokens, n_encoders)):
        yield texts.slice(first, last - first)


def _find_rejects(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
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
    return tuple(rejects)


def _bounds(n_tokens: I64, n_encoders: int) -> list[int]:
    """Cut sorted texts into blocks: where each begins, and the end.

    Blocks cost about the same, and less towards the end, so that no encoder works on for long when the others are done.
    """
    done = np.r_[0, np.cumsum(n_tokens)]
    total, bounds = int(done[-1]), [0]
    while bounds[-1] < len(n_tokens):
        first = bounds[-1]
        share = min(total / BLOCKS_PER_ENCODER, (total - done[first]) / LAST_BLOCKS_PER_ENCODER) / n_encoders
        last = int(np.searchsorted(done, done[first] + max(share, MIN_BLOCK_TOKENS), side="right")) - 1
        bounds.append(min(max(last, first + 1), first + MAX_BLOCK_ROWS))
    return bounds


def _encode(config: Config, texts: Any, work: Work, n_encoders: int, gpu: bool) -> tuple[int, ...]:
    """Encode a dataset of texts, block by block; returns how many each encoder had."""
    encoded = texts.map_batches(
        Encode,
        fn_constructor_args=(config,),
        compute=ray.data.ActorPoolStrategy(size=min(n_encoders, texts.num_blocks())),
        batch_size=None,
        batch_format="pyarrow",
        resources=config.index.resources or None,
        **({"num_gpus": 1} if gpu else {"num_cpus": 1}),
    )
    began, by_encoder, n_tokens = time.perf_counter(), Counter[str](), 0
    for batch in encoded.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            by_encoder[row["encoder"]] += row["n_texts"]
            n_tokens += row["n_tokens"]
        share, rate = n_tokens / work.n_tokens, n_tokens / (time.perf_counter() - began)
        say(f"encode  {by_encoder.total()}/{work.n_texts} texts, {share:.0%} of their tokens  {rate:.0f} tokens/s")
    return tuple(sorted(by_encoder.values()))


class Encode:
    """Encodes blocks of texts and keeps their vectors in the index directory (an actor of Ray Data)."""

    def __init__(self, config: Config) -> None:
        from kohaku_ray.engine.actors.tools import make_encoder

        self._encoder = make_encoder(config)
        self._pending = PendingVectors(config.index.path)
        self._identity = encoder_settings(config)
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Encode one block.

        Args:
            batch: Columns key, n_tokens and text.

        Returns:
            One row: how much is done, and by whom.
        """
        vectors = self._encoder.encode_passages(batch["text"].to_pylist())
        self._pending.write(self._identity, batch["key"].to_pylist(), vectors)
        n_tokens = int(batch["n_tokens"].to_numpy().sum())
        return pa.table({"n_texts": [len(batch)], "n_tokens": [n_tokens], "encoder": [self._name]})


def reduced(
    config: Config, blocks: Sequence[Any], rejects: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any] | None]:
    """Put all documents together, propagate and build (the reducer, a generator task).

    Args:
        config: The job's configuration.
        blocks: Refs of what ``parse`` returns.
        rejects: Files that are not used, with their reasons.

    Yields:
        None when all is done that needs no vector; then the counts of ``build_index``. The reducer waits between the
        two until the first is taken (one value at a time): take it when the vectors are there. Where the job fails
        before, Ray lets it go on: it misses vectors then, and leaves the index as it is.
    """
    nodes, documents = _trees(blocks, rejects)
    settings = index_settings(config)
    terms = build_terms(NodeTable(nodes), settings)
    yield None
    pending = PendingVectors(config.index.path)
    keys, vectors = pending.load(encoder_settings(config))
    counts = build_index(
        config.index.path,
        nodes=nodes,
        documents=documents,
        rejects=pa.table(
            {"file": [file for file, _ in rejects], "reason": [reason for _, reason in rejects]}, schema=REJECT_SCHEMA
        ),
        keys=keys,
        vectors=vectors,
        settings=settings,
        terms=terms,
    )
    pending.clear()
    yield counts


def _trees(blocks: Sequence[Any], rejects: Sequence[tuple[str, str]]) -> tuple[pa.Table, pa.Table]:
    """Join the nodes and the documents of all files that are used; what was packed is let go."""
    used = _used(_rows(blocks, "file", "doc_id", "nodes", "document"), rejects)
    return _joined(used, "nodes"), _joined(used, "document")


def _rows(blocks: Sequence[Any], *columns: str) -> list[dict[str, Any]]:
    """Read some columns of what ``parse`` returned."""
    return [row for block in ray.get(list(blocks)) for row in block.select(columns).to_pylist()]


def _used(rows: Sequence[dict[str, Any]], rejects: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Leave the rejected files' rows out and sort the others by document id."""
    dropped = {file for file, _ in rejects}
    return sorted((row for row in rows if row["file"] not in dropped), key=lambda row: row["doc_id"])


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
