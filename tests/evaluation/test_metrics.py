"""The registry, the arithmetic every metric shares, ``exact``, and files under a metric of one's own."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.errors import ConfigError, MetricError
from kohaku_ray.evaluation.answers import EXACT, exact_value
from kohaku_ray.evaluation.compare import compare_files
from kohaku_ray.evaluation.metrics import Metric, Part, QuestionScore, find_metric
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.submissions import SubmissionRow
from kohaku_ray.evaluation.wattbot import KAGGLE, WATTBOT
from kohaku_ray.extensions import BUILT_IN
from kohaku_ray.pages.score_text import describe_comparison as render
from kohaku_ray.pages.score_text import describe_scores as render_scores

OWN = """
from kohaku_ray.evaluation.metrics import Metric, Part

STYLE = Metric(
    name="style",
    title="Words and their length",
    parts={"words": Part(0.6, "same words"), "length": Part(0.4, of_unanswerable=True)},
    rate=lambda truth, given: {
        "words": float(truth.answer_value == given.answer_value),
        "length": float(len(truth.answer_value) == len(given.answer_value)),
    },
    unanswerable=lambda truth: truth.answer_value == "none",
    classify=lambda truth, given: None if truth.answer_value == given.answer_value else "odd",
    classes=("odd", "even"),
)
"""
TRUTH = "id,question,answer_value,ref_id,half\nq1,A?,none,x,a\nq2,B?,blue,x,b\nq3,C?,red,x,b\n"
FIRST = "id,answer_value,ref_id\nq1,some,x\nq2,blue,x\nq3,green,x\n"
SECOND = "id,answer_value,ref_id\nq1,nothing,x\nq2,blue,x\nq3,red,x\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_metric.py").write_text(OWN)
    for name, text in (("truth", TRUTH), ("first", FIRST), ("second", SECOND)):
        (tmp_path / f"{name}.csv").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_metric", None)


def row(value: str, question_id: str = "q") -> SubmissionRow:
    return SubmissionRow(question_id, answer_value=value)


def test_every_registered_metric_has_its_name_and_its_formula():
    assert [find_metric(name).name for name in BUILT_IN["metrics"]] == list(BUILT_IN["metrics"])
    assert find_metric("wattbot").formula == "0.75 value + 0.15 references + 0.10 abstention"
    assert find_metric("kaggle").formula == find_metric("wattbot").formula
    assert find_metric("exact").formula == "value"
    assert (list(WATTBOT.parts), list(EXACT.parts)) == (["value", "ref", "abstain"], ["value"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "watbot",
            r"metric watbot: no such metric \(did you mean wattbot\?\); metrics: wattbot, kaggle, wattbot2026, exact, "
            r"answer, label, citations, retrieval, passages, context_value, or your",
        ),
        ("kohaku_ray.evaluation.wattbot:_VALUE", "is of type Part, not Metric: name a Metric"),
    ],
)
def test_what_is_no_metric_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        find_metric(name)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "metric m: it has no parts"),
        ({"value": Part(), "score": Part(), "n": Part()}, "a part is called n, score, which is another column"),
    ],
)
def test_parts_are_there_and_named_apart_from_other_columns(parts, message):
    with pytest.raises(ConfigError, match=message):
        Metric("m", "M", parts, lambda truth, given: {}, lambda truth: False)


def test_a_metric_that_rates_other_parts_than_it_declares_is_named():
    metric = Metric("m", "M", {"a": Part(), "b": Part()}, lambda truth, given: {"b": 1.0, "c": 0.0}, lambda truth: True)
    with pytest.raises(ConfigError, match="metric m rates b, c at question q7 but its parts are a, b: make `rate`"):
        metric.score_question(row("", "q7"), row(""))


flags = st.lists(st.booleans(), min_size=1, max_size=6)


@given(st.data(), flags)
def test_shares_average_to_the_score_of_every_metric(data, unanswerable):
    part = st.sampled_from([0.0, 0.25, 1.0])
    for metric in (WATTBOT, KAGGLE, EXACT):
        rows = []
        for blank in unanswerable:
            parts = {name: data.draw(part) for name in metric.parts}
            rows.append(QuestionScore("q", parts, metric.weigh(parts), blank))
        assert metric.shares_of(rows).mean() == pytest.approx(metric.aggregate(rows).score)
        arrays = {name: np.array([[[each.parts[name] for each in rows]] * 2] * 3) for name in metric.parts}
        shares = metric.shares(arrays, unanswerable)
        assert shares.shape == (3, 2, len(rows))
        assert shares.mean(axis=2) == pytest.approx(np.full((3, 2), metric.aggregate(rows).score))


@check_rows(
    ("truth", "right", "wrong"),
    [
        ("consistent", [" Consistent"], ["contradict"]),
        ("1000", ["1000.9"], ["1002"]),
        ("0", ["0.0", "zero"], ["1e-10"]),
        ("1,000", ["1000", "~1000"], ["1"]),
        ("[80,90]", ["[80, 90]", "80-90"], ["80"]),
        ("1", ["one", "TRUE"], ["two"]),
        ("NA", ["na"], ["none"]),
        ("None", [], ["is_blank"]),
        ("is_blank", [""], ["5"]),
        ("", ["is_blank"], []),
        ("5", [], [""]),
    ],
)
def test_exact_values(truth, right, wrong):
    for score, values in ((1, right), (0, wrong)):
        for value in values:
            assert EXACT.score_question(row(truth), row(value)).total == exact_value(truth, value) == score, value


def test_an_own_metric_scores_files(folder):
    report = run_score(folder / "truth.csv", [folder / "first.csv"], ("own_metric:STYLE", "exact"), errors=True)
    style, exact = report.records
    # q1, the unanswerable one: "some" is as long as "none"; one of three words is right
    assert list(style) == ["file", "metric", "score", "words", "length", "n", "missing", "errors"]
    assert (style["words"], style["length"]) == (pytest.approx(1 / 3), 1.0)
    assert style["score"] == pytest.approx(0.6 / 3 + 0.4)
    assert style["errors"] == {"odd": 2, "even": 0}
    assert list(exact)[2:4] == ["score", "value"]
    scores, errors, named = render_scores(report).split("\n\n")
    assert re.fullmatch(r"odd: \w+, \w+", named)
    head, _, first, second = scores.splitlines()
    assert head.split() == ["file", "metric", "score", "words", "length", "value", "n", "missing"]
    assert first.split()[1:] == ["style", "0.6000", "0.3333", "1.0000", "3", "0"]
    assert second.split()[1:] == ["exact", "0.3333", "0.3333", "3", "0"]
    assert second.index("0.3333", second.index("exact") + 15) > first.index("1.0000")  # below its own part
    assert errors.splitlines()[0].split() == ["errors", "odd", "even"]


def test_a_metric_without_classes_says_so(folder):
    report = run_score(folder / "truth.csv", [folder / "first.csv"], ("exact",), errors=True)
    assert (report.classes, report.files[0].errors, report.records[0]["errors"]) == ((), {}, {})
    assert render_scores(report).endswith("\n\nerrors have no classes under exact")


def test_an_own_metric_compares_files(folder):
    files = [folder / "first.csv", folder / "second.csv"]
    comparison = compare_files(folder / "truth.csv", files, "own_metric:STYLE", by="half")
    # words 1 of 3 and the length of the unanswerable one; then words 2 of 3 and no length
    assert [score.score for score in comparison.scores] == pytest.approx([0.2 + 0.4, 0.4])
    assert comparison.pair.interval.mean == pytest.approx(comparison.scores[1].score - comparison.scores[0].score)
    assert [(flip.question_id, flip.kind) for flip in comparison.pair.flips] == [
        ("q3", "wrong to right"),
        ("q1", "other"),
    ]
    assert (comparison.pair.n_lost, comparison.pair.n_won) == (0, 1)
    assert render(comparison).splitlines()[0].split() == ["style", "score", "words", "length", "n"]
    assert comparison.split.scores["b"][0].parts == {"words": 0.5, "length": 1.0}


@pytest.mark.parametrize("rated", [7.5, -2, float("nan"), "many", None])
def test_a_rate_that_is_no_number_from_0_to_1_is_named_with_its_question(rated):  # inspect_ai#4928
    metric = Metric("mine", "Mine", {"value": Part()}, lambda truth, given: {"value": rated}, lambda truth: False)
    row = SubmissionRow("q7", answer_value="5")
    with pytest.raises(MetricError, match=r"metric mine rates value .* at question q7: let `rate` return a number"):
        metric.score_question(row, row)


@pytest.mark.parametrize(("rated", "named"), [(None, "None"), (1.0, "1.0"), ({}, "nothing"), ({"valu": 1.0}, "valu")])
def test_a_rate_of_other_parts_is_named_with_its_question(rated, named):  # inspect_ai#4286: a scorer returns None
    metric = Metric("mine", "Mine", {"value": Part()}, lambda truth, given: rated, lambda truth: False)
    row = SubmissionRow("q7", answer_value="5")
    with pytest.raises(ConfigError, match=rf"metric mine rates {named} at question q7 but its parts are value: make"):
        metric.score_question(row, row)
