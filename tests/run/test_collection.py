"""The files an index was made from, and how those that are there now differ."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pyarrow as pa
import pytest

from kohaku_ray.config import load_config
from kohaku_ray.run.collection import difference, sources_of
from kohaku_ray.run.sources import find_sources


@dataclass
class Recorded:
    """An index, as far as its files are concerned."""

    sources: pa.Table | None


@pytest.fixture
def docs(tmp_path):
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    for name in ("a.md", "b.md", "sub/c.txt"):
        (tmp_path / "docs" / name).write_text(name)
    return tmp_path / "docs"


def configured(*paths):
    return load_config("demo", [f"documents.paths=[{', '.join(map(str, paths))}]", "documents.metadata=null"])


def test_files_are_named_below_their_directory_so_that_a_moved_collection_is_the_same(docs, tmp_path):
    config = configured(docs)
    assert sources_of(config, find_sources(config)).to_pylist() == [
        {"name": "a.md", "bytes": 4},
        {"name": "b.md", "bytes": 4},
        {"name": "sub/c.txt", "bytes": 9},
    ]
    recorded = Recorded(sources_of(config, find_sources(config)))
    assert difference(recorded, config) == ""
    shutil.move(docs, tmp_path / "moved")
    assert difference(recorded, configured(tmp_path / "moved")) == ""
    assert difference(recorded, configured(tmp_path / "moved" / "a.md", tmp_path / "moved" / "b.md")) != ""


def test_new_lost_and_changed_files_are_named(docs):
    config = configured(docs)
    recorded = Recorded(sources_of(config, find_sources(config)))
    (docs / "a.md").unlink()
    (docs / "b.md").write_text("longer than before")
    for name in ("w.md", "x.md", "y.md", "z.md"):
        (docs / name).write_text("new")
    said = difference(recorded, config)
    assert "4 of the configured files are not in it (w.md, x.md, y.md, …)" in said
    assert "1 of its files are not there now (a.md)" in said
    assert "1 have changed since (b.md)" in said
    assert "kohaku-ray index" in said


def test_what_cannot_be_compared_is_no_difference(docs):
    config = configured(docs)
    assert difference(Recorded(None), config) == ""  # an index of an earlier version
    recorded = Recorded(sources_of(config, find_sources(config)))
    shutil.rmtree(docs)
    assert difference(recorded, config) == ""  # an index may be used without its documents
