from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.evaluation.wattbot import ERROR_CLASSES, WATTBOT, classify, is_unit_conversion


def row(value: str, refs: str = "['a']") -> SubmissionRow:
    return SubmissionRow("q", answer_value=value, refs_raw=refs)


@check_rows(
    ("name", "truth", "values"),
    [
        ("false positive", "is_blank", ["5"]),
        ("false negative", "5", ["is_blank", ""]),
        ("unit conversion", "1438", ["1.438", "1400000", "14380"]),
        ("value selection", "1438", ["1300000"]),
        ("rounding", "14.4", ["14"]),
        ("rounding", "10", ["9"]),
        ("rounding", "199", ["201"]),
        ("value selection", "10", ["8.99"]),
        ("value selection", "0", ["1", "1e-7"]),
        ("value selection", "5", ["-5", "-50", "0"]),
        ("value selection", "1e-300", ["1e300"]),
        ("unit conversion", "[80,90]", ["[0.8,0.9]"]),
        ("rounding", "[80,90]", ["[80,92]"]),
        ("value selection", "[80,90]", ["[0.8,92]", "[80,10]"]),
        ("type mismatch", "[80,90]", ["80", "80-90"]),
        ("type mismatch", "5", ["five"]),
        ("type mismatch", "GPT-3", ["3", "[3,4]"]),
        ("categorical mismatch", "GPT-3", ["GPT-4"]),
        ("categorical mismatch", "Yes", ["No", "false"]),
        # C.1, step 3: at most 10 % off is rounding, whatever the number counts.
        ("rounding", "2000", ["2050"]),
        ("rounding", "1600", ["1650"]),
        ("rounding", "1997", ["2016", "2016.5"]),
    ],
)
def test_each_branch_of_the_tree(name, truth, values):
    assert {classify(row(truth), row(value, "['other']")) for value in values} == {name}


def test_references_are_looked_at_only_where_the_value_is_right():
    assert classify(row("5", "['a']"), row("5.001", "['b']")) == "reference mismatch"
    assert classify(row("5", "['a']"), row("5.001", "['A', 'a']")) is None
    assert classify(row("5", "['a']"), row("6", "['b']")) == "value selection"
    assert classify(row("is_blank", "is_blank"), row("is_blank", "['b']")) == "reference mismatch"
    assert classify(row("is_blank", "is_blank"), row("", "[]")) is None


values = st.one_of(
    st.sampled_from(["is_blank", "", "None", "GPT-3", "gpt-3", "True", "[80,90]", "[0.8,0.9]", "80-90", "[1]", "nan"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(max_size=8),
)
reference_cells = st.sampled_from(["is_blank", "[]", "['a']", '["a", "b"]', '["is_blank"]'])


@given(truth=values, value=values, true_refs=reference_cells, refs=reference_cells)
def test_a_prediction_has_exactly_one_class_when_it_is_wrong_and_none_when_it_is_right(truth, value, true_refs, refs):
    wanted, given_row = row(truth, true_refs), row(value, refs)
    name, score = classify(wanted, given_row), WATTBOT.score_question(wanted, given_row)
    if score.parts["value"] == 1.0 and score.parts["ref"] == 1.0:
        assert name is None
    else:
        assert ERROR_CLASSES.count(name) == 1
        assert (name == "reference mismatch") == (score.parts["value"] == 1.0)


@given(truth=st.floats(1e-6, 1e6), exponent=st.integers(-9, 9), off=st.floats(-0.049, 0.049))
def test_a_power_of_ten_is_a_unit_conversion_except_one(truth, exponent, off):
    assert is_unit_conversion(truth, truth * 10.0**exponent * (1 + off)) == (exponent != 0)


def test_missing_rows_have_no_class():
    truth = Submission("t", (), {"q1": row("5"), "q2": row("6"), "q3": row("is_blank")})
    wrong = WATTBOT.find_errors(truth, Submission("p", (), {"q1": row("50"), "q9": row("1")}))
    assert list(wrong) == list(ERROR_CLASSES)
    assert {name: ids for name, ids in wrong.items() if ids} == {"unit conversion": ["q1"]}
