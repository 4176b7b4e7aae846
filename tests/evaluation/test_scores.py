from __future__ import annotations

import csv

import pytest
from kit.rows import check_rows

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, read_submission
from kohaku_ray.evaluation.wattbot import kaggle_value, wattbot_value

WATTBOTS = ("wattbot", "kaggle")
ABSTAINED = "Unable to answer with confidence based on the provided documents."


def score_question(truth, given_row, metric):
    return find_metric(metric).score_question(truth, given_row)


def score_rows(truth, given_rows, metric="wattbot"):
    return find_metric(metric).score(truth, given_rows)


def aggregate(rows, metric):
    return find_metric(metric).aggregate(rows)


def row(question_id: str, value: str, refs: str = "is_blank") -> SubmissionRow:
    return SubmissionRow(question_id, answer_value=value, refs_raw=refs)


def submission(*rows: SubmissionRow, path: str = "p.csv") -> Submission:
    return Submission(path, ("id", "answer_value", "ref_id"), {item.question_id: item for item in rows})


def check(score, truth, right, wrong):
    assert [value for value in right if score(truth, value) != 1] == []
    assert [value for value in wrong if score(truth, value) != 0] == []


@check_rows(
    ("truth", "right", "wrong"),
    [
        ("is_blank", ["is_blank", "", " IS_BLANK"], ["5", ABSTAINED, "None", "NA", "nan"]),
        ("none", ["None"], ["is_blank", ""]),
        ("5", ["5.0"], ["is_blank"]),
        ("1000", ["1001"], ["1001.1", "998.9"]),
        ("0", ["1e-9"], ["0.001"]),
        ("13.2", ["13.20"], []),
        ("5439000", ["5.439e6"], []),
        ("[80,90]", ["[80, 90.05]"], ["[80, 91]", "[79, 90]", "[90,80]", "80", "80-90"]),
        ("80", [], ["[80,90]"]),
        ("1", [], ["True"]),
        ("GPT-3", ["gpt-3"], ["3"]),
        ("3", [], ["GPT-3"]),
        ("Water consumption", [" water  CONSUMPTION"], []),
        ("ML.ENERGY Benchmark", [], ["The ML.ENERGY Benchmark"]),
        ("103500", [], ["103,500"]),
    ],
)
def test_wattbot_values(truth, right, wrong):
    check(wattbot_value, truth, right, wrong)


HEDGES = "more than,Less than,approximately,about,around,over,under,nearly,roughly,up to,at least,at most,~,>"


@check_rows("hedge", HEDGES.split(","))
def test_kaggle_reads_a_hedged_number(hedge):
    assert kaggle_value("1000", f"{hedge} 1,000") == 1


@check_rows(
    ("truth", "right", "wrong"),
    [
        ("is_blank", ["5"], []),
        ("n/a", ["5"], []),
        ("none", ["None"], ["5", "NA"]),
        ("[a, b]", ["[a, b]", "[B, a]"], ["a, b", "(a, b)", "a,b"]),
        ("a, b", ["A, b"], ["[a, b]"]),
        (ABSTAINED, ["5"], []),
        ("5", [], ["is_blank", ABSTAINED]),
        ("1", ["TRUE", "yes"], ["FALSE"]),
        ("2510000", ["2.51M"], []),
        ("2500", ["2.5 k"], []),
        ("2e9", ["2B"], ["2T"]),
        ("1000", ["1001"], ["1002"]),
        ("0.0005", ["0.0012"], []),
        ("[80,90]", ["80-90", "90–80", "[90, 80]", "85", "90.0009", "approximately 80 to 90", "from 80 to 90"], []),
        ("[80,90]", [], ["90.002", "79", "eighty", "80-90%"]),
        ("[80,90,95]", [], ["85"]),
        ("[a, B]", ["['b', 'a']"], []),
        ("{a, B}", ["{b, a, a}"], ["a"]),
        ("[a, b]", [], ["[a]"]),
        ("[1, 2]", [], ["[1, two]"]),
        ("GPT-3", ["gpt-3 "], ["GPT-4"]),
        ("overall 5", ["Overall 5"], ["5"]),
        ("[300,1000]", [], ["300 Watts to 1 Kilowatt"]),
    ],
)
def test_kaggle_values(truth, right, wrong):
    check(kaggle_value, truth, right, wrong)


def test_is_blank_in_a_list_is_a_reference_and_as_a_cell_none_in_wattbot_alone():
    truth, given_row = row("q", "5", "['a']"), row("q", "5", '["A", "is_blank"]')
    assert score_question(truth, given_row, "wattbot").parts["ref"] == 0.5
    assert score_question(truth, given_row, "kaggle").parts["ref"] == 0.5
    blank, empty, listed = (row("q", "is_blank", refs) for refs in ("is_blank", "[]", '["is_blank"]'))
    assert score_question(blank, empty, "wattbot").parts == {"value": 1.0, "ref": 1.0, "abstain": 0.0}
    assert score_question(blank, listed, "wattbot").parts == {"value": 1.0, "ref": 0.0, "abstain": 0.0}
    assert score_question(blank, empty, "kaggle").parts["ref"] == 0.0
    assert score_question(blank, listed, "kaggle").parts["ref"] == 1.0


@check_rows(
    ("refs", "wattbot", "kaggle"),
    [
        ("a, B", 1.0, 0.0),  # text between commas; one reference
        ("[a, b]", 1.0, 0.0),
        ("('a', 'b')", 1.0, 0.0),
        ("['a', 'b']", 1.0, 1.0),
        ("[\"o'b\", 'a']", 1 / 3, 0.0),
    ],
)
def test_unquoted_references(refs, wattbot, kaggle):
    truth = row("q", "5", "['a', 'b']")
    parts = [score_question(truth, row("q", "5", refs), metric).parts["ref"] for metric in WATTBOTS]
    assert parts == pytest.approx([wattbot, kaggle])


def test_abstention_asks_for_blank_references_in_wattbot_alone():
    truth, cited = row("q", "is_blank"), row("q", "is_blank", '["a"]')
    assert score_question(truth, cited, "wattbot").parts["abstain"] == 0.0
    assert score_question(truth, cited, "kaggle").parts["abstain"] == 1.0
    assert score_question(truth, row("q", ABSTAINED), "wattbot").parts["abstain"] == 0.0
    assert score_question(truth, row("q", ABSTAINED), "kaggle").parts["abstain"] == 1.0


@pytest.mark.parametrize("metric", WATTBOTS)
def test_a_missing_row_scores_nothing_and_is_counted(metric):
    truth = submission(row("q1", "5", "a"), row("q2", "is_blank"), row("q3", "7", "b"))
    rows = score_rows(truth, submission(row("q1", "5", "a"), row("q9", "5", "a")), metric)
    assert [item.question_id for item in rows] == ["q1", "q2", "q3"]
    assert [item.missing for item in rows] == [False, True, True]
    assert [(*item.parts.values(), item.total) for item in rows[1:]] == [(0, 0, 0, 0)] * 2
    score = aggregate(rows, metric)
    assert (score.n, score.missing) == (3, 2)
    assert score.parts["value"] == pytest.approx(1 / 3)


def test_the_third_part_is_a_mean_in_wattbot_and_a_recall_in_kaggle():
    truth = submission(row("q1", "5"), row("q2", "is_blank"), row("q3", "is_blank"), row("q4", "7"))
    given_rows = submission(row("q1", "5"), row("q2", "3"), row("q3", ""), row("q4", ""))
    wattbot = aggregate(score_rows(truth, given_rows, "wattbot"), "wattbot")
    kaggle = aggregate(score_rows(truth, given_rows, "kaggle"), "kaggle")
    assert (wattbot.parts["value"], wattbot.parts["abstain"]) == (0.5, 0.75)
    assert (kaggle.parts["value"], kaggle.parts["abstain"]) == (0.75, 0.5)
    assert wattbot.score == pytest.approx(0.75 * 0.5 + 0.15 + 0.1 * 0.75)


def test_an_empty_truth_is_named():
    with pytest.raises(DataError, match=r"truth\.csv: has no rows"):
        score_rows(submission(path="truth.csv"), submission(row("q1", "5")))


@pytest.mark.data
def test_real_runs_cite_is_blank_in_a_list_where_the_published_validator_wants_a_blank_cell(data_path):
    truth = read_submission(data_path / "wattbot" / "train_QA.csv")
    runs = [read_submission(path) for path in sorted((data_path / "wattbot" / "predictions").glob("*.csv"))]
    unanswerable = [item for item in truth.rows.values() if item.answer_value == "is_blank"]
    pairs = [(item, run.rows[item.question_id]) for run in runs for item in unanswerable]
    listed = [pair for pair in pairs if pair[1].refs_raw.strip(" []'\"") == "is_blank" and pair[1].refs_raw[0] == "["]
    parts = [score_question(*pair, "wattbot").parts for pair in listed]
    assert len(listed) == 62
    assert {(part["ref"], part["abstain"]) for part in parts} == {(0.0, 0.0)}


@pytest.mark.data
@pytest.mark.parametrize("metric", WATTBOTS)
def test_every_real_run_gets_its_known_score(data_path, metric):
    data = data_path / "wattbot"
    third = {"wattbot": "wattbot_abstain", "kaggle": "kaggle_na_recall"}[metric]
    truth = read_submission(data / "train_QA.csv")
    with (data / "expected_scores.csv").open(newline="") as handle:
        expected = list(csv.DictReader(handle))
    assert len(expected) == 37
    n_all_listed = 0
    for known in expected:
        score = aggregate(score_rows(truth, read_submission(data / "predictions" / known["file"]), metric), metric)
        known_parts = [float(known[column]) for column in (f"{metric}_value", f"{metric}_ref", third)]
        if metric == "wattbot":  # the file takes ["is_blank"] for no reference: see above
            n_listed = round((known_parts[1] - score.parts["ref"]) * 41)
            known_parts = [known_parts[0], *(part - n_listed / 41 for part in known_parts[1:])]
            n_all_listed += n_listed
        assert [*score.parts.values()] == pytest.approx(known_parts, abs=1e-6), known["file"]
    assert n_all_listed == (62 if metric == "wattbot" else 0)
