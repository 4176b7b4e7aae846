"""What a tier's tests take, by room: written to runs/durations, held against the checked file tests/durations.json.

A tier is a target of `make` that names itself in ``TIER``. `.ci/run` sets ``CHECK_DURATIONS``: then a tier that takes
more than its budget fails, and says which rooms became dearer. Budgets are for two cores with nothing beside `make`.
A machine is twice as slow at one hour as at another (CI, 2026-11-29: the same code took 1.3 to 1.8 times its seconds).
So a yardstick, a process that does the same small work, is timed all along the tier: where it takes longer than it did
when the budget was written, the budget is that much larger.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

import pytest

CHECKED = Path(__file__).parents[1] / "durations.json"
WRITTEN = Path(__file__).parents[2] / "runs" / "durations"

MARGIN = 1.15
"""Times the budget that a tier may take: the same commit differs by a tenth from run to run."""

YARDSTICK = "import json, decimal, email.message; json.loads(json.dumps([str(n) for n in range(40_000)]))"
"""A start of Python, a few imports and some work on objects: what tests spend their time on. 45 ms on quiet cores."""

EVERY_S = 10.0
"""Seconds between two timings of the yardstick: half a percent of the time, and 30 of them in the shortest tier."""


class Durations:
    """A plugin that sums the seconds of each room's tests."""

    def __init__(self, tier: str) -> None:
        self._tier, self._began = tier, time.monotonic()
        self._rooms: Counter[str] = Counter()
        self._yardsticks = [time_yardstick()]
        self._timed = self._began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if isinstance(report, pytest.SubtestReport):  # a part of a test that reports itself
            return
        self._rooms[room_of(report.nodeid)] += report.duration
        if time.monotonic() - self._timed > EVERY_S:
            self._yardsticks.append(time_yardstick())
            self._timed = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        seconds = time.monotonic() - self._began
        rooms = {room: round(duration, 1) for room, duration in self._rooms.most_common()}
        yardstick_ms = round(median(self._yardsticks))
        WRITTEN.mkdir(parents=True, exist_ok=True)
        taken = {"seconds": round(seconds), "yardstick_ms": yardstick_ms, "rooms": rooms}
        (WRITTEN / f"{self._tier}.json").write_text(json.dumps(taken, indent=1))
        dear = over_budget(self._tier, seconds, yardstick_ms, rooms, json.loads(CHECKED.read_text()))
        if dear and os.environ.get("CHECK_DURATIONS"):
            print(f"\n{dear}")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def room_of(nodeid: str) -> str:
    """Name the directory of a test below tests/."""
    return str(PurePosixPath(nodeid.partition("::")[0]).parent).removeprefix("tests").strip("/") or "."


def time_yardstick() -> float:
    """Time one small process, in milliseconds."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", YARDSTICK], check=True, stdin=subprocess.DEVNULL)
    return 1000 * (time.monotonic() - began)


def over_budget(
    tier: str, seconds: float, yardstick_ms: float, rooms: Mapping[str, float], checked: Mapping[str, Any]
) -> str:
    """Say that a tier passed its budget, and which rooms most; empty: it did not, or has none yet."""
    known = checked.get(tier) or {}
    if known.get("budget_s") is None:
        return ""
    slowness = max(1.0, yardstick_ms / known["yardstick_ms"])
    budget = known["budget_s"] * slowness
    if seconds <= MARGIN * budget:
        return ""
    before = known.get("rooms", {})
    dearer = sorted(rooms, key=lambda room: slowness * before.get(room, 0.0) - rooms[room])[:5]
    named = ", ".join(f"{room} {slowness * before.get(room, 0):.1f} -> {rooms[room]:.1f} s" for room in dearer)
    return (
        f"{tier} took {seconds:.0f} s, more than {MARGIN:g} times its budget of {budget:.0f} s on this machine "
        f"({known['budget_s']:g} s where the yardstick takes {known['yardstick_ms']:g} ms, {yardstick_ms:g} here); "
        f"what grew most: {named}: make it cheaper, or copy {WRITTEN.name}/{tier}.json into tests/durations.json with "
        "a reason in the commit"
    )
