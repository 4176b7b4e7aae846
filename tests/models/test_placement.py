"""Bounded-load consistent hashing of questions, alone and simulated at up to 64 replicas."""

from __future__ import annotations

import hashlib
import heapq
import math
import random

import pytest

from kohaku_ray.models.placement import Placement, count_placements, placement_of


def ring_order(question: str, replicas: list[int]) -> list[int]:
    """An order of its own for every question, as a hash ring gives."""
    return sorted(replicas, key=lambda replica: hashlib.blake2b(f"{question}/{replica}".encode()).digest())


def test_a_question_stays_where_it_was_placed():
    placement = Placement()
    replicas = list(range(4))
    for number in range(50):
        question = f"q{number}"
        order = ring_order(question, replicas)
        home = placement.choose_replica(question, order, replicas)
        placement.begin_call(question)
        assert [placement.choose_replica(question, order, replicas) for _ in range(9)] == [home] * 9
    assert placement.n_placed == 50
    assert placement.n_in_flight == 50
    assert max(placement.load(replica) for replica in replicas) <= math.ceil(50 / 4)


def test_a_whole_question_moves_off_an_overfull_replica_and_is_counted():
    placement = Placement()
    first = ["a", "b"]
    assert placement.choose_replica("one", first, first) == "a"
    placement.begin_call("one")
    assert placement.choose_replica("two", first, first) == "b"
    assert (placement.n_placed, placement.n_moved) == (2, 1)
    placement.begin_call("two")
    placement.end_call("one")
    placement.end_call("two")
    assert placement.load("a") == placement.load("b") == 0
    assert placement.choose_replica("two", first, first) == "b", "its context is cached there"


def test_many_placed_at_once_are_bounded_before_their_first_call_is_on_its_way():
    placement = Placement()
    homes = [placement.choose_replica(f"q{number}", ["a", "b"], ["a", "b"]) for number in range(100)]
    assert homes.count("a") == 50


def test_a_dead_replicas_questions_go_elsewhere_with_their_load():
    placement = Placement()
    assert placement.choose_replica("one", ["a", "b"], ["a", "b"]) == "a"
    placement.begin_call("one")
    placement.begin_call("one")
    assert placement.choose_replica("one", ["b"], ["b"]) == "b"
    assert (placement.load("a"), placement.load("b")) == (0, 1)
    placement.end_call("one")
    placement.end_call("one")
    assert placement.load("b") == 0


def test_a_call_that_ends_before_the_next_begins_leaves_no_load_and_moves_nobody():
    placement = Placement()
    for number in range(30):
        assert placement.choose_replica(f"q{number}", ["a", "b"], ["a", "b"]) == "a"
        placement.begin_call(f"q{number}")
        placement.end_call(f"q{number}")
    assert placement.n_moved == 0
    placement.choose_replica("one", ["a"], ["a"])
    placement.choose_replica("one", ["a"], ["a"])
    placement.begin_call("one")
    placement.end_call("one")
    placement.begin_call("one")
    placement.end_call("one")
    assert placement.load("a") == placement.n_in_flight == 0


@pytest.mark.parametrize("n_replicas", [2, 4, 16, 64])
def test_simulated_loads_stay_within_the_bound(n_replicas):
    """10,000 questions, 16 a replica in flight, of random length: no replica is ever above the bound."""
    replicas, rng = list(range(n_replicas)), random.Random(n_replicas)
    placement = Placement()
    running: list[tuple[float, str]] = []
    now, worst = 0.0, 0.0
    for number in range(10_000):
        if len(running) >= 16 * n_replicas:
            now, ended = heapq.heappop(running)
            placement.end_call(ended)
        question = f"q{number}"
        home = placement.choose_replica(question, ring_order(question, replicas), replicas)
        placement.begin_call(question)
        heapq.heappush(running, (now + rng.lognormvariate(0, 0.5), question))
        worst = max(worst, placement.load(home) - placement.n_in_flight / n_replicas)
    assert worst <= 1.0, "never more than the mean, rounded up"
    assert 0 < placement.n_moved < placement.n_placed


def test_where_its_order_is_full_a_question_goes_to_the_least_loaded():
    placement, replicas = Placement(), list(range(8))
    for number in range(80):
        placement.choose_replica(f"q{number}", [0, 1, 2], replicas)
        placement.begin_call(f"q{number}")
    assert [placement.load(replica) for replica in replicas] == [10] * 8


def test_counts_of_an_application_nobody_placed_for_are_zero():
    assert count_placements("nobody") == (0, 0)
    assert placement_of("nobody") is placement_of("nobody")
