"""Where a job's coordinators stand: on the worker group that `cluster.resources` names, not on nodes that may go."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from kit import own_ray

SCRIPT = """
import json, os, sys
import ray
from ray.cluster_utils import Cluster
from kohaku_ray.config import load_config
from kohaku_ray.engine.session import Session

store = 100 * 2**20
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": store})
spot = cluster.add_node(num_cpus=2, object_store_memory=store)
cpu = cluster.add_node(num_cpus=2, resources={"cpu_node": 1}, object_store_memory=store)
ray.init(address=cluster.address, namespace="kohaku_ray", log_to_driver=False, logging_level="ERROR")
names = {spot.node_id: "spot", cpu.node_id: "cpu"}
found, before = [], set()
for at, own in enumerate(([], ["cluster.resources={cpu_node: 0.001}"])):
    config = load_config("demo", [f"ledger.path={sys.argv[1]}/{at}", *own])
    with Session(config.cluster) as session:
        session.open_ledger(config.ledger, 4)
        shards = {actor: state["Address"]["NodeID"] for actor, state in ray._private.state.actors().items()
                  if state["State"] == "ALIVE" and state["ActorClassName"] == "LedgerShard" and actor not in before}
        before |= shards.keys()
        found.append(sorted(names.get(node, "head") for node in shards.values()))
print(json.dumps(found), flush=True)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_the_ledger_stands_on_the_group_that_the_configuration_names(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=own_ray.environment())
    assert done.returncode == 0, done.stderr[-3000:]
    by_default, by_group = json.loads(done.stdout.splitlines()[-1])
    assert len(by_default) == len(by_group) == 4
    assert "spot" in by_default, "the nodes of this test tell nothing"
    assert set(by_group) == {"cpu"}
