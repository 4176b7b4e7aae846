"""An index on an object store: the same bytes as on a disk, and nothing half built."""

from __future__ import annotations

import re

import numpy as np
import pytest
from small_index import IDENTITY, FakeEncoder

from kohaku_ray.errors import StorageError
from kohaku_ray.index.arrays import column_keys
from kohaku_ray.index.known import known_vectors
from kohaku_ray.index.store import MANIFEST, Index, read_table
from kohaku_ray.store.storage import Directory

NODES = ("sentence", "paragraph")


def stems(path: str) -> dict[str, bytes]:
    """Contents of an index's files by name, without the name of the build and the manifest's checksum of it."""
    directory, manifest = Directory(path), Index.open(path).manifest
    builds = "|".join([manifest["build"], *(shard["build"] for shard in manifest["shards"])])
    read = {name: directory.read(name).to_pybytes() for name in directory.names()}
    read[MANIFEST] = re.sub(rb'(?m)^ "checksum": .*\n', b"", read[MANIFEST])
    return {re.sub(builds, "BUILD", name): re.sub(builds.encode(), b"BUILD", data) for name, data in read.items()}


def test_an_index_on_s3_has_the_bytes_of_one_on_a_disk(s3, tmp_path, build, documents):
    here, bucket = str(tmp_path / "index"), s3.uri("index/same")
    for path in (here, bucket):
        build(path, documents("a", "b"))
    assert stems(bucket) == stems(here)
    index = Index.open(bucket)
    assert len(index.nodes) == len(Index.open(here).nodes)
    query = FakeEncoder().encode_queries(["a used 5 kWh."])
    remote, local = (Index.open(path).shards[0].vectors(NODES).search(query, 3) for path in (bucket, here))
    assert str(remote) == str(local)


def test_a_build_whose_upload_breaks_off_leaves_the_old_index(s3, build, documents):
    path = s3.uri("index/broken")
    build(path, documents("a"))
    s3.fail("drop", "PUT", "index/broken/manifest.json", times=100)
    with pytest.raises(StorageError, match="did not answer"):
        build(path, documents("a", "b"))
    s3.faults.clear()
    assert Index.open(path).manifest["counts"]["n_documents"] == 1
    build(path, documents("a", "b"))
    assert Index.open(path).manifest["counts"]["n_documents"] == 2


def test_a_shard_that_is_built_again_reads_no_vectors_but_its_own(s3, build, documents, fake_encoder):
    """Else an index of n shards reads its vectors n times."""
    path, encoder = s3.uri("index/again"), fake_encoder()
    build(path, documents(*"abcdefghi"), n_shards=3)
    files = [shard["files"] for shard in Index.open(path).manifest["shards"]]
    assert len(files) == 3
    s3.sent.clear()
    keys = np.concatenate([column_keys(read_table(Directory(path), file["keys"])["key"]) for file in files])
    assert known_vectors(path, IDENTITY).has(keys).all()
    read = [f"/kohaku/index/again/{file['vectors']['name']}" for file in files]
    assert not any(s3.sent[name] for name in read)
    build(path, documents(*"abcdefghijklmnopqr"), encoder, n_shards=3)
    assert not any(text.startswith(tuple("abcdefghi")) for text in encoder.asked)
    assert [s3.sent[name] for name in read] == [file["vectors"]["bytes"] for file in files]


def test_a_server_that_is_down_is_no_empty_index(s3, build, documents):
    """Otherwise every vector would be computed again."""
    path = s3.uri("index/away")
    build(path, documents("a"))
    s3.fail("busy", "GET", "index/away/vectors/", times=1000)
    with pytest.raises(StorageError, match=r"cannot read s3://kohaku/index/away/vectors/.*did not answer"):
        known_vectors(path, IDENTITY)
