"""Time the way from `git clone` to the demo's table, step by step: clone, environment, index, answer.

    python scripts/first_table.py [REPOSITORY]        # default: the repository this file lies in

Everything happens in a temporary directory. Packages come from the cache of pip and uv if it holds them; --cold uses an
empty one.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = {
    "clone": ["git", "clone", "--quiet", "--depth", "1"],
    "environment": ["make", "setup", f"PYTHON={sys.executable}"],
    "index": [".venv/bin/kohaku-ray", "index", "configs/demo.yaml"],
    "answer": [".venv/bin/kohaku-ray", "answer", "configs/demo.yaml"],
}


def main() -> int:
    """Run every step, then print their seconds; the exit code is that of the first step that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", default=ROOT.as_uri(), help="what is cloned")
    parser.add_argument("--cold", action="store_true", help="download every package")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first_table_") as folder:
        clone = Path(folder, "kohaku_ray")
        seconds: dict[str, float] = {}
        for step, command in STEPS.items():
            if step == "clone":
                command = [*command, arguments.repository, str(clone)]
            began = time.perf_counter()
            done = subprocess.run(
                command, cwd=folder if step == "clone" else clone, env=_environment(folder, arguments.cold)
            )
            seconds[step] = time.perf_counter() - began
            if done.returncode:
                print(f"{step} failed with exit code {done.returncode}: {' '.join(command)}", file=sys.stderr)
                return done.returncode
    print(_table(seconds, arguments.cold))
    return 0


def _environment(folder: str, cold: bool) -> dict[str, str]:
    """Return a newcomer's environment: without this checkout's packages; with --cold, without the package cache."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    caches = {"UV_CACHE_DIR": f"{folder}/uv", "PIP_CACHE_DIR": f"{folder}/pip"} if cold else {}
    return {
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        **kept,
        **caches,
    }


def _table(seconds: dict[str, float], cold: bool) -> str:
    today = datetime.datetime.now(datetime.UTC).date()
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {today}"
    cache = "empty package cache" if cold else "package cache as it was"
    rows = [f"| {step} | {value:.1f} |" for step, value in {**seconds, "together": sum(seconds.values())}.items()]
    return "\n".join([f"{machine}, {cache}", "", "| step | s |", "|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
