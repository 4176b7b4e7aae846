"""Connect to a Ray cluster, or start one on this machine."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import ray

from kohaku_ray.config.schema import ClusterConfig
from kohaku_ray.errors import ConfigError
from kohaku_ray.pages.terminal import say as say
from kohaku_ray.run.demand import Demand, check_demand, cluster_address, local_cpus

NAMESPACE = "kohaku_ray"
"""Ray namespace of every named actor."""

ANSWERS_S = 10.0
"""Longest time to find out whether a Ray cluster answers at an address."""

_IDLE_CPUS = 0.0001
"""The smallest amount that Ray counts."""

_MOST_IDLE = 1000
"""More than a job's actors without CPUs."""


@contextmanager
def connected(cluster: ClusterConfig) -> Iterator[bool]:
    """Join the configured cluster, or start a local one and end it afterwards.

    Yields:
        Whether the cluster ends with the block, so that nothing in it need be ended before.

    Raises:
        ConfigError: The address cannot be reached.
    """
    if ray.is_initialized():
        yield False
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
            "address": "local",  # not a cluster that another program has started on this machine
            "num_cpus": local_cpus(cluster),
            "object_store_memory": int(cluster.object_store_gib * 2**30),
            "include_dashboard": False,
        }
    else:
        _check_answers(address)
        settings["address"] = address
    try:
        with _without_log_level_line():
            ray.init(**settings)
    except ConnectionError as error:
        raise _no_cluster(str(address), str(error)) from None
    try:
        yield address is None
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Check in seconds that a host and port are a Ray cluster's: Ray itself would wait for minutes.

    Raises:
        ConfigError: Nothing answers, or another program has the port.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    import grpc

    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWERS_S)
        except grpc.FutureTimeoutError:
            raise ConfigError(
                f"cluster.address is {address!r} but another program than Ray has that port: give the port that "
                "`ray start --head` printed (6379 by default), or leave cluster.address out to start a local one"
            ) from None


def _no_cluster(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"cluster.address is {address!r} and no Ray cluster answers there ({why}): start one with `ray start --head`, "
        "or leave cluster.address out to start a local one"
    )


def idle_cpus() -> float:
    """Return the CPUs that an actor or task asks for which needs none of its own.

    None; or so few that they do not count, where a node has no CPUs, as a head often: Ray would place it there too. A
    soft node affinity does not hold without CPUs (seen with Ray 2.60), and a hard one ends with its node.
    """
    bare = any(node["Alive"] and not node["Resources"].get("CPU") for node in ray.nodes())
    return _IDLE_CPUS if bare else 0.0


def check_cluster(demand: Demand, cluster: ClusterConfig) -> None:
    """Compare a job's demand with the connected cluster.

    Raises:
        ConfigError: The cluster is too small; the message names both numbers.
    """
    idle = _MOST_IDLE * idle_cpus()
    check_demand(replace(demand, cpus=demand.cpus + idle), ray.cluster_resources(), autoscaling=cluster.autoscaling)


@contextmanager
def _without_log_level_line() -> Iterator[None]:
    """Hide the line in which Ray reports RAY_BACKEND_LOG_LEVEL; print everything else."""
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
