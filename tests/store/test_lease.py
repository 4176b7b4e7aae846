"""The lease of a directory: one live process owns it, whatever clocks and files say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest
from kit.lease_race import takers
from kit.rows import check_rows

from kohaku_ray.errors import DataError
from kohaku_ray.store import lease
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.lease import HeldError, Lease, LeaseFile, LostError, call_every
from kohaku_ray.store.storage import Directory


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


def write_lease(file, change, ahead_s=0.0):
    held = asdict(Lease.mine("other")) | {"renewed": time.time() + ahead_s} | change
    Directory(str(file.parent)).replace(file.name, json.dumps(held).encode())


@check_rows("change, is_free", [({"pid": 2**22 + 1}, True), ({"started": "earlier"}, True), ({}, False)])
def test_a_process_that_is_seen_from_here_is_looked_at(tmp_path_factory, change, is_free):
    """At once, whatever its lease says of times."""
    path = tmp_path_factory.mktemp("ledger")
    for renewed in (1.0, time.time(), time.time() + 86400):
        write_lease(path / "lease.json", {**change, "renewed": renewed})
        if is_free:
            lease_of(path).acquire("me")
        else:
            with pytest.raises(HeldError, match=rf"belongs to process {os.getpid()} on {socket.gethostname()}"):
                lease_of(path).acquire("me")


@check_rows(
    "change, ahead_s",
    [
        ({"boot": "another container, of the same host name"}, 0),
        ({"host": "elsewhere"}, -60),
        ({"host": "elsewhere"}, 86400),
        ({"boot": None}, 0),  # as another version writes it
    ],
)
def test_a_process_that_is_not_seen_is_dead_when_its_lease_stays_as_it_is(
    tmp_path_factory, monkeypatch, change, ahead_s
):
    """attack6 B1, B11: ages by two clocks made two owners, or blocked a ledger for a day."""
    monkeypatch.setattr(lease, "HELD_PAUSE_S", 0.01)
    monkeypatch.setattr(lease, "STALE_LEASE_S", 60.0)
    told, file = [], tmp_path_factory.mktemp("ledger") / "lease.json"
    write_lease(file, change, ahead_s)
    with call_every(lambda: write_lease(file, change, ahead_s), 0.05, "other"):
        with pytest.raises(HeldError, match="belongs to process"):
            lease_of(file.parent).acquire("me")
        with pytest.raises(HeldError):
            lease_of(file.parent).check_free(0.1, told.append)
    assert ["waiting up to 60 s: ledger" in line for line in told] == [True]
    monkeypatch.setattr(lease, "STALE_LEASE_S", 0.2)
    left, began = file.read_bytes(), time.monotonic()
    lease_of(file.parent).check_free()
    assert time.monotonic() - began >= 0.2
    assert not file.exists()
    file.write_bytes(left)
    lease_of(file.parent).acquire("me")


def test_a_process_in_a_container_of_the_same_host_name_keeps_its_directory(tmp_path, monkeypatch):
    """attack6 B1: both jobs paid for all calls."""
    monkeypatch.setattr(lease, "HELD_PAUSE_S", 0.01)
    holds = """import sys
from kohaku_ray.store import lease, storage
lease.RENEWAL_S = 0.1
with lease.LeaseFile(storage.Directory(sys.argv[1]), "ledger", "").hold():
    print("held", flush=True)
    input()
"""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", holds, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as other:
        if other.stdout.readline().strip() != b"held":
            pytest.skip("this machine lets nobody make a pid namespace")
        with pytest.raises(HeldError, match=rf"belongs to process 1 on {socket.gethostname()}"):
            lease_of(tmp_path).acquire("me")
        other.communicate(b"\n")
    assert lease_of(tmp_path).acquire("me")


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="states of processes are read from /proc")
def test_a_killed_owner_whose_parent_does_not_ask_for_its_exit_code_is_dead(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        write_lease(tmp_path / "lease.json", {"pid": owner.pid, "started": lease.start_of(owner.pid)})
        with pytest.raises(HeldError):
            lease_of(tmp_path).acquire("second")
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
        lease_of(tmp_path).acquire("second")


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
    monkeypatch.setattr(lease, "STALE_LEASE_S", 0.1)
    claim.write_text(json.dumps(asdict(replace(Lease.mine("slow"), boot="another"))))
    lease_of(tmp_path).release("me")
    assert lease_of(tmp_path).acquire("me"), "it stood as it was for so long"


def test_a_lease_is_held_while_a_block_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "RENEWAL_S", 0.01)
    first = lease_of(tmp_path)
    with first.hold():
        before = (tmp_path / "lease.json").read_text()
        deadline = time.monotonic() + 10
        while (tmp_path / "lease.json").read_text() == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(DataError, match="belongs to process"):
            lease_of(tmp_path).check_free()
    lease_of(tmp_path).check_free()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("becomes", ["moved", "replaced"])
def test_a_directory_that_goes_while_it_is_held_is_named(tmp_path, monkeypatch, becomes):
    """attack6 B9: the owner took the lease of whatever was there, and went on."""
    monkeypatch.setattr(lease, "RENEWAL_S", 0.01)
    path = tmp_path / "run"
    pattern, deadline = rf"run {path} was deleted, moved or replaced while this job used it", time.monotonic() + 10

    def work(check):
        check()
        path.rename(tmp_path / "moved")
        if becomes == "replaced":
            lease_of(path).acquire("another job")
        while time.monotonic() < deadline:
            check()

    with pytest.raises(LostError, match=pattern), RunDirectory(str(path)).own() as check:
        work(check)
    assert (path / "lease.json").exists() == (becomes == "replaced"), "it does not write there"


def test_of_two_jobs_with_one_run_directory_one_is_refused(tmp_path):
    """Their ledgers may be two: nothing else would tell them of each other, and the outputs would be of both."""
    first, second = (RunDirectory(str(tmp_path / "run")) for _ in range(2))
    first.check_writable()
    with first.own():
        expected = rf"run .*/run belongs to process {os.getpid()} .*: wait for it to end"
        with pytest.raises(DataError, match=expected):
            second.check_writable()
        with pytest.raises(DataError, match=expected), second.own():
            pass
    second.check_writable()


def test_a_job_can_wait_for_the_owner_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "HELD_PAUSE_S", 0.01)
    order = []

    def build_later():
        with lease_of(tmp_path).hold(wait_s=60):
            order.append("second")

    second = threading.Thread(target=build_later)
    with lease_of(tmp_path).hold():
        second.start()
        time.sleep(0.1)
        order.append("first")
    second.join(timeout=60)
    assert order == ["first", "second"]
    with lease_of(tmp_path).hold():
        began = time.monotonic()
        with pytest.raises(DataError, match="belongs to process"), lease_of(tmp_path).hold(wait_s=0.05):
            pass
        assert time.monotonic() - began >= 0.05


def test_files_of_one_directory_are_leased_apart_from_it_and_from_each_other(tmp_path):
    directory = Directory(str(tmp_path))
    first, second = (LeaseFile(directory, "output", "wait", file) for file in ("a.jsonl", "b.jsonl"))
    with lease_of(tmp_path).hold(), first.hold(), second.hold():
        with pytest.raises(DataError, match=rf"output {tmp_path}/a.jsonl belongs to process"):
            LeaseFile(directory, "output", "wait", "a.jsonl").check_free()
        LeaseFile(directory, "output", "wait", "c.jsonl").check_free()
    assert not list(tmp_path.iterdir())
