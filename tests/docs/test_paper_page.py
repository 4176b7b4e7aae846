"""docs/paper.md: every command parses, every sweep it names loads, and every sweep of the package stands in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kohaku_ray.cli import make_parser
from kohaku_ray.config import load_config
from kohaku_ray.config.paths import preset_names
from kohaku_ray.sweep.load import SWEEPS, load_sweep

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
LINES = [line.split("#")[0].strip() for block in BLOCKS for line in block.split("\n")]
COMMANDS = sorted({*re.findall(r"`(kohaku-ray [^`]+)`", TEXT), *filter(None, LINES)})


def test_there_are_commands():
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses_and_its_sweep_loads_on_its_base(command):
    name, *words = shlex.split(command)
    assert name == "kohaku-ray"
    arguments = make_parser().parse_args(words)
    if words[0] == "sweep":
        loaded = load_sweep(arguments.sweep, arguments.base)
        assert loaded.sweep.n_cells > 1


def test_every_sweep_of_the_package_stands_on_the_page():
    named = {shlex.split(command)[2] for command in COMMANDS if command.startswith("kohaku-ray sweep ")}
    assert named == {file.stem for file in SWEEPS.glob("*.yaml")}


def test_presets_that_the_page_names_are_there(monkeypatch):
    monkeypatch.setenv("KOHAKU_MODEL", "some/model")
    named = set(re.findall(r"\b(?:models|encoders)/\w+", TEXT))
    assert len(named) >= 4
    assert named <= set(preset_names())
    load_config(["wattbot", "models/vllm_gpt_oss_120b", "encoders/bge_m3"])


@pytest.mark.parametrize("number", ["Table 3", "Figure 6", "Figure 16", "Table 6", "Tables 10", "Figures 19"])
def test_what_the_paper_numbers_can_be_found(number):
    assert number in TEXT
