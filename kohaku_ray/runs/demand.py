"""What a job holds of a cluster, and whether a cluster has it."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kohaku_ray.config import Config
from kohaku_ray.config.schema import ClusterConfig, CrossEncoderConfig, Deployment, ExtractiveConfig, VllmConfig
from kohaku_ray.errors import ConfigError


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
    elif isinstance(deployment, CrossEncoderConfig):
        each["CPU"], each["GPU"] = 1, deployment.gpus
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
    needed = {"CPU": demand.cpus, "GPU": demand.gpus, **demand.custom}
    if short := shortage(demand.reason, needed, resources):
        raise ConfigError(f"{short}: lower cluster.retrievers, index.encoders or deployments.*.replicas, or add nodes")


def shortage(
    who: str, needed: Mapping[str, float], there: Mapping[str, float], free: Mapping[str, float] | None = None
) -> str:
    """Say what a cluster lacks of what somebody needs; empty where it has all.

    Args:
        who: Who needs it, in the plural.
        needed: Amount by kind of resource.
        there: What the cluster has.
        free: What of it is free; with it, all that is needed is named, lacking or not.
    """
    return ", ".join(
        f"the cluster has {there.get(kind, 0.0):g} {kind}s"
        + (f", {free.get(kind, 0.0):g} of them free," if free is not None else "")
        + f" but {who} need {amount:g}"
        for kind, amount in needed.items()
        if amount > there.get(kind, 0.0) or (free is not None and amount)
    )
