"""Write an index: the files of each shard from node rows and vectors of texts, then one manifest for all shards."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.arrays import F32, I64, Keys, key_column, matrix_column
from kohaku_ray.index.assemble import Layout, collect, lay_out
from kohaku_ray.index.identity import passage_part
from kohaku_ray.index.images import ImagePlan, join_image_vectors
from kohaku_ray.index.known import IMAGE_VECTORS, KnownVectors, known_image_vectors, known_vectors
from kohaku_ray.index.layout import LAYOUT_SCHEMA, ShardLayout
from kohaku_ray.index.nodes import KINDS, NodeTable
from kohaku_ray.index.settings import IndexConfig, Language
from kohaku_ray.index.store import (
    FORMAT,
    REINDEX,
    Index,
    all_files,
    check_content,
    check_files,
    damage_of,
    fingerprint,
    publish,
    read_manifest,
    read_table,
)
from kohaku_ray.index.terms import K1, TERMS, B, Statistics, TermCounts
from kohaku_ray.index.vectors import FLAT, VectorIndex, take_rows
from kohaku_ray.index.views import IMAGE, View, as_plain, of_kinds, rows_of, united
from kohaku_ray.records import digest, plain
from kohaku_ray.store.storage import Directory
from kohaku_ray.version import __version__, code_version

REJECT_SCHEMA = pa.schema(
    [pa.field("file", pa.string(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
"""Files that could not be read, and parts of files: then ``file`` also says which part."""


@dataclass(frozen=True)
class IndexSettings:
    """All that decides an index's content besides the documents.

    Attributes:
        encoder: Its identity (``encoder_identity``).
        index: The section of the configuration, with the system's language and chunks where it leaves them open.
        images: What decides the images (``run.indexes.image_settings``); None: they are not extracted.
    """

    encoder: Mapping[str, Any]
    index: IndexConfig = field(default_factory=IndexConfig)
    images: Mapping[str, Any] | None = None

    @property
    def language(self) -> Language:
        """Language of the terms."""
        return self.index.bm25.language or "en"

    @property
    def image_plan(self) -> ImagePlan:
        """How images get their vectors."""
        return ImagePlan.of(self.encoder, self.images)

    def as_mapping(self) -> dict[str, Any]:
        """Return what ``Index.open`` compares, keys named as in the configuration."""
        index = self.index
        return {
            **({} if index.chunks is None else {"chunks": index.chunks.as_mapping()}),
            **({} if self.images is None else {"images": dict(self.images)}),
            "encoder": dict(self.encoder),
            "weights": index.weights,
            "paragraph_vectors": index.paragraph_vectors,
            **({"context_header": True} if index.context_header else {}),
            "factory": index.factory,
            "bm25": {"k1": K1, "b": B, "language": self.language, "terms": TERMS},
        }


def views_with_old(path: str, settings: IndexSettings, views: Iterable[View]) -> tuple[View, ...]:
    """Join the views asked for with those of the index there, if of the same settings; chunks only if it has any."""
    try:
        old = Index.open(path, settings.as_mapping()).views
    except DataError:
        old = ()
    return united(views, (view for view in old if settings.index.chunks is not None or "chunk" not in view.kinds))


ShardEntry = Mapping[str, Any]
"""A shard as the manifest has it: number, content (digest of what it was built from), build, counts, dim and files."""


def content_of(documents: Mapping[str, str], settings: IndexSettings, views: Iterable[View]) -> str:
    """Digest what a shard is built from: digests of its documents by id, the settings and the views."""
    made = [fingerprint(settings.as_mapping()), as_plain(views), __version__]
    return digest([sorted(documents.items()), *made], 32, "")


def unchanged_shard(path: str, number: int, content: str) -> ShardEntry | None:
    """Find a shard of the index that is there, if it was built from the same; None: it must be built."""
    directory = Directory(path)
    try:
        for shard in read_manifest(directory)["shards"]:
            if (shard["number"], shard["content"]) == (number, content):
                check_files(directory, shard["files"])
                for entry in shard["files"].values():
                    check_content(directory, entry)
                return dict(shard)
    except DataError:
        pass  # damaged files are written again
    return None


def forget_damaged(path: str) -> list[str]:
    """Find the files of the index there that a build takes over and that are not what was written; list them.

    Damaged vectors are deleted: the old index cannot be opened then, and all texts are encoded again.
    """
    directory = Directory(path)
    try:
        files = all_files(read_manifest(directory))
    except StorageError:
        raise
    except DataError:
        return []
    vectors = ("keys", "vectors", IMAGE_VECTORS)
    reused = [(role.split()[0], entry) for role, entry in files.items()]
    reused = [(role, entry) for role, entry in reused if role in (*vectors, "nodes", "documents", "parsed", "images")]
    damages = directory.map_items(lambda item: damage_of(directory, item[1]), reused)
    wrong = [(role, entry["name"]) for (role, entry), damage in zip(reused, damages, strict=True) if damage]
    directory.remove(*(name for role, name in wrong if role in vectors))
    return [directory.full(name) for _, name in wrong]


def build_terms(tree: NodeTable, settings: IndexSettings, views: Iterable[View]) -> dict[str, pa.Table]:
    """Count the terms of a shard, which needs no vectors: its tables by file, for ``build_shard``."""
    tables: dict[str, pa.Table] = {}
    for view in united(views):
        if view.lexical:
            rows = rows_of(tree, view.kinds)
            texts = tree.table["text"].take(pa.array(rows)).to_pylist()
            counts = TermCounts.build(texts, settings.language).tables(rows)
            tables |= {f"{role}-{view.key}": table for role, table in counts.items()}
    return tables


def build_shard(
    path: str,
    number: int,
    content: str,
    *,
    nodes: pa.Table,
    documents: pa.Table,
    keys: Keys,
    vectors: F32,
    settings: IndexSettings,
    views: Iterable[View],
    terms: Mapping[str, pa.Table] | None = None,
    image_vectors: tuple[Keys, F32] | None = None,
    known: KnownVectors | None = None,
    train_on_gpu: bool = False,
) -> ShardEntry:
    """Propagate the vectors of a shard's documents and write its files; no reader sees them before ``publish_shards``.

    Args:
        path: Directory of the index, on any pyarrow filesystem.
        number: The shard's.
        content: See ``content_of``.
        nodes: Rows of its documents (``NODE_SCHEMA``), sorted by id, token counts filled in.
        documents: Their ``DOCUMENT_SCHEMA`` rows, in the same order.
        keys: Shape ``(m,)``; keys of the texts encoded for this build, in any order; not of those in the old index.
        vectors: Shape ``(m, d)``; their unit vectors.
        settings: Settings of the index.
        views: See ``views_with_old``.
        terms: Result of ``build_terms``, if already computed.
        image_vectors: Keys and vectors of the images encoded for this build.
        known: Vectors of the index that is there, if already opened.
        train_on_gpu: See ``VectorIndex.build``.

    Raises:
        DataError: A text has no vector, a vector is not finite, or writing fails.
    """
    tree, views, plan = NodeTable(nodes), united(views), settings.image_plan
    encoded = collect(
        tree,
        settings.index,
        settings.encoder,
        (keys, vectors),
        known_vectors(path, settings.encoder, number) if known is None else known,
        captions=plan.encodes_captions,
    )
    images = join_image_vectors(tree, plan, image_vectors, known_image_vectors(path))
    layout = lay_out(tree, encoded, settings.index.weights, settings.index.paragraph_vectors, plan, images)
    files = BuildFiles(Directory(path, REINDEX))
    files.arrow("nodes", "nodes", tree.table)
    files.parquet("documents", documents)
    n_nodes = (tree.end - np.arange(len(tree)))[tree.parent < 0]
    files.arrow("sizes", "documents", pa.table({"doc_id": documents["doc_id"], "n_nodes": pa.array(n_nodes)}))
    files.arrow("vectors", "vectors", pa.table({"row": layout.rows, "vector": matrix_column(layout.matrix)}))
    files.arrow("keys", "vectors", pa.table({"key": key_column(encoded.keys), "place": layout.matrix_rows}))
    n_searched = []
    for view in (view for view in views if view.dense):
        if plan.own_space and images is not None and view.key == IMAGE:
            image_index = VectorIndex.build(
                images.vectors, images.rows, settings.index.factory, train_on_gpu=train_on_gpu
            )
            if settings.index.factory != FLAT:
                files.faiss(f"faiss-{view.key}", image_index)
        else:
            n_searched.append(_write_view(files, tree, layout, view, settings.index.factory, train_on_gpu))
    if images is not None:
        files.arrow(IMAGE_VECTORS, "vectors", images.table())
    for name, table in (build_terms(tree, settings, views) if terms is None else terms).items():
        files.arrow(name, "bm25", table)
    counts = {
        **{f"n_{kind}s": int((tree.kind == code).sum()) for code, kind in enumerate(KINDS)},
        "n_nodes": len(tree),
        "n_vectors": max(n_searched, default=0),
        "n_encoded": len(encoded.keys) - encoded.n_reused,
        "n_reused": encoded.n_reused,
        "n_bytes": files.n_bytes,
    }
    return {
        "number": number,
        "content": content,
        "build": files.build,
        "counts": counts,
        "dim": layout.matrix.shape[1],
        "files": files.written,
    }


def publish_shards(
    path: str,
    shards: Sequence[ShardEntry],
    kept: Sequence[int] = (),
    *,
    rejects: pa.Table,
    settings: IndexSettings,
    views: Iterable[View],
    sources: pa.Table | None = None,
    parsed: pa.Table | None = None,
    images: pa.Table | None = None,
    parsing: str = "",
) -> dict[str, Any]:
    """Make shards, at least one, the index, over any old one: join their statistics and the places of their documents.

    Readers see the old index until all files are written. ``kept`` are the numbers of shards that were there before;
    ``rejects``, ``sources``, ``parsed`` and ``images`` are rows of their schemas: of the last, None where images are
    not extracted, else their PNGs are there. ``parsing`` digests the code that parsed them.

    Returns:
        Counts, also of texts encoded and reused, distinct per shard.

    Raises:
        DataError: There is no text, or the directory cannot be written.
    """
    directory, views = Directory(path, REINDEX), united(views)
    total = Counter[str]()
    for shard in shards:
        total.update(shard["counts"])
        if shard["number"] in kept:
            total.update(n_reused=shard["counts"]["n_encoded"], n_encoded=-shard["counts"]["n_encoded"])
    if not total["n_encoded"] + total["n_reused"]:
        raise DataError("no document has any text to search: index at least one with a sentence, a caption or a title")
    files = BuildFiles(directory)
    files.parquet("rejects", rejects)
    for role, table in (("sources", sources), ("parsed", parsed), ("images", images)):
        if table is not None:
            files.parquet(role, table)
    sizes = [read_table(directory, shard["files"]["sizes"]) for shard in shards]
    owner = [np.full(len(table), number, np.int32) for number, table in enumerate(sizes)]
    joined = pa.concat_tables(sizes)
    columns = [joined["doc_id"], pa.array(np.concatenate(owner)), joined["n_nodes"]]
    layout_table = pa.table(columns, names=LAYOUT_SCHEMA.names).cast(LAYOUT_SCHEMA).sort_by("doc_id")
    files.arrow("layout", "documents", layout_table)
    layout, means, n_terms = ShardLayout.of(layout_table), {}, 0
    for view in views:
        if view.lexical:
            counted = [_read_term_counts(directory, shard, view.key) for shard in shards]
            whole = [(terms, layout.to_whole(number, rows)) for number, (terms, rows) in enumerate(counted)]
            statistics = Statistics.of(whole)
            shared = {"term": pa.array(statistics.terms, pa.string()), "idf": pa.array(statistics.idf)}
            files.arrow(f"statistics-{view.key}", "bm25", pa.table(shared))
            means[view.key], n_terms = statistics.mean_terms, max(n_terms, len(statistics.terms))
    counts = {name: total[name] for name in shards[0]["counts"]}
    counts |= {"n_rejects": rejects.num_rows, "n_terms": n_terms, "n_bytes": total["n_bytes"] + files.n_bytes}
    counts |= {} if images is None else {"n_images": images.num_rows}
    manifest = _manifest(files, settings, views, counts, shards) | {"mean_terms": means}
    manifest["versions"] |= {"parsing": parsing} if parsing else {}
    publish(directory, manifest)
    return counts


def _read_term_counts(directory: Directory, shard: ShardEntry, view: str) -> tuple[TermCounts, I64]:
    """Read the terms of a shard, without its postings, and its paragraphs' rows."""
    terms, rows = (read_table(directory, shard["files"][f"{role}-{view}"]) for role in ("terms", "rows"))
    return TermCounts.of(terms, rows), rows["row"].to_numpy()


class BuildFiles:
    """Files of one build, under unique names."""

    def __init__(self, directory: Directory) -> None:
        """Name a new build in an index's directory."""
        self.directory, self.build = directory, secrets.token_hex(6)
        self.written: dict[str, dict[str, Any]] = {}

    @property
    def n_bytes(self) -> int:
        """Size of all files."""
        return sum(entry["bytes"] for entry in self.written.values())

    def parquet(self, role: str, table: pa.Table) -> None:
        """Write a Parquet file, into a folder of its role's name."""
        name = f"{role}/{role}-{self.build}.parquet"
        self._note(role, name, table.num_rows, self.directory.write_parquet(name, table))

    def arrow(self, role: str, folder: str, table: pa.Table) -> None:
        """Write an Arrow file."""
        name = f"{folder}/{role}-{self.build}.arrow"
        self._note(role, name, table.num_rows, self.directory.write_arrow(name, table))

    def faiss(self, role: str, index: VectorIndex) -> None:
        """Write a FAISS index."""
        name = f"faiss/{role}-{self.build}.index"
        self._note(role, name, len(index), self.directory.write_by(name, index.write))

    def _note(self, role: str, name: str, n_rows: int, checksum: str) -> None:
        entry = {"name": name, "bytes": self.directory.size(name), "rows": n_rows, "checksum": checksum}
        self.written[role] = entry


def _write_view(
    files: BuildFiles, tree: NodeTable, layout: Layout, view: View, factory: str, train_on_gpu: bool
) -> int:
    """Write the files of a dense view; returns its number of vectors."""
    wanted = of_kinds(tree, view.kinds)[layout.rows] & layout.matrix.any(axis=1)
    wanted[len(wanted) - layout.n_kept :] = False
    matrix_rows = np.flatnonzero(wanted).astype(np.int64)
    files.arrow(f"places-{view.key}", "vectors", pa.table({"place": pa.array(matrix_rows)}))
    if factory != FLAT:  # a flat index is searched over the mapped vectors themselves
        vectors, rows = take_rows(layout.matrix, matrix_rows), layout.rows[matrix_rows]
        files.faiss(f"faiss-{view.key}", VectorIndex.build(vectors, rows, factory, train_on_gpu=train_on_gpu))
    return len(matrix_rows)


def _manifest(
    files: BuildFiles,
    settings: IndexSettings,
    views: Iterable[View],
    counts: Mapping[str, int],
    shards: Sequence[ShardEntry],
) -> dict[str, Any]:
    import faiss

    described = plain(settings.as_mapping())
    return {
        "format": FORMAT,
        "build": files.build,
        "fingerprint": fingerprint(described),
        "settings": described,
        "views": as_plain(views),
        "passage_identity": plain(passage_part(settings.encoder)),
        "dim": max(shard["dim"] for shard in shards),
        "counts": dict(counts),
        "versions": {
            "kohaku_ray": code_version(),
            "faiss": faiss.__version__,
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
        },
        "files": files.written,
        "shards": list(shards),
    }
