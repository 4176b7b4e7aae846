"""How relevant texts are to queries: by the cross-encoder or by cosine, each (query, text) pair scored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.index.arrays import F32, F64, I64
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
        self._scores: dict[str, F64] = {}
        self._places: dict[int, int] = {}
        self._texts: dict[str, int] = {}
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
        places = self._places_of(rows, texts)
        known = {query: self._known(query) for query in queries}
        wanted = {query: np.zeros(len(self._texts), bool) for query in queries}
        for query, at in zip(queries, places, strict=True):
            wanted[query][at] = True
        missing = {query: np.flatnonzero(wanted[query] & np.isnan(known[query])) for query in wanted}
        found = await self._score(missing, rows)
        for query, at in missing.items():
            known[query][at], found = found[: len(at)], found[len(at) :]
        return [known[query][at] for query, at in zip(queries, places, strict=True)]

    async def _score(self, missing: Mapping[str, I64], rows: Sequence[I64]) -> F64:
        """Score each query's texts, one query after the other."""
        said = list(self._texts)
        pairs = [(query, said[at]) for query, places in missing.items() for at in places.tolist()]
        if not pairs:
            return np.empty(0)
        if self._has_cross_encoder:
            return np.asarray(await self._tools.rank_pairs(pairs), np.float64)
        row_at = {self._places[row]: row for one in rows for row in reversed(one.tolist())}
        at = [row_at[place] for places in missing.values() for place in places.tolist()]
        vectors = await self.vectors(np.array(at, np.int64))
        return _products(await self.embed([query for query, _ in pairs]), vectors)

    def _places_of(self, rows: Sequence[I64], texts: Mapping[int, str]) -> list[I64]:
        """Number the rows' texts, equal ones alike: per query, shape ``(n_texts,)``."""
        distinct, at = np.unique(np.concatenate([np.empty(0, np.int64), *rows]), return_inverse=True)
        wanted: list[int] = distinct.tolist()
        for row in wanted:
            if row not in self._places:
                self._places[row] = self._texts.setdefault(texts[row], len(self._texts))
        places = np.array([self._places[row] for row in wanted], np.int64)[at]
        return np.split(places, np.cumsum(list(map(len, rows)))[:-1])

    def _known(self, query: str) -> F64:
        """A query's scores by the number of the text; NaN where not known yet."""
        known = self._scores.get(query, np.empty(0))
        grown: F64 = np.concatenate([known, np.full(len(self._texts) - len(known), np.nan)])
        self._scores[query] = grown
        return grown


def _products(first: F32, second: F32) -> F64:
    """Inner product of each row with the other's: the same number whatever other rows there are."""
    products: F64 = np.einsum("ij,ij->i", first, second, dtype=np.float64)
    return products
