"""The router of replicas without a prefix cache: whom it offers a call, and what it counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from kohaku_ray.engine.serving.routing import LeastLoadedRouter

REPLICAS = [SimpleNamespace(replica_id=name) for name in "abcd"]


@pytest.fixture
def router() -> LeastLoadedRouter:
    """A router without Serve's own state, which none of its methods here reads."""
    made = LeastLoadedRouter.__new__(LeastLoadedRouter)
    made.initialize_state()
    return made


def call(number: int, n_requests: int = 1) -> SimpleNamespace:
    identity, context = SimpleNamespace(internal_request_id=str(number)), SimpleNamespace(should_backoff=False)
    return SimpleNamespace(args=[["request"] * n_requests], metadata=identity, routing_context=context)


def choose(router: LeastLoadedRouter, given: SimpleNamespace) -> str:
    [[replica]] = asyncio.run(router.choose_replicas(REPLICAS, given))
    return replica.replica_id


def test_a_burst_is_spread_evenly_though_none_of_its_calls_has_been_sent(router):
    """By Serve's power of two choices four replicas got 475 to 520 of 2,000 calls, and the last round was for one."""
    assert Counter(choose(router, call(number)) for number in range(40)) == dict.fromkeys("abcd", 10)


def test_requests_count_not_calls(router):
    large = choose(router, call(0, 9))
    others = [choose(router, call(number)) for number in range(1, 10)]
    assert large not in others
    assert Counter(others) == dict.fromkeys(set("abcd") - {large}, 3)


def test_what_went_elsewhere_counts_there_and_what_has_ended_nowhere(router):
    first, second = call(0), call(1)
    chosen = choose(router, first)
    other = next(name for name in "abcd" if name != chosen)
    router.on_request_routed(first, other, None)  # Serve gave it the replica that was chosen for another call
    taken = {choose(router, second), *(choose(router, call(number)) for number in (2, 3))}
    assert taken == set("abcd") - {other}
    for number in range(4):
        router.on_request_completed(other, str(number))
    assert sum(router._loads.values()) == 0
    assert not router._calls


def test_a_call_that_its_replica_refused_is_counted_once_and_offered_again_after_a_pause(router):
    refused = call(0)
    for _ in range(5):
        choose(router, refused)
    assert refused.routing_context.should_backoff
    assert sum(router._loads.values()) == 1
    assert asyncio.run(router.choose_replicas([], call(1))) == []
