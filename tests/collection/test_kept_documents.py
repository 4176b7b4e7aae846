"""Files that have not changed since the index was made are not parsed again; the next index is that of all files."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from kit.rows import check_rows
from kit.runs_here import index_here

from kohaku_ray import documents, values
from kohaku_ray.checks.validate import validate
from kohaku_ray.collection import indexes, indexing
from kohaku_ray.collection.indexes import PARSING, difference, parser_note, slow_search_note
from kohaku_ray.collection.indexing import choose_shards
from kohaku_ray.config import load_config
from kohaku_ray.documents.read import filesystem_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.store import Index
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep

WORDS = {"a.md": "The hall drew 41 MW in May.", "b.md": "Fans spin faster in June.", "c.md": "Two pumps run at night."}


@pytest.fixture
def docs(tmp_path) -> Path:
    (tmp_path / "docs").mkdir()
    for name, text in WORDS.items():
        (tmp_path / "docs" / name).write_text(f"# {name}\n\n{text}\n")
    return tmp_path / "docs"


@pytest.fixture
def index(docs, tmp_path, tiny_encoder, monkeypatch):
    """The stages of the index job, one after the other; returns the files parsed and the texts encoded."""
    parsed, read = [], indexing.parse_source
    monkeypatch.setattr(indexing, "parse_source", lambda file, *more: parsed.append(file) or read(file, *more))

    def run(*overrides: str, between=lambda: None, path: str = "index") -> tuple[list[str], list[str]]:
        settings = [f"documents.paths=[{docs}]", "documents.metadata=null", f"index.encoder.model={tiny_encoder}"]
        config = load_config("demo", [*settings, f"index.path={tmp_path}/{path}", f"run={tmp_path}/run", *overrides])
        run.config, run.overrides = config, [*settings, f"index.path={tmp_path}/{path}"]
        parsed.clear()
        texts = index_here(config, between)["texts"]
        return [os.path.basename(file) for file in parsed], texts

    return run


def same_index(tmp_path: Path, one: str, other: str) -> bool:
    first, second = (Index.open(f"{tmp_path}/{name}") for name in (one, other))
    rows = [index.nodes.table for index in (first, second)]
    return bool(rows[0].equals(rows[1]) and first.documents.equals(second.documents))


def test_a_file_that_has_not_changed_is_not_parsed_again(docs, index, tmp_path):
    assert index()[0] == [*WORDS]
    before = Index.open(f"{tmp_path}/index").manifest["shards"]
    assert index() == ([], [])
    assert Index.open(f"{tmp_path}/index").manifest["shards"] == before
    (docs / "b.md").write_text("# b.md\n\nFans spin slower in June.\n")
    assert "1 have changed since (b.md)" in difference(Index.open(f"{tmp_path}/index"), index.config)
    assert index() == (["b.md"], ["Fans spin slower in June."])
    assert difference(Index.open(f"{tmp_path}/index"), index.config) == ""
    index(path="fresh")
    assert same_index(tmp_path, "index", "fresh")
    (docs / "c.md").unlink()
    (docs / "d.md").write_text("# d\n\nA new one.\n")
    assert index()[0] == ["d.md"]
    index(path="fresh")
    assert same_index(tmp_path, "index", "fresh")


def test_files_of_one_name_in_two_directories_are_told_apart(docs, index, tmp_path):
    """Two years' reports: `answer --strict` refused the index just made of them, and each job parsed them again."""
    shutil.copytree(docs, tmp_path / "docs of 2024")
    (tmp_path / "docs of 2024" / "a.md").write_text("# a.md\n\nThe hall drew 52 MW in May.\n")
    two = f"documents.paths=[{docs}, {tmp_path}/docs of 2024]"
    index(two)
    assert difference(Index.open(f"{tmp_path}/index"), index.config) == ""
    assert index(two) == ([], [])
    (docs / "a.md").write_text("# a.md\n\nThe hall drew 43 MW in May.\n")
    assert "1 have changed since (docs/a.md)" in difference(Index.open(f"{tmp_path}/index"), index.config)


def test_documents_that_are_kept_go_to_other_shards(index, tmp_path):
    index("index.shards=1")
    assert index("index.shards=3")[0] == []
    assert Index.open(f"{tmp_path}/index").n_shards > 1
    index("index.shards=1", path="fresh")
    assert same_index(tmp_path, "index", "fresh")


def test_what_a_document_follows_from_besides_its_file_is_compared(docs, index, tmp_path, monkeypatch):
    metadata = tmp_path / "metadata.csv"
    metadata.write_text("id,title\na,Hall\nb,Fans\n")
    with_metadata = f"documents.metadata={metadata}"
    index(with_metadata)
    metadata.write_text("id,title\na,Hall\nb,Other fans\n")
    assert index(with_metadata)[0] == ["b.md"]
    assert index(with_metadata, "kohaku.top_k=3")[0] == [], "nothing of the index"
    assert index(with_metadata, "index.chunks={size: 40, overlap: 0}")[0] == [*WORDS]
    monkeypatch.setattr(indexing, "_parser_identity", lambda _: "another version")
    assert index(with_metadata, "index.chunks={size: 40, overlap: 0}")[0] == [*WORDS]


def test_an_index_of_another_parser_is_used_and_what_another_one_changes_is_counted(docs, index, tmp_path, monkeypatch):
    """It was accepted without a word, and its manifest had the same version (users5.md 2.4)."""
    with monkeypatch.context() as older:
        read = indexing.parse_source
        cut_short = lambda file, config, name, _: read(file, config, name, Path(file).read_bytes()[:-8])  # noqa: E731
        older.setattr(indexing, "parse_source", cut_short)
        older.setattr(indexing, "parsing_digest", lambda _: "older")
        index()
    indexing._parser_identity.cache_clear()  # a later process has none
    made = Index.open(f"{tmp_path}/index")
    assert "made by another parser (of kohaku_ray 0.2.0+" in parser_note(made, index.config)
    assert difference(made, index.config) == ""
    sweep = {"base": "demo", "seeds": [0], "axes": {"kohaku.top_k": [2, 4]}}
    (tmp_path / "depth.yaml").write_text(json.dumps(sweep))
    plan = plan_sweep(load_sweep(f"{tmp_path}/depth.yaml", [], index.overrides))
    assert plan.notes == (parser_note(made, index.config),), "said once, on its page too"
    lines = "\n".join(validate(index.config, deep=True).lines)
    assert "`kohaku-ray index CONFIG` changes 3 of its 3 texts" in lines, lines
    assert index() == ([*WORDS], [*WORDS.values()])
    assert parser_note(Index.open(f"{tmp_path}/index"), index.config) == ""


def test_the_libraries_of_the_parser_are_those_that_it_imports():
    rooms = [Path(place) for room in (documents, values) for place in room.__path__]
    code = "\n".join(file.read_text() for room in rooms for file in room.rglob("*.py"))
    imported = {match[1] for match in re.finditer(r"^\s*(?:from|import) (\w+)", code, re.MULTILINE)}
    imported |= {name for name in ("nltk", "openpyxl") if f'"{name}' in code}  # by name
    by_module = {"PIL": "pillow", "markdown_it": "markdown-it-py", "docx": "python-docx", "pptx": "python-pptx"}
    known = {by_module.get(name, name).replace("_", "-") for name in imported - {"kohaku_ray"}}
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    listed = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    required = {match[0] for name in listed if (match := re.match(r"[\w.-]+", name))}
    compute = {"datasets", "numpy", "pyarrow", "pydantic", "pyyaml", "scipy"}  # no text depends on them
    assert {*PARSING} == (known & required) - compute


def test_pages_are_parsed_again_where_what_they_repeat_has_changed(docs, index):
    for number in range(4):
        (docs / f"p{number}.html").write_text(f"<p>Menu of the site.</p><p>Page {number} says {number} kWh.</p>")
    index()
    (docs / "p3.html").write_text("<p>Menu of the site.</p><p>Page 3 says 5 kWh.</p>")
    assert index()[0] == ["p3.html"], "its neighbours repeat what they did"
    for number in (2, 3):
        (docs / f"p{number}.html").write_text(f"<p>Another menu.</p><p>Page {number} says {number} kWh.</p>")
    assert index()[0] == [f"p{number}.html" for number in range(4)], "the menu stands on too few pages now"


def test_a_file_that_cannot_be_told_unchanged_is_parsed_each_time(index, monkeypatch):
    """A source without ETag, a file of the hub."""
    monkeypatch.setattr(indexing, "digest_of", lambda *_: None)
    index()
    assert index()[0] == [*WORDS]


def test_objects_on_a_store_are_told_by_their_etags_and_none_is_read_again(s3, index):
    def put(name: str, text: str) -> None:
        filesystem, inner = filesystem_of(s3.uri(f"kept/{name}"))
        with filesystem.open_output_stream(inner) as stream:
            stream.write(text.encode())

    def names(parsed: tuple[list[str], list[str]]) -> list[str]:
        return [name.partition("?")[0] for name in parsed[0]]

    for name, text in WORDS.items():
        put(name, f"# {name}\n\n{text}\n")
    documents = f"documents.paths=['{s3.uri('kept')}']"
    assert names(index(documents)) == [*WORDS]
    s3.requests.clear()
    assert index(documents) == ([], [])
    assert any(request.startswith("HEAD") and "b.md" in request for request in s3.requests)
    assert not [request for request in s3.requests if request.startswith("GET") and ".md" in request]
    put("b.md", "# b.md\n\nFans spin fasten in June.\n")  # of the same length
    path = index.config.index.path
    assert "1 have changed since (b.md)" in difference(Index.open(path), index.config)
    assert names(index(documents)) == ["b.md"]
    assert difference(Index.open(path), index.config) == ""


def test_index_suggests_lists_with_the_measured_time_where_a_flat_index_is_slow(index, monkeypatch):
    """scale5.md, 5: nothing suggested an IVF at 16 ms of CPU per query."""
    index()
    assert slow_search_note(index.config) == "", "three sentences are not slow"
    monkeypatch.setattr(indexes, "FEW_VECTORS", 0)
    assert slow_search_note(index.config) == "", "nor are they measured to be"
    monkeypatch.setattr(indexes, "SLOW_MS", 0.0)
    pattern = r"a query takes \d+\.\d ms of CPU in a flat index of \d+ vectors per shard: index\.factory=IVF\d+,Flat"
    assert re.match(pattern, slow_search_note(index.config))


def test_a_document_that_changes_while_it_is_indexed_is_seen_next_time(docs, index, tmp_path):
    changed = "# b.md\n\nFans spin slower in June.\n"
    index(between=lambda: (docs / "b.md").write_text(changed))
    assert "Fans spin faster in June." in Index.open(f"{tmp_path}/index").nodes.table["text"].to_pylist()
    assert "1 have changed since (b.md)" in difference(Index.open(f"{tmp_path}/index"), index.config)
    assert index()[0] == ["b.md"]


def test_a_file_one_of_whose_documents_is_not_used_is_parsed_each_time(docs, index):
    (docs / "a.txt").write_text("The same id.")
    index()
    assert index()[0] == ["a.txt"], "its id is that of a.md, which is used"


@check_rows(("n_nodes", "n_shards"), [(0, 1), (300_000, 1), (300_001, 2), (1_000_000, 4), (10**9, 64)])
def test_shards_are_as_many_as_the_nodes_need(n_nodes, n_shards):
    assert choose_shards(load_config("demo"), n_nodes, 2.0**50) == n_shards


def test_shards_are_small_enough_for_the_largest_node_or_refused_with_both_numbers():
    config = load_config("demo")
    assert choose_shards(config, 200_000, 2.0**30) == 2
    fixed = load_config("demo", ["index.shards=2"])
    assert choose_shards(fixed, 10_000_000, 2.0**50) == 2
    message = r"a shard of 5,000,000 nodes takes 31\.0 GiB to build, but the largest node has 8\.0 GiB .* to 8 or more"
    with pytest.raises(ConfigError, match=message):
        choose_shards(fixed, 10_000_000, 2.0**33)
