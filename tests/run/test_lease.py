"""The lease of a directory: one live process owns it, whatever clocks and files say."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import asdict, replace

import pytest
from kit.lease_race import takers

from kohaku_ray.errors import DataError
from kohaku_ray.run import lease
from kohaku_ray.run.lease import Lease, LeaseFile
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.storage import Directory


def lease_of(path) -> LeaseFile:
    return LeaseFile(Directory(str(path)), "ledger", "wait")


def test_one_owner_at_a_time(tmp_path):
    first, second = lease_of(tmp_path), lease_of(tmp_path)
    first.acquire("first")
    first.acquire("first")
    with pytest.raises(DataError, match=rf"belongs to process {os.getpid()} on"):
        second.acquire("second")
    second.release("second")
    with pytest.raises(DataError):
        second.acquire("second")
    first.release("first")
    second.acquire("second")


@pytest.mark.parametrize(
    ("change", "free"),
    [
        ({"pid": 2**22 + 1}, True),
        ({"started": "earlier"}, True),
        ({"host": "elsewhere"}, False),
        ({"host": "elsewhere", "renewed": 1.0}, True),
        ({}, False),
    ],
    ids=["dead process", "number used again", "other host, fresh", "other host, stale", "alive"],
)
def test_a_dead_owners_path_is_free(tmp_path, change, free):
    held_lease = lease_of(tmp_path)
    held_lease.acquire("other")
    file = tmp_path / "lease.json"
    held = json.loads(file.read_text())
    assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
    file.write_text(json.dumps({**held, "renewed": time.time(), **change}))
    if free:
        held_lease.acquire("me")
    else:
        with pytest.raises(DataError):
            held_lease.acquire("me")


def test_of_owners_that_take_the_lease_at_the_same_moment_one_gets_it(tmp_path):
    for number in range(5):
        assert sum(takers(str(tmp_path / str(number)), 4)) == 1
        assert not list((tmp_path / str(number)).glob("claim-*"))


def test_a_claim_of_a_live_process_keeps_others_out_and_is_named_and_a_dead_ones_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "CLAIM_WAIT_S", 0.2)
    claim = tmp_path / "claim-slow.json"
    claim.write_text(json.dumps(asdict(Lease.mine("slow"))))
    with pytest.raises(DataError, match=rf"is being taken by process {os.getpid()} on .*: wait"):
        lease_of(tmp_path).acquire("me")
    claim.write_text(json.dumps(asdict(replace(Lease.mine("slow"), started="earlier"))))
    assert lease_of(tmp_path).acquire("me")
    assert not list(tmp_path.glob("claim-*"))


def test_a_lease_is_held_while_a_block_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "RENEWAL_S", 0.01)
    first = lease_of(tmp_path)
    with first.held():
        before = (tmp_path / "lease.json").read_text()
        deadline = time.monotonic() + 10
        while (tmp_path / "lease.json").read_text() == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(DataError, match="belongs to process"):
            lease_of(tmp_path).check_free()
    lease_of(tmp_path).check_free()
    assert not list(tmp_path.iterdir())


def test_of_two_jobs_with_one_run_directory_one_is_refused(tmp_path):
    """Their ledgers may be two: nothing else would tell them of each other, and the outputs would be of both."""
    first, second = (RunDirectory(str(tmp_path / "run")) for _ in range(2))
    first.check_writable()
    with first.owned():
        expected = rf"run .*/run belongs to process {os.getpid()} .*: wait for it to end"
        with pytest.raises(DataError, match=expected):
            second.check_writable()
        with pytest.raises(DataError, match=expected), second.owned():
            pass
    second.check_writable()


def test_a_job_can_wait_for_the_owner_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "HELD_PAUSE_S", 0.01)
    order = []

    def build_later():
        with lease_of(tmp_path).held(wait_s=60):
            order.append("second")

    second = threading.Thread(target=build_later)
    with lease_of(tmp_path).held():
        second.start()
        time.sleep(0.1)
        order.append("first")
    second.join(timeout=60)
    assert order == ["first", "second"]
    with lease_of(tmp_path).held():
        began = time.monotonic()
        with pytest.raises(DataError, match="belongs to process"), lease_of(tmp_path).held(wait_s=0.05):
            pass
        assert time.monotonic() - began >= 0.05


def test_files_of_one_directory_are_leased_apart_from_it_and_from_each_other(tmp_path):
    directory = Directory(str(tmp_path))
    first, second = (LeaseFile(directory, "output", "wait", file) for file in ("a.jsonl", "b.jsonl"))
    with lease_of(tmp_path).held(), first.held(), second.held():
        with pytest.raises(DataError, match=rf"output {tmp_path}/a.jsonl belongs to process"):
            LeaseFile(directory, "output", "wait", "a.jsonl").check_free()
        LeaseFile(directory, "output", "wait", "c.jsonl").check_free()
    assert not list(tmp_path.iterdir())
