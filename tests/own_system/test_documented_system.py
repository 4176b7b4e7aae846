"""docs/add_a_system.md: its system, format and metric run from an empty directory, and its list of tools is true."""

from __future__ import annotations

import csv
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kohaku_ray.systems.tools import Tools

PAGE = Path(__file__).parents[2] / "docs" / "add_a_system.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE) for line in block.split("\n")
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The page's files in a directory of their own, and what its commands printed there."""
    home = tmp_path_factory.mktemp("tickets")
    for name, text in FILES.items():
        (home / name).write_text(text)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    for command in filter(None, COMMANDS):
        program = Path(sys.executable).parent / command.split()[0]
        done = subprocess.run(
            [program, *command.split()[1:]], cwd=home, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "warning" not in done.stderr, done.stderr
        (home / f"{command.split()[1]}.out").write_text(done.stdout)
    return home


@pytest.mark.slow
def test_its_format_makes_a_document_of_each_ticket_in_rays_workers(home):
    assert "2 documents of 1 file" in (home / "index.out").read_text()
    cited = {row["doc_id"] for row in pq.read_table(home / "runs/tickets/trace.parquet").to_pylist()}
    assert {"P-17", "P-18"} & cited


@pytest.mark.slow
def test_its_metric_scores_the_run(home):
    printed = (home / "answer.out").read_text()
    assert re.search(r"first_ref\s+1\.0000", printed), printed
    with open(home / "runs/tickets/submission.csv", newline="") as file:
        assert [row["answer_value"] for row in csv.DictReader(file)] == ["14", "900"]


@pytest.mark.slow
def test_show_tells_how_a_question_was_answered(home):
    shown = (home / "show.out").read_text()
    assert "search: 2" in shown
    assert "P-17:sec0:p1" in shown


def test_the_tools_are_listed_with_the_parameters_that_they_have():
    listed = dict(re.findall(r"^(?:await )?tools\.(\w+)(\(.*?\)) -> ", TEXT, re.MULTILINE))
    for name, tool in vars(Tools).items():
        if name.startswith("_") or name == "prompts":
            continue
        if isinstance(tool, property):
            assert re.search(rf"^tools\.{name} -> ", TEXT, re.MULTILINE), name
            continue
        names = [part.partition("=")[0].strip() for part in listed[name].strip("()").split(",")]
        wanted = [parameter for parameter in inspect.signature(tool).parameters if parameter != "self"]
        assert [part for part in names if part != "*"] == wanted, name
        is_awaited = f"await tools.{name}(" in TEXT
        assert is_awaited == inspect.iscoroutinefunction(tool), name
    assert re.search(r"^tools\.prompts\.render\(role, variables\)", TEXT, re.MULTILINE)
