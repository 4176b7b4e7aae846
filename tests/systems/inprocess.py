"""``Tools`` without Ray: a word-count encoder, plain search, and a chat that follows a script."""

import asyncio
import inspect
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.index.arrays import Hits
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.views import View, rows_of
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.records import Reply
from kohaku_ray.systems.base import System
from kohaku_ray.systems.tools import Limits

DIM = 4096


@dataclass(frozen=True)
class Call:
    """One chat call as the tools saw it."""

    role: str
    attempt: int
    prompt: Prompt
    schema: dict[str, Any] | None
    max_tokens: int | None = None


Script = Callable[[Call], "Reply | str | Exception | Any"]
"""What the model does with a call: a reply, its text, an error to raise, or an awaitable of these."""


@dataclass
class InProcessTools:
    """``Tools`` over a node table in memory; sees to nothing but the protocol, and notes what it was asked."""

    index: NodeTable
    script: Script
    system: System
    window_tokens: int | None = None
    max_tokens: int | None = None
    pair_score: Callable[[str, str], float] | None = None
    calls: list[Call] = field(default_factory=list)
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self):
        self.prompts = self.system.prompts()

    def limits(self, role="answer") -> Limits:
        return Limits(self.max_tokens or self.system.roles[role].max_tokens, self.window_tokens)

    async def shared_by_members(self, key, make):
        return await make()

    async def chat(self, prompt, *, schema=None, attempt=0, role="answer", max_tokens=None) -> Reply:
        call = Call(role, attempt, prompt, schema, max_tokens)
        self.calls.append(call)
        await asyncio.sleep(0)  # let other questions in, as a real call would
        reply = self.script(call)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        return Reply(reply, prompt_tokens=100, completion_tokens=10) if isinstance(reply, str) else reply

    async def prompt_tokens(self, prompt, role="answer") -> int | None:
        return None

    async def embed(self, texts: Sequence[str], view: str | None = None):
        self.asked.append(("embed", tuple(texts), *([view] if view else [])))
        return np.stack([vector(text) for text in texts])

    async def search(self, view, vectors, top_k, within=None) -> list[Hits]:
        self.asked.append(("search", view, len(vectors), top_k))
        rows = self._rows(self._view(view, "dense"), within)
        known = np.stack([vector(self.index.text_of(row)) for row in rows]) if len(rows) else np.empty((0, DIM))
        return [best(rows, known @ query, top_k) for query in vectors]

    async def lexical(self, view, queries: Sequence[str], top_k, within=None) -> list[Hits]:
        self.asked.append(("lexical", view, tuple(queries), top_k))
        rows = self._rows(self._view(view, "lexical"), within)
        return [
            best(rows, np.array([float(len(words(query) & words(self.index.text_of(row)))) for row in rows]), top_k)
            for query in queries
        ]

    async def term_similarity(self, view, rows: Sequence[int]):
        self.asked.append(("term_similarity", view, tuple(rows)))
        assert set(rows) <= set(self._rows(self._view(view, "lexical"), None).tolist()), "a row of another view"
        known = [words(self.index.text_of(row)) for row in rows]
        return np.array([[float(len(one & other)) for other in known] for one in known]).reshape(len(rows), len(rows))

    async def vectors(self, rows: Sequence[int]):
        self.asked.append(("vectors", tuple(rows)))
        return np.stack([vector(self.index.text_of(row)) for row in rows])

    async def rank_pairs(self, pairs: Sequence[tuple[str, str]]):
        assert self.pair_score is not None, "nobody named a cross-encoder"
        self.asked.append(("rank_pairs", tuple(pairs)))
        return np.array([self.pair_score(*pair) for pair in pairs], np.float64)

    async def nodes(self, rows: Sequence[int], section_tokens=0) -> NodeTable:
        self.asked.append(("nodes", tuple(rows), section_tokens))
        return self.index.neighbourhood(rows, section_tokens)

    def _view(self, name, way) -> View:
        view = self.system.views[name]
        assert getattr(view, way), f"{name} is not {way}"
        return view

    def _rows(self, view, within):
        rows = rows_of(self.index, view.kinds)
        return rows if within is None else rows[[self.index.doc_id(row) in set(within) for row in rows]]


def words(text):
    return set(re.findall(r"\w+", text.lower()))


def vector(text):
    counts = np.zeros(DIM, np.float32)
    for word in words(text):
        counts[zlib.crc32(word.encode()) % DIM] += 1
    return counts / (np.linalg.norm(counts) or 1)


def best(rows, scores, top_k):
    order = np.argsort(-scores, kind="stable")[:top_k]
    return Hits(rows[order].astype(np.int64), scores[order].astype(np.float64))


def library(**documents):
    """Build ``doc_id=[(title, [text, …]), …]`` into nodes; a token is a word, a sentence ends with a full stop."""
    built = [
        Document(doc_id, doc_id, tuple(Section(title, tuple(map(_paragraph, texts))) for title, texts in sections))
        for doc_id, sections in documents.items()
    ]
    nodes = NodeTable(pa.concat_tables([flatten(document) for document in built]))
    return nodes.with_tokens(np.array([len(nodes.text_of(row).split()) for row in range(len(nodes))], np.int64))


def _paragraph(text):
    return Paragraph(text, tuple(Sentence(*match.span()) for match in re.finditer(r"[^\s.][^.]*\.", text)))
