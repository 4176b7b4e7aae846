"""A sweep's scores on groups of the questions are those that ``score --by`` gives its submissions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.evaluation.wattbot import KAGGLE, WATTBOT
from kohaku_ray.sweep.compare import Axis, SweepCell, SweepTable, group_scores

VALUES = {"q1": ("1", "public"), "q2": ("2", "private"), "q3": ("is_blank", "public"), "q4": ("4", "private")}
TRUTH = Submission(
    "gold.csv",
    ("id", "answer_value", "ref_id", "split"),
    {
        key: SubmissionRow(key, answer_value=value, ref_ids=("d",), columns={"split": split})
        for key, (value, split) in VALUES.items()
    },
)


def given(**values: str) -> Submission:
    rows = {key: SubmissionRow(key, answer_value=values.get(key, "9"), ref_ids=("d",)) for key in VALUES}
    return Submission("given.csv", ("id", "answer_value", "ref_id"), rows)


def cell(name: str, *submissions: Submission, metric=WATTBOT) -> SweepCell:
    scores = [metric.score(TRUTH, submission) for submission in submissions]
    parts = {part: np.array([[row.parts[part] for row in rows] for rows in scores]) for part in metric.parts}
    blank = [metric.unanswerable(row) for row in TRUTH.rows.values()]
    return SweepCell(
        name,
        {"kohaku.top_k": name},
        "finished",
        seeds=tuple(range(len(submissions))),
        question_ids=tuple(VALUES),
        parts=parts,
        total=metric.shares(parts, blank),
    )


def table(*cells: SweepCell) -> SweepTable:
    return SweepTable("t", "T", (Axis("kohaku.top_k", tuple(cell.labels["kohaku.top_k"] for cell in cells)),), cells)


def by_hand(submission: Submission, metric) -> dict[str, float]:
    labels = [split for _, split in VALUES.values()]
    return {key: item.score for key, item in metric.aggregate_by(metric.score(TRUTH, submission), labels).items()}


@pytest.mark.parametrize("metric", [WATTBOT, KAGGLE], ids=lambda metric: metric.name)
def test_scores_by_group_are_means_over_seeds_of_what_the_submissions_score(metric):
    first, second, third = given(q1="1", q2="2"), given(q1="1", q3="is_blank"), given(q4="4", q2="2")
    cells = cell("4", first, second, metric=metric), cell("8", third, metric=metric)
    groups, notes = group_scores("split", [table(*cells)], [TRUTH], metric)
    assert notes == ()
    assert groups.names == ("top_k 4", "top_k 8")
    for label in ("public", "private"):
        mean = (by_hand(first, metric)[label] + by_hand(second, metric)[label]) / 2
        scores = [score.score for score in groups.split.scores[label]]
        assert scores == pytest.approx([mean, by_hand(third, metric)[label]])
    assert groups.split.ranks["public"] == (1, 2)
    assert groups.split.ranks["private"] == (2, 1)
    assert groups.split.scores["public"][0].n == 2


def test_public_comes_before_private_whatever_the_order_of_the_rows():
    turned = replace(TRUTH, rows=dict(reversed(TRUTH.rows.items())))
    first, second = cell("4", given(q1="1")), cell("8", given(q4="4"))
    reordered, same = (group_scores("split", [table(first, second)], [t], WATTBOT)[0].split for t in (turned, TRUTH))
    assert reordered.labels == ("public", "private")
    assert reordered.differences == same.differences
    turned_cells = [
        replace(item, question_ids=item.question_ids[::-1], parts={k: v[:, ::-1] for k, v in item.parts.items()})
        for item in (first, second)
    ]
    assert group_scores("split", [table(*turned_cells)], [turned], WATTBOT)[0].split.differences == same.differences


def test_one_setting_of_two_tables_counts_once_and_other_questions_are_left_out():
    same, other = cell("4", given(q1="1")), cell("8", given(q1="1"))
    fewer = replace(other, question_ids=tuple(VALUES)[:3], parts={k: v[:, :3] for k, v in other.parts.items()})
    groups, [note] = group_scores("split", [table(same, fewer), table(same)], [TRUTH], WATTBOT)
    assert groups.names == ("top_k 4",)
    assert note.startswith("By split: 1 setting left out, scored on other questions")


def test_without_the_column_the_reader_is_told_what_there_is():
    groups, [note] = group_scores("usage", [table(cell("4", given(q1="1")))], [TRUTH], WATTBOT)
    assert groups is None
    assert "not shown by usage" in note
    assert "id, answer_value, ref_id, split" in note
