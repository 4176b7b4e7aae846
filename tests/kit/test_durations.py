from __future__ import annotations

import json
import re

from kit.durations import CHECKED, over_budget, room_of


def test_a_tier_that_passes_its_budget_names_the_rooms_that_grew():
    checked = {"unit": {"budget_s": 100, "rooms": {"run": 40.0, "models": 50.0}}}
    rooms = {"run": 90.0, "models": 51.0}
    assert over_budget("unit", 114.0, rooms, checked) == ""
    said = over_budget("unit", 116.0, rooms, checked)
    assert said.startswith("unit took 116 s, more than 1.15 times its budget of 100 s; what grew most: run 40 -> 90 s")
    assert over_budget("slow", 1e6, rooms, checked) == "", "it has no budget yet"


def test_rooms_are_directories():
    assert [room_of(f"tests/{name}::test_x") for name in ("engine/jobs/test_a.py", "test_b.py")] == ["engine/jobs", "."]


def test_every_tier_of_make_has_a_line():
    makefile = (CHECKED.parents[1] / "Makefile").read_text()
    assert set(re.findall(r"^\tTIER=(\S+)", makefile, re.MULTILINE)) == {*json.loads(CHECKED.read_text())}
