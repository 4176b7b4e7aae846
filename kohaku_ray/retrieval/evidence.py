"""The evidence of one question, searched once for all retries; its images; which document an explanation quotes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from kohaku_ray.index.arrays import Hits
from kohaku_ray.index.nodes import PARAGRAPH, NodeTable
from kohaku_ray.index.terms import tokenise
from kohaku_ray.records import Question, TraceRow
from kohaku_ray.retrieval.context import Context, FoundImage, NearCaption
from kohaku_ray.retrieval.fusion import (
    Dedup,
    FusionStrategy,
    Lexical,
    Normalise,
    Ranked,
    Truncate,
    append_lexical,
    deduplicate,
    fuse,
    fuse_with_lexical,
    reciprocal_rank_fusion,
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A question, its queries and all they found, with the nodes a context may need.

    Attributes:
        queries: Retrieval queries, the question itself first.
        dense: Vector search's hits, one ``Hits`` per query at the deepest ``k``; rows of ``nodes``.
        lexical: BM25's hits, likewise, or empty without BM25.
        nodes: The matches and the text around them.
        trace: Rows of trace.parquet.
        images: Image paragraphs, likewise, or empty.
    """

    question: Question
    queries: tuple[str, ...]
    dense: tuple[Hits, ...]
    lexical: tuple[Hits, ...]
    nodes: NodeTable
    trace: tuple[TraceRow, ...] = ()
    images: tuple[Hits, ...] = ()


def rank(
    evidence: Evidence,
    *,
    top_k: int,
    top_k_final: int | None,
    strategy: FusionStrategy,
    normalise: Normalise,
    alpha: float,
    dedup: Dedup,
    bm25_top_k: int,
    truncate: Truncate = "after_dedup",
    bm25: Lexical = "append",
) -> Ranked:
    """Rank the evidence at one depth, as if every query had been searched for ``top_k``.

    Each list is cut to its first ``top_k``; the lists are fused (``fuse``), deduplicated (``deduplicate``) and cut to
    ``top_k_final``, if any, so that freed places are filled, or with ``before_dedup`` cut first; the paragraphs of BM25
    follow (``append_lexical``). With ``bm25`` = ``fuse`` its lists, cut alike, are fused with those of the vectors
    (``fuse_with_lexical``), and none follow.
    """
    lists = [hits.prefix(top_k) for hits in evidence.dense]
    parent = evidence.nodes.parent
    if bm25 == "fuse":
        fused, bm25_top_k = fuse_with_lexical(lists, [hits.prefix(top_k) for hits in evidence.lexical]), 0
    else:
        fused = fuse(lists, strategy, normalise, alpha)
    if truncate == "before_dedup":
        fused = fused.take(np.arange(len(fused))[:top_k_final])
    dense = deduplicate(fused, dedup, parent)
    kept = dense.take(np.arange(len(dense))[:top_k_final])
    return append_lexical(kept, evidence.lexical, bm25_top_k, dedup, parent)


def at_least(hits: Hits, threshold: float | None) -> Hits:
    """Drop the hits weaker than the threshold; None keeps all."""
    if threshold is None:
        return hits
    strong = hits.scores >= threshold
    return Hits(hits.rows[strong], hits.scores[strong])


def distinct_rows(lists: Iterable[Hits]) -> list[int]:
    """Every row that some list holds, ascending."""
    rows = [hits.rows for hits in lists]
    union: list[int] = np.unique(np.concatenate(rows)).tolist() if rows else []
    return union


def localise(lists: Sequence[Hits], nodes: NodeTable) -> tuple[Hits, ...]:
    """Turn rows of the index into rows of a neighbourhood that holds them."""
    return tuple(Hits(nodes.local(hits.rows), hits.scores) for hits in lists)


def find_images(nodes: NodeTable, hits: Sequence[Hits], ranked: Ranked, *, top_k: int, near: bool) -> list[FoundImage]:
    """Rank at most ``top_k`` images of the evidence; one that stands in several places counts once.

    Args:
        nodes: The matches and the text around them, image paragraphs among them.
        hits: Image paragraphs, one ``Hits`` per query; rows of ``nodes``.
        ranked: The text matches, best first.
        top_k: Most images, and most per query.
        near: Also take images in the sections of the matches, nearest first, fused by reciprocal rank.
    """
    best = fuse([image_hits.prefix(top_k) for image_hits in hits], "max")
    similarity = dict(zip(best.rows.tolist(), best.score.tolist(), strict=True))
    order = best.rows
    if near:
        beside = np.array(_beside(nodes, ranked), np.int64)
        order = reciprocal_rank_fusion([best.rows, beside]).rows
    images_by_path: dict[str, FoundImage] = {}
    for row in order.tolist():
        path = nodes.attachment_path(row)
        if path is None or path in images_by_path:
            continue
        images_by_path[path] = FoundImage(
            doc_id=nodes.doc_id(row),
            node_id=nodes.node_id(row),
            path=path,
            caption=nodes.text_of(row),
            n_tokens=int(nodes.tokens[row]),
            similarity=similarity.get(row),
            source="dense" if row in similarity else "near",
        )
    return list(images_by_path.values())[:top_k]


def within(images: Sequence[FoundImage], budget: int | None, tokens_each: int) -> tuple[list[FoundImage], int]:
    """Keep the first images whose captions and pixels take at most half of the budget; returns their tokens too.

    An image itself takes ``tokens_each``, 0 where it is not sent. Without a budget all stay.
    """
    costs = np.cumsum([image.n_tokens + tokens_each for image in images], dtype=np.int64)
    n = len(costs) if budget is None else int(np.searchsorted(costs, budget // 2, side="right"))
    return list(images[:n]), int(costs[n - 1]) if n else 0


def with_images(context: Context, images: Sequence[FoundImage], n_tokens: int, *, numbered: bool) -> Context:
    """Put images, best first, before a context's captions; captions of the same paragraphs, or of the same words, go.

    They add ``n_tokens``. If ``numbered``, the model sees them: then each text says which one it belongs to, and an
    image without a caption is named too.
    """
    shown = [
        NearCaption(
            image.doc_id, image.node_id, "image", f"Image {number}: {image.caption}" if numbered else image.caption
        )
        for number, image in enumerate(images, 1)
        if numbered or image.caption
    ]
    shown_keys = {image.node_id for image in images} | {(image.doc_id, image.caption) for image in images}
    others = [
        caption for caption in context.captions if not shown_keys & {caption.node_id, (caption.doc_id, caption.text)}
    ]
    captions = (*shown, *others)
    doc_ids = tuple(dict.fromkeys([*context.doc_ids, *(caption.doc_id for caption in shown)]))
    n_tokens += context.n_tokens
    return replace(context, captions=captions, doc_ids=doc_ids, n_tokens=n_tokens, images=tuple(images))


def _beside(nodes: NodeTable, ranked: Ranked) -> list[int]:
    """Rows of the images in the matches' sections, as far as the nodes hold these: match by match, nearest first."""
    pictures = np.array(
        [row for row in np.flatnonzero(nodes.kind == PARAGRAPH).tolist() if nodes.attachment_kind(row) == "image"],
        np.int64,
    )
    section = np.array([nodes.section_of(row) for row in pictures.tolist()], np.int64)
    near_rows: dict[int, None] = {}
    for row in ranked.rows.tolist():
        here = pictures[section == nodes.section_of(row)]
        for near in here[np.argsort(np.abs(here - row), kind="stable")].tolist():
            near_rows.setdefault(near)
    return list(near_rows)


Passages = Sequence[tuple[str, Set[str]]]
"""Document id and terms of each passage, best first."""


def terms_of(passages: Iterable[tuple[str, str]]) -> Passages:
    """Read the terms of passages, of each its document id and text: once for all texts that may come from them."""
    return [(doc_id, frozenset(tokenise(text))) for doc_id, text in passages]


def attribute(text: str, passages: Passages) -> str | None:
    """Return the document of the passage that holds most of a text's terms; None where no passage holds one.

    A term that n of N passages hold weighs ``ln((N + 1) / (n + ½))``, as in BM25: what all of them say tells nothing.

    Args:
        text: An explanation, which a small model quotes more reliably than it copies an id.
        passages: Result of ``terms_of``: of equals the first counts.
    """
    if not passages:
        return None  # to tokenise an explanation takes 0.2 ms, 3 % of a call's CPU
    wanted = set(tokenise(text))
    passage_counts = Counter(term for _, terms in passages for term in terms & wanted)
    weight = {term: math.log((len(passages) + 1) / (n + 0.5)) for term, n in passage_counts.items()}
    shares = [sum(weight[term] for term in sorted(terms & wanted)) for _, terms in passages]
    best = max(range(len(passages)), key=shares.__getitem__, default=None)
    return None if best is None or not shares[best] else passages[best][0]
