"""What no worker group of a growing cluster has is refused: a job would wait for a node that never comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kohaku_ray.checks.demand import answer_demand, check_demand
from kohaku_ray.config import load_config
from kohaku_ray.engine import worker_groups
from kohaku_ray.engine.worker_groups import read_most_resources, read_worker_groups
from kohaku_ray.errors import ConfigError

CLUSTER = Path(__file__).parents[2] / "cluster"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_CLUSTER_NAME", raising=False)


@pytest.fixture
def on_kuberay(monkeypatch, tmp_path):
    """Let a RayCluster of this specification be the one whose head this is; its API server answers as Kubernetes'."""

    def start(spec: dict) -> None:
        from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

        namespace = tmp_path / "namespace"
        namespace.write_text("jobs")
        monkeypatch.setattr(worker_groups, "KUBERNETES_NAMESPACE", namespace)
        monkeypatch.setenv("RAY_CLUSTER_NAME", "kohaku-answer-x")

        def get(self, path: str) -> dict:
            assert (self._namespace, path) == ("jobs", "rayclusters/kohaku-answer-x")
            return {"metadata": {"name": "kohaku-answer-x", "namespace": "jobs"}, "spec": spec}

        monkeypatch.setattr(KubernetesHttpApiClient, "get", get)

    return start


def spec() -> dict:
    return yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())["spec"]["rayClusterSpec"]


def check(*overrides: str) -> None:
    """Check a job of the shipped configuration against the groups, with no worker there yet."""
    config = load_config(str(CLUSTER / "job.yaml"), list(overrides))
    check_demand(answer_demand(config), {}, nodes=[{}], autoscaling=True, groups=read_worker_groups())


def test_a_card_that_no_group_of_kuberay_declares_is_refused_with_the_line_that_declares_it(on_kuberay):
    on_kuberay(spec())
    assert set(read_worker_groups()) == {"cpu", "encoders", "replicas", "replicas-spot"}
    check()
    with pytest.raises(
        ConfigError,
        match=r"1 replica of qwen need accelerator_type:H100 \(deployments\.\*\.accelerator\) but no node and no "
        r"worker group \(cpu, encoders, replicas, replicas-spot\) declares it, .*: add accelerator_type:H100: 1 to",
    ):
        check("deployments.qwen.accelerator=H100")


def test_a_card_that_a_group_declares_as_the_file_says_is_waited_for(on_kuberay):
    given = spec()
    [group] = [group for group in given["workerGroupSpecs"] if group["groupName"] == "replicas"]
    group["rayStartParams"]["resources"] = json.dumps(json.dumps({"replica_node": 1, "accelerator_type:H100": 1}))
    on_kuberay(given)
    check("deployments.qwen.accelerator=H100")


def test_a_replica_larger_than_a_node_of_any_group_is_refused(on_kuberay):
    on_kuberay(spec())
    with pytest.raises(ConfigError, match=r"a replica of qwen needs 16 GPUs on one node but the largest node has 8"):
        check("deployments.qwen.tensor_parallel=16")


def test_the_groups_of_rays_cluster_launcher_are_those_that_may_have_nodes(tmp_path):
    (tmp_path / "ray_bootstrap_config.yaml").write_text((CLUSTER / "autoscaler.yaml").read_text())
    assert set(read_worker_groups()) == {"cpu", "encoders", "replicas", "replicas-spot"}
    check()
    with pytest.raises(ConfigError, match=r"no worker group .* declares it"):
        check("deployments.qwen.accelerator=L4")
    types = yaml.safe_load((CLUSTER / "autoscaler.yaml").read_text())["available_node_types"]
    assert read_most_resources()["cpu_node"] == types["cpu"]["max_workers"]


def test_where_nothing_tells_the_groups_nothing_is_refused(tmp_path, monkeypatch):
    assert read_worker_groups() is read_most_resources() is None
    check("deployments.qwen.accelerator=H100")
    (tmp_path / "ray_bootstrap_config.yaml").write_text("[1]")
    assert read_worker_groups() is None
