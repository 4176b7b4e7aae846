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
    fake_clock = Clock()
    monkeypatch.setattr(openai, "time", fake_clock)
    monkeypatch.setattr(asyncio, "sleep", fake_clock.sleep)
    return fake_clock


@pytest.mark.parametrize(
    ("rate", "penalty", "times"),
    [
        (4.0, None, [0, 0.25, 0.5, 0.75]),
        (None, None, [0, 0, 0, 0]),
        (4.0, (1, 5.0), [0, 5.0, 5.25, 5.5]),
        (None, (1, 5.0), [0, 5.0, 5.0, 5.0]),
    ],
)
async def test_an_even_rate_and_a_penalty_that_closes_for_all(clock, rate, penalty, times):
    bucket, departures = TokenBucket(rate), []
    for number in range(4):
        if penalty and number == penalty[0]:
            await bucket.penalise(penalty[1])
        await bucket.acquire()
        departures.append(clock.now_s - 100.0)
    assert departures == pytest.approx(times)


async def test_a_shorter_penalty_does_not_open_early(clock):
    bucket = TokenBucket(None)
    await bucket.penalise(10.0)
    await bucket.penalise(1.0)
    await bucket.acquire()
    assert clock.now_s == pytest.approx(110.0)


async def test_a_penalty_given_while_waiting_counts(clock):
    bucket = TokenBucket(1.0)

    async def penalise_once():
        clock.during_sleep = None
        await bucket.penalise(3.0)

    clock.during_sleep = penalise_once
    await bucket.acquire()
    await bucket.acquire()
    assert clock.now_s == pytest.approx(104.0)


async def test_turns_within_a_fifth_of_a_second_are_given_at_once(clock):
    bucket = TokenBucket(10.0, 60_000.0)  # 1,000 tokens a second
    assert await bucket.reserve([0, 0, 0, 0, 0]) == pytest.approx([0.0, 0.1, 0.2])
    assert await bucket.reserve([500, 0]) == pytest.approx([0.0]), "the first has its turn, however long it takes"
    assert clock.now_s == pytest.approx(100.3)
    await bucket.acquire()
    assert clock.now_s == pytest.approx(100.8)


async def test_one_that_gives_up_costs_nobody_a_turn():
    bucket = TokenBucket(20.0)
    await bucket.acquire()
    quitters = [asyncio.create_task(bucket.acquire()) for _ in range(100)]
    await asyncio.sleep(0)
    for quitter in quitters:
        quitter.cancel()
    await asyncio.wait_for(bucket.acquire(), timeout=2.0)


@pytest.mark.parametrize(
    ("requests_per_s", "tokens_per_minute", "sizes", "times"),
    [
        (None, 600.0, [20, 10, 0, 40], [0, 2.0, 3.0, 3.0]),
        (1.0, 600.0, [20, 5, 5, 5], [0, 2.0, 3.0, 4.0]),  # the slower of both
        (None, None, [10**6, 10**6, 1, 1], [0, 0, 0, 0]),
    ],
)
async def test_tokens_per_minute_beside_requests_per_second(clock, requests_per_s, tokens_per_minute, sizes, times):
    bucket, departures = TokenBucket(requests_per_s, tokens_per_minute), []
    for size in sizes:
        await bucket.acquire(size)
        departures.append(clock.now_s - 100.0)
    assert departures == pytest.approx(times)
