"""When a run is finished already, and what is said of a finished one that another configuration or version made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from kit.runs_here import index_here, run_here

from kohaku_ray import Run
from kohaku_ray.config import Config, as_yaml, load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.runs.identity import finished_before
from kohaku_ray.sample import path as sample_path


@pytest.fixture
def config(tiny_encoder, tmp_path) -> Config:
    small = ["questions.limit=2", "ensemble.members=1", "documents.paths=[sample:documents/vance2025.md]"]
    places = {"run": "run", "index.path": "index", "ledger.path": "ledger"}
    overrides = [f"{key}={tmp_path}/{name}" for key, name in places.items()]
    made = load_config("demo", [*small, f"index.encoder.model={tiny_encoder}", *overrides])
    index_here(made)
    run_here(made)
    return made


def changed(config: Config, section: str, **values: object) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def test_equal_inputs_are_finished_wherever_they_lie(config, tmp_path):
    """A run that was submitted was made again, and paid again, from a shell (users5.md 2.1)."""
    summary = finished_before(config)
    assert summary is not None
    questions, index = tmp_path / "questions.csv", tmp_path / "moved"
    shutil.copy(sample_path("questions.csv"), questions)
    shutil.copytree(config.index.path, index)
    other = changed(config, "questions", path=str(questions))
    other = changed(other, "ledger", path=f"{tmp_path}/another-ledger")
    other = changed(changed(other, "index", path=str(index)), "cluster", block_size=3)
    assert finished_before(other) == summary
    assert finished_before(other.model_copy(update={"seed": 1})) is None
    assert finished_before(changed(config, "questions", metrics=("answer",))) is None, "its page has no such score"
    questions.write_text(questions.read_text().replace("?", "??"))
    assert finished_before(other) is None


def test_an_index_that_is_built_again_of_the_same_texts_leaves_its_runs_finished(config, tmp_path):
    """A job that was submitted again, whose folder Ray unpacks elsewhere, was refused for its finished run."""
    summary, folder = finished_before(config), tmp_path / "unpacked"
    folder.mkdir()
    page = folder / "vance2025.md"
    page.write_text(Path(sample_path("documents/vance2025.md")).read_text())
    moved = changed(config, "documents", paths=(str(page),))
    assert summary is not None
    for again in (False, True):  # over the index that is there, and from nothing
        if again:
            shutil.rmtree(config.index.path)
        index_here(moved)
        assert finished_before(moved) == summary
        Run(moved).find()
    page.write_text(f"{page.read_text()}\nOne line more.\n")
    index_here(moved)
    assert finished_before(moved) is None


def test_defaults_of_another_version_are_not_called_another_configuration(config):
    """Seven keys that nobody had written were said to differ (users5.md 2.5)."""
    facts = json.loads(Path(config.run, "run.json").read_text())
    assert facts["versions"]["kohaku_ray"].startswith("0.2.0+"), "commits of one version differ"
    written = yaml.safe_load(as_yaml(config))
    written["index"]["bm25"]["language"], written["index"]["encoders"] = "en", 4
    Path(config.run, "config.yaml").write_text(yaml.safe_dump(written))
    facts |= {"identity": "another", "versions": {"kohaku_ray": "0.1.0"}}
    other = changed(config, "settings", top_k=3)
    defaults = r"finished run of version 0\.1\.0, whose defaults differ .*bm25\.language is 'en' there, None here"
    for settings in (facts["settings"], None):  # None: earlier versions did not note them
        facts["settings"] = settings
        Path(config.run, "run.json").write_text(json.dumps({key: fact for key, fact in facts.items() if fact}))
        with pytest.raises(ConfigError, match=rf"{defaults}.*calls are made that the ledger {config.ledger.path}"):
            Run(config).find()
        with pytest.raises(ConfigError, match=r"run of another configuration \(kohaku\.top_k is \d+ there, 3 here\)"):
            Run(other).find()


def test_where_ray_unpacked_a_job_is_said_of_no_run_that_differs_otherwise(config):
    """users6.md 4: four such paths, 500 characters, stood before the one setting that mattered."""
    copies = "/tmp/ray/session_1/runtime_resources/working_dir_files"
    paths = [f"{copies}/_ray_pkg_{name}/docs" for name in ("0f", "1e")]
    written = yaml.safe_load(as_yaml(config))
    written["documents"]["paths"] = [paths[0]]
    Path(config.run, "config.yaml").write_text(yaml.safe_dump(written))
    facts = json.loads(Path(config.run, "run.json").read_text())
    facts |= {"identity": "another", "settings": {**facts["settings"], "documents.paths": f"('{paths[0]}',)"}}
    Path(config.run, "run.json").write_text(json.dumps(facts))
    other = changed(changed(config, "settings", top_k=3), "documents", paths=(paths[1],))
    with pytest.raises(ConfigError, match=r"of another configuration \(kohaku\.top_k is \d+ there, 3 here\)"):
        Run(other).find()
    same = changed(config, "documents", paths=(paths[1],))  # submitted again, after `index` was, too
    others = r"\(its settings are these, but documents, questions or code are others\): give --again"
    with pytest.raises(ConfigError, match=others):
        Run(same).find()
