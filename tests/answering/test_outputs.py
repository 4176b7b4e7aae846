"""answers.jsonl: the keys of a line, abstentions, scores."""

from __future__ import annotations

import json

from kohaku_ray.answering.outputs import answer_line, as_lines, count_votes, question_scores
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.submissions import SubmissionRow, read_submission
from kohaku_ray.evaluation.truth import read_truth

VOTES = count_votes([("5", 2.0), (None, 1.0)], 3, 1)


def test_a_line_has_the_documented_keys_in_their_order():
    row = SubmissionRow("q1", "How much?", "It is 5 kWh.", "5", "kWh", ("a", "b"), ("https://a",))
    line = answer_line(row, VOTES, {"wattbot": {"score": 1.0}})
    assert list(line) == ["id", "question", "answer", "answer_value", "unit", "refs", "urls", "votes", "score"]
    assert [line[key] for key in ("id", "answer", "answer_value", "unit", "refs", "urls")] == [
        *("q1", "It is 5 kWh.", "5", "kWh"),
        ("a", "b"),
        ("https://a",),
    ]
    assert line["votes"]["groups"] == [{"value": "5", "weight": 2.0}, {"value": None, "weight": 1.0}]


def test_an_abstention_has_no_value_and_cites_nothing():
    line = answer_line(SubmissionRow("q1", "?", "", "is_blank", "is_blank", ("a",), ("https://a",)), VOTES)
    assert (line["answer_value"], line["unit"], line["refs"], line["urls"]) == (None, None, (), ())
    assert "score" not in line


def test_questions_with_gold_are_scored_alone_and_text_is_unicode(tmp_path):
    (tmp_path / "t.csv").write_text("id,answer_value,ref_id\nq1,5,[a]\nq3,7,[b]\n")
    (tmp_path / "s.csv").write_text("id,answer_value,ref_id\nq1,5,[b]\nq2,6,[b]\n")
    metric = find_metric("wattbot")
    truth, given = read_truth(tmp_path / "t.csv", [metric]), read_submission(tmp_path / "s.csv")
    scores = question_scores(truth, [metric], given)
    assert scores.keys() == {"q1"}
    assert scores["q1"]["wattbot"] == {"score": 0.85, "value": 1.0, "ref": 0.0, "abstain": 1.0}
    text = as_lines([{"answer": "énergie \udc80"}])
    assert json.loads(text)["answer"] == "énergie ?"
    assert "é" in text
