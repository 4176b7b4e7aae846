"""Whole runs in this process: what a system, its members and its waves do, whatever makes the calls."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.answers import COMPARED, fake, rows_of, steps_of
from kit.fake_openai import Action, FakeOpenAI, doc_ids_of
from kit.runs_here import index_here, run_here

from kohaku_ray.config import Config, load_config
from kohaku_ray.sample import path as sample_path
from kohaku_ray.store.segments import SegmentStore
from kohaku_ray.store.tables import SHARED
from kohaku_ray.systems.questions import QuestionColumns

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def index(tiny_encoder, tmp_path_factory) -> list[str]:
    """Overrides that name an index of the sample."""
    of_index = [f"index.path={tmp_path_factory.mktemp('sample')}/index", f"index.encoder.model={tiny_encoder}"]
    index_here(load_config("demo", of_index))
    return of_index


@pytest.fixture
def config_of(index, tmp_path) -> Callable[..., Config]:
    """Make a configuration over the sample's index, with its own run and ledger below ``tmp_path``."""

    def make(*overrides: str, name: str = "run") -> Config:
        return load_config("demo", [*index, f"ledger.path={tmp_path}/ledger", f"run={tmp_path}/{name}", *overrides])

    return make


def facts_of(config: Config) -> dict:
    return json.loads(Path(config.run, "run.json").read_text())


def differing(config: Config, other: Config) -> list[str]:
    return [name for name in COMPARED if Path(config.run, name).read_bytes() != Path(other.run, name).read_bytes()]


def test_with_replan_a_member_plans_again_before_each_retry_and_the_first_calls_stay_the_same(config_of):
    run_here(plain := config_of(name="plain"))
    run_here(replanned := config_of("kohaku.replan=true", name="replan"))

    def asked(config, role, retry):
        of = [row for row in rows_of(config.run, "usage") if row["role"] == role and (row["attempt"] > 0) == retry]
        return {(row["question_id"], row["member"], row["attempt"], *([] if retry else [row["key"]])) for row in of}

    for role in ("plan", "answer"):
        assert asked(replanned, role, False) == asked(plain, role, False), "equal keys: nothing is asked anew"
    assert asked(plain, "plan", True) == set()
    assert asked(replanned, "plan", True) == asked(replanned, "answer", True) != set()
    planned = {(row["question_id"], row["attempt"]) for row in steps_of(replanned.run, "plan") if row["attempt"]}
    assert planned == {(question_id, attempt) for question_id, _, attempt in asked(replanned, "plan", True)}
    run_here(again := config_of("kohaku.replan=true", name="again"))
    assert facts_of(again)["n_calls"]["made"] == 0
    assert differing(again, replanned) == []


def test_a_model_that_refuses_the_length_is_asked_for_less(config_of):
    lengths: list[int] = []

    def script(index, body):
        lengths.append(sum(len(message["content"]) for message in body["messages"]))
        if doc_ids_of(body) and lengths[-1] > 9000:
            return Action(400, {"error": {"message": "maximum context length", "code": "context_length_exceeded"}})
        return None

    with FakeOpenAI(script) as server:
        small = ("ensemble.members=1", "questions.limit=3", "kohaku.max_context_tokens=2300")
        run = run_here(config_of(*fake(server), *small))
    answers = rows_of(run, "answers")
    assert any(length > 9000 for length in lengths)
    assert any(row["measures"]["overflowed"] for row in answers)
    assert all(row["error"] is None or "context" in row["error"] for row in answers)


def test_odd_questions_are_rows_too(config_of, tmp_path):
    questions = tmp_path / "questions.csv"
    questions.write_text(f"id,question\nempty,\nendless,{'How much energy? ' * 6250}\nnormal,What is PUE?\n")
    run = run_here(config_of(f"questions.path={questions}", "ensemble.members=2"))
    answers = {row["question_id"]: row for row in rows_of(run, "answers")}
    assert list(answers) == ["empty", "endless", "normal"]
    assert answers["empty"]["error"] == "the question is empty"
    assert answers["normal"]["error"] is None


@pytest.mark.parametrize("scope", ["answer", "question"])
def test_a_member_that_fails_is_in_error_alone_and_the_others_are_voted_on(config_of, scope):
    overrides = ["system=tests.own_system.sharing:SYSTEM", "questions.limit=4", "ensemble.members=3"]
    overrides += [f"ensemble.scope={scope}"]
    run_here(whole := config_of(*overrides, name="whole"))
    run_here(failing := config_of(*overrides, "sharing.failing_member=1", name="failing"))
    facts = facts_of(failing)
    assert (facts["n_member_errors"], facts["n_questions_in_error"]) == (4, 0)
    assert facts["n_calls"]["made"] == 0, "what all members asked is in the ledger"
    for expected, row in zip(rows_of(whole.run, "answers"), rows_of(failing.run, "answers"), strict=True):
        if row["member"] == 1:
            assert row["error"].startswith("system sharing failed with ValueError in sharing.py, line")
            assert row["error"].endswith(f": {row['question_id']} has no unit")
        else:
            assert row == expected
    assert [row["n_errors"] for row in rows_of(failing.run, "votes")] == [1] * 4


N = 6
"""Questions of a run that stops early."""


@pytest.mark.parametrize("scope", ["answer", "question"])
def test_a_run_that_stops_early_writes_the_same_rows_and_asks_less(config_of, scope):
    common = ("ensemble.members=5", "kohaku.max_retries=0", f"ensemble.scope={scope}", f"questions.limit={N}")
    runs = {"full": (), "row": ("ensemble.early_stop=row",), "value": ("ensemble.early_stop=value",)}
    configs = {name: config_of(*common, *more, name=name) for name, more in runs.items()}
    facts = {name: facts_of(config) for name, config in configs.items() if run_here(config)}
    full, early = configs["full"], configs["row"]
    assert Path(early.run, "submission.csv").read_bytes() == Path(full.run, "submission.csv").read_bytes()
    assert N * 3 <= facts["row"]["n_answers"] < facts["full"]["n_answers"] == N * 5
    assert facts["row"]["n_calls"]["made"] == 0, "what the full run asked is in the ledger"
    answered = {}
    for row in rows_of(early.run, "answers"):
        answered.setdefault(row["question_id"], []).append(row["member"])
    firsts = [list(range(n)) for n in (3, 4, 5)]
    assert all(members in firsts for members in answered.values()), "those who answered are the first members"
    prepared = {row["member"] for row in rows_of(full.run, "trace") if row["step"] == "evidence"}
    assert prepared == ({SHARED} if scope == "answer" else set(range(5))), "once, or once per member"
    assert facts["value"]["n_answers"] <= facts["row"]["n_answers"]
    votes = [[row["is_blank"] for row in rows_of(configs[name].run, "votes")] for name in ("full", "value")]
    assert votes[0] == votes[1]


LIMIT = 3


def write_questions(path: Path, mark: str) -> str:
    """The sample's questions with the mark in every gold column, unlike anything that stands in a document."""
    with open(sample_path("questions.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    gold = QuestionColumns().gold
    path.parent.mkdir()
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, sorted(gold | rows[0].keys()))
        writer.writeheader()
        writer.writerows(row | {column: f"{mark}-{column}-{row['id']}" for column in gold} for row in rows)
    return str(path)


def written(config: Config) -> str:
    """All that a run keeps, as text: tables, submission, and the ledger with its keys."""
    tables = [rows_of(config.run, name) for name in ("answers", "votes", "trace", "usage")]
    entries = SegmentStore(config.ledger.path).load(lambda _: True).entries
    submission = Path(config.run, "submission.csv").read_text(encoding="utf-8")
    return json.dumps([tables, submission, {key: str(entry) for key, entry in entries.items()}], ensure_ascii=False)


def test_other_gold_answers_give_the_same_run_to_the_byte(config_of, tmp_path):
    """Whatever the questions' gold columns say."""
    marks, configs, keys = ("GOLDQZX", "DLOGXZQ"), [], []
    small = (f"questions.limit={LIMIT}", "ensemble.members=2", "ensemble.models=[fake, extractive]")
    with FakeOpenAI() as server:
        for mark in marks:
            questions = write_questions(tmp_path / mark / "questions.csv", mark)
            paths = (f"questions.path={questions}", f"ledger.path={tmp_path}/ledger-{mark}")
            run_here(config := config_of(*fake(server), *small, *paths, name=f"run-{mark}"))
            assert facts_of(config)["n_member_errors"] == 0
            asked = {(row["member"], row["deployment"]) for row in rows_of(config.run, "usage") if row["member"] >= 0}
            assert asked == {(0, "fake"), (1, "extractive")}, "members ask models of their own"
            configs.append(config)
            keys.append(set(SegmentStore(config.ledger.path).load(lambda _: True).entries))
        assert server.n_requests > 2 * LIMIT
        asked = json.dumps([received.body for received in server.log])
    assert keys[0] == keys[1]
    assert len(keys[0]) >= 3 * LIMIT
    assert differing(*configs) == []
    for mark in marks:
        assert mark not in asked
        assert all(mark not in written(config).replace(f"run-{mark}", "") for config in configs)
