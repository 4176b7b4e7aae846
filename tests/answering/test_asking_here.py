"""Single questions, answered in this process without Ray."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.answers import COMPARED, fake, rows_of
from kit.fake_openai import FakeOpenAI
from kit.runs_here import index_here, run_here

from kohaku_ray import Run
from kohaku_ray.answering.here import why_on_cluster
from kohaku_ray.answering.local_ledger import LocalLedger
from kohaku_ray.cli import main
from kohaku_ray.config import Config, as_yaml, load_config
from kohaku_ray.errors import ModelError, RefusedAccessError
from kohaku_ray.event_loop import run_apart
from kohaku_ray.models.replica import Replica
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply
from kohaku_ray.store.lease import HeldError
from kohaku_ray.store.segments import SegmentStore

QUESTION = "How many people does Larkspur serve?"


@pytest.fixture(scope="module")
def index(tiny_encoder, tmp_path_factory) -> list[str]:
    """Overrides that name an index of the sample."""
    of_index = [f"index.path={tmp_path_factory.mktemp('sample')}/index", f"index.encoder.model={tiny_encoder}"]
    index_here(load_config("demo", of_index))
    return of_index


@pytest.fixture
def config_of(index, tmp_path, monkeypatch) -> Callable[..., Config]:
    """Make a configuration over the sample's index, with its own run and ledger below ``tmp_path``."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def make(*overrides: str, name: str = "run") -> Config:
        return load_config("demo", [*index, f"ledger.path={tmp_path}/ledger", f"run={tmp_path}/{name}", *overrides])

    return make


def keys_of(run: str) -> list[str]:
    return sorted(row["key"] for row in rows_of(run, "usage"))


def test_a_question_is_answered_as_by_the_answer_job_with_the_same_keys(config_of, tmp_path):
    asked = Run(config_of()).ask(QUESTION)
    answered = config_of(
        f"questions.path={asked.path}/question.jsonl", f"ledger.path={tmp_path}/other", name="answered"
    )
    run_here(answered)
    assert keys_of(asked.path) == keys_of(answered.run)
    assert [
        name for name in COMPARED if Path(asked.path, name).read_bytes() != Path(answered.run, name).read_bytes()
    ] == []
    again = config_of(f"questions.path={asked.path}/question.jsonl", name="again")
    run_here(again)
    assert json.loads(Path(again.run, "run.json").read_text())["n_calls"]["made"] == 0, "all are in the ledger"


def test_a_second_ask_asks_nothing_again(config_of, capsys):
    with FakeOpenAI() as server:
        of_server = fake(server)
        first = Run(config_of(*of_server)).ask(QUESTION)
        n_asked = server.n_requests
        assert n_asked > 0
        assert Run(config_of(*of_server)).ask(QUESTION).summary == first.summary, "it is finished"
        other = Run(config_of(*of_server, name="other")).ask(QUESTION)
        assert server.n_requests == n_asked
    assert other.made.n_calls["made"] == 0
    assert other.votes.equals(first.votes)


def test_two_at_once_on_one_ledger_wait_for_each_other_and_lose_nothing(config_of, tmp_path):
    questions = [QUESTION, "How many training jobs does the trace have?"]
    runs: dict[str, Run] = {}
    with FakeOpenAI() as server:
        config = config_of(*fake(server))
        threads = [
            threading.Thread(target=lambda text=text: runs.update({text: Run(config).ask(text)})) for text in questions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorded = SegmentStore(f"{tmp_path}/ledger").load(lambda _: True).entries
    assert set(runs) == set(questions)
    assert {key for run in runs.values() for key in keys_of(run.path)} <= set(recorded)


def test_a_ledger_that_stays_with_another_process_is_named(tmp_path):
    told: list[str] = []
    with SegmentStore(str(tmp_path)).lease.hold():
        waiting = LocalLedger(str(tmp_path), {}, told.append)
        with pytest.raises(HeldError, match="belongs to process"), waiting.hold(wait_s=0.1):
            raise AssertionError("not reached")
    assert "waiting up to 0.1 s: ledger" in told[0]


class Scripted:
    """A backend that answers, or raises, what a test says."""

    def __init__(self, *outcomes: str | Exception) -> None:
        self.outcomes, self.n_asked = list(outcomes), 0

    async def chat(self, request: ChatRequest) -> Reply:
        self.n_asked += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return Reply(outcome)

    async def close(self) -> None:
        """Nothing is open."""


def request_of(text: str) -> ChatRequest:
    return ChatRequest("m", (("user", text),), 0.0, 1.0, 100, 1)


def test_equal_calls_are_one_and_a_refusal_is_not_asked_twice(tmp_path):
    backend = Scripted("one", RefusedAccessError("no key"), "new")
    ledger = LocalLedger(str(tmp_path), {"m": Replica(backend.chat, 2)}, print)

    async def ask() -> None:
        replies = await asyncio.gather(*(ledger.ask(request_of("a"), Target("m")) for _ in range(3)))
        assert sorted(reply.source for reply in replies) == ["joined", "joined", "made"]
        for said in ("no key", "not asked: no key"):
            with pytest.raises(ModelError, match=said):
                await ledger.ask(request_of("b"), Target("m"))

    async def ask_again() -> None:
        assert (await ledger.ask(request_of("a"), Target("m"))).source == "ledger"
        assert (await ledger.ask(request_of("a"), Target("m"), again=True)).entry.generation == 1

    with ledger.hold():
        asyncio.run(ask())
    with ledger.hold():
        asyncio.run(ask_again())
    assert backend.n_asked == 3
    entry = SegmentStore(str(tmp_path)).load(lambda _: True).entries[request_key(request_of("a"))]
    assert (entry.reply.text, entry.generation) == ("new", 1)


def test_replies_are_written_while_others_are_waited_for(tmp_path):
    ledger = LocalLedger(str(tmp_path), {"m": Replica(Scripted("one").chat, 2)}, print, flush_s=0.05)

    async def ask() -> None:
        await ledger.ask(request_of("a"), Target("m"))
        for _ in range(100):
            if SegmentStore(str(tmp_path)).load(lambda _: True).entries:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("a process that is killed now loses the reply")

    with ledger.hold():
        asyncio.run(ask())


def test_an_interrupt_ends_what_is_waited_for():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has it ignored
    began = time.monotonic()

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    try:
        with pytest.raises(KeyboardInterrupt):
            run_apart(interrupted())
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 10


def test_a_failed_call_is_an_error_of_its_own_and_a_stopped_ledger_makes_none(tmp_path):
    ledger = LocalLedger(str(tmp_path), {"m": Replica(Scripted(ValueError("torn")).chat, 2)}, print)

    async def ask() -> None:
        with pytest.raises(ModelError, match="m: the backend broke: torn"):
            await ledger.ask(request_of("a"), Target("m"))
        ledger.stop("the budget is spent")
        with pytest.raises(ModelError, match="not asked: the budget is spent"):
            await ledger.ask(request_of("a"), Target("m"))

    with ledger.hold():
        asyncio.run(ask())
    assert SegmentStore(str(tmp_path)).load(lambda _: True).entries == {}


def test_what_needs_ray_goes_to_ray(config_of, monkeypatch):
    assert why_on_cluster(config_of()) == ""
    server = "deployments.big={kind: openai, base_url: 'http://127.0.0.1:1/v1', model: m, api_key_env: null}"
    assert why_on_cluster(config_of(server, "roles.answer.model=big", "roles.plan.model=big")) == ""
    for settings in (
        "{kind: vllm, model: m}",
        "{kind: transformers, model: m}",
        "{kind: openai, base_url: 'http://127.0.0.1:1/v1', model: m, batch: true}",
        "{kind: openai, base_url: 'http://127.0.0.1:1/v1', model: m, application: served}",
    ):
        config = config_of(f"deployments.big={settings}", "roles.answer.model=big")
        assert why_on_cluster(config) == "Ray serves big", settings
    assert why_on_cluster(config_of("cluster.retriever.gpus=0.5")) == "cluster.retriever.gpus is 0.5"
    assert "127.0.0.1:9" in why_on_cluster(config_of("cluster.address=127.0.0.1:9"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:8")
    assert "127.0.0.1:8" in why_on_cluster(config_of())


def test_the_command_prints_the_answer_first_and_json_as_ever(config_of, tmp_path, capsys, monkeypatch):
    (tmp_path / "run.yaml").write_text(as_yaml(config_of()))
    command = ["ask", str(tmp_path / "run.yaml"), QUESTION]
    assert main(command) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) <= 12
    assert lines[-2].endswith("members agree")
    assert "calls" in lines[-1]
    assert main([*command, "--trace"]) == 0
    shown = capsys.readouterr().out
    assert "\nmembers\n" in shown
    assert "5 more" not in shown or "--items 0 shows all" in shown
    assert main([*command, "--items", "1"]) == 0
    assert "\nmembers\n" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"command", "exit_code", "run", "answer", "n_errors", "seconds"}
    assert set(result["answer"]) == {"id", "question", "answer", "answer_value", "unit", "refs", "urls", "votes"}
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\n{QUESTION}\nHow many training jobs does the trace have?\n"))
    assert main([*command[:2], "--watch", "--quiet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_ask_with_the_baseline_imports_no_ray(config_of, tmp_path):
    (tmp_path / "run.yaml").write_text(as_yaml(config_of()))
    code = (
        "import sys; from kohaku_ray.cli import main; "
        f"code = main(['ask', {str(tmp_path / 'run.yaml')!r}, {QUESTION!r}]); "
        "print(code, [name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
