"""The evidence of one question: searched once, deep enough for every retry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kohaku_ray.index.hits import Hits
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.records import Question, TraceRow
from kohaku_ray.retrieval.fusion import Dedup, Normalise, Ranked, Strategy, append_lexical, deduplicate, fuse


@dataclass(frozen=True, slots=True)
class Evidence:
    """A question, its queries and all they found, with the nodes a context may need.

    Attributes:
        question: The question.
        queries: Retrieval queries, the question itself first.
        dense: Vector search's hits, one ``Hits`` per query at the deepest ``k``; rows of ``nodes``.
        lexical: BM25's hits, one ``Hits`` per query, or empty without BM25; rows of ``nodes``.
        nodes: The matches and the text around them.
        trace: Rows of trace.parquet.
        images: Image paragraphs, one ``Hits`` per query, or empty; rows of ``nodes``.
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
    strategy: Strategy,
    normalise: Normalise,
    alpha: float,
    dedup: Dedup,
    bm25_top_k: int,
) -> Ranked:
    """Rank the evidence at one depth, as if every query had been searched for ``top_k``.

    Each list is cut to its first ``top_k``; the lists are fused, deduplicated and truncated; BM25's paragraphs follow.

    Args:
        evidence: Lists of at least ``top_k`` hits, unless the index or the threshold gave fewer.
        top_k: Matches per query at this depth.
        top_k_final: Dense matches kept; None: all.
        strategy: See ``fuse``.
        normalise: See ``fuse``.
        alpha: See ``fuse``.
        dedup: See ``deduplicate``.
        bm25_top_k: See ``append_lexical``; 0: none.
    """
    lists = [hits.prefix(top_k) for hits in evidence.dense]
    parent = evidence.nodes.parent
    dense = deduplicate(fuse(lists, strategy, normalise, alpha), dedup, parent)
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
    found: list[int] = np.unique(np.concatenate(rows)).tolist() if rows else []
    return found


def localise(lists: Sequence[Hits], nodes: NodeTable) -> tuple[Hits, ...]:
    """Turn rows of the index into rows of a neighbourhood.

    Raises:
        DataError: A hit's row is not in the neighbourhood.
    """
    return tuple(Hits(nodes.local(hits.rows), hits.scores) for hits in lists)
