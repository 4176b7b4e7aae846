"""One shard in this process, without a cluster: what it records, what it refuses, what it does in the background."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest

from kohaku_ray.answering.calls import Wanted
from kohaku_ray.answering.spending import Paid
from kohaku_ray.engine.ledger import shard as shards
from kohaku_ray.engine.ledger.shard import LedgerShard
from kohaku_ray.errors import DataError, ModelError
from kohaku_ray.models.replica import Refused
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply
from kohaku_ray.store import segments
from kohaku_ray.store.lease import RENEWAL_S
from kohaku_ray.store.segments import Entry, LedgerReply, SegmentStore

GOOD, BAD, OTHER = (digit * 32 for digit in "abc")


def request(text: str = "?") -> ChatRequest:
    return ChatRequest("model m", (("user", text),), 0.7, 1.0, 64, 0)


async def ask(shard, key, wanted=None, again_for=None):
    [outcome] = await shard.ask([Wanted(key, wanted or request(), Target("app"), again_for)])
    return outcome


class Actor:
    """What Ray tells a shard of itself, and whether the shard ended itself."""

    id, name, is_ended = "me", "ledger-0", False

    def exit(self):
        self.is_ended = True
        raise asyncio.CancelledError  # nothing runs in a dead process


class Store(SegmentStore):
    """A ledger's directory whose writes fail while there are errors, and wait while they are held."""

    errors, n_writes = iter(()), 0
    is_free, is_held = None, False

    def write(self, entries):
        self.n_writes += 1
        for error in self.errors:
            raise error
        if self.is_free is not None:
            self.is_held = True
            self.is_free.wait(10)
        return super().write(entries)


class Model:
    """A model that says the next of some replies; an exception among them is raised."""

    def __init__(self, *replies):
        self.replies = iter(replies)

    async def __call__(self, target, requests, shard):
        await asyncio.sleep(0)
        replies = [next(self.replies) for _ in requests]
        if isinstance(replies[0], Exception):
            raise replies[0]
        return [(reply, 0.0) for reply in replies]


@pytest.fixture
def actor():
    return Actor()


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path), "0of1")


@pytest.fixture
def make(actor, tmp_path, store):
    """Make a shard whose model says the next of some replies, or is the one that is called."""

    def make_shard(*replies, call=None, flush_s=60.0, renewal_s=60.0, idle_exit_s=300.0, store=store):
        timing = {"renewal_s": renewal_s, "idle_exit_s": idle_exit_s}
        return LedgerShard(
            str(tmp_path), 0, 1, flush_s, segments=store, call=call or Model(*replies), actor=actor, **timing
        )

    return make_shard


def recorded(path) -> dict[str, str]:
    return {key: entry.reply.text for key, entry in SegmentStore(str(path)).load(lambda _: True).entries.items()}


async def until(condition, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.005)


FAILED = [Reply('{"answer_value": 12}', 9, 0, 5, reason) for reason in ("error", "abort", "content_filter", "shrug")]


@pytest.mark.parametrize("failed", [*FAILED, Reply("", 9)], ids=lambda reply: reply.finish_reason)
async def test_a_reply_that_says_it_failed_is_refused_and_never_recorded(failed, make, tmp_path):
    shard = make(failed, Reply("whole"), Reply("never"))
    outcome = await ask(shard, GOOD)
    assert isinstance(outcome, Refused)
    assert (await ask(shard, GOOD)).entry.reply.text == "whole"
    await shard.flush()
    assert recorded(tmp_path) == {GOOD: "whole"}


async def test_a_recorded_reply_that_says_it_failed_is_asked_again(make, store, tmp_path):
    """Versions before recorded them (claudexor#144)."""
    store.write([(GOOD, Entry(FAILED[0], "model m", 0.0)), (OTHER, Entry(Reply("x", 9, 0, 5, "eos_token"), "m", 0.0))])
    shard = make(Reply("whole"))
    assert (await ask(shard, GOOD)).source == "made"
    assert (await ask(shard, OTHER)).source == "ledger"
    await shard.flush()
    assert recorded(tmp_path) == {GOOD: "whole", OTHER: "x"}


async def test_where_a_server_refuses_every_call_a_runs_other_calls_to_it_are_not_made(make):
    refused = Refused("RefusedAccessError", "check the key")
    shard = make(refused, Reply("of another run"))
    outcomes = [await ask(shard, key) for key in (GOOD, BAD)]
    assert outcomes == [refused, Refused("RefusedAccessError", "not asked: check the key")]
    [other] = await shard.ask([Wanted(OTHER, request(), Target("app"), run="another")])
    assert other.entry.reply.text == "of another run"


@pytest.mark.parametrize(
    "bad", [Reply("\ud800"), Reply("x", prompt_tokens=2**63), Reply("x", finish_reason=7), {"no": 1}]
)
async def test_a_reply_no_segment_can_hold_is_refused_and_holds_nobody_up(make, tmp_path, bad):
    shard = make(Reply("good"), bad, Reply("other"))
    good, refused, other = [await ask(shard, key) for key in (GOOD, BAD, OTHER)]
    assert await shard.flush() == 2
    assert await shard.lookup([BAD]) == [None]
    assert isinstance(good, LedgerReply)
    assert isinstance(other, LedgerReply)
    assert isinstance(refused, Refused)
    with pytest.raises(ModelError, match=r"model m: a reply cannot be recorded \(\w+: .*\): its server must send"):
        refused.raise_()
    assert recorded(tmp_path) == {GOOD: "good", OTHER: "other"}


async def test_a_reply_longer_than_its_request_allows_is_refused_and_not_recorded(make, tmp_path):
    shard = make(Reply("x" * 11), Reply("x" * 10), Reply("x" * 11))
    bounded = replace(request(), most_chars=10)
    refused, *taken = [await ask(shard, *asked) for asked in ((BAD, bounded), (GOOD, bounded), (OTHER,))]
    assert await shard.flush() == 2
    with pytest.raises(ModelError, match=r"the reply has 11 characters, at most 10 are taken"):
        refused.raise_()
    assert [len(reply.entry.reply.text) for reply in taken] == [10, 11]
    assert recorded(tmp_path) == {GOOD: "x" * 10, OTHER: "x" * 11}
    assert request_key(request()) == request_key(replace(request(), most_chars=10))


@pytest.mark.parametrize("error", [DataError("disk full"), RuntimeError("a driver's own"), MemoryError()])
async def test_a_flush_that_fails_whatever_the_reason_loses_nothing_and_is_tried_again(make, store, tmp_path, error):
    store.errors = iter([error] * 4)
    shard = make(Reply("precious"), flush_s=0.01)
    await ask(shard, GOOD)
    await until(lambda: store.n_writes == 2)  # the first failure is known
    refused = await ask(shard, OTHER)
    await until(lambda: recorded(tmp_path))
    assert (await shard.ready("mine"))["failure"] is None
    assert refused.kind == "DataError"
    assert str(error) in refused.message
    assert recorded(tmp_path) == {GOOD: "precious"}


def renewed(path) -> float:
    return float(json.loads((path / "lease.json").read_text())["renewed"])


async def test_the_lease_is_renewed_while_flushes_fail_and_hang(make, store, tmp_path):
    store.errors = iter(lambda: DataError("disk full"), None)
    shard = make(Reply("one"), flush_s=0.01, renewal_s=0.01)
    await ask(shard, GOOD)
    await until(lambda: store.n_writes > 1)
    before = renewed(tmp_path)
    await until(lambda: renewed(tmp_path) > before)
    store.is_free, store.errors = threading.Event(), iter(())
    await until(lambda: store.is_held)
    before = renewed(tmp_path)
    await until(lambda: renewed(tmp_path) > before)
    store.is_free.set()
    await until(lambda: recorded(tmp_path))


async def test_an_idle_shard_ends_once_everything_is_on_disk(make, actor, store, tmp_path):
    store.errors = iter(lambda: ZeroDivisionError(), None)
    shard = make(Reply("precious"), flush_s=0.01, renewal_s=0.01, idle_exit_s=0.0)
    await ask(shard, GOOD)
    await until(lambda: store.n_writes > 1)
    await asyncio.sleep(0.1)
    assert not actor.is_ended
    store.errors = iter(())
    await until(lambda: actor.is_ended)
    assert recorded(tmp_path) == {GOOD: "precious"}
    assert not (tmp_path / "lease.json").exists()


async def test_the_path_is_free_when_the_last_run_leaves_and_is_taken_again_for_the_next(make, store, tmp_path):
    """A job that had ended kept it for 300 s (users5.md 2.2)."""
    lease, elsewhere = tmp_path / "lease.json", SegmentStore(str(tmp_path), "0of1")
    shard = make(Reply("one"))
    await shard.ready("first")
    await shard.ready("second")
    await ask(shard, GOOD)
    await shard.flush()
    await shard.leave("")  # what ``ask`` names
    await shard.leave("first")
    assert lease.exists(), "the second run uses it"
    await shard.leave("second")
    assert not lease.exists()
    elsewhere.lease.acquire("another cluster")
    assert "belongs to process" in (await shard.ready("third"))["failure"]
    elsewhere.write([(OTHER, Entry(Reply("theirs"), "model m", 0.0))])
    elsewhere.lease.release("another cluster")
    assert (await shard.ready("third"))["failure"] is None
    assert (await ask(shard, OTHER)).entry.reply.text == "theirs"
    assert lease.exists()
    await shard.leave("third")
    await shard.leave("")
    store.index = None  # nobody has written since: nothing is read again
    assert (await shard.ready("fourth"))["n_entries"] == 2
    assert (await ask(shard, GOOD)).source == "ledger"


async def test_a_ledger_that_is_replaced_ends_the_job_and_the_next_one_finds_its_replies(make, tmp_path):
    """attack6 B9: the shard took the new directory's lease and went on, and 100 paid replies were gone."""
    shard = make(*map(Reply, ("one", "two", "three")), renewal_s=0.01, flush_s=0.01)
    await shard.ready("first")
    await shard.ask([Wanted(GOOD, request(), Target("app"), run="first")])
    await until(lambda: recorded(tmp_path))
    (tmp_path / "segments").rename(tmp_path / "moved")
    (tmp_path / "lease.json").unlink()
    await until(lambda: shard._store.failure)
    [refused] = await shard.ask([Wanted(OTHER, request(), Target("app"), run="first")])
    assert refused.kind == "DataError"
    assert "was deleted, moved or replaced while this job used it" in refused.message
    await until(lambda: recorded(tmp_path) == {GOOD: "one"})
    with pytest.raises(DataError, match="1 files of replies were gone, 1 are written there again"):
        await shard.flush()
    flushing = shard._store._flushing
    for run in ("first", "second"):  # the first is killed: nobody says so
        assert (await shard.ready(run))["failure"] is None or run == "first"
    assert shard._store._flushing is flushing, "who waits for it must not flush beside who comes later"
    [given] = await shard.ask([Wanted(GOOD, request(), Target("app"), run="second")])
    [made] = await shard.ask([Wanted(OTHER, request(), Target("app"), run="second")])
    assert (given.source, made.source) == ("ledger", "made")
    [refused] = await shard.ask([Wanted(OTHER, request(), Target("app"), run="first")])
    assert "was deleted, moved or replaced while this job used it" in refused.message


async def test_the_path_is_free_a_while_after_a_run_that_was_killed(make, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "GONE_S", 0.05)
    shard = make(renewal_s=0.01)
    await shard.ready("killed")
    await until(lambda: not (tmp_path / "lease.json").exists())


def test_who_comes_after_a_run_that_was_killed_waits_until_its_path_is_free():
    """``ask`` gave up after 30 s where the job that was killed had answered for a few seconds (stop 74's CI)."""
    assert segments.LEASE_WAIT_S > shards.GONE_S + 2 * RENEWAL_S


async def test_a_shard_that_could_not_open_does_so_for_the_next_who_comes_and_knows_what_was_recorded(make, tmp_path):
    lease = SegmentStore(str(tmp_path)).lease
    shard = make(Reply("one"))
    await ask(shard, GOOD)
    await shard.flush()
    lease.release("me")
    lease.acquire("another cluster")
    late = make(Reply("two"), renewal_s=0.01, store=SegmentStore(str(tmp_path), "0of1"))
    state = await late.ready("mine")
    assert "belongs to process" in state["failure"]
    assert state["n_entries"] == 0
    assert (await ask(late, GOOD)).kind == "DataError"
    lease.release("another cluster")
    await asyncio.sleep(0.1)
    assert not (tmp_path / "lease.json").exists(), "nobody asked"
    again = await ask(late, GOOD)
    state = await late.ready("mine")
    assert (again.source, again.entry.reply.text) == ("ledger", "one")
    assert (state["failure"], state["n_entries"]) == (None, 1)


async def test_asking_again_replaces_the_reply_once_a_run_for_everybody(make, tmp_path):
    shard = make(*(Reply(text) for text in ("one", "two", "three")))

    async def said(again_for=None):
        asked = await ask(shard, GOOD, again_for=again_for)
        return asked.entry.reply.text, asked.source

    assert await said() == ("one", "made")
    await shard.flush()
    assert await said("first run") == ("two", "made")
    assert await said("first run") == ("two", "ledger")
    assert await said() == ("two", "ledger")
    assert [entry.reply.text for entry in await shard.lookup([GOOD])] == ["two"]
    assert recorded(tmp_path) == {GOOD: "one"}, "a kill here leaves the old one"
    await shard.flush()
    assert recorded(tmp_path) == {GOOD: "two"}
    later = make(Reply("four"))
    assert [entry.reply.text for entry in await later.lookup([GOOD])] == ["two"]
    assert await said("second run") == ("three", "made")


async def test_all_of_a_run_who_ask_again_at_once_wait_for_one_call(make):
    shard = make(Reply("one"), Reply("two"))
    await ask(shard, GOOD)
    asked = await asyncio.gather(*(ask(shard, GOOD, again_for=run) for run in ("a", "a", "b")))
    after = [await ask(shard, GOOD, again_for=run) for run in ("a", "b")]
    assert [reply.entry.reply.text for reply in asked] == ["two"] * 3
    assert [reply.source for reply in asked] == ["made", "joined", "joined"]
    assert [reply.source for reply in after] == ["ledger"] * 2


async def test_who_asks_again_in_the_moment_in_which_the_call_ends_gets_its_reply(make):
    shard = make(Reply("one"), Reply("two"), Reply("three"))
    await ask(shard, GOOD)
    first = asyncio.create_task(ask(shard, GOOD, again_for="run"))
    while not (await shard.progress())[0]:
        await asyncio.sleep(0)
    while (await shard.progress())[0]:  # in flight; then ended, and nobody who waits has woken
        await asyncio.sleep(0)
    second = await ask(shard, GOOD, again_for="run")
    assert (second.source, second.entry) == ("ledger", (await first).entry)


@pytest.mark.parametrize("failure", [ModelError("down"), Reply("\ud800")])
async def test_asking_again_in_vain_leaves_the_old_reply_and_may_be_tried_once_more(make, failure):
    shard = make(Reply("one"), failure, Reply("two"))
    await ask(shard, GOOD)
    refused = await ask(shard, GOOD, again_for="run")
    plain = await ask(shard, GOOD)
    again = await ask(shard, GOOD, again_for="run")
    assert isinstance(refused, Refused)
    assert plain.entry.reply.text == "one"
    assert (again.entry.reply.text, again.source) == ("two", "made")


async def test_a_shard_merges_its_segments_while_it_runs(make, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "MOST_SMALL", 4)
    keys = [f"{number:032x}" for number in range(10)]
    shard = make(*(Reply(key) for key in keys))
    for key in keys:
        await ask(shard, key)
        await shard.flush()
    entries = await shard.lookup(keys)
    assert [entry.reply.text for entry in entries] == keys
    assert len(list((tmp_path / "segments").iterdir())) < 4
    assert recorded(tmp_path) == {key: key for key in keys}


async def test_calls_of_one_message_leave_together_and_each_has_its_own_outcome(make):
    keys = [f"{number:032x}" for number in range(5)]
    sent, ended = [], asyncio.Event()

    async def call(target, requests, shard):
        sent.append((target.name, len(requests)))
        if len(sent) == 1:
            return [(Reply("known"), 0.0)]
        await ended.wait()
        return [(Reply("one"), 0.0), (Refused("ContextOverflowError", "too long"), 0.0)][: len(requests)]

    shard = make(call=call)
    await ask(shard, keys[0])
    wanted = [Wanted(key, request(), Target("app")) for key in keys[:3]] + [Wanted(keys[3], request(), Target("other"))]
    first = asyncio.create_task(shard.ask(wanted))
    await until(lambda: len(sent) == 3)
    second = asyncio.create_task(shard.ask([Wanted(keys[1], request(), Target("app"))]))
    await asyncio.sleep(0.01)
    ended.set()
    (known, made, refused, elsewhere), (joined,) = await first, await second
    assert sorted(sent[1:]) == [("app", 2), ("other", 1)]
    assert [reply.source for reply in (known, made, joined, elsewhere)] == ["ledger", "made", "joined", "made"]
    assert joined.entry is made.entry
    assert refused == Refused("ContextOverflowError", "too long")


async def test_a_call_that_fails_unexpectedly_reaches_who_waits_and_may_be_made_again(make):
    shard = make(ZeroDivisionError(), Reply("one"))
    with pytest.raises(ZeroDivisionError):
        await ask(shard, GOOD)
    assert (await ask(shard, GOOD)).entry.reply.text == "one"


async def test_a_run_that_is_stopped_makes_no_more_calls_and_others_do(make):
    shard = make(*(Reply("good", 100, 40, 7, gpu_s=0.5) for _ in range(4)))

    async def of(run, key):
        [outcome] = await shard.ask([Wanted(key, request(), Target("app"), None, run)])
        return outcome

    await of("mine", GOOD)
    await of("other", OTHER)
    assert (await shard.paid("mine"))[1] == {"app": Paid(100, 40, 7, 0.5)}
    await shard.stop("mine", "budget.tokens is 100 and 107 were spent")
    refused, known, others = await of("mine", BAD), await of("mine", GOOD), await of("other", BAD)
    assert (known.source, others.source) == ("ledger", "made")
    assert (await of("mine", BAD)).source == "ledger"
    assert (await shard.paid("other"))[1] == {"app": Paid(200, 80, 14, 1.0)}
    with pytest.raises(ModelError, match=r"^not asked: budget.tokens is 100 and 107 were spent$"):
        refused.raise_()


async def test_a_reply_is_on_disk_while_another_of_its_message_is_waited_for(make, tmp_path):
    """The members of a question ask together: one that takes long must not keep the others' replies from the disk."""
    began, slow = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def call(target, requests, shard):
        began.set()
        return await slow

    shard = make(call=call, flush_s=0.01)
    asked = asyncio.create_task(
        shard.ask([Wanted(key, request(key), Target("app"), None, "mine") for key in (GOOD, BAD)])
    )
    await began.wait()
    await shard.record_early({GOOD: (Reply("early", 3, 0, 2), 0.5), OTHER: (Reply("of an earlier process"), 0.1)})
    await until(lambda: recorded(tmp_path) == {GOOD: "early"})
    known = await ask(shard, GOOD, request(GOOD))
    assert (known.source, known.entry.call_s) == ("ledger", 0.5)
    slow.set_result([(Reply("the same again"), 0.5), (Reply("late", 3, 0, 4), 9.0)])
    assert [reply.entry.reply.text for reply in await asked] == ["early", "late"]
    assert (await shard.paid("mine"))[1] == {"app": Paid(6, 0, 6)}
    assert await shard.progress() == (0, 2, 6, 6)
    await shard.record_early({GOOD: (Reply("told too late"), 0.5)})
    await shard.flush()
    assert recorded(tmp_path) == {GOOD: "early", BAD: "late"}
