"""A finished run in MLflow and Weights & Biases: their own stores, on disk."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.rows import check_rows
from run_files import small_run

from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.runs import tracking
from kohaku_ray.runs.scoring import scores_of
from kohaku_ray.runs.tracking import check_tracking, is_tracked, track
from kohaku_ray.sweep.collect import track_sweep

ROOT = Path(__file__).resolve().parents[2]


def run_of(tmp_path: Path, *settings: str) -> tuple[object, AnswerSummary]:
    """A finished run of four questions, scored by two metrics, with a secret in its configuration."""
    run = small_run(tmp_path / "run")
    truth = tmp_path / "t.csv"
    truth.write_text("id,answer_value,ref_id\nq1,five,a\n")
    overrides = [f"run={run}", f"questions.path={truth}", "kohaku.top_k=7", *settings]
    summary = AnswerSummary(str(run), n_questions=4, n_answers=12, spent={"dollars": 0.25}, wall_s=3.0)
    return load_config("default", overrides), summary


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_missing_package_is_said_before_anything_starts(tracker, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["answer", "demo", "--set", f"tracking.to={tracker}", "--set", f"run={tmp_path}/new"]) == 2
    assert f"the package {tracker} is missing: pip install 'kohaku-ray[{tracker}]'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_what_a_database_needs_is_said_before_anything_starts(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sqlalchemy" else find_spec("json"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    reason = (
        r"package sqlalchemy is missing \(for its store, sqlite:////.*/mlflow.db\): pip install 'kohaku-ray\[mlflow\]'"
    )
    with pytest.raises(ConfigError, match=reason):
        check_tracking(load_config(None, ["tracking.to=mlflow"]))
    for uri in ("http://127.0.0.1:5000", "runs/store", "file:///tmp/store"):
        check_tracking(load_config(None, ["tracking.to=mlflow", f"tracking.uri={uri}"]))


def test_the_extra_brings_what_its_own_default_store_needs():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["mlflow"]
    assert {re.split("[<>=]", requirement)[0] for requirement in extra} == {"alembic", "mlflow-skinny", "sqlalchemy"}


def test_a_server_that_is_not_there_is_one_line_in_seconds(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    config, summary = run_of(tmp_path, "tracking.to=mlflow", "tracking.uri=http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(
        DataError, match=r"^the results are whole and in .*, but mlflow did not take them .*\S$"
    ) as caught:
        track(config, summary, None)
    assert time.monotonic() - began < 30  # MLflow itself tries for minutes
    assert "\n" not in str(caught.value)
    assert "check tracking.uri, then repeat the command" in str(caught.value)


@check_rows(
    ("tracker", "error", "is_set", "way_out"),
    [
        ("mlflow", "API request failed with error code 401", False, "MLFLOW_TRACKING_TOKEN is not set"),
        ("mlflow", "403 Forbidden", True, "the token in MLFLOW_TRACKING_TOKEN is refused"),
        ("wandb", "api_key not configured (no-tty). call wandb.login()", False, "WANDB_API_KEY is not set"),
        ("wandb", "user is not logged in", True, "the token in WANDB_API_KEY is refused"),
        ("wandb", "port 4010 refused the connection", True, "check tracking.uri"),
    ],
)
def test_a_token_that_is_missing_or_refused_is_named(tracker, error, is_set, way_out):
    def refuse(*_):
        raise RuntimeError(error)

    name = {"mlflow": "MLFLOW_TRACKING_TOKEN", "wandb": "WANDB_API_KEY"}[tracker]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tracking._TRACKERS, tracker, refuse)
        for variable in (name, "MLFLOW_TRACKING_USERNAME"):
            patch.delenv(variable, raising=False)
        if is_set:
            patch.setenv(name, "old")
        with pytest.raises(DataError) as caught:
            tracking.export(load_config(None, [f"tracking.to={tracker}"]), None, "run")
    assert way_out in str(caught.value)
    assert (f"`export {name}=…`, then repeat" in str(caught.value)) == (way_out != "check tracking.uri")


@pytest.mark.parametrize(
    "uri", ["postgresql://me:hunter2hunter2@h/db", "http://me:${KEY_OF_MINE}@h?token=hunter2hunter2"]
)
def test_an_address_of_a_tracker_is_written_and_printed_without_its_password(uri, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KEY_OF_MINE", "hunter2secret")

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            assert "hunter2" in tracking_uri  # it is used

        def __getattr__(self, name: str):
            return lambda *args, **kwargs: SimpleNamespace(experiment_id="1", info=SimpleNamespace(run_id="r1"))

    mlflow = SimpleNamespace(MlflowClient=Client)
    entities = SimpleNamespace(Metric=lambda *args: None, Param=lambda *args: None)
    for name in ("mlflow", "alembic", "sqlalchemy"):
        monkeypatch.setitem(sys.modules, name, mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    config, summary = run_of(tmp_path, "tracking.to=mlflow", f"tracking.uri={uri}")
    where = track(config, summary, None)
    assert where is not None
    assert "hunter2" not in where
    assert "@h" not in where
    assert "hunter2" not in Path(summary.run, tracking.MARK).read_text()
    assert is_tracked(config)
    assert not is_tracked(run_of(tmp_path / "b", "tracking.to=mlflow", "tracking.uri=http://other")[0])


@pytest.mark.parametrize("kind", ["a directory", "a database", "the default"])
def test_mlflow_has_settings_figures_and_files(kind, tmp_path, monkeypatch, capfd):
    mlflow = pytest.importorskip("mlflow")
    if kind != "a directory":
        pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("KEY_OF_MINE", "hunter2secret")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    database = f"sqlite:///{tmp_path}/{'my' if kind == 'a database' else 'mlflow'}.db"
    store = str(tmp_path / "store") if kind == "a directory" else database
    given = "null" if kind == "the default" else store
    gateway = "deployments.gateway={kind: openai, base_url: 'http://127.0.0.1:1/v1', model: m}"
    config, summary = run_of(tmp_path, "tracking.to=mlflow", "tracking.project=water", f"tracking.uri={given}", gateway)
    Path(summary.run, "answers.jsonl").write_text("{}\n")
    where = [track(config, summary, scores_of(config, summary)[0]) for _ in range(2)]
    assert where[0].startswith("mlflow experiment water, run ")
    assert where[0] != where[1]
    assert capfd.readouterr() == ("", "")
    client = mlflow.MlflowClient(tracking_uri=store)
    [experiment] = [experiment for experiment in client.search_experiments() if experiment.name == "water"]
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    run = runs[0]
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["kohaku.top_k"] == "7"
    assert run.data.params["index.encoder.model"] == config.index.encoder.model
    assert len(run.data.params) > 100  # more than one request takes
    metrics = run.data.metrics
    assert {"wattbot", "wattbot.value", "kaggle"} <= metrics.keys()
    assert (metrics["used.dollars"], metrics["seconds"], metrics["n_questions"]) == (0.25, 3.0, 4)
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        name for name in tracking.ARTIFACTS if os.path.isfile(f"{summary.run}/{name}")
    }
    assert "submission.csv" in {file.path for file in client.list_artifacts(run.info.run_id)}


@pytest.mark.parametrize("uri", ["null", "store"])
def test_a_local_store_that_is_gone_gets_the_run_again(uri, tmp_path, monkeypatch):
    """users5 3.1: the store lay in the copy of a working directory that Ray deletes, the run was marked as exported."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    settings = ("tracking.to=mlflow", f"tracking.uri={uri}")
    copy = tmp_path / "session/runtime_resources/working_dir_files/_ray_pkg_0"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    with pytest.raises(
        ConfigError, match=r"tracking\.store is \S+_ray_pkg_0/(mlflow\.db|store): inside .* --set shared="
    ):
        track(*run_of(tmp_path, *settings), None)
    config, summary = run_of(tmp_path, *settings, f"shared={tmp_path}/shared")
    (tmp_path / "shared").mkdir()
    track(config, summary, None)
    assert not list(copy.iterdir())
    assert is_tracked(config)
    monkeypatch.chdir(tmp_path)
    assert is_tracked(config), "wherever it is asked from"
    os.rename(tmp_path / "shared", tmp_path / "moved")
    assert not is_tracked(config)
    with pytest.raises(ConfigError, match=r"tracking\.store is s3://b/x, where mlflow cannot write"):
        check_tracking(run_of(tmp_path, *settings, "tracking.store=s3://b/x")[0])


def test_mlflow_has_a_sweep_whose_runs_are_exported_once(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    store = str(tmp_path / "store")
    runs = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        config, summary = run_of(tmp_path / name, "tracking.to=mlflow", "tracking.project=s", f"tracking.uri={store}")
        Path(summary.run, "run.json").write_text(json.dumps({"run": summary.run, "n_questions": 4, "wall_s": 3.0}))
        runs[name] = config
    page = tmp_path / "top_k" / "index.html"
    page.parent.mkdir()
    page.write_text("<p>table</p>")
    loaded = SimpleNamespace(where="top_k.yaml")
    plan = SimpleNamespace(runs=runs, finished=runs, loaded=loaded, output=str(page.parent))
    where = track_sweep(plan, [str(page)], {"n_runs": 2.0})
    assert [line.startswith("mlflow experiment s, run ") for line in where] == [True] * 3
    assert all(is_tracked(config) for config in runs.values())
    assert track_sweep(plan, [str(page)], {"n_runs": 2.0}) == []
    client = mlflow.MlflowClient(tracking_uri=store)
    [experiment] = [experiment for experiment in client.search_experiments() if experiment.name == "s"]
    exported = client.search_runs([experiment.experiment_id], filter_string="tags.sweep = 'top_k'")
    assert sorted(run.info.run_name for run in exported) == ["run", "run", "top_k"]
    [whole] = [run for run in exported if run.info.run_name == "top_k"]
    assert whole.data.metrics == {"n_runs": 2.0}
    assert [file.path for file in client.list_artifacts(whole.info.run_id)] == ["index.html"]
    [scored, _] = [run for run in exported if run.info.run_name == "run"]
    assert "wattbot.value" in scored.data.metrics


def test_wandb_offline_has_settings_figures_and_files(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    config, summary = run_of(tmp_path, "tracking.to=wandb", "tracking.project=water")
    assert not is_tracked(config)
    where = track(config, summary, scores_of(config, summary)[0])
    assert where.startswith("wandb project water, run ")
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    recorded = log.read_bytes()
    for text in (b"top_k", b"wattbot.value", b"used.dollars"):
        assert text in recorded
    assert is_tracked(config)
    os.rename(tmp_path / "wandb", tmp_path / "gone")
    assert not is_tracked(config)
