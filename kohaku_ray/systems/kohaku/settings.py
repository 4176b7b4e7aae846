"""The settings of kohaku."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kohaku_ray.settings import NonNegativeInt, PositiveInt, Settings, Share

UNBOUNDED = 1 << 40
"""More tokens than any document has."""


class KohakuSettings(Settings):
    """From a question to ranked evidence, and from evidence to one member's answer."""

    queries: PositiveInt = 4
    """Retrieval queries per question, the question itself among them, as KohakuRAG counts; 1 is no planner."""
    spare_query: bool = True
    """Ask the planner for as many queries as are searched, one more than stand beside the question: the spare one takes
    the place of one that repeats it or cannot be searched. false: for those beside the question, as published."""
    replan: bool = False
    """Ask the planner again before each retry, which then searches its own queries (Algorithm 1 of the paper);
    false: all attempts share one plan and one search."""
    top_k: PositiveInt = 16
    """Matches per query."""
    top_k_final: PositiveInt | None = 32
    """Matches kept over all queries; None: all. More than were found cuts nothing."""
    rerank: Literal["none", "frequency", "score", "max", "combined"] = "combined"
    """Order over all queries' results: by how many found a match, the sum of its similarities, the largest of them, or
    frequency and sum combined."""
    normalise: Literal["max", "minmax"] = "max"
    """How `combined` normalises frequency and score."""
    alpha: Share = 0.4
    """Weight of frequency in `combined`; the score has the rest."""
    dedup: Literal["none", "node", "tree"] = "tree"
    """Drop repeats: none, by node id, or also nodes under another match."""
    truncate: Literal["after_dedup", "before_dedup"] = "after_dedup"
    """Whether `top_k_final` cuts after deduplication, or before it (as in the paper's Table 6), so that the places
    of repeats stay empty."""
    bm25: Literal["append", "fuse"] = "append"
    """How BM25 joins vector search: its paragraphs are appended after the other matches; or each query's best
    `top_k` sentences and paragraphs are fused with those by vectors by reciprocal rank, in place of `rerank` and
    `bm25_top_k`."""
    bm25_top_k: NonNegativeInt = 4
    """Most paragraphs that BM25 appends, per query and in total; 0: none."""
    cross_encoder: str | None = None
    """Deployment of kind `cross_encoder` (a rerank model) that reranks the matches kept over all queries; None: off."""
    retrieval_threshold: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Lowest cosine similarity of a match; None: no bound."""
    context: Literal["groups", "windows"] = "groups"
    """What the model reads: every match with its surroundings, in rank order; or windows around the matches, which grow
    while the budget lasts, weighed against further documents. Windows ignore `dedup` and `siblings`."""
    siblings: NonNegativeInt = 8
    """Sentences on either side of a match in a paragraph that takes more than an eighth of `max_context_tokens`; a
    shorter one is shown whole."""
    section_tokens: NonNegativeInt | None = 512
    """Tokens of the surrounding section that a matched paragraph brings; None: the whole section."""
    max_context_tokens: PositiveInt | None = 8000
    """Context budget of attempt 0, in tokens of the serving model; None: no budget."""
    image_top_k: NonNegativeInt = 0
    """Most images of attempt 0, whose captions join the context; 0: none are searched."""
    images: Literal["search", "near"] = "search"
    """Those nearest to the queries, or also those in the sections of the matches, fused by rank."""
    send_images: bool = False
    """Send these images to the model, which must read images (`deployments.*.vision`)."""
    prompt_order: Literal["context_first", "question_first"] = "context_first"
    """Whether the documents come before the question (C→Q) or after it (Q→C)."""
    instructions: Literal["full", "short"] = "full"
    """What the answer's prompt says of a reply: every rule; or, for models below about 7B, those alone that the kind of
    value asked for needs."""
    max_refs: PositiveInt | None = None
    """Most references of an answer, by its schema; None: as many as documents in the context."""
    cite: Literal["model", "explanation"] = "model"
    """An answer's references: the model's `ref_id`; or the document whose passage holds most of its explanation,
    which small models quote more reliably than they copy an id."""
    constrain_refs: bool = True
    """List the context's document ids in the schema as the only values of ref_id."""
    max_retries: NonNegativeInt = 2
    """Further attempts while the answer is blank: the second with twice the `top_k`, `top_k_final`, `image_top_k` and
    `max_context_tokens`, the third with three times as much."""
    widen_final: bool = True
    """Whether a retry multiplies `top_k_final` too; false: deeper searches compete for the same places."""

    @property
    def n_matches(self) -> int:
        """Most matches of the first attempt."""
        dense = self.queries * self.top_k
        kept = dense if self.top_k_final is None else min(dense, self.top_k_final)
        return kept + (self.bm25_top_k if self.bm25 == "append" else 0)

    @property
    def longest_section(self) -> int:
        """Most tokens of a section around a matched paragraph; sums with other counts stay within 64 bits."""
        return UNBOUNDED if self.section_tokens is None else self.section_tokens

    @property
    def longest_paragraph(self) -> int:
        """Longest paragraph shown whole, in tokens: pages that are one paragraph must not crowd out other matches."""
        return UNBOUNDED if self.max_context_tokens is None else max(self.max_context_tokens // 8, 1)

    @model_validator(mode="after")
    def _images_agree(self) -> KohakuSettings:
        if self.send_images and not self.image_top_k:
            raise ValueError("send_images is true but image_top_k is 0: set how many images are sent at most")
        return self
