"""Every script that the documentation cites runs, at a tiny size: a benchmark that fails may have been so for months.

Its limits are not kept at such a size: exit code 1 says that, a traceback is a defect.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "wattbot"

slow, data = pytest.mark.slow, pytest.mark.data

SCRIPTS = {
    "affinity": (["--simulate"], [slow]),
    "best_cell": (["--sweeps", "40", "--questions", "41"], [slow]),
    "encoder_feed": (["--tokens", "2000", "--rates", "0", "--rounds", "1"], [slow]),
    "endpoint": (["--texts", "64", "--delays", "0", "--rounds", "1"], [slow]),
    "flow": (["--questions", "4", "--members", "2", "--call-s", "0.01", "--curve", "1"], [slow]),
    "grammar": (["--vocabulary", "500", "--documents", "4"], [slow]),
    "growth": (["--divide", "40", "--together"], [slow]),
    "hybrid_speed": (["--paragraphs", "400", "--questions", "4", "--plain", "1", "--rounds", "1"], [slow]),
    "image_encoder": (["--images", "4", "--rounds", "1", "--layers", "1"], [slow]),
    "images": (["--pages", "2", "--words", "50", "--rounds", "1"], [slow]),
    "index": (["--steady", "--texts", "40", "--config", "demo"], [slow]),
    "ledger": (["--entries", "2000", "--rows", "500"], []),
    "page": (["--questions", "40", "--members", "2", "--starts", "1"], [slow]),
    "parse": (["--pages", "2", "--rounds", "1"], [slow]),
    "provider_batches": (
        ["--calls", "20", "--seconds", "0.1", "--members", "2", "--prompt-chars", "500"],
        [slow],
    ),
    "race": (["--orders", "2"], [slow, data]),
    "replay": (["--calls", "20", "--context-chars", "500", "--members", "2"], [slow]),
    "retrieval": (["--config", "demo"], [slow]),
    "retrieval_speed": (["--config", "demo", "--rounds", "1", "--made", "8"], [slow]),
    "vote": (["--loop", "16"], [slow, data]),
}
"""Arguments and marks by script."""

ELSEWHERE = {
    "extraction": "test_extraction.py: its files are downloaded",
    "gpu": "test_gpu_benchmark.py",
}


def test_every_script_that_is_cited_is_run():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    script = re.compile(r"(?<!tests/)benchmarks/(\w+)\.py")
    cited = {name for page in pages for name in script.findall(page.read_text(encoding="utf-8"))}
    assert cited <= SCRIPTS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize(("name", "arguments"), [pytest.param(n, a, marks=m) for n, (a, m) in SCRIPTS.items()])
def test_a_script_runs(name, arguments, tmp_path, request):
    if request.node.get_closest_marker("data") and not DATA.is_dir():
        pytest.skip(f"no {DATA}")
    if name == "page" and not Path("/usr/bin/chromium").exists():
        pytest.skip("no Chromium")
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    if "--config" in arguments:
        command += ["--set", f"index.path={request.getfixturevalue('sample_here')}"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "KOHAKU_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables, timeout=550)
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.returncode in (0, 1), done.stderr[-3000:]
    assert done.stdout.strip()
