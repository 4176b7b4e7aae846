import errno
import json
import os
import pickle
import re
import subprocess
import sys

import faiss
import numpy as np
import pyarrow as pa
import pytest
from small_index import FakeEncoder, files_of

from kohaku_ray.errors import DataError, IndexMismatchError, StorageError
from kohaku_ray.index.build import BuildFiles, IndexSettings
from kohaku_ray.index.settings import Bm25Config, IndexConfig
from kohaku_ray.index.store import Index, fingerprint, publish, read_manifest
from kohaku_ray.index.vectors import VectorIndex
from kohaku_ray.store.storage import Directory

NODES = ("sentence", "paragraph")
ROLES = [
    *("nodes", "documents", "rejects", "vectors", "keys", "places-paragraph+sentence"),
    *("sizes", "layout", "statistics-paragraph"),
    *("terms-paragraph", "postings-paragraph", "rows-paragraph"),
]


def on_disk(path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}


def test_the_directory_holds_what_the_manifest_lists_and_no_pickle(tmp_path, build, documents):
    for _ in range(2):
        build(tmp_path, documents("a"))
    entries = files_of(tmp_path)
    assert sorted(entries) == sorted(ROLES)
    assert on_disk(tmp_path) == {"manifest.json"} | {entry["name"] for entry in entries.values()}
    for entry in entries.values():
        data = (tmp_path / entry["name"]).read_bytes()
        assert len(data) == entry["bytes"]
        with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError, IndexError)):
            pickle.loads(data)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert {"faiss", "pyarrow", "kohaku_ray"} <= manifest["versions"].keys()
    assert manifest["fingerprint"] == fingerprint(manifest["settings"])


def test_files_of_others_are_left_alone(tmp_path, build, documents):
    (tmp_path / "notes").mkdir()
    for name in ("notes/a.txt", "README.md"):
        (tmp_path / name).write_text("mine")
    build(tmp_path, documents("a"))
    assert {"notes/a.txt", "README.md"} <= on_disk(tmp_path)


def test_vectors_are_mapped_not_copied(tmp_path, build, documents):
    build(tmp_path, documents("a"))
    matrix = Index.open(str(tmp_path)).shards[0].vectors(NODES).vectors
    assert not matrix.flags.owndata
    assert not matrix.flags.writeable


def test_an_index_of_the_last_version_is_read(tmp_path, build, documents):
    """Layout 5: nodes as Parquet, a FAISS index beside flat vectors, sources without digests."""
    build(tmp_path, documents("a", "b"))
    now, directory = Index.open(str(tmp_path)), Directory(str(tmp_path))
    query = FakeEncoder().encode_queries(["kWh"])
    expected = now.shards[0].vectors(NODES).search(query, 5)
    manifest, files = read_manifest(directory), BuildFiles(directory)
    files.parquet("nodes", now.nodes.table)
    vectors = now.shards[0].vectors(NODES).vectors
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.array(vectors))
    files.faiss("faiss-paragraph+sentence", VectorIndex(vectors, np.arange(len(vectors)), index))
    manifest["shards"][0]["files"] |= files.written
    publish(directory, {**manifest, "format": 5})
    then = Index.open(str(tmp_path))
    assert type(then.shards[0].vectors(NODES).faiss_index).__name__ == "IndexFlatIP"
    assert then.nodes.table.equals(now.nodes.table)
    [hits], [same] = then.shards[0].vectors(NODES).search(query, 5), expected
    assert (hits.rows.tolist(), hits.scores.tolist()) == (same.rows.tolist(), same.scores.tolist())


def test_the_node_table_is_mapped(tmp_path, build, documents):
    build(tmp_path, documents("a"))
    nodes = Index.open(str(tmp_path)).shards[0].nodes
    before = pa.total_allocated_bytes()
    again = Index.open(str(tmp_path)).shards[0].node_rows
    assert pa.total_allocated_bytes() == before, "its rows are the file's pages"
    assert again.equals(nodes.table)


def test_a_missing_index_names_the_path_and_the_command(tmp_path):
    with pytest.raises(DataError, match=r"there is no index at .*/none: build one with `kohaku-ray index CONFIG`, or"):
        Index.open(str(tmp_path / "none"))


@pytest.mark.parametrize("role", ["nodes", "vectors", "terms-paragraph", "layout"])
def test_torn_and_missing_files_are_named(tmp_path, build, documents, role):
    build(tmp_path, documents("a"))
    entry = files_of(tmp_path)[role]
    file = tmp_path / entry["name"]
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(DataError, match=rf"{re.escape(entry['name'])} has .* bytes but the manifest says .*: re-index"):
        Index.open(str(tmp_path))
    file.unlink()
    with pytest.raises(DataError, match=rf"{re.escape(entry['name'])} is missing: re-index"):
        Index.open(str(tmp_path))


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("vectors", lambda index: index.shards[0].vectors(NODES)),
        ("vectors", lambda index: index.node_vectors(np.array([0]))),
        ("faiss-paragraph+sentence", lambda index: index.shards[0].vectors(NODES)),
        ("postings-paragraph", lambda index: index.shards[0].terms(["paragraph"])),
    ],
)
def test_damage_of_the_right_size_is_named_where_files_are_mapped(tmp_path, build, documents, role, part):
    build(tmp_path, documents("a"), factory="HNSW4" if "faiss" in role else "Flat")
    entry = files_of(tmp_path)[role]
    (tmp_path / entry["name"]).write_bytes(b"\x07" * entry["bytes"])
    index = Index.open(str(tmp_path))
    with pytest.raises(DataError, match=rf"{re.escape(entry['name'])} is damaged"):
        part(index)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}'])
def test_a_damaged_manifest_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"damaged|has index layout 99 but this version reads 5 and 6"):
        Index.open(str(tmp_path))


def test_other_settings_are_a_mismatch_that_names_both_values(tmp_path, build, documents, fake_encoder):
    build(tmp_path, documents("a"))
    identity = fake_encoder().identity
    Index.open(str(tmp_path), IndexSettings(identity).as_mapping())
    Index.open(str(tmp_path), {"weights": "chars"})
    cases = [
        (IndexSettings({**identity, "model": "other"}), "encoder.model 'fake' but the configuration says 'other'"),
        (
            IndexSettings(identity, IndexConfig(weights="uniform")),
            "weights 'chars' but the configuration says 'uniform'",
        ),
        (
            IndexSettings(identity, IndexConfig(bm25=Bm25Config(language="fr"))),
            r"bm25\.language 'en' but the configuration says 'fr'",
        ),
    ]
    for settings, message in cases:
        with pytest.raises(IndexMismatchError, match=f"{message}.*: re-index with .* in Python, or change"):
            Index.open(str(tmp_path), settings.as_mapping())


@pytest.mark.parametrize("written_before", [0, 5, 10])
def test_a_full_disk_leaves_the_old_index(tmp_path, build, documents, monkeypatch, written_before):
    build(tmp_path, documents("a"))
    before = on_disk(tmp_path)
    n_opened = 0
    open_output = Directory.open_output

    def fail_later(self, name):
        nonlocal n_opened
        n_opened += 1
        if n_opened > written_before:
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_output(self, name)

    monkeypatch.setattr(Directory, "open_output", fail_later)
    with pytest.raises(StorageError, match=r"cannot write .*No space left on device: free space or choose"):
        build(tmp_path, documents("a", "b"))
    monkeypatch.undo()
    assert len(Index.open(str(tmp_path)).documents) == 1
    assert before <= on_disk(tmp_path)
    build(tmp_path, documents("a", "b"))
    assert on_disk(tmp_path) == {"manifest.json"} | {entry["name"] for entry in files_of(tmp_path).values()}


def test_a_place_that_cannot_be_written_is_named(tmp_path, build, documents):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*: free space or choose a directory that can be written"):
        build(tmp_path / "file" / "index", documents("a"))


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import small_index
from kohaku_ray.index import build, store
{module}.{step} = lambda *_: os._exit(9)
small_index.index_documents({path!r}, small_index.make_documents("a", "b"))
"""


@pytest.mark.parametrize(("module", "step", "n_documents"), [("build", "publish", 1), ("store", "remove_unlisted", 2)])
def test_a_build_that_dies_is_seen_wholly_or_not_at_all(tmp_path, build, documents, module, step, n_documents):
    build(tmp_path, documents("a"))
    script = KILLED.format(tests=os.path.dirname(__file__), module=module, step=step, path=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert len(Index.open(str(tmp_path)).documents) == n_documents
    build(tmp_path, documents("a", "b", "c"))
    assert on_disk(tmp_path) == {"manifest.json"} | {entry["name"] for entry in files_of(tmp_path).values()}
