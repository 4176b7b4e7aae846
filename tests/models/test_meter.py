"""Shares of GPU time and energy, on a clock and a power of our own."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from kit.rows import check_rows

from kohaku_ray.engine.serving import applications
from kohaku_ray.errors import ModelError
from kohaku_ray.models.meter import Meter, watch_power
from kohaku_ray.models.replica import Refused
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.records import Reply
from kohaku_ray.systems.offline import ExtractiveConfig

REQUEST, REFUSED = (ChatRequest("m", (("user", text),), 0.0, 1.0, 8, 0, None) for text in ("answer", "refuse"))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_calls_at_the_same_time_share_and_add_up_to_the_busy_time():
    clock = Clock()
    meter = Meter(1, clock)
    meter.set_power(100.0)
    with meter.measure_call() as long:
        clock.now = 1.0
        with meter.measure_call() as short:
            clock.now = 3.0
        meter.set_power(50.0)
        clock.now = 4.0
    assert (long.gpu_s, short.gpu_s) == (3.0, 1.0)
    assert long.gpu_s + short.gpu_s == 4.0
    assert (long.joules, short.joules) == (100.0 + 100.0 + 50.0, 100.0)
    assert long.service_s == 4.0
    clock.now = 10.0  # idle time is nobody's
    with meter.measure_call() as later:
        clock.now = 11.0
    assert (later.gpu_s, later.joules) == (1.0, 50.0)


def test_a_call_during_which_the_power_was_unknown_has_no_joules():
    clock = Clock()
    meter = Meter(2, clock)
    with meter.measure_call() as early:
        clock.now = 1.0
        meter.set_power(100.0)
        clock.now = 2.0
    assert early.joules is None, "the first second is nobody's guess"
    with meter.measure_call() as late, meter.measure_call() as across:
        clock.now = 3.0
        meter.set_power(None)
        clock.now = 4.0
    assert (late.joules, across.joules) == (None, None)
    assert late.gpu_s == across.gpu_s == 2.0
    meter.set_power(10.0)
    with meter.measure_call() as after:
        clock.now = 5.0
    assert after.joules == 10.0


def watched(*readings, period_s=0.01, retry_s=0.01):
    """Let a meter follow some readings (the last one stays) and note each power it is told."""
    told: list[float | None] = []
    meter = Meter(2)
    meter.set_power = told.append  # type: ignore[method-assign]
    left = list(readings)

    async def read():
        reading = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reading, Exception):
            raise reading
        return reading

    async def run():
        task = asyncio.create_task(watch_power(meter, read, period_s, retry_s))
        while len(told) < len(readings):
            await asyncio.sleep(0.001)
            assert not task.done(), task.result()
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 10))
    return told[: len(readings)]


@check_rows(
    "gone",
    [RuntimeError("the engine is busy"), TimeoutError(), [], None, [1.0, None], [1.0, math.nan], [0.5, 0.5], "counter"],
)
def test_counters_that_stop_leave_the_power_unknown_until_they_come_back(gone):
    told = watched([10.0, 10.0], [11.0, 11.0], gone, gone, [20.0, 20.0], [21.0, 21.0], [22.0, 22.0])
    assert told[0] is None, "one reading is no power"
    assert 0 < told[1] <= 200.0
    assert told[2] is None
    if gone == [0.5, 0.5]:  # counters that ran backwards count on from there
        assert told[3] == 0.0
    else:
        assert told[3:5] == [None, None]
    assert 0 < told[5] <= 200.0
    assert 0 < told[6] <= 200.0


def test_a_replica_charges_its_share_of_a_gpu_to_the_calls_in_flight():
    class Slow:
        async def chat(self, request) -> Reply:
            await asyncio.sleep(0.2)
            return Reply("x")

    class SlowConfig(TransformersConfig):
        def make_backend(self, limiter=None, *, with_key=True) -> Slow:
            return Slow()

    async def ask(**settings) -> list[Reply]:
        replica = applications.ChatReplica(SlowConfig(model="m", **settings))
        return [reply for reply, _ in await replica.ask([REQUEST, REQUEST])]

    shared = asyncio.run(ask(gpus=0.5))
    assert sum(reply.gpu_s for reply in shared) == pytest.approx(0.5 * shared[0].service_s, rel=0.2)
    assert [reply.gpu_s for reply in asyncio.run(ask())] == [0.0, 0.0]


async def test_calls_beyond_a_replicas_places_wait_inside_it_and_their_wait_is_no_service():
    class Slow:
        n_calls = most = 0

        async def chat(self, request) -> Reply:
            Slow.n_calls += 1
            Slow.most = max(Slow.most, Slow.n_calls)
            await asyncio.sleep(0.2)
            Slow.n_calls -= 1
            if request is REFUSED:
                raise ModelError("refused")
            return Reply("x")

    class SlowConfig(ExtractiveConfig):
        def make_backend(self, limiter=None, *, with_key=True) -> Slow:
            return Slow()

    deployment = SlowConfig(max_ongoing=4)
    began = time.perf_counter()
    replica = applications.ChatReplica(deployment)
    refused, *replies = [outcome for outcome, _ in await replica.ask([REFUSED, *[REQUEST] * 11])]
    elapsed_s = time.perf_counter() - began  # three rounds
    assert refused == Refused("ModelError", "refused")  # and gave its place back
    assert Slow.most == 4
    assert len(replies) == 11
    assert all(0.19 < reply.service_s < 0.75 * elapsed_s for reply in replies)
    assert applications._bind("a", "m", deployment)._bound_deployment.max_ongoing_requests == 5
