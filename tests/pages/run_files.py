"""A small run's directory, written as the engine writes one."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from index.small_index import build_whole

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.evaluation.submissions import SubmissionRow, write_submission
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.views import View
from kohaku_ray.store.tables import SCHEMAS

TEXT = "Servers hum. The hall drew 41 MW in May. Fans spin faster in June."
TABLE = "year: 2023; load: 41 MW\nyear: 2024; load: 52 MW"


def index(path, *doc_ids, title="Report", text=TEXT):
    identity = {"model": "fake", "sha256": "0" * 64, "dim": None, "query_prompt": None, "passage_prompt": None}
    settings = IndexSettings(encoder=identity)
    table = Paragraph(TABLE, (), attachment=Attachment("table"))
    body = Paragraph(text, split_sentences(text), page=4)
    sections = (Section("Load", (body, table)), Section("", (Paragraph("", attachment=Attachment("image", "a.png")),)))
    documents = [
        Document(doc_id, title, sections, {"url": f"https://example.org/{doc_id}"}) for doc_id in sorted(doc_ids)
    ]
    nodes = pa.concat_tables([flatten(document) for document in documents])
    texts = list(dict.fromkeys(texts_to_encode(NodeTable(nodes), settings.index)[1]))
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
    vectors = unit_rows(np.array([np.random.default_rng(seed).normal(size=12) for seed in seeds]))
    build_whole(
        str(path),
        nodes=nodes,
        documents=document_table(documents),
        keys=vector_keys(settings.encoder, texts),
        vectors=vectors,
        settings=settings,
        views=[View(kinds=("sentence", "paragraph"), dense=True)],
    )
    return path


def answer(question_id, member, value, refs=("a2024",), **more):
    row = {
        "question_id": question_id,
        "member": member,
        "attempt": 0,
        "seed": 1000 + member,
        "answer": f"It is {value}." if value else "",
        "answer_value": value,
        "answer_unit": "MW",
        "ref_ids": list(refs) if value else [],
        "explanation": f"Member {member} read it.",
        "is_blank": not value,
        "n_foreign_refs": 0,
        "flags": [],
        "measures": {"context_tokens": 400.0},
        "reply": "{}",
        "details": None,
        "error": None,
    }
    return row | more


def item(question_id, step, rank=0, text="", **more):
    row = {"question_id": question_id, "member": -1, "attempt": 0, "step": step, "rank": rank, "text": text}
    row |= {"node_id": None, "doc_id": None, "kind": None, "scores": {}, "note": "", "error": None}
    return row | more


def match(question_id, rank=0, node_id="a2024:sec0:p0:s1", text="The hall drew 41 MW in May.", **more):
    row = item(question_id, "evidence", rank, text, node_id=node_id, doc_id=node_id.split(":")[0], kind="sentence")
    row |= {"note": "dense", "scores": {"score": 0.9, "frequency": 3.0, "similarity": 1.75, "n_tokens": 9.0}}
    return row | more


def ballot(question_id, question, answers, winner=0, groups=None):
    """The vote's row, its winner being right about the spelling."""
    values = [row["answer_value"] for row in answers]
    won = answers[winner]
    groups = groups or [value or "is_blank" for value in dict.fromkeys(values)]
    return {
        "question_id": question_id,
        "question": question,
        "asked_unit": "MW",
        "answer": won["answer"],
        "answer_value": won["answer_value"],
        "answer_unit": "MW",
        "ref_ids": won["ref_ids"],
        "explanation": won["explanation"],
        "is_blank": won["is_blank"],
        "winner": winner,
        "groups": groups,
        "group_weights": [float(values.count("" if group == "is_blank" else group)) for group in groups],
        "n_members": len(answers),
        "n_blank": sum(row["is_blank"] for row in answers),
        "n_errors": sum(row["error"] is not None for row in answers),
    }


def usage(question_id, member, role="answer", attempt=0, **more):
    row = {"question_id": question_id, "member": member, "role": role, "attempt": attempt, "source": "made"}
    row |= {"key": "00", "replica": "", "wait_s": 2.5}
    row |= {"deployment": "extractive", "prompt_tokens": 500, "cached_tokens": 100, "completion_tokens": 40}
    return (
        row
        | {"queue_s": 0.5, "service_s": 2.0, "gpu_s": 1.0, "joules": None, "dollars": 0.001, "finish_reason": "stop"}
        | more
    )


def plan(question_id, *queries, **more):
    return [item(question_id, "plan", rank, query, **more) for rank, query in enumerate(queries)]


CONFIG = """
system: kohaku
index: {path: nowhere/index}
kohaku: {top_k: 16}
ensemble: {members: 3, scope: answer, vote: {strategy: answer_priority, ignore_blank: true, compat: null}}
deployments: {extractive: {kind: extractive}}
"""

FACTS = {
    "status": "finished",
    "wall_s": 12.5,
    "versions": {"ray": "2.60.0"},
    "system": "kohaku",
    "metrics": ["wattbot", "kaggle"],
    "models": {"answer": ["extractive (extractive)"], "plan": ["extractive (extractive)"]},
    "lead": "answer",
    "n_answering": 1,
    "baselines": ["extractive"],
    "limit": None,
    "outputs": [],
}
"""What ``facts_of`` notes of a run that ``CONFIG`` describes."""


def write_run(path, questions, *, trace=(), calls=(), config=CONFIG, facts=FACTS, urls=None):
    """Write a run.

    Args:
        path: The directory.
        questions: (vote, answers) of each question.
        urls: Address by document.
    """
    path.mkdir(parents=True, exist_ok=True)
    answers = [row for _, given in questions for row in given]
    votes = [vote for vote, _ in questions]
    for name, rows in {"answers": answers, "votes": votes, "trace": trace, "usage": calls}.items():
        lacking = {column for row in rows for column in set(SCHEMAS[name].names) ^ set(row)}
        assert not lacking, f"{name}: {lacking}"
        pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMAS[name]), path / f"{name}.parquet")
    (path / "config.yaml").write_text(config)
    (path / "run.json").write_text(json.dumps(facts))
    urls = {"a2024": "https://example.org/a"} if urls is None else urls
    write_submission(
        path / "submission.csv",
        [
            SubmissionRow(
                vote["question_id"],
                vote["question"],
                vote["answer"],
                vote["answer_value"],
                "MW",
                tuple(vote["ref_ids"]),
                tuple(urls[ref] for ref in vote["ref_ids"] if ref in urls),
            )
            for vote in votes
        ],
    )
    return path


def write_truth(path, *rows):
    """Write gold answers: (id, value, refs)."""
    lines = [
        SubmissionRow(key, "?", "", value, "MW", tuple(refs), supporting_materials="p. 4") for key, value, refs in rows
    ]
    write_submission(path, lines)
    return path


def small_run(path, **more):
    """Four questions: right, wrong and split, other references, blank."""
    right = [answer("q1", member, "41") for member in range(3)]
    split = [answer("q2", 0, "7"), answer("q2", 1, "52"), answer("q2", 2, "7")]
    refs = [answer("q3", member, "3", ("a2024", "b2025")) for member in range(3)]
    blank = [answer("q4", member, "", attempt=2) for member in range(2)] + [
        answer("q4", 2, "", error="no JSON", reply="eh")
    ]
    questions = [
        (ballot("q1", "How many MW did the hall draw?", right), right),
        (ballot("q2", "How many in 2024?", split), split),
        (ballot("q3", "How many halls?", refs), refs),
        (ballot("q4", "How many on Mars?", blank), blank),
    ]
    calls = [usage("q1", member) for member in range(3)]
    calls += [usage("q1", -1, "plan", source="ledger"), usage("q1", 0, attempt=1, prompt_tokens=700)]
    calls += [usage(key, member) for key in ("q2", "q3", "q4") for member in range(3)]
    table = match(
        "q1", 1, "b2025:sec0:p1", TABLE, kind="paragraph", note="lexical", scores={"score": 0.9, "n_tokens": 9.0}
    )
    given = {
        "trace": [*plan("q1", "How many MW did the hall draw?", "hall load MW"), match("q1"), table],
        "calls": calls,
    }
    return write_run(path, questions, **{**given, **more})


def small_truth(path):
    return write_truth(path, ("q1", "41", ["a2024"]), ("q2", "52", ["b2025"]), ("q3", "3", ["a2024"]), ("q4", "", []))


def own_run(path, config="system: nowhere.to_be_found:SYSTEM\nfound: {pages: 2}\n", **facts):
    """A run of somebody's system: steps, measures, settings and metrics of its own."""
    measures = {"doubt": 0.125, "page_tokens": 12_000.0}
    given = [answer("q1", member, "red", measures=measures, details='{"because": ["<x>"]}') for member in range(2)]
    other = [answer("q2", member, "", measures={}) for member in range(2)]
    trace = [
        item("q1", "skim_pages", 0, "page one", note="fast", scores={"worth": 0.5}),
        item("q1", "skim_pages", 1, "page two", kind="page", doc_id="a2024"),
        item("q1", "BM25 search", 0, "red, surely", member=1, attempt=2),
        item("q2", "prepare", error="no such page"),
    ]
    facts = {"system": "found", "metrics": ["exact"], "models": {"judge": ["big (vllm)"]}, "lead": "judge"} | facts
    facts = FACTS | {"baselines": []} | facts
    questions = [(ballot("q1", "Which?", given), given), (ballot("q2", "Who?", other), other)]
    return write_run(path, questions, trace=trace, calls=[usage("q1", 0, "judge")], config=config, facts=facts)
