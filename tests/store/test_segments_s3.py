"""The ledger's segments on an object store: torn uploads, busy servers, time-outs, leases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from kit.lease_race import takers

from kohaku_ray.errors import StorageError
from kohaku_ray.records import Reply
from kohaku_ray.store import storage
from kohaku_ray.store.segments import MOST_SMALL, Entry, SegmentStore
from kohaku_ray.store.storage import publish

ENTRY = Entry(Reply("an answer", 10, 0, 2, "stop"), "model", 0.5)


def everything(_: str) -> bool:
    return True


def test_segments_are_written_read_and_merged(s3):
    store = SegmentStore(s3.uri("ledger/plain"))
    for number in range(MOST_SMALL):
        store.write([(f"key{number}", ENTRY)])
    loaded = store.load(everything)
    assert (set(loaded.entries), loaded.damaged) == ({f"key{number}" for number in range(MOST_SMALL)}, ())
    assert loaded.entries["key1"] == ENTRY
    store.flush(store.index(everything))
    assert store.load(everything).entries == loaded.entries
    assert len(store._directory.names("segments")) == 1


def test_a_torn_segment_is_counted_and_the_others_are_read(s3):
    store = SegmentStore(s3.uri("ledger/torn"))
    store.write([("whole", ENTRY)])
    name = store.write([("cut", ENTRY)])
    data = store._directory.read(name).to_pybytes()
    publish(s3.uri(f"ledger/torn/{name}"), data[: len(data) // 2])
    loaded = store.load(everything)
    assert (list(loaded.entries), loaded.damaged) == (["whole"], (name,))


@pytest.fixture(scope="module")
def large() -> Entry:
    """A reply that is uploaded in parts: from 10 MB on."""
    return replace(ENTRY, reply=replace(ENTRY.reply, text=random.Random(0).randbytes(12_000_000).hex()))


@pytest.mark.parametrize("step", ["PUT .*segments.*arrow$", "PUT .*segments.*partNumber", "POST .*segments.*uploadId"])
def test_an_upload_that_breaks_off_leaves_no_half_segment_and_can_be_repeated(s3, step, large):
    """The one request of a small segment, a part of a large one, its completion."""
    entry = ENTRY if step.endswith("$") else large
    where = "ledger/broken-" + step.partition(" ")[0].lower() + str(len(step))
    store = SegmentStore(s3.uri(where))
    store.write([("before", ENTRY)])
    method, path = step.split(" ")
    s3.fail("drop", method, path, times=100)
    with pytest.raises(StorageError, match=rf"s3://kohaku/{where}/segments/.*did not answer.*repeat the command"):
        store.write([("key", entry)])
    s3.faults.clear()
    loaded = store.load(everything)
    assert (loaded.entries, loaded.damaged) == ({"before": ENTRY}, ())
    store.write([("key", entry)])
    assert store.load(everything).entries == {"before": ENTRY, "key": entry}


@pytest.mark.usefixtures("patient")
def test_a_busy_server_and_a_time_out_cost_no_reply(s3, monkeypatch):
    monkeypatch.setattr(storage, "REQUEST_S", 1.0)
    storage._patient.cache_clear()
    store = SegmentStore(s3.uri("ledger/busy"))
    s3.fail("busy", "PUT", "ledger/busy/segments", times=2)
    store.write([("key", ENTRY)])
    s3.fail("busy", "GET", "ledger/busy/segments", times=2)
    s3.fail("hang", "GET", "ledger/busy/segments")
    assert store.load(everything).entries == {"key": ENTRY}
    assert [met.split()[0] for met in s3.met] == ["busy", "busy", "busy", "busy", "hang"]
    storage._patient.cache_clear()


def test_a_segment_that_cannot_be_read_is_not_taken_for_a_torn_one(s3):
    """Its replies would be asked again, and paid for again."""
    store = SegmentStore(s3.uri("ledger/away"))
    store.write([("key", ENTRY)])
    s3.fail("busy", "GET", "ledger/away/segments", times=100)
    with pytest.raises(StorageError, match=r"cannot read s3://kohaku/ledger/away/segments/.*did not answer"):
        store.load(everything)


def test_of_owners_that_take_the_lease_at_the_same_moment_one_gets_it(s3):
    assert sum(takers(s3.uri("ledger/lease-race"), 3)) == 1


def test_a_lease_that_cannot_be_read_is_not_taken(s3):
    store = SegmentStore(s3.uri("ledger/lease-away"))
    store.lease.acquire("one")
    s3.fail("busy", "GET|HEAD", "lease-away/lease.json", times=100)
    with pytest.raises(StorageError, match="did not answer"):
        store.lease.acquire("two")
    s3.faults.clear()
    assert not store.lease.acquire("one"), "the first owner still has it"
