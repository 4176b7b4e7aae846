"""What was computed once is not computed again, also while it is being computed."""

from __future__ import annotations

import asyncio

import pytest

from kohaku_ray.engine.actors.cache import Cache


def test_an_item_is_computed_once_also_while_it_is_being_computed():
    seen = []

    async def compute(items):
        seen.append(tuple(items))
        await asyncio.sleep(0)
        return [len(item) for item in items]

    cache = Cache(compute, 10)

    async def ask():
        return await asyncio.gather(*(cache(items, items) for items in (["a", "bb"], ["bb", "ccc"], ["a", "a"])))

    assert asyncio.run(ask()) == [[1, 2], [2, 3], [1, 1]]
    assert seen == [("a", "bb"), ("ccc",)]
    assert (cache.n_asked, cache.n_computed) == (6, 3)


def test_a_failure_is_not_kept_and_reaches_all_who_wait():
    n_calls = 0

    async def compute(items):
        nonlocal n_calls
        n_calls += 1
        await asyncio.sleep(0)
        if n_calls == 1:
            raise ValueError("no luck")
        return [item * 2 for item in items]

    cache = Cache(compute, 10)

    async def ask():
        first = await asyncio.gather(cache([1], [1]), cache([1], [1]), return_exceptions=True)
        return first, await cache([1], [1])

    failures, value = asyncio.run(ask())
    assert [str(one) for one in failures] == ["no luck", "no luck"]
    assert (value, n_calls) == ([2], 2)
    assert (cache.n_asked, cache.n_computed) == (3, 1)


def test_a_failure_leaves_what_was_kept_before():
    seen = []

    async def compute(items):
        seen.extend(items)
        if "bad" in items:
            raise ValueError("no luck")
        return list(items)

    cache = Cache(compute, 10)

    async def ask():
        await cache(["a"], ["a"])
        with pytest.raises(ValueError, match="no luck"):
            await cache(["a", "bad"], ["a", "bad"])
        return await cache(["a"], ["a"])

    assert asyncio.run(ask()) == ["a"]
    assert seen == ["a", "bad"]


def test_the_longest_unused_goes_first():
    seen = []

    async def compute(items):
        seen.extend(items)
        return list(items)

    cache = Cache(compute, 2)

    async def ask():
        for item in (1, 2, 1, 3, 1, 2):
            assert await cache([item], [item]) == [item]

    asyncio.run(ask())
    assert seen == [1, 2, 3, 2], "1 was used again before 3 came"


@pytest.mark.parametrize("n", [3, 50])
def test_more_items_than_are_kept_still_come_back(n):
    async def compute(items):
        return list(items)

    assert asyncio.run(Cache(compute, 2)(range(n), range(n))) == list(range(n))


def test_who_waits_is_not_cancelled_with_who_asked_first():
    async def compute(items):
        await asyncio.sleep(0.01)
        return list(items)

    cache = Cache(compute, 2)

    async def ask():
        first = asyncio.create_task(cache([1], [1]))
        second = asyncio.create_task(cache([1], [1]))
        await asyncio.sleep(0)
        first.cancel()
        return await asyncio.gather(second, return_exceptions=True)

    assert asyncio.run(ask()) == [[1]]
