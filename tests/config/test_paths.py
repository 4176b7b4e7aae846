"""Paths in a file are relative to it; those of presets and overrides, to the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kohaku_ray.config import load_config
from kohaku_ray.settings import resolve_paths
from kohaku_ray.sweep.load import load_sweep


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with its configurations in a directory of their own, used from elsewhere."""
    (tmp_path / "project" / "configs").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def write(name: str, **values: object) -> str:
        (tmp_path / "project" / name).write_text(yaml.safe_dump(values))
        return f"../project/{name}"

    return write


def test_every_path_of_a_file_is_relative_to_the_file(project):
    path = project(
        "configs/mine.yaml",
        run="../runs/mine",
        prompts="prompts",
        documents={"paths": ["docs", "/data", "s3://bucket/x", "sample:documents", "~/x"], "metadata": "./meta.csv"}
        | {"images": "pictures"},
        questions={"path": "questions.csv"},
        index={"path": "../index", "encoder": {"model": "./model"}, "image_encoder": {"model": "./clip"}}
        | {"images": True, "image_vectors": "image"},
        ledger={"path": "../ledger"},
        deployments={"big": {"kind": "vllm", "model": "./llama"}, "hub": {"kind": "vllm", "model": "Qwen/Qwen3-8B"}},
        roles={"answer": {"model": "big"}},
    )
    config = load_config(path, ["cluster.num_cpus=2"])
    here = "../project/configs"
    assert (config.run, config.prompts) == ("../project/runs/mine", f"{here}/prompts")
    assert config.documents.paths == (f"{here}/docs", "/data", "s3://bucket/x", "sample:documents", "~/x")
    assert config.documents.metadata == f"{here}/meta.csv"
    assert config.questions.path == f"{here}/questions.csv"
    assert (config.index.path, config.ledger.path) == ("../project/index", "../project/ledger")
    assert config.index.encoder.model == f"{here}/model"
    assert config.documents.images == f"{here}/pictures"
    assert config.index.image_encoder.model == f"{here}/clip"
    assert resolve_paths(config).index.image_encoder.model == str(Path(here).resolve() / "clip")
    assert [config.deployments[name].model for name in ("big", "hub")] == [f"{here}/llama", "Qwen/Qwen3-8B"]


def test_each_file_of_a_chain_has_its_own_directory_and_an_override_the_working_one(project):
    project("base.yaml", documents={"paths": ["docs"]}, questions={"path": "questions.csv"}, base="demo")
    path = project("configs/mine.yaml", base="../base.yaml", questions={"path": "own.csv"})
    config = load_config(path, ["documents.metadata=meta.csv"])
    assert config.documents.paths == ("../project/docs",)
    assert config.questions.path == "../project/configs/own.csv"
    assert config.documents.metadata == "meta.csv"
    assert (config.run, config.index.path) == ("runs/demo", "runs/demo/index")  # of a preset


def test_the_index_is_in_the_runs_directory_unless_it_has_a_path(project):
    assert load_config(project("a.yaml", run="runs/a")).index.path == "../project/runs/a/index"
    assert load_config(project("b.yaml", run="runs/b", index={"factory": "Flat"})).index.path.endswith("runs/b/index")
    assert load_config("default", ["run=runs/c"]).index.path == "runs/c/index"
    assert load_config("default", ["run=runs/c", "index.path=i"]).index.path == "i"


@pytest.mark.parametrize(("shared", "after"), [("/s", ""), ("s3://b/p?region=r", "?region=r")])
def test_relative_outputs_lie_in_the_shared_directory(project, shared, after):
    def outputs(*overrides: str) -> tuple[str, str, str]:
        config = load_config(
            project("a.yaml", run="runs/a", documents={"paths": ["docs"]}), [f"shared={shared}", *overrides]
        )
        assert config.documents.paths == ("../project/docs",), "inputs are not moved"
        return config.run, config.index.path, config.ledger.path

    home = shared.removesuffix(after)
    assert outputs() == (f"{home}/runs/a{after}", f"{home}/runs/a/index{after}", f"{home}/runs/ledger{after}")
    assert outputs("index.path=i", "ledger.path=/l", "run=~/r") == ("~/r", f"{home}/i{after}", "/l")


def test_a_sweeps_paths_are_relative_to_it(project):
    project("configs/mine.yaml", base="demo", documents={"paths": ["docs"]})
    path = project(
        "sweep.yaml",
        base="configs/mine.yaml",
        runs="runs",
        set={"documents.metadata": "m.csv"},
        axes={
            "questions.path": ["a.csv", "b.csv"],
            "prompts": {"own": "p", "other": {"prompts": "q", "kohaku.top_k": 8}},
        },
    )
    loaded = load_sweep(path)
    [table] = loaded.sweep.tables
    assert loaded.sweep.runs == "../project/runs"
    configs = [loaded.config(table, setting, 0) for setting in table.settings()]
    assert {config.documents.paths for config in configs} == {("../project/configs/docs",)}
    assert {config.documents.metadata for config in configs} == {"../project/m.csv"}
    assert [config.questions.path for config in configs[:2]] == ["../project/a.csv", "../project/b.csv"]
    assert [config.prompts for config in configs[::2]] == ["../project/q", "../project/p"]
    assert next(dict(setting.labels) for setting in table.settings()) == {"prompts": "other", "questions.path": "a.csv"}
