"""The list of all runs: what their files say, in a terminal and on a page; other files do not disturb it."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest
from kit.growth import check_linear
from kit.runs_here import index_here, run_here

from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.pages.report import write_report
from kohaku_ray.pages.runs_page import describe_runs, write_runs
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.listing import list_runs


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_encoder):
    """Two runs that differ in one setting, one that never ended, one of a sweep, and files that are none."""
    home = tmp_path_factory.mktemp("runs")
    for name, top_k in (("a", 4), ("b", 8)):
        overrides = [f"index.path={home}/index", f"ledger.path={home}/ledger", f"run={home}/{name}"]
        overrides += ["documents.paths=[sample:documents/vance2025.md]", f"index.encoder.model={tiny_encoder}"]
        config = load_config("demo", [*overrides, f"kohaku.top_k={top_k}", "questions.limit=3", "ensemble.members=1"])
        if name == "a":
            index_here(config)
        write_report(run_here(config))
    facts = json.loads((home / "a" / "run.json").read_text())
    running = {"status": "running", "settings": {**facts["settings"], "kohaku.top_k": "2"}}
    for name, text in (("c", json.dumps(running)), ("odd", "[1]"), ("cut", "{")):
        (home / name).mkdir()
        (home / name / "run.json").write_text(text)
    (home / "sweep" / "runs" / "0a1b").mkdir(parents=True)
    (home / "sweep" / "runs" / "0a1b" / "run.json").write_text(json.dumps({**facts, "n_questions": 4}))
    score = {"metric": "wattbot", "score": 0.5, "low": 0.25, "high": 0.75}
    listed = {"runs": {"runs/0a1b": {"label": "rerank=none, seed=0", **score}}}
    (home / "sweep" / "runs.json").write_text(json.dumps(listed))
    return home


def test_runs_have_their_state_score_and_the_settings_in_which_they_differ(home):
    listed = list_runs(str(home))
    runs = {run.path: run for run in listed.runs}
    assert {path: run.state for path, run in runs.items()} == {
        "a": "finished",
        "b": "finished",
        "c": "unfinished",
        "sweep/runs/0a1b": "damaged",
    }
    scored = json.loads((home / "a" / "scores.json").read_text())["scores"][0]
    assert (runs["a"].metric, runs["a"].score, runs["a"].low) == ("wattbot", scored["score"], scored["low"])
    assert (runs["a"].n_questions, runs["c"].n_questions) == (3, None)
    assert (runs["sweep/runs/0a1b"].label, runs["sweep/runs/0a1b"].score) == ("rerank=none, seed=0", 0.5)
    assert {path: settings for path, settings in listed.differing().items() if path in "abc"} == {
        "a": {"kohaku.top_k": "4"},
        "b": {"kohaku.top_k": "8"},
        "c": {"kohaku.top_k": "2"},
    }
    assert sorted(listed.unread) == ["cut/run.json", "odd/run.json"]
    text = describe_runs(listed)
    assert "kohaku.top_k=8" in text
    assert "cut/run.json is no run's file" in text


def test_a_list_fits_its_terminal_and_names_a_deployment_without_its_keys(home, tmp_path):
    """users6.md 5: 7 of 8 rows repeated all keys of one deployment, and at 60 columns it wrapped into soup."""
    facts = json.loads((home / "a" / "run.json").read_text())
    of_server = {f"deployments.small.{key}": "1" for key in ("api_key_env", "base_url", "window_tokens")}
    for name, more in (
        ("base", {}),
        ("small", of_server | {"kohaku.rerank": "combined"}),
        ("long", of_server | {"deployments.small.window_tokens": "2"}),
    ):
        (tmp_path / name).mkdir()
        settings = {**facts["settings"], **more}
        (tmp_path / name / "run.json").write_text(json.dumps({**facts, "settings": settings}))
    listed = list_runs(str(tmp_path))
    assert listed.differing() == {
        "base": {},
        "small": {"deployments.small.window_tokens": "1", "kohaku.rerank": "combined"},
        "long": {"deployments.small.window_tokens": "2"},
    }
    narrow = describe_runs(listed, 60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "kohaku.rerank=combined" in " ".join(narrow.split())
    assert describe_runs(listed, 400) == describe_runs(listed)
    assert "wattbot 0.500 (0.250 to 0.750)" in describe_runs(list_runs(str(home)))


def test_the_page_links_the_pages_there_are_and_the_command_says_the_same(home, capsys):
    page = (home / "x").with_name("runs.html")
    assert write_runs(list_runs(str(home))) == str(page)
    html = page.read_text()
    assert html.count('<a href="') == 2
    assert 'href="a/report.html"' in html
    assert main(["--json", "runs", str(home), "--page"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [run["path"] for run in said["runs"]] == [run.path for run in list_runs(str(home)).runs]
    assert said["page"] == str(page)
    assert main(["runs", str(home / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_time_grows_with_the_runs_that_are_listed(home, tmp_path):
    facts = (home / "b" / "run.json").read_text()

    def some_runs(n):
        path = tmp_path / str(n)
        for number in range(n):
            run = path / f"{number:05}"
            run.mkdir(parents=True, exist_ok=True)
            (run / ("run.json" if number % 10 else "notes.txt")).write_text(facts)
        return n, path

    def read(given):
        n, path = given
        listed = list_runs(str(path))
        write_runs(listed)
        assert len(listed.runs) == 0.9 * n

    check_linear(some_runs, read, n=400)


def test_a_run_made_before_a_column_was_there_is_shown_and_reported(home, tmp_path, capsys):
    run = shutil.copytree(home / "a", tmp_path / "old")
    usage = pq.read_table(run / "usage.parquet")
    pq.write_table(usage.drop_columns(["finish_reason"]), run / "usage.parquet")
    assert main(["show", str(run), "s001"]) == 0
    assert main(["report", str(run)]) == 0
    assert RunDirectory(str(run)).read_table("usage").column_names == usage.column_names
    pq.write_table(usage.drop_columns(["source"]), run / "usage.parquet")
    assert main(["show", str(run), "s001"]) == 2
    assert "has no column source" in capsys.readouterr().err
