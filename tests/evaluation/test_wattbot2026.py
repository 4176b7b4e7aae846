"""WattBot 2026's metric: the official rules on strings as written, with the files that the official scorer refuses."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from kit.rows import check_rows

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.submissions import SubmissionRow, read_submission
from kohaku_ray.evaluation.wattbot2026 import WATTBOT2026, wattbot2026_value
from kohaku_ray.records import UNANSWERABLE


@check_rows(
    ("truth", "unit", "right", "wrong"),
    [
        ("[10,20]", "x", ["12", "[10, 20]", "(20,10)", "20.0009"], ["[12,18]", "10-20", "~12", "12 x", "20.01"]),
        ("[121.7,116.9]", "x", ["119", "[116.9,121.7]"], ["122"]),
        ("[10,20,30]", "", ["[30, 20, 10]"], ["{10, 20, 30}", "15"]),
        ("(30,50)", "percent", ["(50, 30)", "[30,50]", "(50.02,30)"], ["40", "30", "30% to 50%", "(30,50,60)"]),
        ("(GPT-4,Claude-3.5)", "", ["(Claude-3.5, gpt-4)", "[GPT-4, Claude-3.5]"], ["GPT-4 and Claude-3.5", "GPT-4"]),
        ("prefill and decode", "", ["Prefill and decode."], ["(prefill, decode)"]),
        ("(6.7,12.0)", "", ["(12, 6.7)"], ["6.7 and 12.0"]),
        ("1", "", ["1.0", "1e0"], ["TRUE", "yes", "is_blank"]),
        ("1287", "MWh", ["1287", "1287 MWh", "MWh 1287"], ["1,287", "1287 kWh"]),
        ("4.3", "percent", ["~4.3"], ["4.3 percent"]),  # punctuation goes before the unit: 4 3
        ("0.0003", "kWh", ["0.0012"], ["0.0014"]),
        ("1000", "kWh", ["1001"], ["1001.1"]),
        ("2", "scope", ["Scope 2"], ["two"]),
        ("Backblaze (B2)", "", ["Backblaze B2", "the Backblaze B2"], ["Backblaze"]),
        ("Jevons' Paradox", "", ["jevons paradox"], ["jevon paradox"]),
        (
            "is_blank",
            "PUE",
            ["is_blank", "", "N/A", "na", UNANSWERABLE, f"{UNANSWERABLE} Sorry."],
            ["none", "nan", "1.5"],
        ),
        ("none", "", ["None"], ["is_blank", ""]),
        ("NaN", "", [], ["1e309"]),
    ],
)
def test_values(truth, unit, right, wrong):
    assert [wattbot2026_value(truth, value, unit) for value in right] == [1.0] * len(right)
    assert [wattbot2026_value(truth, value, unit) for value in wrong] == [0.0] * len(wrong)


@pytest.mark.data
def test_values_of_the_official_pairs(data_path):
    with (data_path / "wattbot2026" / "official_pairs.csv").open(newline="", encoding="utf-8") as handle:
        pairs = list(csv.DictReader(handle))
    scores = [wattbot2026_value(pair["gold_value"], pair["answer_value"], pair["gold_unit"]) for pair in pairs]
    assert len(pairs) == 47
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score != float(pair["value"])] == []


@pytest.mark.data
def test_values_of_recorded_runs(data_path):
    truth = read_submission(data_path / "wattbot" / "train_QA.csv")
    runs = [read_submission(path) for path in sorted((data_path / "wattbot" / "predictions").glob("*.csv"))]
    means = [WATTBOT2026.aggregate(WATTBOT2026.score(truth, run)).parts["value"] for run in runs]
    assert np.mean(means) == pytest.approx(0.572, abs=5e-4)


@check_rows(
    ("value", "name"),
    [
        *(("119", None), ("123", "rounding"), ("[110,130]", "rounding"), ("1190", "unit conversion")),
        *(("119 kWh", "unit conversion"), ("500", "value selection"), ("many", "type mismatch")),
        *(("is_blank", "false negative"), ("119 kg", "type mismatch")),
    ],
)
def test_classes_of_wrong_values_beside_a_band(value, name):
    truth = SubmissionRow("q", answer_value="[116.9,121.7]", answer_unit="MWh", refs_raw="['a']")
    assert WATTBOT2026.classify(truth, SubmissionRow("q", answer_value=value, refs_raw="['a']")) == name


@check_rows(
    ("value", "refs", "parts"),
    [
        ("is_blank", "is_blank", (1.0, 1.0, 1.0)),
        ("is_blank", "['is_blank']", (1.0, 1.0, 0.0)),
        ("is_blank", "", (1.0, 0.0, 1.0)),
        ("is_blank", "['a']", (1.0, 0.0, 0.0)),
        ("5", "is_blank", (0.0, 1.0, 0.0)),
        ("none", "is_blank", (0.0, 1.0, 0.0)),
    ],
)
def test_an_abstention_is_blank_in_value_and_references(value, refs, parts):
    truth = SubmissionRow("q", answer_value="is_blank", refs_raw="is_blank")
    score = WATTBOT2026.score_question(truth, SubmissionRow("q", answer_value=value, refs_raw=refs))
    assert tuple(score.parts.values()) == parts
    assert score.total == pytest.approx(0.75 * parts[0] + 0.20 * parts[1] + 0.05 * parts[2])


@check_rows(
    ("refs", "f1"),
    [
        ("['A', 'c', 'is_blank', 'd']", 2 * 1 / 6),
        ('["b", "a"]', 1.0),
        ("a, b", 0.0),
        ("a", 2 / 3),
        ("[a, b]", 0.0),
        ("('a', 'b')", 0.0),
    ],
)
def test_references_are_scored_by_f1_and_a_list_is_json(refs, f1):
    truth = SubmissionRow("q", answer_value="5", refs_raw="['a', 'B']")
    given = SubmissionRow("q", answer_value="5", refs_raw=refs)
    assert WATTBOT2026.score_question(truth, given).parts["ref"] == pytest.approx(f1)


def test_marks_of_votes_are_the_scores_of_the_rows_they_write():
    rows = {
        "q1": SubmissionRow("q1", answer_value="[10,50]", refs_raw="['a']", answer_unit="W"),
        "q2": SubmissionRow("q2", answer_value="is_blank", refs_raw="is_blank"),
    }
    marks = WATTBOT2026.marks(type("Truth", (), {"rows": rows}))
    for position, truth in enumerate(rows.values()):
        for value, cited in (("30", "ab"), ("", ""), ("60", "a"), ("60", ["o'b", "a"])):
            refs = json.dumps([*cited]) if cited else "is_blank"
            given = SubmissionRow("q", answer_value=value or "is_blank", refs_raw=refs)
            parts = WATTBOT2026.score_question(truth, given).parts
            assert marks.by_value["value"](position, value) == parts["value"]
            assert marks.by_refs["ref"](position, frozenset(cited)) == parts["ref"]
            assert marks.by_blank["abstain"](position, not value) == parts["abstain"]


HEAD = "id,answer_value,ref_id,explanation\n"


def score(tmp_path, truth: str, given: str, **options):
    (tmp_path / "truth.csv").write_text(truth)
    (tmp_path / "given.csv").write_text(given)
    return run_score(tmp_path / "truth.csv", [tmp_path / "given.csv"], ["wattbot2026"], **options)


def test_odd_gold_is_named(tmp_path):
    gold = 'id,answer_value,ref_id\nq1,"[121.7,116.9]",a\nq2,(GPT-4),a\nq3,"(1,2)",a\n'
    report = score(tmp_path, gold, f'{HEAD}q1,119,a,x\nq2,GPT-4,a,x\nq3,"(2,1)",a,x\n')
    assert report.records[0]["value"] == pytest.approx(2 / 3)
    assert list(report.truth.odd) == [
        "q1: the band [121.7,116.9] has its low end 121.7 above its high end 116.9: "
        "it is read as [116.9,121.7]; swap them",
        "q2: the list (GPT-4) has one element, and only an answer in brackets is right: leave the brackets out",
    ]


def test_missing_rows_leave_the_mean_and_are_said(tmp_path):
    gold = "id,answer_value,ref_id,doc\nq1,5,a,d\nq2,6,a,d\nq3,7,a,e\n"
    report = score(tmp_path, gold, f"{HEAD}q1,5,a,x\nq2,5,a,x\n", cluster="doc")
    assert (report.records[0]["value"], report.records[0]["n"], report.records[0]["missing"]) == (0.5, 2, 1)
    assert report.files[0].odd == ("1 missing leave the mean of wattbot2026, as the official scorer has it",)
    with pytest.raises(DataError, match="none of the 3 ids"):
        score(tmp_path, gold, f"{HEAD}x,5,a,x\n")


def test_an_empty_explanation_is_an_error(tmp_path):
    gold = "id,answer_value,ref_id\nq1,5,a\nq2,6,a\n"
    with pytest.raises(
        DataError, match=r"given\.csv: wattbot2026 wants explanation in every row, and 1 row has none: q2"
    ):
        score(tmp_path, gold, f"{HEAD}q1,5,a,x\nq2,6,a, \n")
    report = score(tmp_path, gold, "id,answer_value,ref_id\nq1,5,a\nq2,6,a\n")
    assert "no column explanation" in report.files[0].odd[0]


def test_values_are_counted_by_what_a_question_asks_for(tmp_path):
    gold = "id,answer_value,ref_id,Quote,Table,is_NA\nq1,5,a,1,0,0\nq2,6,a,True,1,0\nq3,is_blank,is_blank,0,0,1\n"
    report = score(tmp_path, gold, f"{HEAD}q1,5,a,x\nq2,5,\"['a','b']\",x\nq3,7,a,x\n")
    figures = report.files[0].figures["wattbot2026"]
    assert figures.tables[0].rows == (
        ("Quote", 2, 1, 50.0, pytest.approx((1 + 0.2 * 2 / 3 + 0.05) / 2)),
        ("Table", 1, 1, 100.0, pytest.approx(0.2 * 2 / 3 + 0.05)),
        ("is_NA", 1, 1, 100.0, 0.0),
        ("all", 3, 2, pytest.approx(200 / 3), pytest.approx(report.records[0]["score"])),
    )
    assert {number.name: number.value for number in figures.numbers} == {
        "citation precision": pytest.approx(0.5),
        "citation recall": pytest.approx(2 / 3),
        "false answers": 1.0,
    }


def test_a_metric_without_its_columns_says_which(tmp_path):
    with pytest.raises(DataError, match=r"truth\.csv.*ref_id"):
        score(tmp_path, "id,answer_value\nq1,5\n", f"{HEAD}q1,5,a,x\n")
    with pytest.raises(DataError, match=r"given\.csv.*ref_id"):
        score(tmp_path, "id,answer_value,ref_id\nq1,5,a\n", "id,answer_value\nq1,5\n")


@pytest.mark.data
@pytest.mark.parametrize("name", ["values.csv", "questions.csv"])
def test_gold_answers_of_wattbot_2026_score_one_against_themselves(data_path, name):
    truth = read_submission(data_path / "wattbot2026" / name)
    rows = WATTBOT2026.score(truth, truth)
    assert np.mean([row.total for row in rows]) == pytest.approx(1.0)
