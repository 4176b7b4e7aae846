"""The reducer: write an index directory from node rows and sentence vectors."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import kohaku_ray
from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.assemble import Encoded, Layout, ParagraphVectors, Weights, collect, lay_out, texts_to_encode
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.columns import matrix_column
from kohaku_ray.index.identity import KEY_BYTES, Keys, passage_part
from kohaku_ray.index.image_vectors import ROLE, ImagePlan, ImageVectors, known_image_vectors, no_vectors, placed
from kohaku_ray.index.known import known_vectors
from kohaku_ray.index.nodes import DOCUMENT, KINDS, NodeTable
from kohaku_ray.index.store import FORMAT, REINDEX, Index, fingerprint, publish
from kohaku_ray.index.terms import TermIndex
from kohaku_ray.index.vectors import VectorIndex
from kohaku_ray.index.views import IMAGE, View, as_plain, of_kinds, rows_of, united
from kohaku_ray.records import plain
from kohaku_ray.storage import Directory

__all__ = ["REJECT_SCHEMA", "IndexSettings", "build_index", "build_terms", "texts_to_encode"]

REJECT_SCHEMA = pa.schema(
    [pa.field("file", pa.string(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
"""Files that could not be read, and parts of files: then ``file`` also says which part."""


@dataclass(frozen=True)
class IndexSettings:
    """All settings that decide an index's content, besides the documents.

    Attributes:
        encoder: ``SentenceEncoder.identity``.
        weights: Weight of a child in its parent's vector.
        paragraph_vectors: Vector of a paragraph: mean of its sentences, that of its own text, or one of each.
        factory: FAISS factory string.
        k1: BM25's term-frequency saturation.
        b: BM25's length normalisation.
        language: Language of BM25's terms.
        chunks: How documents are cut into chunks; None: they are not.
        images: Settings of images; None: they are not extracted.
    """

    encoder: Mapping[str, Any]
    weights: Weights = "chars"
    paragraph_vectors: ParagraphVectors = "averaged"
    factory: str = "Flat"
    k1: float = 1.5
    b: float = 0.75
    language: Literal["en", "fr"] = "en"
    chunks: Chunks | None = None
    images: Mapping[str, Any] | None = None

    @property
    def image_plan(self) -> ImagePlan:
        """How images get their vectors."""
        return ImagePlan.of(self.encoder, self.images)

    def as_mapping(self) -> dict[str, Any]:
        """Return them as ``Index.open`` compares them, keys named as in the configuration."""
        chunks = {} if self.chunks is None else {"chunks": self.chunks.as_mapping()}
        return {
            **chunks,
            **({} if self.images is None else {"images": dict(self.images)}),
            "encoder": dict(self.encoder),
            "weights": self.weights,
            "paragraph_vectors": self.paragraph_vectors,
            "factory": self.factory,
            "bm25": {"k1": float(self.k1), "b": float(self.b), "language": self.language},
        }


def build_index(
    path: str,
    *,
    nodes: pa.Table,
    documents: pa.Table,
    rejects: pa.Table,
    keys: Keys,
    vectors: F32,
    settings: IndexSettings,
    views: Iterable[View],
    terms: Mapping[str, pa.Table] | None = None,
    sources: pa.Table | None = None,
    images: pa.Table | None = None,
    image_vectors: tuple[Keys, F32] | None = None,
    train_on_gpu: bool = False,
) -> dict[str, Any]:
    """Write the index of some documents over any old index; readers see the old one until all files are written.

    Args:
        path: Directory on any pyarrow filesystem.
        nodes: Every document's rows (``NODE_SCHEMA``), documents sorted by id, token counts filled in.
        documents: Their ``DOCUMENT_SCHEMA`` rows, in the same order.
        rejects: ``REJECT_SCHEMA`` rows.
        keys: Shape ``(m,)``; ``vector_keys`` of the texts encoded for this build, in any order.
        vectors: Shape ``(m, d)``; their unit vectors. Texts of the old index need not be among them.
        settings: Settings of the index.
        views: Its views (see ``views_with_old``).
        terms: Result of ``build_terms`` for the nodes, if already computed.
        sources: ``SOURCES_SCHEMA`` rows; None: not recorded.
        images: ``IMAGE_SCHEMA`` rows; their PNGs are there. None: images are not extracted.
        image_vectors: Keys and vectors of the images encoded for this build; None: none were.
        train_on_gpu: See ``VectorIndex.build``.

    Returns:
        Counts: n_documents, n_sections, n_paragraphs, n_sentences, n_chunks, n_nodes, n_rejects, n_vectors (searched),
        n_encoded and n_reused (distinct texts), n_terms, n_bytes; n_images, where they are extracted.

    Raises:
        DataError: There is no text, a text has no vector, a vector is not finite, documents and nodes do not match, or
            the directory cannot be written.
        TreeError: The nodes do not form a tree.
    """
    tree = NodeTable(nodes)
    check_documents(tree, documents)
    plan = settings.image_plan
    encoded = collect(
        tree,
        settings.paragraph_vectors,
        settings.encoder,
        (keys, vectors),
        known_vectors(path, settings.encoder),
        captions=plan.encodes_captions,
    )
    seen = placed(tree, plan, image_vectors or no_vectors(), known_image_vectors(path))
    files, views = BuildFiles(Directory(path, REINDEX)), united(views)
    files.shared(rejects, sources, images)
    terms = build_terms(tree, settings, views) if terms is None else terms
    counts, dim = write_documents(files, tree, documents, encoded, terms, settings, views, seen, train_on_gpu)
    counts = {**counts, **image_count(images), "n_rejects": rejects.num_rows, "n_bytes": files.n_bytes}
    publish(files.directory, manifest_of(files, settings, views, counts, dim))
    return counts


def write_documents(
    files: BuildFiles,
    tree: NodeTable,
    documents: pa.Table,
    encoded: Encoded,
    terms: Mapping[str, pa.Table],
    settings: IndexSettings,
    views: Iterable[View],
    images: ImageVectors | None = None,
    train_on_gpu: bool = False,
) -> tuple[dict[str, int], int]:
    """Propagate the vectors of documents and write all their files; arguments as of ``build_index``.

    ``images`` are the vectors of their images, where images are encoded.

    Returns:
        Counts, without those of rejects and bytes, and the length of a vector.
    """
    plan = settings.image_plan
    layout = lay_out(tree, encoded, settings.weights, settings.paragraph_vectors, plan, images)
    files.parquet("nodes", tree.table)
    files.parquet("documents", documents)
    _write_vectors(files, layout, encoded.keys)
    n_searched = []
    for view in (view for view in views if view.dense):
        if plan.own_space and images is not None and view.key == IMAGE:
            own = VectorIndex.build(images.vectors, images.rows, settings.factory, train_on_gpu=train_on_gpu)
            files.faiss(f"faiss-{view.key}", own)
        else:
            n_searched.append(_write_view(files, tree, layout, view, settings.factory, train_on_gpu))
    if images is not None:
        files.arrow(ROLE, "vectors", images.table())
    for name, table in terms.items():
        files.arrow(name, "bm25", table)
    counts = {
        **{f"n_{kind}s": int((tree.kind == code).sum()) for code, kind in enumerate(KINDS)},
        "n_nodes": len(tree),
        "n_vectors": max(n_searched, default=0),
        "n_encoded": len(encoded.keys) - encoded.n_reused,
        "n_reused": encoded.n_reused,
        "n_terms": max((table.num_rows for name, table in terms.items() if name.startswith("terms-")), default=0),
    }
    return counts, layout.matrix.shape[1]


def views_with_old(path: str, settings: IndexSettings, views: Iterable[View]) -> tuple[View, ...]:
    """Join the views asked for with those of the index that is there, if it was built with the same settings.

    Without chunks, views of chunks are left out.
    """
    try:
        old = Index.open(path, settings.as_mapping()).views
    except DataError:
        old = ()
    return united(views, (view for view in old if settings.chunks is not None or "chunk" not in view.kinds))


def build_terms(tree: NodeTable, settings: IndexSettings, views: Iterable[View]) -> dict[str, pa.Table]:
    """Build the BM25 part of an index, which needs no vectors: its tables by file, for ``build_index``."""
    tables: dict[str, pa.Table] = {}
    for key, rows, texts in lexical_texts(tree, views):
        terms = TermIndex.build(texts, rows, settings.k1, settings.b, settings.language)
        tables |= {
            f"terms-{key}": term_table(terms.terms, terms.offsets),
            f"postings-{key}": pa.table({"place": pa.array(terms.places), "weight": pa.array(terms.weights)}),
            f"rows-{key}": pa.table({"row": pa.array(rows)}),
        }
    return tables


def lexical_texts(tree: NodeTable, views: Iterable[View]) -> Iterator[tuple[str, I64, list[str]]]:
    """Yield what BM25 is built from: of each lexical view its key, the rows of its nodes and their texts."""
    for view in views:
        if view.lexical:
            rows = rows_of(tree, view.kinds)
            yield view.key, rows, tree.table["text"].take(pa.array(rows)).to_pylist()


def term_table(terms: Sequence[str], offsets: I64) -> pa.Table:
    """List a vocabulary as an index holds it: each term, and one past the last of its postings."""
    return pa.table({"term": pa.array(terms, pa.string()), "end": pa.array(offsets[1:])})


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

    def shared(self, rejects: pa.Table, sources: pa.Table | None, images: pa.Table | None = None) -> None:
        """Write what belongs to no shard."""
        self.parquet("rejects", rejects)
        if sources is not None:
            self.parquet("sources", sources)
        if images is not None:
            self.parquet("images", images)

    def parquet(self, role: str, table: pa.Table) -> None:
        """Write a Parquet file."""
        name = f"{role}/{role}-{self.build}.parquet"
        self.directory.write_parquet(name, table)
        self._note(role, name, table.num_rows)

    def arrow(self, role: str, place: str, table: pa.Table) -> None:
        """Write an Arrow file."""
        name = f"{place}/{role}-{self.build}.arrow"
        self.directory.write_arrow(name, table)
        self._note(role, name, table.num_rows)

    def faiss(self, role: str, index: VectorIndex) -> None:
        """Write a FAISS index."""
        name = f"faiss/{role}-{self.build}.index"
        self.directory.write(name, index.to_bytes())
        self._note(role, name, len(index))

    def _note(self, role: str, name: str, n_rows: int) -> None:
        self.written[role] = {"name": name, "bytes": self.directory.size(name), "rows": n_rows}


def image_count(images: pa.Table | None) -> dict[str, int]:
    """Count the images of an index, where they are extracted."""
    return {} if images is None else {"n_images": images.num_rows}


def _write_vectors(files: BuildFiles, layout: Layout, keys: Keys) -> None:
    columns = {"row": pa.array(layout.rows), "vector": matrix_column(layout.matrix)}
    files.arrow("vectors", "vectors", pa.table(columns))
    raw = pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(keys), [None, pa.py_buffer(keys)])
    files.arrow("keys", "vectors", pa.table({"key": raw, "place": pa.array(layout.places)}))


def _write_view(
    files: BuildFiles, tree: NodeTable, layout: Layout, view: View, factory: str, train_on_gpu: bool
) -> int:
    """Write the files of a dense view; returns its number of vectors."""
    wanted = of_kinds(tree, view.kinds)[layout.rows] & layout.matrix.any(axis=1)
    wanted[len(wanted) - layout.n_kept :] = False
    places = np.flatnonzero(wanted).astype(np.int64)
    files.arrow(f"places-{view.key}", "vectors", pa.table({"place": pa.array(places)}))
    vectors, rows = layout.matrix[places], layout.rows[places]
    files.faiss(f"faiss-{view.key}", VectorIndex.build(vectors, rows, factory, train_on_gpu=train_on_gpu))
    return len(places)


def manifest_of(
    files: BuildFiles, settings: IndexSettings, views: Iterable[View], counts: Mapping[str, int], dim: int
) -> dict[str, Any]:
    """Describe a finished build, as ``publish`` takes it."""
    import faiss

    described = plain(settings.as_mapping())
    return {
        "format": FORMAT,
        "build": files.build,
        "fingerprint": fingerprint(described),
        "settings": described,
        "views": as_plain(views),
        "passage_identity": plain(passage_part(settings.encoder)),
        "dim": dim,
        "counts": dict(counts),
        "versions": {
            "kohaku_ray": kohaku_ray.__version__,
            "faiss": faiss.__version__,
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
        },
        "files": files.written,
    }


def check_documents(tree: NodeTable, documents: pa.Table) -> None:
    """Check that the nodes are those of the documents, sorted by id.

    Raises:
        DataError: They are not.
    """
    roots = tree.table["doc_id"].filter(pa.array(tree.kind == DOCUMENT)).to_pylist()
    listed = documents["doc_id"].to_pylist()
    if roots != listed:
        odd = sorted(set(roots) ^ set(listed))[:3]
        raise DataError(
            f"{len(roots)} documents among the nodes but {len(listed)} in the document table, "
            f"{'other than in both: ' + ', '.join(odd) if odd else 'in another order'}: give a row per document, by id"
        )
    if roots != sorted(roots):
        raise DataError("the documents are not sorted by id: sort them, so that equal input gives equal bytes")
