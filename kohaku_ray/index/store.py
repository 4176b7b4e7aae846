"""The index directory: a manifest that names every file, and the parts a reader opens when it needs them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.images import image_name
from kohaku_ray.errors import DataError, IndexMismatchError
from kohaku_ray.index.arrays import F32, I64, Mask
from kohaku_ray.index.columns import column_matrix
from kohaku_ray.index.joined import join_nodes, renumbered
from kohaku_ray.index.layout import ShardLayout
from kohaku_ray.index.nodes import DOCUMENT, NodeTable
from kohaku_ray.index.postings import Postings, Statistics
from kohaku_ray.index.terms import TermIndex
from kohaku_ray.index.vectors import Ranges, VectorIndex, take_rows
from kohaku_ray.index.views import View, check_views, kinds_key, views_of
from kohaku_ray.records import digest, plain
from kohaku_ray.storage import Directory

REINDEX = "re-index with `kohaku-ray index`"
"""The way out of most errors of an index."""

FORMAT = 2
"""Version of the directory's layout; an index of another version is re-indexed."""

SHARDED_FORMAT = 3
"""The same of an index in several shards."""

MANIFEST = "manifest.json"

PARTS = ("nodes", "documents", "rejects", "vectors", "faiss", "bm25", "sources", "images")
"""Sub-directories of an index; nothing else in its directory is ever touched."""


SOURCES_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("bytes", pa.int64())])
"""One row per file that the documents were read from: its name below the configured directory, and its size."""


@dataclass(frozen=True)
class Index:
    """An index on disk; each part is read when it is first used.

    Attributes:
        directory: Its directory.
        manifest: Its description, with the list of its files.
    """

    directory: Directory
    manifest: Mapping[str, Any] = field(repr=False)
    _vectors: dict[str, VectorIndex] = field(default_factory=dict, repr=False, compare=False)
    _terms: dict[str, TermIndex] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str, expected: Mapping[str, Any] | None = None) -> Index:
        """Open an index and check that all its files are there.

        Args:
            path: A directory on any pyarrow filesystem.
            expected: Settings it must have been built with (``IndexSettings.as_mapping()``, or some of its keys).

        Raises:
            DataError: There is none, or one of its files is missing or truncated.
            IndexMismatchError: It was built with other settings.
        """
        directory = Directory(path, REINDEX)
        index = cls(directory, read_manifest(directory))
        check_files(directory, all_files(index.manifest))
        if expected is not None:
            check_settings(path, index.manifest["settings"], expected)
        return index

    @property
    def n_shards(self) -> int:
        """Number of parts that can be opened each on its own; 1: it is whole."""
        return len(self.manifest.get("shards", (None,)))

    @functools.cached_property
    def layout(self) -> ShardLayout:
        """Where each document's rows are among the shards."""
        return ShardLayout.of(self.directory.read_arrow(self._name("layout")))

    def shard(self, number: int) -> Index:
        """Open one of the shards: an index of its documents, with row numbers of its own and the whole's statistics."""
        own, shared = self.manifest["shards"][number], self.manifest
        common = {role: entry for role, entry in shared["files"].items() if role.startswith("statistics-")}
        kept = {key: value for key, value in shared.items() if key != "shards"}
        return Index(self.directory, {**kept, "files": {**common, **own["files"]}, "counts": own["counts"]})

    @functools.cached_property
    def _shards(self) -> tuple[Index, ...]:
        return tuple(self.shard(number) for number in range(self.n_shards)) if "shards" in self.manifest else ()

    @functools.cached_property
    def nodes(self) -> NodeTable:
        """Every node of every document."""
        if not self._shards:
            return NodeTable(self.directory.read_parquet(self._name("nodes")))
        parts = [
            renumbered(shard.nodes, self.layout.to_whole(number, np.arange(len(shard.nodes))))
            for number, shard in enumerate(self._shards)
        ]
        return join_nodes(parts)

    @functools.cached_property
    def documents(self) -> pa.Table:
        """One row per document (``DOCUMENT_SCHEMA``), in the order of the nodes."""
        if not self._shards:
            return self.directory.read_parquet(self._name("documents"))
        return pa.concat_tables([shard.documents for shard in self._shards]).sort_by("doc_id")

    @functools.cached_property
    def rejects(self) -> pa.Table:
        """Files that could not be read, each with its reason."""
        return self.directory.read_parquet(self._name("rejects"))

    @functools.cached_property
    def sources(self) -> pa.Table | None:
        """The files it was made from (``SOURCES_SCHEMA``); None: not recorded."""
        return self.directory.read_parquet(self._name("sources")) if "sources" in self.manifest["files"] else None

    @property
    def views(self) -> tuple[View, ...]:
        """The views that can be searched."""
        return views_of(self.manifest)

    def require(self, views: Iterable[View]) -> None:
        """Check that it has all of these views.

        Raises:
            IndexMismatchError: It lacks one.
        """
        check_views(self.directory.path, self.views, views)

    def vectors(self, kinds: Sequence[str]) -> VectorIndex:
        """Vectors of the nodes of some kinds; local ones are memory-mapped where they are contiguous.

        Raises:
            IndexMismatchError: The index has no such dense view.
            DataError: It has several shards: each has its own.
        """
        self._check_whole()
        check_views(self.directory.path, self.views, [View(tuple(kinds), dense=True)])
        name = kinds_key(kinds)
        if name not in self._vectors:
            self._vectors[name] = self._open_vectors(name)
        return self._vectors[name]

    def _open_vectors(self, name: str) -> VectorIndex:
        if f"places-{name}" not in self.manifest["files"]:  # images in a space of their own
            own = self.directory.read_arrow(self._name(f"{name}-vectors"))
            return VectorIndex(column_matrix(own["vector"]), own["row"].to_numpy(), self._faiss(f"faiss-{name}"))
        table = self.directory.read_arrow(self._name("vectors"))
        places: I64 = self.directory.read_arrow(self._name(f"places-{name}"))["place"].to_numpy()
        matrix, rows = take_rows(column_matrix(table["vector"]), places), take_rows(table["row"].to_numpy(), places)
        return VectorIndex(matrix, rows, self._faiss(f"faiss-{name}"))

    def terms(self, kinds: Sequence[str]) -> TermIndex:
        """BM25 over the nodes of some kinds.

        Raises:
            IndexMismatchError: The index has no such lexical view.
            DataError: It has several shards: each has its own.
        """
        self._check_whole()
        check_views(self.directory.path, self.views, [View(tuple(kinds), lexical=True)])
        name = kinds_key(kinds)
        if name not in self._terms:
            self._terms[name] = self._open_terms(name)
        return self._terms[name]

    def _open_terms(self, name: str) -> TermIndex:
        terms, postings = (self.directory.read_arrow(self._name(f"{role}-{name}")) for role in ("terms", "postings"))
        kept = self.directory.read_arrow(self._name(f"rows-{name}"))
        rows, places = kept["row"].to_numpy(), postings["place"].to_numpy()
        offsets = np.r_[np.int64(0), terms["end"].to_numpy()]
        names, bm25 = terms["term"].to_pylist(), self.manifest["settings"]["bm25"]
        if "weight" in postings.column_names:
            return TermIndex(names, offsets, places, postings["weight"].to_numpy(), rows, bm25["language"])
        shared = self.directory.read_arrow(self._name(f"statistics-{name}"))
        counts = Postings(names, offsets, places, postings["count"].to_numpy(), rows, kept["n_terms"].to_numpy())
        statistics = Statistics(
            shared["term"].to_pylist(), shared["idf"].to_numpy(), self.manifest["mean_terms"].get(name, 1.0)
        )
        return counts.weighted(statistics, bm25["k1"], bm25["b"], bm25["language"])

    def _check_whole(self) -> None:
        if self._shards:
            raise DataError(f"the index at {self.directory.path} has {self.n_shards} shards: search each of them")

    def ranges(self, doc_ids: Iterable[str]) -> Ranges:
        """Find documents: the first node row of each and one past its last.

        Raises:
            DataError: The index has no such document.
        """
        starts, wanted = self._document_rows, dict.fromkeys(doc_ids)
        unknown = [doc_id for doc_id in wanted if doc_id not in starts]
        if unknown:
            raise DataError(f"the index at {self.directory.path} has no document {', '.join(unknown)}")
        return tuple((starts[doc_id], int(self.nodes.end[starts[doc_id]])) for doc_id in wanted)

    @functools.cached_property
    def _document_rows(self) -> dict[str, int]:
        rows = np.flatnonzero(self.nodes.kind == DOCUMENT)
        return dict(zip(self.documents["doc_id"].to_pylist(), rows.tolist(), strict=True))

    def node_vectors(self, rows: I64) -> F32:
        """Vectors of nodes of any kind, sections and documents too: shape ``(k, d)``; zeros where it has none."""
        if self._shards:
            found = np.zeros((len(rows), self.manifest["dim"]), np.float32)
            owner, inside = self.layout.shard_of(rows), self.layout.to_shard(rows)
            for number in np.unique(owner):
                found[owner == number] = self._shards[number].node_vectors(inside[owner == number])
            return found
        matrix, place, _ = self._every_vector
        return np.asarray(matrix[place[rows]])

    def text_vectors(self, rows: I64) -> tuple[Mask, F32]:
        """Vectors of nodes' own texts where the nodes have others: of paragraphs with ``both``, of some captions.

        Returns:
            Which of the nodes have one, shape ``(n,)``, and those vectors, shape ``(k, d)``.
        """
        if self._shards:
            has, found = np.zeros(len(rows), bool), np.zeros((len(rows), self.manifest["dim"]), np.float32)
            owner, inside = self.layout.shard_of(rows), self.layout.to_shard(rows)
            for number in np.unique(owner):
                places = np.flatnonzero(owner == number)
                own, vectors = self._shards[number].text_vectors(inside[places])
                has[places[own]], found[places[own]] = True, vectors
            return has, found[has]
        matrix, first, last = self._every_vector
        has = first[rows] != last[rows]
        return has, np.asarray(matrix[last[rows[has]]])

    @functools.cached_property
    def _every_vector(self) -> tuple[F32, I64, I64]:
        table = self.directory.read_arrow(self._name("vectors"))
        every: I64 = table["row"].to_numpy()
        first = np.empty(self.manifest["counts"]["n_nodes"], dtype=np.int64)
        last = np.empty_like(first)
        last[every] = np.arange(len(every))
        first[every[::-1]] = np.arange(len(every))[::-1]  # a node's first vector is its own, a second one its text's
        return column_matrix(table["vector"]), first, last

    def _name(self, role: str) -> str:
        return str(self.manifest["files"][role]["name"])

    def _faiss(self, role: str) -> Any:
        import faiss

        name = self._name(role)
        try:
            if self.directory.is_local:
                return faiss.read_index(self.directory.full(name), faiss.IO_FLAG_MMAP_IFC)
            return faiss.deserialize_index(np.frombuffer(self.directory.read(name), dtype=np.uint8))
        except RuntimeError as error:
            raise DataError(f"{self.directory.full(name)} is damaged: {REINDEX}") from error


def publish(directory: Directory, manifest: Mapping[str, Any]) -> None:
    """Make a finished build the index: its manifest takes the old one's place in one rename, then the old files go.

    Raises:
        DataError: A file of the build is missing, as when two builds write one directory at once.
    """
    check_files(directory, all_files(manifest))
    temporary = f"{MANIFEST}.{manifest['build']}.tmp"
    directory.write(temporary, json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False).encode())
    directory.rename(temporary, MANIFEST)
    remove_unlisted(directory, manifest)


def remove_unlisted(directory: Directory, manifest: Mapping[str, Any]) -> None:
    """Delete the files of earlier builds, finished or not; only files that an index writes are deleted."""
    listed = {entry["name"] for entry in all_files(manifest).values()}
    listed |= image_files(directory, manifest)
    for name in directory.names():
        ours = name.split("/")[0] in PARTS if "/" in name else name.startswith(f"{MANIFEST}.")
        if ours and name not in listed:
            directory.remove(name)


def image_files(directory: Directory, manifest: Mapping[str, Any]) -> set[str]:
    """Names of the PNGs of an index."""
    entry = manifest["files"].get("images")
    table = None if entry is None else directory.read_parquet(entry["name"])
    return set() if table is None else set(map(image_name, table["digest"].to_pylist()))


def read_manifest(directory: Directory) -> dict[str, Any]:
    """Read the manifest of an index.

    Raises:
        DataError: There is no index, or its manifest is damaged or of another layout.
    """
    if directory.size(MANIFEST) is None:
        raise DataError(f"there is no index at {directory.path}: build one with `kohaku-ray index CONFIG`")
    try:
        manifest = json.loads(directory.read(MANIFEST).to_pybytes())
        layout = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise directory.damaged(MANIFEST, error) from error
    if layout not in (FORMAT, SHARDED_FORMAT):
        raise DataError(f"{directory.path} has index layout {layout} but this version reads {FORMAT}: {REINDEX}")
    return dict(manifest)


def all_files(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """List every file of an index with all its shards, by role."""
    files = dict(manifest["files"])
    for number, shard in enumerate(manifest.get("shards", ())):
        files |= {f"{role} of shard {number}": entry for role, entry in shard["files"].items()}
    return files


def check_files(directory: Directory, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that every listed file exists and is whole.

    Raises:
        DataError: One is missing or has another size.
    """
    for entry in files.values():
        size = directory.size(entry["name"])
        if size != entry["bytes"]:
            state = "is missing" if size is None else f"has {size:,} bytes but the manifest says {entry['bytes']:,}"
            raise DataError(f"{directory.full(entry['name'])} {state}: {REINDEX}")


def check_settings(path: str, built: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare the settings of an index with the expected ones.

    Raises:
        IndexMismatchError: They differ; it names the first key that does, and both values.
    """
    have, want = _leaves(plain(built)), _leaves(plain(expected))
    for key, value in want.items():
        section = key.partition(".")[0]
        if section not in built and section != key:
            raise IndexMismatchError(
                f"the index at {path} was built without {section} but the configuration says {key} {value!r}: "
                f"{REINDEX}, or change the configuration back"
            )
        if key not in have or have[key] != value:
            raise IndexMismatchError(
                f"the index at {path} was built with {key} {have.get(key)!r} but the configuration says {value!r}: "
                f"{REINDEX}, or change the configuration back"
            )


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash a mapping of plain values.

    Raises:
        ConfigError: A value has no stable form, such as an object, a set or NaN.
    """
    return digest(config, 32, "")


def _leaves(value: Any, where: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {where: value}
    found: dict[str, Any] = {}
    for key, item in sorted(value.items()):
        found |= _leaves(item, f"{where}.{key}".lstrip("."))
    return found
