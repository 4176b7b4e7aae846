"""What a job asks of a cluster: retrievers per shard, encoders per GPU, the builder."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.index import gpu
from kohaku_ray.run.checks import free_gpus
from kohaku_ray.run.checks.demand import (
    Encoders,
    NodeNeed,
    answer_demand,
    caption_demand,
    check_demand,
    index_demand,
    plan_encoders,
    too_many,
)
from kohaku_ray.run.collection import indexes


def config(*overrides: str):
    return load_config("demo", list(overrides))


@pytest.mark.parametrize(
    ("overrides", "n_shards", "cpus", "gpus", "who"),
    [
        ((), None, 2, 0, "1 retriever"),
        (("cluster.retriever={replicas: 3, cpus: 2, gpus: 0.5}",), None, 7, 1.5, "3 retrievers"),
        (("index.shards=4", "cluster.retriever.cpus=0.5"), None, 3, 0, "4 retrievers"),
        (("cluster.retriever.gpus=1",), 3, 4, 3, "3 retrievers"),
    ],
)
def test_retrievers_of_every_shard_are_asked_for(overrides, n_shards, cpus, gpus, who):
    demand = answer_demand(config(*overrides), n_shards)
    assert (demand.cpus, demand.gpus) == (cpus, gpus)
    assert demand.reason.startswith(who)


@check_rows(
    ("overrides", "gpus", "expected"),
    [
        ((), 4, 4),
        (("index.encoder_gpus=0.5",), 4, 8),
        (("index.encoder_gpus=0.4",), 3, 6),
        (("index.encoder_gpus=0.1",), 1, 10),
        (("index.encoder_gpus=2",), 5, 2),
        (("index.build_gpus=1",), 4, 3),
        (("index.build_gpus=0.5", "index.encoder_gpus=0.5"), 1, 1),
        (("index.encoders=7",), 4, 7),
        (("index.encoder.device=cuda",), 0, 1),
    ],
)
def test_as_many_encoders_as_fit_the_gpus(overrides, gpus, expected):
    it = config(*overrides)
    encoders, of_images = plan_encoders(it, [{"CPU": 16, "GPU": gpus}])
    assert encoders == of_images == Encoders(expected, gpu=True)
    demand = index_demand(it, encoders)
    assert demand.gpus == pytest.approx(expected * it.index.encoder_gpus + it.index.n_build_gpus)
    if it.index.encoders is None and gpus:
        check_demand(demand, {"CPU": 16, "GPU": gpus})


def test_an_encoder_fits_a_node_with_all_that_it_asks_for():
    it = config("index.encoder_gpus=2", "index.encoders=1", "index.resources={encoder_node: 0.001}")
    demand = index_demand(it, Encoders(1, gpu=True))
    resources = {"CPU": 4, "GPU": 4, "encoder_node": 1}
    with pytest.raises(ConfigError, match="an encoder needs 2 GPUs on one node but the largest node has 1"):
        check_demand(demand, resources, nodes=[{"CPU": 1, "GPU": 1, "encoder_node": 1}, *[{"CPU": 1, "GPU": 1}] * 3])
    with pytest.raises(ConfigError, match=r"an encoder needs 2 GPUs and 0\.001 encoder_nodes on one node but no node"):
        check_demand(demand, resources, nodes=[{"CPU": 2, "GPU": 4}, {"CPU": 2, "encoder_node": 1}])
    check_demand(demand, resources, nodes=[{"CPU": 4, "GPU": 4, "encoder_node": 1}])


def served(*models: str):
    entries = (f"m{n}: {{kind: vllm, model: m, {model}}}" for n, model in enumerate(models))
    names = ", ".join(f"m{n}" for n in range(len(models)))
    ensemble = (f"ensemble.models=[{names}]", f"ensemble.members={len(models)}")
    return f"deployments={{{', '.join(entries)}}}", *ensemble


def of(n: int, gpus: float, cpus: float = 16) -> list[dict[str, float]]:
    return [{"CPU": cpus, "GPU": gpus}] * n


@check_rows(
    ("overrides", "nodes", "message"),
    [
        (served("tensor_parallel: 4"), of(2, 2), "a replica of m0 needs 4 GPUs on one node but the largest node has 2"),
        (("cluster.retriever.cpus=8",), of(4, 0, 4), "a retriever needs 8 CPUs on one node but the largest node has 4"),
        (
            served("gpus: 0.6, replicas: 3"),
            of(1, 2),
            "a replica of m0 needs 0.6 GPUs on one GPU, and 3 start that need as much, but there is room for 2 on 1 "
            "node, of which the largest has 2 GPUs: lower",
        ),
        (served("gpus: 0.6, replicas: 3"), of(1, 3), ""),
        (served("gpus: 0.6, replicas: 2", "gpus: 0.7"), of(1, 2), "a replica of m0 needs 0.6 GPUs on one GPU, and 3"),
        (served("gpus: 0.6, replicas: 2", "gpus: 0.4"), of(1, 2), ""),
        (served("gpus: 0.5", "gpus: 0.5, replicas: 3"), of(2, 1), ""),
        (
            served("tensor_parallel: 2, replicas: 3"),
            of(2, 3),
            "a replica of m0 needs 2 GPUs on one node, and 3 start that need as much, but there is room for 2 on 2 "
            "nodes, of which the largest has 3 GPUs",
        ),
        (served("tensor_parallel: 2, pipeline_parallel: 3"), of(2, 3), ""),  # its groups may lie on several nodes
        (("cluster.retriever={replicas: 3, cpus: 3}",), of(2, 0, 5), "a retriever needs 3 CPUs on one node, and 3"),
        (("cluster.retriever={replicas: 2, cpus: 3}",), of(2, 0, 5), ""),
        (
            ("cluster.retriever.gpus=0.25", *served("gpus: 0.8, replicas: 2")),
            of(1, 2),
            "a retriever needs 0.25 GPUs on one GPU, which those that need more leave on none: together they fill 3 "
            "GPUs but there are 2",
        ),
        (("cluster.retriever={replicas: 2, gpus: 0.25}", *served("gpus: 0.75, replicas: 2")), of(1, 2), ""),
        (("cluster.retriever={replicas: 4, gpus: 0.2}", *served("gpus: 0.6, replicas: 2")), of(2, 1), ""),
        (served("gpus: 0.4, replicas: 5"), of(1, 2), "a replica of m0 needs 0.4 GPUs on one GPU, and 5 start"),
    ],
)
def test_what_fits_by_its_sum_and_no_node_or_gpu_is_refused_before_it_is_waited_for(overrides, nodes, message):
    demand = answer_demand(config(*overrides))
    total = {kind: sum(node[kind] for node in nodes) for kind in ("CPU", "GPU")}
    if not message:
        check_demand(demand, total, nodes=nodes)
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_demand(demand, total, nodes=nodes)
    check_demand(demand, total, nodes=nodes, autoscaling=True)
    larger = {"group": {kind: 8 * amount for kind, amount in nodes[0].items()}}
    check_demand(demand, total, nodes=nodes, autoscaling=True, groups=larger)


def can_start(units: list[dict[str, float]], nodes: list[dict[str, float]]) -> bool:
    """Whether some order of first fits starts all, with shares of GPUs on one each."""
    for order in itertools.permutations(units):
        left = [(node["CPU"], [1.0] * int(node["GPU"])) for node in nodes]
        for unit in order:
            for position, (cpus, cards) in enumerate(left):
                taken = free_gpus._cards_for(unit["GPU"], cards) if unit["GPU"] else []
                if unit["CPU"] <= cpus + 1e-9 and (taken or not unit["GPU"]):
                    left[position] = (cpus - unit["CPU"], cards)
                    for card in taken:
                        cards[card] -= min(unit["GPU"], 1.0)
                    break
            else:
                break
        else:
            return True
    return False


needs = st.builds(
    lambda n, cpus, gpus: NodeNeed(n, {"CPU": cpus, "GPU": gpus}),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
    st.sampled_from([0.0, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.8, 1.0, 2.0]),
)


@given(
    st.lists(needs, min_size=1, max_size=3).filter(lambda all_needs: sum(need.n for need in all_needs) <= 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=3),
)
def test_nothing_is_refused_that_some_order_of_starting_starts(all_needs, sizes):
    nodes = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in sizes]
    if too_many({f"need {number}": need for number, need in enumerate(all_needs)}, nodes):
        assert not can_start([dict(need.each) for need in all_needs for _ in range(need.n)], nodes)


def test_encoders_are_planned_by_what_each_node_has_room_for():
    two, apart = config("index.encoder_gpus=2"), config("index.resources={encoder_node: 0.001}")
    encoders, _ = plan_encoders(two, of(2, 3))
    check_demand(index_demand(two, encoders), {"CPU": 32, "GPU": 6}, nodes=of(2, 3))
    assert encoders.n == 2
    nodes = [*of(2, 1), {"CPU": 16, "GPU": 2, "encoder_node": 1}]
    assert plan_encoders(apart, nodes)[0] == Encoders(2, gpu=True)
    with pytest.raises(ConfigError, match=r"an encoder needs 0\.6 GPUs on one GPU, and 3 start .* room for 2"):
        check_demand(index_demand(config("index.encoder_gpus=0.6"), Encoders(3, gpu=True)), {"CPU": 8, "GPU": 2})


IMAGES = ("index.images=true", "index.image_vectors=image", "index.image_encoder.model=some/clip")


@check_rows(
    ("overrides", "of_texts", "of_images"),
    [
        (IMAGES, Encoders(2, True), Encoders(2, True)),
        ((*IMAGES, "index.encoder.device=cpu"), Encoders(16, False), Encoders(2, True)),
        ((*IMAGES, "index.encoder.device=cpu", "index.encoders=8"), Encoders(8, False), Encoders(2, True)),
        ((*IMAGES, "index.image_encoder.device=cpu", "index.encoders=1"), Encoders(1, True), Encoders(1, False)),
        (("index.encoder.device=cpu",), Encoders(16, False), Encoders(16, False)),
    ],
)
def test_each_encoder_gets_what_its_own_settings_ask_for(overrides, of_texts, of_images):
    assert plan_encoders(config(*overrides), [{"CPU": 16, "GPU": 2}]) == (of_texts, of_images)


@check_rows(("n_bytes", "n"), [(0, 1), (50_000, 1), (1 << 18, 5), (1 << 30, 16), (None, 16)])
def test_few_documents_get_few_encoders_on_cpus(n_bytes, n):
    of_texts, of_images = plan_encoders(config("index.encoder.device=cpu"), [{"CPU": 16}], n_bytes)
    assert (of_texts, of_images) == (Encoders(n, False), Encoders(16, False))
    assert plan_encoders(config("index.encoders=3"), [{"CPU": 16}], n_bytes)[0].n == 3
    assert plan_encoders(config(), [{"CPU": 16, "GPU": 2}], n_bytes)[0].n == 2


def test_faiss_searches_where_the_retriever_has_a_gpu(monkeypatch):
    without, with_gpu = config(), config("cluster.retriever.gpus=0.5")
    monkeypatch.setattr(gpu, "missing", lambda: "")
    assert not indexes.searches_on_gpu(without)
    assert indexes.searches_on_gpu(with_gpu)
    assert not indexes.searches_on_gpu(config("cluster.retriever.gpus=0.5", "index.search_device=cpu"))
    monkeypatch.setattr(gpu, "missing", lambda: "this process sees no GPU")
    assert not indexes.searches_on_gpu(with_gpu), "auto falls back to the CPU"
    asked = config("cluster.retriever.gpus=0.5", "index.search_device=cuda")
    with pytest.raises(ConfigError, match=r"search_device is cuda, but this process sees no GPU; or set it to auto"):
        indexes.searches_on_gpu(asked)
    with pytest.raises(ConfigError, match=r"search_device is cuda but cluster\.retriever\.gpus is 0"):
        config("index.search_device=cuda", "cluster.retriever.gpus=0")


def test_replicas_that_describe_images_are_asked_for():
    overrides = ("index.images=true", "index.captions=model", "roles.caption.model=eyes")
    eyes = "deployments.eyes={kind: vllm, model: /models/eyes, vision: true, replicas: 2, tensor_parallel: 4}"
    demand = caption_demand(config(*overrides, eyes))
    assert (demand.cpus, demand.gpus, demand.reason) == (2, 8, "2 replicas of eyes")
    with pytest.raises(ConfigError, match=r"the cluster has 4 GPUs but 2 replicas of eyes need 8"):
        check_demand(demand, {"CPU": 8, "GPU": 4})
    assert caption_demand(config(*overrides, eyes, "deployments.eyes.application=up")) is None, "it stands already"
    assert caption_demand(config(eyes)) is None, "no image is described"
