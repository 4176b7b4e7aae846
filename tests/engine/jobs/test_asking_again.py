"""What is asked again and what is not: recorded garbage, failed plans, and runs that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.answers import fake, rows_of, steps_of
from kit.fake_openai import Action, FakeOpenAI, completion, is_plan

from kohaku_ray.cli import main
from kohaku_ray.config import as_yaml
from kohaku_ray.engine.jobs import answer
from kohaku_ray.models.request import seed_for
from kohaku_ray.pages.run_text import show_question
from kohaku_ray.runs.identity import is_finished

pytestmark = pytest.mark.ray

SMALL = ("questions.limit=3", "ensemble.members=2", "kohaku.max_retries=0")


@pytest.mark.slow
def test_garbage_is_asked_again_by_retry_errors_alone(
    sample_config, run_answer, keep_up, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(answer, "run_answer", run_answer)
    wrong = {("s002", 0), ("s003", 0), ("s003", 1)}
    garbled = {seed_for(0, question, member, 0, "answer") for question, member in wrong}
    is_bad = True

    def script(index, body):
        return Action(body=completion("I would rather not say.")) if is_bad and body["seed"] in garbled else None

    with FakeOpenAI(script) as server:
        config = sample_config(*fake(server), *SMALL, "kohaku.queries=1")
        keep_up(config.used_deployments)
        (tmp_path / "config.yaml").write_text(as_yaml(config))
        command = ["answer", str(tmp_path / "config.yaml"), "--no-report"]
        assert main(command) == 3
        assert server.n_requests == 6
        first = {(row["question_id"], row["member"]): row for row in rows_of(config.run, "answers")}
        assert {key for key, row in first.items() if row["error"]} == wrong

        is_bad = False
        assert main(command) == 3
        assert server.n_requests == 6, "garbage is recorded: the same command asks nothing"
        assert "3 of 6 answers carry an error" in capsys.readouterr().out

        assert main([*command, "--retry", "errors"]) == 0
        assert {received.body["seed"] for received in server.log[6:]} == garbled
        assert server.n_requests == 6 + len(wrong)
        second = {(row["question_id"], row["member"]): row for row in rows_of(config.run, "answers")}
        assert {key for key, row in second.items() if row != first[key]} == wrong
        assert not any(row["error"] for row in second.values())
        assert all(second[key]["answer_value"] for key in wrong)

        assert main([*command, "--retry", "errors"]) == 0
        assert server.n_requests == 6 + len(wrong), "no row is in error any more"


@pytest.mark.slow
def test_a_plan_that_got_no_reply_leaves_the_run_unfinished_and_is_asked_again(sample_config, run_answer, keep_up):
    is_closed = True

    def script(index, body):
        closed = is_closed and is_plan(body) and "State of Ostra" in str(body["messages"])
        return Action(400, {"error": {"message": "not this one"}}) if closed else None

    with FakeOpenAI(script) as server:
        config = sample_config(*fake(server), "questions.limit=4", "ensemble.members=2", "kohaku.max_retries=0")
        keep_up(config.used_deployments)
        summary = run_answer(config)
        assert (summary.n_questions, summary.n_unanswered, summary.n_member_errors) == (4, 1, 0)
        plan = [row for row in steps_of(config.run, "plan") if row["question_id"] == "s004"]
        assert len(plan) == 1, "the question alone is searched"
        assert "not this one" in plan[0]["error"]
        assert "not this one" in show_question(config.run, "s004", 3)
        assert json.loads(Path(config.run, "run.json").read_text())["n_unanswered"] == 1
        assert not is_finished(config.run)

        is_closed, n_before = False, server.n_requests
        again = run_answer(config)
        asked = [received.body for received in server.log[n_before:]]
        assert [is_plan(body) for body in asked] == [True, False, False], "its plan and its answers"
        assert all("State of Ostra" in str(body["messages"]) for body in asked)
        assert again.n_unanswered == 0
        assert is_finished(config.run)
        plan = [row for row in steps_of(config.run, "plan") if row["question_id"] == "s004"]
        assert len(plan) == 3
        assert {row["error"] for row in plan} == {None}
