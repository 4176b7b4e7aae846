"""The stages of the index job that Ray runs: parse files, sort and encode texts, reduce to shards, join them.

``job`` is the unique name of a job; it names the parts that its tasks keep beside the index.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.config import Config
from kohaku_ray.documents.bounded import packed
from kohaku_ray.documents.figures import images_of
from kohaku_ray.documents.model import Document
from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import I32, I64, KEY_BYTES, column_keys
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import (
    REJECT_SCHEMA,
    ShardEntry,
    build_shard,
    build_terms,
    content_of,
    publish_shards,
    unchanged_shard,
    views_with_old,
)
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import passage_tokenizer, token_counter, vector_keys
from kohaku_ray.index.images import image_table, write_image
from kohaku_ray.index.known import KnownVectors, known_vectors
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import CHUNK, SENTENCE, NodeTable
from kohaku_ray.index.pending import ParsedParts, PendingVectors, part_name, without_vectors
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.models.endpoint import EndpointEncoder
from kohaku_ray.models.openai import Limiter
from kohaku_ray.run.documents import par_ids_of, parse_source, rejected_images, split_used_and_rejected, with_metadata
from kohaku_ray.run.image_encoding import image_vectors
from kohaku_ray.run.indexes import (
    chunks_of,
    encoder_settings,
    index_settings,
    make_encoder,
    views_of,
)
from kohaku_ray.run.sources import document_format, read_metadata
from kohaku_ray.storage import Directory

BLOCKS_PER_ENCODER = 32
"""Fewest blocks per encoder, unless a block would fall below ``MIN_BLOCK_TOKENS`` (``MIN_GPU_BLOCK_TOKENS``)."""
LAST_BLOCKS_PER_ENCODER = 4
"""Fewest blocks per encoder that the remaining texts make at any time, with the same exception."""
MIN_BLOCK_TOKENS, MIN_GPU_BLOCK_TOKENS = 4096, 1 << 17
"""Each block costs a task and a file, and 4096 tokens are a few milliseconds of a GPU."""
MAX_BLOCK_ROWS, MAX_GPU_BLOCK_ROWS = 8192, 1 << 16
SPECIAL_TOKENS = 2
"""Special tokens that the encoder adds to each text."""
WINDOW_TEXTS = 65_536
"""Texts that are sorted by length together; encoding waits for no more than a window of them."""
NEW_TEXT = pa.schema(
    [("key", pa.binary(KEY_BYTES)), ("n_tokens", pa.int64()), ("text", pa.large_string()), ("shard", pa.int64())]
)
TEXT_SCHEMA = NEW_TEXT.append(pa.field("ids", pa.list_(pa.int32())))
"""A text to encode: its vector's key, the number of its tokens with the special ones, the shard that needs its vector,
and the ids that the encoder computes with, none where only the encoder itself can tell them."""


def parse(batch: pa.Table, config: Config, job: str, ids: Mapping[str, str] | None = None) -> pa.Table:
    """Parse files into trees and write them beside the index as a part (a Ray Data task).

    Takes columns file and at, its number among all files, and what ``default_ids`` says of all of them; returns the
    texts that are new to the index, ``TEXT_SCHEMA``.
    """
    metadata = _metadata(config.documents.metadata, job)
    digest_words = document_format(config).digest
    rows: list[dict[str, Any]] = []
    for file in batch["file"].to_pylist():
        parsed = parse_source(file, config, (ids or {}).get(file))
        rejects = (*parsed.rejects, *rejected_images(file, parsed))
        rows += [{"file": file, "where": where, "reason": reason} for where, reason in rejects]
        for parsed_document in parsed.documents:
            is_whole = len(parsed.documents) == 1 and not parsed.rejects
            row = {"file": file, "where": file if is_whole else f"{file}: {parsed_document.doc_id}"}
            try:
                document = with_metadata(parsed_document, metadata)
                images = image_tables(document, config) if config.index.images else {}
                words = digest_words(document) if digest_words else None
                shard = shard_number(document.doc_id, config.index.shards)
                row |= {"doc_id": document.doc_id, "par_ids": par_ids_of(document), "words": words, "shard": shard}
                row |= images
                row |= tables_of(document, config, job)
            except DataError as error:
                row |= {"doc_id": parsed_document.doc_id, "reason": str(error)}
            rows.append(row)
    first = batch["at"][0].as_py() if len(batch) else 0
    ParsedParts(config.index.path, job).write(part_name(first, len(batch)), rows)
    return new_texts(rows, config)


def tables_of(document: Document, config: Config, job: str) -> dict[str, Any]:
    """Make the tables of a document: documents, nodes and texts; and the digest of the first two."""
    count = token_counter(config.index.encoder.tokenizer, config.index.encoder.revision)
    nodes = _counted(flatten(document, chunks_of(config), count), count)
    documents = document_table([document])
    digest = hashlib.blake2b(_as_stream(documents) + _as_stream(nodes), digest_size=16).hexdigest()
    return {"documents": documents, "nodes": nodes, "digest": digest, "texts": texts_of(nodes, config, job)}


def image_tables(document: Document, config: Config) -> dict[str, Any]:
    """What a document's images decide of its row; their PNGs are written, each once."""
    directory = Directory(config.index.path)
    for _, _, image in images_of(document):
        write_image(directory, image)
    table = image_table(document, config.index.captions)
    left_out = json.dumps(dict(document.images_left_out)) if document.images_left_out else None
    tree = packed(document) if config.index_roles else None
    return {"images": table, "left_out": left_out, "tree": tree}


def new_texts(rows: Sequence[Mapping[str, Any]], config: Config) -> pa.Table:
    """Join the new texts of parsed documents, and tokenise them here, on a CPU: ``TEXT_SCHEMA``."""
    texts = pa.concat_tables([NEW_TEXT.empty_table(), *(row["texts"] for row in rows if "texts" in row)])
    tokenise = _tokenizer_of(config)
    ids = (
        pa.nulls(len(texts), TEXT_SCHEMA.field("ids").type) if tokenise is None else tokenise(texts["text"].to_pylist())
    )
    return texts.append_column(TEXT_SCHEMA.field("ids"), ids)


def _tokenizer_of(config: Config) -> Callable[[Sequence[str]], pa.ListArray] | None:
    encoder = config.index.encoder
    if isinstance(encoder, EndpointConfig):
        return None
    return passage_tokenizer(encoder.model, encoder.revision, encoder.passage_prompt)


def texts_of(nodes: pa.Table, config: Config, job: str) -> pa.Table:
    """List the texts of a document to encode, those without a vector: ``NEW_TEXT``."""
    tree = NodeTable(nodes)
    captions = config.index.image_vectors in ("caption", "both")
    numbers, texts = texts_to_encode(tree, config.index, captions=captions)
    new = without_vectors(texts, *_held(config.model_dump_json(), job))
    tokens_of = dict(zip(texts, tree.tokens[numbers].tolist(), strict=True))
    n_tokens = [tokens_of[text] for text in new]
    if config.index.context_header:
        count = token_counter(config.index.encoder.tokenizer, config.index.encoder.revision)
        n_tokens = count(list(new)).tolist()
    shard = shard_number(nodes["doc_id"][0].as_py(), config.index.shards)
    columns = [list(new.values()), [n + SPECIAL_TOKENS for n in n_tokens], list(new), [shard] * len(new)]
    return pa.table(columns, schema=NEW_TEXT)


@dataclass(frozen=True, slots=True)
class Work:
    """The encoding work that the parsed files leave."""

    n_files: int  # that gave a document or a reject
    n_documents: int  # that are used
    rejects: tuple[tuple[str, str], ...]  # files, or parts of files, that cannot be used, with their reasons
    n_texts: int  # distinct ones without a vector in the used documents
    n_tokens: int  # of these texts, special tokens included
    images_left_out: Mapping[str, int]  # number of images that carry no content, by reason


def survey(config: Config, job: str) -> tuple[Work | list[dict[str, Any]], ...]:
    """Count what all parts of a job hold (a task); returns that, and for each shard the rows of its documents."""
    parts = ParsedParts(config.index.path, job)
    rows = parts.rows("left_out")
    used, rejects = split_used_and_rejected(rows)
    texts = parts.table(used, "texts")
    _, first = np.unique(column_keys(texts["key"]).view(f"S{KEY_BYTES}"), return_index=True)
    n_tokens = texts["n_tokens"].to_numpy()[first]
    left_out = sum((Counter(json.loads(row["left_out"])) for row in used if row["left_out"]), Counter[str]())
    n_files = len({row["file"] for row in rows})
    shard_rows: list[list[dict[str, Any]]] = [[] for _ in range(config.index.shards)]
    for row in used:
        shard_rows[row["shard"]].append({name: row[name] for name in ("doc_id", "digest", "at")})
    return (Work(n_files, len(used), rejects, len(n_tokens), int(n_tokens.sum()), left_out), *shard_rows)


def sorted_window(texts: pa.Table, n_encoders: int, gpu: bool = False) -> pa.Table:
    """Sort a window of new texts (``TEXT_SCHEMA``) by length, and divide them among encoders (a Ray Data task).

    Encoders on GPUs (``gpu``) get larger blocks.

    Returns:
        The distinct texts, longest first, in blocks of about equal cost: a row per block, each column a list, and
        ``shard`` a list of lists.
    """
    numbered = texts.append_column("row", pa.array(np.arange(len(texts))))
    same = numbered.group_by("key", use_threads=False).aggregate([("row", "min"), ("shard", "distinct")])
    texts = texts.take(same["row_min"]).set_column(3, "shard", same["shard_distinct"])
    # Ties sort by key: the same texts make the same batches, so their vectors are identical to the bit.
    texts = texts.take(pc.sort_indices(texts, [("n_tokens", "descending"), ("key", "ascending")])).combine_chunks()
    bounds = pa.array(_bounds(texts["n_tokens"].to_numpy(), n_encoders, gpu), pa.int64())
    columns = [
        pa.LargeListArray.from_arrays(bounds, pa.concat_arrays([pa.array([], field.type), *texts[field.name].chunks]))
        for field in texts.schema
    ]
    return pa.table(columns, names=TEXT_SCHEMA.names)


def _bounds(n_tokens: I64, n_encoders: int, gpu: bool = False) -> list[int]:
    """Return the start row of each block of sorted texts, then the number of texts.

    Blocks cost about the same, and less towards the end, so that all encoders finish at about the same time.
    """
    fewest, most_rows = (MIN_GPU_BLOCK_TOKENS, MAX_GPU_BLOCK_ROWS) if gpu else (MIN_BLOCK_TOKENS, MAX_BLOCK_ROWS)
    done = np.r_[0, np.cumsum(n_tokens)]
    total, bounds = int(done[-1]), [0]
    while bounds[-1] < len(n_tokens):
        first = bounds[-1]
        share = min(total / BLOCKS_PER_ENCODER, (total - done[first]) / LAST_BLOCKS_PER_ENCODER) / n_encoders
        last = int(np.searchsorted(done, done[first] + max(share, fewest), side="right")) - 1
        bounds.append(min(max(last, first + 1), first + most_rows))
    return bounds


class Encode:
    """Encodes blocks of texts and writes their vectors to the index directory (an actor of Ray Data).

    Two threads call it: while a GPU computes one block, the next is made ready and the last one written, and a server
    has requests of two blocks. On a CPU one of them computes at a time.
    """

    def __init__(self, config: Config, gpu: bool, limiter: Limiter | None = None) -> None:
        # Ray does not hide the GPUs of its machine from an actor that asked for none.
        self._encoder = make_encoder(config, None, limiter, None if gpu else "cpu")
        self._pending = PendingVectors(config.index.path)
        self._identity = encoder_settings(config)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        tokenise = _tokenizer_of(config)
        self._takes_ids = tokenise is not None and self._encoder.tokenises_as(tokenise)
        self._turn: AbstractContextManager[Any] = threading.Lock()
        if gpu or isinstance(self._encoder, EndpointEncoder):
            self._turn = nullcontext()

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Encode one block, a row of ``sorted_window``; returns its counts and the encoder's name."""
        keys, n_tokens, texts, shards = (batch[name][0].as_py() for name in NEW_TEXT.names)
        ids = _rows_of(batch["ids"][0].values) if self._takes_ids else None
        with self._turn:
            vectors = self._encoder.encode_passages(texts, ids)
        self._pending.write(self._identity, keys, vectors, shards)
        return pa.table({"n_texts": [len(texts)], "n_tokens": [sum(n_tokens)], "encoder": [self._name]})


def _rows_of(lists: pa.ListArray) -> list[I32]:
    """Return the rows of a column of lists, without copying them."""
    values = lists.flatten().to_numpy()
    bounds = lists.offsets.to_numpy()
    return [values[first:last] for first, last in pairwise((bounds - bounds[0]).tolist())]


@functools.lru_cache(maxsize=1)
def _held(config_json: str, job: str) -> tuple[dict[str, Any], KnownVectors, set[bytes]]:
    """The encoder's identity, and its vectors there are: read once per worker and job, and never an earlier job's."""
    config = Config.model_validate_json(config_json)
    identity = encoder_settings(config)
    return identity, known_vectors(config.index.path, identity), PendingVectors(config.index.path).keys(identity)


@functools.lru_cache(maxsize=1)
def _metadata(path: str | None, job: str) -> Mapping[str, Mapping[str, str]]:
    """The metadata of all documents: read once per worker and job."""
    return read_metadata(path)


def _counted(nodes: pa.Table, count: Any) -> pa.Table:
    """Fill in token counts: sentences and chunks are counted, every other node gets the sum of its sentences."""
    tree = NodeTable(nodes)
    is_chunk = tree.kind == CHUNK
    leaf = (tree.kind == SENTENCE) | is_chunk
    leaf_tokens = np.zeros(len(nodes), np.int64)
    leaf_tokens[leaf] = count(nodes["text"].filter(pa.array(leaf)).to_pylist())
    before = np.r_[0, np.cumsum(np.where(is_chunk, 0, leaf_tokens))]
    total = np.where(is_chunk, leaf_tokens, before[tree.end] - before[:-1])
    column = nodes.schema.get_field_index("n_tokens")
    return nodes.set_column(column, nodes.schema.field(column), pa.array(total, nodes.schema.field(column).type))


def _as_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


BuiltShard = tuple[ShardEntry, bool]
"""A shard, and whether it was there before."""


def reduce_shard(config: Config, job: str, number: int, rows: list[dict[str, Any]]) -> Iterator[BuiltShard | None]:
    """Build one shard, or find it unchanged (a generator task); ``rows`` are those of its documents (``survey``).

    It reads what was parsed and encoded for this shard, and of others only vectors that an interrupted job left.

    Yields:
        None when everything that needs no vectors is done; then the shard, or None: no document belongs to it. If Ray
        holds the task back until the first value is taken, it can start before all vectors are written. If the job
        fails before that, Ray lets the task go on; it then misses vectors and leaves the index as it is.
    """
    parsed = ParsedParts(config.index.path, job)
    path, settings = config.index.path, index_settings(config)
    views = views_with_old(path, settings, views_of(config))
    content = content_of({row["doc_id"]: row["digest"] for row in rows}, settings, views)
    unchanged = unchanged_shard(path, number, content) if rows else None
    if not rows or unchanged is not None:
        yield None
        yield None if unchanged is None else (unchanged, True)
        return
    nodes = parsed.table(rows, "nodes")
    tree = NodeTable(nodes)
    terms = build_terms(tree, settings, views)
    _, texts = texts_to_encode(tree, settings.index, captions=settings.image_plan.encodes_captions)
    wanted = vector_keys(settings.encoder, list(dict.fromkeys(texts)))
    known = known_vectors(path, settings.encoder, number)
    wanted = wanted[~known.has(wanted)]
    del tree, texts
    yield None
    keys, vectors = PendingVectors(path).load(encoder_settings(config), wanted, number)
    shard = build_shard(
        path,
        number,
        content,
        nodes=nodes,
        documents=parsed.table(rows, "documents"),
        keys=keys,
        vectors=vectors,
        settings=settings,
        views=views,
        terms=terms,
        image_vectors=image_vectors(path, settings),
        known=known,
        train_on_gpu=config.index.n_build_gpus > 0,
    )
    yield shard, False


def build_shard_task(config: Config, job: str, number: int, rows: list[dict[str, Any]]) -> BuiltShard | None:
    """Do all of ``reduce_shard`` (a task): all vectors are written."""
    *_, part = reduce_shard(config, job, number, rows)
    return part


def join_shards(config: Config, job: str, sources: pa.Table, *parts: BuiltShard | None) -> dict[str, Any]:
    """Make the shards the index (a task); ``sources`` are the files that were parsed (``SOURCES_SCHEMA``).

    Returns:
        See ``publish_shards``; with several shards also ``n_shards``, and ``n_shards_kept``: those not built again.
    """
    parsed = ParsedParts(config.index.path, job)
    used, rejects = split_used_and_rejected(parsed.rows())
    settings = index_settings(config)
    built = [part for part in parts if part is not None]
    kept = [shard["number"] for shard, is_kept in built if is_kept]
    counts = publish_shards(
        config.index.path,
        [shard for shard, _ in built],
        kept,
        rejects=pa.Table.from_pylist([{"file": where, "reason": reason} for where, reason in rejects], REJECT_SCHEMA),
        sources=sources,
        settings=settings,
        views=views_with_old(config.index.path, settings, views_of(config)),
        images=parsed.table(used, "images") if config.index.images else None,
    )
    PendingVectors(config.index.path).clear()
    if config.index.shards > 1:
        counts |= {"n_shards": len(built), "n_shards_kept": len(kept)}
    return counts
