"""A Ray cluster of a head without CPUs and three nodes on this machine, whose nodes die on command (a program).

    python three_nodes.py DIRECTORY ENCODER [PART ...]

Prints one JSON object per line: ``{PART: what it found}``. The parts, all of them by default, share the cluster.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import yaml
from kit.answers import deployment, flags
from kit.fake_openai import Action, FakeOpenAI
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kohaku_ray.store.segments import SegmentStore

ANSWER_VICTIMS = ("Member", "LedgerShard", "Retriever", "ServeReplica")
SWEEP_VICTIMS = ("Retriever", "ServeReplica", "Member", "LedgerShard")
INDEX_VICTIMS = ("MapWorker", "reduce_shard")
N_MOMENTS = 20
"""Of a start and of a race, at each of which the driver is killed."""
N_QUESTIONS = 16
SEED = 20261123
STORE = 150 * 2**20
NODE = {"num_cpus": 3, "object_store_memory": STORE}
LATE_S = 0.4
"""A node of the index job dies at most so long after what it holds was first seen there."""


def nodes_of(name: str) -> set[str]:
    """Nodes that hold a living actor whose class has this in its name."""
    node_ids = set()
    for actor in ray._private.state.actors().values():
        if name in str(actor.get("ActorClassName", actor)) and actor["State"] == "ALIVE":
            node_ids.add(actor["Address"]["NodeID"])
    return node_ids


def nodes_at(cluster: Cluster, title: str) -> set[str]:
    """Nodes one of whose workers runs this now: Ray names the process of a worker by its task or actor."""
    raylets = {node.all_processes["raylet"][0].process.pid: node.node_id for node in cluster.worker_nodes}
    node_ids = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{title}"):
                node_ids |= {raylets[parent.pid] for parent in process.parents() if parent.pid in raylets}
    return node_ids


def tasks() -> list[tuple[str, str]]:
    """Node and name of every task of all jobs that a node has run, from about a second ago on."""
    return [
        (event.state_updates.node_id.hex(), event.task_info.func_or_class_name)
        for event in ray._private.state.state._get_all_task_events()
        if event.state_updates.node_id
    ]


class Killer:
    """Says at which model calls the node of an actor is to die, and kills it: from the main thread, as Ray asks."""

    server: FakeOpenAI
    ledger: str | None = None

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.killed = cluster, []
        self.plan: dict[int, str] = {}
        self.due: list[str] = []
        self.n = 0
        self.exposed = 0
        self.added: list[str] = []
        self.held: set[str] = set()
        self.lock = threading.Lock()

    def script(self, index, body):
        with self.lock:
            if self.n in self.plan:
                self.due.append(self.plan.pop(self.n))
            self.n += 1
            # A node needs some seconds to die and another one to come: a run must not end meanwhile.
            return Action(delay_s=1.5 if self.due else 0.1)

    def try_to_kill(self) -> None:
        held = (self.held or nodes_of(self.due[0])) if self.due else set()
        chosen = [node for node in self.cluster.worker_nodes if node.node_id in held]
        if chosen:
            on_disk = len(SegmentStore(self.ledger).load(lambda _: True).entries) if self.ledger else 0
            self.cluster.remove_node(chosen[0], allow_graceful=False)
            self.exposed += len(self.asked()) - on_disk
            self.killed.append(self.due.pop(0))
            self.added.append(self.cluster.add_node(**NODE).node_id)

    def begin(self, ledger: str | None, victims: dict[int, str]) -> None:
        """Forget what was killed before; plan whose nodes die at which of the coming calls."""
        self.killed, self.due, self.held, self.exposed, self.ledger = [], [], set(), 0, ledger
        self.plan = {self.n + point: victim for point, victim in victims.items()}
        self.first = self.server.n_requests

    def asked(self) -> Counter[str]:
        """Count the calls since ``begin``."""
        if self.ledger is None:
            return Counter()
        return Counter(json.dumps([r.body["messages"], r.body["seed"]]) for r in self.server.log[self.first :])

    def kill_driver(self, process: subprocess.Popen[Any]) -> None:
        on_disk = len(SegmentStore(self.ledger).load(lambda _: True).entries)
        process.kill()
        process.wait()
        self.exposed += len(self.asked()) - on_disk
        self.killed.append("driver")

    def found(self) -> dict[str, Any]:
        asked = self.asked()
        facts = {"distinct": len(asked), "repeated": sum(asked.values()) - len(asked), "exposed": self.exposed}
        return facts | {"killed": self.killed}


def job(killer: Killer, *arguments: str, meanwhile: Callable[[], None] | None = None, **settings: object) -> str:
    """Run a command of ours on the cluster, killing nodes as they are due; its output if it succeeded."""
    with tempfile.TemporaryFile("w+") as output:
        command = command_of(killer, *arguments, **settings)
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:
                killer.try_to_kill()
                if meanwhile is not None:
                    meanwhile()
                time.sleep(0.02)
        output.seek(0)
        printed = output.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode} after {killer.killed}:\n{printed}")
    return printed


def command_of(killer: Killer, *arguments: str, **settings: object) -> list[str]:
    """A command of ours on the cluster."""
    command = [sys.executable, "-m", "kohaku_ray", *arguments]
    return command + flags({**settings, "cluster.address": killer.cluster.address})


def kill_drivers(killer: Killer, are_due: list[Callable[[float, int], bool]], command: list[str]) -> None:
    """Start a command once per moment, and kill it when that is due, by the seconds and the calls since."""
    for is_due in are_due:
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            began, first = time.monotonic(), killer.n
            while not is_due(time.monotonic() - began, killer.n - first):
                if process.poll() is not None:
                    output.seek(0)
                    raise RuntimeError(f"ended before it was killed, after {len(killer.killed)}:\n{output.read()}")
                time.sleep(0.02)
            killer.kill_driver(process)


def moments(n_calls: int, victims: tuple[str, ...]) -> dict[int, str]:
    """Draw the calls at which the victims' nodes die, from the fourth to the sixth last."""
    points = sorted(random.Random(SEED).sample(range(3, n_calls - 6), len(victims)))
    return dict(zip(points, victims, strict=True))


PARTS = ["index", "sweep", "sweep_killed", "added", "index_killed", "answer", "start_killed", "race", "race_killed"]
PARTS += ["spilled", "head"]
SHORT = ["index", "index_killed", "answer", "head"]


class Parts:
    """What is tried on the cluster, in this order."""

    def __init__(self, killer: Killer, home: Path, encoder: str) -> None:
        self.killer, self.cluster, self.home, self.encoder = killer, killer.cluster, home, encoder
        self.fake = {"deployments.fake": json.dumps(deployment(killer.server)), "roles.answer.model": "fake"}
        spread = {"cluster.retriever.replicas": 3, "cluster.retriever.cpus": 2}  # one per node of three
        blocks = {"cluster.block_size": 2, "cluster.blocks_in_flight": 1}
        size = {"questions.limit": N_QUESTIONS, "ensemble.members": 3, **blocks}
        self.answering = {"index.path": home / "index", "index.encoder.model": encoder, **size, **spread, **self.fake}
        self.spread = spread

    def sweep(self) -> dict[str, Any]:
        """A sweep on one node."""
        self._one = self._sweep("one", ())
        return self._one

    def sweep_killed(self) -> dict[str, Any]:
        """The sweep on three nodes, while they die."""
        self._on_three()
        return self._sweep("killed", SWEEP_VICTIMS)

    def answer(self) -> dict[str, Any]:
        """A run, and one while nodes die."""
        self._on_three()
        self.killer.begin(str(self.home / "whole-ledger"), {})
        self._answer("whole")
        n_calls = self.killer.found()["distinct"]
        self.killer.begin(str(self.home / "killed-ledger"), moments(n_calls, ANSWER_VICTIMS))
        added = len(self.killer.added)
        self._answer("killed")
        at_work = {node for node, name in tasks() if name.startswith(("Member", "Retriever"))}
        added_at_work = len(at_work.intersection(self.killer.added[added:]))
        return {"calls": n_calls, **self.killer.found(), "added_at_work": added_at_work}

    def start_killed(self) -> dict[str, Any]:
        """The run of ``answer``, whose driver is killed at moments of its start: from nothing to the first call."""
        self._on_three()
        took_s: list[float] = []

        def is_asking(since_s: float, n_calls: int) -> bool:
            took_s[:] = [since_s]
            return n_calls > 0

        # Under names of its own: a ledger's actors stay for a minute, and so do the replies that they hold.
        self.killer.begin(str(self.home / "timed-ledger"), {})
        kill_drivers(self.killer, [is_asking], command_of(self.killer, "answer", "demo", **self._settings_of("timed")))
        self.killer.begin(str(self.home / "started-ledger"), {})
        command = command_of(self.killer, "answer", "demo", **self._settings_of("started"))
        moments_s = [took_s[0] * number / N_MOMENTS for number in range(N_MOMENTS)]
        # At its first call at the latest: on a machine that has become quicker a moment would come after its end.
        kill_drivers(self.killer, [lambda since_s, n, at=at: since_s >= at or n > 0 for at in moments_s], command)
        self._answer("started")
        return self.killer.found()

    def race(self) -> dict[str, Any]:
        """A race to its end."""
        self._on_three()
        self._whole_race = self._race("one", 0)
        return self._whole_race

    def race_killed(self) -> dict[str, Any]:
        """The race, whose driver is killed whenever a twentieth of the calls has come."""
        self._on_three()
        return self._race("killed", self._whole_race["distinct"])

    def added(self) -> dict[str, Any]:
        """A run that waits for a node as large as its retriever, and goes on when there is one."""
        self._on_three()
        new: list[str] = []
        began = time.monotonic()

        def add() -> None:
            waits = any(actor["State"] == "PENDING_CREATION" for actor in ray._private.state.actors().values())
            if not new and waits and time.monotonic() - began > 5:
                new.append(self.cluster.add_node(**NODE | {"num_cpus": 5}).node_id)

        self.killer.begin(str(self.home / "added-ledger"), {})
        large = {"cluster.retriever.replicas": 1, "cluster.retriever.cpus": 4, "cluster.autoscaling": "true"}
        self._answer("added", meanwhile=add, **large)
        at_work = {name for node, name in tasks() if node in new}
        return {**self.killer.found(), "at_work": sorted({name.partition(".")[0] for name in at_work})}

    def index(self) -> dict[str, Any]:
        """The index, on one node."""
        self.killer.begin(None, {})
        self._index("index")
        return {}

    def index_killed(self) -> dict[str, Any]:
        """The index, once per victim while its node dies."""
        self._on_three()
        draw, killed = random.Random(SEED), []
        for number, victim in enumerate(INDEX_VICTIMS):
            self.killer.begin(None, {})
            late_s = draw.uniform(0, LATE_S)
            self._index(f"index{number}", meanwhile=self._when_seen(victim, late_s))
            killed.append(self.killer.killed)
        return {"killed": killed}

    def spilled(self) -> dict[str, Any]:
        """An index of many texts, on nodes with room in their object stores and on nodes with none."""
        self._on_three()
        documents = self.home / "documents"
        documents.mkdir()
        draw = random.Random(SEED)
        words = [line.split() for line in (f"the plant of year {n} used {7 * n} MWh of power." for n in range(400))]
        for number in range(60):
            text = "\n\n".join(" ".join(" ".join(draw.choice(words)) for _ in range(6)) for _ in range(200))
            (documents / f"d{number}.md").write_text(f"# Document {number}\n\n{text}\n")
        self.killer.begin(None, {})
        settings = {"documents.paths": json.dumps([str(documents)]), "documents.metadata": "null"}
        self._index("roomy", **settings)
        before = self._spilled()
        fillers = [self._fill(node.node_id) for node in (*self.cluster.worker_nodes, self.cluster.head_node)]
        try:
            self._index("tight", **settings)
            return {"bytes": self._spilled() - before, "filled": [ray.get(filler.size.remote()) for filler in fillers]}
        finally:
            for filler in fillers:
                ray.kill(filler)

    def head(self) -> dict[str, Any]:
        """What the head held of all parts, though it has no CPU."""
        head = self.cluster.head_node.node_id
        actors = [actor for actor in ray._private.state.actors().values() if actor["Address"]["NodeID"] == head]
        on_head = {name for node, name in tasks() if node == head}
        return {"actors": sorted({actor["ActorClassName"] for actor in actors}), "tasks": sorted(on_head)}

    def _on_three(self) -> None:
        """Replace the one large node by three, once."""
        if len(self.cluster.worker_nodes) == 1:
            [large] = self.cluster.worker_nodes
            for _ in range(3):
                self.cluster.add_node(**NODE)
            self.cluster.remove_node(large)

    def _answer(self, name: str, meanwhile: Callable[[], None] | None = None, **overrides: object) -> None:
        job(self.killer, "answer", "demo", meanwhile=meanwhile, **self._settings_of(name) | overrides)

    def _settings_of(self, name: str) -> dict[str, object]:
        return {**self.answering, "run": self.home / name, "ledger.path": self.home / f"{name}-ledger"}

    def _index(self, name: str, meanwhile: Callable[[], None] | None = None, **overrides: object) -> None:
        settings = {"index.path": self.home / name, "index.encoders": 2, "index.encoder.model": self.encoder}
        job(self.killer, "index", "demo", meanwhile=meanwhile, **settings, **overrides)

    def _when_seen(self, victim: str, late_s: float) -> Callable[[], None]:
        """Make the nodes where the victim is first seen due some time later, whether it has ended or not."""
        seen: list[tuple[float, set[str]]] = []

        def look() -> None:
            if not seen and (nodes := nodes_at(self.cluster, victim)):
                seen.append((time.monotonic() + late_s, nodes))
            if seen and time.monotonic() > seen[0][0] and not self.killer.held:
                self.killer.held = seen[0][1]
                self.killer.due.append(victim)

        return look

    def _sweep(self, name: str, victims: tuple[str, ...]) -> dict[str, Any]:
        """Make the sweep, under equal paths each time, and move its outputs away."""
        common = {"questions.limit": 8, "ensemble.members": 2}
        axes = {"kohaku.top_k": [4, 16], "kohaku.bm25_top_k": [0, 2]}
        given = self._write_sweep(axes, common, f"sweep-{name}-ledger", concurrency=2)
        self.killer.begin(given["ledger.path"], moments(self._one["distinct"], victims) if victims else {})
        job(self.killer, "sweep", str(self.home / "sweep" / "sweep.yaml"), **given)
        shutil.move(self.home / "sweep", self.home / f"sweep-{name}")
        return self.killer.found()

    def _race(self, name: str, n_calls: int) -> dict[str, Any]:
        """Make a race of four cells in shards of two questions, with ``n_calls`` killed on the way; as ``_sweep``."""
        common = {"questions.limit": N_QUESTIONS, "ensemble.members": 1, "kohaku.queries": 1}
        given = self._write_sweep({"kohaku.top_k": [2, 4, 8, 16]}, common, f"race-{name}-ledger", race={"shard": 2})
        path = str(self.home / "sweep" / "sweep.yaml")
        self.killer.begin(given["ledger.path"], {})
        first = self.killer.n
        points = [first + n_calls * number // N_MOMENTS for number in range(N_MOMENTS)] if n_calls else []
        are_due = [lambda since_s, n, point=point: self.killer.n > point for point in points]
        kill_drivers(self.killer, are_due, command_of(self.killer, "sweep", path, **given))
        job(self.killer, "sweep", path, **given)
        shutil.move(self.home / "sweep", self.home / f"race-{name}")
        return self.killer.found()

    def _write_sweep(self, axes: dict, common: dict[str, object], ledger: str, **more: object) -> dict[str, Any]:
        """Write a sweep of one table below ``sweep``; the settings of its command."""
        home = self.home / "sweep"
        home.mkdir()
        places = {folder: str(home / folder) for folder in ("output", "runs", "indexes")}
        table = {"name": "depth", "axes": axes}
        common = {"kohaku.top_k_final": None, **common}
        sweep = {"base": ["demo"], **places, "seeds": [0], "set": common, "tables": [table], **more}
        (home / "sweep.yaml").write_text(yaml.safe_dump(sweep))
        settings = {"index.encoder.model": self.encoder, "index.encoders": 2, "ledger.path": str(self.home / ledger)}
        return {**self.fake, **self.spread, **settings}

    def _fill(self, node: str) -> Any:
        """Take the room of a node's object store: what is read in place is neither moved nor spilled."""
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        filler = ray.remote(Filler).options(num_cpus=0, scheduling_strategy=here).remote()
        ray.get(filler.size.remote())
        return filler

    def _spilled(self) -> int:
        """Sum the bytes that the living nodes have spilled."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        replies = [node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False) for node in nodes]
        return sum(reply.store_stats.spilled_bytes_total for reply in replies)


class Filler:
    """Holds most of its node's object store."""

    def __init__(self) -> None:
        self.refs = [ray.put(np.ones((STORE - 3 * 2**20) // 8, np.float64))]
        self.held = ray.get(self.refs)

    def size(self) -> int:
        return sum(array.nbytes for array in self.held)


def main(home: Path, encoder: str, names: list[str]) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    cluster.add_node(**NODE | {"num_cpus": 9})
    ray.init(address=cluster.address, namespace="kohaku_ray", logging_level="ERROR", log_to_driver=False)
    killer = Killer(cluster)
    with FakeOpenAI(killer.script) as server:
        killer.server = server
        parts = Parts(killer, home, encoder)
        for name in names or PARTS:
            began = time.monotonic()
            figures = getattr(parts, name)()
            print(json.dumps({name: {**figures, "s": round(time.monotonic() - began, 1)}}), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
