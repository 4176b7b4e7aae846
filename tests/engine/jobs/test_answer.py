"""The answer job on a real cluster: every row in comes out, voted, cited, and the same again."""

from __future__ import annotations

import csv
import itertools
import json
import random
import re
from pathlib import Path

import pytest
from kit.answers import COMPARED, fake, rows_of, steps_of
from kit.fake_openai import Action, FakeOpenAI, completion, default_text, doc_ids_of, text_of
from kit.refusals import ASKED, NO_USAGE, QUOTES
from ray import serve

from kohaku_ray.api import Run
from kohaku_ray.checks.deployments import target_of
from kohaku_ray.cli import main
from kohaku_ray.config import as_yaml, load_config
from kohaku_ray.engine.actors import pool as pool_module
from kohaku_ray.engine.jobs import answer as answer_job
from kohaku_ray.engine.jobs.answer import run_answer as run_answer_alone
from kohaku_ray.ensemble.vote import Ballot, vote
from kohaku_ray.errors import ConfigError, DataError, IndexMismatchError, ModelError
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.pages import terminal
from kohaku_ray.runs.identity import finished_before
from kohaku_ray.sample import path as sample_path
from kohaku_ray.store.segments import SegmentStore

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def sample_run(sample_here, pool, tmp_path_factory):
    """One whole run of the sample, five members, extractive."""
    home = tmp_path_factory.mktemp("answers")
    config = load_config("demo", [f"index.path={sample_here}", f"ledger.path={home}/ledger", f"run={home}/run"])
    return config, run_answer_alone(config, pool=pool)


def test_rows_in_are_rows_out_in_the_questions_order(sample_run):
    config, summary = sample_run
    truth = read_submission(sample_path("questions.csv"))
    written = read_submission(f"{summary.run}/submission.csv")
    assert list(written.rows) == list(truth.rows)
    answers = rows_of(summary.run, "answers")
    wanted = [(question_id, member) for question_id in truth.rows for member in range(config.ensemble.members)]
    assert [(row["question_id"], row["member"]) for row in answers] == wanted
    assert (summary.n_questions, summary.n_member_errors) == (len(truth.rows), 0)
    assert json.loads(Path(summary.run, "run.json").read_text())["status"] == "finished"
    [record] = run_score(sample_path("questions.csv"), [f"{summary.run}/submission.csv"]).records
    assert record["score"] > 0.55, "the baseline is a useful one"
    assert record["missing"] == 0


def test_each_row_is_the_vote_of_its_members(sample_run):
    config, summary = sample_run
    answers = rows_of(summary.run, "answers")
    members = config.ensemble.members
    for index, row in enumerate(rows_of(summary.run, "votes")):
        mine = answers[index * members : (index + 1) * members]
        ballots = [
            Ballot(a["answer_value"], tuple(a["ref_ids"]), a["is_blank"], a["answer"], a["answer_unit"]) for a in mine
        ]
        verdict = vote(ballots, config.ensemble.vote, row["asked_unit"])
        assert (row["answer_value"], row["ref_ids"]) == (verdict.answer_value, list(verdict.ref_ids))
        assert row["is_blank"] == verdict.is_blank


def test_citations_stand_in_the_evidence_and_carry_their_address(sample_run):
    _, summary = sample_run
    seen: dict[str, set[str]] = {}
    for row in steps_of(summary.run, "evidence"):
        seen.setdefault(row["question_id"], set()).add(row["doc_id"])
    cited = 0
    for row in rows_of(summary.run, "answers"):
        assert set(row["ref_ids"]) <= seen.get(row["question_id"], set())
        cited += len(row["ref_ids"])
    assert cited > 50
    for row in read_submission(f"{summary.run}/submission.csv").rows.values():
        assert len(row.ref_urls) == len(row.ref_ids)
        assert all(url.startswith("https://example.org/") for url in row.ref_urls)


def test_the_same_command_again_replays_to_the_byte(sample_run, run_answer):
    config, summary = sample_run
    again = run_answer(config.model_copy(update={"run": f"{summary.run}-again"}))
    assert again.n_calls["made"] == 0
    assert again.n_calls["ledger"] == sum(summary.n_calls.values())
    for name in COMPARED:
        assert Path(again.run, name).read_bytes() == Path(summary.run, name).read_bytes(), name


def test_a_driver_that_is_lost_before_its_files_are_whole_finds_the_parts_again(
    sample_run, run_answer, tmp_path, monkeypatch
):
    config, summary = sample_run
    config = config.model_copy(update={"run": f"{tmp_path}/run"})

    def lose(*_: object) -> None:
        raise DataError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(pool_module.RunWork, "finish", lose)
        with pytest.raises(DataError, match="lost"):
            run_answer(config)
    assert list(Path(config.run, "parts").iterdir()), "every row is on disk"
    monkeypatch.setattr(pool_module.RunWork, "submit", lose)
    again = run_answer(config)
    assert again.n_calls == {**summary.n_calls, "made": 0, "ledger": sum(summary.n_calls.values())}
    for name in COMPARED:
        assert Path(config.run, name).read_bytes() == Path(summary.run, name).read_bytes(), name
    assert not Path(config.run, "parts").exists()


def test_a_finished_run_is_not_repeated_unless_something_it_depends_on_has_changed(sample_run, tmp_path, capsys):
    config, summary = sample_run
    assert finished_before(config) == summary
    assert finished_before(config.model_copy(update={"seed": 1})) is None
    (tmp_path / "run.yaml").write_text(as_yaml(config))
    assert main(["answer", str(tmp_path / "run.yaml")]) == 0
    assert "finished before, with the same inputs: nothing to do" in capsys.readouterr().out


def test_a_finished_run_is_exported_without_being_made_again(sample_run, tmp_path, capsys):
    pytest.importorskip("mlflow")
    config, summary = sample_run
    (tmp_path / "run.yaml").write_text(as_yaml(config))
    try:
        for uri, code in (("http://127.0.0.1:9", 3), (f"{tmp_path}/store", 0), (f"{tmp_path}/store", 0)):
            tracking = ["--set", "tracking.to=mlflow", "--set", f"tracking.uri={uri}"]
            assert main(["answer", str(tmp_path / "run.yaml"), *tracking]) == code
            printed = capsys.readouterr()
            assert "finished before, with the same inputs: nothing to do" in printed.out
            assert ("mlflow did not take them" in printed.err) == bool(code)
            assert "Traceback" not in printed.err
    finally:
        Path(summary.run, "tracked.json").unlink(missing_ok=True)
    assert finished_before(config) == summary


def test_the_run_of_another_configuration_is_replaced_only_if_asked(sample_run, tmp_path, capsys):
    config, summary = sample_run
    before = Path(summary.run, "submission.csv").read_bytes()
    other = config.model_copy(update={"seed": config.seed + 1})
    message = f"seed is {config.seed} there, {config.seed + 1} here\\): give --again to replace it, or --set run=DIR"
    for retry_errors in (False, True):
        with pytest.raises(ConfigError, match=message):
            Run(other).answer(retry_errors=retry_errors)
    (tmp_path / "run.yaml").write_text(as_yaml(other))
    assert main(["answer", str(tmp_path / "run.yaml"), "--retry", "errors"]) == 2
    assert "give --again to replace it" in capsys.readouterr().err
    assert Path(summary.run, "submission.csv").read_bytes() == before


def test_an_index_of_other_documents_is_warned_of_and_refused_if_strict(sample_config, tmp_path, run_answer, capsys):
    (tmp_path / "docs").mkdir()
    for name in ("other.md", "more.md"):
        (tmp_path / "docs" / name).write_text("# Other\n\nSomething else.")
    config = sample_config(f"documents.paths=[{tmp_path}/docs]", "questions.limit=1", "ensemble.members=1")
    with pytest.raises(IndexMismatchError, match=r"2 of the configured files are not in it \(more\.md, other\.md\)"):
        run_answer(config, strict=True)
    assert not Path(config.run, "config.yaml").exists()
    run_answer(config)
    assert "13 of its files are not there now" in capsys.readouterr().err
    assert finished_before(config) is None  # it is warned of again


def test_show_prints_the_prompts_as_sent(sample_run, capsys):
    _, summary = sample_run
    assert main(["--json", "show", summary.run, "s003", "--prompt"]) == 0
    shown = json.loads(capsys.readouterr().out)
    usage = [row for row in rows_of(summary.run, "usage") if row["question_id"] == "s003"]
    assert sum(len(prompt["members"]) for prompt in shown["prompts"]) == len(usage)
    answers = [prompt for prompt in shown["prompts"] if prompt["role"] == "answer"]
    context = [row["text"] for row in steps_of(summary.run, "context") if row["question_id"] == "s003"]
    [[_, user]] = [message for message in answers[0]["messages"] if message[0] == "user"]
    assert all(" ".join(text.split()) in user for text in context[:3])


@pytest.mark.slow
def test_a_block_that_takes_long_counts_the_questions_that_are_answered(sample_config, run_answer, monkeypatch, capsys):
    monkeypatch.setattr(answer_job, "SAY_EVERY_S", 0.2)
    monkeypatch.setattr(terminal, "LINES_EVERY_S", (0.2, 300.0))
    first: dict[str, object] = {}

    def script(index, body):
        return Action(delay_s=3 * (body["messages"] != first.setdefault("asked", body["messages"])))

    settings = ("questions.limit=2", "cluster.block_size=2", "ensemble.members=2", "kohaku.queries=1")
    with FakeOpenAI(script) as server:
        run_answer(sample_config(*fake(server), *settings))
    printed = capsys.readouterr().err
    assert re.search(r"answer  1 replica up after \d+ s: asking\n", printed)
    waits = (
        r"answer  1/2 questions .* 1 replica up, 2 model calls in flight, 2 answered, 200 prompt tokens read, \d+ tok"
    )
    assert re.search(waits, printed), printed
    assert "answer  2/2 questions" in printed


@pytest.mark.slow
def test_an_application_that_somebody_ends_ends_the_job_and_the_next_goes_on(sample_config, run_answer, monkeypatch):
    """A call that waits for a replica of it would wait for ever."""
    monkeypatch.setattr(answer_job, "SAY_EVERY_S", 0.5)

    def script(index, body):
        if index == 0:
            serve.delete(application)
        return None

    with FakeOpenAI(script) as server:
        config = sample_config(*fake(server), "questions.limit=4", "ensemble.members=2", "kohaku.queries=1")
        application = target_of("fake", config.deployments["fake"]).name
        with pytest.raises(ModelError, match=f"Serve has no application {application} any more: .*repeat the command"):
            run_answer(config)
        assert run_answer(config).n_unanswered == 0


POISON = "666999"


def drafted(body, write="{}", finish_reason="stop", **changes):
    """A whole answer with a wrong value, in a completion that says what is wrong with it."""
    answer = {"explanation": "draft", "answer_value": POISON, "answer_unit": "", "ref_id": doc_ids_of(body)[:1]}
    made = completion(write.format(json.dumps(answer)), finish_reason=finish_reason)
    return Action(body=made | changes)


@pytest.mark.slow
def test_a_server_that_misbehaves_costs_no_row(sample_config, run_answer, keep_up):
    def script(index, body):
        return {
            1: Action(429, {"error": {"message": "slow down"}}, {"Retry-After": "1"}),
            2: drafted(body, finish_reason="error"),  # claudexor#144
            4: Action(500, {"error": {"message": "oops"}}),
            5: drafted(body, finish_reason="abort"),
            7: Action(body="{not json"),
            8: drafted(body, error={"message": "cut in the middle"}),  # OmniRoute#8210
            9: drafted(body, finish_reason="content_filter"),
            10: Action(delay_s=3.0),
            12: drafted(body, "<think>maybe {} hmm", "length"),  # lm-eval#3382
            13: Action(reset=True),
            15: drafted(body, "<|channel|>commentary<|message|>{}<|end|>"),  # TensorRT-LLM#9256
            16: Action(cut=True),
            18: drafted(body, "<think>{}</think>{{'answer_value': '1287',}}"),
            19: Action(503, "busy"),
            20: Action(body=completion("no counts") | {"usage": None}),
            22: Action(body=completion("I think, therefore } no JSON { here")),
            25: Action(body=completion('Sure! {"answer_value": null, "is_blank": false} }}')),
        }.get(index)

    with FakeOpenAI(script) as server:
        flags = ["ensemble.members=3", "questions.limit=10", "roles.plan.model=extractive"]
        config = sample_config(*fake(server, timeout_s=1.5), *flags)
        keep_up(config.used_deployments)
        summary = run_answer(config)
        n_first = server.n_requests
        n_made = summary.n_calls["made"] - summary.n_questions  # without the plans, which no server makes
        assert n_first - n_made == 11, "each of ten failures was asked once more; what a filter stops is not"
        again = run_answer(config.model_copy(update={"run": f"{summary.run}-again"}))
        assert server.n_requests == n_first + 1
        assert again.n_calls["made"] == 1, "nothing is recorded of what failed"
    assert summary.n_questions == 10
    answers = rows_of(summary.run, "answers")
    assert len(answers) == 30
    values = {row["answer_value"] for row in (*answers, *rows_of(again.run, "answers"), *rows_of(again.run, "votes"))}
    assert values.isdisjoint({"None", POISON})
    recorded = SegmentStore(config.ledger.path).load(lambda _: True).entries.values()
    assert {entry.reply.finish_reason for entry in recorded} == {"stop", "length"}
    usage = rows_of(again.run, "usage")
    assert sum(row["finish_reason"] == "length" for row in usage) == again.finish_reasons["length"] > 0
    assert min(min(row["prompt_tokens"], row["completion_tokens"]) for row in usage) > 0, "no call is free"
    assert again.adapted == {"fake: token counts are estimated, as the server sent none that can be used": 1}


@pytest.mark.slow
def test_where_a_server_refuses_every_call_the_run_stops_at_once_and_says_why(sample_config, run_answer):
    with FakeOpenAI(lambda index, body: Action(401, {"error": {"message": "not for you"}})) as server:
        flags = ["ensemble.members=2", "cluster.block_size=1", "cluster.blocks_in_flight=1", "questions.limit=8"]
        summary = run_answer(sample_config(*fake(server), *flags, "roles.plan.model=extractive"))
        assert server.n_requests <= 2, "the members of one question"
    assert "api_key_env" in summary.stopped
    assert (summary.n_questions, summary.n_member_errors) == (8, 16)


def test_a_refused_question_is_its_own_rows_error_and_exit_code_3(
    sample_config, tmp_path, capsys, run_answer, monkeypatch
):
    """Twenty refusals that quote their question, in words of parameters; twenty replies without counts of tokens."""
    monkeypatch.setattr(answer_job, "run_answer", run_answer)
    refusals = {}
    for number, (question, (quote, told)) in enumerate(itertools.product(ASKED.values(), QUOTES.items())):
        asked = f"{question} (By {quote}.)"
        refusals[f"r{number:02}"] = asked, *told(asked)
    uncounted = {f"u{number:02}": f"Which is number {number:02}?" for number in range(len(NO_USAGE))}
    questions = [(name, asked) for name, (asked, *_) in refusals.items()] + [*uncounted.items()]
    with (tmp_path / "questions.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ("id", "question"))
        table.writeheader()
        table.writerows({"id": name, "question": asked} for name, asked in random.Random(1).sample(questions, 40))

    def script(index, body):
        shown = text_of(body["messages"][-1])
        for asked, status, told in refusals.values():
            if asked in shown:
                return Action(status, told)
        (number,) = (number for number, asked in enumerate(uncounted.values()) if asked in shown)
        return Action(body=completion(default_text(body)) | {"usage": NO_USAGE[number]})

    with FakeOpenAI(script) as server:
        settings = [f"questions.path={tmp_path}/questions.csv", "budget.tokens=1_000_000"]
        config = sample_config(*fake(server), *settings, "ensemble.members=2", "roles.plan.model=extractive")
        (tmp_path / "config.yaml").write_text(as_yaml(config))
        assert main(["answer", str(tmp_path / "config.yaml")]) == 3
        assert server.n_requests == 80, "nothing is asked in another way"
        for received in server.log:
            assert {"temperature", "top_p", "seed"} < received.body.keys()
            assert "maxLength" in json.dumps(received.body["response_format"])
    assert "40 of 80 answers carry an error" in capsys.readouterr().out
    wrong = {row["question_id"]: row["error"] for row in rows_of(config.run, "answers") if row["error"]}
    assert wrong.keys() == refusals.keys()
    assert all(f"HTTP {status}" in wrong[name] for name, (_, status, _) in refusals.items())
    assert len(read_submission(f"{config.run}/submission.csv").rows) == 40
    made = [row for row in rows_of(config.run, "usage") if row["source"] == "made"]
    estimated = [row for row in made if row["role"] == "answer" and row["question_id"] in uncounted]
    assert len(estimated) == 40
    assert min(min(row["prompt_tokens"], row["completion_tokens"]) for row in estimated) > 10, "no call is free"
    facts = json.loads(Path(config.run, "run.json").read_text())
    assert facts["adapted"] == {"fake: token counts are estimated, as the server sent none that can be used": 40}
    assert facts["paid"]["tokens"] == sum(row["prompt_tokens"] + row["completion_tokens"] for row in made)


@pytest.mark.slow
def test_a_budget_ends_the_asking_and_a_larger_one_goes_on(
    sample_config, tmp_path, capsys, run_answer, keep_up, monkeypatch
):
    monkeypatch.setattr(answer_job, "run_answer", run_answer)

    # Seconds per call while the budget is to end; the rest need not wait. What follows its end takes longer: a busy
    # machine may see it late.
    delays = [0.3]
    with FakeOpenAI(lambda index, body: Action(delay_s=delays[-1] * (1 if index < 20 else 5))) as server:
        flags = ["ensemble.members=3", "deployments.fake.max_ongoing=2"]
        config = sample_config(*fake(server), *flags, "questions.limit=30", "budget.tokens=2_000")
        keep_up(config.used_deployments)
        (tmp_path / "config.yaml").write_text(as_yaml(config))
        assert main(["answer", str(tmp_path / "config.yaml")]) == 3
        n_first = server.n_requests
        # 100 tokens in and a few out per call: 19 or 20 calls, those in flight (a question's), and two seconds of them.
        assert 15 < n_first < 20 + 4 + 2 * 7, "the calls in flight and those of a second"
        done = capsys.readouterr()
        reason = re.search(r"budget.tokens is 2,000 and ([\d,]+) were spent", done.out)
        assert reason, done.out
        assert int(reason[1].replace(",", "")) >= 2000
        assert " of 2,000 tokens" in done.err
        facts = json.loads(Path(config.run, "run.json").read_text())
        spent = facts["spent"]["prompt_tokens"] + facts["spent"]["completion_tokens"]
        assert facts["paid"]["tokens"] == spent >= 2000
        assert len(rows_of(config.run, "votes")) == 30
        # The same budget is below what is spent: nothing is asked.
        assert main(["answer", str(tmp_path / "config.yaml")]) == 3
        assert server.n_requests == n_first
        assert f"budget.tokens is 2,000 and {spent:,} were spent" in capsys.readouterr().out
        delays.append(0.0)
        assert main(["answer", str(tmp_path / "config.yaml"), "--set", "budget.tokens=1_000_000"]) == 0
        assert server.n_requests == 120, "each call was made once"
        facts = json.loads(Path(config.run, "run.json").read_text())
        assert (facts["stopped"], facts["n_unanswered"]) == ("", 0)
        assert facts["paid"]["tokens"] > 12000 > facts["spent"]["prompt_tokens"]


@pytest.mark.slow
def test_a_run_whose_every_call_fails_stops_asking_and_says_why(
    sample_config, tmp_path, capsys, run_answer, monkeypatch
):
    monkeypatch.setattr(answer_job, "run_answer", run_answer)
    refusal = {"error": {"message": "no such thing", "id": "req-1234567890"}}
    with FakeOpenAI(lambda index, body: Action(400, refusal)) as server:
        flags = ["ensemble.members=2", "fail_after=6", "cluster.block_size=1", "cluster.blocks_in_flight=1"]
        config = sample_config(*fake(server), *flags, "questions.limit=8", "roles.plan.model=extractive")
        (tmp_path / "config.yaml").write_text(as_yaml(config))
        assert main(["answer", str(tmp_path / "config.yaml")]) == 3
        assert server.n_requests == 6
    done = capsys.readouterr()
    assert "6 answers in a row got no reply (fail_after is 6)" in done.err
    assert "6 × " in done.out
    assert "schema_mode" in done.out
    assert "15 × ModelError: not asked: 6 answers in a row had got no reply" in done.out  # 10 answers, 5 plans
    page = Path(config.run, "report.html").read_text(encoding="utf-8")
    assert "Stopped asking: 6 answers in a row" in page
    assert len(rows_of(config.run, "answers")) == 16
    with FakeOpenAI(lambda index, body: Action(200, completion("{}"))) as server:
        again = run_answer(sample_config(*fake(server), *flags, "questions.limit=8", "roles.plan.model=extractive"))
        assert again.n_calls["made"] >= 16
        assert not again.stopped


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.retriever.replicas=99"], r"the cluster has 6 CPUs but 99 retrievers and .* need 100"),
        (
            ["deployments.far={kind: openai, base_url: 'http://h/v1', model: m, api_key_env: NOT_SET}", "model=far"],
            r"NOT_SET and the environment has no such variable",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(sample_config, run_answer, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run_answer(sample_config(*overrides))
