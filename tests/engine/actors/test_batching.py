"""Micro-batching: every caller gets its own results, whatever was batched with it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kohaku_ray.engine.actors.batching import Batcher


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
