"""The operations of an index (``IndexOperations``), and the index in this process that performs them (``LocalIndex``).

The decorators of a method say how it is divided among shards, cached, and batched over concurrent questions. In another
process the engine's ``RemoteIndex`` asks for the same operations: a new one is a line of each class.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from kohaku_ray.answering.batching import BatchingObject, ShardItems, batched, cached, on_shards
from kohaku_ray.answering.index_operations import Kinds, ShardOperations, Tokenizer, Within
from kohaku_ray.collection.indexes import (
    QueryEncoder,
    make_image_query_encoder,
    open_index,
    searches_on_gpu,
)
from kohaku_ray.config import Config
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F32, F64, I64, Hits
from kohaku_ray.index.chunks import TokenCounter
from kohaku_ray.index.identity import token_counter
from kohaku_ray.index.layout import ShardLayout
from kohaku_ray.index.nodes import KINDS, NodeTable, join_nodes, renumbered
from kohaku_ray.index.store import OpenShard
from kohaku_ray.index.vectors import Ranges, VectorIndex, merge_hits
from kohaku_ray.models.openai import Limiter
from kohaku_ray.models.target import Target
from kohaku_ray.systems.base import Depth

QUERIES_AT_ONCE = 1024
"""Most queries per batch: a larger batch fills the encoder's fixed shapes better."""

Depths = Mapping[Kinds, Depth]
"""How deep the runs that share an index search it, by the kinds of a view."""

Search = Callable[["LocalIndex", Sequence[Any], Kinds, int, Within], Coroutine[Any, Any, list[Hits]]]

PairScorer = Callable[[Target, Sequence[tuple[str, str]]], Awaitable[Sequence[float]]]
"""Scores (query, text) pairs by a cross-encoder."""


def _ask_all(layout: ShardLayout, items: Sequence[Any]) -> ShardItems:
    return {shard: (list(items), list(range(len(items)))) for shard in layout.shards}


def _ask_owner(layout: ShardLayout, rows: Sequence[int]) -> ShardItems:
    """Split node rows by the shard that holds each."""
    owner = layout.shard_of(np.asarray(rows, np.int64))
    positions_of = {int(shard): np.flatnonzero(owner == shard).tolist() for shard in np.unique(owner)}
    return {shard: ([rows[position] for position in positions], positions) for shard, positions in positions_of.items()}


def _ask_owners(layout: ShardLayout, items: Sequence[tuple[int, ...]]) -> ShardItems:
    """Split items that are tuples of node rows; one without rows goes to the first shard."""
    shares: dict[int, tuple[list[Any], list[int]]] = {}
    for position, rows in enumerate(items):
        owner = layout.shard_of(np.asarray(rows, np.int64))
        for shard in np.unique(owner).tolist() or [0]:
            parts, positions = shares.setdefault(shard, ([], []))
            parts.append(tuple(row for row, row_owner in zip(rows, owner, strict=True) if row_owner == shard))
            positions.append(position)
    return shares


def _merge_hits(parts: list[Hits], _: Kinds, top_k: int, __: Within) -> Hits:
    return merge_hits(parts, top_k)


def _take_only(parts: list[Any], *_: Any) -> Any:
    return parts[0]


def _deepest(depth: str) -> Callable[[Search], Search]:
    """Search as deep as the deepest of the runs that share the index, if a shorter search is the beginning of it."""

    def decorate(method: Search) -> Search:
        @functools.wraps(method)
        async def search(
            self: LocalIndex, queries: Sequence[Any], kinds: Kinds, top_k: int, within: Within
        ) -> list[Hits]:
            deepest = top_k
            if self.depths is not None and (depth == "lexical" or within is not None or self.is_exact(kinds)):
                deepest = max(top_k, getattr(self.depths.get(kinds, Depth()), depth))
            results = await method(self, queries, kinds, deepest, within)
            return results if deepest == top_k else [hits.prefix(top_k) for hits in results]

        return search

    return decorate


class LocalIndex(BatchingObject):
    """An index, or one of its shards, open in this process."""

    def __init__(
        self,
        shard: OpenShard,
        encoder: QueryEncoder,
        *,
        score: PairScorer | None = None,
        depths: Depths | None = None,
        gpu: bool = False,
        gpu_by_auto: bool = False,
        image_encoder: QueryEncoder | None = None,
        peer: Callable[[int], ShardOperations] | None = None,
        count: Callable[[str, str | None], TokenCounter] = token_counter,
    ) -> None:
        """Answer from an open shard.

        With ``depths`` of all runs that share the index, every search is as deep as the deepest and results are kept.
        ``score`` ranks pairs (None: it cannot), ``peer`` returns the index that holds another shard,
        ``count`` makes a tokenizer's counter; ``gpu``: FAISS searches on the GPU; ``gpu_by_auto``: on the CPU if the
        GPU cannot hold it.
        """
        super().__init__(keeps=depths is not None)
        self.shard, self.encoder, self.depths = shard, encoder, depths
        self._score, self._gpu, self._image_encoder = score, gpu, image_encoder
        self._peer, self._count = peer, count
        self._gpu_by_auto, self._on_cpu_because = gpu_by_auto, ""
        self._searched = dict[Kinds, VectorIndex]()
        # Token counts of nodes, by tokenizers; -1 where not yet counted.
        self._tokens: dict[tuple[Tokenizer, ...], I64] = {}

    @classmethod
    def open(
        cls,
        config: Config,
        depths: Depths | None = None,
        number: int = 0,
        peer: Callable[[int], ShardOperations] | None = None,
        score: PairScorer | None = None,
        limiter: Limiter | None = None,
    ) -> LocalIndex:
        """Open a shard of the configured index, and its encoder; raises what ``open_index`` does.

        ``limiter`` is the rate limit of an encoder's server.
        """
        # The index first: a mismatch is reported before the encoder takes seconds to load.
        shard, gpu = open_index(config).shards[number], searches_on_gpu(config)
        return cls(
            shard,
            QueryEncoder(config, None, limiter),
            score=score,
            depths=depths,
            gpu=gpu,
            gpu_by_auto=config.index.search_device == "auto",
            image_encoder=make_image_query_encoder(config),
            peer=peer,
        )

    @cached(20_000, counted="queries encoded")
    @batched(QUERIES_AT_ONCE)
    def embed(self, texts: list[str], of_images: bool) -> list[F32]:
        """Encode queries; those of images by the encoder that images have of their own."""
        encoder = self._image_encoder if of_images else self.encoder
        if encoder is None:
            raise ConfigError("queries of images are encoded but index.image_encoder is null: name one")
        return list(encoder.encode_queries(texts))

    @on_shards(_ask_all, _merge_hits)
    @_deepest("dense")
    @cached(20_000, counted="queries searched", key=lambda vector: vector.tobytes())
    @batched()
    def search(self, vectors: list[F32], kinds: Kinds, top_k: int, within: Within) -> list[Hits]:
        """Find each vector's nearest nodes."""
        return self._of_whole(self._vectors_of(kinds).search(np.stack(vectors), top_k, self._ranges(within)))

    @on_shards(_ask_all, _merge_hits)
    @_deepest("lexical")
    @cached(20_000, counted="queries by BM25")
    @batched()
    def lexical(self, queries: list[str], kinds: Kinds, top_k: int, within: Within) -> list[Hits]:
        """Find each query's best nodes by BM25."""
        return self._of_whole(self.shard.terms(kinds).search(queries, top_k, self._ranges(within)))

    @on_shards(_ask_owner, _take_only)
    @batched()
    def term_weights(self, rows: list[int], kinds: Kinds) -> list[tuple[I64, F64]]:
        """Fetch nodes' terms and their BM25 weights."""
        return self.shard.terms(kinds).weights_of(self._to_shard(rows))

    @on_shards(_ask_owner, _take_only)
    @batched()
    def vectors(self, rows: list[int]) -> list[F32]:
        """Fetch nodes' own vectors; zeros for a node without one."""
        return list(self.shard.node_vectors(self._to_shard(rows)))

    @cached(200_000, counted="pairs ranked", always=True)
    async def rank_pairs(self, pairs: Sequence[tuple[str, str]], target: Target) -> list[float]:
        """Score (query, text) pairs by a cross-encoder."""
        assert self._score is not None, "whoever ranks pairs opens the index with a score"
        return list(await self._score(target, list(pairs)))

    @on_shards(_ask_owners, lambda parts, *_: join_nodes(parts))
    @cached(2_000)
    async def nodes(
        self, asked: Sequence[tuple[int, ...]], section_tokens: int, tokenizers: tuple[Tokenizer, ...]
    ) -> list[NodeTable]:
        """Cut out nodes with the text around them, one table per tuple of rows; see ``NodeTable.neighbourhood``."""
        around = [self.shard.nodes.neighbourhood(self._to_shard(rows), section_tokens) for rows in asked]
        if tokenizers:
            around = [nodes.with_tokens(self._count_nodes(nodes, tokenizers)) for nodes in around]
        return [renumbered(nodes, self.layout.to_whole(self.number, nodes.source_row)) for nodes in around]

    @property
    def layout(self) -> ShardLayout:
        """Where the index's documents are among its shards."""
        return self.shard.index.layout

    @property
    def number(self) -> int:
        """The shard's number."""
        return self.shard.number

    def is_exact(self, kinds: Kinds) -> bool:
        """Whether a shorter search of a dense view is the beginning of a longer one."""
        return self.shard.vectors(kinds).exact

    async def run_alone(self, method: str, items: Sequence[Any], params: tuple[Any, ...]) -> list[Any]:
        """See ``ShardOperations``."""
        results: list[Any] = await getattr(type(self), method).alone(self, items, *params)
        return results

    def ask(self, number: int, method: str, items: Sequence[Any], params: tuple[Any, ...]) -> Awaitable[list[Any]]:
        """Run a method on another shard alone."""
        assert self._peer is not None, "an index of several shards has peers"
        return self._peer(number).run_alone(method, items, params)

    def _ranges(self, within: Within) -> Ranges | None:
        return None if within is None else self.shard.index.ranges(within, self.number)

    def _of_whole(self, of_shard: Sequence[Hits]) -> list[Hits]:
        return [Hits(self.layout.to_whole(self.number, hits.rows), hits.scores) for hits in of_shard]

    def _to_shard(self, rows: Sequence[int]) -> I64:
        return self.layout.to_shard(np.asarray(rows, np.int64))

    def open_views(self, views: Sequence[Kinds]) -> str:
        """Open dense views now, on the GPU if they are searched there; see ``Retriever.ready``."""
        for kinds in views:
            self._vectors_of(kinds)
        return self._on_cpu_because

    def _vectors_of(self, kinds: Kinds) -> VectorIndex:
        if kinds not in self._searched:
            vectors = self.shard.vectors(kinds)
            vectors.probe()
            self._searched[kinds] = self._on_gpu(vectors) if self._gpu else vectors
        return self._searched[kinds]

    def _on_gpu(self, vectors: VectorIndex) -> VectorIndex:
        try:
            return vectors.on_gpu()
        except ConfigError as error:
            if not self._gpu_by_auto:
                raise
            self._on_cpu_because = f"index.search_device auto: FAISS searches on the CPU, since {error}"
            return vectors

    def _count_nodes(self, nodes: NodeTable, tokenizers: tuple[Tokenizer, ...]) -> I64:
        """Count sentences as the largest count over these tokenizers; a node's text is counted once."""
        known = self._tokens.setdefault(tokenizers, np.full(len(self.shard.nodes), -1, np.int64))
        sentence = nodes.kind == KINDS.index("sentence")
        missing = np.flatnonzero(sentence & (known[nodes.source_row] < 0))
        if len(missing):
            texts = [nodes.text_of(int(row)) for row in missing]
            counts = [self._count(name, revision)(texts) for name, revision in tokenizers]
            known[nodes.source_row[missing]] = np.max(counts, axis=0)
        return np.where(sentence, known[nodes.source_row], nodes.tokens)


def united_depths(many: Sequence[Config]) -> Depths:
    """Return the greatest search depth per view over these runs."""
    depths: dict[Kinds, Depth] = {}
    for config in many:
        for name, depth in config.uses.views.items():
            kinds = config.declaration.views[name].kinds
            known = depths.get(kinds, Depth())
            depths[kinds] = Depth(max(known.dense, depth.dense), max(known.lexical, depth.lexical))
    return depths
