"""Flat configurations that a system's importer reads: ``.env`` files and mappings without sections."""

from __future__ import annotations

import json

import pytest

from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.config.flat import read_env
from kohaku_ray.config.kohakurag import ConfigWarning
from kohaku_ray.errors import ConfigError

ENV = """# theirs
MMR_TOP_K=40  # fewer
export MIN_RELEVANCE="0.25"
LLM_API_KEY=sk-123
CHROMA_DIR=./db
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["theirs.env", ".env"])
def test_an_env_file_is_a_configuration(tmp_path, name):
    with pytest.warns(ConfigWarning) as told:
        config = load_config(write(tmp_path / name, ENV), ["seed=5"])
    assert config.system == "hybrid"
    assert (config.settings.mmr_top_k, config.settings.min_relevance, config.seed) == (40, 0.25, 5)
    [warning] = told
    assert "LLM_API_KEY (a key stands in the environment variable" in str(warning.message)
    assert "CHROMA_DIR (it has no meaning here)" in str(warning.message)
    assert "sk-123" not in str(warning.message)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_flat_file_most_of_whose_names_a_system_knows(tmp_path, suffix):
    values = {"mmr_top_k": 40, "kmeans_n_clusters": 5, "chroma_dir": "./db"}
    with pytest.warns(ConfigWarning, match="chroma_dir"):
        config = load_config(write(tmp_path / f"theirs.{suffix}", json.dumps(values)))
    assert (config.settings.mmr_top_k, config.settings.kmeans_n_clusters) == (40, 5)


def test_a_flat_file_of_other_names_is_none(tmp_path):
    with pytest.raises(ConfigError, match=r"no key mmr_top_k.*no key colour.*no key size"):
        load_config(write(tmp_path / "a.yaml", "mmr_top_k: 40\ncolour: red\nsize: 3"))


def test_a_file_with_a_section_of_ours_is_no_flat_one(tmp_path):
    with pytest.raises(ConfigError, match="no key mmr_top_k"):
        load_config(write(tmp_path / "a.yaml", "system: hybrid\nmmr_top_k: 40"))


def test_an_env_file_that_no_system_knows(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.env holds no name that a system reads from a \.env file: .* such as "):
        load_config(write(tmp_path / "a.env", "HOME=/root\n"))


def test_a_bad_line_is_named_by_its_number_alone():
    with pytest.raises(ConfigError, match=r"^a\.env: line 2 is no NAME=value") as caught:
        read_env("A=1\nsecret value\n", "a.env")
    assert "secret" not in str(caught.value)


def test_a_value_that_does_not_fit_is_named_by_our_key(tmp_path):
    with pytest.raises(ConfigError, match=r"hybrid\.mmr_top_k is 'many'"):
        load_config(write(tmp_path / "a.env", "MMR_TOP_K=many\n"))


def test_validate_reads_an_env_file_and_says_what_it_left_out(tmp_path, capsys):
    sample = ["documents.paths=[sample:news/articles.csv]", "questions.path=sample:news/questions_news.csv"]
    own = [f"index.path={tmp_path}/index", f"run={tmp_path}/run", "cluster.num_cpus=8"]
    overrides = [part for text in (*sample, *own) for part in ("--set", text)]
    code = main(["validate", write(tmp_path / "theirs.env", ENV), *overrides])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert said.out.splitlines()[-1] == "valid"
    assert "CHROMA_DIR (it has no meaning here)" in said.err
