"""A metric of the user's own: one that raises is left out by name, file and line; `validate` tries it before a run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from kit.runs_here import index_here, run_here

from kohaku_ray.cli import main
from kohaku_ray.collection.sources import resolve
from kohaku_ray.config import load_config
from kohaku_ray.pages.report import write_report
from kohaku_ray.runs.scoring import score_run

CODE = """
from kohaku_ray.evaluation.metrics import Metric, Part

def rate(truth, given):
    return {"value": float(float(given.answer_value) > 0)}

def unanswerable(truth):
    return truth.answer_value == "is_blank"

MINE = Metric("mine", "Mine", parts={"value": Part()}, rate=rate, unanswerable=unanswerable)
"""
FAILED = r"metric mine failed at question \S+ with ValueError in my_metric\.py, line 5: could not convert"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_encoder):
    """A run in this process, whose configuration names the metric."""
    home = tmp_path_factory.mktemp("own_metric")
    (home / "my_metric.py").write_text(CODE)
    overrides = [f"index.path={home}/index", f"ledger.path={home}/ledger", f"run={home}/run"]
    overrides += ["documents.paths=[sample:documents/vance2025.md]", f"index.encoder.model={tiny_encoder}"]
    overrides += ["questions.limit=3", "questions.metrics=[my_metric:MINE, kaggle]", "ensemble.members=1"]
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(home)
        config = load_config("demo", overrides)
        index_here(config)
        yield config, overrides, run_here(config)
    sys.modules.pop("my_metric", None)


def test_a_metric_that_raises_is_left_out_and_the_page_is_written(finished, capsys):
    config, _, run = finished
    assert main(["score", run, "--metric", "my_metric:MINE"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    scored, why_not = score_run(run, resolve(config.questions.path), config.metrics, 3)
    assert why_not == ""
    assert [metric.name for metric in scored.metrics] == ["kaggle"]
    assert re.match(FAILED, scored.note)
    assert "my_metric.py, line 5" in Path(write_report(run)).read_text()


def test_validate_tries_a_metric_on_the_gold_answers(finished, capsys):
    _, overrides, _ = finished
    options = [part for override in overrides for part in ("--set", override)]
    assert main(["validate", "demo", *options]) == 1, "as score: code that fails is no mistake in what was given"
    says = capsys.readouterr()
    assert "my_metric.py, line 5" in says.out + says.err


def test_one_metric_without_its_column_does_not_cancel_the_others(tmp_path, capsys):
    gold, answers = tmp_path / "gold.csv", tmp_path / "answers.csv"
    gold.write_text("id,answer_value,ref_id\nq1,5,a\n")
    answers.write_text("id,answer_value,ref_id\nq1,5,a\n")
    scored = ["score", str(answers), "--truth", str(gold)]
    assert main([*scored, "--metric", "passages", "--metric", "exact"]) == 0
    says = capsys.readouterr().out
    assert "Not scored by passages: gold.csv" in says
    assert "1.0000" in says
    assert main([*scored, "--metric", "passages"]) == 2
