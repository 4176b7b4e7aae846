"""Gather the evidence by nine stages, one after the other: at most ``max_context_docs`` texts of different sites."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from kohaku_ray.errors import ModelError
from kohaku_ray.index.arrays import F32, F64, I64, Hits
from kohaku_ray.models.parse import parse_plan
from kohaku_ray.models.prompts import asked
from kohaku_ray.models.schema import plan_schema
from kohaku_ray.records import Question, TraceRow
from kohaku_ray.retrieval.evidence import distinct_rows
from kohaku_ray.retrieval.fusion import best_first, reciprocal_rank_fusion
from kohaku_ray.systems.hybrid.diversify import cap_per_key, distinct_texts, kmeans, mmr, redundancy, sample_clusters
from kohaku_ray.systems.hybrid.settings import (
    EXPANSION_TRIES,
    N_CLUSTERS,
    N_DIVERSE,
    N_FUSED,
    N_INITIAL_TEXTS,
    N_PER_QUERY,
    N_SAMPLED,
    RELEVANCE_WEIGHT,
    RRF_K,
    STAND_IN,
    HybridSettings,
)
from kohaku_ray.systems.hybrid.stages import FEW, HybridEvidence, Steps, Text, read_texts, take, united
from kohaku_ray.systems.tools import Tools

NOTHING = Hits(np.empty(0, np.int64), np.empty(0))


async def prepare(question: Question, tools: Tools, settings: HybridSettings) -> HybridEvidence:
    """Run the nine stages on one question."""
    return await StageRun(question, tools, settings).evidence()


class StageRun:
    """One question on its way through the stages.

    What is known grows: ``texts`` by node row, the vectors of queries, the trace.
    """

    def __init__(self, question: Question, tools: Tools, settings: HybridSettings) -> None:
        self.question, self.tools, self.settings = question, tools, settings
        self.texts: dict[int, Text] = {}
        self.steps = Steps(self.texts)
        self.ranker = "" if settings.has_cross_encoder else STAND_IN
        self._queries: dict[str, F32] = {}

    async def evidence(self) -> HybridEvidence:
        """Run one stage after the other."""
        opening = await self.initial_context()
        queries = await self.expansion(opening)
        searched = await self.search(queries, opening)
        pool = self.fusion(await self.subquery_ranking(queries, searched))
        pool = self.netloc_cap(await self.mmr(await self.clustering(pool)))
        final = await self.final_ranking(pool)
        texts = tuple(self.texts[row] for row in final.rows.tolist())
        why = "" if texts else self.steps.rows[-1].note
        few = f"only {len(texts)} texts of the corpus were found" if 0 < len(texts) < FEW else ""
        measures = {
            **{f"pool_{row.step}": float(row.scores["out"]) for row in self.steps.rows if row.rank == 0},
            "texts": float(len(texts)),
            "distinct_netlocs": float(len({text.netloc for text in texts if text.netloc})),
            "distinct_documents": float(len({text.doc_id for text in texts})),
            "few_texts": float(bool(few)),
        }
        return HybridEvidence(self.question, queries, texts, why, measures, few, tuple(self.steps.rows))

    async def initial_context(self) -> Hits:
        """Stage 1: what BM25 finds for the question among sentences and chunks, fused by rank."""
        if not self.settings.initial_context:
            self.steps.skip("initial_context", 0)
            return NOTHING
        size = N_INITIAL_TEXTS
        searches = [self.tools.lexical(view, [self.question.text], size) for view in ("sentences", "chunks")]
        rankings = [hits for [hits] in await asyncio.gather(*searches)]
        kept = self._fuse(rankings).prefix(size)
        await self._read(kept.rows.tolist())
        self.steps.items("initial_context", len(distinct_rows(rankings)), kept, label="rrf")
        return kept

    async def expansion(self, opening: Hits) -> tuple[str, ...]:
        """Stage 2: sub-queries; the question alone, with the reason, where no reply can be read."""
        queries: tuple[str, ...] = (self.question.text,)
        error: str | None = None
        if self.settings.expands:
            n = self.settings.max_expanded_questions
            context = [self.texts[row].text for row in opening.rows.tolist()]
            variables = {**asked(self.question), "context": tuple(context), "n_queries": n}
            prompt = self.tools.prompts.render("expand", variables)
            for attempt in range(EXPANSION_TRIES):
                try:
                    reply = await self.tools.chat(prompt, role="expand", schema=plan_schema(n, 1), attempt=attempt)
                except ModelError as failure:
                    error = f"{type(failure).__name__}: {failure}"
                    break
                queries, _, error = parse_plan(reply, self.question.text, n, context)
                if error is None:
                    break
        self.steps.count("expansion", len(opening), len(queries), error=error)
        self.steps.rows += [TraceRow("expansion", rank, query) for rank, query in enumerate(queries, 1)]
        return queries

    async def search(self, queries: Sequence[str], opening: Hits) -> list[tuple[Hits, Hits]]:
        """Stage 3: per sub-query what BM25 and what vectors find."""
        size = N_PER_QUERY
        if self.settings.search:
            lexical, dense = await asyncio.gather(
                self.tools.lexical("paragraphs", queries, size),
                self.tools.search("paragraphs", await self._embed(queries), size),
            )
            pairs = list(zip(lexical, dense, strict=True))
        else:
            # The paragraphs of the initial context's sentences, in its order.
            nodes = await self.tools.nodes(opening.rows.tolist())
            paragraphs = [nodes.paragraph_of(row) for row in nodes.local(opening.rows).tolist()]
            rows = nodes.source_row[np.array([row for row in paragraphs if row >= 0], np.int64)]
            pairs = [(united([Hits(rows, 1 / np.arange(1, len(rows) + 1))]), NOTHING)] * len(queries)
        both = [hits for pair in pairs for hits in pair]
        await self._read(distinct_rows(both))
        named = {
            f"{name}.{number}": hits
            for number, pair in enumerate(pairs)
            for name, hits in zip(("bm25", "cosine"), pair, strict=True)
        }
        note = "" if self.settings.search else "off"
        self.steps.items("search", sum(map(len, both)), self._fuse(both), note, named, label="rrf")
        return pairs

    async def subquery_ranking(self, queries: Sequence[str], searched: list[tuple[Hits, Hits]]) -> list[Hits]:
        """Stage 4: one order per sub-query, or the two searches as they are."""
        settings, both = self.settings, [hits for pair in searched for hits in pair]
        n_in = len(distinct_rows(both))
        if not settings.subquery_ranking:
            self.steps.skip("subquery_ranking", n_in)
            return both
        pools = [self._fuse(pair) for pair in searched]
        scores = await self._scores(queries, [pool.rows for pool in pools])
        ranked = [take(pool, best_first(score), score) for pool, score in zip(pools, scores, strict=True)]
        ranked = [pool.prefix(N_PER_QUERY) for pool in ranked]
        named = {f"score.{number}": hits for number, hits in enumerate(ranked)}
        self.steps.items("subquery_ranking", n_in, self._fuse(ranked), self.ranker, named, label="rrf")
        return ranked

    def fusion(self, rankings: list[Hits]) -> Hits:
        """Stage 5: one order over all sub-queries, equal texts once before the cut."""
        n_in = len(distinct_rows(rankings))
        if not self.settings.fusion:
            self.steps.skip("fusion", n_in)
            return united(rankings)
        fused = self._fuse(rankings)
        texts = [self.texts[row].text for row in fused.rows.tolist()]
        fused = take(fused, distinct_texts(texts, N_FUSED))
        self.steps.items("fusion", n_in, fused, label="rrf")
        return fused

    async def clustering(self, pool: Hits) -> Hits:
        """Stage 6: the best paragraphs of every topic, by the clusters' shares."""
        settings = self.settings
        if not settings.clustering or not len(pool):
            self.steps.skip("clustering", len(pool))
            return pool
        [scores] = await self._scores([self.question.text], [pool.rows])
        labels = kmeans(await self.tools.vectors(pool.rows.tolist()), N_CLUSTERS)
        positions = sample_clusters(labels, scores, N_SAMPLED)
        kept = take(pool, positions, scores)
        named = {"cluster": Hits(kept.rows, labels[positions].astype(np.float64))}
        self.steps.items("clustering", len(pool), kept, self.ranker, named)
        return kept

    async def mmr(self, pool: Hits) -> Hits:
        """Stage 7: relevant paragraphs that repeat each other little."""
        settings = self.settings
        if not settings.mmr or not len(pool):
            self.steps.skip("mmr", len(pool))
            return pool
        rows = pool.rows.tolist()
        vectors, cosines = await self.tools.vectors(rows), await self._cosines([self.question.text] * len(pool), rows)
        bm25 = await self.tools.term_similarity("paragraphs", rows)
        order, scores = mmr(cosines, redundancy(vectors, bm25), N_DIVERSE, RELEVANCE_WEIGHT)
        kept = Hits(pool.rows[order], scores)
        self.steps.items("mmr", len(pool), kept, named={"cosine": Hits(pool.rows, cosines)}, label="mmr")
        return kept

    def netloc_cap(self, pool: Hits) -> Hits:
        """Stage 8: few paragraphs per site; one without a site counts by its document."""
        if not self.settings.netloc_cap:
            self.steps.skip("netloc_cap", len(pool))
            return pool
        texts = [self.texts[row] for row in pool.rows.tolist()]
        netlocs, doc_ids = [text.netloc for text in texts], [text.doc_id for text in texts]
        kept = take(pool, cap_per_key(netlocs, doc_ids, self.settings.max_per_netloc))
        self.steps.items("netloc_cap", len(pool), kept)
        return kept

    async def final_ranking(self, pool: Hits) -> Hits:
        """Stage 9: the texts that are shown, unless the best of them is not relevant enough."""
        settings, best = self.settings, pool
        if settings.final_ranking:
            [scores] = await self._scores([self.question.text], [pool.rows])
            best = take(pool, best_first(scores), scores)
            least = settings.min_relevance
            if least is not None and len(best) and best.scores[0] < least:
                note = f"the best score is {best.scores[0]:.4g}, min_relevance is {least:g}"
                self.steps.count("final_ranking", len(pool), 0, note)
                return NOTHING
        best = best.prefix(settings.max_context_docs)
        self.steps.items("final_ranking", len(pool), best, self.ranker if settings.final_ranking else "off")
        return best

    async def _scores(self, queries: Sequence[str], rows: Sequence[I64]) -> list[F64]:
        """Score each query's rows: shape ``(n_rows,)`` per query, higher is better."""
        pairs = [(query, row) for query, of in zip(queries, rows, strict=True) for row in of.tolist()]
        if not pairs:
            return [np.empty(0) for _ in rows]
        if self.settings.has_cross_encoder:
            scores = await self.tools.rank_pairs([(query, self.texts[row].text) for query, row in pairs])
        else:
            scores = await self._cosines([query for query, _ in pairs], [row for _, row in pairs])
        return np.split(scores, np.cumsum([len(of) for of in rows])[:-1])

    async def _cosines(self, queries: Sequence[str], rows: Sequence[int]) -> F64:
        """Cosine of each query with its node: shape ``(len(rows),)``; the same whatever other rows there are."""
        distinct, inverse = np.unique(rows, return_inverse=True)
        vectors = (await self.tools.vectors(distinct.tolist()))[inverse]
        cosines: F64 = np.einsum("ij,ij->i", await self._embed(queries), vectors, dtype=np.float64)
        return cosines

    async def _embed(self, queries: Sequence[str]) -> F32:
        """Encode queries, each once: shape ``(len(queries), d)``."""
        if missing := [query for query in dict.fromkeys(queries) if query not in self._queries]:
            self._queries.update(zip(missing, await self.tools.embed(missing), strict=True))
        return np.stack([self._queries[query] for query in queries])

    async def _read(self, rows: Sequence[int]) -> None:
        if missing := [row for row in rows if row not in self.texts]:
            self.texts |= read_texts(await self.tools.nodes(missing), missing)

    def _fuse(self, rankings: Sequence[Hits]) -> Hits:
        return reciprocal_rank_fusion([hits.rows for hits in rankings], RRF_K)
