"""What the processes of a small run cost: CPU of all of them, beside a bare Ray with as many empty actors.

    python benchmarks/processes.py [demo] [answer]     # the second argument: another command of the configuration

A start is paid on every node and by every test; wall time under load says nothing: CPU seconds are counted. Processes
are looked at twenty times a second: what one uses in its last moment is missed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

BARE = """
import ray
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
actors = [ray.remote(num_cpus=0)(type("Empty", (), {{"ready": lambda self: 0}})).remote() for _ in range({n})]
ray.get([actor.ready.remote() for actor in actors])
"""
LOOK_EVERY_S = 0.05


def count(command: list[str], home: str) -> dict[str, list[float]]:
    """Run a command and return the CPU seconds of its processes, by what they are called."""
    with subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as started:
        root, seen = psutil.Process(started.pid), dict[tuple[int, float], tuple[str, float]]()
        while started.poll() is None:
            for process in [root, *root.children(recursive=True)]:
                try:
                    used, title = process.cpu_times(), " ".join(process.cmdline())
                    key = process.pid, process.create_time()
                    seen[key] = title or seen.get(key, ("", 0.0))[0], used.user + used.system
                except psutil.Error:  # it has ended
                    continue
            time.sleep(LOOK_EVERY_S)
        assert started.returncode in (0, 3), started.stderr.read() if started.stderr else ""
    by_name: dict[str, list[float]] = {}
    for title, seconds in seen.values():
        name = re.sub(r"\S*/", "", title).split(" ")[0]
        by_name.setdefault(name, []).append(seconds)
    return by_name


def main() -> None:
    """Print a line per kind of process, and both sums."""
    preset, command = [*sys.argv[1:], *("demo", "answer")[len(sys.argv[1:]) :]]
    with tempfile.TemporaryDirectory() as home:
        ours = [sys.executable, "-m", "kohaku_ray", "--quiet"]
        if command != "index":
            subprocess.run([*ours, "index", preset], cwd=home, check=True)
        counted = count([*ours, command, preset], home)
        n_actors = sum(len(seconds) for name, seconds in counted.items() if name.startswith("ray::"))
        bare = count([sys.executable, "-c", BARE.format(n=n_actors)], home)
    for name, seconds in sorted(counted.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(seconds):7.1f} s  {len(seconds):2}  {name[:60]}")
    total, least = (sum(map(sum, each.values())) for each in (counted, bare))
    print(f"{total:7.1f} s in {sum(map(len, counted.values()))} processes of `{command} {preset}`")
    print(f"{least:7.1f} s of a bare Ray with {n_actors} empty actors: {total / least:.2f} times as much")


if __name__ == "__main__":
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    main()
