"""The calls of a question in one message to its replica."""

from __future__ import annotations

import asyncio
import time

import pytest
import ray
from kit.fake_batches import EXPIRED, FakeBatches
from kit.fake_openai import FakeOpenAI

from kohaku_ray.engine.serving import batches
from kohaku_ray.engine.serving.batches import BatchActor
from kohaku_ray.engine.serving.replica import tell_shard
from kohaku_ray.errors import ContextOverflowError, ModelError, UnfinishedReplyError
from kohaku_ray.models import replica
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.replica import Refused, Replica, ReplicaLostError
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.records import Reply


class Scripted(Replica):
    """Says, fails or is lost by the seed, after as many times 20 ms."""

    def __init__(self, *outcomes) -> None:
        super().__init__(self.chat, 100, tell=tell_shard)
        self.outcomes = outcomes

    async def chat(self, request):
        outcome = self.outcomes[request.seed]
        for _ in range(request.seed):  # one after the other: on a busy machine, several that end together would be one
            await asyncio.sleep(0.02)
        if isinstance(outcome, Exception):
            raise outcome
        return Reply(outcome)


def ask_all(*outcomes):
    requests = [ChatRequest("model m", (("user", "?"),), 0.7, 1.0, 64, seed) for seed in range(len(outcomes))]
    return asyncio.run(Scripted(*outcomes).ask(requests))


def test_replies_come_in_order_with_their_own_seconds():
    began = time.monotonic()
    outcomes, seconds = zip(*ask_all("a", "b", "c"), strict=True)
    took_s = time.monotonic() - began
    assert [reply.text for reply in outcomes] == ["a", "b", "c"]
    assert 0 <= seconds[0] < seconds[1] < seconds[2] <= took_s


def test_an_error_stands_in_its_replys_place():
    errors = ContextOverflowError("too long"), ModelError("no"), ZeroDivisionError("own")
    (good, _), *refused = ask_all("good", *errors)
    assert good.text == "good"
    assert [error for error, _ in refused] == [
        Refused("ContextOverflowError", "too long"),
        Refused("ModelError", "no"),
        Refused("ModelError", "model m: the backend broke: own"),
    ]


def test_a_reply_that_failed_is_asked_again_with_another_seed_three_times_at_most():
    told = "the reply ended with finish_reason 'abort'"

    class Failing(Replica):
        def __init__(self, n_failed):
            super().__init__(self.chat, 100)
            self.n_failed, self.seeds = n_failed, []

        async def chat(self, request):
            self.seeds.append(request.seed)
            if len(self.seeds) <= self.n_failed:
                raise UnfinishedReplyError(told)
            return Reply("whole")

    request = ChatRequest("model m", (("user", "?"),), 0.7, 1.0, 64, 2**31 - 1)
    for n_failed in (1, 2, 3):
        replica = Failing(n_failed)
        [(outcome, _)] = asyncio.run(replica.ask([request]))
        if n_failed < 3:
            assert outcome.text == "whole"
        else:
            assert outcome == Refused("TransientModelError", told)
        assert replica.seeds == [2**31 - 1, 0, 1][: n_failed + 1]


def test_a_replica_that_is_lost_answers_none():
    with pytest.raises(ReplicaLostError):
        ask_all("a", ReplicaLostError("gone"))


@pytest.fixture
def told(monkeypatch) -> list[tuple[str, dict]]:
    """What shards are told early."""
    told: list[tuple[str, dict]] = []

    class Actor:
        def __init__(self, name, namespace):
            self.record_early = self
            self.name = name

        async def remote(self, outcomes):
            told.append((self.name, {key: reply.text for key, (reply, _) in outcomes.items()}))

    monkeypatch.setattr(replica, "TELL_EVERY_S", 0.05)
    monkeypatch.setattr(ray, "get_actor", Actor)
    return told


def test_a_shard_is_told_of_replies_that_a_slow_call_outlasts(told):
    """A kill while one member is still waited for must not lose what the others' calls have cost."""
    texts = ["a", "b", *[""] * 8, "slow"]
    requests = [ChatRequest("model m", (("user", "?"),), 0.7, 1.0, 64, seed) for seed in (0, 1, 10)]
    outcomes = asyncio.run(Scripted(*texts).ask(requests, "ledger-1-0"))
    assert [reply.text for reply, _ in outcomes] == ["a", "b", "slow"]
    assert told == [("ledger-1-0", {request_key(requests[0]): "a", request_key(requests[1]): "b"})]
    told.clear()
    asyncio.run(Scripted(*texts).ask(requests[:2], "ledger-1-0"))
    assert told == [], "replies that come together are one message"


def test_a_shard_is_told_of_a_batchs_replies_while_another_file_asks_what_expired(told, tmp_path, monkeypatch):
    """Which takes hours: a shard that died meanwhile asked, and paid, the replies again that it had not got."""
    monkeypatch.setattr(batches, "TELL_EVERY_S", 0.05)
    batch = {"gather_s": 0.3, "poll_s": 0.02}
    requests = [ChatRequest("fake", (("user", f"[ref_id=a] {seed}?"),), 0.7, 1.0, 64, seed) for seed in range(3)]
    late, *others = map(request_key, requests)

    def play(file, line):
        return EXPIRED if file.index == 0 and line["custom_id"] == late else None

    with FakeOpenAI(batches=FakeBatches(line=play)) as server:
        deployment = OpenAIConfig(base_url=server.base_url, model="fake", api_key_env=None, batch=batch)

        async def run():
            actor = BatchActor(str(tmp_path))
            await actor.beat(deployment, time.time())
            return await actor.ask(requests, "ledger-1-0")

        outcomes = asyncio.run(run())
        assert [len(file) for file in server.batches.files] == [3, 1]
    assert all(isinstance(reply, Reply) for reply, _ in outcomes)
    assert [(name, set(texts)) for name, texts in told] == [("ledger-1-0", set(others))]


async def test_a_gatherer_follows_the_job_that_started_last_and_once_started_again_waits_for_it(told, tmp_path):
    """Settings of a job that has ended, such as its shorter deadline, would cancel a batch under way."""

    def deployment(**batch):
        batch = {"gather_s": 0.05, "poll_s": 0.02, **batch}
        return OpenAIConfig(base_url=server.base_url, model="fake", api_key_env=None, batch=batch)

    with FakeOpenAI(batches=FakeBatches(delay_s=1.0)) as server:
        actor = BatchActor(str(tmp_path))  # as Ray starts it again: it knows of no job
        request = ChatRequest("fake", (("user", "[ref_id=a] ?"),), 0.7, 1.0, 64, 1)
        asked = asyncio.create_task(actor.ask([request]))
        await asyncio.sleep(0.2)
        assert server.batches.n_uploads == 0
        await actor.beat(deployment(deadline_s=0.3), 1.0)
        await actor.beat(deployment(deadline_s=60), 2.0)
        await actor.beat(deployment(deadline_s=0.3), 1.0)  # a job that goes on, and started before
        [(reply, _)] = await asyncio.wait_for(asked, 30)
        assert isinstance(reply, Reply)
        assert server.batches.n_cancels == 0
