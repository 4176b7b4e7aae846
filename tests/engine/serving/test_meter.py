"""Shares of GPU time and energy, on a clock and a power of our own."""

from __future__ import annotations

from kohaku_ray.engine.serving.meter import Meter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lone_call_takes_all_its_gpus_and_their_energy():
    clock = Clock()
    meter = Meter(4, clock)
    meter.set_power(1000.0)
    with meter.call() as spent:
        clock.now = 3.0
    assert (spent.service_s, spent.gpu_s, spent.joules) == (3.0, 12.0, 3000.0)


def test_calls_at_the_same_time_share_and_add_up_to_the_busy_time():
    clock = Clock()
    meter = Meter(1, clock)
    meter.set_power(100.0)
    with meter.call() as long:
        clock.now = 1.0
        with meter.call() as short:
            clock.now = 3.0
        meter.set_power(50.0)
        clock.now = 4.0
    assert (long.gpu_s, short.gpu_s) == (3.0, 1.0)
    assert long.gpu_s + short.gpu_s == 4.0
    assert (long.joules, short.joules) == (100.0 + 100.0 + 50.0, 100.0)
    clock.now = 10.0  # idle time is nobody's
    with meter.call() as later:
        clock.now = 11.0
    assert (later.gpu_s, later.joules) == (1.0, 50.0)


def test_without_a_gpu_or_a_counter_there_is_time_alone():
    clock = Clock()
    meter = Meter(0, clock)
    with meter.call() as spent:
        clock.now = 2.0
    assert (spent.service_s, spent.gpu_s, spent.joules) == (2.0, 0.0, None)
