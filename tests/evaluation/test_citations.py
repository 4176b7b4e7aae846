"""Citations against gold references, of a column of the truth or of its ref_id."""

import pytest
from kit.rows import check_rows

from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.references import citation_scores, cited_refs, gold_refs
from kohaku_ray.evaluation.submissions import SubmissionRow, mend_refs, read_submission

CITATIONS = find_metric("citations")


def row(ref_ids=(), **columns):
    return SubmissionRow("q", ref_ids=tuple(ref_ids), columns=columns)


@check_rows(
    ("cited", "gold", "f1", "precision", "recall"),
    [
        ("ab", "ab", 1, 1, 1),
        ("ab", "a", 2 / 3, 1 / 2, 1),
        ("a", "abc", 1 / 2, 1, 1 / 3),
        ("ab", "cd", 0, 0, 0),
        ("", "", 1, 1, 1),
        ("a", "", 0, 0, 0),
        ("", "a", 0, 0, 0),
    ],
)
def test_precision_recall_and_f1(cited, gold, f1, precision, recall):
    scores = citation_scores(frozenset(cited), frozenset(gold))
    assert scores == pytest.approx({"f1": f1, "precision": precision, "recall": recall})


def test_ids_are_compared_in_one_unicode_form():
    gold, given = row(("Zürnäk", "efficient", "H100")), row(("Zu\u0308rnäk", "eﬃcient", "Ｈ１００"))
    assert CITATIONS.rate(gold, given)["f1"] == 1.0
    assert mend_refs(["Zu\u0308rnäk"]) == ("Zürnäk",)


def test_gold_stands_in_a_column_of_its_own_or_in_ref_id():
    assert gold_refs(row(["x"], gold='["A1", "B2"]')) == {"a1", "b2"}
    assert gold_refs(row(["x"], gold="[]")) == frozenset()
    assert gold_refs(row(["X"])) == {"x"}
    assert list(cited_refs(row(["B", "a", "b"]))) == ["b", "a"]


def test_a_file_is_scored(tmp_path):
    truth, given = tmp_path / "truth.csv", tmp_path / "given.csv"
    truth.write_text('id,answer_value,ref_id,gold\n1,4,,"[""1002"", ""1004""]"\n2,is_blank,,[]\n3,5,,"[""7""]"\n')
    given.write_text('id,answer_value,ref_id\n1,4,"[""1002"", ""9""]"\n2,is_blank,is_blank\n3,5,is_blank\n')
    rows = CITATIONS.score(read_submission(truth), read_submission(given))
    assert [row.parts["f1"] for row in rows] == [0.5, 1.0, 0.0]
    assert [row.unanswerable for row in rows] == [False, True, False]
    assert CITATIONS.aggregate(rows).score == pytest.approx(0.5)


def test_marks_of_a_vote_are_the_parts_of_its_row(tmp_path):
    truth = tmp_path / "truth.csv"
    truth.write_text('id,answer_value,ref_id,gold\n1,4,,"[""a"", ""b""]"\n')
    submission = read_submission(truth)
    marks = CITATIONS.marks(submission).by_refs
    for refs in (frozenset("a"), frozenset("abc"), frozenset()):
        scored = CITATIONS.score_question(submission.rows["1"], row(sorted(refs)))
        assert {name: mark(0, refs) for name, mark in marks.items()} == dict(scored.parts)
