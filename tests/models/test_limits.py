"""The token bucket on a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from kohaku_ray.models import openai
from kohaku_ray.models.openai import TokenBucket


class Clock:
    """Time that passes only while somebody sleeps."""

    now_s = 100.0
    during_sleep = None

    def monotonic(self):
        return self.now_s

    async def sleep(self, seconds):
        self.now_s += seconds
        if self.during_sleep is not None:
            await self.during_sleep()


@pytest.fixture
def clock(monkeypatch):
    there = Clock()
    monkeypatch.setattr(openai, "time", there)
    monkeypatch.setattr(asyncio, "sleep", there.sleep)
    return there


@pytest.mark.parametrize(
    ("rate", "penalty", "times"),
    [
        (4.0, None, [0, 0.25, 0.5, 0.75]),
        (None, None, [0, 0, 0, 0]),
        (4.0, (1, 5.0), [0, 5.0, 5.25, 5.5]),
        (None, (1, 5.0), [0, 5.0, 5.0, 5.0]),
    ],
)
def test_an_even_rate_and_a_penalty_that_closes_for_all(clock, rate, penalty, times):
    bucket, departures = TokenBucket(rate), []

    async def run():
        for at in range(4):
            if penalty and at == penalty[0]:
                await bucket.penalise(penalty[1])
            await bucket.acquire()
            departures.append(clock.now_s - 100.0)

    asyncio.run(run())
    assert departures == pytest.approx(times)


def test_a_penalty_counts_while_others_wait_and_a_shorter_one_does_not_open_early(clock):
    bucket = TokenBucket(1.0)

    async def penalise_twice():
        clock.during_sleep = None
        await bucket.penalise(3.0)
        await bucket.penalise(1.0)

    clock.during_sleep = penalise_twice

    async def run():
        await bucket.acquire()
        await bucket.acquire()

    asyncio.run(run())
    assert clock.now_s == pytest.approx(104.0)
