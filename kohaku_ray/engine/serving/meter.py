"""What a replica's hardware spends on each of the calls it answers at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Spent:
    """What one call took; filled when it ends.

    Attributes:
        service_s: Seconds in the replica.
        gpu_s: GPU seconds: the replica's GPUs, shared among the calls in flight at each moment.
        joules: Energy, shared likewise; None where nobody measures it.
    """

    service_s: float = 0.0
    gpu_s: float = 0.0
    joules: float | None = None


class Meter:
    """Shares a replica's GPU time and energy among its calls: together they spent what the replica did while busy.

    Two running sums, seconds and joules a call, grow with every change; a call's share is their growth during it.
    """

    def __init__(self, n_gpus: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start idle.

        Args:
            n_gpus: GPUs of the replica.
            clock: Seconds.
        """
        self._n_gpus, self._clock = n_gpus, clock
        self._at = clock()
        self._n_calls = 0
        self._seconds_each = self._joules_each = 0.0
        self._watts: float | None = None

    @contextmanager
    def call(self) -> Iterator[Spent]:
        """Measure a call while the block runs."""
        self._advance()
        self._n_calls += 1
        began, seconds, joules, spent = self._at, self._seconds_each, self._joules_each, Spent()
        try:
            yield spent
        finally:
            self._advance()
            self._n_calls -= 1
            spent.service_s = self._at - began
            spent.gpu_s = (self._seconds_each - seconds) * self._n_gpus
            spent.joules = None if self._watts is None else self._joules_each - joules

    def set_power(self, watts: float) -> None:
        """Note the power that the GPUs draw together from now on."""
        self._advance()
        self._watts = watts

    def _advance(self) -> None:
        now = self._clock()
        if self._n_calls:
            each = (now - self._at) / self._n_calls
            self._seconds_each += each
            self._joules_each += each * (self._watts or 0.0)
        self._at = now
