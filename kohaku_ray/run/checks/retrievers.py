"""Decide how many retrievers a job starts, and on what: GPUs first, since their number follows from the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohaku_ray.config import Config
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.run.checks.cards import weight_bytes
from kohaku_ray.run.checks.demand import busy_processes, count_places, replicas_demand, resources_on_a_node
from kohaku_ray.run.checks.free_gpus import ENCODER_BYTES, FreeNode, GpuChoice, choose_retriever_gpus, nodes_left

PREPARE_MS = 15.5
"""CPU in milliseconds of a retriever per question, as `benchmarks/flow.py` measured it; most of it MiniLM's, which
encodes the queries."""

QUERIES = 4
"""Searches per question that are counted: as many as a planner writes by default."""

MINILM_PARAMETERS = 22_714_240
"""Parameters of the encoder that ``PREPARE_MS`` was measured with."""

MOST_ON_CPUS = 1e9
"""Parameters from which on an encoder runs on CPUs only if it is asked to: a question's queries take a core about a
second per billion."""

ACTIVATION_BYTES = 2 << 30
"""Memory of a GPU beside the encoder's weights: CUDA's own and activations of short texts."""

PROCESS_BYTES = 1 << 30
"""Memory of a retriever beside encoder and index, Python, torch and FAISS with what they load: it counts where several
may share a node, and refuses none."""


@dataclass(frozen=True, slots=True)
class RetrieverPlan:
    """Retrievers per shard of the index, the GPUs of each, and why so many of these."""

    n: int
    gpus: float
    reason: str


def plan_retrievers(
    config: Config,
    n_shards: int,
    nodes: Sequence[Mapping[str, float]],
    *free: Sequence[FreeNode],
    most_nodes: Sequence[Mapping[str, float]] | None = None,
    index_bytes: int | None,
    card_bytes: int | None,
    missing: str = "",
    search_ms: float = 0.0,
) -> RetrieverPlan:
    """Decide what a job's retrievers get: as many as keep the replicas busy, and no more than there is room for.

    By auto they share the GPUs that replicas leave, fewer of them if need be. Where there is none they are on CPUs, as
    many as nodes have CPUs and memory for.

    Args:
        config: The run.
        n_shards: Shards of the index, each with retrievers of its own.
        nodes: Resources of each node that there is.
        free: What nodes have free now, if that counts too; see ``choose_retriever_gpus``.
        most_nodes: Resources of each node that a growing cluster may have; None: it does not grow, or nothing tells.
        index_bytes: Largest shard as FAISS holds it; None: unknown.
        card_bytes: Memory of the smallest GPU; None: unknown.
        missing: Why FAISS cannot use a GPU; empty: it can.
        search_ms: CPU time of a query in a shard, as the first retrievers have measured it.

    Raises:
        ConfigError: No node has the memory of one retriever, or its encoder is too large for CPUs.
    """
    each = config.cluster.retriever
    on_gpus = each.replicas or wanted_retrievers(config, on_gpus=True)
    left = nodes_left(nodes, config.used_deployments)

    def choose(n: int) -> GpuChoice:
        return choose_retriever_gpus(
            config,
            n * n_shards,
            left,
            *free,
            index_bytes=index_bytes,
            card_bytes=card_bytes,
            encoder_bytes=max(ENCODER_BYTES, _encoder_bytes(config, 2) + ACTIVATION_BYTES),
            missing=missing,
        )

    choice = choose(on_gpus)
    if each.gpus == "auto" and each.replicas is None:
        for fewer in range(on_gpus - 1, 0, -1):
            if choice.gpus:
                break
            if (instead := choose(fewer)).gpus:
                choice, on_gpus = instead, fewer
    grows = config.cluster.autoscaling
    rooms = most_nodes if grows else nodes
    if choice.gpus:
        n_places = _n_places(config, rooms, choice.gpus, _host_bytes(config, index_bytes, on_gpu=True))
        n = each.replicas or max(int(min(on_gpus, n_places // n_shards)), 1)
        return RetrieverPlan(n, choice.gpus, choice.reason)
    _check_runs_on_cpus(config, choice.reason)
    n_places = _n_places(config, rooms, 0.0, _host_bytes(config, index_bytes, on_gpu=False))
    n = each.replicas or max(int(min(wanted_retrievers(config, search_ms, on_gpus=False), n_places // n_shards)), 1)
    return RetrieverPlan(n, 0.0, choice.reason)


def wanted_retrievers(config: Config, search_ms: float = 0.0, *, on_gpus: bool) -> int:
    """Return the retrievers per shard that keep the replicas busy, with encoders on GPUs or on CPUs.

    ``search_ms`` is the CPU time of a query in a shard.
    """
    per_question = 1 if config.ensemble.scope == "question" else config.ensemble.members
    fast_models = any(
        isinstance(deployment, VllmConfig) and deployment.cpus is None
        for deployment in config.answering_deployments.values()
    )
    # Slower models than a GPU's keep no second copy of a large encoder busy.
    size = max((parameters(config) or 0) / MINILM_PARAMETERS, 1.0) if fast_models and not on_gpus else 1.0
    return busy_processes(config.answering_deployments, (PREPARE_MS * size + QUERIES * search_ms) / per_question)


def parameters(config: Config) -> int | None:
    """Count the query encoder's parameters; None: it is a server's, or not on this machine."""
    encoder = config.index.encoder
    return weight_bytes(encoder.model, encoder.revision, 1) if isinstance(encoder, EncoderConfig) else None


def _check_runs_on_cpus(config: Config, why_no_gpu: str) -> None:
    """Refuse an encoder that is too large for CPUs, unless the configuration asks for them."""
    encoder, n = config.index.encoder, parameters(config)
    if n is None or n < MOST_ON_CPUS or config.cluster.retriever.gpus != "auto":
        return
    assert isinstance(encoder, EncoderConfig)
    if encoder.device != "cpu":
        raise ConfigError(
            f"index.encoder.model is {encoder.model}, of {n / 1e9:.1f} billion parameters, which take a CPU seconds "
            f"per question, and cluster.retriever.gpus auto finds no GPU for it ({why_no_gpu}): give it a share, as "
            "cluster.retriever.gpus 0.25 with deployments.*.gpus 0.75, add a GPU, or set cluster.retriever.gpus to 0 "
            "to have it on CPUs all the same"
        )


def _host_bytes(config: Config, index_bytes: int | None, *, on_gpu: bool) -> int:
    """Sum the memory of a retriever's encoder and shard on its node; what is not known counts as nothing."""
    total = index_bytes or 0  # which FAISS keeps beside the GPU's copy, for the longest searches
    return total if on_gpu else total + _encoder_bytes(config, 4)


def _encoder_bytes(config: Config, size_by_auto: int) -> int:
    """Sum the weights of the encoders of queries, ``size_by_auto`` bytes per number with ``precision: auto``."""
    total = 0
    for encoder in (config.index.encoder, config.index.image_encoder):
        if isinstance(encoder, EncoderConfig):
            size = {"auto": size_by_auto, "float32": 4}.get(encoder.precision, 2)
            total += weight_bytes(encoder.model, encoder.revision, size) or 0
    return total


def _n_places(config: Config, nodes: Sequence[Mapping[str, float]] | None, gpus: float, n_bytes: int) -> float:
    """Count the retrievers that nodes have room for beside the replicas; without nodes, as they may come, any number.

    Raises:
        ConfigError: No node has the memory of one.
    """
    if nodes is None:
        return math.inf
    each, models = config.cluster.retriever, replicas_demand(config.used_deployments)
    n_places = math.inf
    for kind, taken, amount in (("CPU", models.cpus, each.cpus), ("GPU", models.gpus, gpus)):
        if amount:
            n_places = min(n_places, (sum(node.get(kind, 0.0) for node in nodes) - taken) / amount + 1e-9)
    if each.cpus and len(nodes) > 1:  # none has its CPUs on two nodes: those that no node had room for would wait
        whole = sum(count_places(node, {"CPU": each.cpus}) for node in nodes)
        started = [model for model in config.used_deployments.values() if model.application is None]
        n_taken = sum(math.ceil(resources_on_a_node(model)["CPU"] / each.cpus) * model.n_engines for model in started)
        n_places = min(n_places, whole - n_taken)
    memory = [node["memory"] for node in nodes if "memory" in node]
    if memory and len(memory) == len(nodes):
        if n_bytes > max(memory):
            raise ConfigError(
                f"a retriever needs {n_bytes / 2**30:,.1f} GiB of its node's memory, for its encoder and its shard of "
                f"the index, but the largest node has {max(memory) / 2**30:,.1f} GiB: raise index.shards, index with "
                "an IVF and PQ (index.factory) or a smaller encoder, give retrievers GPUs (cluster.retriever.gpus), or "
                "add larger nodes"
            )
        n_places = min(n_places, sum(size // (n_bytes + PROCESS_BYTES) for size in memory))
    return n_places
