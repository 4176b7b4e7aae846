"""Files on an object store: paths, retries, and what is said when it refuses."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest
from kit.rows import check_rows

from kohaku_ray.errors import ConfigError, StorageError, UnreachableError, is_mistake
from kohaku_ray.store import storage
from kohaku_ray.store.storage import Directory, checksum, is_directory, is_file, join_path, publish, read_file


@pytest.mark.parametrize(
    ("path", "name", "file"),
    [
        ("/data/run", "a b.csv", "/data/run/a b.csv"),
        ("s3://bucket/run", "votes.parquet", "s3://bucket/run/votes.parquet"),
        ("s3://bucket/run/", "a b.csv", "s3://bucket/run/a%20b.csv"),
        ("s3://bucket/run?region=eu-west-1", "x/y", "s3://bucket/run/x/y?region=eu-west-1"),
    ],
)
def test_a_file_below_a_uri_keeps_its_options(path, name, file):
    assert join_path(path, name) == file


def test_files_are_written_read_looked_at_and_removed(s3):
    file = s3.uri("files/deep/a b.txt".replace(" ", "%20"))
    assert not is_file(file)
    publish(file, b"one")
    publish(file, b"two")
    assert read_file(file) == b"two"
    assert (is_file(file), is_directory(file)) == (True, False)
    assert (is_file(s3.uri("files/deep")), is_directory(s3.uri("files/deep"))) == (False, True)
    directory = Directory(s3.uri("files/deep"))
    assert directory.checksum("a b.txt") == checksum(b"two")
    directory.remove("a b.txt")
    directory.remove("a b.txt")
    assert not is_file(file)
    assert directory.checksum("a b.txt") is None
    with pytest.raises(FileNotFoundError):
        read_file(file)


def test_a_folder_that_is_made_while_it_is_listed_is_empty_or_there(tmp_path):
    """Arrow looks twice: whether it can list it, and if not, whether it is there."""
    for folder in map(str, range(300)):
        maker = threading.Thread(target=(tmp_path / folder).mkdir)
        maker.start()
        while maker.is_alive():
            assert Directory(str(tmp_path)).names(folder) == []
        maker.join()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["busy", "drop", "cut"])
def test_a_request_that_fails_by_chance_is_repeated(s3, kind):
    file, data = s3.uri(f"retried/{kind}"), b"x" * 11_000_000  # in parts: of one request a reply has nothing to cut
    s3.fail(kind, "PUT|POST", f"retried/{kind}", times=2)
    publish(file, data)
    s3.fail(kind, "GET", f"retried/{kind}", times=2)
    assert read_file(file) == data
    assert len(s3.met) == 4, s3.met


def test_a_server_that_does_not_answer_is_asked_again(s3, monkeypatch):
    monkeypatch.setattr(storage, "REQUEST_S", 1.0)
    storage._patient.cache_clear()
    publish(s3.uri("slow/x"), b"1")
    s3.fail("hang", "GET", "slow/x")
    began = time.monotonic()
    assert read_file(s3.uri("slow/x")) == b"1"
    assert s3.met == ["hang GET /kohaku/slow/x"]
    assert time.monotonic() - began < 15, "the time-out is not the one that is set"
    storage._patient.cache_clear()


def test_a_torn_upload_leaves_the_old_file(s3):
    file = s3.uri("torn/x")
    publish(file, b"old")
    s3.fail("drop", "PUT|POST", "torn/x", times=100)
    with pytest.raises(StorageError, match=r"^cannot write s3://kohaku/torn/x: bucket kohaku did not answer: check"):
        publish(file, b"new" * 1000)
    s3.faults.clear()
    assert read_file(file) == b"old"


def test_a_file_on_s3_is_replaced_by_one_request_or_stays(s3):
    directory = Directory(s3.uri("replaced"))
    directory.replace("x", b"old")
    assert s3.requests == ["PUT /kohaku/replaced/x"]
    s3.fail("drop", "PUT|POST", "replaced/x", times=100)
    with pytest.raises(StorageError, match="did not answer"):
        directory.replace("x", b"new")
    s3.faults.clear()
    assert bytes(directory.read("x")) == b"old"
    assert directory.names() == ["x"]


def test_files_that_are_removed_together_are_gone_or_an_error_says_so(s3):
    directory = Directory(s3.uri("many"))
    for name in "abc":
        directory.write(name, b"1")
    directory.remove("a", "missing", "c")
    assert directory.names() == ["b"]
    s3.fail("drop", "DELETE", "many/b", times=100)
    with pytest.raises(StorageError, match=r"cannot delete s3://kohaku/many/b: bucket kohaku did not answer"):
        directory.remove("missing", "b")


def test_many_are_handled_several_at_once_and_come_back_in_order(tmp_path):
    lock, running, most = threading.Lock(), 0, 0

    def slow(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02 if number % 3 else 0.06)
        with lock:
            running -= 1
        return -number

    assert list(Directory(str(tmp_path)).map_items(slow, range(20))) == [-number for number in range(20)]
    assert 1 < most <= storage.AT_ONCE


def test_wrong_credentials_name_the_bucket_and_the_cure(s3):
    s3.demand_credentials(True)
    try:
        for action in (read_file, is_file, lambda file: publish(file, b"1")):
            with pytest.raises(
                StorageError, match=r"s3://kohaku/x: bucket kohaku refuses these credentials: set AWS_ACCESS_KEY_ID"
            ):
                action(s3.uri("x"))
    finally:
        s3.demand_credentials(False)


def test_google_without_credentials_is_asked_for_seconds_and_the_cure_is_its_own(tmp_path, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no credentials of `gcloud auth`
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(
        StorageError, match=r"gs://bucket/x: bucket bucket needs credentials: set GOOGLE_APPLICATION_CREDENTIALS"
    ):
        is_file("gs://bucket/x?retry_limit_seconds=2")
    assert time.monotonic() - began < 20  # of the 2 s that it is given; unbounded, it tries for minutes
    for path, seconds in (("gs://bucket/x", storage.GCS_RETRY_S), ("gcs://bucket/x?retry_limit_seconds=7", 7)):
        filesystem, _ = storage.open_filesystem(path)
        assert filesystem.__reduce__()[1][0]["retry_time_limit"].total_seconds() == seconds


def test_a_bucket_that_is_not_there_is_named(s3):
    with pytest.raises(StorageError, match=r"cannot write s3://nowhere/x: there is no bucket nowhere: create it"):
        publish(s3.uri("x").replace("s3://kohaku", "s3://nowhere"), b"1")


def test_credentials_in_a_uri_are_refused_without_being_repeated():
    with pytest.raises(ConfigError, match=r"s3://…@bucket/x holds credentials") as raised:
        storage.read_file("s3://AKIA:geheim@bucket/x")
    assert "geheim" not in str(raised.value)
    assert "AKIA" not in str(raised.value)


@check_rows(
    ("number", "is_ours"),
    [
        *((number, True) for number in (errno.EISDIR, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENAMETOOLONG)),
        *((number, False) for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE)),
    ],
)
def test_a_file_that_cannot_be_written_is_a_mistake_where_its_path_is(number, is_ours, tmp_path):
    """A full disk ended commands with exit code 2, as if another setting would help."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(Exception, match="cannot be written") as caught:
            publish(str(tmp_path / "file"), b"text")
    assert is_mistake(caught.value) == is_ours


def test_what_does_not_answer_is_no_mistake():
    assert not is_mistake(UnreachableError("deployments.small cannot be reached"))
    assert isinstance(UnreachableError(""), ConfigError)
