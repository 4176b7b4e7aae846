"""Measures of a finished run that a sweep's table may show beside the score."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.evaluation.citations import gold_refs
from kohaku_ray.evaluation.metrics import QuestionScore
from kohaku_ray.evaluation.retrieval_metrics import K, stage_recall
from kohaku_ray.evaluation.submissions import Submission
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.run.tables import SHARED
from kohaku_ray.systems.base import Rows

RECALL = f"recall@{K} "
"""How a measure begins that is the recall of the gold references after a step of the trace; the step's name follows."""

TRACE_COLUMNS = ("question_id", "member", "step", "rank", "node_id", "doc_id", "note")
"""Columns of trace.parquet that the recall is read from."""


def question_measures(answers: pa.Table) -> dict[str, dict[str, float]]:
    """The system's own measures by question: means over its answers."""
    found: dict[str, dict[str, list[float]]] = {}
    measures = answers["measures"].to_pylist(maps_as_pydicts="strict")
    for question, row in zip(answers["question_id"].to_pylist(), measures, strict=True):
        for name, value in row.items():
            found.setdefault(question, {}).setdefault(name, []).append(value)
    return _means(found)


def derived_measures(
    trace: Rows, nodes: NodeTable, config: Config, names: Collection[str]
) -> dict[str, dict[str, float]]:
    """Measures that the system computes from an answer's trace, by question: means over its answers."""
    members: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in trace:
        members.setdefault(row["question_id"], {}).setdefault(row["member"], []).append(row)
    found: dict[str, dict[str, list[float]]] = {}
    for question, of in members.items():
        shared = of.pop(SHARED, [])
        for rows in [[*shared, *own] for own in of.values()] or [shared]:
            for name in names:
                value = config.declaration.derived[name](rows, nodes, config.settings)
                found.setdefault(question, {}).setdefault(name, []).append(value)
    return _means(found)


def _means(found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    return {question: {name: float(np.mean(one)) for name, one in of.items()} for question, of in found.items()}


def answer_measures(answers: pa.Table) -> dict[str, float]:
    """Means over answers: the system's own measures, ``attempts`` and ``blanks``."""
    rows = answers["measures"].to_pylist(maps_as_pydicts="strict")
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        **{name: float(np.mean([row.get(name, 0.0) for row in rows])) for name in names},
        "attempts": float(answers["attempt"].to_numpy().mean()) + 1,
        "blanks": float(answers["is_blank"].to_numpy(zero_copy_only=False).mean()),
    }


def spent_measures(tokens: float, service_s: float, n_answers: int) -> dict[str, float]:
    """Tokens and seconds in the models per answer."""
    return {"tokens": tokens / max(n_answers, 1), "seconds": service_s / max(n_answers, 1)}


def part_measures(scores: Sequence[QuestionScore], parts: Collection[str]) -> dict[str, float]:
    """Mean over questions of each part of the score, by the part's name."""
    return {name: float(np.mean([one.parts[name] for one in scores])) for name in parts if scores}


def recall_measures(trace: Sequence[Mapping[str, Any]], truth: Submission) -> dict[str, float]:
    """Mean recall of the gold references among the best items of each step, over the questions that have any.

    A question of which a step keeps nothing counts 0; a step that keeps nothing of any question, such as one that is
    switched off, has no recall.

    Args:
        trace: Rows of trace.parquet, with ``TRACE_COLUMNS``.
        truth: The questions with their gold answers.
    """
    gold = {key: refs for key, row in truth.rows.items() if (refs := gold_refs(row))}
    own: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in trace:
        if row["question_id"] in gold:
            own.setdefault((row["question_id"], row["member"]), []).append(row)
    found = [
        (stage_recall(rows, gold[question], K), {row["step"] for row in rows}) for (question, _), rows in own.items()
    ]
    steps = dict.fromkeys(step for recalls, _ in found for step in recalls)
    return {
        f"{RECALL}{step}": float(np.mean([recalls.get(step, 0.0) for recalls, there in found if step in there]))
        for step in steps
    }
