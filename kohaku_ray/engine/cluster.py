"""Connect to Ray, and refuse what the cluster cannot hold before anything starts."""

from __future__ import annotations

import glob
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import ray

from kohaku_ray.config import Config
from kohaku_ray.config.schema import ClusterConfig, Deployment, ExtractiveConfig, VllmConfig
from kohaku_ray.errors import ConfigError

NAMESPACE = "kohaku_ray"
"""Ray namespace of every named actor."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job holds for its whole run.

    Attributes:
        cpus: CPUs of its actors and replicas.
        gpus: GPUs of the same.
        reason: What they are for, for the error message.
        custom: Custom Ray resources of the same.
    """

    cpus: float
    gpus: float
    reason: str
    custom: Mapping[str, float] = field(default_factory=dict)


@contextmanager
def connected(cluster: ClusterConfig) -> Iterator[None]:
    """Join the configured cluster, or start a local one and end it afterwards.

    Raises:
        ConfigError: The address cannot be reached.
    """
    if ray.is_initialized():
        yield
        return
    # `uv run` would make every worker rebuild its environment; workers share ours.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = cluster_address(cluster)
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"cluster.address is {address!r}, a Ray client: a run is written beside its driver, so submit it with "
            "`ray job submit -- python jobs/answer.py CONFIG`, or give the address of the cluster itself"
        )
    settings: dict[str, object] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        settings |= {
            "num_cpus": local_cpus(cluster),
            "object_store_memory": int(cluster.object_store_gib * 2**30),
            "include_dashboard": False,
        }
    else:
        settings["address"] = address
    try:
        with _one_line_less():
            ray.init(**settings)
    except ConnectionError as error:
        raise ConfigError(
            f"cluster.address is {address!r} and no Ray cluster answers there ({error}): start one with "
            "`ray start --head`, or leave cluster.address out to start a local one"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _one_line_less() -> Iterator[None]:
    """Keep Ray's note that it found RAY_BACKEND_LOG_LEVEL off the terminal, and nothing else."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in held.read().decode(errors="replace").splitlines():
                if "RAY_BACKEND_LOG_LEVEL" not in line:
                    say(line)


def cluster_address(cluster: ClusterConfig) -> str | None:
    """Address of the cluster to be joined; None: a local one is started."""
    return cluster.address or os.environ.get("RAY_ADDRESS")


def local_cpus(cluster: ClusterConfig) -> int:
    """CPUs of a local cluster: at least two, since an actor that waits must not keep the next from starting."""
    return cluster.num_cpus or max(2, os.cpu_count() or 2)


def local_gpus() -> int:
    """GPUs that a local cluster would find, known without loading a driver."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def answer_demand(config: Config) -> Demand:
    """Add up what the answer job holds: retrievers and the replicas of every deployment it uses."""
    total = Counter[str]({"CPU": config.cluster.retrievers, "GPU": 0})
    parts = [f"{config.cluster.retrievers} retriever(s)"]
    for name, deployment in config.used_deployments.items():
        if deployment.application is None:
            parts.append(f"{deployment.replicas} replica(s) of {name}")
            total.update(deployment_demand(deployment))
    cpus, gpus = total.pop("CPU"), total.pop("GPU")
    return Demand(cpus, gpus, " and ".join(parts), total)


def deployment_demand(deployment: Deployment) -> dict[str, float]:
    """Add up what the replicas of a deployment hold, by kind of resource."""
    each: dict[str, float] = {"CPU": 0, "GPU": 0}
    if isinstance(deployment, ExtractiveConfig):
        each["CPU"] = 1
    elif isinstance(deployment, VllmConfig):
        # Serve's own actor takes a CPU beside the engine's.
        each["CPU"] = 1 + (deployment.cpus or 0)
        each["GPU"] = 0 if deployment.cpus else deployment.tensor_parallel
        if deployment.accelerator:
            each[f"accelerator_type:{deployment.accelerator}"] = 0.001 * deployment.tensor_parallel
    each |= deployment.resources
    return {kind: amount * deployment.replicas for kind, amount in each.items()}


def index_demand(config: Config, n_encoders: int, gpu: bool) -> Demand:
    """Add up what the index job holds: its encoders, and a CPU for parsing beside them."""
    custom = {kind: amount * n_encoders for kind, amount in config.index.resources.items()}
    return Demand(1 if gpu else n_encoders, n_encoders if gpu else 0, f"{n_encoders} encoder(s)", custom)


def check_demand(demand: Demand, resources: Mapping[str, float], *, autoscaling: bool = False) -> None:
    """Compare demand and cluster.

    Raises:
        ConfigError: The cluster is too small; the message names both numbers.
    """
    if autoscaling:
        return
    for kind, needed in {"CPU": demand.cpus, "GPU": demand.gpus, **demand.custom}.items():
        there = resources.get(kind, 0.0)
        if needed > there:
            raise ConfigError(
                f"the cluster has {there:g} {kind}s but {demand.reason} need {needed:g}: lower cluster.retrievers, "
                f"index.encoders or deployments.*.replicas, or add nodes"
            )


def say(text: str) -> None:
    """Print a progress line where it does not mix with results."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
