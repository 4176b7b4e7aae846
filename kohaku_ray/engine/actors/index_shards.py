"""The reducers of an index in shards: one task per shard, and one that joins them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.image_encoding import image_vectors
from kohaku_ray.engine.actors.indexing import reject_table
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import views_with_old
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.parsed import ParsedParts
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.index.shards import Shard, build_shard, content_of, publish_shards, unchanged_shard
from kohaku_ray.run.indexes import encoder_settings, index_settings, views_of
from kohaku_ray.run.parsing import sort_out

Part = tuple[Shard, bool]
"""A shard, and whether it was there before."""


def shard_reduced(config: Config, job: str, number: int) -> Part | None:
    """Build one shard, or find it unchanged (a task); it reads no other shard's documents.

    Args:
        config: The job's configuration.
        job: Unique name of this job.
        number: The shard's.

    Returns:
        None: no document belongs to it.
    """
    parsed = ParsedParts(config.index.path, job)
    used, _ = sort_out(parsed.rows())
    own = [row for row in used if shard_number(row["doc_id"], config.index.shards) == number]
    if not own:
        return None
    path, settings = config.index.path, index_settings(config)
    views = views_with_old(path, settings, views_of(config))
    content = content_of({row["doc_id"]: row["digest"] for row in own}, settings, views)
    if (there := unchanged_shard(path, number, content)) is not None:
        return there, True
    nodes = parsed.table(own, "nodes")
    _, texts = texts_to_encode(
        NodeTable(nodes), settings.paragraph_vectors, captions=settings.image_plan.encodes_captions
    )
    wanted = vector_keys(settings.encoder, list(dict.fromkeys(texts)))
    keys, vectors = PendingVectors(path).load(encoder_settings(config), wanted)
    shard = build_shard(
        path,
        number,
        content,
        nodes=nodes,
        documents=parsed.table(own, "documents"),
        keys=keys,
        vectors=vectors,
        settings=settings,
        views=views,
        image_vectors=image_vectors(path, settings),
        train_on_gpu=config.index.build_gpus > 0,
    )
    return shard, False


def shards_joined(config: Config, job: str, sources: pa.Table, *parts: Part | None) -> dict[str, Any]:
    """Make the shards the index (a task).

    Args:
        config: The job's configuration.
        job: Unique name of this job.
        sources: The files that were parsed (``SOURCES_SCHEMA``).
        parts: Every shard.

    Returns:
        See ``publish_shards``; and ``n_shards_kept``, the shards that were not built again.
    """
    parsed = ParsedParts(config.index.path, job)
    used, rejects = sort_out(parsed.rows())
    settings = index_settings(config)
    there = [part for part in parts if part is not None]
    kept = [shard["number"] for shard, is_kept in there if is_kept]
    counts = publish_shards(
        config.index.path,
        [shard for shard, _ in there],
        kept,
        rejects=reject_table(rejects),
        sources=sources,
        settings=settings,
        views=views_with_old(config.index.path, settings, views_of(config)),
        images=parsed.table(used, "images") if config.index.images else None,
    )
    PendingVectors(config.index.path).clear()
    return {**counts, "n_shards": len(there), "n_shards_kept": len(kept)}
