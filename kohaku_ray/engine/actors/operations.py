"""The registry of operations on an index; a call travels to the index as data.

A new operation is one function and one entry here: batching over concurrent questions, caching and transport from a
member's process come with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.spreading import BY_ROW, BY_ROWS, EVERY_SHARD, Spread
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F32, F64, I64
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.hits import Hits
from kohaku_ray.index.layout import ShardLayout
from kohaku_ray.index.nodes import KINDS, NodeTable, renumbered
from kohaku_ray.index.store import Shard
from kohaku_ray.index.tokens import token_counter
from kohaku_ray.index.vectors import Ranges, VectorIndex
from kohaku_ray.run.indexes import make_image_query_encoder, make_query_encoder, open_index, searches_on_gpu
from kohaku_ray.systems.base import Depth

QUERIES_AT_ONCE = 1024
"""Most queries per batch: a larger batch fills the encoder's fixed shapes better."""

Tokenizer = tuple[str, str | None]
"""Name and revision of a tokenizer."""

Params = tuple[Any, ...]
"""An operation's arguments other than its items. Hashable: calls with equal parameters share a batch."""


@dataclass(slots=True)
class OpenIndex:
    """An open shard of an index, its query encoder and its token counts.

    Attributes:
        shard: The shard.
        encoder: Encodes queries.
        rank_pairs: Scores (query, text) pairs by the cross-encoder of an application.
        gpu: Whether FAISS searches on this process's GPU.
        float16: Whether it holds the vectors there as float16.
        image_encoder: Encodes queries that search images, where they have an encoder of their own and are searched.
        tokens: Token counts of nodes, by tokenizers; -1 where not yet counted.
    """

    shard: Shard
    encoder: SentenceEncoder
    rank_pairs: Callable[[str, Sequence[tuple[str, str]]], Awaitable[Sequence[float]]]
    gpu: bool = False
    float16: bool = False
    image_encoder: SentenceEncoder | None = None
    tokens: dict[tuple[Tokenizer, ...], I64] = field(default_factory=dict)
    _on_gpu: dict[tuple[str, ...], VectorIndex] = field(default_factory=dict)

    @staticmethod
    def of(config: Config, rank_pairs: Callable[..., Awaitable[Sequence[float]]], shard: int = 0) -> OpenIndex:
        """Open a shard of the configured index, and its encoder.

        Raises:
            IndexMismatchError: The index was built with other settings, or lacks a view.
            DataError: There is no index at that path.
        """
        # The index first: a mismatch is reported before the encoder takes seconds to load.
        here = open_index(config).shards[shard]
        on_gpu, float16 = searches_on_gpu(config), config.index.search_float16
        encoder, of_images = make_query_encoder(config), make_image_query_encoder(config)
        return OpenIndex(here, encoder, rank_pairs, on_gpu, float16, of_images)

    @property
    def layout(self) -> ShardLayout:
        """Where the index's documents are among its shards."""
        return self.shard.index.layout

    def ranges(self, within: tuple[str, ...] | None) -> Ranges | None:
        """Find the rows of those documents to search within that the shard holds.

        Raises:
            DataError: The whole index has no such document.
        """
        return None if within is None else self.shard.index.ranges(within, self.shard.number)

    def to_whole(self, rows: I64) -> I64:
        """Turn rows of this shard into rows of the whole index."""
        return self.layout.to_whole(self.shard.number, rows)

    def to_shard(self, rows: Sequence[int]) -> I64:
        """Turn rows of the whole index, of documents of this shard, into its own."""
        return self.layout.to_shard(np.asarray(rows, np.int64))

    def vectors(self, kinds: tuple[str, ...]) -> VectorIndex:
        """Vectors of the nodes of some kinds, on the GPU if that is where FAISS searches."""
        if not self.gpu:
            return self.shard.vectors(kinds)
        if kinds not in self._on_gpu:
            self._on_gpu[kinds] = self.shard.vectors(kinds).on_gpu(self.float16)
        return self._on_gpu[kinds]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on an index.

    Attributes:
        run: ``(open index, items, params)``: one result per item, in their order, whatever else is in the batch.
        batch: Most items per batch, over concurrent questions, off the event loop; 0: each call alone, on the loop.
        n_kept: Most results cached; 0: none.
        is_kept_locally: Whether results are cached even in a process whose index keeps no others: costly elsewhere.
        counted: Name of the items where a sweep reports how many were asked for and computed.
        key: Cache key of an item. Default: the item itself.
        depth: For a search: which depth of a view applies (``dense``, ``lexical``). ``params`` are then
            ``(kinds, top_k, within)``, and a shorter search is a prefix of a longer one.
        is_prefix: Whether that holds for this index.
        spread: How a call is divided among an index's shards; None: any of them can answer it.
    """

    run: Callable[[OpenIndex, list[Any], Params], Any]
    batch: int = 256
    n_kept: int = 0
    counted: str = ""
    key: Callable[[Any], Hashable] | None = None
    depth: str = ""
    is_kept_locally: bool = False
    is_prefix: Callable[[OpenIndex, Params], bool] = lambda *_: True
    spread: Spread | None = None


def _embed(here: OpenIndex, texts: list[str], params: Params) -> list[F32]:
    """Encode queries; with parameters, by the encoder that images have of their own."""
    encoder = here.image_encoder if params else here.encoder
    if encoder is None:
        raise ConfigError("queries of images are encoded but index.image_encoder is null: name one")
    return list(encoder.encode_queries(texts))


def _search(here: OpenIndex, vectors: list[F32], params: Params) -> list[Hits]:
    kinds, top_k, within = params
    found = here.vectors(kinds).search(np.stack(vectors), top_k, here.ranges(within))
    return [Hits(here.to_whole(hits.rows), hits.scores) for hits in found]


def _lexical(here: OpenIndex, queries: list[str], params: Params) -> list[Hits]:
    kinds, top_k, within = params
    found = here.shard.terms(kinds).search(queries, top_k, here.ranges(within))
    return [Hits(here.to_whole(hits.rows), hits.scores) for hits in found]


def _term_weights(here: OpenIndex, rows: list[int], params: Params) -> list[tuple[I64, F64]]:
    return here.shard.terms(params[0]).weights_of(here.to_shard(rows))


def _vectors(here: OpenIndex, rows: list[int], _: Params) -> list[F32]:
    return list(here.shard.node_vectors(here.to_shard(rows)))


async def _rank_pairs(here: OpenIndex, pairs: list[tuple[str, str]], params: Params) -> Sequence[float]:
    return await here.rank_pairs(params[0], pairs)


def _nodes(here: OpenIndex, asked: list[tuple[int, ...]], params: Params) -> list[NodeTable]:
    section_tokens, tokenizers = params
    around = [here.shard.nodes.neighbourhood(here.to_shard(rows), section_tokens) for rows in asked]
    if tokenizers:
        around = [nodes.with_tokens(_count_nodes(here, nodes, tokenizers)) for nodes in around]
    return [renumbered(nodes, here.to_whole(nodes.source_row)) for nodes in around]


def _count_nodes(here: OpenIndex, nodes: NodeTable, tokenizers: tuple[Tokenizer, ...]) -> I64:
    """Count sentences as the largest count over these tokenizers; a node's text is counted once."""
    known = here.tokens.setdefault(tokenizers, np.full(len(here.shard.nodes), -1, np.int64))
    sentence = nodes.kind == KINDS.index("sentence")
    missing = np.flatnonzero(sentence & (known[nodes.source_row] < 0))
    if len(missing):
        texts = [nodes.text_of(int(row)) for row in missing]
        counts = [token_counter(name, revision)(texts) for name, revision in tokenizers]
        known[nodes.source_row[missing]] = np.max(counts, axis=0)
    return np.where(sentence, known[nodes.source_row], nodes.tokens)


OPERATIONS: Mapping[str, Operation] = {
    "embed": Operation(_embed, batch=QUERIES_AT_ONCE, n_kept=20_000, counted="queries encoded"),
    "search": Operation(
        _search,
        n_kept=20_000,
        counted="queries searched",
        key=lambda vector: vector.tobytes(),
        depth="dense",
        is_prefix=lambda here, params: here.shard.vectors(params[0]).exact or params[2] is not None,
        spread=EVERY_SHARD,
    ),
    "lexical": Operation(_lexical, n_kept=20_000, counted="queries by BM25", depth="lexical", spread=EVERY_SHARD),
    "term_weights": Operation(_term_weights, spread=BY_ROW),
    "vectors": Operation(_vectors, spread=BY_ROW),
    "rank_pairs": Operation(_rank_pairs, batch=0, n_kept=200_000, is_kept_locally=True, counted="pairs ranked"),
    "nodes": Operation(_nodes, batch=0, n_kept=2_000, spread=BY_ROWS),
}
"""Every operation, by name."""

Depths = Mapping[tuple[str, ...], Depth]
"""How deep the runs that share an index search it, by the kinds of a view."""
