"""Cluster files: they fit their schemas, keep encoders and replicas apart, and turn token authentication on."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from kohaku_ray.config import load_config

CLUSTER = Path(__file__).parents[2] / "cluster"
KUBERAY = ("rayjob.yaml", "rayjob-index.yaml", "rayjob-sweep.yaml", "rayservice.yaml")
ROOT = CLUSTER.parent

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


def groups_of(name: str) -> list[dict[str, Any]]:
    cluster = ray_cluster(read(name))
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def containers(group: dict[str, Any]) -> list[dict[str, Any]]:
    return group["template"]["spec"]["containers"]


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
    assert {"cpu", "encoders"} <= set(groups)
    assert ("replicas" in groups) == ("replicas-spot" in groups) == (name != "rayjob-index.yaml")
    kinds = {"encoders": "encoder_node", "replicas": "replica_node", "replicas-spot": "replica_node"}
    for group, resource in kinds.items():
        if group in groups:
            offered = json.loads(json.loads(groups[group]["rayStartParams"]["resources"]))
            assert offered == {resource: 1}
            assert "nvidia.com/gpu" in containers(groups[group])[0]["resources"]["limits"]


def test_the_autoscaler_turns_token_authentication_on_and_keeps_the_groups_apart():
    cluster = read("autoscaler.yaml")
    starts = [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    assert all("RAY_AUTH_MODE=token" in command for command in starts if "ray start" in command)
    types = cluster["available_node_types"]
    assert types["encoders"]["resources"]["encoder_node"] == types["replicas"]["resources"]["replica_node"] == 1
    assert "encoder_node" not in types["replicas"]["resources"]


def test_the_autoscaler_has_spot_replicas_like_the_others():
    types = read("autoscaler.yaml")["available_node_types"]
    spot, others = types["replicas-spot"], types["replicas"]
    assert spot["resources"] == others["resources"], "deployments ask for the same resource of both"
    assert spot["node_config"] == {**others["node_config"], "InstanceMarketOptions": {"MarketType": "spot"}}
    assert not any(
        "InstanceMarketOptions" in one["node_config"] for name, one in types.items() if name != "replicas-spot"
    )


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


def test_the_service_names_a_vllm_application_that_jobs_attach_to():
    applications = yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"])
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(applications)
    [application] = applications["applications"]
    module, function = application["import_path"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
    asked = application["args"]
    config = load_config(str(in_checkout(asked["config"])))
    served = config.deployments[asked["deployment"]]
    assert served.kind == "vllm"
    assert served.resources == {"replica_node": 0.001}, "on the nodes of the group `replicas`"
    attached = load_config(str(CLUSTER / "attached.yaml"))
    assert attached.deployments[asked["deployment"]].application == application["name"] == asked["application"]
    assert attached.deployments[asked["deployment"]].model == served.model
    assert attached.role("answer", 0).model == asked["deployment"]


def workdir() -> str:
    return next(line.split()[1] for line in instructions() if line.startswith("WORKDIR "))


def in_checkout(path: str) -> Path:
    """The file of the checkout that lies at a path of the image."""
    assert path.startswith(f"{workdir()}/"), path
    return ROOT / path.removeprefix(f"{workdir()}/")


def instructions() -> list[str]:
    """The image's instructions, each in one line."""
    text = (CLUSTER / "Containerfile").read_text().replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_the_image_is_made_of_files_that_are_there():
    known = {"FROM", "ENV", "WORKDIR", "COPY", "RUN"}
    steps = [line.split() for line in instructions()]
    assert steps[0][0] == "FROM"
    assert {step[0] for step in steps} <= known
    copied = set()
    for step in steps:
        if step[0] == "COPY":
            *sources, target = [word for word in step[1:] if not word.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), step
            assert len(sources) == 1 or target.endswith("/"), "several files go into a directory"
            copied |= set(sources)
    assert {"pyproject.toml", "kohaku_ray", "configs", "jobs", "cluster"} <= copied
    readme = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {readme["readme"], *readme["license-files"]} <= copied, "the build of the package reads them"


def test_the_image_installs_an_extra_that_there_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extra] = re.findall(r"'\.\[(\w+)\]'", (CLUSTER / "Containerfile").read_text())
    pins = [one for one in project["optional-dependencies"][extra] if one.startswith("ray[")]
    base = re.search(r"rayproject/ray:([\d.]+)-", (CLUSTER / "Containerfile").read_text())
    assert base is not None
    assert pins == [f"ray[llm]=={base[1]}"], "the base image's Ray is not replaced by another"


def resolved(line: str, tmp_path: Path) -> set[str]:
    """Names of the packages that a line ``uv pip install …`` would bring into an empty environment."""
    uv, venv = Path(sys.executable).with_name("uv"), str(tmp_path / "venv")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, venv], check=True)
    words = [word for word in shlex.split(line)[3:] if word not in ("--system", "--no-cache")]
    if "--python" in words:
        del words[(at := words.index("--python")) : at + 2]
    command = [uv, "pip", "install", "--dry-run", "--python", venv, *words]
    env = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""), **os.environ}  # as in the Makefile
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    if "error sending request" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^ \+ ([\w.-]+)", done.stderr, re.MULTILINE))


@pytest.mark.slow
def test_the_image_gets_one_faiss_and_torchvision_and_the_environment_for_cpus_neither_of_a_gpus(tmp_path):
    [line] = [step for step in instructions() if "uv pip install" in step]
    image = resolved(line[line.index("uv pip install") :], tmp_path)
    assert {"faiss-gpu", "vllm", "torchvision"} <= image
    assert "faiss-cpu" not in image
    steps = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.replace("\\\n", " ")
    [line] = [step.strip() for step in steps.splitlines() if "uv pip install" in step]
    here = resolved(line, tmp_path)
    assert {"faiss-cpu", "ray"} <= here
    assert not {"faiss-gpu", "torchvision", "torchaudio", "torchcodec"} & here


@pytest.mark.parametrize("name", KUBERAY)
def test_images_are_pinned_and_pods_stay_in_their_own_network(name):
    for group in groups_of(name):
        spec = group["template"]["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in containers(group):
            assert re.fullmatch(r"kohaku-ray:\d+\.\d+\.\d+", container["image"])
            assert not container.get("securityContext", {}).get("privileged")
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("name", KUBERAY)
def test_groups_ask_for_what_they_offer(name):
    head, *workers = groups_of(name)
    assert head["rayStartParams"]["num-cpus"] == "0", "no work on the head"
    for group in workers:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        [container] = containers(group)
        assert container["resources"]["limits"] == container["resources"]["requests"], "Ray counts the limits"
        has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        keys = {one["key"] for one in group["template"]["spec"].get("tolerations", [])}
        assert has_gpu == ("nvidia.com/gpu" in keys), "GPU nodes are tainted, and only these groups go there"


@pytest.mark.parametrize("name", [name for name in KUBERAY if name != "rayjob-index.yaml"])
def test_a_spot_worker_is_drained_with_flags_that_ray_knows(name):
    from ray.scripts.scripts import drain_node

    [group] = [group for group in groups_of(name)[1:] if group["groupName"] == "replicas-spot"]
    spec = group["template"]["spec"]
    shell, flag, script = containers(group)[0]["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    drain, sleep = (shlex.split(command) for command in script.split(";"))
    assert drain[:2] == ["ray", "drain-node"]
    given = drain_node.make_context("drain-node", drain[2:]).params
    assert given["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert sleep == ["sleep", str(given["deadline_remaining_seconds"])], "the hook keeps the pod until the deadline"
    assert given["deadline_remaining_seconds"] < spec["terminationGracePeriodSeconds"] < 120


@pytest.mark.parametrize("name", [name for name in KUBERAY if name.startswith("rayjob")])
def test_a_job_starts_a_command_that_there_is(name):
    from kohaku_ray.cli import make_parser

    program, script, *arguments = shlex.split(read(name)["spec"]["entrypoint"])
    assert program == "python"
    assert (ROOT / script).is_file()
    make_parser().parse_args([Path(script).stem, *arguments])


def test_the_image_runs_the_ray_that_is_pinned():
    import ray

    assert f"rayproject/ray:{ray.__version__}-" in (CLUSTER / "Containerfile").read_text()
    assert "RAY_AUTH_MODE=token" in (CLUSTER / "Containerfile").read_text()
    for name in KUBERAY:
        assert ray_cluster(read(name))["rayVersion"] == ray.__version__
