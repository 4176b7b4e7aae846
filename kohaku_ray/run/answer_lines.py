"""answers.jsonl: one line per question, for programs that read no Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kohaku_ray.ensemble.vote import Verdict
from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.values.read import is_abstention

Line = dict[str, Any]
QuestionScores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By question and metric: ``score``, and every part of the metric."""

COLUMNS: Mapping[str, str] = {
    "id": "the question's id",
    "question": "its text",
    "answer": "the answer as text",
    "answer_value": "the bare value; null: the ensemble abstains",
    "unit": "the value's unit, or null",
    "refs": "ids of the cited documents",
    "urls": "their addresses, where known",
    "votes": "{members, blank, groups: [{value, weight}]}: what the members answered; value null: no answer",
    "score": "{metric: {score, …}}; missing where there is no gold answer",
}
"""Keys of a line, in their order."""


def answer_line(
    row: SubmissionRow, votes: Mapping[str, Any], score: Mapping[str, Mapping[str, float]] | None = None
) -> Line:
    """Build one line; see ``COLUMNS``."""
    blank = is_abstention(row.answer_value)
    values = (
        row.question_id,
        row.question,
        row.answer or row.answer_value,
        None if blank else row.answer_value,
        None if is_abstention(row.answer_unit) else row.answer_unit,
        () if blank else row.ref_ids,
        () if blank else row.ref_urls,
        votes,
    )
    line = dict(zip(COLUMNS, values, strict=False))
    return line if score is None else {**line, "score": score}


def counted(groups: Iterable[tuple[str | None, float]], n_members: int, n_blank: int) -> dict[str, Any]:
    """Build a line's ``votes``: groups of equal values with their weights; None: the blanks."""
    return {
        "members": n_members,
        "blank": n_blank,
        "groups": [{"value": value, "weight": weight} for value, weight in groups],
    }


def counted_verdict(verdict: Verdict) -> dict[str, Any]:
    """Build ``votes`` of a vote over files."""
    groups = [(None if group.is_blank else group.answer_value, group.weight) for group in verdict.groups]
    n_blank = sum(len(group.members) for group in verdict.groups if group.is_blank)
    return counted(groups, sum(len(group.members) for group in verdict.groups), n_blank)


def question_scores(truth: Submission, metrics: Sequence[Metric], given: Submission) -> QuestionScores:
    """Score each answered question that has a gold answer."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for key, row in truth.rows.items():
        for metric in metrics if key in given.rows else ():
            if metric.gold(row) or not metric.needs_gold:
                scored = metric.score_question(row, given.rows[key])
                scores.setdefault(key, {})[metric.name] = {"score": scored.total, **scored.parts}
    return scores


def as_lines(lines: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Write lines as JSON lines, one by one."""
    for line in lines:
        text = json.dumps(line, ensure_ascii=False) + "\n"
        yield text.encode("utf-8", "replace").decode()  # a model's reply may hold a lone surrogate
