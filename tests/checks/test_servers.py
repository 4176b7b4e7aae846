"""Servers and models are looked for before a job starts anything; what got no reply at all is not scored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit.fake_openai import Action, FakeOpenAI, error_body
from run_files import small_run, small_truth

from kohaku_ray.checks.gold import GoldFindings
from kohaku_ray.cli import main
from kohaku_ray.engine import session
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.records import Reply
from kohaku_ray.runs.identity import model_parts
from kohaku_ray.runs.scoring import score_run
from kohaku_ray.store.segments import Entry, SegmentStore

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command that must not start Ray, with one deployment of a server; returns exit code and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "connect", lambda *_: pytest.fail("Ray was started"))
    silent = {"identity_of": "x", "difference": "", "parser_note": "", "check_gold": GoldFindings("")}
    for name, made in {"open_index": None, **silent}.items():
        monkeypatch.setattr(f"kohaku_ray.checks.run.{name}", lambda *_, made=made, **__: made)
    monkeypatch.setattr("kohaku_ray.answering.here.open_index", lambda _: None)

    def command(*arguments: str, model: str = "small", url: str = NOWHERE) -> tuple[int, str]:
        deployment = {"kind": "openai", "model": model, "api_key_env": None, "base_url": url}
        overrides = [f"deployments.mine={json.dumps(deployment)}", "model=mine", "run=r/new"]
        code = main([*arguments, *(part for item in overrides for part in ("--set", item))])
        return code, capsys.readouterr().err

    return command


@pytest.mark.parametrize(
    "arguments", [("answer", "demo"), ("ask", "demo", "Why?"), ("sweep", "rerank", "--base", "demo")]
)
def test_a_server_that_is_not_there_is_said_before_anything_starts(command, arguments, tmp_path):
    code, printed = command(*arguments)
    assert code == 1
    assert f"deployments.mine cannot be reached ({NOWHERE}: ConnectError" in printed
    assert "start the server, or correct deployments.mine.base_url" in printed
    assert not [path for path in tmp_path.rglob("*") if path.name not in ("asked", "question.jsonl") and path.is_file()]


def test_a_model_that_the_server_has_not_is_said_with_those_it_has(command):
    missing = Action(404, error_body("The model `smal` does not exist", "model_not_found"))
    with FakeOpenAI(lambda index, body: missing, models=["small", "large"]) as server:
        code, printed = command("answer", "demo", model="smal", url=server.base_url)
    assert code == 2
    assert (
        "deployments.mine.model is smal: not among the server's 2 models (large, small) (did you mean small?)"
        in printed
    )


def test_a_model_under_another_name_is_used(command):
    """A gateway answers to names that it does not list."""
    with FakeOpenAI(models=["small"]) as server, pytest.raises(pytest.fail.Exception, match="Ray was started"):
        command("answer", "demo", model="alias", url=server.base_url)


@pytest.mark.parametrize("arguments", [("answer", "demo"), ("sweep", "rerank", "--base", "demo")])
def test_a_recorded_run_needs_no_server(command, tmp_path, capsys, arguments):
    """But replies of another model, such as the baseline's before the first run on a server, are no help."""
    mine = OpenAIConfig(kind="openai", model="small", base_url=NOWHERE, api_key_env=None)
    for path in ("runs/demo/ledger", "runs/ledger"):  # of the run, of the sweep
        SegmentStore(str(tmp_path / path)).write([("a" * 64, Entry(Reply("yes"), "extractive", 0.1))])
    assert command(*arguments)[0] == 1
    for path in ("runs/demo/ledger", "runs/ledger"):
        SegmentStore(str(tmp_path / path)).write([("b" * 64, Entry(Reply("yes"), mine.model_identity, 0.1))])
    with pytest.raises(pytest.fail.Exception, match="Ray was started"):
        command(*arguments)
    assert f"{arguments[0]:<8}warning: deployments.mine cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("answer", "demo"), ("sweep", "rerank", "--base", "demo")])
def test_a_ledger_that_a_job_of_another_cluster_uses_is_said_too(command, tmp_path, arguments, monkeypatch):
    """It took 24 to 28 s, since Ray was started first; and the advice did not say that calls are made again."""
    monkeypatch.setattr("kohaku_ray.engine.session.LEASE_WAIT_S", 0.1)
    for path in ("runs/demo/ledger", "runs/ledger"):  # of the run, of the sweep
        SegmentStore(str(tmp_path / path)).lease.acquire("another cluster")
    with FakeOpenAI(models=["small"]) as server:
        code, printed = command(*arguments, url=server.base_url)
    assert code == 1
    assert f"/ledger belongs to process {os.getpid()} on " in printed
    assert "ledger  waiting up to 0.1 s: ledger " in printed, "one that was killed ends meanwhile (attack6 B12)"
    assert "or set ledger.path to another directory, which makes all calls again" in printed


def test_a_window_of_auto_is_what_the_server_says(command, capsys):
    """users5.md 2.14: a server of 32,768 tokens was refused, as the preset says 131,072: each needed a YAML."""
    with FakeOpenAI(models={"small": 32768, "tiny": 2048}) as server:

        def of(model: str, **more) -> OpenAIConfig:
            return OpenAIConfig(model=model, base_url=server.base_url, api_key_env=None, **more)

        auto = of("small", window_tokens="auto")
        assert [auto.window, auto.window] == [32768, 32768]
        assert auto.model_dump()["window_tokens"] == 32768, "a replay asks no server"
        assert model_parts(auto) == model_parts(of("small", window_tokens=32768)), "the same run"
        given = {"kind": "openai", "api_key_env": None, "base_url": server.base_url, "window_tokens": "auto"}
        for model, code, text in (("small", 0, "it answers"), ("tiny", 2, "the window of mine is 2,048 tokens")):
            overrides = [f"deployments.mine={json.dumps({**given, 'model': model})}", "model=mine", "run=r/new"]
            more = ["roles.answer.max_tokens=4096"]
            flags = [part for item in [*overrides, *more] for part in ("--set", item)]
            assert main(["validate", "demo", *flags]) == code
            printed = capsys.readouterr()
            assert text in printed.out + printed.err
    with (
        FakeOpenAI(models=["other"]) as server,
        pytest.raises(ConfigError, match=r"\(other\) has no max_model_len of m"),
    ):
        _ = OpenAIConfig(model="m", base_url=server.base_url, api_key_env=None, window_tokens="auto").window
    with pytest.raises(ConfigError, match=r"window_tokens is auto and the server does not say it .*: start it, or set"):
        _ = OpenAIConfig(model="m", base_url=NOWHERE, api_key_env=None, window_tokens="auto").window


@pytest.mark.parametrize(
    ("n_errors", "n_unanswered", "is_scored"), [(12, 12, False), (12, 3, True), (4, 4, True), (0, 0, True)]
)
def test_a_run_whose_calls_got_no_reply_at_all_is_not_scored(tmp_path, n_errors, n_unanswered, is_scored):
    run, truth = small_run(tmp_path / "run"), small_truth(tmp_path / "t.csv")
    facts = {"n_answers": 12, "n_member_errors": n_errors, "n_unanswered": n_unanswered, "errors": {"no way": n_errors}}
    Path(run, "run.json").write_text(json.dumps(facts))
    scored, why_not = score_run(str(run), str(truth), ["wattbot"], None)
    assert (scored is not None) == is_scored
    assert why_not == ("" if is_scored else "Nothing is scored: no model call got a reply (no way).")
