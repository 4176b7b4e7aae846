"""Hybrid's nine stages on a news corpus with gold paragraphs, without Ray: recall after every stage, sites, citations.

Indexes the configured corpus in a temporary directory, answers every question with the offline model, once with all
stages and once with each of them switched off, and prints beside them what BM25 alone and vectors alone retrieve:

    python benchmarks/hybrid.py [--config hybrid] [--set KEY=VALUE] [--ablate] [--k 10]

Exits with 1 where one of them alone has the better recall, vectors alone more sites, or an off-topic question is
answered. The preset's `min_relevance` and `max_per_netloc` were chosen on this sample: no estimate for another corpus.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.answering.tools import MemberTools, RunContext
from kohaku_ray.collection.indexes import chunks_of, index_settings, make_encoder
from kohaku_ray.collection.sources import document_format, resolve
from kohaku_ray.config import Config, load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.documents.find import find_files
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.evaluation.references import citation_scores, gold_refs, recall_at_k, stage_recall
from kohaku_ray.evaluation.submissions import SubmissionRow, mend_refs, read_refs
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import REJECT_SCHEMA, build_shard, publish_shards
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.target import Target
from kohaku_ray.records import Question
from kohaku_ray.store.segments import Entry, LedgerReply
from kohaku_ray.systems.base import Answer
from kohaku_ray.systems.hybrid.stages import STAGES, HybridEvidence
from kohaku_ray.systems.questions import read_questions


@dataclass
class OfflineLedger:
    """Has the system's own stand-in model answer every call; keeps nothing."""

    config: Config

    def __post_init__(self) -> None:
        self.backend = self.config.declaration.offline(131072)

    async def ask(self, request: ChatRequest, target: Target, again: bool = False) -> LedgerReply:
        """Answer a request as the ledger would."""
        return LedgerReply(Entry(await self.backend.chat(request), request.model, 0.0), "made", "")


@dataclass(frozen=True)
class Result:
    """One question with its answer."""

    gold: frozenset[str]
    evidence: HybridEvidence
    answer: Answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="hybrid")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--ablate", action="store_true", help="switch each stage off in turn")
    parser.add_argument("--k", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        overrides = [*arguments.overrides, f"index.path={directory}/index"]
        config = load_config(arguments.config, overrides)
        index_here(config)
        index = LocalIndex.open(config)
        asked = read_gold(config)
        results = asyncio.run(answered(config, index, asked))
        print_stages(results, arguments.k)
        floors = asyncio.run(alone(index, config, asked, arguments.k))
        recall, sites, n_answered = print_summary("all stages", results, arguments.k)
        for name, (alone_recall, netlocs) in floors.items():
            print(f"{name + ' alone':<26}{alone_recall:>14.3f}{netlocs:>14.3f}")
        for stage in STAGES if arguments.ablate else ():
            without = load_config(arguments.config, [*overrides, f"hybrid.{stage}=false", *off_with(config, stage)])
            print_summary(f"without {stage}", asyncio.run(answered(without, index, asked)), arguments.k)
    is_better = recall >= max(best_recall for best_recall, _ in floors.values()) and sites >= floors["cosine"][1]
    return 0 if is_better and not n_answered else 1


def off_with(config: Config, stage: str) -> list[str]:
    """What else must go with a stage."""
    has_bound = stage == "final_ranking" and config.settings.min_relevance is not None
    return ["hybrid.min_relevance=null"] if has_bound else []


def index_here(config: Config) -> None:
    """Index the configured documents in this process."""
    parsed_files = [
        parse_documents(name, read_bytes(name), document_format=document_format(config))
        for name in find_files([resolve(path) for path in config.documents.paths])
    ]
    documents = sorted(
        (document for parsed in parsed_files for document in parsed.documents), key=lambda document: document.doc_id
    )
    chunks, settings, encoder = chunks_of(config), index_settings(config), make_encoder(config)
    nodes = pa.concat_tables([flatten(document, chunks) for document in documents])
    _, texts = texts_to_encode(NodeTable(nodes), settings.index)
    texts = list(dict.fromkeys(texts))
    arguments_of_build = {"settings": settings, "views": tuple(config.declaration.views.values())}
    parts = {"nodes": nodes, "documents": document_table(documents), "keys": vector_keys(settings.encoder, texts)}
    shard = build_shard(config.index.path, 0, "", vectors=encoder.encode_passages(texts), **parts, **arguments_of_build)
    rejects = pa.Table.from_pylist([], schema=REJECT_SCHEMA)
    publish_shards(config.index.path, [shard], rejects=rejects, **arguments_of_build)
    print(f"{len(documents)} documents, {len(nodes)} nodes, {len(texts)} texts encoded")


def read_gold(config: Config) -> list[tuple[Question, frozenset[str]]]:
    """Read the questions with their gold paragraphs."""
    path = resolve(config.questions.path)
    questions = read_questions(path, Path(path).read_bytes(), columns=config.declaration.columns)
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    gold = [gold_refs(SubmissionRow(row["id"], ref_ids=mend_refs(read_refs(row["ref_id"])))) for row in rows]
    return list(zip(questions, gold, strict=True))


async def answered(config: Config, index: LocalIndex, asked: Sequence[tuple[Question, frozenset[str]]]) -> list[Result]:
    """Answer every question as member 0 does, all at once."""
    system = config.declaration
    models = models_of(config, defaultdict(str), 0)
    context = RunContext(config, OfflineLedger(config), (models,), system.prompts())

    async def answer_one(question: Question, gold: frozenset[str]) -> Result:
        tools = MemberTools(index, context, question.question_id, 0)
        evidence = await system.prepare(question, tools, config.settings)
        return Result(gold, evidence, await system.answer(evidence, tools, config.settings))

    return list(await asyncio.gather(*(answer_one(question, gold) for question, gold in asked)))


async def alone(
    index: LocalIndex, config: Config, asked: Sequence[tuple[Question, frozenset[str]]], k: int
) -> dict[str, tuple[float, float]]:
    """Recall@k and distinct sites of BM25 alone and of vectors alone, by the question itself."""
    kinds, texts = config.declaration.views["paragraphs"].kinds, [question.text for question, _ in asked]
    vectors = await index.embed(texts, False)
    stages = {
        "bm25": await index.lexical(texts, kinds, k, None),
        "cosine": await index.search(vectors, kinds, k, None),
    }
    measured = {}
    for name, lists in stages.items():
        recalls, netlocs = [], []
        for hits, (_, gold) in zip(lists, asked, strict=True):
            [nodes] = await index.nodes([tuple(hits.rows.tolist())], 0, ())
            known = [nodes.attributes_of(row) for row in nodes.local(hits.rows).tolist()]
            if gold:
                netlocs.append(len({paragraph.get("document_netloc") for paragraph in known} - {None}))
                recalls.append(recall_at_k([str(paragraph.get("par_id")) for paragraph in known], gold, k))
        measured[name] = float(np.mean(recalls)), float(np.mean(netlocs))
    return measured


def print_stages(results: Sequence[Result], k: int) -> None:
    """Print what share of the gold paragraphs is left after each stage, at its best k and in its whole pool."""
    with_gold = [result for result in results if result.gold]
    print(
        f"\n{'stage':<20}{'pool':>8}{f'recall@{k}':>11}{'recall':>9}   mean over {len(with_gold)} questions with gold"
    )
    traces = [([asdict(row) for row in result.evidence.trace], result.gold) for result in with_gold]
    best = [stage_recall(trace, gold, k) for trace, gold in traces]
    whole = [stage_recall(trace, gold) for trace, gold in traces]
    for stage in STAGES:
        pool = np.mean([result.evidence.measures[f"pool_{stage}"] for result in with_gold])
        shown = "".join(
            f"{_mean(recalls_by_stage, stage):>{width}}" for recalls_by_stage, width in ((best, 11), (whole, 9))
        )
        print(f"{stage:<20}{pool:>8.1f}{shown}")
    columns = (f"recall@{k}", "sites", "precision", "recall", "F1", "blank", "off-topic", "answers asked")
    print(f"\n{'':<26}" + "".join(f"{column:>14}" for column in columns))


def _mean(recalls_by_stage: Sequence[Mapping[str, float]], stage: str) -> str:
    recalls = [stages[stage] for stages in recalls_by_stage if stage in stages]
    return f"{np.mean(recalls):.3f}" if recalls else "–"


def print_summary(name: str, results: Sequence[Result], k: int) -> tuple[float, float, int]:
    """Print one setting's line: recall and sites of the texts shown, citations, abstentions, answers asked.

    Returns:
        Mean recall and sites, and how many off-topic questions were answered.
    """
    with_gold = [result for result in results if result.gold]
    recalls = [recall_at_k([t.ref_id.lower() for t in result.evidence.texts], result.gold, k) for result in with_gold]
    netlocs = [result.evidence.measures["distinct_netlocs"] for result in with_gold]
    cited = [
        citation_scores(frozenset(ref.lower() for ref in result.answer.prediction.ref_ids), result.gold)
        for result in with_gold
    ]
    means = [np.mean(recalls), np.mean(netlocs)]
    means += [np.mean([result[part] for result in cited]) for part in ("precision", "recall", "f1")]
    off = [result.answer.prediction.is_blank for result in results if not result.gold]
    blank = sum(result.answer.prediction.is_blank for result in with_gold)
    asked = sum(result.answer.reply is not None for result in results)
    shown = "".join(f"{mean:>14.3f}" for mean in means)
    print(f"{name:<26}{shown}{blank:>14}{f'{sum(off)} of {len(off)}':>14}{asked:>14}")
    return float(means[0]), float(means[1]), len(off) - sum(off)


if __name__ == "__main__":
    sys.exit(main())
