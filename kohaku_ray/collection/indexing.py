"""The stages of the index job that Ray runs: parse files, sort and encode texts, reduce to shards, join them.

``job`` is the unique name of a job; it names the parts that its tasks keep beside the index.
"""

from __future__ import annotations

import functools
import json
import math
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.collection.documents import (
    par_ids_of,
    parse_source,
    rejected_images,
    split_used_and_rejected,
    with_metadata,
)
from kohaku_ray.collection.image_encoding import image_vectors
from kohaku_ray.collection.indexes import (
    chunks_of,
    encoder_length,
    encoder_settings,
    index_settings,
    make_encoder,
    parsing_digest,
    slow_search_note,
    source_names,
    views_of,
)
from kohaku_ray.collection.sources import document_format, read_metadata
from kohaku_ray.config import Config
from kohaku_ray.documents.bounded import packed
from kohaku_ray.documents.figures import images_of
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.parse import compared_pages, read_in_time, repeated_blocks
from kohaku_ray.documents.read import digest_of
from kohaku_ray.errors import ConfigError, DataError
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
from kohaku_ray.index.endpoint import EndpointEncoder
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import passage_tokenizer, token_counter, vector_keys
from kohaku_ray.index.images import image_table, write_image
from kohaku_ray.index.kept import PARSED_SCHEMA, KeptDocuments
from kohaku_ray.index.known import KnownVectors, known_vectors
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import CHUNK, SENTENCE, NodeTable
from kohaku_ray.index.pending import SOURCE_COLUMNS, ParsedParts, PendingVectors, part_name, without_vectors
from kohaku_ray.index.settings import N_SLOTS, EndpointConfig
from kohaku_ray.index.store import SOURCES_SCHEMA
from kohaku_ray.models.openai import Limiter
from kohaku_ray.records import digest
from kohaku_ray.store.storage import Directory, checksum, is_uri

BLOCKS_PER_ENCODER = 32
"""Fewest blocks per encoder, unless a block would fall below ``MIN_BLOCK_TOKENS`` (``MIN_GPU_BLOCK_TOKENS``)."""
LAST_BLOCKS_PER_ENCODER = 4
"""Fewest blocks per encoder that the remaining texts make at any time, with the same exception."""
MIN_BLOCK_TOKENS, MIN_GPU_BLOCK_TOKENS = 4096, 1 << 17
"""Each block costs a task and a file, and 4096 tokens are a few milliseconds of a GPU."""
MAX_BLOCK_ROWS, MAX_GPU_BLOCK_ROWS = 8192, 1 << 16
NODES_PER_SHARD = 300_000
"""Most nodes of a shard whose number is chosen: some 250,000 sentences, which a core builds in 25 s and searches, flat,
in 4 ms per query."""
BYTES_PER_NODE = 2048
"""Memory of a shard's build per node besides its vectors: texts, terms and the tree take 840 in benchmarks/growth.py,
whose sentences are half as long as real ones."""
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


def parse(
    batch: pa.Table, config: Config, job: str, ids: Mapping[str, str] | None = None, keep: bool = True
) -> pa.Table:
    """Parse files into trees and write them beside the index as a part (a Ray Data task).

    Takes columns file, at, its number among all files, and name, as of ``source_names``, and what ``default_ids`` says
    of all of them; returns the texts that are new to the index, ``TEXT_SCHEMA``. With ``keep``, the documents of a file
    that has not changed are those of the index that is there.
    """
    rows: list[dict[str, Any]] = []
    for file, name in zip(batch["file"].to_pylist(), batch["name"].to_pylist(), strict=True):
        source = _FileToParse(file, name, config, job, (ids or {}).get(file))
        of_file = (source.kept_rows() if keep else None) or source.parsed_rows()
        rows += [{**source.facts(of_file), **row} for row in of_file]
    first = batch["at"][0].as_py() if len(batch) else 0
    ParsedParts(config.index.path, job).write(part_name(first, len(batch)), rows)
    return new_texts(rows, config)


class _FileToParse:
    """A file of a job: its documents as the index has them, or as they are parsed now."""

    def __init__(self, file: str, name: str, config: Config, job: str, default_id: str | None) -> None:
        self._file, self._name, self._config, self._job, self._default_id = file, name, config, job, default_id
        self._kept = _kept(config.model_dump_json(), job)
        self._metadata = _metadata(config.documents.metadata, job)
        self._data: bytes | None = None
        if not is_uri(file):
            with suppress(DataError):  # raised again, as its reject
                self._data = read_in_time(file, config.documents.timeout_s)
        was = self._kept.sources.get(self._name)
        self._digest = digest_of(file, self._data) if is_uri(file) or self._data is not None else None
        self._beside = _beside(file, was.beside if was else None, config)

    def facts(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the index notes of the file, with the rows of all its documents and rejects."""
        is_whole = self._digest is not None and _can_keep(self._file, self._config)
        is_whole &= all(row.get("reason") is None for row in rows)
        n_bytes = None if self._data is None else len(self._data)
        made = self._made(row["doc_id"] for row in rows) if is_whole else None
        return {"file": self._file, "source": self._digest, "n_bytes": n_bytes, "made": made, "beside": self._beside}

    def kept_rows(self) -> list[dict[str, Any]] | None:
        """Rows of its documents in the index that is there; None: they must be parsed."""
        was, documents = self._kept.sources.get(self._name), self._kept.documents.get(self._name)
        if was is None or documents is None or was.digest != self._digest or not _can_keep(self._file, self._config):
            return None
        if was.made != self._made(row["doc_id"] for row in documents):
            return None
        names = ("doc_id", "digest", "par_ids", "words", "left_out")
        n_slots = self._config.index.n_slots
        return [
            {name: row[name] for name in names}
            | {"where": self._where(row["doc_id"], len(documents) == 1), "kept": True}
            | {"shard": shard_number(row["doc_id"], n_slots)}
            for row in documents
        ]

    def parsed_rows(self) -> list[dict[str, Any]]:
        """Rows of its documents and rejects, with their tables."""
        config, digest_words = self._config, document_format(self._config).digest
        parsed = parse_source(self._file, config, self._default_id, self._data)
        rejects = (*parsed.rejects, *rejected_images(self._file, parsed))
        rows: list[dict[str, Any]] = [{"where": where, "reason": reason} for where, reason in rejects]
        for parsed_document in parsed.documents:
            is_whole = len(parsed.documents) == 1 and not parsed.rejects
            row: dict[str, Any] = {"where": self._where(parsed_document.doc_id, is_whole)}
            try:
                document = with_metadata(parsed_document, self._metadata)
                images = image_tables(document, config) if config.index.images else {}
                words = digest_words(document) if digest_words else None
                shard = shard_number(document.doc_id, config.index.n_slots)
                row |= {"doc_id": document.doc_id, "par_ids": par_ids_of(document), "words": words, "shard": shard}
                row |= images
                row |= tables_of(document, config, self._job)
            except DataError as error:
                row |= {"doc_id": parsed_document.doc_id, "reason": str(error)}
            rows.append(row)
        return rows

    def _where(self, doc_id: str, is_whole: bool) -> str:
        return self._file if is_whole else f"{self._file}: {doc_id}"

    def _made(self, doc_ids: Iterable[str]) -> str:
        """Digest all that the documents follow from besides the file's content."""
        beside = (self._beside or "").partition(" ")[2]
        rows = {doc_id: self._metadata.get(doc_id) for doc_id in doc_ids}
        return digest([_parser_identity(self._config.model_dump_json()), self._default_id, beside, rows])


def _can_keep(file: str, config: Config) -> bool:
    """Whether a file's documents follow from it and what ``_made`` knows: not where other files' images are read."""
    return not config.index_roles and (not config.index.images or file.lower().endswith(".pdf"))


def _beside(file: str, was: str | None, config: Config) -> str | None:
    """Digest the pages that a page was compared with, and the blocks that they repeat; None: with none.

    The blocks are read again only where a page has changed.
    """
    pages = compared_pages(file)
    if not pages:
        return None
    contents = digest([(os.path.basename(page), _page_digest(page, os.stat(page).st_mtime_ns)) for page in pages])
    if was is not None and was.partition(" ")[0] == contents:
        return was
    return f"{contents} {digest(sorted(repeated_blocks(file, config.documents.timeout_s).items()))}"


@functools.lru_cache(maxsize=1024)
def _page_digest(page: str, changed_ns: int) -> str | None:
    return digest_of(page)


@functools.lru_cache(maxsize=1)
def _kept(config_json: str, job: str) -> KeptDocuments:
    """The documents of the index that is there: opened once per worker and job."""
    config = Config.model_validate_json(config_json)
    return KeptDocuments.open(config.index.path, index_settings(config).as_mapping())


@functools.lru_cache(maxsize=1)
def _parser_identity(config_json: str) -> str:
    """Digest what decides how any file is parsed: settings, code, and the libraries that it reads and counts by."""
    config = Config.model_validate_json(config_json)
    documents = config.documents
    settings = [documents.format, documents.timeout_s, config.index.captions]
    settings += [config.index.images, config.system, repr(chunks_of(config)), config.index.encoder.tokenizer]
    settings.append(config.index.encoder.revision)
    return digest([settings, parsing_digest(config), version("transformers"), version("tokenizers")])


def tables_of(document: Document, config: Config, job: str) -> dict[str, Any]:
    """Make the tables of a document: documents, nodes and texts; and the digest of the first two."""
    count = token_counter(config.index.encoder.tokenizer, config.index.encoder.revision)
    nodes = _fill_token_counts(flatten(document, chunks_of(config), count), count)
    documents = document_table([document])
    of_tables = checksum(_as_stream(documents) + _as_stream(nodes))
    return {"documents": documents, "nodes": nodes, "digest": of_tables, "texts": texts_of(nodes, config, job)}


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
    shard = shard_number(nodes["doc_id"][0].as_py(), config.index.n_slots)
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
    n_nodes: int  # of the used documents
    n_shards: int


def survey(config: Config, job: str, memory: float) -> tuple[Work | list[dict[str, Any]], ...]:
    """Count what all parts of a job hold (a task).

    Args:
        config: The run's configuration.
        job: Unique name of the job.
        memory: Bytes that a build may take: of the largest node.

    Returns:
        The counts, and for each of ``index.n_slots`` possible shards the rows of its documents.

    Raises:
        ConfigError: No node has the memory for the build of a shard.
    """
    parts = ParsedParts(config.index.path, job)
    rows = parts.rows("left_out")
    used, rejects = split_used_and_rejected(rows)
    texts = parts.table(used, "texts")
    _, first = np.unique(column_keys(texts["key"]).view(f"S{KEY_BYTES}"), return_index=True)
    n_tokens = texts["n_tokens"].to_numpy()[first]
    left_out = sum((Counter(json.loads(row["left_out"])) for row in used if row["left_out"]), Counter[str]())
    n_files = len({row["file"] for row in rows})
    n_nodes = parts.n_nodes(used)
    n_shards = choose_shards(config, n_nodes, memory)
    shard_rows: list[list[dict[str, Any]]] = [[] for _ in range(config.index.n_slots)]
    for row in used:
        columns = {name: row[name] for name in ("doc_id", "digest", "kept", "at")}
        shard_rows[row["shard"] % n_shards].append(columns)
    counts = len(used), rejects, len(n_tokens), int(n_tokens.sum()), left_out, n_nodes
    return (Work(n_files, *counts, n_shards), *shard_rows)


def choose_shards(config: Config, n_nodes: int, memory: float) -> int:
    """Return the number of shards: as configured, or the least that is small enough; see ``build_bytes``.

    Raises:
        ConfigError: The build of a shard does not fit into memory.
    """
    index, dim = config.index, encoder_length(config)
    n_shards = 1 if index.shards == "auto" else index.shards
    while index.shards == "auto" and n_shards < N_SLOTS:
        if n_nodes <= NODES_PER_SHARD * n_shards and build_bytes(n_nodes / n_shards, dim) <= memory:
            break
        n_shards *= 2
    if (need := build_bytes(n_nodes / n_shards, dim)) > memory:
        fewest = math.ceil(n_nodes / max(memory / build_bytes(1, dim), 1))
        raise ConfigError(
            f"a shard of {n_nodes / n_shards:,.0f} nodes takes {need / 2**30:,.1f} GiB to build, but the largest node "
            f"has {memory / 2**30:,.1f} GiB for it (index.shards {index.shards}): set index.shards to {fewest} or "
            "more, or give the job a larger node"
        )
    return n_shards


def build_bytes(n_nodes: float, dim: int) -> float:
    """Estimate what the build of a shard takes: its vectors of ``dim`` numbers three times, and its nodes."""
    return n_nodes * (3 * 4 * dim + BYTES_PER_NODE)


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
        self._encoder = make_encoder(config, None, limiter, on_gpu=gpu)
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


def _fill_token_counts(nodes: pa.Table, count: Any) -> pa.Table:
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


def reduce_shard(
    config: Config, job: str, number: int, rows: list[dict[str, Any]], train_on_gpu: bool = False
) -> Iterator[BuiltShard | None]:
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
    assert isinstance(config.index.shards, int), "the survey has chosen their number"
    keys, vectors = PendingVectors(path).load(encoder_settings(config), wanted, number, config.index.shards)
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
        train_on_gpu=train_on_gpu,
    )
    yield shard, False


def build_shard_task(
    config: Config, job: str, number: int, rows: list[dict[str, Any]], train_on_gpu: bool = False
) -> BuiltShard | None:
    """Do all of ``reduce_shard`` (a task): all vectors are written."""
    *_, part = reduce_shard(config, job, number, rows, train_on_gpu)
    return part


def join_shards(config: Config, job: str, *parts: BuiltShard | None) -> dict[str, Any]:
    """Make the shards the index (a task).

    Returns:
        See ``publish_shards``; ``note`` says what is slow, if anything; with several shards also ``n_shards``, and
        ``n_shards_kept``: those not built again.
    """
    parsed = ParsedParts(config.index.path, job)
    rows = parsed.rows("left_out", *SOURCE_COLUMNS)
    used, rejects = split_used_and_rejected(rows)
    sources, documents = sources_of(config, rows, used)
    settings = index_settings(config)
    built = [part for part in parts if part is not None]
    kept = [shard["number"] for shard, is_kept in built if is_kept]
    counts = publish_shards(
        config.index.path,
        [shard for shard, _ in built],
        kept,
        parsing=parsing_digest(config),
        rejects=pa.Table.from_pylist([{"file": where, "reason": reason} for where, reason in rejects], REJECT_SCHEMA),
        sources=sources,
        parsed=documents,
        settings=settings,
        views=views_with_old(config.index.path, settings, views_of(config)),
        images=parsed.table(used, "images") if config.index.images else None,
    )
    PendingVectors(config.index.path).clear()
    counts["note"] = slow_search_note(config)
    if config.index.shards != 1:
        counts |= {"n_shards": len(built), "n_shards_kept": len(kept)}
    return counts


def sources_of(
    config: Config, rows: Sequence[Mapping[str, Any]], used: Sequence[Mapping[str, Any]]
) -> tuple[pa.Table, pa.Table]:
    """Describe the files of a job, and its documents that are used: ``SOURCES_SCHEMA`` and ``PARSED_SCHEMA``.

    ``rows`` are those of all documents and rejects. A file one of whose documents is not used is parsed each time.
    """
    of_file = {row["file"]: row for row in rows}
    names = dict(zip(of_file, source_names(config, list(of_file)), strict=True))
    n_used, n_rows = Counter(row["file"] for row in used), Counter(row["file"] for row in rows)
    sources = [
        {"name": names[file], "bytes": row["n_bytes"], "digest": row["source"], "beside": row["beside"]}
        | {"made": row["made"] if n_used[file] == n_rows[file] else None}
        for file, row in of_file.items()
    ]
    sources.sort(key=lambda row: str(row["name"]))
    documents = [{**{name: row.get(name) for name in PARSED_SCHEMA.names}, "name": names[row["file"]]} for row in used]
    return pa.Table.from_pylist(sources, SOURCES_SCHEMA), pa.Table.from_pylist(documents, PARSED_SCHEMA)
