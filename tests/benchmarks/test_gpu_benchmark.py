"""benchmarks/gpu.py without a GPU: its file names every figure's peer, and every reason why one is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.slow


def test_figures_have_peers_and_what_is_missing_a_reason(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--small", "--sections", "faiss"]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert {"device", "driver", "versions", "date", "command"} <= report.keys()
    section = report["sections"]["faiss"]
    [figure] = section["figures"]
    assert figure["ratio"] == pytest.approx(figure["figure"] / figure["peer"])
    assert [one["name"] for one in section["skipped"]] == ["flat on GPU, 25,000 vectors"]
    assert all(one["reason"] and one["reason"] in done.stdout for one in section["skipped"])


def test_a_section_that_takes_too_long_is_named_and_fails(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    found = gpu.apart("faiss", "cpu", True, 0.1)
    assert [one["reason"] for one in found["skipped"]] == ["stopped at its limit of 0 s"]
    assert not gpu.is_kept(found)
