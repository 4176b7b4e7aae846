"""From a story to its evidence: find the book, search it by every clause, check the excerpts by rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.hits import Hits
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.records import Question, TraceRow
from kohaku_ray.retrieval.evidence import distinct_rows
from kohaku_ray.retrieval.fusion import reciprocal_rank_fusion
from kohaku_ray.systems.narrative.questions import Story, match_book, named, names_of, story_of, unaccent
from kohaku_ray.systems.narrative.rules import Finding, Passage, find_contradictions
from kohaku_ray.systems.narrative.settings import NarrativeSettings
from kohaku_ray.systems.tools import Tools

EVERY = 100_000
"""More books than are listed at once."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A clause of the story, with the nearest chunk of the book and its cosine similarity."""

    text: str
    similarity: float
    node_id: str


@dataclass(frozen=True, slots=True)
class StoryEvidence:
    """What a story is judged by.

    Attributes:
        knows_character: Whether the book, ``doc_id``, names the character.
        claims: The story's clauses.
        passages: Retrieved, best first.
        findings: What the rules say of them.
    """

    story: Story
    doc_id: str
    title: str
    knows_character: bool
    claims: tuple[Claim, ...]
    passages: tuple[Passage, ...]
    findings: tuple[Finding, ...]
    trace: tuple[TraceRow, ...]


async def prepare(question: Question, tools: Tools, settings: NarrativeSettings) -> StoryEvidence:
    """Find the book, search it by every clause, fuse by rank, check the excerpts by rules.

    Raises:
        KohakuRayError: The index has no such book; the message lists those it has.
    """
    story = story_of(question)
    doc_id, title = await _find_book(question.question_id, story, tools)
    k, within = settings.excerpts(story.content), [doc_id]
    knows_character = await _is_named(story, k, within, tools)
    queries = story.queries(knows_character)
    texts = [text for text, _ in queries]
    dense, lexical = await asyncio.gather(
        tools.search("chunks", await tools.embed(texts), k, within), tools.lexical("chunks", texts, k, within)
    )
    fused = reciprocal_rank_fusion([hits.rows for hits in (*dense, *lexical)]).prefix(k)
    nodes = await tools.nodes(distinct_rows([fused, *(hits.prefix(1) for hits in dense)]))
    passages = await _passages(fused, dense, nodes, tools)
    claims = tuple(
        _claim(text, hits, nodes) for (text, source), hits in zip(queries, dense, strict=True) if source == "clause"
    )
    findings: tuple[Finding, ...] = ()
    if settings.reasoning:
        findings = find_contradictions(story.content, story.character, passages)
    trace = (
        TraceRow("book", 0, title, doc_id, doc_id, "document", note="" if knows_character else "character unknown"),
        *(
            TraceRow(
                "queries", rank, text, scores={"similarity": float(hits.scores[0])} if len(hits) else {}, note=source
            )
            for rank, ((text, source), hits) in enumerate(zip(queries, dense, strict=True))
        ),
        *(_passage_row(rank, part) for rank, part in enumerate(passages)),
        *(
            TraceRow("findings", rank, one.reason, one.node_id, doc_id, "chunk", note=one.rule)
            for rank, one in enumerate(findings)
        ),
    )
    return StoryEvidence(story, doc_id, title, knows_character, claims, passages, findings, trace)


async def _find_book(question_id: str, story: Story, tools: Tools) -> tuple[str, str]:
    (hits,) = await tools.search("books", await tools.embed([story.book_name]), EVERY)
    nodes = await tools.nodes(distinct_rows([hits]))
    known = {nodes.doc_id(row): nodes.title_of(row) for row in range(len(nodes))}
    doc_id = match_book(story.book_name, known)
    if doc_id is None:
        raise KohakuRayError(
            f"story {question_id}: book_name is {story.book_name!r}, but the index has {', '.join(map(repr, known))}: "
            "correct it, or index the book"
        )
    return doc_id, known[doc_id]


async def _is_named(story: Story, k: int, within: Sequence[str], tools: Tools) -> bool:
    """Whether the book writes one of the character's names, in the chunks that have most of its words."""
    names, person = names_of(story.character), named(story.character)
    if not names:
        return False
    nodes = await tools.nodes(distinct_rows(await tools.lexical("chunks", names, k, within)))
    return any(person.search(unaccent(nodes.text_of(row))) for row in range(len(nodes)))


async def _passages(hits: Hits, dense: Sequence[Hits], nodes: NodeTable, tools: Tools) -> tuple[Passage, ...]:
    """Read chunks, each with its chapter; ``dense`` are the searches that tell their similarity."""
    similarities: dict[int, float] = {}
    for found in dense:
        for row, score in zip(found.rows.tolist(), found.scores.tolist(), strict=True):
            similarities[row] = max(score, similarities.get(row, score))
    rows = nodes.local(hits.rows)
    above = nodes.source_row[nodes.parent[rows]]
    chapters = await tools.nodes(sorted(set(above.tolist())), 1)  # each with its first paragraph
    passages = []
    for source, row, at, score in zip(
        hits.rows.tolist(), rows.tolist(), chapters.local(above), hits.scores, strict=True
    ):
        first = next(iter(chapters.children(int(at))), None)
        progress = None if first is None else chapters.attributes_of(first).get("progress_pct")
        passages.append(
            Passage(
                nodes.node_id(row),
                nodes.doc_id(row),
                chapter=nodes.title_of(row),
                progress_pct=None if progress is None else float(progress),
                text=nodes.text_of(row),
                score=float(score),
                similarity=similarities.get(source),
            )
        )
    return tuple(passages)


def _claim(text: str, hits: Hits, nodes: NodeTable) -> Claim:
    if not len(hits):
        return Claim(text, 0.0, "")
    (row,) = nodes.local(hits.rows[:1])
    return Claim(text, float(hits.scores[0]), nodes.node_id(int(row)))


def _passage_row(rank: int, part: Passage) -> TraceRow:
    scores = {"rrf": part.score, "similarity": part.similarity, "progress_pct": part.progress_pct}
    known = {name: value for name, value in scores.items() if value is not None}
    return TraceRow("evidence", rank, part.text, part.node_id, part.doc_id, "chunk", known, part.chapter)
