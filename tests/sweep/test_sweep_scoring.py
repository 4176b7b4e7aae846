"""Ensembles of recorded members, scored by any metric; no cluster."""

import pytest

from kohaku_ray.answering.vote_files import run_vote
from kohaku_ray.config import Config
from kohaku_ray.ensemble.settings import VoteRule
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import Metric, Part, find_metric
from kohaku_ray.evaluation.submissions import read_submission, write_submission
from kohaku_ray.sweep import collect as sweep_results
from kohaku_ray.sweep.load import PoolConfig, load_sweep
from kohaku_ray.sweep.plan import plan_sweep
from kohaku_ray.sweep.statistics import compute_sweep_stats
from kohaku_ray.sweep.study import ensembles, pool_of

TRUTH = "id,question,answer_value,ref_id\nq1,How much?,1000,['a']\nq2,Which?,GPT-3,['b']\nq3,When?,is_blank,is_blank\n"
MEMBERS = (
    "id,answer_value,ref_id\nq1,1000,['a']\nq2,gpt-3,['c']\nq3,5,['a']\n",
    "id,answer_value,ref_id\nq1,7,['a']\nq2,gpt-3,['b']\nq3,is_blank,is_blank\n",
    "id,answer_value,ref_id\nq1,\"7,000\",\"['a', 'b']\"\nq2,is_blank,is_blank\nq3,is_blank,is_blank\n",
)


@pytest.fixture
def plan(tmp_path):
    """Every ensemble of one of three recorded members, and all three."""
    (tmp_path / "truth.csv").write_text(TRUTH)
    for position, text in enumerate(MEMBERS):
        (tmp_path / f"member{position}.csv").write_text(text)
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


@pytest.mark.parametrize("name", ["wattbot", "kaggle", "wattbot2026", "exact"])
def test_an_ensemble_of_one_scores_what_its_members_score_on_average(plan, tmp_path, name):
    metric, sweep = find_metric(name), sweep_results.collect(plan, {}, metric=name)
    truth = read_submission(tmp_path / "truth.csv")
    files = [read_submission(tmp_path / f"member{number}.csv") for number in range(3)]
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


def test_questions_of_a_cluster_are_taken_as_one_and_a_column_that_is_not_there_is_refused(plan, tmp_path):
    sweep = str(tmp_path / "sweep.yaml")
    with pytest.raises(DataError, match="has no column doc; its columns are id, question, answer_value, ref_id"):
        plan_sweep(load_sweep(sweep, cluster="doc"))
    collected = sweep_results.collect(plan_sweep(load_sweep(sweep, cluster="ref_id")), {})
    assert (collected.cluster, collected.clusters) == ("ref_id", {"q1": "['a']", "q2": "['b']", "q3": "question q3"})
    [stats] = compute_sweep_stats(collected)
    assert stats.selection.n_clusters == 3
    assert sweep_results.collect(plan, {}).clusters is None


def test_a_metric_without_marks_skips_the_table_and_says_why(plan, monkeypatch):
    bare = Metric("bare", "No marks", {"value": Part()}, lambda truth, given: {"value": 1.0}, lambda truth: False)
    monkeypatch.setattr(sweep_results, "find_metric", lambda name: bare)
    cells = sweep_results.collect(plan, {}, metric="bare").tables[0].cells
    assert {(cell.state, cell.reason) for cell in cells} == {
        ("skipped", "metric bare has no marks, so it cannot score votes over recorded members")
    }


def test_submissions_of_a_tables_cells_are_voted_over_as_files_are(tmp_path):
    runs = []
    for position, text in enumerate(MEMBERS):
        (tmp_path / f"run{position}").mkdir()
        (tmp_path / f"run{position}" / "submission.csv").write_text(text)
        runs.append(Config(run=str(tmp_path / f"run{position}")))
    (tmp_path / "truth.csv").write_text(TRUTH)
    truth, metric = read_submission(tmp_path / "truth.csv"), find_metric("wattbot")
    members = pool_of(PoolConfig(table="singles"), runs, truth, metric)
    whole = ensembles({0: Config(ensemble={"members": 3})}, 32, members, metric)[0]
    assert whole.total.shape == (1, 3), "one vote over all three"
    voted = run_vote([f"{run.run}/submission.csv" for run in runs], VoteRule())
    write_submission(tmp_path / "voted.csv", voted.rows)
    scores = [item.total for item in metric.score(truth, read_submission(tmp_path / "voted.csv"))]
    assert whole.total[0].tolist() == pytest.approx(scores)
    # ['a'] before ['a', 'b'] and ['c'] before ['b'], as they come first; the one answer to q3 beats two blanks
    assert whole.total[0].tolist() == pytest.approx([1, 0.85, 0])


def test_a_table_that_lacks_a_question_is_named(tmp_path):
    (tmp_path / "run0").mkdir()
    (tmp_path / "run0" / "submission.csv").write_text("id,answer_value,ref_id\nq1,1000,['a']\n")
    (tmp_path / "truth.csv").write_text(TRUTH)
    truth = read_submission(tmp_path / "truth.csv")
    runs = [Config(run=str(tmp_path / "run0"))]
    members = pool_of(PoolConfig(table="singles"), runs, truth, find_metric("wattbot"))
    assert members.notes == ("run0 lacks 2 of 3 questions: blank there.",)
