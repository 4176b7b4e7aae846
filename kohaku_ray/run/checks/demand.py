"""The resources a job needs, and the check that a cluster has them."""

from __future__ import annotations

import glob
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.sections import ClusterConfig
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.settings import EncoderConfig, EndpointConfig
from kohaku_ray.index.store import Index
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.run.checks.cards import CardNeed, deployment_needs, encoder_need, retriever_need, too_small
from kohaku_ray.run.record.summary import pluralize
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


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """What each of ``n`` actors or engines must have on one node; a share of a GPU lies on one."""

    n: int
    each: Mapping[str, float]


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
    on_a_node: Mapping[str, NodeNeed] = field(default_factory=dict)
    on_a_card: Mapping[str, CardNeed] = field(default_factory=dict)


def cluster_address(cluster: ClusterConfig) -> str | None:
    """Return the address of the cluster to join; None: a local one is started."""
    return cluster.address or os.environ.get("RAY_ADDRESS") or None


def local_cpus(cluster: ClusterConfig) -> int:
    """Return the CPUs of a local cluster: at least two, so that a waiting actor does not block the next one."""
    return cluster.num_cpus or max(2, os.cpu_count() or 2)


def local_gpus() -> int:
    """Return the GPUs that a local cluster would find, without loading a driver."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def answer_demand(config: Config, n_shards: int | None = None, index: Index | None = None) -> Demand:
    """Sum the resources of the answer job: retrievers of every shard, and the replicas of every deployment it uses.

    A configuration that does not say how many retrievers needs one: more start where there is room. Without
    ``n_shards``, the index has as many shards as it is configured to have. Of an ``index`` that is there, a shard must
    fit a retriever's GPU.
    """
    retriever = config.cluster.retriever
    n, models = (
        (retriever.replicas or 1) * (n_shards or config.index.n_known_shards),
        replicas_demand(config.used_deployments),
    )
    need = None if index is None else retriever_need(config, index)
    return Demand(
        n * retriever.cpus + models.cpus,
        n * retriever.n_gpus + models.gpus,
        " and ".join(part for part in (pluralize(n, "retriever"), models.reason) if part),
        {**config.cluster.resources, **models.custom},
        {"a retriever": NodeNeed(n, {"CPU": retriever.cpus, "GPU": retriever.n_gpus}), **models.on_a_node},
        {**({} if need is None else {"a retriever": need}), **models.on_a_card},
    )


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
            on_a_node[f"a replica of {name}"] = NodeNeed(deployment.n_engines, resources_on_a_node(deployment))
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
    """Sum the resources of the index job: encoders, one CPU for parsing, and the GPUs that build the index."""
    index, n = config.index, encoders.n
    custom = {kind: amount * n for kind, amount in index.resources.items()}
    each = {"CPU": 0.0, "GPU": index.encoder_gpus} if encoders.gpu else {"CPU": 1.0, "GPU": 0.0}
    build = " and the builder" if index.n_build_gpus else ""
    on_a_node = {
        "an encoder": NodeNeed(n, {**each, **index.resources}),
        "the builder": NodeNeed(1, {"GPU": index.n_build_gpus}),
    }
    gpus = n * each["GPU"] + index.n_build_gpus
    need = None
    if encoders.gpu and isinstance(index.encoder, EncoderConfig):
        need = encoder_need(config, index.encoder)
    on_a_card = {} if need is None else {"an encoder": need}
    return Demand(1 if encoders.gpu else n, gpus, f"{pluralize(n, 'encoder')}{build}", custom, on_a_node, on_a_card)


def caption_demand(config: Config) -> Demand | None:
    """Sum the replicas that describe images, which are up while nothing is encoded; None: none are started."""
    demand = replicas_demand(config.caption_deployments)
    return demand if demand.reason else None


def _n_that_fit(config: Config, nodes: Sequence[Mapping[str, float]], gpu: bool) -> int:
    index = config.index
    each = {**({"GPU": index.encoder_gpus} if gpu else {"CPU": 1.0}), **index.resources}
    n_build_gpus = index.n_build_gpus if gpu else 0.0
    fits = [count_places(node, each) for node in nodes]
    taken = (
        n - count_places({**node, "GPU": node.get("GPU", 0.0) - n_build_gpus}, each)
        for node, n in zip(nodes, fits, strict=True)
        if node.get("GPU", 0.0) >= n_build_gpus
    )
    return max(int(sum(fits) - min(taken, default=0)), 1)


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
    if groups is None and (many := too_many(demand.on_a_node, [resources] if nodes is None else nodes)):
        raise ConfigError(f"{many}: lower what each takes or their number, or add nodes")


def too_large(on_a_node: Mapping[str, NodeNeed], nodes: Sequence[Mapping[str, float]]) -> str:
    """Describe what fits no node of a cluster, given by who needs it on one node; empty if all does."""
    for who, needed in ((who, need.each) for who, need in on_a_node.items()):
        if any(all(amount <= node.get(kind, 0.0) for kind, amount in needed.items()) for node in nodes):
            continue
        for kind, amount in needed.items():
            largest = max((node.get(kind, 0.0) for node in nodes), default=0.0)
            if amount > largest:
                return f"{who} needs {pluralize(amount, kind)} on one node but the largest node has {largest:g}"
        kinds = " and ".join(pluralize(amount, kind) for kind, amount in needed.items() if amount)
        return f"{who} needs {kinds} on one node but no node has them together"
    return ""


def too_many(on_a_node: Mapping[str, NodeNeed], nodes: Sequence[Mapping[str, float]]) -> str:
    """Describe what fits the nodes together and not one by one; empty if it may all start.

    Of all that need as much as one of them, or as much of one kind, each takes a place of that one: where there are
    fewer places, some would wait for ever. It is no plan of who lies where, and refuses nothing that some plan starts.
    """
    for who, need in on_a_node.items():
        for least in (*({kind: amount} for kind, amount in need.each.items()), need.each):
            n = sum(
                other.n
                for other in on_a_node.values()
                if all(other.each.get(kind, 0.0) >= amount for kind, amount in least.items())
            )
            places = sum(count_places(node, least) for node in nodes)
            if n > places:
                kinds = [kind for kind, amount in least.items() if amount]
                amounts = " and ".join(pluralize(least[kind], kind) for kind in kinds)
                where = "GPU" if least.get("GPU", 1.0) < 1 else "node"
                largest = " and ".join(pluralize(max(node.get(kind, 0.0) for node in nodes), kind) for kind in kinds)
                return (
                    f"{who} needs {amounts} on one {where}, and {n} start that need as much, but there is room for "
                    f"{places:g} on {pluralize(len(nodes), 'node')}, of which the largest has {largest}"
                )
    n_gpus = sum(int(node.get("GPU", 0.0)) for node in nodes)
    for who, need in on_a_node.items():
        share = need.each.get("GPU", 0.0)
        if 0 < share <= 0.5 and (n := _least_gpus(on_a_node.values(), share)) > n_gpus:
            return (
                f"{who} needs {share:g} GPUs on one GPU, which those that need more leave on none: together they fill "
                f"{n} GPUs but there are {n_gpus}"
            )
    return ""


def _least_gpus(needs: Iterable[NodeNeed], least: float) -> int:
    """Bound from below the GPUs that hold all shares of ``least`` and more (Martello and Toth 1990, L2)."""
    n, free, small = 0, 0.0, 0.0
    for need in needs:
        share = need.each.get("GPU", 0.0)
        if share > 0.5:
            n += need.n * math.ceil(share - 1e-9)
            free += need.n * (1 - share if share <= 1 - least + 1e-9 else 0.0)
        elif share >= least:
            small += need.n * share
    return n + max(math.ceil(small - free - 1e-9), 0)


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
