"""The jobs from Python, and single questions."""

from __future__ import annotations

import io
import json

import polars as pl
import pytest

from kohaku_ray import Run, load_config, score, vote
from kohaku_ray.cli import main
from kohaku_ray.config import as_yaml
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.sample import path as sample_path
from kohaku_ray.store.storage import join_path, read_file

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def run(sample_here, pool, tmp_path_factory):
    """A small run over the sample's index, on the session's actors."""
    home = tmp_path_factory.mktemp("api")
    flags = [f"index.path={sample_here}", f"ledger.path={home}/ledger", f"run={home}/run"]
    made = Run(load_config("demo", [*flags, "questions.limit=3", "ensemble.members=2"]))
    made._pool = pool
    return made


def test_a_run_from_python_gives_frames(run):
    assert run.answer() is run
    assert run.votes["question_id"].to_list() == ["s001", "s002", "s003"]
    assert run.answers.shape[0] == 6
    assert isinstance(run.trace, pl.DataFrame)
    assert set(run.usage["member"].to_list()) == {-1, 0, 1}
    assert run.scores["metric"].to_list() == ["wattbot", "kaggle"]
    assert run.scores["n"].to_list() == [3, 3]
    summary = run.summary
    assert Run(run.config).answer().summary == summary  # finished: nothing is started
    voted = vote([run.path, run.path])
    assert [row.question_id for row in voted.rows] == ["s001", "s002", "s003"]
    assert score(sample_path("questions.csv"), [run.path]).records[0]["n"] == 41


@pytest.mark.slow
def test_questions_are_asked_one_by_one_without_actors(run, monkeypatch, tmp_path, capsys):
    from kohaku_ray.engine import session

    started = []
    pool = session.ActorPool
    monkeypatch.setattr(session, "ActorPool", lambda *given: started.append(1) or pool(*given))
    run = Run(run.config)
    with run:
        first = run.ask("How many employees does the institute have?")
        second = run.ask("What is the area of the island?", answer_unit="km2")
        with pytest.raises(ConfigError, match="this run is open already"):
            run.__enter__()
        assert started == [], "a question alone needs none"
        run.answer(again=True)
    assert len(started) == 1
    assert first.votes["question"].to_list() == ["How many employees does the institute have?"]
    assert second.votes["asked_unit"].to_list() == ["km2"]
    assert first.path.startswith(f"{run.path}/asked/q")
    assert "vote" in first.show()
    with pytest.raises(DataError, match="the question is empty"):
        run.ask("  ")
    # From the command line the same question is known: nothing is started.
    (tmp_path / "run.yaml").write_text(as_yaml(run.config))
    assert main(["ask", str(tmp_path / "run.yaml"), "How many employees does the institute have?"]) == 0
    assert len(started) == 1
    assert "members agree" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("\nHow many employees does the institute have?\n"))
    assert main(["ask", str(tmp_path / "run.yaml"), "--watch"]) == 0
    assert len(started) == 1
    assert main(["ask", str(tmp_path / "run.yaml")]) == 2
    assert main(["ask", str(tmp_path / "run.yaml"), "x", "--column", "unit"]) == 2
    assert "expected NAME=TEXT" in capsys.readouterr().err


def test_a_question_of_a_run_on_s3_is_answered_beside_it(run, s3, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    home = s3.uri("ask/run")
    s3_run = Run(run.config.model_copy(update={"run": home}))
    s3_run._pool = run._pool
    asked = s3_run.ask("How many employees does the institute have?", answer_unit="km2")
    assert asked.path.startswith(s3.uri("ask/run/asked/q").partition("?")[0])
    assert json.loads(read_file(join_path(asked.path, "question.jsonl")))["answer_unit"] == "km2"
    assert asked.votes["asked_unit"].to_list() == ["km2"]
    assert list(tmp_path.iterdir()) == [], "nothing is written here"
    # From the command line the same question is known: nothing is started.
    (tmp_path / "run.yaml").write_text(as_yaml(s3_run.config))
    question = ["How many employees does the institute have?", "--column", "answer_unit=km2"]
    assert main(["ask", str(tmp_path / "run.yaml"), *question, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == asked.path
    assert [file.name for file in tmp_path.iterdir()] == ["run.yaml"]
