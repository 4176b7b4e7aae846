"""The reducers of an index: one task per shard, and one that joins them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.image_encoding import image_vectors
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import (
    REJECT_SCHEMA,
    Shard,
    build_shard,
    build_terms,
    content_of,
    publish_shards,
    unchanged_shard,
    views_with_old,
)
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.parsed import ParsedParts
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.run.indexes import encoder_settings, index_settings, views_of
from kohaku_ray.run.parsing import sort_out

Part = tuple[Shard, bool]
"""A shard, and whether it was there before."""


def shard_reduced(config: Config, job: str, number: int) -> Iterator[Part | None]:
    """Build one shard, or find it unchanged (a generator task); it reads no other shard's documents.

    Args:
        config: The job's configuration.
        job: Unique name of this job.
        number: The shard's.

    Yields:
        None when everything that needs no vectors is done; then the shard, or None: no document belongs to it. If Ray
        holds the task back until the first value is taken, it can start before all vectors are written. If the job
        fails before that, Ray lets the task go on; it then misses vectors and leaves the index as it is.
    """
    parsed = ParsedParts(config.index.path, job)
    used, _ = sort_out(parsed.rows())
    own = [row for row in used if shard_number(row["doc_id"], config.index.shards) == number]
    path, settings = config.index.path, index_settings(config)
    views = views_with_old(path, settings, views_of(config))
    content = content_of({row["doc_id"]: row["digest"] for row in own}, settings, views)
    there = unchanged_shard(path, number, content) if own else None
    if not own or there is not None:
        yield None
        yield None if there is None else (there, True)
        return
    nodes = parsed.table(own, "nodes")
    tree = NodeTable(nodes)
    terms = build_terms(tree, settings, views)
    _, texts = texts_to_encode(tree, settings.paragraph_vectors, captions=settings.image_plan.encodes_captions)
    wanted = vector_keys(settings.encoder, list(dict.fromkeys(texts)))
    del tree, texts
    yield None
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
        terms=terms,
        image_vectors=image_vectors(path, settings),
        train_on_gpu=config.index.build_gpus > 0,
    )
    yield shard, False


def shard_built(config: Config, job: str, number: int) -> Part | None:
    """Do all of ``shard_reduced`` (a task): all vectors are written."""
    *_, part = shard_reduced(config, job, number)
    return part


def shards_joined(config: Config, job: str, sources: pa.Table, *parts: Part | None) -> dict[str, Any]:
    """Make the shards the index (a task).

    Args:
        config: The job's configuration.
        job: Unique name of this job.
        sources: The files that were parsed (``SOURCES_SCHEMA``).
        parts: Every shard.

    Returns:
        See ``publish_shards``; with several shards also ``n_shards``, and ``n_shards_kept``: those not built again.
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
        rejects=pa.Table.from_pylist([{"file": where, "reason": reason} for where, reason in rejects], REJECT_SCHEMA),
        sources=sources,
        settings=settings,
        views=views_with_old(config.index.path, settings, views_of(config)),
        images=parsed.table(used, "images") if config.index.images else None,
    )
    PendingVectors(config.index.path).clear()
    if config.index.shards > 1:
        counts |= {"n_shards": len(there), "n_shards_kept": len(kept)}
    return counts
