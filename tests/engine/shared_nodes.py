"""A Ray cluster of a head without CPUs and three nodes on this machine, for all that needs nodes of a kind (a program).

    python shared_nodes.py DIRECTORY [PART ...]

DIRECTORY has ``given.json``: paths of an encoder, of the sample's index and of a model for vLLM.
Prints one JSON object per line: ``{PART: what it found}``. The parts, all of them by default, share the cluster. Ray
counts GPUs that nobody has: all but the computing itself is as on a cluster that has them.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from kit.held_text import WAIT
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from kohaku_ray.checks.demand import replicas_demand
from kohaku_ray.config import load_config
from kohaku_ray.config.sections import ClusterConfig
from kohaku_ray.engine import cluster as connecting
from kohaku_ray.engine.actors import pool
from kohaku_ray.engine.actors.pool import ActorPool
from kohaku_ray.engine.cluster import check_cluster, check_nodes
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.serving import applications, vllm
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.vllm import VllmConfig

STORE = 100 * 2**20
NODES = {"cpu": {"cpu_node": 1}, "a": {"replica_node": 1}, "b": {"replica_node": 1}}
"""Resources by the node's name; each has 3 CPUs and 4 GPUs, too."""
COORDINATORS = ("LedgerShard", "MemberProcess", "Voter")
N_FILES = 24
"""Of the index job whose encoders have GPUs."""


def wait_until(is_so: Callable[[], object], longest_s: float = 120.0) -> bool:
    end = time.monotonic() + longest_s
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


@contextlib.contextmanager
def replaced(module: Any, **values: object) -> Iterator[None]:
    """Set attributes of a module in the block."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


class Watched(io.StringIO):
    """Holds what is said, and makes a file once a text is."""

    def __init__(self, text: str, file: Path) -> None:
        super().__init__()
        self.text, self.file = text, file

    def write(self, said: str) -> int:
        """Write."""
        if self.text in said:
            self.file.touch()
        return super().write(said)


class Parts:
    """The parts by name, and what they share."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.home = cluster, home
        self.given: dict[str, str] = json.loads((home / "given.json").read_text())
        self.names = {cluster.head_node.node_id: "head"}
        for name, resources in NODES.items():
            node = cluster.add_node(num_cpus=3, num_gpus=4, resources=resources, object_store_memory=STORE)
            self.names[node.node_id] = name

    def coordinators(self) -> dict[str, Any]:
        """Where coordinators stand: first by default, then by the group that ``cluster.resources`` names."""
        own = [f"index.path={self.given['index']}", "deployments.extractive={kind: extractive, replicas: 32}"]
        own += ["cluster.retriever.cpus=0", "cluster.retriever.replicas=1", "cluster.retriever.gpus=0"]
        found, before = [], set[Any]()
        for number, more in enumerate(([], ["cluster.resources={cpu_node: 0.001}"])):
            config = load_config("demo", [f"ledger.path={self.home}/ledger{number}", *own, *more])
            with Session(config.cluster) as session:
                session.open_ledger(config.ledger, 3, config.used_deployments.values())
                actors = ActorPool(config, 3)
                actors.wait_until_ready()
                new = self._new_coordinators(before, 3 + 3 + len(actors.voters))
                actors.close()
            before |= new.keys()
            found.append({kind: sorted(node for (of, _), node in new.items() if of == kind) for kind in COORDINATORS})
        return {"by_default": found[0], "by_group": found[1]}

    def _new_coordinators(self, before: set[Any], n: int) -> dict[tuple[str, str], str]:
        """Wait until there are so many beside those of before."""
        assert wait_until(lambda: len(self._coordinators().keys() - before) >= n), self._coordinators()
        return {key: node for key, node in self._coordinators().items() if key not in before}

    def _coordinators(self) -> dict[tuple[str, str], str]:
        """Nodes of living coordinators, by class and actor."""
        return {
            (state["ActorClassName"], actor): self.names[state["Address"]["NodeID"]]
            for actor, state in ray._private.state.actors().items()
            if state["State"] == "ALIVE" and state["ActorClassName"] in COORDINATORS
        }

    def hidden(self) -> dict[str, Any]:
        """What jobs say of a node in a mount namespace of its own, in which an empty file system hides a directory."""
        start = 'mount -t tmpfs none "$1" && exec "$3" -m ray.scripts.scripts start --address="$2" --num-cpus=1 --block'
        alone = ["setpriv", "--pdeathsig", "TERM", "unshare", "-m", "sh", "-c", start, "sh"]
        command = [*alone, f"{self.home}/hidden", self.cluster.address, sys.executable]
        before, messages = self._alive(), []
        node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert wait_until(lambda: len(self._alive()) > len(before) or node.poll() is not None)
            [other] = self._alive() - before
            seen = [f"{key}={self.home}/seen/{name}" for key, name in (("run", "run"), ("ledger.path", "ledger"))]
            for job, key in ((run_index, "index.path"), (run_answer, "index.path"), (run_answer, "ledger.path")):
                where = [] if key == "index.path" else [f"index.path={self.home}/seen/index"]
                own = f"{key}={self.home}/hidden/{key.removesuffix('.path')}"
                try:
                    job(load_config("demo", [*seen, *where, own]))
                except ConfigError as error:
                    messages.append(str(error))
            check_nodes({}, {"ledger.path": f"{self.home}/seen/ledger"})
            with replaced(connecting, ANSWER_S=0.0), contextlib.redirect_stderr(io.StringIO()) as late:
                check_nodes({}, {"ledger.path": f"{self.home}/seen/ledger"})  # no node answers so soon
        finally:
            node.terminate()
            node.wait(60)
        return {"node": other[:8], "messages": messages, "late": late.getvalue()}

    def _alive(self) -> set[str]:
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def gpus(self) -> dict[str, Any]:
        """An index job whose encoders have GPUs, and runs on GPUs that are free, that are not, and on CPUs."""
        documents = self.home / "halls"
        documents.mkdir()
        encoded = self.home / "encoded"
        for number in range(N_FILES):
            held = f"{WAIT}{encoded}\n" if number == N_FILES - 1 else ""
            sentences = " ".join(f"Rack {n} of hall {number} drew {n * 7 % 97} kW." for n in range(24))
            (documents / f"hall{number:02}.txt").write_text(f"{held}{sentences} And so it went on.")
        own = [f"documents.paths=[{documents}]", "documents.metadata=null", f"index.path={self.home}/gpu"]
        own += ["documents.format=kit.held_text:HELD"]
        own += [f"index.encoder.model={self.given['encoder']}", "index.encoder_gpus=0.5", "index.encoders=2"]
        own += ["index.factory='IVF4,Flat'", f"ledger.path={self.home}/ledger"]
        own += ["questions.limit=4", "ensemble.members=2"]
        figures: dict[str, Any] = {}
        with contextlib.ExitStack() as changed:
            # Of the driver alone: actors see the real one.
            changed.enter_context(replaced(index_stream, without_gpu_support=lambda: ""))
            changed.enter_context(replaced(index_stream, WINDOW_TEXTS=64))
            changed.enter_context(replaced(pool, ROOM_S=2.0, SAY_EVERY_S=1.0))
            with contextlib.redirect_stderr(Watched(" texts encoded", encoded)) as said:
                summary = run_index(load_config("demo", own))
            figures["index"] = said.getvalue().splitlines()
            own.append("cluster.retriever.gpus=0.5")
            figures |= {"texts_by_encoder": summary.texts_by_encoder, "counts": summary.counts}
            with contextlib.redirect_stderr(io.StringIO()) as said:
                answered = run_answer(load_config("demo", [*own, f"run={self.home}/free"]))
            figures["free"] = said.getvalue().splitlines()
            figures["answers"] = [answered.n_answers, answered.n_member_errors]
            others = [ray.remote(num_gpus=4)(Other).remote() for _ in NODES]
            ray.get([other.is_up.remote() for other in others])
            try:
                run_answer(load_config("demo", [*own, f"run={self.home}/taken"]))
            except ConfigError as error:
                figures["taken"] = str(error)
            run_answer(load_config("demo", [*own, "cluster.retriever.gpus=0", f"run={self.home}/cpus"]))
            for other in others:
                ray.kill(other)
        return figures

    def late(self) -> dict[str, Any]:
        """An index job whose encoders have no node until it has said so, and all is parsed."""
        documents = self.home / "few"
        documents.mkdir()
        for number in range(4):
            (documents / f"{number}.txt").write_text(f"Hall {number} draws {number} MW. It is cooled by air.")
        lines: list[tuple[str, bool]] = []
        nodes: list[subprocess.Popen[bytes]] = []
        say = index_stream.print_progress
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        start += [f"--address={self.cluster.address}", '--resources={"encoder_node": 1}']

        def seen(line: str) -> None:
            lines.append((line, bool(nodes)))
            say(line)
            is_parsed = any(one.startswith("parse  ") for one, _ in lines)
            if line.startswith("index   waiting") and is_parsed and not nodes:
                nodes.append(subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        own = [f"documents.paths=[{documents}]", "documents.metadata=null", f"index.path={self.home}/late"]
        own += [f"index.encoder.model={self.given['encoder']}", "index.encoders=1", "index.encoder.device=cpu"]
        own += ["cluster.autoscaling=true", "index.resources={encoder_node: 0.001}"]
        with replaced(index_stream, SAY_EVERY_S=2.0, print_progress=seen):
            summary = run_index(load_config("demo", own))
        for node in nodes:
            node.terminate()
            node.wait(60)
        seconds = {"parse_s": summary.parse_s, "encode_s": summary.encode_s}
        return {"lines": lines, **seconds, "n_documents": summary.counts["n_documents"]}

    def replicas(self) -> dict[str, Any]:
        """What Serve asks of GPUs for replicas of vLLM: all is as in a job but the engine, which is up at once."""
        idle_engines()
        found: dict[str, Any] = {
            "tensor": self._placed("tensor", tensor_parallel=4),
            "pipeline": self._placed("pipeline", tensor_parallel=4, pipeline_parallel=2),
            "data": self._placed("data", tensor_parallel=2, data_parallel=2),
            "share": self._placed("share", gpus=0.25),
        }
        for key, settings in (("unknown", {"engine_kwargs": {"swap_space": 4}}), ("refused", {"tensor_parallel": 6})):
            try:
                self._placed("big", **settings)
            except ConfigError as error:
                found[key] = str(error)
        return found

    def _placed(self, name: str, **settings: Any) -> dict[str, Any]:
        """Start a deployment: the placement group that Serve made for it."""
        on_replicas = {"replica_node": 0.001}
        model = self.given["model"]
        deployment = VllmConfig(model=model, resources=on_replicas, start_timeout_s=120, **settings)
        check_cluster(replicas_demand({name: deployment}), ClusterConfig())
        with applications.serving({name: deployment}, release=False) as running:
            application = running[name].name
        [group] = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
        figures = {
            "strategy": group["strategy"],
            "bundles": [group["bundles"][index] for index in sorted(group["bundles"])],
            "nodes": sorted({self.names[node] for node in group["bundles_to_node_id"].values()}),
            "n_up": applications.replicas_up([application]),
            "worker_gpus": serve.get_app_handle(application).worker_gpus.remote().result(),
        }
        serve.delete(application)
        return figures


class Idle:
    """A replica without an engine."""

    async def __init__(self, llm_config: Any, deployment: Any) -> None:
        self.llm_config = llm_config

    async def check_health(self) -> None:
        return

    async def worker_gpus(self) -> float:
        """GPUs that the engine's worker would ask of its bundle: the engine's process inherits the variable."""
        import vllm.envs

        return float(vllm.envs.VLLM_RAY_PER_WORKER_GPUS)

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


class Other:
    """An actor of somebody else."""

    def is_up(self) -> bool:
        return True


PARTS = ("coordinators", "hidden", "gpus", "late", "replicas")


def main(home: Path, names: list[str]) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    parts = Parts(cluster, home)
    ray.init(address=cluster.address, namespace="kohaku_ray", log_to_driver=False, logging_level="ERROR")
    for name in names or PARTS:
        began = time.monotonic()
        figures = getattr(parts, name)()
        print(json.dumps({name: {**figures, "s": round(time.monotonic() - began, 1)}}), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
