"""The ledger's client in this process: which messages reach the shards."""

from __future__ import annotations

import asyncio

import pytest

from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.errors import ContextOverflowError
from kohaku_ray.models.replica import Refused
from kohaku_ray.models.request import ChatRequest, request_key, shard_of
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply
from kohaku_ray.store.segments import Entry, LedgerReply


class Method:
    def __init__(self, answer):
        self.answer, self.messages = answer, []

    async def remote(self, items):
        self.messages.append(items)
        await asyncio.sleep(0)
        return [self.answer(item) for item in items]


class Shard:
    """Knows one key, refuses the requests of seed 7, and makes all others."""

    def __init__(self, known: str) -> None:
        entry = Entry(Reply("known"), "m", 0.0)
        self.lookup = Method(lambda key: entry if key == known else None)
        self.ask = Method(
            lambda wanted: Refused("ContextOverflowError", "too long") if wanted.request.seed == 7 else made(wanted.key)
        )


def made(key: str) -> LedgerReply:
    return LedgerReply(Entry(Reply(key), "m", 0.0), "made", key)


def request(prompt: str, seed: int) -> ChatRequest:
    return ChatRequest("m", (("user", prompt),), 0.7, 1.0, 64, seed)


async def test_the_members_of_a_question_ask_in_one_message():
    members = {prompt: [request(prompt, seed) for seed in range(5)] for prompt in ("one", "two", "three")}
    known = request_key(members["one"][2])
    shards = [Shard(known) for _ in range(2)]
    ledger = Ledger(shards)
    asks = [ledger.ask(request, Target("app")) for requests in members.values() for request in requests]
    asked = await asyncio.gather(*asks)
    assert [reply.key for reply in asked] == [request_key(reply) for requests in members.values() for reply in requests]
    assert [reply.source for reply in asked].count("ledger") == 1
    asks = [message for shard in shards for message in shard.ask.messages]
    assert sorted(len({wanted.request.messages for wanted in message}) for message in asks) == [1, 1, 1]
    assert sorted(map(len, asks)) == [4, 5, 5]
    for index, shard in enumerate(shards):
        assert all(shard_of(wanted.key, 2) == index for message in shard.ask.messages for wanted in message)
        assert len(shard.lookup.messages) <= 1, "all look-ups of one turn travel together"


async def test_one_members_error_is_its_own():
    ledger = Ledger([Shard("none")])
    first, refused, last = await asyncio.gather(
        *(ledger.ask(request("same", seed), Target("app")) for seed in (1, 7, 2)), return_exceptions=True
    )
    assert (first.source, last.source) == ("made", "made")
    assert isinstance(refused, ContextOverflowError)


def test_a_copy_in_another_process_asks_again_for_the_same_run():
    shard = Shard("none")
    ledger = Ledger([shard])
    kind, state = ledger.__reduce__()
    for copy in (ledger, kind(*state)):
        asyncio.run(copy.ask(request("same", 1), Target("app"), again=True))
    assert len({wanted.again_for for [wanted] in shard.ask.messages}) == 1
    assert None not in {wanted.again_for for [wanted] in shard.ask.messages}
    assert not shard.lookup.messages


def test_a_shard_that_is_lost_fails_all_that_waited_for_it():
    shard = Shard("none")
    shard.ask.answer = lambda wanted: 1 / 0
    ledger = Ledger([shard])

    async def run():
        asks = [ledger.ask(request("same", seed), Target("app")) for seed in range(2)]
        return await asyncio.gather(*asks, return_exceptions=True)

    assert [type(error) for error in asyncio.run(run())] == [ZeroDivisionError] * 2
    with pytest.raises(ZeroDivisionError):
        asyncio.run(ledger.ask(request("again", 1), Target("app")))
