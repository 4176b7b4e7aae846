"""The ledger's actors on a real cluster: asked once, kept, shared, owned by one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import psutil
import pytest
import ray
from kit.fake_openai import Action, FakeOpenAI
from ray import serve

from kohaku_ray.checks.deployments import target_of
from kohaku_ray.config.sections import LedgerConfig
from kohaku_ray.engine.ledger import client
from kohaku_ray.engine.ledger.client import Ledger, open_ledger
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.engine.serving.vllm import ROUTER
from kohaku_ray.errors import ConfigError, ContextOverflowError, DataError, ModelError
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.replica import Replica
from kohaku_ray.models.request import ChatRequest, request_key, shard_of
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply
from kohaku_ray.store.segments import Entry, SegmentStore

pytestmark = pytest.mark.ray


def request(text: str, seed: int = 0) -> ChatRequest:
    return ChatRequest("fake", (("user", text),), 0.7, 1.0, 64, seed, session_id="q1")


@pytest.fixture(scope="module")
def server():
    with FakeOpenAI(script=_script) as fake:
        yield fake


ON_DISK = threading.Event()
"""The laggard's reply waits for it."""


def _script(index, body):
    text = body["messages"][-1]["content"]
    if "overflow" in text:
        return Action(400, {"error": {"message": "maximum context length exceeded", "code": "context_length_exceeded"}})
    if "forbidden" in text:
        return Action(400, {"error": {"message": "no"}})
    if "laggard" in text and body["seed"] == 1:
        ON_DISK.wait(300)
    return Action(delay_s=0.3) if "slow" in text else None


@pytest.fixture(scope="module")
def application(cluster, server):
    deployment = OpenAIConfig(base_url=server.base_url, model="fake", api_key_env=None, max_tries=2, backoff_s=0.01)
    with serving({"fake": deployment}) as names:
        assert names["fake"] == target_of("fake", deployment)
        yield names["fake"]


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> LedgerConfig:
    """A ledger of two shards, whose tests have texts of their own."""
    return LedgerConfig(path=str(tmp_path_factory.mktemp("ledger")), shards=2)


@ray.remote(num_cpus=0)
class Asker:
    """Another process that asks, as members do."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def ask(self, requests, application):
        return await asyncio.gather(*(self.ledger.ask(request, application) for request in requests))


def ask(ledger: Ledger, application: str, *requests: ChatRequest):
    async def all_of_them():
        return await asyncio.gather(*(ledger.ask(request, application) for request in requests))

    return asyncio.run(all_of_them())


def test_a_call_is_made_once_joined_in_flight_and_replayed(application, server, config):
    ledger = open_ledger(config)
    asker = Asker.remote(ledger)
    requests = [request(f"slow {n}") for n in range(6)]
    before = server.n_requests
    elsewhere = asker.ask.remote(requests, application)
    here = ask(ledger, application, *requests, *requests)
    remote = ray.get(elsewhere)
    assert server.n_requests - before == len(requests)
    assert [reply.entry.reply.text for reply in here[:6]] == [reply.entry.reply.text for reply in remote]
    sources = [reply.source for reply in (*here, *remote)]
    assert sources.count("made") == 6
    assert set(sources) <= {"made", "joined", "ledger"}
    again = ask(ledger, application, *requests)
    assert {reply.source for reply in again} == {"ledger"}
    assert [reply.entry for reply in again] == [reply.entry for reply in here[:6]]
    assert server.n_requests - before == len(requests)


def test_a_reply_is_on_disk_while_one_with_the_same_prompt_is_waited_for(application, tmp_path):
    ledger = open_ledger(LedgerConfig(path=str(tmp_path), flush_s=0.2))
    pair = [request("laggard", seed) for seed in (0, 1)]
    asked = Asker.remote(ledger).ask.remote(pair, application)
    kept: set[str] = set()
    while not kept:
        done, _ = ray.wait([asked], timeout=0.1)
        assert not done, "no reply was on disk before the last had come"
        kept = set(SegmentStore(str(tmp_path)).load(lambda _: True).entries)
    ON_DISK.set()
    assert kept == {request_key(pair[0])}
    assert [reply.source for reply in ray.get(asked)] == ["made", "made"]


def test_a_run_that_is_stopped_is_refused_and_what_it_paid_is_known(application, config):
    mine, other = (open_ledger(config) for _ in range(2))
    ask(mine, application, *(request(f"paid {n}") for n in range(4)))
    ask(other, application, request("paid by another"))
    assert mine.paid()[application.name].prompt_tokens == 400
    mine.stop("the budget is spent")
    assert ask(mine, application, request("paid 0"))[0].source == "ledger"
    with pytest.raises(ModelError, match=r"^not asked: the budget is spent$"):
        ask(mine, application, request("never asked"))
    assert ask(other, application, request("asked by another"))[0].source == "made"


def test_a_shard_killed_comes_back_with_what_it_flushed(application, server, tmp_path):
    ledger = open_ledger(LedgerConfig(path=str(tmp_path), flush_s=60))
    kept = ask(ledger, application, *(request(f"kept {n}") for n in range(4)))
    ledger.flush()
    ask(ledger, application, request("unflushed"))
    paid = ledger.paid()[application.name].prompt_tokens
    before = server.n_requests
    victim = psutil.Process(ray.get(ledger._shards[0].__ray_call__.remote(lambda _: os.getpid())))
    ray.kill(ledger._shards[0], no_restart=False)
    victim.wait(30)  # a kill returns before its victim is gone
    again = ask(ledger, application, *(request(f"kept {n}") for n in range(4)), request("unflushed"))
    assert [reply.entry.reply for reply in again[:4]] == [reply.entry.reply for reply in kept]
    assert [reply.source for reply in again] == ["ledger"] * 4 + ["made"]
    assert server.n_requests - before == 1
    assert paid == 500
    assert ledger.paid()[application.name].prompt_tokens == 600, "what was asked twice was paid twice"


@pytest.mark.parametrize(("text", "error"), [("overflow", ContextOverflowError), ("forbidden", ModelError)])
def test_an_error_comes_back_as_itself_and_is_not_kept(application, server, config, text, error):
    ledger = open_ledger(config)
    for _ in range(2):
        before = server.n_requests
        with pytest.raises(error) as caught:
            ask(ledger, application, request(text))
        assert type(caught.value) is error
        assert "Traceback" not in str(caught.value)
        assert server.n_requests - before == 1


def test_two_jobs_of_different_shard_counts_agree(application, config):
    first = open_ledger(config)
    second = open_ledger(config.model_copy(update={"shards": 1}))
    requests = [request(f"split {n}") for n in range(9)]
    ask(first, application, *requests)
    assert {reply.source for reply in ask(second, application, *requests)} == {"ledger"}
    assert len({shard_of(request_key(request), 2) for request in requests}) > 1


def test_a_shard_that_dies_of_its_segments_again_and_again_ends_the_job(cluster, tmp_path, monkeypatch):
    class Dying(client.LedgerShard):  # in here, so that it travels by value
        def __init__(self, path, shard, n_shards, flush_s):
            segments = SegmentStore(path)
            segments.index = lambda _: os._exit(1)
            super().__init__(path, shard, n_shards, flush_s, segments=segments)

    monkeypatch.setattr(client, "LedgerShard", Dying)
    with pytest.raises(DataError, match=r"shard 0-of-1 of ledger .* died 3 times in a row while it read segments/"):
        open_ledger(LedgerConfig(path=str(tmp_path)))


def test_damaged_segments_of_every_shard_are_named_and_their_replies_asked_again(application, tmp_path, capsys):
    entries = [(request_key(request("lost")), Entry(Reply("old"), "fake", 1.0))]
    names = [SegmentStore(str(tmp_path), shard).write(entries) for shard in ("", "0of2", "1of2")]
    for name in names:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().replace(b"old", b"odd"))
    ledger = open_ledger(LedgerConfig(path=str(tmp_path), shards=2))
    message = " ".join(capsys.readouterr().err.split())
    assert f"3 damaged files of {tmp_path} left aside; their replies are asked again: {', '.join(names)}" in message
    assert ask(ledger, application, request("lost"))[0].source == "made"


def test_a_path_another_cluster_owns_is_refused(cluster, tmp_path):
    # A live process that is not of this cluster holds the lease.
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys,time; from kohaku_ray.store.segments import SegmentStore;"
            "SegmentStore(sys.argv[1]).lease.acquire('other'); print('held', flush=True); time.sleep(60)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(DataError, match=rf"belongs to process {holder.pid} on .*: run on that cluster"):
            open_ledger(LedgerConfig(path=str(tmp_path)))
    finally:
        holder.kill()
        holder.wait()
    # Its owner is dead: the path is free at once, on the same machine.
    assert open_ledger(LedgerConfig(path=str(tmp_path)))


def test_a_job_that_starts_while_the_disk_takes_nothing_ends_no_shard_of_another(application, server, tmp_path):
    path = tmp_path / "ledger"
    config = LedgerConfig(path=str(path), shards=2, flush_s=60)
    first = open_ledger(config)
    precious = [request(f"precious {n}") for n in range(8)]
    ask(first, application, *precious)
    (path / "segments").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*segments"):
        first.flush()
    with pytest.raises(DataError, match=r"cannot write .*segments"):
        open_ledger(config)
    os.unlink(path / "segments")
    before = server.n_requests
    second = open_ledger(config)  # it was a passing failure: nobody has to wait for the next flush
    assert {reply.source for reply in ask(second, application, *precious)} == {"ledger"}
    assert {reply.source for reply in ask(first, application, *precious)} == {"ledger"}
    assert server.n_requests == before
    assert set(SegmentStore(str(path)).load(lambda _: True).entries) == {request_key(request) for request in precious}


def test_an_application_lives_as_long_as_its_last_user(cluster, server):
    from ray import serve

    deployment = OpenAIConfig(base_url=server.base_url, model="shared", api_key_env=None)
    with serving({"one": deployment}) as first:
        with serving({"one": deployment}) as second:
            assert first == second
            running = serve.status().applications[first["one"].name]
            began = running.last_deployed_time_s
        assert serve.status().applications[first["one"].name].status == "RUNNING"
        assert serve.status().applications[first["one"].name].last_deployed_time_s == began
    assert first["one"].name not in serve.status().applications


def test_a_path_on_no_filesystem_is_a_line(cluster):
    with pytest.raises(ConfigError, match=r"foo://ledger"):
        open_ledger(LedgerConfig(path="foo://ledger"))


@pytest.fixture
def three_replicas(cluster):
    class Named(Replica):  # in here, so that it travels by value: replicas cannot import a test
        def __init__(self):
            super().__init__(self.chat, 100)

        async def chat(self, request):
            if "overflow" in request.messages[0][1]:
                raise ContextOverflowError("longer than the model takes")
            await asyncio.sleep(0.05)
            return Reply("text", replica=serve.get_replica_context().replica_id.unique_id)

    serve.start(proxy_location="Disabled")
    router = {"request_router_class": ROUTER}
    deployment = serve.deployment(
        Named, name="named", num_replicas=3, request_router_config=router, ray_actor_options={"num_cpus": 0}
    )
    serve.run(deployment.bind(), name="three", route_prefix=None)
    yield Target("three")
    serve.delete("three")


def test_all_calls_of_a_question_leave_by_one_shard_for_one_replica(three_replicas, tmp_path):
    ledger = open_ledger(LedgerConfig(path=str(tmp_path), shards=3))
    requests = [replace(request(f"{n}?"), session_id=f"question {n}") for n in range(24) for _ in range(5)]
    requests = [replace(request, seed=seed) for seed, request in enumerate(requests)]
    homes: dict[str, set[str]] = {}
    for chat_request, asked in zip(requests, ask(ledger, three_replicas, *requests), strict=True):
        homes.setdefault(chat_request.session_id, set()).add(asked.entry.reply.replica)
    assert all(len(replicas) == 1 for replicas in homes.values())
    counts = Counter(replica for [replica] in homes.values())
    assert len(counts) == 3
    assert max(counts.values()) <= 24 / 3 + 3, "each shard rounds the mean of its own questions up"
    n_placed, n_moved = ledger.count_placements(three_replicas)
    assert n_placed == 24
    assert 0 <= n_moved < 24
    overflow = [replace(request("overflow", seed), session_id=f"question {seed}") for seed in range(6)]
    for chat_request in overflow:
        with pytest.raises(ContextOverflowError, match="longer than the model takes"):
            ask(ledger, three_replicas, chat_request)
