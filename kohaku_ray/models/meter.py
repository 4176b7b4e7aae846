"""Attribute a replica's GPU seconds and energy to the calls it answers concurrently."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

POWER_PERIOD_S = 1.0
"""Seconds between readings of the energy counters."""

POWER_RETRY_S = 30.0
"""Seconds between readings of energy counters that failed."""


@dataclass(slots=True)
class CallUse:
    """What one call used; filled when it ends.

    Attributes:
        service_s: Seconds in the replica.
        gpu_s: GPU seconds: the replica's GPUs, divided equally among the calls in flight at each moment.
        joules: Energy, divided likewise; None if the power was unknown during a part of the call.
    """

    service_s: float = 0.0
    gpu_s: float = 0.0
    joules: float | None = None


class Meter:
    """Divides a replica's GPU time and energy among its calls: their sum is the replica's use while busy.

    Two running sums, seconds and joules per call, grow with every change; a call's share is their growth during it.
    """

    def __init__(self, n_gpus: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start idle; ``n_gpus`` are the replica's GPUs, or the share of one."""
        self._n_gpus, self._clock = n_gpus, clock
        self._last_reading_s = clock()
        self._n_calls = 0
        self._seconds_per_call = self._joules_per_call = self._unmetered_s = 0.0
        self._watts: float | None = None

    @contextmanager
    def measure_call(self) -> Iterator[CallUse]:
        """Measure a call while the block runs."""
        self._advance()
        self._n_calls += 1
        began, seconds, joules, use = self._last_reading_s, self._seconds_per_call, self._joules_per_call, CallUse()
        unmetered_s = self._unmetered_s
        try:
            yield use
        finally:
            self._advance()
            self._n_calls -= 1
            use.service_s = self._last_reading_s - began
            use.gpu_s = (self._seconds_per_call - seconds) * self._n_gpus
            is_metered = self._watts is not None and self._unmetered_s == unmetered_s
            use.joules = self._joules_per_call - joules if is_metered else None

    def set_power(self, watts: float | None) -> None:
        """Set the total power of the GPUs from now on; None: unknown."""
        self._advance()
        self._watts = watts

    def _advance(self) -> None:
        now = self._clock()
        if self._n_calls:
            share_s = (now - self._last_reading_s) / self._n_calls
            self._seconds_per_call += share_s
            if self._watts is None:
                self._unmetered_s += now - self._last_reading_s
            else:
                self._joules_per_call += share_s * self._watts
        self._last_reading_s = now


async def watch_power(
    meter: Meter,
    read: Callable[[], Awaitable[Sequence[Any]]],
    period_s: float = POWER_PERIOD_S,
    retry_s: float = POWER_RETRY_S,
) -> None:
    """Set a meter's power from successive readings of the GPUs' energy counters, until cancelled.

    Args:
        meter: Its power is None while the counters cannot be read or decrease.
        read: Reads every GPU's counter, in joules; None for a GPU without one.
        period_s: Between readings.
        retry_s: Between readings while they fail.
    """
    loop = asyncio.get_running_loop()
    last: tuple[float, float] | None = None
    while True:
        joules = None
        with suppress(Exception):  # whatever a counter or its engine raises
            counters = await read()
            joules = math.fsum(counters) if counters else None
        if joules is not None and not math.isfinite(joules):
            joules = None
        now, watts = loop.time(), None
        if joules is not None and last is not None and joules >= last[1] and now > last[0]:
            watts = (joules - last[1]) / (now - last[0])
        meter.set_power(watts)
        last = None if joules is None else (now, joules)
        await asyncio.sleep(retry_s if joules is None else period_s)
