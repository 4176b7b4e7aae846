"""A Ray cluster of a head without CPUs and three nodes on this machine, whose nodes die on command (a program).

    python three_nodes.py DIRECTORY SAMPLE_INDEX

Prints one JSON object: what was killed, what was asked, and where actors were.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import ray
from fake_openai import Action, FakeOpenAI
from ray.cluster_utils import Cluster

ANSWER_VICTIMS = ("Member", "LedgerShard", "Retriever", "ServeReplica", "Member")
INDEX_VICTIMS = ("MapWorker",)
NODE = {"num_cpus": 3, "object_store_memory": 150 * 2**20}


def nodes_of(name: str) -> list[str]:
    """Nodes that hold a living actor whose class has this in its name."""
    found = []
    for actor in ray._private.state.actors().values():
        if name in str(actor.get("ActorClassName", actor)) and actor["State"] == "ALIVE":
            found.append(actor["Address"]["NodeID"])
    return found


class Killer:
    """Says at which model calls the node of an actor is to die, and kills it: from the main thread, as Ray asks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.killed = cluster, []
        self.plan: dict[int, str] = {}
        self.due: list[str] = []
        self.n = 0
        self.lock = threading.Lock()

    def script(self, index, body):
        with self.lock:
            if self.n in self.plan:
                self.due.append(self.plan.pop(self.n))
            self.n += 1
        return Action(delay_s=0.1)

    def try_to_kill(self) -> None:
        held = set(nodes_of(self.due[0])) if self.due else set()
        chosen = [node for node in self.cluster.worker_nodes if node.node_id in held]
        if chosen:
            self.cluster.add_node(**NODE)
            self.cluster.remove_node(chosen[0], allow_graceful=False)
            self.killed.append(self.due.pop(0))


def job(killer: Killer, *arguments: str, **settings: object) -> str:
    """Run a command of ours on the cluster, killing nodes as they are due; its output if it succeeded."""
    cluster = killer.cluster
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "kohaku_ray.cli",
        *arguments,
        *flags,
        "--set",
        f"cluster.address={cluster.address}",
    ]
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:
                killer.try_to_kill()
                time.sleep(0.05)
        output.seek(0)
        said = output.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode} after {killer.killed}:\n{said}")
    return said


def main(home: Path, sample_index: str) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 150 * 2**20})
    for _ in range(3):
        cluster.add_node(**NODE)
    ray.init(address=cluster.address, namespace="kohaku_ray", logging_level="ERROR", log_to_driver=False)
    killer, found = Killer(cluster), {}
    with FakeOpenAI(killer.script) as server:
        head = cluster.head_node.node_id
        deployment = {"kind": "openai", "base_url": server.base_url, "model": "fake", "api_key_env": None}
        common = {
            "index.path": sample_index,
            "deployments.fake": json.dumps(deployment),
            "roles.answer.model": "fake",
            "questions.limit": 24,
            "ensemble.members": 3,
            "cluster.block_size": 2,
            "cluster.blocks_in_flight": 1,
        }
        job(killer, "answer", "demo", **common, **{"run": home / "whole", "ledger.path": home / "whole-ledger"})
        n_calls = server.n_requests
        actors = ray._private.state.actors().values()
        on_head = [actor["ActorClassName"] for actor in actors if actor["Address"]["NodeID"] == head]
        found["on_head"] = sorted(set(on_head))
        points = sorted(random.Random(20261123).sample(range(3, n_calls - 6), len(ANSWER_VICTIMS)))
        killer.plan = {killer.n + point: victim for point, victim in zip(points, ANSWER_VICTIMS, strict=True)}
        first = server.n_requests
        began = time.monotonic()
        job(killer, "answer", "demo", **common, **{"run": home / "killed", "ledger.path": home / "killed-ledger"})
        asked = Counter(json.dumps([r.body["messages"], r.body["seed"]]) for r in server.log[first:])
        found |= {"calls": n_calls, "distinct": len(asked), "asked": sum(asked.values()), "killed": list(killer.killed)}
        found["killed_run_s"] = round(time.monotonic() - began, 1)
    killer.due = list(INDEX_VICTIMS)
    found["index"] = job(killer, "index", "demo", **{"index.path": home / "index", "index.encoders": 2})
    found["killed"] = list(killer.killed)
    print(json.dumps(found))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
