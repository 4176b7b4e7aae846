"""Decide what ``auto`` means for `cluster.retriever.gpus` and `index.build_gpus`: GPUs that model replicas leave free.

Pure functions of resources, demand and sizes; nothing here asks a cluster or loads FAISS. ``auto`` takes what is free
and asks for no more: it is no part of a job's demand, and adds no node to a cluster that grows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.index.gpu import temporary_bytes
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.run.checks.demand import local_cpus, local_gpus, resources_on_a_node
from kohaku_ray.run.record.summary import pluralize

SHARES = (1.0, 0.5, 0.25)
"""Shares of a GPU that a retriever may get, the largest first."""

LOCAL_CARDS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver describes the GPUs of this machine."""

ENCODER_BYTES = 4 << 30
"""Memory kept for the query encoder beside the index, at least: one of 560 M parameters in float32 and activations."""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """What a node has left: CPUs, and of each GPU the free share."""

    cpus: float
    cards: tuple[float, ...]

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> FreeNode:
        """Read a node's resources: Ray fills GPUs one by one with shares, so that a fraction is left of one alone."""
        whole, part = divmod(round(resources.get("GPU", 0.0), 4), 1)
        return cls(resources.get("CPU", 0.0), (1.0,) * int(whole) + ((part,) if part else ()))

    def n_places(self, share: float, cpus: float) -> float:
        """Count the actors of a share of a GPU, or of none, and some CPUs that fit."""
        by_gpus = sum(int(card / share + 1e-9) for card in self.cards) if share else math.inf
        return min(by_gpus, int(self.cpus / cpus + 1e-9)) if cpus else by_gpus


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """GPUs per actor, and why so many."""

    gpus: float
    reason: str


def nodes_left(nodes: Iterable[Mapping[str, float]], deployments: Mapping[str, Deployment]) -> list[FreeNode]:
    """Place every replica that there may be on nodes, those of most GPUs first; returns what is left of each node.

    Nothing is left where the replicas may need all that there is and more. Replicas of another application count too.
    """
    left = [(dict(node), list(FreeNode.of(node).cards)) for node in nodes]
    needs: list[tuple[dict[str, float], int]] = []
    for deployment in deployments.values():
        groups = deployment.pipeline_parallel if isinstance(deployment, VllmConfig) else 1
        needs.append((resources_on_a_node(deployment), deployment.most_replicas * groups))
    for need, n in sorted(needs, key=lambda entry: -entry[0]["GPU"]):
        if not need["GPU"]:
            continue
        for _ in range(n):
            for node, cards in left:
                taken = _cards_for(need["GPU"], cards)
                if taken and all(amount <= node.get(kind, 0.0) + 1e-9 for kind, amount in need.items()):
                    break
            else:
                return [FreeNode(0.0, ()) for _ in left]
            for number in taken:
                cards[number] = round(cards[number] - min(need["GPU"], 1.0), 4)
            for kind, amount in need.items():
                node[kind] = node.get(kind, 0.0) - amount
    return [FreeNode(node.get("CPU", 0.0), tuple(sorted(filter(None, cards), reverse=True))) for node, cards in left]


def _cards_for(gpus: float, cards: Sequence[float]) -> list[int]:
    """Number the GPUs that Ray gives an actor: whole ones, or for a share the fullest that has it; empty: none."""
    if gpus >= 1:
        whole = [number for number, card in enumerate(cards) if card == 1]
        return whole[: int(gpus)] if len(whole) >= gpus else []
    return sorted((number for number, card in enumerate(cards) if card + 1e-9 >= gpus), key=cards.__getitem__)[:1]


def choose_retriever_gpus(
    config: Config,
    n: int,
    *room: Sequence[FreeNode],
    index_bytes: int | None,
    card_bytes: int | None,
    encoder_bytes: int = ENCODER_BYTES,
    missing: str = "",
) -> GpuChoice:
    """Decide what ``n`` retrievers get of GPUs that are free, all of them or none.

    Args:
        config: The run.
        n: Retrievers, of all shards together.
        room: What is left of the nodes, by one or more counts; each must have room.
        index_bytes: Largest shard as FAISS holds it; None: unknown.
        card_bytes: Memory of the smallest GPU; None: unknown, and then no GPU is shared.
        encoder_bytes: What the query encoder takes of a GPU.
        missing: Why FAISS cannot use a GPU; empty: it can.
    """
    retriever, index = config.cluster.retriever, config.index
    if retriever.gpus != "auto":
        return GpuChoice(retriever.gpus, "as configured")
    if index.search_device == "cpu":
        return GpuChoice(0.0, "index.search_device is cpu")
    if not any(node.cards for nodes in room for node in nodes):
        return GpuChoice(0.0, "there is no GPU that the models' replicas leave free")
    if missing:
        return GpuChoice(0.0, missing)
    total = card_bytes or 0
    need = (index_bytes or 0) + temporary_bytes(total) + encoder_bytes
    what = "index, encoder" if index_bytes is not None else "an index that is not there yet counts as nothing: encoder"
    sizes = f"{what} and FAISS's temporary memory take {need / 2**30:,.1f} GiB"
    retrievers = pluralize(n, "retriever")
    for share in SHARES:
        if any(sum(node.n_places(share, retriever.cpus) for node in nodes) < n for nodes in room):
            continue
        if card_bytes is None and share == 1:
            return GpuChoice(share, f"each of {retrievers} gets a GPU, of unknown size")
        if card_bytes is None:
            return GpuChoice(0.0, f"{retrievers} would share GPUs of unknown size: set it to a share, such as 0.25")
        if need <= share * card_bytes:
            return GpuChoice(share, f"each of {retrievers} gets so much of a GPU, and {sizes}")
        of = f"{share:g} of a GPU of {card_bytes / 2**30:,.0f} GiB"
        return GpuChoice(0.0, f"{sizes} but a retriever would get {of}: raise index.shards or set index.search_float16")
    return GpuChoice(0.0, f"the GPUs that are free have no room for {retrievers} of {SHARES[-1]:g} GPUs each")


def search_device(config: Config, gpus: float, missing: str) -> str:
    """Say where FAISS searches by ``search_device: auto`` with so many GPUs per retriever, and why."""
    if not gpus:
        return "cpu: retrievers have no GPU"
    if missing:
        return f"cpu: {missing}"
    if "HNSW" in config.index.factory:
        return f"cpu: FAISS has no {config.index.factory} for GPUs"
    return "cuda, the retriever's GPU; cpu if that cannot hold the index when the job starts"


def choose_build_gpus(config: Config, nodes: Sequence[FreeNode], missing: str) -> GpuChoice:
    """Decide what each task that builds a FAISS index gets, once all is encoded.

    ``nodes`` is what the cluster has free by then; ``missing`` says why FAISS cannot use a GPU (empty: it can).
    """
    index = config.index
    if index.build_gpus != "auto":
        return GpuChoice(index.build_gpus, "as configured")
    if "IVF" not in index.factory:
        return GpuChoice(0.0, f"index.factory {index.factory} has no inverted lists to train")
    if not any(node.n_places(1.0, 1.0) for node in nodes):
        return GpuChoice(0.0, "no GPU is free")
    return GpuChoice(0.0, missing) if missing else GpuChoice(1.0, "a GPU is free once all is encoded")


def with_retriever_gpus(config: Config, gpus: float) -> Config:
    """Return the configuration of retrievers that have so much of a GPU; a run keeps its own."""
    retriever = config.cluster.retriever.model_copy(update={"gpus": gpus})
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"retriever": retriever})})


def with_build_gpus(config: Config, gpus: float) -> Config:
    """Return the configuration of builders that have so many GPUs."""
    return config.model_copy(update={"index": config.index.model_copy(update={"build_gpus": gpus})})


def local_node(config: Config) -> dict[str, float]:
    """Return the resources of a local cluster's node as Ray would find them, without starting it."""
    node = {"CPU": float(local_cpus(config.cluster)), "GPU": float(local_gpus())}
    node["memory"] = psutil.virtual_memory().available - config.cluster.object_store_gib * 2**30
    for file in sorted(LOCAL_CARDS.glob("*/information")):
        # As Ray names types: "NVIDIA H100 80GB HBM3" is H100.
        if model := re.search(r"^Model:\s+\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)", file.read_text(), re.MULTILINE):
            node[f"accelerator_type:{model[1].replace(' ', '-')}"] = 1.0
    return node
