"""How relevant texts are to queries: by the cross-encoder or by cosine, each (query, text) pair scored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.arrays import F32, F64, I64
from kohaku_ray.retrieval.pairs import Pair, pair_up, unscored
from kohaku_ray.systems.tools import Tools


class Relevance:
    """Scores of one question's pairs, and the vectors they were taken from; nothing is asked twice."""

    def __init__(self, tools: Tools, has_cross_encoder: bool) -> None:
        """Start with nothing known.

        Args:
            tools: What is asked.
            has_cross_encoder: Whether the run's cross-encoder scores pairs; else the cosine of vectors does.
        """
        self._tools, self._has_cross_encoder = tools, has_cross_encoder
        self._scores: dict[Pair, float] = {}
        self._queries: dict[str, F32] = {}
        self._rows: dict[int, F32] = {}

    async def embed(self, queries: Sequence[str]) -> F32:
        """Encode queries: shape ``(len(queries), d)``."""
        if missing := [query for query in dict.fromkeys(queries) if query not in self._queries]:
            self._queries.update(zip(missing, await self._tools.embed(missing), strict=True))
        return np.stack([self._queries[query] for query in queries])

    async def vectors(self, rows: I64) -> F32:
        """Fetch nodes' own vectors: shape ``(len(rows), d)``; at least one row."""
        wanted: list[int] = rows.tolist()
        if missing := [row for row in dict.fromkeys(wanted) if row not in self._rows]:
            self._rows.update(zip(missing, await self._tools.vectors(missing), strict=True))
        return np.stack([self._rows[row] for row in wanted])

    async def cosines(self, query: str, rows: I64) -> F64:
        """Cosine of a query with nodes: shape ``(len(rows),)``."""
        if not len(rows):
            return np.empty(0)
        vectors = await self.vectors(rows)
        return _products(np.broadcast_to(await self.embed([query]), vectors.shape), vectors)

    async def scores(self, queries: Sequence[str], rows: Sequence[I64], texts: Mapping[int, str]) -> list[F64]:
        """Score texts against queries.

        Args:
            queries: The queries.
            rows: Per query the rows of its texts.
            texts: Each row's text.

        Returns:
            Per query, shape ``(n_texts,)``, higher is better.
        """
        batch = pair_up(queries, [[texts[row] for row in one.tolist()] for one in rows])
        if missing := unscored(batch.pairs, self._scores):
            if self._has_cross_encoder:
                found = await self._tools.rank_pairs(missing)
            else:
                row_of = {texts[row]: row for one in rows for row in reversed(one.tolist())}
                vectors = await self.vectors(np.array([row_of[text] for _, text in missing], np.int64))
                found = _products(await self.embed([query for query, _ in missing]), vectors)
            self._scores.update(zip(missing, found.tolist(), strict=True))
        return batch.per_query(np.array([self._scores[pair] for pair in batch.pairs], np.float64))


def _products(first: F32, second: F32) -> F64:
    """Inner product of each row with the other's: the same number whatever other rows there are."""
    products: F64 = np.einsum("ij,ij->i", first, second, dtype=np.float64)
    return products
