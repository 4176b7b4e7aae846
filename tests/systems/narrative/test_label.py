"""``label``: spellings, figures against hand-made counts and scikit-free formulas, and files under the metric."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.pages.score_text import describe_scores as render
from kohaku_ray.systems.narrative.label import CONSISTENT, CONTRADICT, LABEL, read_label, set_figures, wilson


@pytest.mark.parametrize(
    ("label", "spellings"),
    [
        (CONSISTENT, ("consistent", " Consistent. ", "1", "1.0", "TRUE", "yes")),
        (CONTRADICT, ('"contradict"', "Contradictory", "inconsistent", "0", "False")),
        (None, ("", None, "is_blank", "not consistent", "2")),
    ],
)
def test_spellings(label, spellings):
    assert {read_label(text) for text in spellings} == {label}


def test_wilson_against_published_values():
    low, high = wilson(51, 80)
    assert (round(low, 4), round(high, 4)) == (0.5281, 0.7343)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == pytest.approx(1)


@given(st.lists(st.tuples(*[st.sampled_from([CONSISTENT, CONTRADICT, ""])] * 2, st.none() | st.floats(0, 1))))
def test_bounds_hold_for_any_prediction(rows):
    named = {f"q{position}": row for position, row in enumerate(rows)}
    truth = Submission("t", (), {key: SubmissionRow(key, answer_value=true) for key, (true, _, _) in named.items()})
    given_rows = {
        key: SubmissionRow(key, answer_value=label, columns={} if sure is None else {"confidence": str(sure)})
        for key, (_, label, sure) in named.items()
    }
    figures = set_figures(truth, Submission("p", (), given_rows))
    if figures is None:
        assert not any(true for true, _, _ in rows)
        return
    assert all(0 <= number.value <= 1 for number in figures.numbers)
    low, high = figures.numbers[0].interval
    assert 0 <= low <= figures.numbers[0].value <= high <= 1
    assert sum(cell for line in figures.tables[0].rows for cell in line[1:]) == figures.n
    assert sum(n for plot in figures.plots for _, _, n in plot.points) == sum(
        bool(true and label) and sure is not None for true, label, sure in rows
    )


def row(value, **columns):
    return SubmissionRow("q", answer_value=value, columns=columns)


def test_the_metric_reads_the_truth_from_either_column():
    assert find_metric("label") is LABEL
    assert LABEL.score_question(row("", label="Consistent"), row("1")).total == 1
    assert LABEL.score_question(row("contradict"), row("true")).total == 0
    assert LABEL.score_question(row("contradict"), row("")).total == 0
    blank = LABEL.score_question(row("", label=""), row(""))
    assert (blank.total, blank.unanswerable) == (1, True)


def test_confusion_is_the_error_table_of_files(tmp_path):
    truth, given_ = tmp_path / "truth.csv", tmp_path / "given.csv"
    truth.write_text("id,answer_value,ref_id,book\na,consistent,x,A\nb,contradict,x,A\nc,contradict,x,B\nd,1,x,B\n")
    given_.write_text("id,answer_value,ref_id\na,1,x\nb,true,x\nc,0,x\nd,is_blank,x\n")
    report = run_score(truth, [given_], ["label"], errors=True)
    assert report.records[0]["accuracy"] == 0.5
    assert {name: n for name, n in report.files[0].errors.items() if n} == {
        "contradict read as consistent": 1,
        "consistent read as none": 1,
    }
    by = run_score(truth, [given_], ["label"], by="book")
    assert [(record["label"], record["score"]) for record in by.records] == [("A", 0.5), ("B", 0.5)]


# ---- figures of a whole set


LABELLED = "id,label,book\na,consistent,A\nb,contradict,A\nc,contradict,B\nd,1,B\ne,1,B\n"
SUBMITTED = (
    "id,answer_value,ref_id,confidence\na,consistent,x,0.9\nb,consistent,x,0.6\nc,contradict,x,0.8\nd,is_blank,x,\n"
    "e,1,x,7\n"
)


def report_of(tmp_path, **options):
    (tmp_path / "truth.csv").write_text(LABELLED)
    (tmp_path / "given.csv").write_text(SUBMITTED)
    return run_score(tmp_path / "truth.csv", [tmp_path / "given.csv"], ["label"], **options)


def test_figures_of_a_file_by_hand(tmp_path):
    report = report_of(tmp_path, split_by=("book", "no such column"))
    figures = report.files[0].figures["label"]
    values = {number.name: number.value for number in figures.numbers}
    assert values == report.records[0]["figures"]
    assert values == pytest.approx(
        {
            "accuracy": 3 / 5,
            "majority class": 3 / 5,
            "balanced accuracy": (2 / 3 + 1 / 2) / 2,
            "F1 of contradict": 2 / 3,
            "Brier score": (0.1**2 + 0.6**2 + 0.2**2) / 3,
        }
    )
    assert figures.numbers[0].interval == wilson(3, 5)
    confusion, reliability, by_book = figures.tables
    assert [column.label for column in confusion.columns] == [
        "true label",
        "read as consistent",
        "read as contradict",
        "read as none",
    ]
    assert confusion.rows == (("consistent", 2, 0, 1), ("contradict", 1, 1, 0))
    assert [row[:2] for row in reliability.rows] == [("0.6 to 0.7", 1), ("0.8 to 0.9", 1), ("0.9 to 1.0", 1)]
    assert figures.plots[0].points == ((0.6, 0, 1), (0.8, 1, 1), (0.9, 1, 1))
    assert by_book.title == "By book"
    assert [row[:2] for row in by_book.rows] == [("A", 2), ("B", 3)]


def test_the_report_says_accuracy_beside_the_majority_class(tmp_path):
    text = render(report_of(tmp_path))
    accuracy = text.index("accuracy           0.6000 (0.2307 to 0.8824)")
    assert text.index("majority class     0.6000", accuracy) > accuracy
    assert "always consistent" in text


def test_figures_are_split_by_a_column_of_the_truth(tmp_path):
    report = report_of(tmp_path, by="book")
    assert [record["figures"]["majority class"] for record in report.records] == [1 / 2, 2 / 3]


def test_without_confidences_there_is_no_calibration(tmp_path):
    (tmp_path / "truth.csv").write_text(LABELLED)
    (tmp_path / "given.csv").write_text("id,answer_value,ref_id\na,1,x\n")
    figures = run_score(tmp_path / "truth.csv", [tmp_path / "given.csv"], ["label"]).files[0].figures["label"]
    assert "Brier score" not in {number.name for number in figures.numbers}
    assert (len(figures.tables), figures.plots) == (1, ())


def test_the_baseline_is_the_majority_class():
    rows = {
        key: SubmissionRow(key, columns={"label": label}) for key, label in zip("abc", ("1", "0", "1"), strict=True)
    }
    assert LABEL.baseline(Submission("t", (), rows)) == (
        "Always consistent, the majority class, scores 0.6667 (2 of 3)."
    )
