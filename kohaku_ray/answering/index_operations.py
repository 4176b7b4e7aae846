"""What can be asked of an index, wherever it is: of ``LocalIndex`` in this process, or of the actor that holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # members' processes ask an index and open none
    from kohaku_ray.index.arrays import F32, F64, I64, Hits
    from kohaku_ray.index.nodes import NodeTable
    from kohaku_ray.models.target import Target

Tokenizer = tuple[str, str | None]
"""Name and revision of a tokenizer."""

Kinds = tuple[str, ...]
"""Node kinds of a view."""

Within = tuple[str, ...] | None
"""Documents to search; None: all."""


class IndexOperations(Protocol):
    """The operations of an index. Each takes items and returns one result per item, in their order.

    Rows are those of the whole index, however many shards it has. A view is named by its node kinds; ``within`` holds a
    search to some documents, before ``top_k``.
    """

    async def embed(self, texts: Sequence[str], of_images: bool, /) -> list[F32]:
        """Encode queries; those of images by the encoder that images have of their own. Unit vectors of shape (d,)."""
        ...

    async def search(self, vectors: Sequence[F32], kinds: Kinds, top_k: int, within: Within, /) -> list[Hits]:
        """Find each vector's nearest nodes, by cosine."""
        ...

    async def lexical(self, queries: Sequence[str], kinds: Kinds, top_k: int, within: Within, /) -> list[Hits]:
        """Find each query's best nodes by BM25."""
        ...

    async def term_weights(self, rows: Sequence[int], kinds: Kinds, /) -> list[tuple[I64, F64]]:
        """Fetch nodes' terms and their BM25 weights."""
        ...

    async def vectors(self, rows: Sequence[int], /) -> list[F32]:
        """Fetch nodes' own vectors; zeros for a node without one."""
        ...

    async def rank_pairs(self, pairs: Sequence[tuple[str, str]], target: Target, /) -> list[float]:
        """Score (query, text) pairs by a cross-encoder."""
        ...

    async def nodes(
        self, asked: Sequence[tuple[int, ...]], section_tokens: int, tokenizers: tuple[Tokenizer, ...], /
    ) -> list[NodeTable]:
        """Cut out nodes with the text around them, one table per tuple of rows; see ``NodeTable.neighbourhood``."""
        ...


class ShardOperations(Protocol):
    """The operations of one shard alone, which the holders of other shards ask for."""

    def run_alone(self, method: str, items: Sequence[Any], params: tuple[Any, ...]) -> Awaitable[list[Any]]:
        """Run an operation on this shard alone."""
        ...
