"""How many retrievers a job starts and on what, by encoder, nodes and replicas (findings/gpu5.md, G1)."""

from __future__ import annotations

import pytest
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.run.checks import retrievers
from kohaku_ray.run.checks.retrievers import plan_retrievers, wanted_retrievers

GIB = 1 << 30
PARAMETERS = {"minilm": 22_714_240, "bge_m3": 568_000_000, "jina_v4": 3_800_000_000, "qwen3_8b": 7_570_000_000}
KUBERAY = [{"CPU": 16, "memory": 64 * GIB}] * 16
"""The nodes of group `cpu` of cluster/rayjob.yaml."""


def plan(monkeypatch, encoder, node, *overrides, preset="vllm", index_gib=1, n_shards=1, most=None):
    monkeypatch.setattr(retrievers, "weight_bytes", lambda model, revision, size=0: PARAMETERS[encoder] * (size or 2))
    nodes = [{"CPU": node[0], "GPU": node[1], "memory": (node[2] if len(node) > 2 else 1000) * GIB}]
    return plan_retrievers(
        load_config(preset, list(overrides)),
        n_shards,
        nodes,
        most_nodes=most,
        index_bytes=index_gib * GIB,
        card_bytes=80 * GIB,
    )


LARGE, SMALL = (192, 8), (26, 2)
SEVEN = "deployments.qwen.replicas=7"


@pytest.mark.parametrize(
    ("encoder", "node", "overrides", "expected"),
    [
        ("minilm", LARGE, [SEVEN], (2, 0.5)),
        ("bge_m3", LARGE, [SEVEN], (2, 0.5)),
        ("jina_v4", LARGE, [SEVEN], (2, 0.5)),
        ("qwen3_8b", LARGE, [SEVEN], (2, 0.5)),
        ("minilm", SMALL, [], (1, 1.0)),
        ("bge_m3", SMALL, [], (1, 1.0)),
        ("jina_v4", SMALL, [], (1, 1.0)),
        ("qwen3_8b", SMALL, [], (1, 1.0)),
        ("minilm", (26, 1), [], (1, 0.0)),
        ("bge_m3", (26, 1), [], (6, 0.0)),
        ("bge_m3", (4, 1), [], (3, 0.0)),
        ("bge_m3", (26, 1, 9), [], (2, 0.0)),  # 4.1 GiB each: encoder in float32, index, process
        ("jina_v4", (26, 1), ["deployments.qwen.gpus=0.75"], (1, 0.25)),
        ("jina_v4", (26, 1, 100), ["cluster.retriever.gpus=0"], (6, 0.0)),  # 16.2 GiB each, of 25 that are wanted
        ("jina_v4", (26, 1, 100), ["index.encoder.device=cpu"], (6, 0.0)),
        ("jina_v4", (26, 1), ["cluster.retriever.gpus=0", "cluster.retriever.replicas=2"], (2, 0.0)),
        ("bge_m3", (26, 8), ["deployments.qwen.replicas=4", "cluster.retriever.replicas=3"], (3, 1.0)),
    ],
)
def test_retrievers_share_the_gpus_that_replicas_leave_or_have_cpus_and_memory(
    monkeypatch, encoder, node, overrides, expected
):
    made = plan(monkeypatch, encoder, node, *overrides)
    assert (made.n, made.gpus) == expected


def test_the_hybrid_preset_on_two_gpus_encodes_where_the_ranker_is(monkeypatch):
    made = plan(monkeypatch, "bge_m3", SMALL, preset="hybrid_vllm")
    assert (made.n, made.gpus) == (1, 0.5)


@pytest.mark.parametrize("node", [(26, 1), (26, 0)])
def test_a_large_encoder_is_on_cpus_only_if_asked(monkeypatch, node):
    with pytest.raises(ConfigError, match=r"of 3\.8 billion parameters.* finds no GPU for it .*retriever\.gpus to 0"):
        plan(monkeypatch, "jina_v4", node, *(["deployments.qwen.application=up"] if not node[1] else []))


def test_a_node_without_the_memory_of_one_retriever_is_refused_with_both_sizes(monkeypatch):
    with pytest.raises(ConfigError, match=r"needs 3\.1 GiB of its node's memory.* largest node has 3\.0 GiB: "):
        plan(monkeypatch, "bge_m3", (26, 1, 3))
    assert plan(monkeypatch, "bge_m3", (26, 1, 4)).n == 1, "what the process takes beside them is no reason"
    with pytest.raises(ConfigError, match=r"needs 300\.0 GiB .* but the largest node has 100\.0 GiB"):
        plan(monkeypatch, "minilm", (26, 8, 100), "cluster.retriever.gpus=1", index_gib=300)


def test_a_cluster_that_grows_has_no_more_than_its_groups_may_have(monkeypatch):
    grows = ("cluster.autoscaling=true", "deployments.qwen.replicas=8")
    assert plan(monkeypatch, "bge_m3", (16, 0), *grows, most=KUBERAY).n == 44
    assert plan(monkeypatch, "bge_m3", (16, 0), *grows, most=KUBERAY[:3]).n == 40, "48 CPUs, of which replicas take 8"
    assert plan(monkeypatch, "bge_m3", (16, 0), *grows).n == 44, "nothing tells what there may be"
    with pytest.raises(ConfigError, match=r"of 3\.8 billion parameters"):
        plan(monkeypatch, "jina_v4", (16, 0), *grows, most=KUBERAY)
    asked = plan(monkeypatch, "jina_v4", (16, 0), *grows, "cluster.retriever.gpus=0", most=KUBERAY)
    assert asked.n == 16 * 3, "of 289 that are wanted, three on a node of 64 GiB"


def asked(*overrides: str):
    return load_config("demo", ["deployments.extractive={kind: extractive, replicas: 64}", *overrides])


@check_rows(
    ("overrides", "n_shards", "resources", "expected"),
    [
        (("cluster.retriever.replicas=3",), 1, {"CPU": 68}, 3),
        ((), 1, {"CPU": 68}, 4),
        ((), 3, {"CPU": 68}, 1),
        ((), 1, {"CPU": 64}, 1),  # what has no room is said by the demand's check, not here
        (("cluster.retriever.cpus=0.5",), 1, {"CPU": 68}, 8),
        (("cluster.retriever.cpus=0",), 1, {"CPU": 64}, 25),
        (("cluster.retriever.gpus=0.5",), 1, {"CPU": 100, "GPU": 2}, 4),
        (("cluster.autoscaling=true",), 1, {"CPU": 0}, 25),
    ],
)
def test_retrievers_by_default_are_no_more_than_there_is_room_for(overrides, n_shards, resources, expected):
    config = asked("ensemble.members=5", *overrides)
    assert plan_retrievers(config, n_shards, [resources], index_bytes=None, card_bytes=None).n == expected


def test_no_more_retrievers_of_two_cpus_start_than_nodes_have_room_for():
    """By the sum of their CPUs four nodes of 9 had room for 16; those that no node has room for were waited for."""
    config = load_config("demo", ["deployments.extractive.replicas=4", "cluster.retriever.cpus=2"])
    nodes = [{"CPU": 9.0}] * 4
    assert plan_retrievers(config, 1, nodes, index_bytes=None, card_bytes=None, search_ms=99.0).n == 4 * 4 - 4


def test_models_on_cpus_keep_one_retriever_of_a_large_encoder_busy(monkeypatch):
    monkeypatch.setattr(retrievers, "weight_bytes", lambda *_: PARAMETERS["bge_m3"])
    assert wanted_retrievers(load_config("vllm"), on_gpus=False) == 6
    assert wanted_retrievers(load_config("vllm", ["deployments.qwen.cpus=4"]), on_gpus=False) == 1
