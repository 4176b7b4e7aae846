"""Where a job's coordinators stand: on the worker group that `cluster.resources` names, not on nodes that may go."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from kit import own_ray

SCRIPT = """
import json, sys, time
import ray
from ray.cluster_utils import Cluster
from kohaku_ray.config import load_config
from kohaku_ray.engine.actors.pool import ActorPool
from kohaku_ray.engine.session import Session

store = 100 * 2**20
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": store})
spot = cluster.add_node(num_cpus=2, object_store_memory=store)
cpu = cluster.add_node(num_cpus=2, resources={"cpu_node": 1}, object_store_memory=store)
ray.init(address=cluster.address, namespace="kohaku_ray", log_to_driver=False, logging_level="ERROR")
names = {spot.node_id: "spot", cpu.node_id: "cpu"}
classes = ("LedgerShard", "MemberProcess", "Voter")

def places():
    return {(state["ActorClassName"], actor): names.get(state["Address"]["NodeID"], "head")
            for actor, state in ray._private.state.actors().items()
            if state["State"] == "ALIVE" and state["ActorClassName"] in classes}

folder, index = sys.argv[1:]
own = [f"index.path={index}", "deployments.extractive={kind: extractive, replicas: 64}", "cluster.retriever.cpus=0"]
own += ["cluster.retriever.replicas=1"]
found, before = [], set()
for at, more in enumerate(([], ["cluster.resources={cpu_node: 0.001}"])):
    config = load_config("demo", [f"ledger.path={folder}/{at}", *own, *more])
    with Session(config.cluster) as session:
        session.open_ledger(config.ledger, 4, config.used_deployments.values())
        pool = ActorPool(config, 4)
        pool.wait_until_ready()
        until = time.monotonic() + 120
        while len(new := {key: node for key, node in places().items() if key not in before}) < 8 + len(pool.voters):
            assert time.monotonic() < until, new
            time.sleep(0.5)
        before |= new.keys()
        found.append({name: sorted(node for (kind, _), node in new.items() if kind == name) for name in classes})
        pool.close()
print(json.dumps(found), flush=True)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_coordinators_stand_on_the_group_that_the_configuration_names(tmp_path, sample_here):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), sample_here]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=own_ray.environment())
    assert done.returncode == 0, done.stderr[-3000:]
    by_default, by_group = json.loads(done.stdout.splitlines()[-1])
    assert all("spot" in nodes for nodes in by_default.values()), "the nodes of this test tell nothing"
    assert (set(by_group["LedgerShard"]), set(by_group["MemberProcess"])) == ({"cpu"}, {"cpu"})
    assert by_group["Voter"].count("head") == 1, "the first writes outputs beside the driver"
    assert set(by_group["Voter"]) == {"cpu", "head"}
