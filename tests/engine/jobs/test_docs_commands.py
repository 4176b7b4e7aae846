"""Every command of README and docs that can run here runs, in the order of its page, as a newcomer would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from fake_openai import FakeOpenAI
from test_docs import ROOT, blocks, commands_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PAGES = ["index.md", "documents.md", "models.md", "systems.md", "outputs.md"]
"""In an order in which each finds the runs of those before it; sweeps and the paper's are tested by their own tests."""


def test_every_command_of_the_docs_runs(cluster, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "report.md").write_text("# Report\n\nThe new device draws 12 W in all.\n")
    (tmp_path / "questions.csv").write_text("id,question\nq1,How many watts does the new device draw?\n")
    [own] = blocks(ROOT / "README.md", "yaml")
    environment = {**os.environ, "RAY_ADDRESS": cluster, "OPENAI_API_KEY": "none"}
    ran = []
    with FakeOpenAI() as server:
        (tmp_path / "my.yaml").write_text(re.sub(r"http://127[^\"]*", server.base_url, own))
        for page in PAGES:
            for words in commands_of(ROOT / "docs" / page):
                if words[0] != "kohaku-ray" or words in ran:
                    continue
                ran.append(words)
                command = [sys.executable, "-m", "kohaku_ray.cli", *words[1:]]
                done = subprocess.run(
                    command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
                )
                assert done.returncode == 0, f"{page}: {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert len(ran) >= 14
    assert (tmp_path / "runs" / "mine" / "submission.csv").exists()
    assert (tmp_path / "runs" / "demo" / "report.html").exists()
