"""Evidence in batch against bare batched encode + FAISS and against a loop over queries, in turns in one run.

41 WattBot questions and `--made` more, from the corpus (each asks for the number in a sentence), four queries each.
Ours is the whole path to the context: embed, search, nodes, rank, assemble, all questions in flight as in a retriever.
The peers only encode and search. Run after `kohaku-ray index configs/wattbot.yaml`:

    python benchmarks/retrieval_speed.py [--config configs/wattbot.yaml] [--set KEY=VALUE] [--rounds 3] [--made 241]

Published code with the same encoder: 85 ms wall and 162 ms CPU per question.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from retrieval import Setting, context_of, variants

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.collection.sources import resolve
from kohaku_ray.config import Config, load_config
from kohaku_ray.evaluation.submissions import SubmissionRow, read_submission
from kohaku_ray.index.identity import locate_model
from kohaku_ray.index.nodes import SENTENCE, NodeTable
from kohaku_ray.index.store import Index
from kohaku_ray.systems.kohaku import SYSTEM

TOP_K = 16
SETTING = Setting("four queries, final 32, tree, 8,000 tokens", 4, 32, "tree", 8000)
BATCH_SIZES = (8, 16, 32, 64, 128)
STATEMENT = re.compile(r"(?<= )\d[\d,.]*\s+(?=[a-z])")
"""A number that counts or measures something."""

WANTED_OF_BARE = 0.85
WANTED_OF_LOOP = 4.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/wattbot.yaml")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--made", type=int, default=241, help="questions made from the corpus")
    arguments = parser.parse_args()
    config = load_config(arguments.config, [*arguments.overrides, "kohaku.bm25_top_k=0"])
    index, opened, model = LocalIndex.open(config), Index.open(config.index.path), bare_model(config)
    questions = [*read_submission(resolve(config.questions.path)).rows.values(), *derived(opened.nodes, arguments.made)]
    queries = [query for row in questions for query in variants(row.question)]
    vectors = opened.shards[0].vectors(SYSTEM.views["nodes"].kinds)
    peer = vectors.faiss_index
    sample = queries[::4]
    best = min(BATCH_SIZES, key=lambda size: timed(lambda: bare(model, peer, sample, size))[0])
    ways: dict[str, Callable[[], Any]] = {
        f"encode + FAISS, batch {best}": lambda: bare(model, peer, queries, best),
        "loop over queries": lambda: loop(model, peer, queries),
        "evidence, all at once": lambda: asyncio.run(evidence(config, index, questions)),
    }
    asyncio.run(evidence(config, index, questions[:8]))
    rounds = [{name: timed(way) for name, way in ways.items()} for _ in range(arguments.rounds)]
    print(f"{len(questions)} questions, {len(queries)} queries, {len(vectors)} vectors, {os.cpu_count()} cores")
    print(f"{'median of ' + str(len(rounds)) + ' rounds':<28}{'wall s':>9}{'CPU s':>9}{'ms/question':>13}{'CPU ms':>9}")
    for name in ways:
        wall, cpu = (median(row[name][which] for row in rounds) for which in (0, 1))
        a_question = 1e3 / len(questions)
        print(f"{name:<28}{wall:>9.2f}{cpu:>9.2f}{wall * a_question:>13.1f}{cpu * a_question:>9.1f}")
    print(f"{'published code':<28}{'':>18}{85:>13.1f}{162:>9.1f}")
    of_bare, of_loop = (ratio(rounds, list(ways), peer_at) for peer_at in (0, 1))
    print(f"of bare encode + FAISS: {of_bare:.2f} (target ≥ {WANTED_OF_BARE})")
    print(f"of the loop: {of_loop:.2f} (target ≥ {WANTED_OF_LOOP})")
    return 0 if of_bare >= WANTED_OF_BARE and of_loop >= WANTED_OF_LOOP else 1


def ratio(rounds: Sequence[dict[str, tuple[float, float]]], names: Sequence[str], peer_at: int) -> float:
    """Median over the rounds, so that other load during one of them does not decide."""
    return median(row[names[peer_at]][0] / row[names[2]][0] for row in rounds)


def derived(nodes: NodeTable, n: int) -> list[SubmissionRow]:
    """Questions made from the corpus: each asks for the number in one of evenly spaced sentences."""
    texts = nodes.table["text"].to_pylist()
    sentences = dict.fromkeys(" ".join(texts[row].split()) for row in (nodes.kind == SENTENCE).nonzero()[0].tolist())
    asked = [STATEMENT.sub("how many ", text, count=1)[:-1] + "?" for text in sentences if is_statement(text)]
    chosen = asked[:: max(len(asked) // n, 1)][:n]
    return [SubmissionRow(f"derived{number:03}", question) for number, question in enumerate(chosen)]


def is_statement(text: str) -> bool:
    return 50 <= len(text) <= 150 and text[0].isupper() and text[-1] == "." and bool(STATEMENT.search(text))


def bare_model(config: Config) -> Any:
    from sentence_transformers import SentenceTransformer

    encoder = config.index.encoder
    return SentenceTransformer(locate_model(encoder.model), revision=encoder.revision, device="cpu")


def bare(model: Any, peer: Any, queries: Sequence[str], size: int) -> Any:
    vectors = model.encode(list(queries), batch_size=size, show_progress_bar=False, normalize_embeddings=True)
    return peer.search(vectors, TOP_K)


def loop(model: Any, peer: Any, queries: Sequence[str]) -> None:
    for query in queries:
        peer.search(model.encode([query], show_progress_bar=False, normalize_embeddings=True), TOP_K)


async def evidence(config: Config, index: LocalIndex, questions: Sequence[SubmissionRow]) -> None:
    await asyncio.gather(*(context_of(config, index, row, SETTING) for row in questions))


def timed(way: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds, all threads'."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    way()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    sys.exit(main())
