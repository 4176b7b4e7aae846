"""The nine stages as functions of arrays: node rows in, node rows with scores out, best first.

Ties go to the better earlier rank, then to the earlier node. The second stage, which asks a model, is in ``prepare``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.index.arrays import F32, F64, I64
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import TraceRow
from kohaku_ray.retrieval.diversify import cap_per_key, distinct_texts, kmeans, mmr, redundancy, sample_clusters
from kohaku_ray.retrieval.fusion import best_first, reciprocal_rank_fusion
from kohaku_ray.systems.hybrid.settings import COSINE, HybridSettings
from kohaku_ray.systems.hybrid.texts import Text
from kohaku_ray.systems.tools import Tools

SHOWN_CHARS = 160
"""Characters of an item's text in the trace; those of the last stage stand whole."""

TRACED = 200
"""Items per stage that stand in the trace: stages 3 and 4 may hold ten times as many."""

STAND_IN = f"{COSINE}, no cross-encoder"
"""What every stage that ranks pairs says where no cross-encoder does."""

Named = Mapping[str, Mapping[int, float]]
"""Further scores by name, then by node row."""


class Steps:
    """The trace of one question, as it grows."""

    def __init__(self) -> None:
        self.rows: list[TraceRow] = []
        self.pools: dict[str, float] = {}

    def count(self, stage: str, n_in: int, n_out: int, note: str = "", error: str | None = None) -> None:
        """Begin a stage's rows with how many items came in and how many go on."""
        said = f"in {n_in}, out {n_out}" + (f"; {note}" if note else "")
        self.rows.append(TraceRow(stage, scores={"in": n_in, "out": n_out}, note=said, error=error))
        self.pools[f"pool_{stage}"] = float(n_out)

    def skip(self, stage: str, n: int) -> None:
        """Say that a stage is switched off: its items pass."""
        self.count(stage, n, n, "off")

    def queries(self, stage: str, n_in: int, queries: Sequence[str], error: str | None) -> None:
        """Record sub-queries."""
        self.count(stage, n_in, len(queries), error=error)
        self.rows += [TraceRow(stage, rank, query) for rank, query in enumerate(queries, 1)]

    def items(
        self,
        stage: str,
        n_in: int,
        hits: Hits,
        texts: Mapping[int, Text],
        note: str = "",
        named: Named | None = None,
        label: str = "score",
    ) -> None:
        """Record the items that go on, best first, ranks from 1.

        Args:
            stage: Which stage.
            n_in: Items that came in.
            hits: Items that go on, with their scores.
            texts: What they say.
            note: What is to be said of the stage.
            named: Further scores.
            label: Name of the scores of ``hits``.
        """
        n_out = len(hits)
        if len(hits) > TRACED:
            hits = hits.prefix(TRACED)
            note = f"{note}; first {TRACED} shown".removeprefix("; ")
        self.count(stage, n_in, n_out, note)
        scores = {row: {label: score} for row, score in by_row(hits).items()}
        for name, of in (named or {}).items():
            for row, score in of.items():
                if row in scores:
                    scores[row][name] = score
        for rank, row in enumerate(scores, 1):
            text = texts[row]
            said = text.text if stage == STAGES[-1] else text.text[:SHOWN_CHARS]
            ids = (text.node_id, text.doc_id, text.kind)
            self.rows.append(TraceRow(stage, rank, said, *ids, scores[row], text.ref_id))


def by_row(hits: Hits, scores: F64 | None = None) -> dict[int, float]:
    """Scores by node row."""
    values = hits.scores if scores is None else np.asarray(scores)
    return dict(zip(hits.rows.tolist(), values.tolist(), strict=True))


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


STAGES = (
    "initial_context",
    "expansion",
    "search",
    "subquery_ranking",
    "fusion",
    "clustering",
    "mmr",
    "netloc_cap",
    "final_ranking",
)
"""Names of the stages, of their switches and of their steps in the trace."""


def initial_context(found: Sequence[Hits], size: int) -> Hits:
    """Stage 1: fuse the searches of sentences and chunks by rank and keep ``size``."""
    return reciprocal_rank_fusion([hits.rows for hits in found]).prefix(size)


def candidates(lexical: Hits, dense: Hits) -> Hits:
    """Stage 3: bring both searches of one sub-query together; the order, and the score, is that of their ranks."""
    return reciprocal_rank_fusion([lexical.rows, dense.rows])


def rank_candidates(found: Hits, scores: F64 | None, top_k: int) -> Hits:
    """Stage 4: keep the best of one sub-query's candidates.

    Args:
        found: The candidates.
        scores: Shape ``(len(found),)``; of the cross-encoder; None: the order stays.
        top_k: Most candidates kept.
    """
    return found.prefix(top_k) if scores is None else take(found, best_first(scores, top_k), scores)


def fuse(rankings: Sequence[Hits], texts: Mapping[int, str], size: int) -> Hits:
    """Stage 5: fuse the rankings by rank, let equal texts be one (the first stays), then cut.

    Args:
        rankings: One or more per sub-query.
        texts: Each row's text.
        size: Rows kept.
    """
    fused = reciprocal_rank_fusion([hits.rows for hits in rankings])
    return take(fused, distinct_texts([texts[row] for row in fused.rows.tolist()], size))


def united(rankings: Sequence[Hits]) -> Hits:
    """Stage 5 switched off: every row once, in order of first occurrence, with its score there."""
    rows = np.concatenate([hits.rows for hits in rankings])
    _, first = np.unique(rows, return_index=True)
    return take(Hits(rows, np.concatenate([hits.scores for hits in rankings])), np.sort(first))


def sample(found: Hits, vectors: F32, scores: F64, settings: HybridSettings) -> tuple[Hits, I64]:
    """Stage 6: cluster the rows and keep the best of every cluster by its smoothed share.

    Args:
        found: The rows.
        vectors: Shape ``(len(found), d)``.
        scores: Shape ``(len(found),)``; of the cross-encoder against the question.
        settings: Number of clusters, sample size and shares.

    Returns:
        The rows kept, best first, and the cluster of each.
    """
    labels = kmeans(vectors, settings.kmeans_n_clusters)
    kept = sample_clusters(labels, scores, settings.cluster_sample_size, settings.smoothing, settings.shares)
    return take(found, kept, scores), labels[kept]


def select(found: Hits, vectors: F32, relevance: F64, bm25: F64, settings: HybridSettings) -> Hits:
    """Stage 7: maximal marginal relevance.

    Args:
        found: The rows.
        vectors: Shape ``(len(found), d)``; unit rows.
        relevance: Shape ``(len(found),)``; cosine with the question.
        bm25: Shape ``(len(found), len(found))``; the rows' scores for one another, see ``redundancy``.
        settings: The relevance's weight and how many are kept.
    """
    order, scores = mmr(relevance, redundancy(vectors, bm25), settings.mmr_top_k, settings.mmr_relevance_weight)
    return Hits(found.rows[order], scores)


def cap(found: Hits, netlocs: Sequence[str | None], doc_ids: Sequence[str], limit: int) -> Hits:
    """Stage 8: keep at most ``limit`` rows per site, in order; a row without one counts by its document."""
    return take(found, cap_per_key(netlocs, doc_ids, limit))


def take(found: Hits, places: I64, scores: F64 | None = None) -> Hits:
    """Keep hits by their places, with their own scores or, by the same places, other ones."""
    return Hits(found.rows[places], (found.scores if scores is None else scores)[places])
