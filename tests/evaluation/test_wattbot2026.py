"""WattBot 2026's metric: bands, values without order, F1 of references, abstention in four cells; odd gold is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from kit.rows import check_rows

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.submissions import SubmissionRow, read_submission
from kohaku_ray.evaluation.wattbot2026 import WATTBOT2026, wattbot2026_value
from kohaku_ray.records import UNANSWERABLE

DATA = Path(os.environ.get("KOHAKU_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


@check_rows(
    ("truth", "unit", "right", "wrong"),
    [
        (
            "[116.9,121.7]",
            "household-years",
            ["119", "~119", "119 household-years", "116.9", "121.8", "[117,120]", "117-120", "(117, 120)"],
            ["116.7", "122", "[110,120]", "[110,130]", "[119,125]", "many", "", "119 kg", "is_blank"],
        ),
        ("[10,50]", "responses", ["30", "10 to 50 responses", "[10,50]", "ten"], ["9", "51", "5-60"]),
        ("[0.06,0.3]", "pauses per hour", ["0.1", "0.3", "[0.06, 0.3]"], ["0.05", "1"]),
        ("[5400000,5439000]", "liters", ["5.4 million liters", "5.439 million", "5400000"], ["5.4", "5.5 million"]),
        ("[-5,-3]", "", ["-4", "-5", "-3"], ["4", "-2"]),
        ("(30,50)", "percent", ["(50, 30)", "[30,50]", "30% to 50%"], ["40", "30", "(30,50,60)", "(30,51)"]),
        ("(15,14.6)", "GW", ["(14.6, 15)", "(15 GW, 14.6 GW)", "(15, 14,600 MW)"], ["15", "(15,14)"]),
        ("(GPT-4,Claude-3.5)", "", ["(Claude-3.5, GPT-4)", "['gpt-4', 'Claude 3.5']"], ["GPT-4", "(GPT-4, Claude-3)"]),
        ("1", "", ["TRUE", "true", "1", "Yes", "1.0"], ["FALSE", "0", "no", "is_blank"]),
        ("0", "", ["FALSE", "false", "0"], ["TRUE", "1"]),
        ("40", "multiplier", ["Over 40 times", "40x", "40"], ["41", "4"]),
        ("5600000000", "USD", ["$5.6 billion", "5.6B"], ["5.6", "€5.6 billion"]),
        ("3", "million gallons per day", ["3 million gallons per day", "3"], ["3000000"]),
        ("53", "percent", ["53%", "53.05"], ["0.53", "53.1"]),
        ("net zero", "", ["Net-zero", "net zero."], ["zero"]),
        (
            "is_blank",
            "PUE",
            ["is_blank", "", "N/A", UNANSWERABLE],
            ["1.5"],
        ),
        ("[a, b]", "", ["(b, a)"], ["a"]),
    ],
)
def test_values(truth, unit, right, wrong):
    assert [wattbot2026_value(truth, value, unit) for value in right] == [1.0] * len(right)
    assert [wattbot2026_value(truth, value, unit) for value in wrong] == [0.0] * len(wrong)


@check_rows(
    ("value", "name"),
    [
        *(("119", None), ("123 MWh", "rounding"), ("[110,130]", "rounding"), ("1190", "unit conversion")),
        *(("119 kWh", "unit conversion"), ("500", "value selection"), ("many", "type mismatch")),
        *(("is_blank", "false negative"), ("119 kg", "type mismatch")),
    ],
)
def test_classes_of_wrong_values_beside_a_band(value, name):
    truth = SubmissionRow("q", answer_value="[116.9,121.7]", answer_unit="MWh", refs_raw="['a']")
    assert WATTBOT2026.classify(truth, SubmissionRow("q", answer_value=value, refs_raw="['a']")) == name


BLANK = {"ref_url": "is_blank", "supporting_materials": "is_blank"}


@check_rows(
    ("value", "refs", "columns", "parts"),
    [
        ("is_blank", "is_blank", BLANK, (1.0, 1.0, 1.0)),
        ("is_blank", "is_blank", {}, (1.0, 1.0, 1.0)),
        ("is_blank", "is_blank", BLANK | {"ref_url": "['https://example.org']"}, (1.0, 1.0, 0.0)),
        ("is_blank", "is_blank", BLANK | {"supporting_materials": "a title"}, (1.0, 1.0, 0.0)),
        ("is_blank", "['a']", BLANK, (1.0, 0.0, 0.0)),
        ("5", "is_blank", BLANK, (0.0, 1.0, 0.0)),
    ],
)
def test_an_abstention_is_blank_in_four_cells(value, refs, columns, parts):
    truth = SubmissionRow("q", answer_value="is_blank", refs_raw="is_blank")
    score = WATTBOT2026.score_question(truth, SubmissionRow("q", answer_value=value, refs_raw=refs, columns=columns))
    assert tuple(score.parts.values()) == parts
    assert score.total == pytest.approx(0.75 * parts[0] + 0.20 * parts[1] + 0.05 * parts[2])


def test_references_are_scored_by_f1():
    truth = SubmissionRow("q", answer_value="5", refs_raw="['a', 'B']")
    given = SubmissionRow("q", answer_value="5", refs_raw="['A', 'c', 'is_blank', 'd']")
    assert WATTBOT2026.score_question(truth, given).parts["ref"] == pytest.approx(2 * 1 / 5)


def test_marks_of_votes_are_the_scores_of_the_rows_they_write():
    rows = {
        "q1": SubmissionRow("q1", answer_value="[10,50]", refs_raw="['a']", answer_unit="W"),
        "q2": SubmissionRow("q2", answer_value="is_blank", refs_raw="is_blank"),
    }
    marks = WATTBOT2026.marks(type("Truth", (), {"rows": rows}))
    for position, truth in enumerate(rows.values()):
        for value, refs in (("0.03 kW", "['a', 'b']"), ("", "is_blank"), ("60", "['a']")):
            given = SubmissionRow("q", answer_value=value or "is_blank", refs_raw=refs)
            cited = frozenset() if refs == "is_blank" else frozenset(refs.strip("[]").replace("'", "").split(", "))
            parts = WATTBOT2026.score_question(truth, given).parts
            assert marks.by_value["value"](position, value) == parts["value"]
            assert marks.by_refs["ref"](position, cited) == parts["ref"]
            assert marks.by_blank["abstain"](position, not value) == parts["abstain"]


def score(tmp_path, truth: str, given: str):
    (tmp_path / "truth.csv").write_text(truth)
    (tmp_path / "given.csv").write_text(given)
    return run_score(tmp_path / "truth.csv", [tmp_path / "given.csv"], ["wattbot2026"])


def test_odd_gold_is_named_and_read(tmp_path):
    gold = 'id,answer_value,ref_id\nq1,"[121.7,116.9]",a\nq2,(GPT-4),a\nq3,"(\'idle\',)",a\nq4,"(1,2)",a\n'
    report = score(tmp_path, gold, 'id,answer_value,ref_id\nq1,119,a\nq2,GPT-4,a\nq3,idle,a\nq4,"(2,1)",a\n')
    assert report.records[0]["value"] == 1.0
    assert list(report.truth.odd) == [
        "q1: the band [121.7,116.9] has its low end 121.7 above its high end 116.9: "
        "it is read as [116.9,121.7]; swap them",
        "q2: the list (GPT-4) has one element: it is read as GPT-4; add the others, or leave the brackets out",
        "q3: the list ('idle',) has one element: it is read as idle; add the others, or leave the brackets out",
    ]
    assert report.files[0].odd == (
        "has no column ref_url and supporting_materials: wattbot2026 scores its abstentions without",
    )


def test_a_metric_without_its_columns_says_which(tmp_path):
    with pytest.raises(DataError, match=r"truth\.csv.*ref_id"):
        score(tmp_path, "id,answer_value\nq1,5\n", "id,answer_value,ref_id\nq1,5,a\n")
    with pytest.raises(DataError, match=r"given\.csv.*ref_id"):
        score(tmp_path, "id,answer_value,ref_id\nq1,5,a\n", "id,answer_value\nq1,5\n")


@pytest.mark.parametrize("name", ["values.csv", "questions.csv"])
def test_gold_answers_of_wattbot_2026_score_one_against_themselves(name):
    path = DATA / "wattbot2026" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    truth = read_submission(path)
    rows = WATTBOT2026.score(truth, truth)
    assert np.mean([row.total for row in rows]) == pytest.approx(1.0)
    answers = {
        key: SubmissionRow(key, answer_value=row.answer, refs_raw=row.refs_raw) for key, row in truth.rows.items()
    }
    by_sentence = [WATTBOT2026.score_question(truth.rows[key], row).parts["value"] for key, row in answers.items()]
    assert np.mean(by_sentence) > 0.7  # the sentence instead of the value, in its many spellings
