"""Batches and caches: every caller gets its own results, whatever was asked beside; what is known is computed once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kohaku_ray.engine.actors.calls import MADE_KEPT, Batcher, Cache, Calls, batched, cached


def test_concurrent_calls_share_a_batch_and_get_their_own_results():
    batches: list[int] = []

    def double(items):
        batches.append(len(items))
        return [2 * item for item in items]

    async def run():
        batcher = Batcher(double)
        return await asyncio.gather(*(batcher([n, n + 100]) for n in range(20)), batcher([]))

    *results, nothing = asyncio.run(run())
    assert results == [[2 * n, 2 * n + 200] for n in range(20)]
    assert nothing == []
    assert batches == [40]


def test_a_batch_is_bounded_but_a_single_call_is_whole():
    batches: list[int] = []

    def keep(items):
        batches.append(len(items))
        return items

    async def run():
        batcher = Batcher(keep, max_items=4)
        return await asyncio.gather(*(batcher([n] * size) for n, size in enumerate([3, 2, 9, 1])))

    assert asyncio.run(run()) == [[0] * 3, [1] * 2, [2] * 9, [3]]
    assert batches == [3, 2, 9, 1]


def test_while_a_batch_runs_the_next_one_gathers():
    gate, batches = threading.Event(), []

    def slow(items):
        batches.append(list(items))
        gate.wait(5)
        return items

    async def run():
        batcher = Batcher(slow)
        first = asyncio.create_task(batcher(["a"]))
        while not batches:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(batcher([name])) for name in "bcd"]
        await asyncio.sleep(0.01)
        gate.set()
        return await asyncio.gather(first, *rest)

    assert asyncio.run(run()) == [["a"], ["b"], ["c"], ["d"]]
    assert batches == [["a"], ["b", "c", "d"]]


def test_an_error_reaches_its_callers_and_the_batcher_lives_on():
    def fail(items):
        if "bad" in items:
            raise ValueError("no")
        return items

    async def run():
        batcher = Batcher(fail)
        with pytest.raises(ValueError, match="no"):
            await batcher(["bad"])
        return await batcher(["good"])

    assert asyncio.run(run()) == ["good"]


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


class Doubles(Calls):
    """Doubles numbers, and notes the batches."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__(keeps=keeps)
        self.seen: list[tuple[list[int], int]] = []

    @cached(10, counted="doubled")
    @batched()
    def twice(self, items, more):
        self.seen.append((list(items), more))
        return [2 * item + more for item in items]


@pytest.mark.parametrize("keeps", [False, True])
def test_calls_with_other_arguments_share_nothing(keeps):
    doubles = Doubles(keeps=keeps)

    async def ask():
        return await asyncio.gather(*(doubles.twice([1, 2], more) for more in (0, 5, 0)))

    assert asyncio.run(ask()) == [[2, 4], [7, 9], [2, 4]]
    assert doubles.seen == [([1, 2] if keeps else [1, 2, 1, 2], 0), ([1, 2], 5)]
    assert doubles.counted == ({("doubled", "asked"): 6, ("doubled", "computed"): 4} if keeps else {})


def test_other_arguments_may_be_many():
    doubles = Doubles(keeps=True)

    async def ask():
        for more in (*range(MADE_KEPT + 1), 0):
            assert await doubles.twice([1], more) == [2 + more]

    asyncio.run(ask())
    assert [more for _, more in doubles.seen] == [*range(MADE_KEPT + 1), 0]
    assert len(doubles._made) <= MADE_KEPT
