"""Metrics of cited references: ``citations``, a set, and ``retrieval``, a ranking (recall@k, reciprocal rank, nDCG).

``retrieval`` scores a submission whose ref_id is a ranking, best first.
``stage_recall`` scores the steps of a trace.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, mend_refs, read_refs
from kohaku_ray.values.spelling import ref_key

GOLD_COLUMNS = ("gold", "gold_ref_id")
"""Columns of a truth file that hold the gold references; without them, ref_id is read."""


def gold_refs(truth: SubmissionRow) -> frozenset[str]:
    """The references that a question's answer should cite, lower-cased; none where it has no answer."""
    column = next((name for name in GOLD_COLUMNS if name in truth.columns), None)
    refs = truth.ref_ids if column is None else mend_refs(read_refs(truth.columns[column]))
    return frozenset(map(ref_key, refs))


def cited_refs(given: SubmissionRow) -> dict[str, None]:
    """The references that a prediction cites, lower-cased, in the order cited."""
    return dict.fromkeys(map(ref_key, given.ref_ids))


def citation_scores(cited: frozenset[str], gold: frozenset[str]) -> dict[str, float]:
    """F1, precision and recall of one question's citations; all 1 where both are empty, all 0 where one of them is."""
    if not cited or not gold:
        return dict.fromkeys(("f1", "precision", "recall"), float(cited == gold))
    hits = len(cited & gold)
    return {"f1": 2 * hits / (len(cited) + len(gold)), "precision": hits / len(cited), "recall": hits / len(gold)}


def _mark_citations(truth: Submission) -> OutcomeMarks:
    gold = [gold_refs(row) for row in truth.rows.values()]

    def part(name: str, number: int, refs: frozenset[str]) -> float:
        return citation_scores(refs, gold[number])[name]

    return OutcomeMarks(by_refs={name: partial(part, name) for name in CITATIONS.parts})


CITATIONS = Metric(
    name="citations",
    title="F1 of the references cited against the gold ones",
    parts={"f1": Part(1.0, "citation F1"), "precision": Part(0.0), "recall": Part(0.0)},
    rate=lambda truth, given: citation_scores(frozenset(cited_refs(given)), gold_refs(truth)),
    unanswerable=lambda truth: not gold_refs(truth),
    marks=_mark_citations,
)


K = 10
"""Ranks that the metric uses."""


def recall_at_k(ranked: Sequence[Hashable], gold: Collection[Hashable], k: int | None = None) -> float:
    """Share of the gold items among the first ``k`` of the ranked ones (None: all); 1 without gold items."""
    wanted = set(gold)
    return len(wanted.intersection(ranked[:k])) / len(wanted) if wanted else 1.0


def reciprocal_rank(ranked: Sequence[Hashable], gold: Collection[Hashable]) -> float:
    """1 / rank of the first gold item, ranks from 1; 0 where none is found (its mean over questions is the MRR)."""
    wanted = set(gold)
    return next((1 / rank for rank, item in enumerate(ranked, 1) if item in wanted), 0.0)


def ndcg_at_k(ranked: Sequence[Hashable], gold: Collection[Hashable], k: int) -> float:
    """Normalised discounted cumulative gain of binary relevance at ``k`` (Järvelin & Kekäläinen, TOIS 2002).

    A repeated item gains nothing; the result is 1 without gold items.
    """
    wanted = set(gold)
    if not wanted:
        return 1.0
    gains, seen = 0.0, set()
    for rank, item in enumerate(ranked[:k], 1):
        if item in wanted and item not in seen:
            gains += 1 / math.log2(rank + 1)
            seen.add(item)
    return gains / sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(wanted)) + 1))


def stage_recall(trace: Iterable[Mapping[str, Any]], gold: Collection[str], k: int | None = None) -> dict[str, float]:
    """Compute the recall of the gold items after each step of one question's trace, of the ``k`` best items.

    An item of the trace, rows of trace.parquet, is gold when its node, its document, its note or what the note has
    before a semicolon is, in any case. Steps without items, such as queries, are left out.
    """
    steps: dict[str, list[tuple[int, set[str]]]] = {}
    for row in trace:
        items = steps.setdefault(row["step"], [])
        if row["node_id"] is not None:
            names = (row["node_id"], row["doc_id"], row["note"], (row["note"] or "").partition("; ")[0])
            items.append((row["rank"], {ref_key(name) for name in names if name}))
    wanted, recalls = set(map(ref_key, gold)), {}
    for step, items in steps.items():
        if items:
            best = [names for _, names in sorted(items, key=lambda item: item[0])][:k]
            recalls[step] = recall_at_k(sorted(set().union(*best) & wanted), wanted)
    return recalls


def _rate_ranking(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    ranked, gold = list(cited_refs(given)), gold_refs(truth)
    if not gold:
        return dict.fromkeys(RETRIEVAL.parts, 1.0)
    return {
        "recall": recall_at_k(ranked, gold, K),
        "mrr": reciprocal_rank(ranked[:K], gold),
        "ndcg": ndcg_at_k(ranked, gold, K),
    }


RETRIEVAL = Metric(
    name="retrieval",
    title=f"Recall of the gold references among the first {K}; questions without any are 1",
    parts={"recall": Part(1.0, f"recall@{K}"), "mrr": Part(0.0, "reciprocal rank"), "ndcg": Part(0.0, f"nDCG@{K}")},
    rate=_rate_ranking,
    unanswerable=lambda truth: not gold_refs(truth),
)
