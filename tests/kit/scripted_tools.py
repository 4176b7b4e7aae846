"""The tools that a system receives, in this process: nodes in memory for an index, a script for its models."""

import asyncio
import inspect
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.answering.tools import MemberTools, RunContext
from kohaku_ray.config import Config
from kohaku_ray.config.roles import model_of
from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.index.arrays import Hits
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.views import rows_of
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.records import Reply
from kohaku_ray.store.segments import Entry, LedgerReply
from kohaku_ray.systems.base import System

DIM = 4096


@dataclass(frozen=True)
class SentCall:
    """One chat call as the tools saw it."""

    role: str
    attempt: int
    prompt: Prompt
    schema: dict[str, Any] | None
    max_tokens: int | None = None


Script = Callable[[SentCall], "Reply | str | Exception | Any"]
"""What the model does with a call: a reply, its text, an error to raise, or an awaitable of these."""


class MemoryIndex:
    """Index operations over nodes in memory: vectors of word counts, common words for BM25; notes what it is asked."""

    def __init__(self, nodes: NodeTable, system: System, pair_score: Callable[[str, str], float] | None) -> None:
        self.table, self.system, self.pair_score = nodes, system, pair_score
        self.asked: list[tuple[Any, ...]] = []

    async def embed(self, texts, of_images):
        self.asked.append(("embed", tuple(texts)))
        return [vector(text) for text in texts]

    async def search(self, vectors, kinds, top_k, within):
        self.asked.append(("search", self._view(kinds, "dense"), len(vectors), top_k))
        rows = self._rows(kinds, within)
        known = np.stack([vector(self.table.text_of(row)) for row in rows]) if len(rows) else np.empty((0, DIM))
        return [best(rows, known @ query, top_k) for query in vectors]

    async def lexical(self, queries, kinds, top_k, within):
        self.asked.append(("lexical", self._view(kinds, "lexical"), tuple(queries), top_k))
        rows = self._rows(kinds, within)
        return [
            best(rows, np.array([float(len(words(query) & self._words(row))) for row in rows]), top_k)
            for query in queries
        ]

    async def term_weights(self, rows, kinds):
        self.asked.append(("term_similarity", self._view(kinds, "lexical"), tuple(rows)))
        assert set(rows) <= set(self._rows(kinds, None).tolist()), "a row of another view"
        terms = [np.array(sorted(zlib.crc32(word.encode()) for word in self._words(row)), np.int64) for row in rows]
        return [(known, np.ones(len(known))) for known in terms]

    async def vectors(self, rows):
        self.asked.append(("vectors", tuple(rows)))
        return [vector(self.table.text_of(row)) for row in rows]

    async def rank_pairs(self, pairs, application):
        assert self.pair_score is not None, "nobody named a cross-encoder"
        self.asked.append(("rank_pairs", tuple(pairs)))
        return [self.pair_score(*pair) for pair in pairs]

    async def nodes(self, asked, section_tokens, tokenizers):
        self.asked += [("nodes", rows, section_tokens) for rows in asked]
        return [self.table.neighbourhood(rows, section_tokens) for rows in asked]

    def _view(self, kinds, way):
        return next(name for name, view in self.system.views.items() if view.kinds == kinds and getattr(view, way))

    def _rows(self, kinds, within):
        rows = (
            row for row in rows_of(self.table, kinds) if self.table.text_of(row)
        )  # an image without a caption has none
        return np.array([row for row in rows if within is None or self.table.doc_id(row) in within], np.int64)

    def _words(self, row):
        return words(self.table.text_of(row))


class ScriptedTools(MemberTools):
    """The product's own tools for member 0 of one question.

    They note the chats that are ``sent``, and what the index is ``asked``.
    """

    def __init__(
        self,
        nodes: NodeTable,
        script: Script,
        system: System,
        window_tokens: int | None = None,
        max_tokens: int | None = None,
        pair_score: Callable[[str, str], float] | None = None,
        index: Any = None,
    ) -> None:
        self.sent: list[SentCall] = []
        self.script, memory = script, MemoryIndex(nodes, system, pair_score)
        self.asked = memory.asked
        config = Config.model_validate(
            {
                "system": system.name,
                "index": {"path": "/index"},
                "ensemble": {"members": 1},
                "deployments": {"extractive": {"kind": "extractive"}, "pairs": {"kind": "cross_encoder", "model": "x"}},
                "settings": {"cross_encoder": "pairs"} if "cross_encoder" in system.settings.model_fields else {},
                "roles": {role: {"model": "extractive"} for role in system.roles},
            }
        )
        names = {name: name for name in config.deployments}
        models = {role: model_of(config, names, role, 0) for role in system.roles}
        models = {
            role: replace(model, max_tokens=max_tokens or system.roles[role].max_tokens, window_tokens=window_tokens)
            for role, model in models.items()
        }
        context = RunContext(config, self, (models,), system.prompts(), names)
        super().__init__(index or memory, context, "q1", 0)

    async def chat(self, prompt, *, role="answer", schema=None, attempt=0, max_tokens=None):
        self.sent.append(SentCall(role, attempt, prompt, schema, max_tokens))
        return await super().chat(prompt, role=role, schema=schema, attempt=attempt, max_tokens=max_tokens)

    async def ask(self, request, application, again=False):
        """Answer as the ledger does, by the script."""
        call = self.sent[-1]
        await asyncio.sleep(0)  # let other questions in, as a real call would
        reply = self.script(call)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            reply = Reply(reply, prompt_tokens=100, completion_tokens=10)
        return LedgerReply(Entry(reply, request.model, 0.0), "made", "key")


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
