"""Rankings against what they should have found; numbers by hand, and bounds for any ranking."""

import math

import pytest

from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.references import (
    ndcg_at_k,
    recall_at_k,
    reciprocal_rank,
    stage_recall,
)
from kohaku_ray.evaluation.submissions import SubmissionRow


def test_recall_counts_gold_among_the_first_k():
    assert recall_at_k("abcd", "bd") == 1
    assert recall_at_k("abcd", "bd", 2) == 0.5
    assert recall_at_k("abcd", "bx", 4) == 0.5
    assert recall_at_k("", "b") == 0
    assert recall_at_k("abc", "") == 1


def test_reciprocal_rank_is_that_of_the_first_gold_item():
    assert reciprocal_rank("abcd", "bd") == 0.5
    assert reciprocal_rank("abcd", "x") == 0


def test_ndcg_by_hand():
    ideal = 1 + 1 / math.log2(3)
    assert ndcg_at_k("abcd", "bd", 4) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert ndcg_at_k("abcd", "bd", 1) == 0
    assert ndcg_at_k("bxxx", "bd", 1) == 1
    assert ndcg_at_k("bb", "bd", 2) == pytest.approx(1 / ideal)


def item(step, rank, node_id, note="", doc_id="d"):
    return {"step": step, "rank": rank, "node_id": node_id, "doc_id": doc_id, "note": note}


def test_stage_recall_follows_the_gold_through_the_steps():
    trace = [
        {"step": "search", "rank": 0, "node_id": None, "doc_id": None, "note": "in 9, out 3"},
        item("search", 2, "n2", "7"),
        item("search", 1, "n1", "8"),
        item("search", 3, "n3", "9"),
        {"step": "expansion", "rank": 1, "node_id": None, "doc_id": None, "note": ""},
        item("cut", 1, "n3", "9"),
    ]
    assert stage_recall(trace, {"7", "9"}) == {"search": 1.0, "cut": 0.5}
    assert stage_recall(trace, {"7", "9"}, k=1) == {"search": 0.0, "cut": 0.5}
    assert stage_recall(trace, {"7", "9"}, k=2) == {"search": 0.5, "cut": 0.5}
    assert stage_recall(trace, {"n3"}) == {"search": 1.0, "cut": 1.0}
    assert stage_recall(trace, {"d"}) == {"search": 1.0, "cut": 1.0}


def test_the_metric_reads_ref_id_as_a_ranking():
    metric = find_metric("retrieval")
    truth = SubmissionRow("q", columns={"gold": '["b", "z"]'})
    scored = metric.score_question(truth, SubmissionRow("q", ref_ids=("a", "B")))
    assert scored.parts == pytest.approx(
        {"recall": 0.5, "mrr": 0.5, "ndcg": (1 / math.log2(3)) / (1 + 1 / math.log2(3))}
    )
    assert scored.total == 0.5
    off_topic = metric.score_question(SubmissionRow("q", columns={"gold": "[]"}), SubmissionRow("q", ref_ids=("a",)))
    assert off_topic.unanswerable
    assert off_topic.total == 1
