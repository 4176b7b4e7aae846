"""What one run encoded or searched, no other does again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kohaku_ray.engine.actors.cache import Depths, Memo, RememberingIndex
from kohaku_ray.index.hits import Hits


class Source:
    """An index that notes what it is asked."""

    def __init__(self, is_exact: bool = True) -> None:
        self.is_exact = is_exact
        self.asked: list[tuple] = []

    async def embed(self, texts):
        self.asked.append(("embed", tuple(texts)))
        await asyncio.sleep(0)
        return np.array([[len(text), 1.0] for text in texts], np.float32)

    async def search(self, vectors, top_k):
        self.asked.append(("search", len(vectors), top_k))
        await asyncio.sleep(0)
        return [Hits(np.arange(top_k) + int(vector[0]), np.linspace(1, 0, top_k)) for vector in vectors]

    async def lexical(self, queries, top_k):
        self.asked.append(("lexical", tuple(queries), top_k))
        return [Hits(np.arange(top_k), np.linspace(1, 0, top_k)) for _ in queries]

    async def nodes(self, rows, section_tokens, tokenizers=()):
        self.asked.append(("nodes", tuple(rows), section_tokens, tokenizers))
        return object()


def test_a_query_is_encoded_once_also_while_it_is_being_encoded():
    source = Source()
    index = RememberingIndex(source, Depths(16, 4))

    async def ask():
        return await asyncio.gather(index.embed(["a", "bb"]), index.embed(["bb", "ccc"]), index.embed(["a", "a"]))

    first, second, third = asyncio.run(ask())
    assert (first[:, 0].tolist(), second[:, 0].tolist(), third[:, 0].tolist()) == ([1, 2], [2, 3], [1, 1])
    assert source.asked == [("embed", ("a", "bb")), ("embed", ("ccc",))]
    assert index.counts()["queries encoded"] == (6, 3)


def test_an_exact_index_is_searched_once_at_the_deepest_and_cut():
    source = Source()
    index = RememberingIndex(source, Depths(dense=16, lexical=8))
    vectors = np.array([[1, 1], [2, 1]], np.float32)

    async def ask():
        return [await index.search(vectors, k) for k in (4, 16, 8)], [await index.lexical(["q"], k) for k in (2, 8)]

    dense, lexical = asyncio.run(ask())
    assert [[len(hits) for hits in found] for found in dense] == [[4, 4], [16, 16], [8, 8]]
    assert dense[0][1].rows.tolist() == [2, 3, 4, 5]
    assert [len(found[0]) for found in lexical] == [2, 8]
    assert source.asked == [("search", 2, 16), ("lexical", ("q",), 8)]
    assert index.counts() == {"queries encoded": (0, 0), "queries searched": (6, 2), "queries by BM25": (2, 1)}


def test_of_an_approximate_index_only_the_same_depth_is_shared():
    source = Source(is_exact=False)
    index = RememberingIndex(source, Depths(16, 0))
    vectors = np.array([[1, 1]], np.float32)

    async def ask():
        for k in (4, 8, 4):
            await index.search(vectors, k)

    asyncio.run(ask())
    assert source.asked == [("search", 1, 4), ("search", 1, 8)]


def test_neighbourhoods_are_shared_where_all_that_shapes_them_is_the_same():
    source = Source()
    index = RememberingIndex(source, Depths(16, 0))

    async def ask():
        return [await index.nodes(*of) for of in (([1, 2], 512), ([1, 2], 512), ([1, 2], 0), ([2, 1], 512))]

    one, again, narrow, other = asyncio.run(ask())
    assert one is again
    assert len({id(one), id(narrow), id(other)}) == 3


def test_a_failure_is_not_remembered_and_reaches_all_who_wait():
    n_calls = 0

    async def compute(items):
        nonlocal n_calls
        n_calls += 1
        await asyncio.sleep(0)
        if n_calls == 1:
            raise ValueError("no luck")
        return [item * 2 for item in items]

    memo = Memo(compute, 10)

    async def ask():
        first = await asyncio.gather(memo([1], [1]), memo([1], [1]), return_exceptions=True)
        return first, await memo([1], [1])

    failures, value = asyncio.run(ask())
    assert [str(one) for one in failures] == ["no luck", "no luck"]
    assert (value, n_calls) == ([2], 2)


def test_the_longest_unused_goes_first():
    seen = []

    async def compute(items):
        seen.extend(items)
        return list(items)

    memo = Memo(compute, 2)

    async def ask():
        for item in (1, 2, 1, 3, 1, 2):
            assert await memo([item], [item]) == [item]

    asyncio.run(ask())
    assert seen == [1, 2, 3, 2], "1 was used again before 3 came"


@pytest.mark.parametrize("n", [3, 50])
def test_more_items_than_are_kept_still_come_back(n):
    async def compute(items):
        return list(items)

    assert asyncio.run(Memo(compute, 2)(range(n), range(n))) == list(range(n))
