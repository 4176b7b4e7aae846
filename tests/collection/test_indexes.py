from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from kohaku_ray.checks.validate import validate
from kohaku_ray.collection.indexes import chunks_of, difference, index_settings, source_names, views_of
from kohaku_ray.collection.sources import find_sources
from kohaku_ray.config import Config, load_config
from kohaku_ray.documents.read import digest_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.store import SOURCES_SCHEMA
from kohaku_ray.index.views import View


@pytest.fixture
def system(monkeypatch):
    """Give the demo's system other fields."""
    declaration = load_config("demo").declaration
    return lambda **fields: monkeypatch.setattr(Config, "declaration", replace(declaration, **fields))


def test_the_configuration_comes_before_the_system(system):
    system(chunks=Chunks(unit="tokens", size=600, over="section"))
    assert chunks_of(load_config("demo")) == Chunks(unit="tokens", size=600, over="section")
    config = load_config("demo", ["index.chunks={size: 300}"])
    assert chunks_of(config) == Chunks(size=300)
    chunks = {"unit": "chars", "size": 300, "overlap": 50, "over": "document"}
    assert index_settings(config).as_mapping()["chunks"] == chunks


def test_a_system_that_searches_chunks_needs_some(system):
    views = {"nodes": View(("sentence",), dense=True), "pieces": View(("chunk",), lexical=True)}
    system(views=views)
    with pytest.raises(
        ConfigError, match=r"searches chunks \(view pieces\) but index\.chunks is null .* set index\.ch"
    ):
        index_settings(load_config("demo"))
    assert chunks_of(load_config("demo", ["index.chunks={}"])) == Chunks()
    system(views=views, chunks=Chunks())
    assert index_settings(load_config("demo")).index.chunks == Chunks()


def test_a_run_that_searches_images_of_no_index_is_refused_by_validate_and_before_documents_are_parsed(tmp_path):
    overrides = [f"index.path={tmp_path}/index", "kohaku.image_top_k=2"]
    expected = r"searches images \(view images\) but index\.images is false: set it to true, and index again"
    with pytest.raises(ConfigError, match=expected):
        index_settings(load_config("demo", overrides))
    problems = [str(problem) for problem in validate(load_config("demo", overrides)).problems]
    assert [problem for problem in problems if re.search(expected, problem)]
    assert index_settings(load_config("demo", [*overrides, "index.images=true"])).images == {"captions": "printed"}
    assert index_settings(load_config("demo", overrides[:1])).images is None


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


def recorded_now(config) -> Recorded:
    files = find_sources(config)
    rows = zip(source_names(config, files), map(os.path.getsize, files), map(digest_of, files), strict=True)
    rows = [dict(zip(("name", "bytes", "digest"), row, strict=True)) for row in rows]
    return Recorded(pa.Table.from_pylist(rows, SOURCES_SCHEMA))


def configured(*paths):
    return load_config("demo", [f"documents.paths=[{', '.join(map(str, paths))}]", "documents.metadata=null"])


def test_files_are_named_below_their_directory_so_that_a_moved_collection_is_the_same(docs, tmp_path):
    config = configured(docs)
    recorded = recorded_now(config)
    assert recorded.sources["name"].to_pylist() == ["a.md", "b.md", "sub/c.txt"]
    assert difference(recorded, config) == ""
    shutil.move(docs, tmp_path / "moved")
    assert difference(recorded, configured(tmp_path / "moved")) == ""
    assert difference(recorded, configured(tmp_path / "moved" / "a.md", tmp_path / "moved" / "b.md")) != ""


def test_new_lost_and_changed_files_are_named(docs):
    config = configured(docs)
    recorded = recorded_now(config)
    (docs / "a.md").unlink()
    (docs / "b.md").write_text("longer than before")
    for name in ("w.md", "x.md", "y.md", "z.md"):
        (docs / name).write_text("new")
    message = difference(recorded, config)
    assert "4 of the configured files are not in it (w.md, x.md, y.md, …)" in message
    assert "1 of its files are not there now (a.md)" in message
    assert "1 have changed since (b.md)" in message
    assert "kohaku-ray index" in message


def test_an_edit_of_the_same_length_is_a_change(docs):
    """scale5.md, 3: "the" became "teh", and neither was a warning given nor did --strict refuse."""
    config = configured(docs)
    recorded = recorded_now(config)
    (docs / "a.md").write_text("a.dm")
    assert "1 have changed since (a.md)" in difference(recorded, config)
    older = Recorded(recorded.sources.select(["name", "bytes"]))
    assert difference(older, config) == "", "an index of an earlier version has no digests"


EYES = [
    "deployments.eyes.kind=openai",
    "deployments.eyes.base_url=http://127.0.0.1:1/v1",
    "deployments.eyes.model=eyes",
    "deployments.eyes.vision=true",
]
MODEL = ["index.images=true", "index.captions=model"]


def test_captions_need_a_model_that_sees():
    with pytest.raises(ConfigError, match=r"roles\.caption\.model is 'extractive', which sees no images: name a"):
        load_config("demo", MODEL)
    with pytest.raises(ConfigError, match=r"roles\.caption\.model is 'nobody' but deployments has"):
        load_config("demo", [*MODEL, "roles.caption.model=nobody"])


def test_images_join_the_identity_of_an_index_only_when_they_are_on(tmp_path):
    plain = index_settings(load_config("demo")).as_mapping()
    assert set(plain) == set(IndexSettings(encoder={}).as_mapping())
    assert index_settings(load_config("demo", ["index.images=true"])).as_mapping()["images"] == {"captions": "printed"}
    overrides = [*EYES, *MODEL, "roles.caption.model=eyes"]
    described = index_settings(load_config("demo", overrides)).as_mapping()["images"]
    assert described["captions"] == "model"
    assert described["caption"]["model"].startswith("openai:eyes")
    (tmp_path / "caption.j2").write_text(
        "{% block system %}{% endblock %}{% block user %}See {{ printed }}{% endblock %}"
    )
    other = index_settings(load_config("demo", [*overrides, f"prompts={tmp_path}"])).as_mapping()["images"]
    assert other["caption"]["prompt"] != described["caption"]["prompt"]


def test_validate_checks_what_captions_need(tmp_path):
    overrides = [*EYES, *MODEL, "roles.caption.model=eyes", f"documents.images={tmp_path}/none"]
    findings = validate(load_config("demo", overrides))
    problems = " ".join(map(str, findings.problems))
    assert "deployments.eyes: openai, eyes" in findings.lines
    assert "OPENAI_API_KEY" in problems
    assert f"documents.images is {tmp_path}/none, where there is no directory" in problems


def test_bm25_over_sentences_is_in_an_index_only_where_a_run_uses_it():
    terms = View(("sentence", "paragraph"), lexical=True, on_demand=True)
    assert terms not in views_of(load_config("demo"))
    assert terms in views_of(load_config("demo", ["kohaku.bm25=fuse"]))
