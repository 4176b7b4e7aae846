"""What Serve asks of a cluster with GPUs that nobody has, for replicas of vLLM (a program, given a
model; prints one JSON object).

Everything is as in a job but the engine: a replica that would start one is up at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from kohaku_ray.config.sections import ClusterConfig
from kohaku_ray.engine.cluster import check_cluster
from kohaku_ray.engine.serving import applications, vllm
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.run.checks.demand import replicas_demand

MODEL = sys.argv[1]
STORE = 100 * 2**20
ON_REPLICAS = {"replica_node": 0.001}


class Idle:
    """A replica without an engine."""

    async def __init__(self, llm_config: Any, deployment: Any) -> None:
        self.llm_config = llm_config

    async def check_health(self) -> None:
        return

    async def worker_gpus(self) -> float:
        """GPUs that the engine's worker would ask of its bundle: vLLM reads it in the engine's process, a child."""
        code = "import vllm.envs; print(vllm.envs.VLLM_RAY_PER_WORKER_GPUS)"
        return float(subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1])

    async def __del__(self) -> None:
        return


def idle_engines() -> None:
    """Replace both kinds of replicas by ones without an engine."""
    vllm.bind_vllm("first", VllmConfig(model="m"))  # a driver that imports vLLM by this says nothing of Triton
    from kohaku_ray.engine.serving import vllm_replica

    class IdleReplica(Idle, vllm_replica.VllmReplica):
        pass

    class IdleGang(Idle, vllm_replica.GangReplica):
        pass

    vllm_replica.VllmReplica, vllm_replica.GangReplica = IdleReplica, IdleGang  # type: ignore[misc]


def asked(name: str, nodes: dict[str, str], **settings: Any) -> dict[str, Any]:
    """Start a deployment: the placement group that Serve made for it."""
    deployment = VllmConfig(model=MODEL, resources=ON_REPLICAS, start_timeout_s=120, **settings)
    check_cluster(replicas_demand({name: deployment}), ClusterConfig())
    with applications.serving({name: deployment}, release=False) as running:
        application = running[name]
    [group] = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    figures = {
        "strategy": group["strategy"],
        "bundles": [group["bundles"][index] for index in sorted(group["bundles"])],
        "nodes": sorted({nodes[node] for node in group["bundles_to_node_id"].values()}),
        "n_up": applications.replicas_up([application]),
        "worker_gpus": serve.get_app_handle(application).worker_gpus.remote().result(),
    }
    serve.delete(application)
    return figures


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    names = {cluster.head_node.node_id: "head"}
    for name, resources in (("encoders", {}), ("replicas a", {"replica_node": 1}), ("replicas b", {"replica_node": 1})):
        node = cluster.add_node(num_cpus=3, num_gpus=4, resources=resources, object_store_memory=STORE)
        names[node.node_id] = name
    ray.init(address=cluster.address, namespace="kohaku_ray", log_to_driver=False)
    idle_engines()
    results: dict[str, Any] = {
        "tensor": asked("tensor", names, tensor_parallel=4),
        "pipeline": asked("pipeline", names, tensor_parallel=4, pipeline_parallel=2),
        "data": asked("data", names, tensor_parallel=2, data_parallel=2),
        "share": asked("share", names, gpus=0.25),
    }
    for key, settings in (("unknown", {"engine_kwargs": {"swap_space": 4}}), ("refused", {"tensor_parallel": 6})):
        try:
            asked("big", names, **settings)
        except ConfigError as error:
            results[key] = str(error)
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
