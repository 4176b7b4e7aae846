"""Damage to files of an index is found by `validate --deep`, mostly when they are read, and gets into no next index."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import PIL.Image
import pytest
from index.small_index import FakeEncoder, index_documents, make_documents
from kit.damage import damaged

from kohaku_ray.checks.validate import validate
from kohaku_ray.config import load_config
from kohaku_ray.documents.images import as_image, image_name
from kohaku_ray.errors import DataError
from kohaku_ray.index.build import forget_damaged
from kohaku_ray.index.images import write_image
from kohaku_ray.index.store import Index, all_files, check_content
from kohaku_ray.store.storage import Directory

NODES, PARAGRAPHS = ("sentence", "paragraph"), ("paragraph",)
IDS = [f"d{number:02}" for number in range(9)]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("index") / "index"
    index_documents(path, make_documents(*IDS), n_shards=3, rejects=[("bad.pdf", "no PDF")])
    return path


def found_deep(home: Path) -> bool:
    try:
        return bool(Index.open(str(home)).damage())
    except DataError:
        return True


def same_manifest(home: Path, whole: dict) -> bool:
    """Whether damage left the manifest's meaning: a space that became a line's end."""
    try:
        return json.loads((home / "manifest.json").read_text()) == whole
    except ValueError:
        return False


MANY = pytest.param(range(2000), marks=[pytest.mark.chaos, pytest.mark.long])


@pytest.mark.parametrize("seeds", [range(120), MANY], ids=len)
def test_no_damage_is_silent(home, seeds):
    whole, n = json.loads((home / "manifest.json").read_text()), 0
    silent = []
    for change in damaged(home, seeds):
        n += 1
        if not found_deep(home) and not ("of manifest.json" in change and same_manifest(home, whole)):
            silent.append(change)
    assert not silent
    assert n > 0.9 * len(seeds)
    assert Index.open(str(home)).damage() == []


def flip(path: Path, share: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1
    path.write_bytes(data)


def names(home: Path, *, mapped: bool) -> list[str]:
    """Files of an index; those that are mapped are compared by ``--deep`` alone."""
    files = all_files(Index.open(str(home)).manifest)
    large = {"vectors", "keys", "postings", "faiss"}
    return sorted(entry["name"] for role, entry in files.items() if (role.split()[0].split("-")[0] in large) == mapped)


def read_all(home: Path) -> None:
    """What a retriever and the pages read."""
    index = Index.open(str(home))
    for part in (index.layout, index.documents, index.rejects, index.nodes):
        assert part is not None
    for shard in index.shards:
        shard.vectors(NODES).search(FakeEncoder().encode_queries(["kWh"]), 3)
        shard.terms(PARAGRAPHS).search(["kWh"], 3)


def test_tables_that_are_read_whole_are_compared_when_they_are_read(home, tmp_path):
    assert len(names(home, mapped=False)) > len(names(home, mapped=True))
    for name in names(home, mapped=False):
        if "/sizes-" in name:
            continue  # the job alone reads it
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(home, copy)
        flip(copy / name)
        with pytest.raises(DataError, match=re.escape(f"{name} is damaged (its checksum is not the one it was")):
            read_all(copy)


def test_a_manifest_that_was_changed_is_damaged(home, tmp_path):
    shutil.copytree(home, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"k1": 1.5', '"k1": 1.6'))
    with pytest.raises(DataError, match=r"manifest.json is damaged \(its checksum .*: re-index"):
        Index.open(str(tmp_path / "index"))


def test_indexing_again_takes_nothing_over_from_damaged_files(home, tmp_path):
    for name in names(home, mapped=True):
        copy, encoder = tmp_path / name.replace("/", "-"), FakeEncoder()
        shutil.copytree(home, copy)
        flip(copy / name, 0.9)
        found = forget_damaged(str(copy))
        deleted = [file for file in found if not Path(file).exists()]
        assert deleted == ([str(copy / name)] if name.startswith("vectors/") else [])
        counts = index_documents(copy, make_documents(*IDS), encoder, n_shards=3)
        assert bool(encoder.asked) == bool(deleted)
        assert counts["n_shards_kept"] == 2
        assert Index.open(str(copy)).damage() == []
        assert (home / name).read_bytes() in [path.read_bytes() for path in copy.rglob("*") if path.is_file()]


def test_an_image_that_is_damaged_is_named_and_written_again(tmp_path):
    image = as_image(PIL.Image.new("RGB", (80, 80), "red"))
    directory = Directory(str(tmp_path))
    write_image(directory, image)
    path = tmp_path / image_name(image.digest)
    flip(path)
    with pytest.raises(DataError, match="an image is named by its content, and this one is not"):
        check_content(directory, {"name": image_name(image.digest)})
    write_image(directory, image)
    assert path.read_bytes() == image.data


def test_validate_deep_names_every_damaged_file_of_an_index(home, tmp_path, monkeypatch):
    shutil.copytree(home, tmp_path / "index")
    config = load_config("demo", [f"index.path={tmp_path}/index", f"run={tmp_path}/run"])
    monkeypatch.setattr("kohaku_ray.checks.validate.open_index", lambda config: Index.open(config.index.path))

    def problems(**how) -> list[str]:
        return [problem for problem in map(str, validate(config, **how).problems) if str(tmp_path) in problem]

    assert not problems(deep=True)
    for name in (chosen := names(home, mapped=True)[::3]):
        flip(tmp_path / "index" / name)
    assert not problems()
    files = [problem.partition(" is damaged")[0] for problem in problems(deep=True)]
    assert sorted(files) == [str(tmp_path / "index" / name) for name in sorted(chosen)]
    (tmp_path / "index" / chosen[0]).unlink()
    (problem,) = problems(deep=True)
    assert f"{chosen[0]} is missing" in problem
