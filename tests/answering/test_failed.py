"""Replies in runs: a member that fails has no ballot, a question that fails scores 0; a reply names its model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kit.rows import check_rows
from kit.runs_here import index_here, run_here

from kohaku_ray.answering.vote_files import run_vote
from kohaku_ray.api import Run
from kohaku_ray.config import load_config
from kohaku_ray.ensemble.vote import VoteRule
from kohaku_ray.errors import TransientModelError
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.pages.report import write_report
from kohaku_ray.records import FAILED, Reply

QUESTIONS = """id,question,answer_value,ref_id
q1,How many employees has the site?,300,alpha
q2,What will the site use in 2030?,is_blank,is_blank
"""


@pytest.fixture(scope="module")
def overrides(tmp_path_factory, tiny_encoder):
    """Settings of a run over one document, whose index is there."""
    home = tmp_path_factory.mktemp("failed")
    (home / "alpha.txt").write_text("Alpha campus report\n\nThe site has 300 employees. It is cooled by water.\n")
    (home / "questions.csv").write_text(QUESTIONS)
    given = [f"index.path={home}/index", f"documents.paths=[{home}/alpha.txt]", "documents.metadata=null"]
    given += [f"index.encoder.model={tiny_encoder}", f"questions.path={home}/questions.csv"]
    given += ["questions.metrics=[wattbot, exact]", "kohaku.queries=1", "kohaku.max_retries=0", "model=served"]
    given += ["deployments.served={kind: openai, base_url: 'http://127.0.0.1:1/v1', model: big, api_key_env: null}"]
    index_here(load_config("demo", given))
    return given


def reply(value="300", refs=("alpha",), **more):
    fields = {"explanation": "It says so.", "answer": "", "answer_value": value, "answer_unit": "", "ref_id": refs}
    return Reply(json.dumps(fields), 5000, 0, 20, **more)


def make(overrides, path: Path, answers, *more):
    """Make a run whose members get these replies to each question, in any order; None: the call fails."""
    n_asked = Counter()

    async def chat(request):
        question = "q1" if "How many employees" in request.messages[-1][1] else "q2"
        given = answers[question][n_asked[question]]
        n_asked[question] += 1
        if given is None:
            raise TransientModelError("HTTP 503")
        return given

    given = [*overrides, *more, f"ensemble.members={len(answers['q1'])}", "ensemble.early_stop=never"]
    return run_here(load_config("demo", [*given, f"run={path}/run", f"ledger.path={path}/ledger"]), chat)


def votes_of(run):
    return {row["question_id"]: row for row in pq.read_table(f"{run}/votes.parquet").to_pylist()}


@check_rows("rule", ["{blank_quorum: 0.5}", "{ignore_blank: false}", "{weights: agreement}", "{}"])
def test_a_member_that_failed_has_no_ballot(overrides, tmp_path_factory, rule):
    said = [reply(), reply(), None, None, None]
    run = make(overrides, tmp_path_factory.mktemp("r"), {"q1": said, "q2": said}, f"ensemble.vote={rule}")
    vote = votes_of(run)["q1"]
    assert (vote["answer_value"], vote["ref_ids"], vote["is_blank"]) == ("300", ["alpha"], False)
    assert (vote["n_members"], vote["n_blank"], vote["n_errors"]) == (5, 0, 3)
    assert (vote["groups"], len(vote["group_weights"])) == (["300"], 1)
    rows = [row for row in pq.read_table(f"{run}/answers.parquet").to_pylist() if row["question_id"] == "q1"]
    assert rows[vote["winner"]]["answer_value"] == "300"
    assert sum(row["error"] is not None for row in rows) == 3


def test_a_question_whose_members_all_failed_scores_0_and_is_said(overrides, tmp_path):
    """inspect_ai#3707, #4286, #4412: the failed calls of unanswerable questions were right abstentions."""
    run = make(overrides, tmp_path, {"q1": [reply()] * 2, "q2": [None, None]})
    submission = read_submission(f"{run}/submission.csv")
    assert submission.rows["q2"].explanation == f"{FAILED}TransientModelError: HTTP 503"
    assert submission.rows["q2"].is_failed
    assert not submission.rows["q1"].is_failed
    truth = next(text for text in overrides if text.startswith("questions.path=")).partition("=")[2]
    report = run_score(truth, [f"{run}/submission.csv"], ["wattbot", "exact"])
    assert [record["score"] for record in report.records] == [0.5, 0.5]
    [line] = report.files[0].notes
    assert line == (
        "1 failed, scored 0: q2; the file alone, which says is_blank there, would score 1.0000 by wattbot, 1.0000 by "
        "exact"
    )
    assert "1 failed, scored 0: q2" in Path(write_report(run)).read_text()
    whole = make(overrides, tmp_path / "whole", {"q1": [reply()] * 2, "q2": [reply("is_blank", ())] * 2})
    assert run_score(truth, [f"{whole}/submission.csv"], ["wattbot"]).records[0]["score"] == 1.0


def test_files_with_failed_rows_vote_without_them(overrides, tmp_path):
    failed = make(overrides, tmp_path / "f", {"q1": [None], "q2": [None]})
    whole = make(overrides, tmp_path / "w", {"q1": [reply()], "q2": [reply("is_blank", ())]})
    files = [f"{failed}/submission.csv", f"{failed}/submission.csv", f"{whole}/submission.csv"]
    voted = run_vote(files, VoteRule(blank_quorum=0.5))
    assert voted.rows[0].answer_value == "300"
    [one, other] = run_vote(files[:2], VoteRule()).rows
    assert one.is_failed
    assert other.is_failed


def test_replies_of_another_model_are_said_once(overrides, tmp_path):
    """agentgateway#1361, odysseus#868."""
    said = reply(served_model="cheap-fallback-1b")
    run = make(overrides, tmp_path, {"q1": [said] * 2, "q2": [said] * 2})
    line = "deployments.served.model is big, and its replies name cheap-fallback-1b (4 times)"
    assert Path(write_report(run)).read_text().count(line) == 1
    asked, facts = Run(load_config(f"{run}/config.yaml")), json.loads(Path(f"{run}/run.json").read_text())
    asked.summary = AnswerSummary(run, **{name: facts[name] for name in ("served_models", "asked_models")})
    assert asked.show_answer("q1").splitlines()[-1].startswith(line)
    again = make(overrides, tmp_path, {"q1": [None] * 2, "q2": [None] * 2}, "seed=0")
    assert json.loads(Path(f"{again}/run.json").read_text())["served_models"] == {"served": {"cheap-fallback-1b": 4}}
