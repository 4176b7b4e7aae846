"""Gather the evidence for a story: find its book, search it by every clause, check the story by rules."""

from __future__ import annotations

import asyncio
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.arrays import Hits
from kohaku_ray.index.chunks import PARAGRAPH_BREAK
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.models.request import CHARS_PER_TOKEN
from kohaku_ray.records import Question, TraceRow, digest_text
from kohaku_ray.retrieval.evidence import distinct_rows
from kohaku_ray.retrieval.fusion import reciprocal_rank_fusion
from kohaku_ray.systems.narrative.names import BookNames, match_book, read_names
from kohaku_ray.systems.narrative.rules import BookPassage, Fact, StoryCheck, check_story, read_facts
from kohaku_ray.systems.narrative.settings import NarrativeSettings
from kohaku_ray.systems.questions import QuestionColumns
from kohaku_ray.systems.tools import Tools

COLUMNS = QuestionColumns(
    question_id=("id",),
    text=("content",),
    gold=frozenset({"label"}),
    needed=("book_name", "char"),
    split_by=("book_name",),
)
"""Columns of a story; ``caption`` may be missing."""

MOST_CLAUSES = 24
"""A longer story's clauses are joined to so many."""

_FEWEST_WORDS = 3
_CLAUSE_END = re.compile(
    r"(?<=[.!?;:])[\"”’)]*\s+|\s*[—–]\s*|,\s+(?=(?:and|but|so|yet|then|while|though|although|after|before|when|where|"
    r"which|who|until|because)\b)"
)

QuerySource = Literal["story", "clause", "caption"]


@dataclass(frozen=True, slots=True)
class Story:
    """A backstory of a novel's character (disguises behind a slash), under a caption, if it has one."""

    content: str
    character: str
    book_name: str
    caption: str

    @property
    def clauses(self) -> tuple[str, ...]:
        """What it claims, a clause each; one of fewer than three words joins the clause before it."""
        clauses: list[str] = []
        for part in filter(None, map(str.strip, _CLAUSE_END.split(self.content))):
            if clauses and min(len(part.split()), len(clauses[-1].split())) < _FEWEST_WORDS:
                clauses[-1] += f" {part}"
            else:
                clauses.append(part)
        step = -(-len(clauses) // MOST_CLAUSES)
        return tuple(" ".join(clauses[first : first + step]) for first in range(0, len(clauses), step or 1))

    def queries(self, with_character: bool) -> tuple[tuple[str, QuerySource], ...]:
        """Everything that is searched: the clauses first, in order, then the whole story and the caption.

        The story brings its character if the book knows it: another name would only mislead the search.
        """
        name = f"{self.character.replace('/', ' ')} " if with_character else ""
        clauses: list[tuple[str, QuerySource]] = [(clause, "clause") for clause in self.clauses]
        caption: list[tuple[str, QuerySource]] = [(self.caption, "caption")] if self.caption else []
        return (*clauses, (name + self.content, "story"), *caption)


def story_of(question: Question) -> Story:
    """Read a question's columns."""
    columns = question.columns
    return Story(question.text, columns.get("char", ""), columns.get("book_name", ""), columns.get("caption", ""))


EVERY = 100_000
"""More books, chapters or chunks than are listed at once."""

_READ = ["node_id", "kind", "title", "text", "attributes"]
_NEAREST = 10  # chunks among which the one with a sentence is looked for
_WHOLE = 2**40  # tokens: a section comes with all its paragraphs


@dataclass(frozen=True, slots=True)
class StoryClaim:
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
        passages: Retrieved, best first; then those with a finding that were not.
        check: What the rules read of the story and of the whole book, and what they found.
        book: With ``evidence: book`` all of the book in reading order, else nothing.
    """

    question: Question
    story: Story
    doc_id: str
    title: str
    knows_character: bool
    claims: tuple[StoryClaim, ...]
    passages: tuple[BookPassage, ...]
    check: StoryCheck
    book: tuple[BookPassage, ...]
    trace: tuple[TraceRow, ...]


class ParagraphPlace(NamedTuple):
    """Where a paragraph stands."""

    chapter: str
    progress_pct: float | None


@dataclass(frozen=True, slots=True)
class Book:
    """A book's names, paragraphs and facts, which are read once.

    Attributes:
        paragraphs: By section and as a whole, where each paragraph of the rejoined text starts.
        pieces: Its paragraphs, as passages without a node; one that ends within a quotation goes on in the next.
    """

    names: BookNames
    paragraphs: Mapping[str, tuple[list[int], list[ParagraphPlace]]]
    pieces: tuple[BookPassage, ...]
    _facts: dict[str, tuple[Fact, ...]] = field(default_factory=dict)

    def facts_of(self, character: str) -> tuple[Fact, ...]:
        """Read what the whole book says of a character, once."""
        if character not in self._facts:
            self._facts[character] = read_facts(character, self.pieces, self.names)
        return self._facts[character]

    def paragraph_at(self, parent_id: str, start: int) -> ParagraphPlace:
        """Find the paragraph that holds a character of a section's, or the whole book's, rejoined text."""
        starts, paragraph_places = self.paragraphs[parent_id]
        return paragraph_places[bisect_right(starts, start) - 1]


BOOKS_KEPT = 16
"""Books whose names a process keeps: reading them takes seconds."""

_BOOKS: dict[str, Book] = {}
"""By what they were read from; the last one used comes last."""


async def prepare(question: Question, tools: Tools, settings: NarrativeSettings) -> StoryEvidence:
    """Find the book, search it by every clause, fuse by rank, check the story against the book by rules.

    Raises:
        KohakuRayError: The index has no such book; the message lists those it has.
    """
    story = story_of(question)
    (hits,) = await tools.search("books", await tools.embed([story.book_name]), EVERY)
    nodes = await tools.nodes(distinct_rows([hits]))
    titles = {nodes.doc_id(row): nodes.title_of(row) for row in range(len(nodes))}
    doc_id = match_book(story.book_name, titles)
    if doc_id is None:
        raise KohakuRayError(
            f"story {question.question_id}: book_name is {story.book_name!r}, but the index has "
            f"{', '.join(map(repr, titles))}: correct it, or index the book"
        )
    title = titles[doc_id]
    (hits,) = await tools.search("chapters", await tools.embed([story.book_name]), EVERY, [doc_id])
    nodes = await tools.nodes(distinct_rows([hits]), _WHOLE)
    book = _read_book(doc_id, nodes)
    knows_character = book.names.person(story.character).n_mentions > 0
    names = [re.escape(name.strip()) for name in story.character.split("/") if name.strip()]
    if names and not knows_character:  # a name as it is given may look like another word to those who read names
        named = re.compile(rf"\b(?:{'|'.join(names)})\b")
        knows_character = any(named.search(nodes.text_of(row)) for row in range(len(nodes)))
    queries, k, within = story.queries(knows_character), settings.excerpts(story.content), [doc_id]
    texts = [text for text, _ in queries]
    vectors = await tools.embed(texts)
    dense, lexical = await asyncio.gather(
        tools.search("chunks", vectors, k, within), tools.lexical("chunks", texts, k, within)
    )
    every = [] if settings.evidence == "retrieved" else await tools.search("chunks", vectors[:1], EVERY, within)
    fused = reciprocal_rank_fusion([hits.rows for hits in (*dense, *lexical)]).prefix(k)
    nodes = await tools.nodes(distinct_rows([fused, *every, *(hits.prefix(1) for hits in dense)]))
    passages = _passages(fused, dense, nodes, book)
    claims = tuple(
        _claim(text, hits, nodes) for (text, source), hits in zip(queries, dense, strict=True) if source == "clause"
    )
    check = StoryCheck()
    if settings.reasoning:
        facts = book.facts_of(story.character)
        check = check_story(story.content, story.character, facts, book.names, settings.rules)
        depth = min(_NEAREST, settings.most_excerpts)
        passages, check = await _located(check, passages, doc_id, book, tools, depth)
    trace = (
        TraceRow("book", 0, title, doc_id, doc_id, "document", note="" if knows_character else "character unknown"),
        *(
            TraceRow(
                "queries", rank, text, scores={"similarity": float(hits.scores[0])} if len(hits) else {}, note=source
            )
            for rank, ((text, source), hits) in enumerate(zip(queries, dense, strict=True))
        ),
        *(
            TraceRow("evidence", rank, part.text, part.node_id, part.doc_id, "chunk", part.scores, part.chapter)
            for rank, part in enumerate(passages)
        ),
        *(
            TraceRow("findings", rank, item.reason, item.node_id, doc_id, "chunk", note=item.rule)
            for rank, item in enumerate(check.findings)
        ),
        *(TraceRow("claims", rank, item.text, note=item.summary) for rank, item in enumerate(check.claims)),
        *(
            TraceRow("facts", rank, item.text, doc_id=doc_id, note=f"{item.summary} ({part.chapter})")
            for rank, (item, part) in enumerate(check.facts)
        ),
    )
    whole = _passages(Hits(np.sort(every[0].rows), every[0].scores), (), nodes, book) if every else ()
    return StoryEvidence(question, story, doc_id, title, knows_character, claims, passages, check, whole, trace)


def _read_book(doc_id: str, nodes: NodeTable) -> Book:
    """Read a book's people, places and years, once per process and content."""
    read = nodes.table.filter(pc.field("kind").isin(["section", "paragraph"])).select(_READ)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, read.schema) as stream:
        stream.write_table(read)
    key = digest_text(sink.getvalue().to_pybytes(), 16)
    book = _BOOKS[key] = _BOOKS.pop(key) if key in _BOOKS else _book(doc_id, nodes)
    if len(_BOOKS) > BOOKS_KEPT:
        del _BOOKS[next(iter(_BOOKS))]
    return book


def _book(doc_id: str, nodes: NodeTable) -> Book:
    paragraphs = np.flatnonzero(pc.equal(nodes.table["kind"], "paragraph").to_numpy()).tolist()
    texts = [(nodes.title_of(row), nodes.text_of(row)) for row in paragraphs]
    paragraphs_of: dict[str, tuple[list[int], list[ParagraphPlace]]] = defaultdict(lambda: ([], []))
    ends: dict[str, int] = defaultdict(int)
    pieces: list[BookPassage] = []
    for row, (chapter, text) in zip(paragraphs, texts, strict=True):
        progress = nodes.attributes_of(row).get("progress_pct")
        paragraph_place = ParagraphPlace(chapter, float(progress) if progress is not None else None)
        for parent_id in (doc_id, nodes.node_id(nodes.section_of(row))):
            starts, places_of_parent = paragraphs_of[parent_id]
            starts.append(ends[parent_id])
            places_of_parent.append(paragraph_place)
            ends[parent_id] += len(text) + len(PARAGRAPH_BREAK)
        last = pieces[-1] if pieces else None
        if last and last.chapter == chapter and last.text.rfind("“") > last.text.rfind("”"):
            pieces[-1] = replace(last, text=f"{last.text}{PARAGRAPH_BREAK}{text}")
        else:
            pieces.append(BookPassage("", doc_id, chapter, paragraph_place.progress_pct, text, 0))
    return Book(read_names([text for _, text in texts]), dict(paragraphs_of), tuple(pieces))


async def _located(
    check: StoryCheck, passages: tuple[BookPassage, ...], doc_id: str, book: Book, tools: Tools, depth: int
) -> tuple[tuple[BookPassage, ...], StoryCheck]:
    """Name the chunk of each finding, which joins the passages: rules read the whole book, not what was retrieved."""
    excerpts = list(dict.fromkeys(finding.excerpt for finding in check.findings))
    if not excerpts:
        return passages, check
    rows = distinct_rows(await tools.lexical("chunks", excerpts, depth, [doc_id]))
    near = _passages(Hits(np.array(rows, np.int64), np.zeros(len(rows))), (), await tools.nodes(rows), book)
    known = {part.node_id: part for part in (*near, *passages)}.values()
    holding = {excerpt: next((part for part in known if excerpt in part.text), None) for excerpt in excerpts}
    located = tuple(
        replace(finding, node_id=part.node_id)
        for finding in check.findings
        if (part := holding[finding.excerpt]) is not None
    )
    shown = {part.node_id: part for part in (*passages, *filter(None, holding.values()))}
    return tuple(shown.values()), replace(check, findings=located)


def _passages(hits: Hits, dense: Sequence[Hits], nodes: NodeTable, book: Book) -> tuple[BookPassage, ...]:
    """Read chunks; ``dense`` are the searches that tell their similarity."""
    similarities: dict[int, float] = {}
    for hits_of_query in dense:
        for row, score in zip(hits_of_query.rows.tolist(), hits_of_query.scores.tolist(), strict=True):
            similarities[row] = max(score, similarities.get(row, score))
    spans = nodes.table.select(["parent_id", "start"]).to_pylist()
    passages = []
    for source, row, score in zip(hits.rows.tolist(), nodes.local(hits.rows).tolist(), hits.scores, strict=True):
        chapter, progress_pct = book.paragraph_at(spans[row]["parent_id"], spans[row]["start"])
        text, ids = nodes.text_of(row), (nodes.node_id(row), nodes.doc_id(row))
        n_tokens = int(nodes.tokens[row]) or math.ceil(len(text) / CHARS_PER_TOKEN)
        similarity = similarities.get(source)
        passages.append(BookPassage(*ids, chapter, progress_pct, text, n_tokens, float(score), similarity))
    return tuple(passages)


def _claim(text: str, hits: Hits, nodes: NodeTable) -> StoryClaim:
    if not len(hits):
        return StoryClaim(text, 0.0, "")
    (row,) = nodes.local(hits.rows[:1])
    return StoryClaim(text, float(hits.scores[0]), nodes.node_id(int(row)))
