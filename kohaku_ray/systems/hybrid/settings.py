"""The settings of hybrid: a switch for each of its nine stages, and the stages' parameters."""

from __future__ import annotations

from pydantic import model_validator

from kohaku_ray.settings import PositiveInt, Settings

COSINE = "cosine"
"""Value of `cross_encoder` that stands for no model: the cosine of query and paragraph vectors."""

RANKER = "ranker"
"""Name of the cross-encoder that every configuration has, see ``DEPLOYMENTS``."""

DEPLOYMENTS = {RANKER: {"kind": "cross_encoder", "model": "cross-encoder/ms-marco-MiniLM-L6-v2"}}
"""Deployments by default: the cross-encoder of the published pipeline."""

N_INITIAL_TEXTS = 50
"""Stage 1: hits of each search, and texts kept after their fusion by rank, as published."""

N_PER_QUERY = 100
"""Stages 3 and 4: hits of each search, and paragraphs kept per sub-query, as published."""

N_FUSED = 200
"""Stage 5: paragraphs kept over all sub-queries, as published."""

N_SAMPLED = 100
"""Stage 6: paragraphs kept over all topics, as published."""

N_DIVERSE = 50
"""Stage 7: paragraphs kept, as published."""

RRF_K = 60
"""k of the fusion by rank, as published (Cormack et al., SIGIR 2009)."""

EXPANSION_TRIES = 3
"""Replies asked for sub-queries, each with its own seed, before the question stands alone."""

N_CLUSTERS = 3
"""Topics into which the paragraphs are grouped, as published; fewer where there are fewer texts."""

RELEVANCE_WEIGHT = 0.9
"""Weight of the cosine with the question in MMR, as published; the rest is that of redundancy."""

ANSWER_TRIES = 2
"""Replies asked per member, each with its own seed, until one can be read: a second one mends most unreadable ones."""

STAND_IN = f"{COSINE}, no cross-encoder"
"""What every stage that ranks pairs says where no cross-encoder does."""


class HybridSettings(Settings):
    """From a question to at most `max_context_docs` texts of different sites, and from these to an answer."""

    initial_context: bool = True
    """Stage 1: sentences and chunks found by the question show the expansion what the corpus speaks of."""
    expansion: bool = True
    """Stage 2: a model writes sub-queries; off: the question is the only one."""
    max_expanded_questions: PositiveInt = 10
    """Stage 2: queries, the question among them; 11: ten sub-queries beside it, as published."""
    search: bool = True
    """Stage 3: each sub-query searches the paragraphs by BM25 and by vectors; off: the paragraphs of the initial
    context's sentences go on."""
    subquery_ranking: bool = True
    """Stage 4: the cross-encoder puts each sub-query's hits in one order; off: both searches count by themselves in
    stage 5."""
    fusion: bool = True
    """Stage 5: all sub-queries' orders are fused by rank, equal texts become one, the best are kept; off: all stay, in
    order of first occurrence."""
    clustering: bool = True
    """Stage 6: k-means groups the paragraphs by topic and some of each group are kept."""
    mmr: bool = True
    """Stage 7: maximal marginal relevance orders the paragraphs and cuts them to 50."""
    netloc_cap: bool = True
    """Stage 8: at most `max_per_netloc` paragraphs of one site."""
    max_per_netloc: PositiveInt = 1
    """Stage 8: paragraphs per `document_netloc`; a paragraph without one counts by its document."""
    final_ranking: bool = True
    """Stage 9: the cross-encoder orders the paragraphs by the question; off: they keep their order."""
    max_context_docs: PositiveInt = 10
    """Stage 9: texts shown to the model, whether they are ranked or not."""
    min_relevance: float | None = None
    """Stage 9: without a text of this score the corpus holds no information, and no model is asked; None: no bound."""
    cross_encoder: str = RANKER
    """Deployment of kind `cross_encoder` that ranks (query, text) pairs; `ranker`, unless `deployments` has another of
    that name, is cross-encoder/ms-marco-MiniLM-L6-v2; `cosine`: no model, but the vectors' cosine."""

    @property
    def expands(self) -> bool:
        """Whether a model is asked for sub-queries."""
        return self.expansion and self.max_expanded_questions > 1

    @property
    def ranker(self) -> str:
        """Who ranks pairs."""
        return STAND_IN if self.cross_encoder == COSINE else self.cross_encoder

    @property
    def has_cross_encoder(self) -> bool:
        """Whether a model ranks pairs in some stage of these settings."""
        return self.cross_encoder != COSINE and (self.subquery_ranking or self.clustering or self.final_ranking)

    @model_validator(mode="after")
    def _stages_fit(self) -> HybridSettings:
        if not (self.search or self.initial_context):
            raise ValueError(
                "hybrid.search is false and hybrid.initial_context is false: nothing would be searched, "
                "set one of them to true"
            )
        if self.min_relevance is not None and not self.final_ranking:
            raise ValueError(
                f"hybrid.min_relevance is {self.min_relevance} but hybrid.final_ranking is false: no score is left to "
                "compare, set min_relevance to null or final_ranking to true"
            )
        return self
