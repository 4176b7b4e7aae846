"""What a job asks of a cluster: retrievers per shard, encoders per GPU, the builder."""

import re

import pytest
from kit.rows import check_rows

from kohaku_ray.checks import demand as demands
from kohaku_ray.checks.demand import (
    Encoders,
    answer_demand,
    caption_demand,
    check_demand,
    index_demand,
    local_node,
    n_retrievers,
    plan_encoders,
)
from kohaku_ray.collection import indexes
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.index import gpu


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
        (("index.encoders=7",), 4, 7),
        (("index.encoder.device=cuda",), 0, 1),
    ],
)
def test_as_many_encoders_as_fit_the_gpus(overrides, gpus, expected):
    it = config(*overrides)
    encoders, of_images = plan_encoders(it, [{"CPU": 16, "GPU": gpus}])
    assert encoders == of_images == Encoders(expected, gpu=True)
    demand = index_demand(it, encoders)
    assert demand.gpus == pytest.approx(expected * it.index.encoder_gpus)
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
        (served("tensor_parallel: 2, pipeline_parallel: 3"), of(2, 3), ""),  # its groups may lie on several nodes
        (("cluster.retriever={replicas: 2, gpus: 0.25}", *served("gpus: 0.75, replicas: 2")), of(1, 2), ""),
        (
            ("cluster.retriever.gpus=0.25", *served("replicas: 2")),
            of(1, 2),
            "the cluster has 2 GPUs but 1 retriever and 1 replica of extractive and 2 replicas of m0 need 2.25: lower",
        ),
    ],
)
def test_what_the_cluster_or_its_largest_node_has_not_is_refused_before_it_is_waited_for(overrides, nodes, message):
    demand = answer_demand(config(*overrides))
    total = {kind: sum(node[kind] for node in nodes) for kind in ("CPU", "GPU")}
    if not message:
        check_demand(demand, total, nodes=nodes)
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_demand(demand, total, nodes=nodes)
    check_demand(demand, total, nodes=nodes, autoscaling=True)
    larger = {"group": {kind: 8 * amount for kind, amount in nodes[0].items()}}
    if nodes[0]["GPU"] or "GPU" not in message:
        check_demand(demand, total, nodes=nodes, autoscaling=True, groups=larger)


def test_encoders_are_planned_by_what_each_node_has_room_for():
    two, apart = config("index.encoder_gpus=2"), config("index.resources={encoder_node: 0.001}")
    encoders, _ = plan_encoders(two, of(2, 3))
    check_demand(index_demand(two, encoders), {"CPU": 32, "GPU": 6}, nodes=of(2, 3))
    assert encoders.n == 2
    nodes = [*of(2, 1), {"CPU": 16, "GPU": 2, "encoder_node": 1}]
    assert plan_encoders(apart, nodes)[0] == Encoders(2, gpu=True)


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


ENCODERS = {"minilm": 22_714_240, "bge_m3": 568_000_000}


@check_rows(
    ("overrides", "n_shards", "resources", "expected"),
    [
        (("cluster.retriever.replicas=3",), 1, {"CPU": 68}, 3),
        ((), 1, {"CPU": 168}, 25),  # what 64 replicas need
        ((), 1, {"CPU": 68}, 4),
        ((), 3, {"CPU": 68}, 1),
        ((), 1, {"CPU": 64}, 1),  # what has no room is said by the demand's check, not here
        (("cluster.retriever.cpus=0.5",), 1, {"CPU": 68}, 8),
        (("cluster.retriever.cpus=0",), 1, {"CPU": 64}, 25),
        (("cluster.retriever.gpus=0.5",), 1, {"CPU": 100, "GPU": 2}, 4),
        (("cluster.retriever.gpus=0.5",), 1, {"CPU": 67, "GPU": 2}, 3),
        ((), 1, None, 25),  # it grows, and nothing tells how far
    ],
)
def test_retrievers_are_what_replicas_need_and_no_more_than_these_leave_room_for(
    overrides, n_shards, resources, expected
):
    asked = config("deployments.extractive={kind: extractive, replicas: 64}", "ensemble.members=5", *overrides)
    assert n_retrievers(asked, n_shards, resources) == expected


@check_rows(
    ("encoder", "overrides", "resources", "expected"),
    [
        ("minilm", (), {"CPU": 26, "GPU": 2}, 1),
        ("bge_m3", (), {"CPU": 26, "GPU": 2}, 6),
        ("bge_m3", (), {"CPU": 4, "GPU": 2}, 3),
        ("bge_m3", ("cluster.retriever.gpus=0.25",), {"CPU": 26, "GPU": 2}, 1),
        ("bge_m3", ("deployments.qwen.cpus=4",), {"CPU": 26}, 1),  # a model on CPUs keeps one busy
    ],
)
def test_a_large_encoder_of_queries_on_cpus_has_more_retrievers(monkeypatch, encoder, overrides, resources, expected):
    monkeypatch.setattr(demands, "weight_bytes", lambda model, revision, size=0: ENCODERS[encoder])
    assert n_retrievers(load_config("vllm", list(overrides)), 1, resources) == expected


def test_the_type_of_a_local_gpu_is_read_as_ray_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(demands, "local_gpus", lambda: 1)
    monkeypatch.setattr(demands, "LOCAL_CARDS", tmp_path)
    for number, model in enumerate(("NVIDIA H100 80GB HBM3", "Tesla T4")):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 1\n")
    assert {kind for kind in local_node(config()) if ":" in kind} == {"accelerator_type:H100", "accelerator_type:T4"}


def test_auto_is_answered_with_what_to_write_instead():
    with pytest.raises(ConfigError, match=r"cluster\.retriever\.gpus is auto, which left in 0\.2: .*leave it out"):
        config("cluster.retriever.gpus=auto")
