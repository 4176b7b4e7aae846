"""``ray drain-node`` as docs/cluster.md has it: nothing starts on the node, replicas move, and it leaves when idle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import own_ray

SCRIPT = """
import json, os, subprocess, sys, time
import ray
from ray import serve
from ray.cluster_utils import Cluster
from kohaku_ray.engine.serving.applications import build

store = 100 * 2**20
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": store})
going = cluster.add_node(num_cpus=2, resources={"going": 1}, object_store_memory=store)
ray.init(address=cluster.address, namespace="kohaku_ray", log_to_driver=False, logging_level="ERROR")

def is_alive():
    return any(node["NodeID"] == going.node_id and node["Alive"] for node in ray.nodes())

def wait(until, seconds=120):
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.2)
    return until()

def replica_nodes():
    return {state["Address"]["NodeID"] for state in ray._private.state.actors().values()
            if state["State"] == "ALIVE" and "Replica" in state["ActorClassName"]}

@ray.remote(num_cpus=0.5)
class Working:
    def node(self):
        return ray.get_runtime_context().get_node_id()

@ray.remote(num_cpus=0.01, scheduling_strategy="SPREAD")
def node_of_task():
    time.sleep(0.05)
    return ray.get_runtime_context().get_node_id()

def shares():
    nodes = ray.get([node_of_task.remote() for _ in range(30)])
    return nodes.count(going.node_id)

found = {}
serve.start(proxy_location="Disabled")
serve.run(build({"config": "demo", "deployment": "extractive"}), name="models", route_prefix=None)
working = Working.options(resources={"going": 0.1}).remote()
assert ray.get(working.node.remote()) == going.node_id and replica_nodes() == {going.node_id}
other = cluster.add_node(num_cpus=2, object_store_memory=store)
cluster.wait_for_nodes()
assert wait(lambda: shares() > 0)
status = subprocess.run(["ray", "status", "--address", cluster.address], capture_output=True, text=True, check=True)
found["named"] = f"node_{going.node_id}" in status.stdout
drain = sys.argv[1].replace("--node-id ID", f"--node-id {going.node_id}") + f" --address {cluster.address}"
subprocess.run(drain, shell=True, check=True)
found["moved"] = wait(lambda: replica_nodes() == {other.node_id})
found["tasks"] = shares()
found["goes_on"] = ray.get(working.node.remote()) == going.node_id and is_alive()
ray.kill(working)
found["left"] = wait(lambda: not is_alive())
serve.shutdown()
ray.shutdown()
cluster.shutdown()
print(json.dumps(found), flush=True)
"""

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


@pytest.mark.slow
def test_a_node_is_drained_as_the_page_says():
    [line] = re.findall(r"^ray drain-node .*", PAGE.read_text(), re.MULTILINE)
    env = own_ray.environment(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    command = [sys.executable, "-c", SCRIPT, line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    values = json.loads(done.stdout.splitlines()[-1])
    assert values == {"named": True, "moved": True, "tasks": 0, "goes_on": True, "left": True}
