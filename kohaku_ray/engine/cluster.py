"""Connect to a Ray cluster or start one on this machine; check that every node sees a job's files."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray._private import services
from ray._private.state import actors
from ray.exceptions import AuthenticationError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kohaku_ray.checks.demand import Demand, check_demand, cluster_address, local_cpus
from kohaku_ray.config.sections import ClusterConfig
from kohaku_ray.engine import NAMESPACE
from kohaku_ray.engine.local_ray import (
    compile_agents,
    interruption_said,
    on_loopback,
    own_token,
    private_directory,
    raylet_reason,
)
from kohaku_ray.engine.worker_groups import read_most_resources, read_worker_groups
from kohaku_ray.errors import ConfigError, KohakuRayError, UnreachableError
from kohaku_ray.index.cuda import unusable_gpus
from kohaku_ray.pages.terminal import Interrupted, is_interrupted, print_interrupted, signals_interrupt
from kohaku_ray.pages.terminal import print_progress as print_progress
from kohaku_ray.records import digest_text
from kohaku_ray.settings import check_working_directory
from kohaku_ray.store.storage import Directory, join_path, read_file, without_options

ANSWERS_S = 10.0
"""Longest time to find out whether a Ray cluster answers at an address."""

_IDLE_CPUS = 0.0001
"""The smallest amount that Ray counts."""

_MOST_IDLE = 1000
"""More than a job's actors without CPUs."""


@contextmanager
def connect(cluster: ClusterConfig) -> Iterator[bool]:
    """Join the configured cluster, or start a local one and end it afterwards.

    Yields:
        Whether the cluster ends with the block, so that nothing in it need be ended before.

    Raises:
        ConfigError: The address cannot be reached.
    """
    if ray.is_initialized():
        yield False
        return
    check_working_directory()
    # `uv run` would make every worker rebuild its environment; workers share ours.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Ten times a second every replica, and whatever calls it, would wake to pass Serve's metrics on, which Ray exports
    # every ten seconds.
    os.environ.setdefault("RAY_SERVE_METRICS_EXPORT_INTERVAL_MS", "5000")
    # Of calls to actors that a job ends, Ray would say that they are tried again.
    os.environ.setdefault("RAY_enable_output_error_log_if_still_retry", "0")
    address = cluster_address(cluster)
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"cluster.address is {address!r}, a Ray client: a run is written beside its driver, so submit it with "
            "`ray job submit -- kohaku-ray answer CONFIG`, or give the address of the cluster itself"
        )
    settings: dict[str, object] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    with ExitStack() as until_end:
        if address is None:
            settings |= {
                "address": "local",  # not a cluster that another program has started on this machine
                "num_cpus": local_cpus(cluster),
                "object_store_memory": int(cluster.object_store_gib * 2**30),
                "include_dashboard": False,
                # Ray looks 10 times, a second apart, whether its object store is up; at the first look it often is not.
                # A GCS that a signal or the kernel ended does not come back here: else it is waited for a minute.
                "_system_config": {
                    "gcs_rpc_server_reconnect_timeout_s": 5,
                    "raylet_client_connect_timeout_milliseconds": 50,
                    "raylet_client_num_connect_attempts": 200,
                },
            }
            if unusable := unusable_gpus():  # Ray counts what the driver has, whatever torch can use
                print_progress(f"ray     {unusable}; they are left out")
                settings["num_gpus"] = 0
            compile_agents()
            # A busy machine may need a second start.
            if not _start(settings, until_end, is_last=False):
                _start(settings, until_end, is_last=True)
        else:
            try:
                _check_answers(services.canonicalize_bootstrap_address(address) if address == "auto" else address)
                ray.init(**settings, address=address)
            except ConnectionError as error:
                raise _no_cluster(address, str(error)) from None
        until_end.callback(_shut_down)
        until_end.enter_context(signals_interrupt())  # again, since ray.init has set a handler of its own
        if address is None:
            until_end.enter_context(interruption_said())
        yield address is None


def _shut_down() -> None:
    """Shut Ray down, and say before that a signal has come: Ray ends a driver without a word whose raylet is gone."""
    if is_interrupted():
        print_interrupted()
    ray.shutdown()


def _start(settings: Mapping[str, Any], until_end: ExitStack, *, is_last: bool) -> bool:
    """Start a local Ray until the end; return whether it did.

    Raises:
        KohakuRayError: It did not, and ``is_last``.
    """
    with ExitStack() as attempt:
        directory = attempt.enter_context(private_directory())
        attempt.enter_context(own_token())
        attempt.enter_context(on_loopback())
        try:
            ray.init(**settings, _temp_dir=directory)
        except SystemExit:  # by Ray's own handler of SIGTERM, which it sets as it starts
            raise Interrupted from None
        except Exception as error:
            ray.shutdown()
            why = f"Ray did not start on this machine ({type(error).__name__}: {error})"
            reason = raylet_reason(directory)
            raylet = reason and f"; the raylet's last reason: {reason}"
            if is_last:
                logs = f"{directory}/session_latest/logs"
                raise KohakuRayError(f"{why}{raylet}, in two tries: see the logs of the second in {logs}") from error
            print_progress(f"ray     {why}: starting it once more{raylet}")
            return False
        until_end.enter_context(attempt.pop_all())
    return True


def _check_answers(address: str) -> None:
    """Check in seconds that a host and port are a Ray cluster's that takes our token: Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    import grpc  # a quarter of a second
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None
    with init_grpc_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWERS_S)
            NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=ANSWERS_S)
        except grpc.FutureTimeoutError:
            raise ConfigError(
                f"cluster.address is {address!r} but another program than Ray has that port: give the port that "
                "`ray start --head` printed (6379 by default), or leave cluster.address out to start a local one"
            ) from None
        except AuthenticationError:  # before anything is sent
            raise _refused_token(address) from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise _refused_token(address) from None


def _refused_token(address: str) -> ConfigError:
    mode, token_path = os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = token_path or os.path.expanduser("~/.ray/auth_token")
    if mode != "token":
        sent = f"RAY_AUTH_MODE is {mode or 'not set'} here, so none was sent"
    elif os.environ.get("RAY_AUTH_TOKEN"):
        sent = "the one in RAY_AUTH_TOKEN is another"
    else:
        sent = f"the one in {file} is another" if os.path.isfile(file) else f"there is none in {file}"
    return ConfigError(
        f"cluster.address is {address!r}, whose Ray asks for a token, and {sent}: "
        "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=… (`ray get-auth-token` where the cluster was started prints it)"
    )


def _no_cluster(address: str, why: str) -> UnreachableError:
    return UnreachableError(
        f"cluster.address is {address!r} and no Ray cluster answers there ({why}): start one with `ray start --head`, "
        "or leave cluster.address out to start a local one"
    )


def idle_cpus() -> float:
    """Return ``num_cpus`` for actors and tasks that need no CPU: 0, or 0.0001 if some node has no CPUs.

    Ray would place them all on such a node, often the head. A soft node affinity does not hold without CPUs (seen with
    Ray 2.60), and a hard one ends with its node.
    """
    bare = any(node["Alive"] and not node["Resources"].get("CPU") for node in ray.nodes())
    return _IDLE_CPUS if bare else 0.0


def check_cluster(demand: Demand, cluster: ClusterConfig) -> None:
    """Raise a ConfigError that names both numbers if the connected cluster is smaller than a job's demand."""
    demand = replace(demand, cpus=demand.cpus + _MOST_IDLE * idle_cpus())
    groups = read_worker_groups() if cluster.autoscaling else None
    check_demand(
        demand, ray.cluster_resources(), nodes=node_resources(), autoscaling=cluster.autoscaling, groups=groups
    )


def most_resources(cluster: ClusterConfig) -> dict[str, float] | None:
    """Return the resources that retrievers and replicas may have; None: the cluster grows, and nothing tells how far.

    Those of one that grows are of all nodes that there may be. Actors that need next to no CPU have theirs beside them.
    """
    resources = read_most_resources() if cluster.autoscaling else ray.cluster_resources()
    if resources is None:
        return None
    return {**resources, "CPU": resources.get("CPU", 0.0) - _MOST_IDLE * idle_cpus()}


def node_resources() -> list[dict[str, float]]:
    """Return the resources of every living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def find_node(actor: Any) -> str:
    """Name the node that an actor starts on, or asks for room; empty: none is known."""
    node_id = actors(actor._actor_id.hex()).get("Address", {}).get("NodeID", "")
    return next((f"node {node['NodeManagerAddress']}" for node in ray.nodes() if node["NodeID"] == node_id), "")


ANSWER_S = 60.0
"""Longest time in which a node reads a few files: it starts a process for it."""


def check_nodes(read: Mapping[str, str], written: Mapping[str, str]) -> None:
    """Check that each node but this one reads the same files under the same paths; later nodes are not checked.

    Args:
        read: Files that workers read, by configuration key.
        written: Directories that workers write to, by configuration key; a file is put there and deleted again.

    Raises:
        ConfigError: A node does not see one of them; the text names both.
        DataError: A file cannot be read here, or a directory cannot be written.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not nodes:
        return
    task = ray.remote(num_cpus=0, max_retries=0)(find_unseen)
    with ExitStack() as probes:
        files = {**read, **{key: probes.enter_context(_probe(path)) for key, path in written.items()}}
        wanted = {key: (file, digest_text(read_file(file))) for key, file in files.items()}
        asked = {}
        for node in nodes:
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[task.options(scheduling_strategy=on_node).remote(wanted)] = node
        done, waiting = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
        for node in (asked[ref] for ref in waiting):
            print_progress(
                f"cluster node {node['NodeManagerAddress']} ({node['NodeID'][:8]}) has not answered in {ANSWER_S:g} s: "
                f"whether it sees {' and '.join(wanted)} is not known"
            )
        unseen_by = {}
        for ref in done:
            with suppress(RayError):  # the node left meanwhile: nothing will run there
                unseen_by[ref] = ray.get(ref)
    for ref, missing in unseen_by.items():
        if missing is not None:
            (key, reason), node = missing, asked[ref]
            path = {**read, **written}[key]
            raise ConfigError(
                f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]}) does not see {key} {without_options(path)}: "
                f"{reason}: mount the same storage on every node, with the same rights and environment, or set {key} "
                "to a place that all nodes share, such as s3://bucket/…"
            )


@contextmanager
def _probe(path: str) -> Iterator[str]:
    """Keep a file of unique content in a directory while the block runs."""
    directory, name = Directory(path), f"{uuid.uuid4().hex}.probe"
    directory.write(name, name.encode())
    try:
        yield join_path(path, name)
    finally:
        directory.remove(name)


def find_unseen(wanted: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """Return the first key whose file is not seen on this node, with the reason; None: all are.

    ``wanted`` gives file and digest of its content by key.
    """
    for key, (file, content) in wanted.items():
        try:
            if digest_text(read_file(file)) != content:
                return key, "it is another directory there"
        except FileNotFoundError:
            return key, "there is no such file there"
        except (OSError, KohakuRayError) as error:
            return key, str(error)
    return None
