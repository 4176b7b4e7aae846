"""What a sweep's table may show beside the score."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.index.nodes import NodeTable, flatten
from kohaku_ray.sweep.collect import (
    derived_measures,
    own_measures,
    recall_measures,
)

TEXT = "One here. Two there."
NODES = NodeTable(
    flatten(Document("a", "A", (Section("Head", (Paragraph(TEXT, (Sentence(0, 9), Sentence(10, 20))),)),)))
)
ROWS = (SubmissionRow("q1", ref_ids=("P1", "P2")), SubmissionRow("q2", ref_ids=("P3",)), SubmissionRow("q3"))
TRUTH = Submission("gold.csv", ("id", "ref_id"), {row.question_id: row for row in ROWS})


def row(question, step, rank, note=None, member=-1):
    node = None if note is None else f"d:sec0:{note}"
    return {
        "question_id": question,
        "member": member,
        "step": step,
        "rank": rank,
        "node_id": node,
        "doc_id": node and "d",
        "note": note or "",
    }


def by_question(measures):
    means = measures.group_by("question_id").mean()
    return {row.pop("question_id"): row for row in means.iter_rows(named=True)}


FAR = [row("q2", "search", rank, f"x{rank}") for rank in range(1, 11)]
RECALLS = {
    "a mean over the questions with gold references": (
        [
            *(row("q1", "search", 0), row("q1", "search", 1, "p1"), row("q1", "search", 2, "p9")),
            *(row("q2", "search", 0), row("q2", "search", 1, "p3")),
            row("q3", "search", 1, "p1"),
        ],
        {"recall@10 search": (0.5 + 1) / 2},
    ),
    "a question of which a step keeps nothing counts 0": (
        [row("q1", "final", 1, "p1"), row("q1", "final", 2, "p2"), row("q2", "final", 0)],
        {"recall@10 final": 0.5},
    ),
    "a step without items of any question has none": (
        [row("q1", "search", 1, "p1"), row("q1", "mmr", 0), row("q2", "mmr", 0)],
        {"recall@10 search": 0.5},
    ),
    "a question that is not in the truth has none": ([row("q4", "search", 1, "p1")], {}),
    "the eleventh does not count": ([row("q2", "search", 11, "p3"), *FAR], {"recall@10 search": 0}),
    "the tenth counts": ([row("q2", "search", 10, "p3"), *FAR[:9]], {"recall@10 search": 1}),
    "members count by themselves": (
        [row("q2", "search", 1, "p3", member=0), row("q2", "search", 1, "x", member=1)],
        {"recall@10 search": 0.5},
    ),
}


@check_rows("what", RECALLS)
def test_recall_of_the_gold_references(what):
    trace, recalls = RECALLS[what]
    assert recall_measures(pl.DataFrame(trace, infer_schema_length=None), TRUTH) == pytest.approx(recalls)


def test_measures_by_question_are_means_over_its_answers():
    rows = [("q1", {"matches": 2.0}), ("q1", {"matches": 4.0}), ("q2", {"matches": 5.0, "cut": 1.0})]
    kind = pa.map_(pa.string(), pa.float64())
    answers = pa.table(
        {
            "question_id": [question for question, _ in rows],
            "measures": pa.array([list(measures.items()) for _, measures in rows], kind),
        }
    )
    assert by_question(own_measures(answers)) == {
        "q1": {"matches": 3.0, "cut": None},
        "q2": {"matches": 5.0, "cut": 1.0},
    }


def test_a_systems_measure_of_a_trace_sees_the_shared_steps_with_each_members_own():
    config = load_config(None, ["kohaku.dedup=none"])
    ids = ["a:sec0:p0:s0", "a:sec0:p0:s1", "a:sec0:p0"]

    def step(question, member, node):
        return {"question_id": question, "member": member, "step": "evidence", "node_id": node}

    trace = [
        *(step("q1", -1, node) for node in ids),  # one answer: all its steps are shared
        *(step("q2", -1, ids[0]), step("q2", 0, ids[1]), step("q2", 1, ids[2]), step("q2", 1, ids[1])),
        {**step("q2", 1, None), "step": "plan"},
    ]
    name = "snippets with parents"
    measures = derived_measures(pl.DataFrame(trace), NODES, config, [name])
    assert by_question(measures) == {"q1": {name: 6.0}, "q2": {name: (4 + 6) / 2}}
    merged = load_config(None, ["kohaku.dedup=tree"])
    chars = "characters with parents"
    whole = derived_measures(pl.DataFrame(trace[:3]), NODES, merged, [name, chars])
    first, second, paragraph, section = (NODES.chars[NODES.row_of(item)] for item in (*ids, "a:sec0"))
    assert by_question(whole) == {"q1": {name: 6.0, chars: float(first + second + 3 * paragraph + section)}}
