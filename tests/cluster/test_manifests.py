"""Cluster files: they fit their schemas, keep encoders and replicas apart, and turn token authentication on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from kohaku_ray.config import load_config

CLUSTER = Path(__file__).parents[2] / "cluster"
KUBERAY = ("rayjob.yaml", "rayservice.yaml")

STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
POD = {"type": "object", "required": ["spec"], "properties": {"metadata": {}, "spec": {"type": "object"}}}


def strict(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


COUNT = {"type": "integer", "minimum": 0}
# The fields of ray.io/v1 that our manifests use, from KubeRay's API reference.
RAY_CLUSTER = strict(
    ["rayVersion", "headGroupSpec", "workerGroupSpecs", "authOptions"],
    rayVersion={"type": "string"},
    enableInTreeAutoscaling={"type": "boolean"},
    authOptions=strict(["mode"], mode={"enum": ["disabled", "token"]}, secretName={"type": "string"}),
    headGroupSpec=strict(["rayStartParams", "template"], rayStartParams=STRINGS, template=POD),
    workerGroupSpecs={
        "type": "array",
        "minItems": 1,
        "items": strict(
            ["groupName", "rayStartParams", "template"],
            groupName={"type": "string"},
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            rayStartParams=STRINGS,
            template=POD,
        ),
    },
)
SPECS = {
    "RayJob": strict(
        ["entrypoint", "rayClusterSpec"],
        entrypoint={"type": "string"},
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"]},
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        backoffLimit=COUNT,
        rayClusterSpec=RAY_CLUSTER,
    ),
    "RayService": strict(
        ["serveConfigV2", "rayClusterConfig"], serveConfigV2={"type": "string"}, rayClusterConfig=RAY_CLUSTER
    ),
}


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / name).read_text())


def ray_cluster(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    return spec.get("rayClusterSpec") or spec["rayClusterConfig"]


@pytest.mark.parametrize("name", KUBERAY)
def test_kuberay_manifests_fit_their_schema(name):
    manifest = read(name)
    assert manifest["apiVersion"] == "ray.io/v1"
    jsonschema.validate(manifest["spec"], SPECS[manifest["kind"]])
    cluster = ray_cluster(manifest)
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.30", strict=True)


def test_the_schema_would_see_a_slip():
    broken = read("rayjob.yaml")
    broken["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken["spec"], SPECS["RayJob"])


def test_the_autoscaler_file_fits_rays_own_schema():
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(read("autoscaler.yaml"), schema)


@pytest.mark.parametrize("name", KUBERAY)
def test_token_authentication_is_on_and_groups_stand_apart(name):
    cluster = ray_cluster(read(name))
    assert cluster["authOptions"]["mode"] == "token"
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert {"encoders", "replicas"} <= set(groups)
    for group, resource in (("encoders", "encoder_node"), ("replicas", "replica_node")):
        offered = json.loads(json.loads(groups[group]["rayStartParams"]["resources"]))
        assert offered == {resource: 1}
        assert "nvidia.com/gpu" in groups[group]["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_the_autoscaler_turns_token_authentication_on_and_keeps_the_groups_apart():
    cluster = read("autoscaler.yaml")
    starts = [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    assert all("RAY_AUTH_MODE=token" in command for command in starts if "ray start" in command)
    types = cluster["available_node_types"]
    assert types["encoders"]["resources"]["encoder_node"] == types["replicas"]["resources"]["replica_node"] == 1
    assert "encoder_node" not in types["replicas"]["resources"]


def test_the_resources_the_files_name_are_settings():
    config = load_config(
        "demo",
        [
            "index.resources={encoder_node: 0.001}",
            "deployments.extractive={kind: extractive, resources: {replica_node: 1}}",
        ],
    )
    assert config.index.resources == {"encoder_node": 0.001}
    assert config.deployments["extractive"].resources == {"replica_node": 1}


def test_the_service_names_an_application_that_builds():
    applications = yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"])
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(applications)
    [application] = applications["applications"]
    module, function = application["import_path"].split(":")
    assert (module, function) == ("kohaku_ray.engine.serving.applications", "build")
    config = load_config(application["args"]["config"])
    assert application["args"]["deployment"] in config.deployments


def test_the_image_runs_the_ray_that_is_pinned():
    import ray

    assert f"rayproject/ray:{ray.__version__}-" in (CLUSTER / "Containerfile").read_text()
    assert "RAY_AUTH_MODE=token" in (CLUSTER / "Containerfile").read_text()
    for name in KUBERAY:
        assert ray_cluster(read(name))["rayVersion"] == ray.__version__
