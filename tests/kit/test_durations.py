from __future__ import annotations

import json
import re

from kit.durations import CHECKED, over_budget, room_of

CHECKED_TIER = {"unit": {"budget_s": 100, "yardstick_ms": 50, "rooms": {"run": 40.0, "models": 50.0}}}


def test_a_tier_that_passes_its_budget_names_the_rooms_that_grew():
    rooms = {"run": 90.0, "models": 51.0}
    assert over_budget("unit", 114.0, 40, rooms, CHECKED_TIER) == "", "a faster machine takes nothing from a budget"
    said = over_budget("unit", 116.0, 50, rooms, CHECKED_TIER)
    assert said.startswith("unit took 116 s, more than 1.15 times its budget of 100 s on this machine")
    assert "what grew most: run 40.0 -> 90.0 s, models 50.0 -> 51.0 s" in said
    assert over_budget("slow", 1e6, 50, rooms, CHECKED_TIER) == "", "it has no budget yet"


def test_a_slower_machine_has_a_larger_budget():
    rooms = {"run": 150.0, "models": 75.0}
    assert over_budget("unit", 172.0, 75, rooms, CHECKED_TIER) == ""
    said = over_budget("unit", 173.0, 75, rooms, CHECKED_TIER)
    assert "budget of 150 s on this machine (100 s where the yardstick takes 50 ms, 75 here)" in said
    assert "run 60.0 -> 150.0 s, models 75.0 -> 75.0 s" in said


def test_rooms_are_directories():
    assert [room_of(f"tests/{name}::test_x") for name in ("engine/jobs/test_a.py", "test_b.py")] == ["engine/jobs", "."]


def test_every_tier_of_make_has_a_line():
    makefile = (CHECKED.parents[1] / "Makefile").read_text()
    assert set(re.findall(r"^\tTIER=(\S+)", makefile, re.MULTILINE)) == {*json.loads(CHECKED.read_text())}
