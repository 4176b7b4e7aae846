"""Tables, pages and plots follow the metric: its parts, its classes of errors, its formula."""

import csv
import io

import numpy as np
from pages import opened

from kohaku_ray.evaluation.answers import EXACT
from kohaku_ray.evaluation.metrics import Metric, Part
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.pages.report import score_parts
from kohaku_ray.pages.sweep_page import page
from kohaku_ray.pages.sweep_tables import write_csv
from kohaku_ray.sweep.compare import Axis, SweepAnswer, SweepCell, SweepQuestion, SweepRecord, SweepRun, SweepTable
from kohaku_ray.sweep.statistics import compute_sweep_stats

STYLE = Metric(
    name="style",
    title="Words and their length",
    parts={"words": Part(0.6, "same words"), "length": Part(0.4, of_unanswerable=True)},
    rate=lambda truth, given: {"words": 0.0, "length": 0.0},
    unanswerable=lambda truth: False,
    classify=lambda truth, given: "odd",
    classes=("odd", "even"),
)


def sweep_of(metric, parts, errors):
    """One cell over two questions and one seed."""
    arrays = {name: np.array(part) for name, part in parts.items()}
    cell = SweepCell(
        *("c", {"k": "4"}, "finished", "", (0,), ("q1", "q2"), arrays, metric.shares(arrays, [True, False]), ("r",))
    )
    answers = {f"q{number}": SweepAnswer("blue", "['x']", error) for number, error in enumerate(errors, 1)}
    run = SweepRun("r", "runs/r", 0, {"model": "m"}, answers, 10, 0.5)
    questions = tuple(SweepQuestion(key, "Which?", "red", "", "is_blank") for key in answers)
    return SweepRecord("s", "S", (SweepTable("t", "T", (Axis("k", ("4",)),), (cell,)),), questions, (run,), metric)


def test_an_own_metric_fills_a_sweeps_tables_and_page():
    sweep = sweep_of(STYLE, {"words": [[0.0, 1.0]], "length": [[1.0, 0.0]]}, ("odd", None))
    (stats,) = compute_sweep_stats(sweep)
    (line,) = csv.DictReader(io.StringIO(write_csv(stats)))
    assert [line[name] for name in ("mean", "words", "length")] == ["0.700000", "0.500000", "0.500000"]
    html = opened(page(sweep, [stats]))
    assert "Score: style, 0.60 same words + 0.40 length." in html
    assert '<th class="n">same words</th><th class="n">length</th><th class="n">rank in its column</th>' in html
    assert '<th class="n">right</th><th class="n">odd</th><th class="n">error rate</th>' in html, "nothing is even"
    assert "given <b><bdi>blue</bdi></b> from <code>[&#39;x&#39;]</code>" in html
    assert html.count('<td class="right">') == html.count('<td class="wrong">') == 1
    body = html.split("<body>")[1]
    for word in ("value</th>", "references", "abstention", "false positive"):
        assert word not in body


def test_a_sweep_without_classes_has_no_errors():
    sweep = sweep_of(EXACT, {"value": [[0.0, 1.0]]}, (None, None))
    html = opened(page(sweep, compute_sweep_stats(sweep)))
    assert "What went wrong" not in html
    assert "Score: exact, value." in html


def test_a_part_that_is_called_like_a_figure_has_a_column_of_its_own():
    metric = Metric("m", "M", {"mean": Part()}, lambda truth, given: {"mean": 0.0}, lambda truth: False)
    (stats,) = compute_sweep_stats(sweep_of(metric, {"mean": [[0.0, 0.5]]}, (None, None)))
    (line,) = csv.DictReader(io.StringIO(write_csv(stats)))
    assert (line["mean"], line["part mean"]) == ("0.250000", "0.250000")


def test_a_table_without_scores_has_the_columns_of_the_metrics_parts():
    failed = SweepCell("c", {"k": "4"}, "failed", "no memory")
    sweep = SweepRecord("s", "S", (SweepTable("t", "T", (Axis("k", ("4",)),), (failed,)),), (), (), STYLE)
    (stats,) = compute_sweep_stats(sweep)
    (line,) = csv.DictReader(io.StringIO(write_csv(stats)))
    assert (line["state"], line["mean"], line["words"], line["length"]) == ("failed", "", "", "")


def test_a_chart_draws_the_parts_that_all_metrics_have(tmp_path):
    (tmp_path / "truth.csv").write_text("id,answer_value,ref_id\nq1,5,x\n")
    report = run_score(tmp_path / "truth.csv", [tmp_path / "truth.csv"], ("wattbot", "exact"))
    chart = score_parts(report)
    assert ">value<" in chart.svg
    assert ">(0.75)<" in chart.svg
    assert ">references<" not in chart.svg
    assert chart.note == "wattbot: 0.75 value + 0.15 references + 0.10 abstention; exact: value."
