"""How time grows with the size of an input: a bound in seconds lets a quadratic loop pass, a ratio does not."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

Input = TypeVar("Input")

TIMES = 4
"""How much larger the second input is: linear work takes four times as long, quadratic sixteen times."""

MOST = 6.0
"""Largest ratio of the two times: 9,600 pieces of a page took 4.0 times as long as 2,400, and 8.6 times where a loop
over all pairs of lines was put in."""

TOO_SHORT_S = 0.02
"""CPU seconds below which a ratio is noise, and 10,000 parts were not compared in pairs, which takes seconds."""

TRIES = 5
"""Measurements before a ratio counts: a machine that is busy beside slows one of two, a quadratic loop all."""


def check_linear(make: Callable[[int], Input], read: Callable[[Input], object], n: int) -> None:
    """Assert that reading ``make(4 n)`` takes less than six times the CPU of ``make(n)``; the best of five counts."""
    small = large = float("inf")
    for _ in range(TRIES):
        small, large = min(small, _seconds(read, make(n))), min(large, _seconds(read, make(TIMES * n)))
        if large < TOO_SHORT_S:
            assert n >= 10_000, f"{large:.3f} s: the ratio of so short times says nothing; raise n from {n:,}"
            return
        if large < MOST * small:
            return
    shown = f"{small:.3f} s for {n:,} and {large:.3f} s for {TIMES * n:,}"
    raise AssertionError(f"{shown}: {large / small:.1f} times as long")


def _seconds(read: Callable[[Input], object], given: Input) -> float:
    """Time it without the garbage collector, which goes through all objects of the session, the more the larger n."""
    gc.disable()
    try:
        start = time.process_time()
        read(given)
        return time.process_time() - start
    finally:
        gc.enable()
