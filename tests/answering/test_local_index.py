"""Every operation on an index in this process: batched, kept, and the same results whatever else is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from index.small_index import FakeEncoder, index_documents, make_documents
from kit.rows import check_rows

from kohaku_ray.answering.index_operations import IndexOperations
from kohaku_ray.answering.local_index import LocalIndex, united_depths
from kohaku_ray.config import load_config
from kohaku_ray.engine.actors.members import RemoteIndex
from kohaku_ray.errors import ConfigError, DataError, IndexMismatchError
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.store import Index, OpenShard
from kohaku_ray.index.vectors import VectorIndex
from kohaku_ray.index.views import View
from kohaku_ray.systems.base import Depth

NODES, PARAGRAPHS = ("sentence", "paragraph"), ("paragraph",)
VIEWS = (View(NODES, dense=True), View(PARAGRAPHS, lexical=True))
TEXTS = ["How much energy?", "kWh of a", "Page 3", "It rose.", "Chart of d"]
DEPTHS = {NODES: Depth(dense=9), PARAGRAPHS: Depth(lexical=4)}
WORDS = ("words", None)


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, str]:
    path_of = {}
    for factory in ("Flat", "IVF2,Flat"):
        path_of[factory] = str(tmp_path_factory.mktemp("index") / "index")
        index_documents(path_of[factory], make_documents(*"abcdef"), views=VIEWS, factory=factory)
    return path_of


@pytest.fixture(params=["Flat", "IVF2,Flat"])
def shard(request, paths) -> OpenShard:
    return Index.open(paths[request.param]).shards[0]


@pytest.fixture(params=[None, DEPTHS], ids=["alone", "kept"])
def local(request, shard) -> LocalIndex:
    return opened(shard, request.param)


def opened(shard: OpenShard, depths=None, **more) -> LocalIndex:
    return LocalIndex(shard, FakeEncoder(), score=Pairs(), depths=depths, **more)


def run(local: LocalIndex, name: str, items, params):
    return getattr(local, name)(items, *params)


class Pairs:
    """A cross-encoder that counts common words."""

    async def __call__(self, application, pairs):
        return [float(len(set(query.split()) & set(text.split()))) for query, text in pairs]


@pytest.mark.parametrize("by_auto", [True, False])
def test_an_index_that_the_gpu_cannot_hold_is_searched_on_the_cpu_by_auto_alone(shard, monkeypatch, by_auto):
    def too_small(index):
        raise ConfigError("the vectors need 9 GiB but the GPU has 1 GiB free")

    monkeypatch.setattr(VectorIndex, "on_gpu", too_small)
    local = opened(shard, gpu=True, gpu_by_auto=by_auto)
    if not by_auto:
        with pytest.raises(ConfigError, match="need 9 GiB"):
            local.open_views([NODES])
        return
    assert local.open_views([NODES]) == (
        "index.search_device auto: FAISS searches on the CPU, since the vectors need 9 GiB but the GPU has 1 GiB free"
    )
    [vector] = FakeEncoder().encode_queries(["kWh"])
    [hits] = asyncio.run(local.search([vector], NODES, 3, None))
    [expected] = asyncio.run(opened(shard).search([vector], NODES, 3, None))
    assert hits.rows.tolist() == expected.rows.tolist()
    assert opened(shard, gpu=False).open_views([NODES]) == ""


@pytest.fixture
def ran(monkeypatch) -> Counter:
    """How many items each operation computed."""
    n_items: Counter = Counter()

    class Counting(ThreadPoolExecutor):
        def __init__(self, name: str) -> None:
            super().__init__(1)
            self.name = name

        def submit(self, batch, items):
            n_items[self.name] += len(items)
            return super().submit(batch, items)

    def counted(name, run, n_of):
        def call(self, *args):
            n_items[name] += n_of(*args)
            return run(self, *args)

        return call

    monkeypatch.setattr(LocalIndex, "thread_of", lambda _, name: Counting(name))
    monkeypatch.setattr(NodeTable, "neighbourhood", counted("nodes", NodeTable.neighbourhood, lambda *_: 1))
    monkeypatch.setattr(Pairs, "__call__", counted("rank_pairs", Pairs.__call__, lambda _, pairs: len(pairs)))
    return n_items


def queries():
    return list(FakeEncoder().encode_passages(TEXTS))


def plain(results) -> list:
    """Results as values that compare."""
    return [plain_of(result) for result in results]


def plain_of(result):
    if isinstance(result, NodeTable):
        return result.table.to_pydict(), result.source_row.tolist()
    if isinstance(result, tuple):
        return [plain_of(part) for part in result]
    if isinstance(result, np.ndarray):
        return result.tobytes()
    return result if isinstance(result, float) else (result.rows.tolist(), result.scores.tobytes())


ASKED = {
    "embed": (TEXTS, (False,)),
    "search": (queries(), (NODES, 5, None)),
    "lexical": (TEXTS, (PARAGRAPHS, 3, None)),
    "term_weights": ([2, 14, 5, 14], (PARAGRAPHS,)),
    "vectors": ([0, 7, 3, 20], ()),
    "rank_pairs": ([(query, text) for query in TEXTS for text in TEXTS[:2]], ("application",)),
    "nodes": ([(3, 4), (20,), (30, 5)], (512, ())),
}


def operations(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_operation_is_tested():
    assert set(ASKED) == operations(IndexOperations)
    assert set(ASKED) == operations(RemoteIndex) - {"run_alone"}


@check_rows("name", ASKED)
def test_an_index_in_an_actor_answers_as_it_does_itself(local, name):
    """The actor's ``run`` is ``Retriever.run``; only Ray is left out."""

    class Run:
        async def remote(self, method, items, params, alone=False):
            return await getattr(local, method)(items, *params)

    items, params = ASKED[name]
    remote = RemoteIndex(SimpleNamespace(run=Run()))
    assert plain(asyncio.run(run(remote, name, items, params))) == plain(asyncio.run(run(local, name, items, params)))


@check_rows("name", ASKED)
async def test_results_are_one_per_item_whoever_asks_beside(local, shard, name):
    items, params = ASKED[name]
    alone = [(await run(local, name, [item], params))[0] for item in items]
    whole = await run(local, name, items, params)
    turned = await asyncio.gather(*(run(local, name, [item], params) for item in reversed(items)))
    assert plain(alone) == plain(whole) == plain([result[0] for result in reversed(turned)])
    assert len(whole) == len(items)
    assert await run(local, name, [], params) == []


def test_results_are_those_of_the_index(local, shard):
    async def ask():
        return {name: await run(local, name, items, params) for name, (items, params) in ASKED.items()}

    results, index = asyncio.run(ask()), shard
    assert plain(results["embed"]) == plain(queries())
    assert plain(results["search"]) == plain(index.vectors(NODES).search(np.stack(queries()), 5))
    assert plain(results["lexical"]) == plain(index.terms(PARAGRAPHS).search(TEXTS, 3))
    weights = index.terms(PARAGRAPHS).weights_of(np.array(ASKED["term_weights"][0]))
    assert plain(results["term_weights"]) == plain(weights)
    assert plain(results["vectors"]) == plain(index.node_vectors(np.array(ASKED["vectors"][0])))
    assert results["rank_pairs"] == asyncio.run(Pairs()("", ASKED["rank_pairs"][0]))
    assert plain(results["nodes"]) == plain(index.nodes.neighbourhood(rows, 512) for rows in ASKED["nodes"][0])


@pytest.mark.parametrize("within", [("b",), ("e", "a"), ()])
@pytest.mark.parametrize("name", ["search", "lexical"])
def test_a_search_is_held_to_documents(local, shard, name, within):
    items, (kinds, top_k, _) = ASKED[name]
    results = asyncio.run(run(local, name, items, (kinds, top_k, within)))
    view = shard.vectors(kinds) if name == "search" else shard.terms(kinds)
    asked = np.stack(items) if name == "search" else items
    assert plain(results) == plain(view.search(asked, top_k, shard.index.ranges(within)))
    assert {shard.nodes.doc_id(int(row)) for hits in results for row in hits.rows} <= set(within)
    assert any(map(len, results)) == bool(within)


@pytest.mark.parametrize(("name", "deepest"), [("search", 9), ("lexical", 4)])
def test_a_shorter_search_is_the_beginning_of_the_deepest(paths, ran, name, deepest):
    local = opened(Index.open(paths["Flat"]).shards[0], DEPTHS)
    items, (kinds, _, _) = ASKED[name]

    async def ask():
        return [await run(local, name, items, (kinds, k, None)) for k in (2, deepest, 3)]

    short, deep, middle = asyncio.run(ask())
    assert plain(short) == plain(hits.prefix(2) for hits in deep)
    assert plain(middle) == plain(hits.prefix(3) for hits in deep)
    assert max(map(len, deep)) > 3
    assert ran[name] == len(items), "searched once, at the deepest"
    deeper = asyncio.run(run(local, name, items, (kinds, deepest + 2, None)))
    assert ran[name] == 2 * len(items)
    assert plain(hits.prefix(deepest) for hits in deeper) == plain(deep)


@pytest.mark.parametrize(("within", "is_shared"), [(None, False), (("b", "c"), True)])
async def test_depths_of_an_approximate_index_are_shared_within_documents_alone(paths, ran, within, is_shared):
    """There it is exact."""
    shard = Index.open(paths["IVF2,Flat"]).shards[0]
    local, ranges = opened(shard, DEPTHS), shard.index.ranges(within) if within else None
    first, deep, again = [await local.search(queries(), NODES, k, within) for k in (4, 9, 4)]
    assert plain(first) == plain(again) == plain(shard.vectors(NODES).search(np.stack(queries()), 4, ranges))
    assert plain(deep) == plain(shard.vectors(NODES).search(np.stack(queries()), 9, ranges))
    assert ran["search"] == (1 if is_shared else 2) * len(TEXTS)


COUNTED = {
    "embed": "queries encoded",
    "search": "queries searched",
    "lexical": "queries by BM25",
    "rank_pairs": "pairs ranked",
    "nodes": "",
}


@check_rows("name", COUNTED)
async def test_what_is_kept_is_computed_once_also_for_concurrent_callers(shard, ran, name):
    local = opened(shard, DEPTHS)
    items, params = ASKED[name]
    await asyncio.gather(*(run(local, name, items[start:], params) for start in (0, 1, 0, 2)))
    last = await run(local, name, [*items, *items], params)
    assert ran[name] == len(items)
    assert plain(last[: len(items)]) == plain(last[len(items) :])
    counted = COUNTED[name]
    n_asked = sum(len(items[start:]) for start in (0, 1, 0, 2)) + 2 * len(items)
    expected = {(counted, "asked"): n_asked, (counted, "computed"): len(items)} if counted else {}
    assert dict(local.counted) == expected


async def test_a_run_alone_keeps_nothing_but_ranked_pairs(shard, ran):
    local = opened(shard, None)
    for _ in range(2):
        for name, (items, params) in ASKED.items():
            await run(local, name, items, params)
    assert ran == {name: len(items) * (1 if name == "rank_pairs" else 2) for name, (items, _) in ASKED.items()}
    n_pairs = len(ASKED["rank_pairs"][0])
    assert local.counted == {("pairs ranked", "asked"): 2 * n_pairs, ("pairs ranked", "computed"): n_pairs}


@check_rows("name", ["search", "lexical"])
def test_an_unknown_document_fails_its_caller_alone_and_is_not_kept(local, name):
    items, (kinds, top_k, _) = ASKED[name]

    async def ask():
        results = []
        for _ in range(2):
            results += await asyncio.gather(
                run(local, name, items, (kinds, top_k, ("a", "mars"))),
                run(local, name, items, (kinds, top_k, ("a",))),
                return_exceptions=True,
            )
        return results

    bad, good, bad_again, good_again = asyncio.run(ask())
    for error in (bad, bad_again):
        assert isinstance(error, DataError)
        assert "has no document mars" in str(error)
    assert plain(good) == plain(good_again)


def test_a_search_of_what_the_index_has_no_view_of_says_so(local):
    with pytest.raises(IndexMismatchError, match="no dense view of section"):
        asyncio.run(run(local, "search", queries(), (("section",), 3, None)))
    with pytest.raises(IndexMismatchError, match="no lexical view of sentence"):
        asyncio.run(run(local, "lexical", TEXTS, (("sentence",), 3, None)))


async def test_tokens_of_sentences_are_the_largest_count_over_the_tokenizers(shard):
    asked = []

    def pages(text):
        return 9 if text.startswith("Page") else 1

    def counter(name, revision):
        def count(texts):
            asked.append((name, tuple(texts)))
            return [len(text.split()) if name == "words" else pages(text) for text in texts]

        return count

    local = opened(shard, None, count=counter)
    both = (WORDS, ("pages", "main"))
    nodes, again, words, none = [
        (await run(local, "nodes", [(3,)], (512, tokenizers)))[0] for tokenizers in (both, both, (WORDS,), ())
    ]
    sentences = [row for row in range(len(nodes)) if nodes.kind[row] == 3]
    texts = [nodes.text_of(row) for row in sentences]
    assert texts == ["a used 5 kWh.", "Page 3", "Page 3", "It rose."]
    assert [int(nodes.tokens[row]) for row in sentences] == [4, 9, 9, 2]
    assert nodes.tokens.tolist() == again.tokens.tolist()
    assert [int(words.tokens[row]) for row in sentences] == [len(text.split()) for text in texts]
    assert not none.tokens.any()
    assert [name for name, _ in asked] == ["words", "pages", "words"], "a text is counted once by each tokenizer"


def test_depths_are_those_of_the_deepest_run():
    first = load_config("demo", ["kohaku.top_k=4", "kohaku.max_retries=1", "kohaku.bm25_top_k=7"])
    second = load_config("demo", ["kohaku.top_k=5", "kohaku.max_retries=2", "kohaku.bm25_top_k=0"])
    assert united_depths([first]) == {NODES: Depth(dense=8), PARAGRAPHS: Depth(lexical=7)}
    assert united_depths([first, second]) == {NODES: Depth(dense=15), PARAGRAPHS: Depth(lexical=7)}
    assert united_depths([second]) == {NODES: Depth(dense=15)}
