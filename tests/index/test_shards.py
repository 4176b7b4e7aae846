"""An index in shards finds what the whole index finds, and only the shards that changed are built again."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index.small_index import FakeEncoder, index_documents, make_documents, term_index
from kit.properties import scaled
from rank_bm25 import BM25Okapi

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.errors import DataError
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.store import Index
from kohaku_ray.index.terms import Statistics, TermCounts, similarities, tokenise

NODES, PARAGRAPHS = ("sentence", "paragraph"), ("paragraph",)
IDS = [f"d{number:02}" for number in range(23)]
TEXTS = ["How much energy?", "kWh of d07", "Page 3", "It rose.", "Chart of d11"]
WORDS = ["energy", "carbon", "a100-80gb", "water", "gpu", "3,000", "kwh", "training", "42"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[int, str]:
    path_of = {n: str(tmp_path_factory.mktemp("index") / f"of{n}") for n in (1, 2, 5, 64)}
    for n_shards, path in path_of.items():
        index_documents(path, make_documents(*IDS), n_shards=n_shards)
    return path_of


def access(path: str):
    """The whole index in this process, its shards each opened on their own."""
    index = Index.open(path)
    opened: list[LocalIndex] = []
    opened += [LocalIndex(shard, FakeEncoder(), peer=lambda number: opened[number]) for shard in index.shards]
    return opened[0]


def run(path: str, name: str, items, params=()):
    return asyncio.run(getattr(access(path), name)(items, *params))


def plain(results) -> list:
    return [(hits.rows.tolist(), hits.scores.tolist()) for hits in results]


def vectors():
    return list(FakeEncoder().encode_passages(TEXTS))


@pytest.mark.parametrize("n_shards", [2, 5, 64])
@pytest.mark.parametrize("within", [None, ("d03", "d19", "d07"), ()])
@pytest.mark.parametrize("top_k", [1, 7, 1000])
def test_a_search_finds_what_the_whole_index_finds_ties_included(paths, n_shards, within, top_k):
    asked = ("search", vectors(), (NODES, top_k, within))
    assert plain(run(paths[n_shards], *asked)) == plain(run(paths[1], *asked))


@pytest.mark.parametrize("n_shards", [2, 5, 64])
@pytest.mark.parametrize("within", [None, ("d03", "d19", "d07")])
def test_bm25_has_the_statistics_of_all_shards(paths, n_shards, within):
    asked = ("lexical", TEXTS, (PARAGRAPHS, 9, within))
    assert plain(run(paths[n_shards], *asked)) == plain(run(paths[1], *asked))


@pytest.mark.parametrize("n_shards", [2, 5, 64])
def test_rows_read_from_shards_are_those_of_the_whole(paths, n_shards):
    whole, parts = Index.open(paths[1]), Index.open(paths[n_shards])
    assert parts.n_shards == len({shard_number(doc_id, n_shards) for doc_id in IDS})
    assert parts.documents.equals(whole.documents)
    assert parts.nodes.table.equals(whole.nodes.table)
    for name in ("parent", "kind", "end", "source_row", "tokens"):
        assert getattr(parts.nodes, name).tolist() == getattr(whole.nodes, name).tolist()
    rows = np.random.default_rng(0).integers(0, len(whole.nodes), 50)
    assert parts.node_vectors(rows).tobytes() == whole.node_vectors(rows).tobytes()
    results = run(paths[n_shards], "vectors", rows.tolist())
    assert np.stack(results).tobytes() == whole.node_vectors(rows).tobytes()


@settings(max_examples=scaled(20))
@given(data=st.data(), n_shards=st.sampled_from([2, 5, 64]), section_tokens=st.sampled_from([0, 3, 512]))
def test_neighbourhoods_are_those_of_the_whole_index(paths, data, n_shards, section_tokens):
    whole = Index.open(paths[1]).nodes
    rows = st.lists(st.integers(0, len(whole) - 1), max_size=12).map(tuple)
    asked = data.draw(st.lists(rows, min_size=1, max_size=4))
    for got, chosen in zip(run(paths[n_shards], "nodes", asked, (section_tokens, ())), asked, strict=True):
        expected = whole.neighbourhood(chosen, section_tokens)
        assert isinstance(got, NodeTable)
        assert got.table.equals(expected.table)
        for name in ("parent", "kind", "end", "source_row", "tokens"):
            assert getattr(got, name).tolist() == getattr(expected, name).tolist(), name
        assert [got.text_of(row) for row in range(len(got))] == [expected.text_of(row) for row in range(len(expected))]


def test_paragraphs_of_several_shards_are_compared_by_their_terms(paths):
    whole = Index.open(paths[1])
    rows = whole.shards[0].terms(PARAGRAPHS).rows[::3].tolist()
    expected = similarities(whole.shards[0].terms(PARAGRAPHS).weights_of(np.array(rows)))
    scores = similarities(run(paths[5], "term_weights", rows, (PARAGRAPHS,)))
    assert scores.tobytes() == expected.tobytes()


def test_what_any_shard_can_do_runs_on_one(paths):
    assert np.stack(run(paths[5], "embed", TEXTS, (False,))).tobytes() == np.stack(vectors()).tobytes()


texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


@settings(max_examples=scaled(40))
@given(st.lists(st.lists(texts, max_size=6), min_size=1, max_size=4), st.sampled_from([(1.5, 0.75), (0.9, 0.4)]))
def test_weights_of_shards_are_those_of_rank_bm25_over_all(parts, k1_b):
    k1, b = k1_b
    every = [tokenise(text) for part in parts for text in part]
    if not any(every):
        return
    okapi = BM25Okapi(every, k1=k1, b=b)
    ends = np.cumsum(list(map(len, parts)))
    counted = [(TermCounts.build(part), np.arange(end - len(part), end)) for part, end in zip(parts, ends, strict=True)]
    statistics = Statistics.of(counted)
    whole = term_index([text for part in parts for text in part], np.arange(ends[-1]), k1, b)
    shards = [counts.weighted(statistics, rows, k1, b) for counts, rows in counted]
    scores = np.concatenate([shard.scores(WORDS).toarray() for shard in shards], axis=1)
    assert scores.tobytes() == whole.scores(WORDS).toarray().tobytes()
    expected = [okapi.get_scores(tokenise(query)) for query in WORDS]
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def files_by_shard(path) -> dict[int, set[str]]:
    manifest = json.loads((Path(path) / "manifest.json").read_text())
    return {shard["number"]: {entry["name"] for entry in shard["files"].values()} for shard in manifest["shards"]}


def test_only_the_shard_that_changed_is_built_again(tmp_path):
    encoder = FakeEncoder()
    first = index_documents(tmp_path, make_documents(*IDS), encoder, n_shards=5)
    assert (first["n_encoded"], first["n_reused"], first["n_shards_kept"]) == (len(encoder.asked) + _repeats(IDS), 0, 0)
    before = files_by_shard(tmp_path)
    encoder.asked.clear()
    more = index_documents(tmp_path, make_documents(*IDS, "new"), encoder, n_shards=5)
    assert sorted(encoder.asked) == ["Chart of new", "new used 5 kWh."]
    changed = {number for number, names in files_by_shard(tmp_path).items() if names != before[number]}
    assert changed == {shard_number("new", 5)}
    assert more["n_shards_kept"] == 4
    assert more["n_encoded"] == 2
    index_documents(tmp_path / "fresh", make_documents(*IDS, "new"), n_shards=1)
    asked = ("lexical", TEXTS, (PARAGRAPHS, 9, None))
    assert plain(run(str(tmp_path), *asked)) == plain(run(str(tmp_path / "fresh"), *asked))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*-*.*") if "fresh" not in str(path)}
    listed = {entry["name"] for entry in json.loads((tmp_path / "manifest.json").read_text())["files"].values()}
    assert files == listed.union(*files_by_shard(tmp_path).values()), "files of the old build are left"


def _repeats(doc_ids) -> int:
    """Texts that stand in several shards are encoded once, and count in each."""
    shared = {"Page 3", "It rose.", "Pictures"}
    return len(shared) * (len({shard_number(doc_id, 5) for doc_id in doc_ids}) - 1)


def test_a_text_that_another_shard_knows_is_not_encoded_again(tmp_path):
    encoder = FakeEncoder()
    index_documents(tmp_path, make_documents("a"), encoder, n_shards=64)
    encoder.asked.clear()
    index_documents(tmp_path, make_documents("a", "b"), encoder, n_shards=64)
    assert sorted(encoder.asked) == ["Chart of b", "b used 5 kWh."]


def test_another_number_of_shards_or_none_encodes_nothing_twice(tmp_path):
    encoder = FakeEncoder()
    for n_shards in (1, 5, 2, 1):
        encoder.asked.clear()
        index_documents(tmp_path, make_documents(*IDS), encoder, n_shards=n_shards)
        assert bool(encoder.asked) == (n_shards == 1 and not (tmp_path / "seen").exists())
        (tmp_path / "seen").touch()
        assert [len(hits) for hits in run(str(tmp_path), "search", vectors(), (NODES, 3, None))] == [3] * len(TEXTS)


def test_a_damaged_shard_is_named_and_built_again(tmp_path):
    index_documents(tmp_path, make_documents(*IDS), n_shards=5)
    lost = next(iter(sorted(files_by_shard(tmp_path)[2])))
    (tmp_path / lost).unlink()
    with pytest.raises(DataError, match=f"{lost} is missing"):
        Index.open(str(tmp_path))
    index_documents(tmp_path, make_documents(*IDS), n_shards=5)
    assert len(Index.open(str(tmp_path)).documents) == len(IDS)


def test_an_unknown_document_is_named(paths):
    with pytest.raises(DataError, match="has no document zebra"):
        run(paths[5], "search", vectors(), (NODES, 3, ("d03", "zebra")))


def test_documents_without_text_have_a_shard_too(tmp_path):
    from kohaku_ray.documents.model import Document, Section

    bare = [Document(f"e{number}", "", (Section("", ()),)) for number in range(3)]
    index_documents(tmp_path, [*make_documents("a"), *bare], n_shards=64)
    assert len(Index.open(str(tmp_path)).documents) == 4
    assert len(run(str(tmp_path), "search", vectors()[:1], (NODES, 3, None))[0]) == 3
    with pytest.raises(DataError, match="any text"):
        index_documents(tmp_path / "none", bare, n_shards=64)


BUILD = """
import resource, sys
sys.path[:0] = {path!r}
import faiss, scipy.sparse, numpy as np, pyarrow as pa
pa.set_memory_pool(pa.system_memory_pool())
from index.large_index import build
limit = {limit}
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    build({target!r}, {n_sentences}, {n_shards})
except MemoryError:
    sys.exit(77)
except Exception as error:
    if "memory" in str(error).lower() or "alloc" in str(error).lower():
        sys.exit(77)
    raise
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("n_shards", "fits"), [(1, False), (16, True)])
def test_a_corpus_larger_than_a_process_may_be_is_indexed_in_shards(tmp_path, n_shards, fits):
    source = BUILD.format(
        path=[str(Path(__file__).parents[1]), str(Path(__file__).parents[2])],
        limit=1 << 30,
        target=str(tmp_path),
        n_sentences=200_000,
        n_shards=n_shards,
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode == 0) == fits, done.stderr[-2000:]
    if fits:
        assert Index.open(str(tmp_path)).manifest["counts"]["n_sentences"] == 200_000
    else:
        assert done.returncode == 77, done.stderr[-2000:]
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 1 << 30
