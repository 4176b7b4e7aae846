"""What a tier's tests take, by room: written to runs/durations, held against the checked file tests/durations.json.

A tier is a target of `make` that names itself in ``TIER``. `.ci/run` sets ``CHECK_DURATIONS``: then a tier that takes
more than its budget fails, and says which rooms became dearer. Budgets are for two cores with nothing beside `make`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

CHECKED = Path(__file__).parents[1] / "durations.json"
WRITTEN = Path(__file__).parents[2] / "runs" / "durations"

MARGIN = 1.15
"""Times the budget that a tier may take: the same commit differs by a tenth from run to run."""


class Durations:
    """A plugin that sums the seconds of each room's tests."""

    def __init__(self, tier: str) -> None:
        self._tier, self._began = tier, time.monotonic()
        self._rooms: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if isinstance(report, pytest.SubtestReport):  # a part of a test that reports itself
            return
        self._rooms[room_of(report.nodeid)] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        seconds = time.monotonic() - self._began
        rooms = {room: round(duration, 1) for room, duration in self._rooms.most_common()}
        WRITTEN.mkdir(parents=True, exist_ok=True)
        (WRITTEN / f"{self._tier}.json").write_text(json.dumps({"seconds": round(seconds), "rooms": rooms}, indent=1))
        dear = over_budget(self._tier, seconds, rooms, json.loads(CHECKED.read_text()))
        if dear and os.environ.get("CHECK_DURATIONS"):
            print(f"\n{dear}")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def room_of(nodeid: str) -> str:
    """Name the directory of a test below tests/."""
    return str(PurePosixPath(nodeid.partition("::")[0]).parent).removeprefix("tests").strip("/") or "."


def over_budget(tier: str, seconds: float, rooms: Mapping[str, float], checked: Mapping[str, Any]) -> str:
    """Say that a tier passed its budget, and which rooms most; empty: it did not, or has none yet."""
    known = checked.get(tier) or {}
    budget = known.get("budget_s")
    if budget is None or seconds <= MARGIN * budget:
        return ""
    before = known.get("rooms", {})
    dearer = sorted(rooms, key=lambda room: before.get(room, 0.0) - rooms[room])[:5]
    named = ", ".join(f"{room} {before.get(room, 0):g} -> {rooms[room]:g} s" for room in dearer)
    return (
        f"{tier} took {seconds:.0f} s, more than {MARGIN:g} times its budget of {budget:g} s; what grew most: {named}: "
        f"make it cheaper, or copy {WRITTEN.name}/{tier}.json into tests/durations.json with a reason in the commit"
    )
