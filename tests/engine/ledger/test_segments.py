"""Segments on disk: written whole, read by age, torn ones counted, leases exclusive."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from kohaku_ray.engine.ledger import lease
from kohaku_ray.engine.ledger.lease import Lease
from kohaku_ray.engine.ledger.segments import Entry, SegmentStore
from kohaku_ray.errors import DataError
from kohaku_ray.records import Reply


def entry(text: str) -> Entry:
    return Entry(Reply(text, prompt_tokens=3, cached_tokens=1, completion_tokens=2, replica="r"), "model", 0.25)


def every(_: str) -> bool:
    return True


def test_entries_come_back_as_they_were(tmp_path):
    store = SegmentStore(str(tmp_path))
    store.write([("a", entry("one")), ("b", entry("zwei\n")), ("c", entry(""))])
    loaded = store.load(every)
    assert loaded.entries == {"a": entry("one"), "b": entry("zwei\n"), "c": entry("")}
    assert loaded.n_torn == 0
    assert store.load(lambda key: key == "b").entries == {"b": entry("zwei\n")}


def test_the_first_recorded_reply_wins(tmp_path):
    store = SegmentStore(str(tmp_path))
    store.write([("a", entry("first"))])
    store.write([("a", entry("second"))])
    assert store.load(every).entries["a"].reply.text == "first"


@pytest.mark.parametrize("keep", [0, 7, 100])
def test_a_torn_segment_is_counted_and_left_alone(tmp_path, keep):
    store = SegmentStore(str(tmp_path))
    store.write([("a", entry("whole"))])
    torn = tmp_path / store.write([("b", entry("torn"))])
    torn.write_bytes(torn.read_bytes()[:keep])
    (tmp_path / "segments" / "zz.arrow.tmp").write_bytes(b"half")
    loaded = store.load(every)
    assert list(loaded.entries) == ["a"]
    assert loaded.n_torn == 1
    assert torn.exists()


def test_compaction_keeps_every_reply_and_the_first_of_each(tmp_path):
    store = SegmentStore(str(tmp_path))
    for number in range(10):
        store.write([(f"k{number}", entry(f"{number}")), ("shared", entry(f"shared {number}"))])
    before = store.load(every).entries
    assert store.compact(more_than=10) == 0
    assert store.compact(more_than=9) == 10
    assert store.load(every).entries == before
    assert before["shared"].reply.text == "shared 0"
    assert len(list((tmp_path / "segments").iterdir())) == 1


def test_a_crash_between_merge_and_removal_leaves_only_repeats(tmp_path, monkeypatch):
    store = SegmentStore(str(tmp_path))
    for number in range(4):
        store.write([(f"k{number}", entry(f"{number}"))])
    before = store.load(every).entries
    monkeypatch.setattr(type(store._directory), "remove", lambda self, name: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.compact(more_than=2)
    assert SegmentStore(str(tmp_path)).load(every).entries == before


def test_one_owner_at_a_time(tmp_path):
    first, second = SegmentStore(str(tmp_path)), SegmentStore(str(tmp_path))
    first.acquire_lease("first")
    first.acquire_lease("first")
    with pytest.raises(DataError, match=rf"belongs to process {os.getpid()} on"):
        second.acquire_lease("second")
    second.release_lease("second")
    with pytest.raises(DataError):
        second.acquire_lease("second")
    first.release_lease("first")
    second.acquire_lease("second")


@pytest.mark.parametrize(
    ("change", "free"),
    [
        ({"pid": 2**22 + 1}, True),
        ({"started": 1.0}, True),
        ({"host": "elsewhere"}, False),
        ({"host": "elsewhere", "renewed": 1.0}, True),
        ({}, False),
    ],
    ids=["dead process", "number used again", "other host, fresh", "other host, stale", "alive"],
)
def test_a_dead_owners_path_is_free(tmp_path, change, free):
    store = SegmentStore(str(tmp_path))
    store.acquire_lease("other")
    file = tmp_path / "lease.json"
    held = json.loads(file.read_text())
    assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
    file.write_text(json.dumps({**held, "renewed": time.time(), **change}))
    if free:
        store.acquire_lease("me")
    else:
        with pytest.raises(DataError):
            store.acquire_lease("me")


class Pausing:
    """A directory that pauses before it writes or renames, so that other threads come between."""

    def __init__(self, directory) -> None:
        self._directory = directory

    def __getattr__(self, name):
        if name in ("write", "rename"):
            time.sleep(random.uniform(0, 0.05))
        return getattr(self._directory, name)


def takers(path: str, n: int) -> list[bool]:
    """Let owners take one lease at the same moment; returns who got it."""
    start = threading.Barrier(n)

    def take(number: int) -> bool:
        store = SegmentStore(path)
        store._lease._directory = Pausing(store._lease._directory)
        start.wait()
        try:
            return store.acquire_lease(f"owner {number}")
        except DataError:
            return False

    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(take, range(n)))


def test_of_owners_that_take_the_lease_at_the_same_moment_one_gets_it(tmp_path):
    for number in range(5):
        assert sum(takers(str(tmp_path / str(number)), 4)) == 1
        assert not list((tmp_path / str(number) / "claims").iterdir())


def test_a_dead_process_that_was_about_to_take_the_lease_keeps_nobody_out(tmp_path):
    store = SegmentStore(str(tmp_path))
    (tmp_path / "claims").mkdir()
    dead = asdict(replace(Lease.mine("dead"), started=1.0))
    (tmp_path / "claims" / "dead.json").write_text(json.dumps(dead))
    assert store.acquire_lease("me")
    assert not list((tmp_path / "claims").iterdir())


def test_a_process_that_does_not_finish_taking_the_lease_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "CLAIM_WAIT_S", 0.2)
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "slow.json").write_text(json.dumps(asdict(Lease.mine("slow"))))
    with pytest.raises(DataError, match=rf"is being taken by process {os.getpid()} on .*: run on that cluster, wait"):
        SegmentStore(str(tmp_path)).acquire_lease("me")


def test_a_torn_lease_is_no_lease(tmp_path):
    (tmp_path / "lease.json").write_text('{"owner": "x"')
    SegmentStore(str(tmp_path)).acquire_lease("me")


def replaced(text: str, generation: int) -> Entry:
    return replace(entry(text), generation=generation)


@pytest.mark.parametrize("generations", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_latest_generation_wins_wherever_it_stands(tmp_path, generations):
    store = SegmentStore(str(tmp_path))
    store.write([("a", replaced(f"reply {generation}", generation)) for generation in generations[:2]])
    store.write([("a", replaced(f"reply {generations[2]}", generations[2]))])
    assert store.load(every).entries == {"a": replaced("reply 2", 2)}


def test_compaction_keeps_the_latest_generation_and_its_number(tmp_path):
    store = SegmentStore(str(tmp_path))
    store.write([("a", entry("old")), ("b", entry("kept"))])
    store.write([("a", replaced("new", 1))])
    store.write([("a", entry("old"))])  # as a crash in the midst of an earlier compaction leaves it
    assert store.compact(more_than=2) == 3
    assert store.load(every).entries == {"a": replaced("new", 1), "b": entry("kept")}


def test_segments_from_before_replies_could_be_replaced_are_read(tmp_path):
    store = SegmentStore(str(tmp_path))
    name = store.write([("a", entry("one")), ("b", entry("two"))])
    without = store._directory.read_arrow(name).drop_columns(["generation"])
    without = pa.Table.from_pylist(without.to_pylist(), schema=without.schema)
    store._directory.write_arrow(name, without)
    assert "generation" not in store._directory.read_arrow(name).column_names
    assert store.load(every).entries == {"a": entry("one"), "b": entry("two")}
    store.write([("a", replaced("new", 1))])
    loaded = store.load(every)
    assert (loaded.entries["a"].reply.text, loaded.n_torn) == ("new", 0)


def test_a_foreign_arrow_file_is_no_segment(tmp_path):
    store = SegmentStore(str(tmp_path))
    store.write([("a", entry("one"))])
    store._directory.write_arrow("segments/0.arrow", pa.table({"key": ["b"], "generation": [0]}))
    loaded = store.load(every)
    assert (list(loaded.entries), loaded.n_torn) == (["a"], 1)


@pytest.mark.parametrize(
    "reply",
    [Reply("\udfff"), Reply("x", replica="\ud800"), Reply("x", completion_tokens=-(2**63) - 1), Reply("x", joules="1")],
)
def test_what_no_segment_can_hold_is_named_and_nothing_is_written(tmp_path, reply):
    store = SegmentStore(str(tmp_path))
    with pytest.raises(DataError, match=r"a reply cannot be recorded \(\w+: .+\): its server must send"):
        store.write([("a", entry("one")), ("b", Entry(reply, "model", 1.0))])
    assert not store.load(every).entries
