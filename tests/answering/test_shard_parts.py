"""The parts of a shard, each alone: accounts, calls in flight, store."""

from __future__ import annotations

import pytest

from kohaku_ray.answering.accounts import Accounts
from kohaku_ray.answering.calls import CallsInFlight, Wanted
from kohaku_ray.answering.shard_store import ShardStore
from kohaku_ray.answering.spending import Paid
from kohaku_ray.errors import DataError
from kohaku_ray.models.replica import Refused
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply
from kohaku_ray.store.segments import Entry, LedgerReply, SegmentStore

KEY, APP, OTHER = "a" * 32, Target("app"), Target("other")
REQUEST = ChatRequest("m", (("user", "?"),), 0.7, 1.0, 64, 0)
REPLY = LedgerReply(Entry(Reply("text"), "m", 0.0), "made", KEY)


def test_a_run_pays_per_target_and_is_refused_once_stopped_or_without_access():
    accounts = Accounts()
    accounts.pay("mine", APP, Reply("x", 10, 4, 2))
    accounts.pay("mine", APP, Reply("x", 1, 0, 1))
    assert accounts.paid("mine") == {"app": Paid(11, 4, 3)}
    assert (accounts.paid("other"), accounts.totals) == ({}, (2, 11, 3))
    accounts.note_refusal("mine", APP, Refused("ModelError", "no"))
    assert accounts.find_refusal("mine", APP) is None
    accounts.note_refusal("mine", APP, Refused("RefusedAccessError", "no key"))
    assert accounts.find_refusal("mine", APP) == Refused("RefusedAccessError", "not asked: no key")
    assert accounts.find_refusal("mine", OTHER) is accounts.find_refusal("theirs", APP) is None
    accounts.stop("mine", "spent")
    assert accounts.find_refusal("mine", OTHER) == Refused("ModelError", "not asked: spent")


async def test_a_call_is_joined_while_in_flight_and_a_run_renews_once():
    calls, again = CallsInFlight(), Wanted(KEY, REQUEST, APP, "run", "run")
    call, is_joined = calls.join_or_start(Wanted(KEY, REQUEST, APP))
    same, joins = calls.join_or_start(again)
    assert (same is call, is_joined, joins, len(calls)) == (True, False, True, 1)
    assert calls.must_renew(again)
    calls.finish(call, REPLY)
    assert (await call.wait(is_joined=False), (await call.wait(is_joined=True)).source) == (REPLY, "joined")
    assert (calls.find(KEY), len(calls), calls.must_renew(again)) == (None, 0, False)
    failing, _ = calls.join_or_start(again)
    calls.fail(failing, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await failing.wait(is_joined=False)
    assert not calls


async def test_a_store_keeps_what_it_cannot_write_and_leaves_the_path_when_nobody_uses_it(tmp_path):
    store = ShardStore(SegmentStore(str(tmp_path), "0of1"), 0, 1, "me")
    await store.hold()
    store.record(KEY, REPLY.entry)
    (tmp_path / "segments").write_text("in the way")
    with pytest.raises(DataError, match="cannot write"):
        await store.flush()
    assert "cannot write" in store.failure
    await store.leave_unless(lambda: False)
    assert store.is_open, "it has unwritten replies"
    (tmp_path / "segments").unlink()
    await store.retry()
    assert store.failure is None
    await store.leave_unless(lambda: True)
    assert store.is_open
    await store.leave_unless(lambda: False)
    assert (store.is_open, (tmp_path / "lease.json").exists()) == (False, False)
    assert await store.find([KEY, "b" * 32]) == [REPLY.entry, None]
