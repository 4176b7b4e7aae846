"""The jobs from a session with a running event loop, as a notebook has, in places where things are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import own_ray

CELL = """
import asyncio, shutil, sys
from kohaku_ray import Run, load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.engine.jobs import answer as job

home, index, folder = sys.argv[1:]
settings = ["questions.limit=2", "ensemble.members=2", "cluster.num_cpus=2"]
asked = job.answer_all

def remove_and_answer(*arguments):
    shutil.rmtree(folder)  # by somebody else, once the actors are up
    return asked(*arguments)

async def cell():
    run = Run(load_config("demo", [*settings, f"index.path={index}", f"run={home}/run", f"ledger.path={home}/ledger"]))
    job.answer_all = remove_and_answer
    run.answer()
    job.answer_all = asked
    print(run.votes.height, repr(run))
    try:
        run.ask("How much water did Ferncrest use?")
    except ConfigError as error:
        print(error)

asyncio.run(cell())
"""


@pytest.mark.slow
def test_a_cell_answers_in_a_running_loop_without_home_and_while_its_directory_is_removed(sample_here, tmp_path):
    folder, long = tmp_path / "folder", tmp_path / ("x" * 150)
    folder.mkdir()
    long.mkdir()
    environment = own_ray.environment("HOME", TMPDIR=str(long), PYTHONPATH=str(Path(__file__).parents[3]))
    cell = subprocess.run(
        [sys.executable, "-c", CELL, str(tmp_path), sample_here, str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert cell.returncode == 0, cell.stderr
    voted, refused = cell.stdout.splitlines()
    assert refused == "the working directory was removed: change to one that is there (cd), then start again"
    assert voted.startswith(f"2 Run('{tmp_path}/run', finished, wattbot ")
    assert "answer  2/2 questions" in cell.stderr
    assert "Traceback" not in cell.stderr


@pytest.mark.slow
def test_a_command_without_its_working_directory_is_one_line(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    script = "rmdir ../folder && exec " + sys.executable + " -P -m kohaku_ray answer demo"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    job = subprocess.run(["sh", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert job.returncode == 2, job.stderr
    assert job.stderr.splitlines() == [
        "kohaku-ray: the working directory was removed: change to one that is there (cd), then start again"
    ]
