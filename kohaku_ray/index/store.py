"""The index directory: a manifest that names every file, and the parts a reader opens when it needs them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.images import image_digest, image_name
from kohaku_ray.errors import DataError, IndexMismatchError, NoIndexError, StorageError
from kohaku_ray.index.arrays import F32, I64, column_matrix
from kohaku_ray.index.layout import ShardLayout
from kohaku_ray.index.nodes import NodeTable, join_nodes, renumbered
from kohaku_ray.index.terms import Statistics, TermCounts, TermIndex
from kohaku_ray.index.vectors import FlatVectors, Ranges, VectorIndex, take_rows
from kohaku_ray.index.views import View, check_views, kinds_key, views_of
from kohaku_ray.records import digest, plain
from kohaku_ray.store.storage import Directory

REINDEX = "re-index with `kohaku-ray index CONFIG`, or `run.index()` in Python"
"""The way out of most errors of an index."""

FORMAT, READABLE = 6, (5, 6)
"""Version of the directory's layout, and those that are read; an index of another one is re-indexed.

5 has node tables as Parquet, a FAISS index beside flat vectors, and sources without digests.
"""

MANIFEST = "manifest.json"

PARTS = ("nodes", "documents", "rejects", "vectors", "faiss", "bm25", "sources", "parsed", "images")
"""Sub-directories of an index; nothing else in its directory is ever touched."""


SOURCES_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("bytes", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("digest", "made", "beside")),
    ]
)
"""One row per file that the documents were read from: its name below the configured directory, and its size.

``digest`` is of its content (of an object, its ETag); ``made`` of all else that its documents follow from, null where
not all of them are in the index; ``beside`` two digests of the pages of its directory that it was compared with.
"""


@dataclass(frozen=True)
class Index:
    """An index on disk, of one or several shards; each part is read when it is first used.

    Attributes:
        directory: Its directory.
        manifest: Its description, with the list of its files.
    """

    directory: Directory
    manifest: Mapping[str, Any] = field(repr=False)

    @classmethod
    def open(cls, path: str, expected: Mapping[str, Any] | None = None) -> Index:
        """Open an index, on any pyarrow filesystem, and check that all its files are there.

        Raises:
            DataError: There is none, or one of its files is missing or truncated.
            IndexMismatchError: It was not built with the ``expected`` settings (all or some of ``IndexSettings``).
        """
        directory = Directory(path, REINDEX)
        index = cls(directory, read_manifest(directory))
        check_files(directory, all_files(index.manifest))
        if expected is not None:
            check_settings(path, index.manifest["settings"], expected)
        return index

    @property
    def n_shards(self) -> int:
        """Number of parts that can be opened each on its own."""
        return len(self.manifest["shards"])

    @property
    def content(self) -> str:
        """Digest what its shards were built from: equal where it was built again, also elsewhere, from the same."""
        return digest([shard["content"] for shard in self.manifest["shards"]])

    @functools.cached_property
    def layout(self) -> ShardLayout:
        """Where each document's rows are among the shards."""
        return ShardLayout.of(read_table(self.directory, self.manifest["files"]["layout"]))

    @functools.cached_property
    def shards(self) -> tuple[OpenShard, ...]:
        """Its parts, each of other documents."""
        return tuple(OpenShard(self, number) for number in range(self.n_shards))

    @functools.cached_property
    def nodes(self) -> NodeTable:
        """Every node of every document."""
        tables = (shard.nodes for shard in self.shards)
        return join_nodes(
            [
                renumbered(table, self.layout.to_whole(shard, np.arange(len(table))))
                for shard, table in enumerate(tables)
            ]
        )

    @functools.cached_property
    def documents(self) -> pa.Table:
        """One row per document (``DOCUMENT_SCHEMA``), in the order of the nodes."""
        tables = [shard.table("documents") for shard in self.shards]
        return pa.concat_tables(tables).sort_by("doc_id")

    @functools.cached_property
    def rejects(self) -> pa.Table:
        """Files that could not be read, each with its reason."""
        return read_table(self.directory, self.manifest["files"]["rejects"])

    @functools.cached_property
    def sources(self) -> pa.Table | None:
        """The files it was made from (``SOURCES_SCHEMA``); None: not recorded."""
        entry = self.manifest["files"].get("sources")
        return None if entry is None else read_table(self.directory, entry)

    def damage(self) -> list[DataError]:
        """Compare every file with the checksum it was written with: an error per file that is missing or another."""
        errors = [damage_of(self.directory, entry) for entry in all_files(self.manifest).values()]
        if not any(errors):
            errors += [damage_of(self.directory, {"name": name}) for name in image_files(self.directory, self.manifest)]
        return [error for error in errors if error is not None]

    @property
    def views(self) -> tuple[View, ...]:
        """The views that can be searched."""
        return views_of(self.manifest)

    def require(self, views: Iterable[View]) -> None:
        """Check that it has all of these views, else ``IndexMismatchError``."""
        check_views(self.directory.path, self.views, views)

    def ranges(self, doc_ids: Iterable[str], shard: int | None = None) -> Ranges:
        """Find the first node row of each document and one past its last; in a shard, of those it holds."""
        wanted = dict.fromkeys(doc_ids)
        if unknown := [doc_id for doc_id in wanted if doc_id not in self.layout.number_of]:
            raise DataError(f"the index at {self.directory.path} has no document {', '.join(unknown)}")
        return self.layout.ranges(wanted, shard)

    def node_vectors(self, rows: I64, *, own_text: bool = False) -> F32:
        """Vectors of nodes of any kind, sections and documents too: shape ``(k, d)``; zeros where it has none.

        With ``own_text``, those of their own texts where the nodes have others: of paragraphs with ``both``, of some
        captions.
        """
        vectors = np.zeros((len(rows), self.manifest["dim"]), np.float32)
        owner, inside = self.layout.shard_of(rows), self.layout.to_shard(rows)
        for number in np.unique(owner).tolist():
            of_shard = np.flatnonzero(owner == number)
            vectors[of_shard] = self.shards[number].node_vectors(inside[of_shard], own_text=own_text)
        return vectors


@dataclass(frozen=True)
class OpenShard:
    """A part of an index: some of its documents, with row numbers of its own and the whole index's statistics."""

    index: Index
    number: int
    _vectors: dict[str, VectorIndex] = field(default_factory=dict, repr=False, compare=False)
    _terms: dict[str, TermIndex] = field(default_factory=dict, repr=False, compare=False)

    @functools.cached_property
    def node_rows(self) -> pa.Table:
        """Rows of ``NODE_SCHEMA``: every node of its documents."""
        return self.table("nodes")

    @functools.cached_property
    def nodes(self) -> NodeTable:
        """Every node of its documents."""
        return NodeTable(self.node_rows, is_checked=True)

    def vectors(self, kinds: Sequence[str]) -> VectorIndex:
        """Vectors of the nodes of some kinds, which are a dense view; local ones are memory-mapped where contiguous."""
        self.index.require([View(tuple(kinds), dense=True)])
        name = kinds_key(kinds)
        if name in self._vectors:
            return self._vectors[name]
        if f"places-{name}" in self.files:
            table = self.table("vectors", mapped=True)
            vector_rows: I64 = self.table(f"places-{name}")["place"].to_numpy()
            matrix, rows = column_matrix(table["vector"]), table["row"].to_numpy()
            matrix, rows = take_rows(matrix, vector_rows), take_rows(rows, vector_rows)
        else:  # images in a space of their own
            table = self.table(f"{name}-vectors", mapped=True)
            matrix, rows = column_matrix(table["vector"]), table["row"].to_numpy()
        role = f"faiss-{name}"
        index = self._faiss(role) if role in self.files else FlatVectors(matrix)
        self._vectors[name] = VectorIndex(matrix, rows, index)
        return self._vectors[name]

    def terms(self, kinds: Sequence[str]) -> TermIndex:
        """BM25 over the nodes of some kinds, which are a lexical view."""
        self.index.require([View(tuple(kinds), lexical=True)])
        name = kinds_key(kinds)
        if name not in self._terms:
            manifest = self.index.manifest
            shared = read_table(self.index.directory, manifest["files"][f"statistics-{name}"])
            mean_terms, bm25 = manifest["mean_terms"][name], manifest["settings"]["bm25"]
            statistics = Statistics(shared["term"].to_pylist(), shared["idf"].to_numpy(), mean_terms)
            rows, postings = self.table(f"rows-{name}"), self.table(f"postings-{name}", mapped=True)
            counts = TermCounts.of(self.table(f"terms-{name}"), rows, postings)
            settings = bm25["k1"], bm25["b"], bm25["language"]
            self._terms[name] = counts.weighted(statistics, rows["row"].to_numpy(), *settings)
        return self._terms[name]

    def node_vectors(self, rows: I64, *, own_text: bool = False) -> F32:
        """See ``Index.node_vectors``; rows of the shard."""
        matrix, first, last = self._every_vector
        if own_text:
            return np.where((first[rows] != last[rows])[:, None], matrix[last[rows]], np.float32(0))
        return np.asarray(matrix[first[rows]])

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]]:
        """Entries of its files in the manifest, by role."""
        files: Mapping[str, Mapping[str, Any]] = self.index.manifest["shards"][self.number]["files"]
        return files

    def table(self, role: str, *, mapped: bool = False) -> pa.Table:
        """Read a table by its role; see ``read_table``."""
        return read_table(self.index.directory, self.files[role], mapped=mapped)

    @functools.cached_property
    def _every_vector(self) -> tuple[F32, I64, I64]:
        table = self.table("vectors", mapped=True)
        every: I64 = table["row"].to_numpy()
        first = np.empty(self.index.manifest["shards"][self.number]["counts"]["n_nodes"], dtype=np.int64)
        last = np.empty_like(first)
        last[every] = np.arange(len(every))
        first[every[::-1]] = np.arange(len(every))[::-1]  # a node's first vector is its own, a second one its text's
        return column_matrix(table["vector"]), first, last

    def _faiss(self, role: str) -> Any:
        """Open a FAISS index; a local one is memory-mapped."""
        import faiss

        directory, name = self.index.directory, self.files[role]["name"]
        try:
            if directory.is_local:
                return faiss.read_index(directory.full(name), faiss.IO_FLAG_MMAP_IFC)
            return faiss.deserialize_index(np.frombuffer(directory.read(name), dtype=np.uint8))
        except RuntimeError as error:
            raise directory.damaged(name, "no FAISS index") from error


def read_table(directory: Directory, entry: Mapping[str, Any], *, mapped: bool = False) -> pa.Table:
    """Read a table of an index, by its entry in the manifest; a damaged one is a ``DataError``.

    Arrow files are mapped. A large one that is read in parts is ``mapped`` alone: its checksum is not compared, for
    which all of it would be read (see ``Index.damage``).
    """
    read = directory.read_parquet if entry["name"].endswith(".parquet") else directory.read_arrow
    return read(entry["name"], None if mapped else entry["checksum"])


def publish(directory: Directory, manifest: Mapping[str, Any]) -> None:
    """Make a finished build the index: its manifest takes the old one's place in one rename, then the old files go.

    A file of the build may be missing (``DataError``), as when two builds write one directory at once.
    """
    check_files(directory, all_files(manifest))
    summed = {**manifest, "checksum": _checksum_of(manifest)}
    directory.replace(MANIFEST, json.dumps(summed, indent=1, sort_keys=True, ensure_ascii=False).encode())
    remove_unlisted(directory, manifest)


def remove_unlisted(directory: Directory, manifest: Mapping[str, Any]) -> None:
    """Delete the files of earlier builds, finished or not; only files that an index writes are deleted."""
    listed = {entry["name"] for entry in all_files(manifest).values()}
    listed |= image_files(directory, manifest)

    def is_ours(name: str) -> bool:
        return name.split("/")[0] in PARTS if "/" in name else name.startswith(f"{MANIFEST}.")

    directory.remove(*(name for name in directory.names() if is_ours(name) and name not in listed))


def image_files(directory: Directory, manifest: Mapping[str, Any]) -> set[str]:
    """Names of the PNGs of an index."""
    entry = manifest["files"].get("images")
    table = None if entry is None else read_table(directory, entry)
    return set() if table is None else set(map(image_name, table["digest"].to_pylist()))


def read_manifest(directory: Directory) -> dict[str, Any]:
    """Read the manifest of an index; none, or a damaged one or of another layout, is a ``DataError``."""
    try:
        data = directory.read(MANIFEST).to_pybytes()
    except StorageError:
        raise
    except DataError as error:
        raise NoIndexError(
            f"there is no index at {directory.path}: build one with `kohaku-ray index CONFIG`, "
            "or `run.index()` in Python"
        ) from error
    try:
        manifest = json.loads(data)
        layout = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise directory.damaged(MANIFEST, error) from error
    if layout not in READABLE:
        read = " and ".join(map(str, READABLE))
        raise DataError(f"{directory.path} has index layout {layout} but this version reads {read}: {REINDEX}")
    if manifest.pop("checksum", None) != _checksum_of(manifest):
        raise directory.damaged(MANIFEST, "its checksum is not the one it was written with")
    return dict(manifest)


def _checksum_of(manifest: Mapping[str, Any]) -> str:
    return digest(manifest, 16, MANIFEST)


def all_files(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """List every file of an index with all its shards, by role."""
    files = dict(manifest["files"])
    for number, shard in enumerate(manifest["shards"]):
        files |= {f"{role} of shard {number}": entry for role, entry in shard["files"].items()}
    return files


def check_files(directory: Directory, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that every listed file exists and is whole, else ``DataError``."""
    sizes = directory.sizes(entry["name"] for entry in files.values())
    for entry in files.values():
        size = sizes.get(entry["name"])
        if size != entry["bytes"]:
            state = "is missing" if size is None else f"has {size:,} bytes but the manifest says {entry['bytes']:,}"
            raise DataError(f"{directory.full(entry['name'])} {state}: {REINDEX}")


def check_content(directory: Directory, entry: Mapping[str, Any]) -> None:
    """Compare a file with its checksum, or an image with its name; ``DataError`` where it is missing or another."""
    data = directory.read(entry["name"], entry.get("checksum"))
    if "checksum" not in entry and entry["name"] != image_name(image_digest(data)):
        raise directory.damaged(entry["name"], "an image is named by its content, and this one is not")


def damage_of(directory: Directory, entry: Mapping[str, Any]) -> DataError | None:
    """Return the error of a file that is missing or not what was written."""
    try:
        check_content(directory, entry)
    except StorageError:
        raise
    except DataError as error:
        return error
    return None


def check_settings(path: str, built: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare the settings of an index with the expected ones; ``IndexMismatchError`` names the first that differs."""
    # settings of an index leave it out where it is off: those of indexes that are older than the key stay equal
    have, want = ({"context_header": False} | _leaves(plain(settings)) for settings in (built, expected))
    for key, value in want.items():
        if key not in have or have[key] != value:
            built_as = f"without {key}" if have.get(key) is None else f"with {key} {have[key]!r}"
            asked = "leaves it out" if value is None else f"says {value!r}"
            raise IndexMismatchError(
                f"the index at {path} was built {built_as} but the configuration {asked}: "
                f"{REINDEX}, or change the configuration back"
            )


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash a mapping of plain values; one without a stable form, such as a set or NaN, is a ``ConfigError``."""
    return digest(config, 32, "")


def _leaves(value: Any, where: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {where: value}
    values: dict[str, Any] = {}
    for key, item in sorted(value.items()):
        values |= _leaves(item, f"{where}.{key}".lstrip("."))
    return values
