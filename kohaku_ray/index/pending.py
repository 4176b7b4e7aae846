"""Keep what an unfinished index job has made for the next start: parsed documents and vectors, in whole files.

An interrupted job repeats no vector, and documents need not fit into anybody's memory: a task writes what it parsed, a
reducer maps the rows it needs.
"""

from __future__ import annotations

import functools
import itertools
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.arrays import F32, KEY_BYTES, Keys, column_keys, column_matrix, matrix_column, no_keys
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.flatten import DOCUMENT_SCHEMA, NODE_SCHEMA
from kohaku_ray.index.identity import passage_part, vector_keys
from kohaku_ray.index.images import IMAGE_SCHEMA
from kohaku_ray.index.kept import KeptDocuments
from kohaku_ray.index.known import KnownVectors, known_vectors
from kohaku_ray.index.settings import N_SLOTS, IndexConfig
from kohaku_ray.index.store import Index, fingerprint
from kohaku_ray.store.storage import Directory, checksum

FOLDER = "pending"

SHORT_TOKENS = 96
"""Most tokens of a text that fits every encoder's window. Longer texts may have been encoded in windows, which are cut
before they are averaged."""

PartKind = Literal["documents", "nodes", "images", "texts"]

NEW_TEXT_SCHEMA = pa.schema([("key", pa.binary(KEY_BYTES)), ("n_tokens", pa.int64())])
"""Texts of a document that have no vector yet, special tokens counted."""

_SCHEMAS: Mapping[PartKind, pa.Schema] = {
    "documents": DOCUMENT_SCHEMA,
    "nodes": NODE_SCHEMA,
    "images": IMAGE_SCHEMA,
    "texts": NEW_TEXT_SCHEMA,
}

ROW_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("file", "where", "doc_id", "reason")),
        ("par_ids", pa.list_(pa.string())),
        *((name, pa.string()) for name in ("words", "digest", "left_out")),
        *((name, pa.string()) for name in ("source", "made", "beside")),
        ("n_bytes", pa.int64()),
        ("kept", pa.bool_()),
        ("tree", pa.large_string()),
        ("shard", pa.int64()),
        *((f"n_{kind}", pa.int64()) for kind in _SCHEMAS),
    ]
)
"""One row per document, and one per file or part of a file that cannot be used.

``where`` is the file, or which part of it; ``reason`` is null for a document; ``digest`` is of document and nodes;
``left_out`` a JSON object, the images that carry no content by reason; ``source``, ``made``, ``beside`` and ``n_bytes``
are what ``store.SOURCES_SCHEMA`` has of the file; ``kept``: its tables are those of the index that is there; ``tree``
the document as ``bounded.packed`` writes it, where a model describes its images; ``shard`` the one it belongs to;
``n_KIND`` the document's rows of that table.
"""

SOURCE_COLUMNS = ("source", "made", "beside", "n_bytes")
"""Columns of ``ROW_SCHEMA`` about the file, which every row of it has."""

_SHARDS = b"shards"
"""Metadata of a file of vectors: the shard of each batch, as JSON."""


class _Segments:
    """Arrow files of one folder beside an index; each is written whole or not at all."""

    def __init__(self, path: str, folder: str = FOLDER) -> None:
        self._directory, self._folder = Directory(path), folder

    def clear(self) -> None:
        """Remove them all."""
        self._directory.clear(self._folder)

    def _files(self) -> list[str]:
        return self._directory.names(self._folder)

    def _write(self, name: str, *batches: pa.Table) -> None:
        self._directory.replace_arrow(f"{self._folder}/{name}.arrow", *batches)


class PendingVectors(_Segments):
    """Keyed vectors of an unfinished build beside the index at a path; ``clear`` removes parsed documents too."""

    def check_writable(self) -> None:
        """Write a file and remove it, so that an error (``DataError``) comes before hours of encoding."""
        name = f"{FOLDER}/{uuid.uuid4().hex}.probe"
        self._directory.write(name, b"probe")
        self._directory.remove(name)

    def write(
        self,
        identity: Mapping[str, Any],
        keys: Sequence[bytes],
        vectors: F32,
        shards: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Write vectors of an encoder, shape ``(n, d)``, with their ``n`` keys, a batch per shard.

        ``shards`` are those that need each vector; None: nobody reads them by shard.
        """
        # Named by content, so that the first vector of a repeated text is the same in every run.
        content = checksum(b"".join(keys))
        table = pa.table({"key": pa.array(keys, pa.binary(KEY_BYTES)), "vector": matrix_column(vectors)})
        rows: dict[int, list[int]] = defaultdict(list)
        for row, of in enumerate(shards or ()):
            for shard in of:
                rows[shard].append(row)
        numbers = sorted(rows)
        table = table.replace_schema_metadata({_SHARDS: json.dumps(numbers)})
        batches = [table if len(rows[shard]) == len(table) else table.take(rows[shard]) for shard in numbers]
        self._write(f"{_stem(identity)}-{content}", *(batches or [table]))

    def keys(self, identity: Mapping[str, Any]) -> set[bytes]:
        """List the keys of the vectors that an interrupted job of this encoder left."""
        return {key for table in self._tables(identity, _all) for key in table["key"].to_pylist()}

    def load(
        self, identity: Mapping[str, Any], wanted: Keys | None = None, shard: int | None = None, n_shards: int = N_SLOTS
    ) -> tuple[Keys, F32]:
        """Read vectors of an encoder, of the wanted keys or all: ``n`` keys, which may repeat, and shape ``(n, d)``.

        All that was written for a ``shard``, of ``n_shards``, is read first, and the rest only for keys that are not
        there: an interrupted job had other shards, or other documents in them.
        """
        parts = [(no_keys(), np.empty((0, 0), np.float32))]
        if shard is not None:
            # Whole: to tell the wanted ones from others costs a sort of all of them for every file.
            def choose(schema: pa.Schema) -> list[int]:
                return [batch for batch, slot in _places(schema) if slot is not None and slot % n_shards == shard]

            parts += self._chosen(identity, None, choose)
            if wanted is not None:
                wanted = wanted[~np.isin(wanted, np.concatenate([keys for keys, _ in parts]))]
        if shard is None or wanted is None or len(wanted):
            parts += self._chosen(identity, wanted, _all)
        vectors = [matrix for _, matrix in parts if len(matrix)]
        return np.concatenate([keys for keys, _ in parts]), np.concatenate(vectors) if vectors else parts[0][1]

    def _chosen(
        self, identity: Mapping[str, Any], wanted: Keys | None, choose: Callable[[pa.Schema], Iterable[int]]
    ) -> Iterator[tuple[Keys, F32]]:
        for table in self._tables(identity, choose):
            keys, matrix = column_keys(table["key"]), column_matrix(table["vector"])
            if wanted is not None:
                chosen = np.isin(keys, wanted)
                keys, matrix = keys[chosen], matrix[chosen]
            yield keys, matrix

    def _tables(self, identity: Mapping[str, Any], choose: Callable[[pa.Schema], Iterable[int]]) -> Iterator[pa.Table]:
        def read(name: str) -> list[pa.Table]:
            try:
                return self._directory.arrow_batches(name, choose)
            except StorageError:
                raise
            except DataError:
                return []  # truncated by a crash: its texts are encoded again

        begin = f"{FOLDER}/{_stem(identity)}-"
        names = [name for name in self._files() if name.startswith(begin) and name.endswith(".arrow")]
        for tables in self._directory.map_items(read, names):
            yield from tables


def _places(schema: pa.Schema) -> Iterable[tuple[int, int | None]]:
    """Number the batches of a file of vectors, each with its shard."""
    return enumerate(json.loads((schema.metadata or {}).get(_SHARDS, b"[]")) or [None])


def _all(schema: pa.Schema) -> Iterable[int]:
    return [batch for batch, _ in _places(schema)]


class ParsedParts(_Segments):
    """What the parse tasks of one job leave for its reducers: a part per task, the same when a task is repeated."""

    def __init__(self, path: str, job: str) -> None:
        """Open the parts of a job, a unique name, beside the index at a path."""
        super().__init__(path, f"{FOLDER}/parsed-{job}")
        self._path = path

    def write(self, part: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a part, each table with a batch per shard; parts are read in the order of their names.

        ``rows`` have columns of ``ROW_SCHEMA`` without the numbers, and a document its tables by kind (absent: empty).
        """
        rows = sorted(rows, key=_shard)
        shards = [list(of_shard) for _, of_shard in itertools.groupby(rows, _shard)] or [[]]
        numbers: list[dict[str, int]] = [{} for _ in rows]
        for kind, schema in _SCHEMAS.items():
            empty, number, batches = schema.empty_table(), iter(numbers), []
            for of_shard in shards:
                tables = [empty if row.get(kind) is None else row[kind].select(schema.names) for row in of_shard]
                for table in tables:
                    next(number)[f"n_{kind}"] = len(table)
                batches.append(pa.concat_tables([empty, *tables]))
            self._write(f"{part}.{kind}", *batches)
        columns = ROW_SCHEMA.names[: -len(_SCHEMAS)]
        plain = [{name: row.get(name) for name in columns} | number for row, number in zip(rows, numbers, strict=True)]
        self._write(f"{part}.rows", pa.Table.from_pylist(plain, ROW_SCHEMA))  # the last: now the part is whole

    def names(self) -> list[str]:
        """List the parts that are whole."""
        end = ".rows.arrow"
        return [name[len(self._folder) + 1 : -len(end)] for name in self._files() if name.endswith(end)]

    def rows(self, *columns: str, parts: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Read what names the documents and rejects, and where their tables are (``at``).

        ``columns`` are further ones of ``ROW_SCHEMA``; ``parts`` the names of those to read, by default all.
        """
        wanted = ["file", "where", "doc_id", "reason", "par_ids", "words", "digest", "shard", "kept", *columns]
        documents: list[dict[str, Any]] = []
        names = self.names() if parts is None else list(parts)
        tables = self._directory.map_items(lambda part: self._directory.read_arrow(self._name(part, "rows")), names)
        for part, table in zip(names, tables, strict=True):
            sizes = table.select([f"n_{kind}" for kind in _SCHEMAS]).to_pylist()
            pairs = zip(table.select(wanted).to_pylist(), sizes, strict=True)
            for batch, (_, of_shard) in enumerate(itertools.groupby(pairs, lambda pair: _shard(pair[0]))):
                ends = dict.fromkeys(_SCHEMAS, 0)
                for row, size in of_shard:
                    spans = {kind: (end, end + size[f"n_{kind}"]) for kind, end in ends.items()}
                    ends = {kind: end for kind, (_, end) in spans.items()}
                    documents.append({**row, "at": (part, batch, spans)})
        return documents

    def table(self, rows: Sequence[Mapping[str, Any]], kind: PartKind) -> pa.Table:
        """Join the tables of one kind of some documents, in the order of the rows; local files are mapped."""
        return pa.concat_tables([_SCHEMAS[kind].empty_table(), *self.tables(rows, kind)])

    def tables(self, rows: Sequence[Mapping[str, Any]], kind: PartKind) -> list[pa.Table]:
        """Read the tables of some documents, one each, also of those that are kept.

        No batch of a shard that none of them belongs to is read.
        """
        numbers_of_batch: dict[tuple[str, int], list[int]] = defaultdict(list)
        tables: dict[int, pa.Table] = {}
        kept = [number for number, row in enumerate(rows) if row.get("kept") and kind != "texts"]
        if kept:
            tables |= zip(kept, self._kept.tables([rows[number]["doc_id"] for number in kept], kind), strict=True)
        for number, row in enumerate(rows):
            if number not in tables:
                numbers_of_batch[row["at"][:2]].append(number)
        batches = self._directory.map_items(lambda batch: self._batch(batch[0], kind, batch[1]), numbers_of_batch)
        for numbers, whole in zip(numbers_of_batch.values(), batches, strict=True):
            for number in numbers:
                first, last = rows[number]["at"][2][kind]
                tables[number] = whole.slice(first, last - first)
        return [tables[number] for number in range(len(rows))]

    @functools.cached_property
    def _kept(self) -> KeptDocuments:
        return KeptDocuments.open(self._path)

    def n_nodes(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Count the nodes of documents without reading them."""
        parsed: list[tuple[int, int]] = [row["at"][2]["nodes"] for row in rows if not row["kept"]]
        n_kept = self._kept.n_nodes([row["doc_id"] for row in rows if row["kept"]])
        return sum(last - first for first, last in parsed) + n_kept

    def _batch(self, part: str, kind: PartKind, number: int) -> pa.Table:
        [table] = self._directory.arrow_batches(self._name(part, kind), lambda _: [number])
        return table

    def _name(self, part: str, what: str) -> str:
        return f"{self._folder}/{part}.{what}.arrow"


def _shard(row: Mapping[str, Any]) -> int:
    return row.get("shard") or 0


def part_name(first: int, n_files: int) -> str:
    """Name a part by the files it is made of: their first number and how many they are."""
    return f"{first:09d}-{n_files:06d}"


def n_files_of(parts: Iterable[str]) -> int:
    """Count the files that parts are made of."""
    return sum(int(part.rpartition("-")[2]) for part in parts)


def without_vectors(
    texts: Sequence[str], identity: Mapping[str, Any], known: KnownVectors, left: set[bytes]
) -> dict[str, bytes]:
    """Return the distinct texts, or digests of images, whose vectors are neither known nor left, with their keys."""
    distinct = list(dict.fromkeys(texts))
    keys = vector_keys(identity, distinct)
    candidates = zip(distinct, keys.tolist(), known.has(keys), strict=True)
    return {text: key for text, key, is_known in candidates if not is_known and key not in left}


def can_reuse(source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Tell whether the vectors of one encoder give those of another; both are ``encoder_identity``.

    They do when both are the same, or when the target cuts the source's full vectors (Matryoshka): a cut vector has
    lost its length and cannot be cut again without rounding twice.
    """
    given, other = passage_part(source), passage_part(target)
    return given == other or (given["dim"] is None and {**given, "dim": None} == {**other, "dim": None})


def reuse_vectors(
    path: str,
    source: Mapping[str, Any],
    target_path: str,
    target: Mapping[str, Any],
    index: IndexConfig,
) -> int:
    """Write an index's vectors beside another index, as an interrupted job would: its build encodes the rest.

    ``source`` and ``target`` are the identities of both encoders (``can_reuse``); ``index`` are the source's settings,
    which decide the texts it encoded. Returns the number of vectors.
    """
    nodes = Index.open(path).nodes
    rows, texts = texts_to_encode(nodes, index)
    if passage_part(source) != passage_part(target):
        texts = [text for row, text in zip(rows, texts, strict=True) if nodes.tokens[row] <= SHORT_TOKENS]
    distinct = list(dict.fromkeys(texts))
    known = known_vectors(path, source)
    held, vectors = known.lookup(vector_keys(source, distinct))
    reused = [text for text, is_known in zip(distinct, held, strict=True) if is_known]
    dim = target["dim"]
    if not reused or (dim is not None and dim > known.dim):
        return 0
    if dim is not None:
        short = np.asarray(vectors[:, :dim], np.float32)
        vectors = short / np.maximum(np.linalg.norm(short, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    PendingVectors(target_path).write(target, vector_keys(target, reused).tolist(), vectors)
    return len(reused)


def _stem(identity: Mapping[str, Any]) -> str:
    return fingerprint(passage_part(identity))[:16]
