"""The rate limit that a cluster's clients of a server share, without a cluster: calls to its actor, and turns."""

from __future__ import annotations

import asyncio
import time

import pytest
from ray.exceptions import RayActorError

from kohaku_ray.engine.serving.limiter import SharedLimiter
from kohaku_ray.models.openai import TokenBucket


class Limiter(SharedLimiter):
    """Asks a bucket here, as slowly as a busy actor answers."""

    def __init__(self, requests_per_s: float | None) -> None:
        super().__init__("here", requests_per_s, None)
        self.bucket, self.asked, self.failure = TokenBucket(requests_per_s), [], None

    async def _call(self, method, argument):
        self.asked.append(len(argument))
        await asyncio.sleep(0.01)
        if self.failure is not None:
            raise self.failure
        return await getattr(self.bucket, method)(argument)


async def test_requests_that_wait_meanwhile_share_a_call():
    """engine6.md, A6: one call per request bounded a server's clients at 1,500 requests/s."""
    limiter = Limiter(2000.0)
    began = time.monotonic()
    await asyncio.gather(*(limiter.acquire() for _ in range(400)))
    assert time.monotonic() - began >= 399 / 2000.0
    assert sum(limiter.asked) >= 400
    assert len(limiter.asked) <= 4


async def test_requests_keep_their_order_and_who_gives_up_gets_no_turn():
    limiter, order = Limiter(100.0), []

    async def send(number):
        await limiter.acquire()
        order.append(number)

    tasks = [asyncio.create_task(send(number)) for number in range(40)]
    await asyncio.sleep(0.02)
    for task in tasks[30:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == list(range(30))
    assert sum(limiter.asked) < 40 + 30, "what the actor had no turn for is asked again, and no more"


async def test_a_limiter_that_is_lost_for_good_fails_its_requests_and_the_next_ones_ask_anew():
    limiter = Limiter(100.0)
    limiter.failure = RayActorError()
    results = await asyncio.gather(*(limiter.acquire() for _ in range(3)), return_exceptions=True)
    assert {type(result) for result in results} == {RayActorError}
    limiter.failure = None
    await asyncio.wait_for(limiter.acquire(), 1)


@pytest.mark.parametrize("n", [1, 5])
async def test_a_single_request_waits_no_longer(n):
    limiter = Limiter(None)
    for _ in range(n):
        await limiter.acquire()
    assert limiter.asked == [1] * n
