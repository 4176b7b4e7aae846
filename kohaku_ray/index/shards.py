"""The reducers of an index in shards: each writes the files of its documents, and one joins them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.assemble import collect
from kohaku_ray.index.build import (
    BuildFiles,
    IndexSettings,
    check_documents,
    image_count,
    lexical_texts,
    manifest_of,
    term_table,
    write_documents,
)
from kohaku_ray.index.identity import Keys
from kohaku_ray.index.image_vectors import known_image_vectors, no_vectors, placed
from kohaku_ray.index.known import known_vectors
from kohaku_ray.index.layout import LAYOUT_SCHEMA
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.postings import Postings, Statistics
from kohaku_ray.index.store import REINDEX, SHARDED_FORMAT, fingerprint, publish, read_manifest
from kohaku_ray.index.views import View, as_plain, united
from kohaku_ray.records import digest
from kohaku_ray.storage import Directory

Shard = Mapping[str, Any]
"""A shard as the manifest has it: number, content (digest of what it was built from), build, counts, dim and files."""


def content_of(documents: Mapping[str, str], settings: IndexSettings, views: Iterable[View]) -> str:
    """Digest what a shard is built from.

    Args:
        documents: Digest of each document, by id.
        settings: Settings of the index.
        views: Its views.
    """
    return digest([sorted(documents.items()), fingerprint(settings.as_mapping()), as_plain(views)], 32, "")


def unchanged_shard(path: str, number: int, content: str) -> Shard | None:
    """Find a shard of the index that is there, if it was built from the same; None: it must be built."""
    directory = Directory(path, REINDEX)
    try:
        shards = read_manifest(directory).get("shards", ())
    except DataError:
        return None
    for shard in shards:
        if (shard["number"], shard["content"]) == (number, content):
            whole = all(directory.size(entry["name"]) == entry["bytes"] for entry in shard["files"].values())
            return dict(shard) if whole else None
    return None


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
    image_vectors: tuple[Keys, F32] | None = None,
    train_on_gpu: bool = False,
) -> Shard:
    """Write the files of one shard; no reader sees them before ``publish_shards``.

    Args:
        path: Directory of the index.
        number: The shard's.
        content: See ``content_of``.
        nodes: Rows of its documents (``NODE_SCHEMA``), sorted by id, token counts filled in.
        documents: Their ``DOCUMENT_SCHEMA`` rows, in the same order.
        keys: Shape ``(m,)``; keys of texts encoded for this build, at least all its new ones.
        vectors: Shape ``(m, d)``; their unit vectors.
        settings: Settings of the index.
        views: Its views.
        image_vectors: See ``build_index``.
        train_on_gpu: See ``VectorIndex.build``.

    Raises:
        DataError: A text has no vector, a vector is not finite, or the directory cannot be written.
    """
    tree, views, plan = NodeTable(nodes), united(views), settings.image_plan
    check_documents(tree, documents)
    encoded = collect(
        tree,
        settings.paragraph_vectors,
        settings.encoder,
        (keys, vectors),
        known_vectors(path, settings.encoder),
        is_part=True,
        captions=plan.encodes_captions,
    )
    seen = placed(tree, plan, image_vectors or no_vectors(), known_image_vectors(path))
    files, terms = BuildFiles(Directory(path, REINDEX)), _counted_terms(tree, settings, views)
    counts, dim = write_documents(files, tree, documents, encoded, terms, settings, views, seen, train_on_gpu)
    layout = {"doc_id": documents["doc_id"], "n_nodes": pa.array((tree.end - np.arange(len(tree)))[tree.parent < 0])}
    files.arrow("sizes", "documents", pa.table(layout))
    return {
        "number": number,
        "content": content,
        "build": files.build,
        "counts": {**counts, "n_bytes": files.n_bytes},
        "dim": dim,
        "files": files.written,
    }


def publish_shards(
    path: str,
    shards: Sequence[Shard],
    kept: Sequence[int],
    *,
    rejects: pa.Table,
    sources: pa.Table | None,
    settings: IndexSettings,
    views: Iterable[View],
    images: pa.Table | None = None,
) -> dict[str, Any]:
    """Make shards the index: join their statistics and the places of their documents, and write the manifest.

    Args:
        path: Directory of the index.
        shards: All of them.
        kept: Numbers of those that were there before.
        rejects: ``REJECT_SCHEMA`` rows.
        sources: ``SOURCES_SCHEMA`` rows; None: not recorded.
        settings: Settings of the index.
        views: Its views.
        images: ``IMAGE_SCHEMA`` rows of the whole index; None: images are not extracted.

    Returns:
        Counts as of ``build_index``; a text in several shards counts in each.

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
    files.shared(rejects, sources, images)
    files.arrow("layout", "documents", _layout(directory, shards))
    means, n_terms = {}, 0
    for view in views:
        if view.lexical:
            statistics = Statistics.of(_postings(directory, shard, view) for shard in shards)
            table = pa.table({"term": pa.array(statistics.terms, pa.string()), "idf": pa.array(statistics.idf)})
            files.arrow(f"statistics-{view.key}", "bm25", table)
            means[view.key], n_terms = statistics.mean_terms, max(n_terms, len(statistics.terms))
    counts = {name: total[name] for name in shards[0]["counts"]}
    counts |= {"n_rejects": rejects.num_rows, "n_terms": n_terms, "n_bytes": total["n_bytes"] + files.n_bytes}
    counts |= image_count(images)
    manifest = manifest_of(files, settings, views, counts, max(shard["dim"] for shard in shards))
    publish(directory, {**manifest, "format": SHARDED_FORMAT, "mean_terms": means, "shards": list(shards)})
    return counts


def _layout(directory: Directory, shards: Sequence[Shard]) -> pa.Table:
    sizes = [directory.read_arrow(shard["files"]["sizes"]["name"]) for shard in shards]
    owner = [np.full(len(table), place, np.int32) for place, table in enumerate(sizes)]
    joined = pa.concat_tables(sizes)
    columns = [joined["doc_id"], pa.array(np.concatenate(owner)), joined["n_nodes"]]
    return pa.table(columns, names=LAYOUT_SCHEMA.names).cast(LAYOUT_SCHEMA).sort_by("doc_id")


def _counted_terms(tree: NodeTable, settings: IndexSettings, views: Iterable[View]) -> dict[str, pa.Table]:
    """Count the terms of a shard: its tables by file."""
    tables: dict[str, pa.Table] = {}
    for key, rows, texts in lexical_texts(tree, views):
        found = Postings.build(texts, rows, settings.language)
        tables |= {
            f"terms-{key}": term_table(found.terms, found.offsets),
            f"postings-{key}": pa.table({"place": pa.array(found.places), "count": pa.array(found.counts)}),
            f"rows-{key}": pa.table({"row": pa.array(rows), "n_terms": pa.array(found.lengths)}),
        }
    return tables


def _postings(directory: Directory, shard: Shard, view: View) -> Postings:
    """Read a shard's counts, without the postings themselves."""
    terms, rows = (directory.read_arrow(shard["files"][f"{role}-{view.key}"]["name"]) for role in ("terms", "rows"))
    none = np.empty(0, np.int32)
    offsets = np.r_[0, terms["end"].to_numpy()].astype(np.int64)
    return Postings(terms["term"].to_pylist(), offsets, none, none, rows["row"].to_numpy(), rows["n_terms"].to_numpy())
