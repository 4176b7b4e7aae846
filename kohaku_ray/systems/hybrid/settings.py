"""The settings of hybrid: a switch for each of its nine stages, and the stages' parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kohaku_ray.settings import NonNegativeInt, PositiveInt, Settings, Share

COSINE = "cosine"
"""Value of `cross_encoder` that stands for no model: the cosine of query and paragraph vectors."""

RANKER = "ranker"
"""Name of the cross-encoder that every configuration has, see ``DEPLOYMENTS``."""

DEPLOYMENTS = {RANKER: {"kind": "cross_encoder", "model": "cross-encoder/ms-marco-MiniLM-L6-v2"}}
"""Deployments by default: the cross-encoder of the published pipeline."""

STAND_IN = f"{COSINE}, no cross-encoder"
"""What every stage that ranks pairs says where no cross-encoder does."""


class HybridSettings(Settings):
    """From a question to at most `max_context_docs` texts of different sites, and from these to an answer."""

    initial_context: bool = True
    """Stage 1: sentences and chunks found by the question show the expansion what the corpus speaks of."""
    initial_context_size: PositiveInt = 50
    """Stage 1: hits of each search, and texts kept after their fusion by rank."""
    initial_dense: bool = False
    """Stage 1: search sentences and chunks by vectors too."""
    expansion: bool = True
    """Stage 2: a model writes sub-queries; off: the question is the only one."""
    max_expanded_questions: PositiveInt = 10
    """Stage 2: queries, the question among them; 11: ten sub-queries beside it, as published."""
    expansion_tries: PositiveInt = 3
    """Stage 2: replies asked, each with its own seed, before the question stands alone."""
    rrf_k: PositiveInt = 60
    """Stages 1 and 3 to 5: k of the fusion by rank, whose scores are Σ 1 / (k + rank); the smaller, the more the first
    ranks weigh."""
    search: bool = True
    """Stage 3: each sub-query searches the paragraphs by BM25 and by vectors; off: the paragraphs of the initial
    context's sentences go on."""
    subquestion_max_documents: PositiveInt = 100
    """Stages 3 and 4: hits of each search, and paragraphs kept per sub-query."""
    subquery_ranking: bool = True
    """Stage 4: each sub-query's hits are put in one order; off: both searches count by themselves in stage 5."""
    per_question: Literal["cross_encoder", "rrf"] = "cross_encoder"
    """Stage 4: that order: by cross-encoder against the sub-query, or by fusion of the two ranks."""
    fusion: bool = True
    """Stage 5: all sub-queries' orders are fused by rank, equal texts become one, the best are kept; off: all stay, in
    order of first occurrence."""
    subquestion_fusion_max_documents: PositiveInt = 200
    """Stage 5: paragraphs kept."""
    clustering: bool = True
    """Stage 6: k-means groups the paragraphs by topic and some of each group are kept."""
    kmeans_n_clusters: PositiveInt = 3
    """Stage 6: clusters; fewer where there are fewer texts."""
    cluster_sample_size: PositiveInt = 100
    """Stage 6: paragraphs kept over all clusters."""
    smoothing: Annotated[float, Field(ge=0)] = 0.3
    """Stage 6: s of the clusters' shares of the sample; the larger, the more alike they are."""
    shares: Literal["smoothed", "normalised"] = "smoothed"
    """Stage 6: `smoothed` (size + s) / (total + n·s), or `normalised` (size / total + s) / (1 + n·s)."""
    mmr: bool = True
    """Stage 7: maximal marginal relevance orders the paragraphs and cuts them to `mmr_top_k`."""
    mmr_relevance_weight: Share = 0.9
    """Stage 7: weight of the cosine with the question; the rest is that of redundancy."""
    mmr_top_k: PositiveInt = 50
    """Stage 7: paragraphs kept."""
    netloc_cap: bool = True
    """Stage 8: at most `max_per_netloc` paragraphs of one site."""
    max_per_netloc: PositiveInt = 1
    """Stage 8: paragraphs per `document_netloc`; a paragraph without one counts by its document."""
    final_ranking: bool = True
    """Stage 9: the cross-encoder orders the paragraphs by the question; off: they keep their order."""
    max_context_docs: PositiveInt = 10
    """Stage 9: texts shown to the model, whether they are ranked or not."""
    neighbours: Annotated[NonNegativeInt, Field(le=1)] = 0
    """Stage 9: 1 puts the article's previous and next paragraph around each text."""
    min_relevance: float | None = None
    """Stage 9: without a text of this score the corpus holds no information, and no model is asked; None: no bound."""
    cross_encoder: str = RANKER
    """Deployment of kind `cross_encoder` that ranks (query, text) pairs; `ranker`, unless `deployments` has another of
    that name, is cross-encoder/ms-marco-MiniLM-L6-v2; `cosine`: no model, but the vectors' cosine."""
    answer_tries: PositiveInt = 2
    """Replies asked per member, each with its own seed, until one can be read."""

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
        ranks = (self.subquery_ranking and self.per_question == "cross_encoder") or self.clustering
        return self.cross_encoder != COSINE and (ranks or self.final_ranking)

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
