"""What hybrid's nine stages cost beside the models: a synthetic corpus, 64 questions at the default pool sizes.

Encoder and cross-encoder are stand-ins (hashed words). Prints processor milliseconds per question, all threads
together and without encoder, cross-encoder and FAISS: of a batch of questions never asked before, of the same batch
again, and per stage of other questions, one by one. Then the batch's throughput beside a plain loop over the same
library calls (rank_bm25, FAISS, scikit-learn's k-means, a loop for MMR), in turns:

    python benchmarks/hybrid_speed.py [--paragraphs 50000] [--questions 64] [--exponent 1.0]

Words are drawn by Zipf's law, the stop words first; an exponent above 1 makes the commonest words commoner than they
are in French, and BM25 dearer.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import sys
import tempfile
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in a Ray actor

import numpy as np
import pyarrow as pa

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.answering.tools import MemberTools, RunContext
from kohaku_ray.collection.indexes import chunks_of, index_settings
from kohaku_ray.config import Config, load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.documents.model import Document, Paragraph, Section
from kohaku_ray.documents.text.sentences import Sentence
from kohaku_ray.index.arrays import F32, F64, I64
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import REJECT_SCHEMA, build_shard, publish_shards
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.nodes import PARAGRAPH, NodeTable
from kohaku_ray.index.store import Index
from kohaku_ray.index.terms import stop_words, tokenise
from kohaku_ray.models.target import Target
from kohaku_ray.records import Question, Reply
from kohaku_ray.systems.hybrid.diversify import allot, shares
from kohaku_ray.systems.hybrid.prepare import StageRun
from kohaku_ray.systems.hybrid.settings import N_INITIAL_TEXTS, N_PER_QUERY
from kohaku_ray.systems.hybrid.stages import STAGES

DIM, LONGEST_MS, LEAST_RATIO = 64, 25.0, 3.0
N_WORDS, SENTENCE_WORDS = 20_000, 20
OUTSIDE = {"embed": "encoder", "search": "FAISS", "rank_pairs": "cross-encoder"}
"""Operations whose time is not counted."""


@dataclass
class Clock:
    """Processor seconds of the operations on the index, in whatever thread they run.

    Attributes:
        spent: By name; the operations of ``OUTSIDE`` under theirs, others under ``stage``.
        stage: What is under way: the stage of a single question, or "batch".
    """

    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stage: str = ""
    _loop: int = field(default_factory=threading.get_ident)

    def timed(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """Time an operation: on the event loop it is part of the stage already, elsewhere it is added to it."""

        def measured(*arguments: Any) -> Any:
            began = time.thread_time()
            result = run(*arguments)
            self._add(name, time.thread_time() - began)
            return result

        return measured

    def _add(self, name: str, seconds: float) -> None:
        is_inside = threading.get_ident() == self._loop
        if name in OUTSIDE:
            self.spent[OUTSIDE[name]] += seconds
            self.spent[self.stage] -= seconds if is_inside else 0.0
        elif not is_inside:
            self.spent[self.stage] += seconds

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Time what this thread does for a stage."""
        self.stage, began = stage, time.thread_time()
        yield
        self.spent[stage] += time.thread_time() - began


class HashedWords:
    """An encoder that sums a random vector per word: takes no time to speak of."""

    def __init__(self, identity: dict[str, Any]) -> None:
        self.identity = identity
        self._table = np.random.default_rng(0).normal(size=(2**16, DIM)).astype(np.float32)

    def encode_passages(self, texts: Sequence[str]) -> F32:
        """Unit vectors of texts."""
        sums = np.stack([self._table[[zlib.crc32(w.encode()) % 2**16 for w in text.split()]].sum(0) for text in texts])
        unit: F32 = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return unit

    encode_queries = encode_passages


class Scripted:
    """A ledger whose model always writes nine sub-queries of the question's words."""

    async def ask(self, request: Any, target: Target, again: bool = False) -> Any:
        """Expand a question."""
        from kohaku_ray.store.segments import Entry, LedgerReply

        question = request.messages[-1][1].split("Question : ")[1].split("\n")[0]
        return LedgerReply(Entry(Reply(json.dumps(sub_queries(question))), request.model, 0.0), "made", "")


def sub_queries(question: str) -> list[str]:
    """Nine keyword queries: runs of four of the question's words."""
    words = question.split()
    return [" ".join(words[start : start + 4]) for start in range(9)]


def hashed(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """A cross-encoder's stand-in: a hash of how both texts begin."""
    return [float(zlib.crc32((query[:12] + text[:24]).encode()) % 1000) for query, text in pairs]


def synthetic(n_paragraphs: int, rng: np.random.Generator, exponent: float) -> list[Document]:
    """Articles of five paragraphs of three sentences, their words drawn by Zipf's law."""
    words = np.array([*sorted(stop_words("fr")), *(f"mot{chr(97 + number % 26)}{number}" for number in range(N_WORDS))])
    share = np.arange(1, len(words) + 1) ** -exponent
    drawn = words[rng.choice(len(words), (n_paragraphs, 3, SENTENCE_WORDS), p=share / share.sum())]
    documents = []
    for first in range(0, n_paragraphs, 5):
        paragraphs = []
        for number in range(first, min(first + 5, n_paragraphs)):
            sentences = [" ".join(sentence) + "." for sentence in drawn[number]]
            ends = np.cumsum([len(sentence_text) + 1 for sentence_text in sentences])
            spans = tuple(
                Sentence(int(end) - len(sentence_text) - 1, int(end) - 1)
                for sentence_text, end in zip(sentences, ends, strict=True)
            )
            known = {
                "par_id": f"p{number}",
                "document_netloc": f"site{first % 200}.example",
                "document_date": "2024-01-01",
            }
            paragraphs.append(Paragraph(" ".join(sentences), spans, attributes=known))
        documents.append(Document(f"d{first:07d}", "", (Section("", tuple(paragraphs)),)))
    return documents


def index_synthetic(config: Config, documents: Sequence[Document], encoder: HashedWords) -> None:
    """Index the synthetic articles."""
    chunks, settings = chunks_of(config), index_settings(config)
    nodes = pa.concat_tables([flatten(document, chunks) for document in documents])
    texts = list(dict.fromkeys(texts_to_encode(NodeTable(nodes), settings.index)[1]))
    vectors = np.concatenate(
        [encoder.encode_passages(texts[start : start + 8192]) for start in range(0, len(texts), 8192)]
    )
    arguments_of_build = {"settings": settings, "views": tuple(config.declaration.views.values())}
    parts = {"nodes": nodes, "documents": document_table(documents), "keys": vector_keys(settings.encoder, texts)}
    shard = build_shard(config.index.path, 0, "", vectors=vectors, **parts, **arguments_of_build)
    rejects = pa.Table.from_pylist([], schema=REJECT_SCHEMA)
    publish_shards(config.index.path, [shard], rejects=rejects, **arguments_of_build)


class TimedThread(ThreadPoolExecutor):
    """The thread of an operation, whose time is taken."""

    def __init__(self, clock: Clock, name: str) -> None:
        super().__init__(1)
        self._timed = functools.partial(clock.timed, name)

    def submit(self, run: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Run something, and take its time."""
        return super().submit(self._timed(run), *arguments, **named)


class Timed(LocalIndex):
    """An index whose operations are timed; those on the event loop are part of a stage already."""

    def __init__(self, clock: Clock, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clock = clock

    def thread(self, method: str) -> ThreadPoolExecutor:
        """See ``Calls``."""
        return TimedThread(self._clock, method)


def tools_of(config: Config, index: LocalIndex) -> Any:
    """Make the tools of a question."""
    models = (models_of(config, defaultdict(str), 0),)
    context = RunContext(config, Scripted(), models, config.declaration.prompts(), {"ranker": "ranker"})  # type: ignore[arg-type]
    return lambda question: MemberTools(index, context, question.question_id, 0)


async def per_stage(config: Config, index: LocalIndex, questions: Sequence[Question], clock: Clock) -> None:
    """Prepare questions one by one, each stage timed."""
    make = tools_of(config, index)

    def timed(run: StageRun, stage: str) -> Any:
        work = getattr(run, stage)

        def now(*arguments: Any) -> Any:
            with clock.during(stage):
                return work(*arguments)

        async def later(*arguments: Any) -> Any:
            with clock.during(stage):
                return await work(*arguments)

        return later if asyncio.iscoroutinefunction(work) else now

    for question in questions:
        run = StageRun(question, make(question), config.settings)  # type: ignore[arg-type]
        for stage in STAGES:
            setattr(run, stage, timed(run, stage))
        await run.evidence()


async def batch(config: Config, index: LocalIndex, questions: Sequence[Question]) -> None:
    """Prepare all questions at once."""
    make = tools_of(config, index)
    await asyncio.gather(
        *(config.declaration.prepare(question, make(question), config.settings) for question in questions)
    )


def timed_batch(config: Config, index: LocalIndex, questions: Sequence[Question], clock: Clock) -> tuple[float, float]:
    """Processor milliseconds per question without what is outside, and seconds per question on the wall."""
    outside = sum(clock.spent[name] for name in OUTSIDE.values())
    began, process = time.perf_counter(), time.process_time()
    asyncio.run(batch(config, index, questions))
    wall, processor = time.perf_counter() - began, time.process_time() - process
    processor -= sum(clock.spent[name] for name in OUTSIDE.values()) - outside
    return 1000 * processor / len(questions), wall / len(questions)


class PlainLoop:
    """The same stages as one would write them down: one library call per query, loops in Python."""

    def __init__(self, index: Index, encoder: HashedWords) -> None:
        from rank_bm25 import BM25Okapi

        self.index, self.encoder = index, encoder
        self.rows, self.okapi = {}, {}
        for kind in ("sentence", "chunk", "paragraph"):
            rows = np.flatnonzero(index.nodes.kind == {"paragraph": 2, "sentence": 3, "chunk": 4}[kind])
            self.rows[kind] = rows
            self.okapi[kind] = BM25Okapi([tokenise(index.nodes.text_of(int(row)), "fr") for row in rows])

    def bm25(self, kind: str, query: str, k: int) -> I64:
        """Best rows by BM25."""
        scores = self.okapi[kind].get_scores(tokenise(query, "fr"))
        nearest: I64 = self.rows[kind][np.argsort(-scores, kind="stable")[:k]]
        return nearest

    def answer(self, question: str) -> list[int]:
        """Run the stages on one question."""
        from sklearn.cluster import KMeans

        text_of = self.index.nodes.text_of
        for kind in ("sentence", "chunk"):
            self.bm25(kind, question, N_INITIAL_TEXTS)
        fused: dict[int, float] = defaultdict(float)
        for query in [question, *sub_queries(question)]:
            vector = self.encoder.encode_queries([query])
            dense = self.index.shards[0].vectors(("paragraph",)).search(vector, N_PER_QUERY)[0].rows
            pool = list(dict.fromkeys([*self.bm25("paragraph", query, 100).tolist(), *dense.tolist()]))
            scores = hashed([(query, text_of(row)) for row in pool])
            for rank, position in enumerate(np.argsort(-np.array(scores))[:100], 1):
                fused[pool[position]] += 1 / (60 + rank)
        kept = sorted(fused, key=lambda row: -fused[row])[:200]
        vectors = self.index.node_vectors(np.array(kept))
        labels = KMeans(3, n_init="auto", random_state=0).fit_predict(vectors)
        sizes = np.bincount(labels)
        counts = allot(sizes, shares(sizes), 100)
        kept = [
            row
            for position in range(len(sizes))
            for row in np.array(kept)[labels == position][: counts[position]].tolist()
        ]
        return self.mmr(kept, self.encoder.encode_queries([question])[0])[:50]

    def mmr(self, rows: list[int], query: F32) -> list[int]:
        """Maximal marginal relevance, pair by pair."""
        from rank_bm25 import BM25Okapi

        vectors = self.index.node_vectors(np.array(rows)).astype(np.float64)
        terms = [tokenise(self.index.nodes.text_of(row), "fr") for row in rows]
        okapi = BM25Okapi(terms)
        bm25: F64 = np.stack([okapi.get_scores(query_terms) for query_terms in terms])
        chosen: list[int] = []
        while len(chosen) < min(50, len(rows)):

            def value(position: int) -> float:
                repeats = [
                    max(vectors[position] @ vectors[j], min(bm25[position, j] / bm25[position, position], 1))
                    for j in chosen
                ]
                return 0.9 * float(vectors[position] @ query) - 0.1 * max(repeats, default=0.0)

            chosen.append(max((position for position in range(len(rows)) if position not in chosen), key=value))
        return [rows[position] for position in chosen]


def synthetic_questions(index: Index, n: int, rng: np.random.Generator) -> list[Question]:
    """The first words of drawn paragraphs."""
    rows = rng.choice(np.flatnonzero(index.nodes.kind == PARAGRAPH), n, replace=False)
    return [Question(f"q{row}", " ".join(index.nodes.text_of(int(row)).split()[:12])) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paragraphs", type=int, default=50_000)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law")
    parser.add_argument("--plain", type=int, default=4, help="questions of the plain loop")
    parser.add_argument("--rounds", type=int, default=3, help="turns of batch and plain loop")
    arguments = parser.parse_args()
    rng, clock = np.random.default_rng(7), Clock()
    score = clock.timed("rank_pairs", hashed)

    async def rank_pairs(_: Target, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return score(pairs)

    with tempfile.TemporaryDirectory() as directory:
        ranker = ["hybrid.cross_encoder=ranker", "deployments.ranker={kind: cross_encoder, model: none}"]
        defaults = ["hybrid.min_relevance=null", "hybrid.max_per_netloc=1"]
        config = load_config("hybrid", [f"index.path={directory}/index", *ranker, *defaults])
        encoder = HashedWords(index_settings(config).encoder)  # type: ignore[arg-type]
        index_synthetic(config, synthetic(arguments.paragraphs, rng, arguments.exponent), encoder)
        opened = Index.open(config.index.path)
        here = Timed(clock, opened.shards[0], encoder, score=rank_pairs)  # type: ignore[arg-type]
        asked = synthetic_questions(opened, arguments.questions * arguments.rounds + 18, rng)
        print(f"{arguments.paragraphs:,} paragraphs, {len(opened.nodes):,} nodes; {arguments.questions} questions")
        asyncio.run(batch(config, here, asked[:2]))  # what is loaded once is loaded
        clock.spent.clear()
        asyncio.run(per_stage(config, here, asked[2:18], clock))
        for name in (*STAGES, *OUTSIDE.values()):
            print(f"{name:<20}{1000 * clock.spent[name] / 16:>8.2f} ms of processor per question, one by one")
        print(f"{'all stages':<20}{1000 * sum(clock.spent[stage] for stage in STAGES) / 16:>8.2f}")
        plain = PlainLoop(opened, encoder)
        gc.freeze()  # no collection goes through the plain loop's corpus while the batch is timed
        rounds = []
        for start in range(18, len(asked), arguments.questions):
            now = asked[start : start + arguments.questions]
            first, again = (timed_batch(config, here, now, clock) for _ in range(2))
            began = time.perf_counter()
            for question in now[: arguments.plain]:
                plain.answer(question.text)
            loop = (time.perf_counter() - began) / len(now[: arguments.plain])
            rounds.append((first[0], again[0], 1 / first[1], loop / first[1]))
            print(
                "batch: {:.1f} ms, again {:.1f}; {:.1f} questions per second, {:.1f} × a plain loop".format(*rounds[-1])
            )
        ms, again, rate, ratio = map(median, zip(*rounds, strict=True))
        print(f"median: {ms:.1f} ms of processor per question, {again:.1f} again; {rate:.1f} per second, {ratio:.1f} ×")
    return 0 if ms <= LONGEST_MS and ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
