"""The resources a job needs, and the check that a cluster has them."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kohaku_ray.checks.cards import CardNeed, deployment_needs, encoder_need, too_small, weight_bytes
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.sections import ClusterConfig
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.cuda import local_gpus, unusable_gpus
from kohaku_ray.index.settings import EncoderConfig, EndpointConfig
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.records import pluralize
from kohaku_ray.systems.offline import ExtractiveConfig

BYTES_PER_ENCODER = 1 << 16  # a CPU encodes them by MiniLM in 3 s; to start costs it 10 s

CALLS_PER_S = 75.0
"""Calls that one replica answers per second: short replies of a 7B model on an H100. Processes are as many as these
need, so that slower replicas find them idle."""

MOST_LOAD = 0.6
"""Share of a process's time that calls may take; above it, calls queue for each other."""

QUEUED = 0.25
"""Calls that wait inside a replica, as a share of those it answers at once: Serve offers a call that no replica took
again after up to 0.5 s, in which a place would stay empty."""


PREPARE_MS = 15.5
"""CPU in milliseconds of a retriever per question, as `benchmarks/flow.py` measured it; most of it MiniLM's, which
encodes the queries."""

MINILM_PARAMETERS = 22_714_240
"""Parameters of the encoder that ``PREPARE_MS`` was measured with."""

LOCAL_CARDS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver describes the GPUs of this machine."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources a job holds for its whole run.

    Attributes:
        cpus: CPUs of its actors and replicas.
        gpus: GPUs of these.
        reason: What holds them, for the error message.
        custom: Custom Ray resources of these.
        on_a_node: What must lie on one node, by who needs it.
        on_a_card: What must fit one GPU, by who needs it.
    """

    cpus: float
    gpus: float
    reason: str
    custom: Mapping[str, float] = field(default_factory=dict)
    on_a_node: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    on_a_card: Mapping[str, CardNeed] = field(default_factory=dict)


def cluster_address(cluster: ClusterConfig) -> str | None:
    """Return the address of the cluster to join; None: a local one is started."""
    return cluster.address or os.environ.get("RAY_ADDRESS") or None


def local_cpus(cluster: ClusterConfig) -> int:
    """Return the CPUs of a local cluster: at least two, so that a waiting actor does not block the next one."""
    return cluster.num_cpus or max(2, os.cpu_count() or 2)


def local_node(config: Config) -> dict[str, float]:
    """Return the resources of a local cluster's node as Ray would find them, without starting it."""
    node = {"CPU": float(local_cpus(config.cluster)), "GPU": float(local_gpus())}
    for file in sorted(LOCAL_CARDS.glob("*/information")):
        # As Ray names types: "NVIDIA H100 80GB HBM3" is H100.
        if model := re.search(r"^Model:\s+\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)", file.read_text(), re.MULTILINE):
            node[f"accelerator_type:{model[1].replace(' ', '-')}"] = 1.0
    return node


def answer_demand(config: Config, n_shards: int | None = None) -> Demand:
    """Sum the resources of the answer job: retrievers of every shard, and the replicas of every deployment it uses.

    A configuration that does not say how many retrievers needs one: more start where there is room. Without
    ``n_shards``, the index has as many shards as it is configured to have.
    """
    retriever = config.cluster.retriever
    n, models = (
        (retriever.replicas or 1) * (n_shards or config.index.n_known_shards),
        replicas_demand(config.used_deployments),
    )
    return Demand(
        n * retriever.cpus + models.cpus,
        n * retriever.gpus + models.gpus,
        " and ".join(part for part in (pluralize(n, "retriever"), models.reason) if part),
        {**config.cluster.resources, **models.custom},
        {"a retriever": {"CPU": retriever.cpus, "GPU": retriever.gpus}, **models.on_a_node},
        models.on_a_card,
    )


def n_retrievers(config: Config, n_shards: int, resources: Mapping[str, float] | None) -> int:
    """Count the retrievers per shard of the index: what keeps the replicas busy, at most what these leave, at least 1.

    Args:
        config: The run.
        n_shards: Shards of the index, each with retrievers of its own.
        resources: Those of the cluster, of which replicas take theirs; None: it grows, and nothing tells how far.
    """
    retriever = config.cluster.retriever
    if retriever.replicas is not None:
        return retriever.replicas
    per_question = 1 if config.ensemble.scope == "question" else config.ensemble.members
    wanted = busy_processes(config.answering_deployments, PREPARE_MS * _encoder_size(config) / per_question)
    if resources is None:
        return wanted
    models = replicas_demand(config.used_deployments)
    for kind, taken, each in (("CPU", models.cpus, retriever.cpus), ("GPU", models.gpus, retriever.gpus)):
        if each:
            room = int((resources.get(kind, 0.0) - taken) / each + 1e-9)
            wanted = min(wanted, room // n_shards)
    return max(wanted, 1)


def _encoder_size(config: Config) -> float:
    """Return how many times MiniLM's work the query encoder's is: where CPUs encode for models on GPUs.

    Slower models keep no second copy of a large encoder busy.
    """
    encoder, models = config.index.encoder, config.answering_deployments.values()
    models_on_gpus = any(isinstance(model, VllmConfig) and model.cpus is None for model in models)
    if config.cluster.retriever.gpus or not models_on_gpus or not isinstance(encoder, EncoderConfig):
        return 1.0
    n_parameters = weight_bytes(encoder.model, encoder.revision, 1) or 0
    return max(n_parameters / MINILM_PARAMETERS, 1.0)


def busy_processes(deployments: Mapping[str, Deployment], ms_per_call: float) -> int:
    """Return how many processes do so much work per call while every replica is busy."""
    calls_per_s = CALLS_PER_S * sum(deployment.most_replicas for deployment in deployments.values())
    return math.ceil(calls_per_s * ms_per_call / 1000 / MOST_LOAD)


def replicas_demand(deployments: Mapping[str, Deployment]) -> Demand:
    """Sum the replicas of deployments, without those of applications that run already."""
    total, parts, on_a_node = Counter[str](CPU=0, GPU=0), [], {}
    for name, deployment in deployments.items():
        if deployment.application is None:
            parts.append(f"{pluralize(deployment.replicas, 'replica')} of {name}")
            total.update(deployment_demand(deployment))
            on_a_node[f"a replica of {name}"] = resources_on_a_node(deployment)
    cpus, gpus = total.pop("CPU"), total.pop("GPU")
    return Demand(cpus, gpus, " and ".join(parts), total, on_a_node, deployment_needs(deployments))


def deployment_demand(deployment: Deployment) -> dict[str, float]:
    """Sum the resources of a deployment's replicas, by kind of resource."""
    return {kind: amount * deployment.n_engines for kind, amount in _engine_demand(deployment).items()}


def resources_on_a_node(deployment: Deployment) -> dict[str, float]:
    """Return what one node must have: an engine, or one of the groups of layers that vLLM spreads over nodes."""
    if isinstance(deployment, VllmConfig):
        deployment = deployment.model_copy(update={"pipeline_parallel": 1})
    return _engine_demand(deployment)


def _engine_demand(deployment: Deployment) -> dict[str, float]:
    each: dict[str, float] = {"CPU": 0, "GPU": 0}
    match deployment:
        case ExtractiveConfig():
            each["CPU"] = 1
        case CrossEncoderConfig(base_url=None, gpus=gpus):
            each = {"CPU": 1, "GPU": gpus}
        case TransformersConfig(cpus=cpus, gpus=gpus):
            each = {"CPU": cpus, "GPU": gpus}
        case VllmConfig(gpus_per_engine=gpus, accelerator=accelerator):
            each = {"CPU": 1 + (deployment.cpus or 0), "GPU": gpus}  # Serve's own actor takes a CPU too
            if accelerator:
                each[f"accelerator_type:{accelerator}"] = 0.001 * deployment.workers_per_engine
    return each | deployment.resources


@dataclass(frozen=True, slots=True)
class Encoders:
    """Number of an index job's actors that encode texts, or images; each holds ``index.encoder_gpus``, else a CPU."""

    n: int
    gpu: bool


def plan_encoders(
    config: Config, nodes: Sequence[Mapping[str, float]], n_bytes: int | None = None
) -> tuple[Encoders, Encoders]:
    """Decide where an index job encodes texts, and where images, and in how many actors: one after the other.

    ``index.encoders`` is the number for texts; images that have an encoder of their own take no more actors than that,
    and no more than fit the ``nodes``. Only ``device: auto`` asks whether there is a GPU: a cluster that grows may have
    none yet. ``n_bytes`` is the size of the documents (None: unknown): few of them get few encoders of texts on CPUs.
    """
    index, gpu = config.index, _on_gpu(config.index.encoder, nodes)
    fit = _n_that_fit(config, nodes, gpu)
    worth = fit if gpu or n_bytes is None else 1 + n_bytes // BYTES_PER_ENCODER
    if isinstance(index.encoder, EndpointConfig):
        worth = 1  # which has as many requests in flight as its server takes
    of_texts, of_images = Encoders(index.encoders or min(fit, worth), gpu), Encoders(index.encoders or fit, gpu)
    if index.image_encoder is not None:
        gpu = _on_gpu(index.image_encoder, nodes)
        fit = _n_that_fit(config, nodes, gpu)
        of_images = Encoders(min(index.encoders or fit, fit), gpu)
    return of_texts, of_images


def _on_gpu(encoder: EncoderConfig | EndpointConfig, nodes: Sequence[Mapping[str, float]]) -> bool:
    if isinstance(encoder, EndpointConfig):
        return False
    if encoder.device == "auto":
        return any(node.get("GPU", 0) >= 1 for node in nodes)
    return encoder.device == "cuda"


def index_demand(config: Config, encoders: Encoders) -> Demand:
    """Sum the resources of the index job: encoders and one CPU for parsing; builders have GPUs after them."""
    index, n = config.index, encoders.n
    custom = {kind: amount * n for kind, amount in index.resources.items()}
    each = {"CPU": 0.0, "GPU": index.encoder_gpus} if encoders.gpu else {"CPU": 1.0, "GPU": 0.0}
    on_a_node = {"an encoder": {**each, **index.resources}}
    need = None
    if encoders.gpu and isinstance(index.encoder, EncoderConfig):
        need = encoder_need(config, index.encoder)
    on_a_card = {} if need is None else {"an encoder": need}
    cpus = 1 if encoders.gpu else n
    return Demand(cpus, n * each["GPU"], pluralize(n, "encoder"), custom, on_a_node, on_a_card)


def caption_demand(config: Config) -> Demand | None:
    """Sum the replicas that describe images, which are up while nothing is encoded; None: none are started."""
    demand = replicas_demand(config.caption_deployments)
    return demand if demand.reason else None


def _n_that_fit(config: Config, nodes: Sequence[Mapping[str, float]], gpu: bool) -> int:
    index = config.index
    each = {**({"GPU": index.encoder_gpus} if gpu else {"CPU": 1.0}), **index.resources}
    return max(int(sum(count_places(node, each) for node in nodes)), 1)


def count_places(node: Mapping[str, float], each: Mapping[str, float]) -> float:
    """Count the actors of some resources each that fit a node on which nothing runs."""
    places = math.inf
    for kind, amount in each.items():
        if not amount:
            continue
        there = node.get(kind, 0.0)
        if kind == "GPU" and amount < 1:  # 3 of 0.4 do not fit one GPU, nor do 3 of 0.6 fit two
            n = int(there) * int(1 / amount + 1e-9) + int(there % 1 / amount + 1e-9)
        else:
            n = int(there / amount + 1e-9)
        places = min(places, n)
    return places


def check_demand(
    demand: Demand,
    resources: Mapping[str, float],
    *,
    nodes: Sequence[Mapping[str, float]] | None = None,
    autoscaling: bool = False,
    groups: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Compare what a job needs with a cluster, of one node unless ``nodes`` has the resources of each.

    Where nodes may come (``autoscaling``), only with a node of each of the ``groups``; None: they are not known, and
    nothing is compared.

    Raises:
        ConfigError: The cluster or every node of it is too small; the message names both numbers.
    """
    if autoscaling and groups is None:
        return
    if groups is not None:
        nodes = [*(nodes or []), *groups.values()]
        for kind in demand.custom:
            if not any(node.get(kind) for node in nodes):
                accelerator = " (deployments.*.accelerator)" if kind.startswith("accelerator_type:") else ""
                raise ConfigError(
                    f"{_need(demand.reason)} {kind}{accelerator} but no node and no worker group ({', '.join(groups)}) "
                    f"declares it, so that none would ever come: add {kind}: 1 to the resources of the group that has "
                    "it (KubeRay: rayStartParams.resources), or do not ask for it"
                )
        resources = {kind: math.inf for node in nodes for kind, amount in node.items() if amount}
    needed = {"CPU": demand.cpus, "GPU": demand.gpus, **demand.custom}
    if short := shortage(demand.reason, needed, resources):
        if "GPU" in short and (unusable := unusable_gpus()):
            short += f" ({unusable})"
        declared = ", or declare more CPUs than there are cores by cluster.num_cpus" if "CPUs" in short else ""
        raise ConfigError(
            f"{short}: lower cluster.retriever (its cpus may be 0), index.encoders or deployments.*.replicas, add nodes"
            f"{declared}"
        )
    if small := too_small(demand.on_a_card, [resources] if nodes is None else nodes):
        raise ConfigError(small)
    if large := too_large(demand.on_a_node, [resources] if nodes is None else nodes):
        raise ConfigError(
            f"{large}: lower it (deployments.*.pipeline_parallel spreads a model over nodes), or add larger nodes"
        )


def too_large(on_a_node: Mapping[str, Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> str:
    """Describe what fits no node of a cluster, given by who needs it on one node; empty if all does."""
    for who, needed in on_a_node.items():
        if any(all(amount <= node.get(kind, 0.0) for kind, amount in needed.items()) for node in nodes):
            continue
        for kind, amount in needed.items():
            largest = max((node.get(kind, 0.0) for node in nodes), default=0.0)
            if amount > largest:
                return f"{who} needs {pluralize(amount, kind)} on one node but the largest node has {largest:g}"
        kinds = " and ".join(pluralize(amount, kind) for kind, amount in needed.items() if amount)
        return f"{who} needs {kinds} on one node but no node has them together"
    return ""


def _need(who: str) -> str:
    return f"{who} needs" if who.startswith("1 ") and " and " not in who else f"{who} need"


def shortage(
    who: str, needed: Mapping[str, float], resources: Mapping[str, float], free: Mapping[str, float] | None = None
) -> str:
    """Describe what a cluster lacks that ``who`` need; empty if it lacks nothing.

    With its ``free`` resources, every needed kind is named, lacking or not.
    """
    lacks = []
    for kind, amount in needed.items():
        if amount > resources.get(kind, 0.0) or (free is not None and amount):
            unused = "" if free is None else f", {free.get(kind, 0.0):g} of them free,"
            lacks.append(
                f"the cluster has {pluralize(resources.get(kind, 0.0), kind)}{unused} but {_need(who)} {amount:g}"
            )
    return ", ".join(lacks)
