"""Batches and caches: every caller gets its own results, whatever was asked beside; what is known is computed once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import ClassVar

import pytest

from kohaku_ray.answering.batching import STATES_KEPT, Batcher, BatchingObject, Cache, batched, cached, on_shards


class Batches(list):
    """Notes batches, and gives back what it is given; ``bad`` items fail."""

    async def __call__(self, items):
        self.append(list(items))
        if "bad" in items:
            raise ValueError("no")
        return items


async def test_concurrent_calls_share_a_batch_and_get_their_own_results():
    batches = Batches()
    batcher = Batcher(batches)
    *results, nothing = await asyncio.gather(*(batcher([n, n + 100]) for n in range(20)), batcher([]))
    assert results == [[n, n + 100] for n in range(20)]
    assert nothing == []
    assert list(map(len, batches)) == [40]


async def test_a_batch_is_bounded_but_a_single_call_is_whole():
    batches = Batches()
    batcher = Batcher(batches, max_items=4)
    results = await asyncio.gather(*(batcher([n] * size) for n, size in enumerate([3, 2, 9, 1])))
    assert results == [[0] * 3, [1] * 2, [2] * 9, [3]]
    assert list(map(len, batches)) == [3, 2, 9, 1]


@pytest.mark.parametrize(
    ("at_once", "expected"), [(False, [["a"], ["b", "c", "d"]]), (True, [["a"], ["b", "c"], ["d"]])]
)
async def test_while_a_batch_runs_the_next_one_gathers_unless_batches_run_at_once(at_once, expected):
    batches = []
    gate = asyncio.Event()

    async def slow(items):
        batches.append(list(items))
        await gate.wait()
        return items

    batcher = Batcher(slow, at_once=at_once)
    asked = []
    for names in ("a", "bc", "d"):
        asked += [asyncio.create_task(batcher([name])) for name in names]
        await asyncio.sleep(0.01)
    gate.set()
    assert await asyncio.gather(*asked) == [["a"], ["b"], ["c"], ["d"]]
    assert batches == expected


async def test_questions_of_one_turn_reach_a_shard_in_one_message_and_each_gets_its_own():
    class Held(BatchingObject):
        """Shard 0 of two: an item's result says which shards were asked."""

        layout, number = SimpleNamespace(shards=(0, 1)), 0
        messages: ClassVar[list] = []

        @on_shards(
            lambda layout, items: {shard: (list(items), [*range(len(items))]) for shard in (0, 1)},
            lambda results, *_: results,
        )
        async def find(self, items, depth):
            return [(0, item, depth) for item in items]

        async def ask(self, shard, method, items, params):
            self.messages.append(list(items))
            if "bad" in items:
                raise ValueError("no")
            return [(shard, item, *params) for item in items]

    held = Held(keeps=False)
    asked = [held.find([name, name.upper()], 5) for name in "abc"]
    results = await asyncio.gather(*asked, held.find(["a"], 7))
    well, bad = await asyncio.gather(held.find(["a"], 5), held.find(["bad"], 5), return_exceptions=True)
    assert results[:3] == [[[(0, item, 5), (1, item, 5)] for item in (name, name.upper())] for name in "abc"]
    assert results[3] == [[(0, "a", 7), (1, "a", 7)]]
    assert Held.messages == [["a", "A", "b", "B", "c", "C"], ["a"], ["a", "bad"], ["a"], ["bad"]]
    assert well == [[(0, "a", 5), (1, "a", 5)]]
    assert str(bad) == "no"


class Computed(list):
    """Notes what is computed, and gives it back a moment later; ``bad`` fails for the first ``n_bad`` times."""

    n_bad = 1

    async def __call__(self, items):
        self.extend(items)
        await asyncio.sleep(0.01)
        if "bad" in items and self.count("bad") <= self.n_bad:
            raise ValueError("no luck")
        return list(items)


async def test_a_failure_is_not_kept_reaches_all_who_wait_and_leaves_what_was_kept_before():
    computed = Computed()
    cache = Cache(computed, 10)
    await cache(["a"], ["a"])
    failures = await asyncio.gather(*(cache(["a", "bad"], ["a", "bad"]) for _ in range(2)), return_exceptions=True)
    results = await cache(["a", "bad"], ["a", "bad"])
    assert [str(failure) for failure in failures] == ["no luck", "no luck"]
    assert (results, computed) == (["a", "bad"], ["a", "bad", "bad"])


async def test_the_longest_unused_goes_first():
    computed = Computed()
    cache = Cache(computed, 2)
    for item in (1, 2, 1, 3, 1, 2):
        assert await cache([item], [item]) == [item]
    assert computed == [1, 2, 3, 2], "1 was used again before 3 came"


async def test_who_waits_is_not_cancelled_with_who_asked_first():
    cache = Cache(Computed(), 2)
    first = asyncio.create_task(cache([1], [1]))
    second = asyncio.create_task(cache([1], [1]))
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(second, return_exceptions=True) == [[1]]


class Doubles(BatchingObject):
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
async def test_calls_with_other_arguments_share_nothing(keeps):
    doubles = Doubles(keeps=keeps)
    assert await asyncio.gather(*(doubles.twice([1, 2], more) for more in (0, 5, 0))) == [[2, 4], [7, 9], [2, 4]]
    assert doubles.seen == [([1, 2] if keeps else [1, 2, 1, 2], 0), ([1, 2], 5)]
    assert doubles.counted == ({("doubled", "asked"): 6, ("doubled", "computed"): 4} if keeps else {})


async def test_other_arguments_may_be_many():
    doubles = Doubles(keeps=True)
    for more in (*range(STATES_KEPT + 1), 0):
        assert await doubles.twice([1], more) == [2 + more]
    assert [more for _, more in doubles.seen] == [*range(STATES_KEPT + 1), 0]
