"""What ``auto`` becomes: GPUs that replicas leave free, by tables of clusters, demands and sizes."""

import re
from types import SimpleNamespace

import pytest
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.engine.actors import pool
from kohaku_ray.run.checks import free_gpus
from kohaku_ray.run.checks.cards import card_bytes
from kohaku_ray.run.checks.free_gpus import (
    FreeNode,
    choose_build_gpus,
    choose_retriever_gpus,
    local_node,
    nodes_left,
    search_device,
)
from kohaku_ray.run.collection.indexes import index_settings

GIB = 1 << 30
NO_GPU_FAISS = "the FAISS that is installed is the one for CPUs"


def config(*overrides: str):
    return load_config("demo", list(overrides))


def serving(*models: str):
    entries = (f"m{n}: {{kind: vllm, model: m, {model}}}" for n, model in enumerate(models))
    return config(f"deployments={{{', '.join(entries)}}}")


def node(gpus: float, cpus: float = 16, **resources: float) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus, **resources} if gpus else {"CPU": cpus, **resources}


@check_rows(
    ("nodes", "models", "cards"),
    [
        ([node(0)], [], [()]),
        ([node(8)], [], [(1,) * 8]),
        ([node(8)], ["replicas: 4"], [(1,) * 4]),
        ([node(8)], ["replicas: 4, max_replicas: 8"], [()]),
        ([node(8)], ["replicas: 9"], [()]),
        ([node(1)], ["gpus: 0.5"], [(0.5,)]),
        ([node(2)], ["gpus: 0.5, replicas: 3"], [(0.5,)]),
        ([node(2)], ["gpus: 0.4, replicas: 2"], [(1, 0.2)]),
        ([node(2)], ["gpus: 0.8, replicas: 2"], [(0.2, 0.2)]),  # Ray starts no actor of 0.25 there, as long as it waits
        ([node(2)], ["gpus: 0.6, replicas: 3"], [()]),
        ([node(4), node(4)], ["replicas: 2, tensor_parallel: 3"], [(1,), (1,)]),
        ([node(4), node(4)], ["tensor_parallel: 4, pipeline_parallel: 2"], [(), ()]),
        ([node(4), node(2)], ["tensor_parallel: 2, data_parallel: 2"], [(), (1, 1)]),
        ([node(1), node(8)], ["tensor_parallel: 8"], [(1,), ()]),
        ([node(1), node(1, replica_node=1)], ["resources: {replica_node: 0.001}"], [(1,), ()]),
        ([node(1)], ["application: shared"], [()]),
        ([node(4)], ["replicas: 1", "tensor_parallel: 2"], [(1,)]),
        ([node(4, cpus=2)], ["replicas: 3"], [()]),
        ([node(1)], ["cpus: 2"], [(1,)]),
    ],
)
def test_replicas_that_there_may_be_leave_the_rest_of_each_node(nodes, models, cards):
    deployments = {
        name: deployment for name, deployment in serving(*models).deployments.items() if name != "extractive"
    }
    assert [left.cards for left in nodes_left(nodes, deployments)] == [pytest.approx(card) for card in cards]


@check_rows(
    ("room", "n", "index_gib", "card_gib", "gpus", "reason"),
    [
        ([FreeNode(4, ())], 1, 1, None, 0, "there is no GPU that the models' replicas leave free"),
        ([], 1, 1, None, 0, "there is no GPU that the models' replicas leave free"),
        ([FreeNode(4, (1,))], 1, 1, 80, 1, "index, encoder and FAISS's temporary memory take 6.5 GiB"),
        ([FreeNode(4, (1,))], 1, None, None, 1, "of unknown size"),  # the retriever itself sees whether it fits
        ([FreeNode(4, (1,))], 1, 100, 80, 0, "but a retriever would get 1 of a GPU of 80 GiB: raise index.shards"),
        ([FreeNode(4, (1,)), FreeNode(4, (1,))], 2, 1, 80, 1, "each of 2"),
        ([FreeNode(4, (1,))], 2, 1, 80, 0.5, "each of 2"),
        ([FreeNode(4, (1,))], 3, 1, 80, 0.25, "each of 3"),
        ([FreeNode(4, (1,))], 3, 20, 80, 0, "but a retriever would get 0.25 of a GPU of 80 GiB"),
        ([FreeNode(4, (1,))], 5, 1, 80, 0, r"no room for 5 retrievers"),
        ([FreeNode(4, (1,))], 2, 1, None, 0, "would share GPUs of unknown size"),
        ([FreeNode(4, (0.5,))], 1, 1, 80, 0.5, "each of 1"),
        ([FreeNode(4, (0.5,))], 1, 1, 16, 0.5, "each of 1"),
        ([FreeNode(4, (0.5,))], 1, 2, 12, 0, "of a GPU of 12 GiB"),
        ([FreeNode(4, (0.2,))], 1, 1, 80, 0, "no room"),
        ([FreeNode(4, (0.5, 0.5))], 1, 1, 80, 0.5, "each of 1"),  # two halves are no whole
        ([FreeNode(1, (1, 1))], 2, 1, 80, 0, "no room"),  # each has a CPU too
    ],
)
def test_all_retrievers_get_the_largest_share_that_is_free_and_holds_the_index(
    room, n, index_gib, card_gib, gpus, reason
):
    sizes = {"index_bytes": index_gib and index_gib * GIB, "card_bytes": card_gib and card_gib * GIB}
    choice = choose_retriever_gpus(config(), n, room, **sizes)
    assert choice.gpus == gpus
    assert re.search(reason, choice.reason)


def test_what_another_job_holds_now_is_not_free():
    whole, now = [FreeNode(8, (1, 1))], [FreeNode(8, ())]
    sizes = {"index_bytes": GIB, "card_bytes": 80 * GIB}
    assert choose_retriever_gpus(config(), 1, whole, **sizes).gpus == 1
    assert choose_retriever_gpus(config(), 1, whole, now, **sizes).gpus == 0
    assert choose_retriever_gpus(config(), 1, whole, [FreeNode(8, (0.25,))], **sizes).gpus == 0.25


@check_rows(
    ("overrides", "missing", "gpus", "reason"),
    [
        ((), "", 1, "each of 1"),
        ((), NO_GPU_FAISS, 0, NO_GPU_FAISS),
        (("index.search_device=cpu",), "", 0, "index.search_device is cpu"),
        (("cluster.retriever.gpus=0",), "", 0, "as configured"),
        (("cluster.retriever.gpus=0.3",), NO_GPU_FAISS, 0.3, "as configured"),
    ],
)
def test_settings_and_the_faiss_that_is_installed_decide_before_the_room(overrides, missing, gpus, reason):
    sizes = {"index_bytes": GIB, "card_bytes": 80 * GIB}
    choice = choose_retriever_gpus(config(*overrides), 1, [FreeNode(4, (1,))], missing=missing, **sizes)
    assert (choice.gpus, choice.reason[: len(reason)]) == (gpus, reason)


@check_rows(
    ("overrides", "nodes", "missing", "gpus", "reason"),
    [
        ((), [FreeNode(4, (1,))], "", 0, "index.factory Flat has no inverted lists to train"),
        (("index.factory='IVF64,Flat'",), [FreeNode(4, (1,))], "", 1, "a GPU is free once all is encoded"),
        (("index.factory='IVF64,Flat'",), [FreeNode(4, (1,))], NO_GPU_FAISS, 0, NO_GPU_FAISS),
        (("index.factory='IVF64,Flat'",), [FreeNode(4, ())], "", 0, "no GPU is free"),
        (("index.factory='IVF64,Flat'",), [FreeNode(4, (0.5,))], "", 0, "no GPU is free"),
        (("index.factory='IVF64,Flat'", "index.build_gpus=0"), [FreeNode(4, (1,))], "", 0, "as configured"),
        (("index.build_gpus=2",), [], "", 2, "as configured"),
    ],
)
def test_the_reducer_gets_a_gpu_where_it_trains_lists(overrides, nodes, missing, gpus, reason):
    choice = choose_build_gpus(config(*overrides), nodes, missing)
    assert (choice.gpus, choice.reason) == (gpus, reason)


@check_rows(
    ("kinds", "gib"),
    [(["H100"], 79.2), (["A100"], 39.4), (["H100", "L4"], 22.5), (["H100", "X9"], None), ([None], None), ([], None)],
)
def test_the_smallest_card_of_known_types_counts(kinds, gib):
    nodes = [node(1, **({} if kind is None else {f"accelerator_type:{kind}": 1})) for kind in kinds]
    assert card_bytes([*nodes, node(0)]) == (gib and int(gib * GIB))


def test_the_type_of_a_local_gpu_is_read_as_ray_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(free_gpus, "local_gpus", lambda: 1)
    for number, model in enumerate(("NVIDIA H100 80GB HBM3", "Tesla T4")):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 1\n")
    monkeypatch.setattr(free_gpus, "LOCAL_CARDS", tmp_path)
    assert {kind for kind in local_node(config()) if ":" in kind} == {"accelerator_type:H100", "accelerator_type:T4"}


def test_auto_is_no_part_of_an_indexs_identity_nor_of_the_demand_of_a_cluster_without_gpus(monkeypatch):
    auto, none = config(), config("cluster.retriever.gpus=0", "index.build_gpus=0", "index.search_device=cpu")
    assert index_settings(auto).as_mapping() == index_settings(none).as_mapping()
    monkeypatch.setattr(pool, "node_resources", lambda: [node(0)])
    monkeypatch.setattr(pool, "open_index", lambda _: SimpleNamespace(n_shards=1, shards=[]))
    monkeypatch.setattr(pool, "without_gpu_support", None)  # FAISS is not asked
    assert pool.plan_on_cluster(auto).gpus == 0


@pytest.mark.parametrize(
    ("factory", "gpus", "missing", "expected"),
    [
        ("Flat", 0.0, "", "cpu: retrievers have no GPU"),
        ("Flat", 1.0, "FAISS is that for CPUs", "cpu: FAISS is that for CPUs"),
        ("HNSW32", 1.0, "", "cpu: FAISS has no HNSW32 for GPUs"),
        ("IVF64,Flat", 0.5, "", "cuda, the retriever's GPU; cpu if that cannot hold the index when the job starts"),
    ],
)
def test_where_faiss_searches_by_auto_is_said(factory, gpus, missing, expected):
    config = load_config("demo", [f"index.factory={factory}"])
    assert search_device(config, gpus, missing) == expected
