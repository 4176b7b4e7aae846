"""Ensembles of recorded members, scored by any metric; no cluster."""

import pytest

from kohaku_ray.evaluation.metrics import Metric, Part, find_metric
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.sweep import collect as sweep_results
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep

TRUTH = "id,question,answer_value,ref_id\nq1,How much?,1000,['a']\nq2,Which?,GPT-3,['b']\nq3,When?,is_blank,is_blank\n"
MEMBERS = (
    "id,answer_value,ref_id\nq1,1000,['a']\nq2,gpt-3,['c']\nq3,5,['a']\n",
    "id,answer_value,ref_id\nq1,7,['a']\nq2,gpt-3,['b']\nq3,is_blank,is_blank\n",
    "id,answer_value,ref_id\nq1,\"1,000\",\"['a', 'b']\"\nq2,is_blank,is_blank\nq3,is_blank,is_blank\n",
)


@pytest.fixture
def plan(tmp_path):
    """Every ensemble of one of three recorded members, and all three."""
    (tmp_path / "truth.csv").write_text(TRUTH)
    for at, text in enumerate(MEMBERS):
        (tmp_path / f"member{at}.csv").write_text(text)
    (tmp_path / "base.yaml").write_text(f"base: demo\nquestions: {{path: {tmp_path}/truth.csv}}\n")
    (tmp_path / "sweep.yaml").write_text(
        f"base: {tmp_path}/base.yaml\n"
        "tables:\n"
        "  - name: sizes\n"
        "    subsamples: all\n"
        f"    pool: {{files: ['{tmp_path}/member*.csv']}}\n"
        "    axes: {ensemble.members: [1, 3]}\n"
    )
    return plan_sweep(load_sweep(str(tmp_path / "sweep.yaml"), [], [], str(tmp_path / "out")))


@pytest.mark.parametrize("name", ["wattbot", "kaggle", "exact"])
def test_an_ensemble_of_one_scores_what_its_members_score_on_average(plan, tmp_path, name):
    metric, sweep = find_metric(name), sweep_results.collect(plan, {}, metric=name)
    truth = read_submission(tmp_path / "truth.csv")
    files = [read_submission(tmp_path / f"member{at}.csv") for at in range(3)]
    scores = [metric.aggregate(metric.score(truth, file)) for file in files]
    alone, _ = sweep.tables[0].cells
    assert sweep.metric is metric
    assert list(alone.parts) == list(metric.parts)
    assert alone.scores.tolist() == pytest.approx([sum(score.score for score in scores) / 3])
    assert len({round(score.score, 6) for score in scores}) > 1


def test_a_study_says_what_no_vote_can_reach(plan, tmp_path):
    (note,) = [note for note in sweep_results.collect(plan, {}).tables[0].notes if note.startswith("Ceiling")]
    assert "no member is right on 0 of 3 questions (0.0%; 95 % by Clopper and Pearson: 0.0% to 70.8%)" in note
    truth = tmp_path / "truth.csv"
    truth.write_text(truth.read_text().replace("GPT-3", "BERT"))
    (note,) = [note for note in sweep_results.collect(plan, {}).tables[0].notes if note.startswith("Ceiling")]
    assert "on 1 of 3 questions (33.3%; 95 % by Clopper and Pearson: 0.8% to 90.6%)" in note


def test_a_metric_without_marks_skips_the_table_and_says_why(plan, monkeypatch):
    bare = Metric("bare", "No marks", {"value": Part()}, lambda truth, given: {"value": 1.0}, lambda truth: False)
    monkeypatch.setattr(sweep_results, "find_metric", lambda name: bare)
    cells = sweep_results.collect(plan, {}, metric="bare").tables[0].cells
    assert {(cell.state, cell.reason) for cell in cells} == {
        ("skipped", "metric bare has no marks, so it cannot score votes over recorded members")
    }
