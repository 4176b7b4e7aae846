"""The steps of docs/cluster.md for Kubernetes, AWS and Slurm, run by bash with stand-ins for the clouds' programs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kohaku_ray.cli.arguments import make_parser
from kohaku_ray.config import load_config

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"  # the one that cluster/autoscaler.yaml names

PROGRAM = """#!{python}
import json, os, pathlib, subprocess, sys
here, name, words = pathlib.Path(__file__).parent, pathlib.Path(__file__).name, sys.argv[1:]
given = sys.stdin.read() if "--password-stdin" in words else ""
with (here / "calls").open("a") as calls:
    calls.write(json.dumps([name, words, os.environ.get("RAY_AUTH_MODE"), given]) + "\\n")
if name == "aws":
    print("secret")
if words[:1] == ["mount"]:
    (here / "mounted").touch()
if name == "mountpoint":
    sys.exit(not (here / "mounted").exists())
if name == "curl":
    sys.exit('"dashboard"' not in (here / "calls").read_text())  # the port is not forwarded yet
"""


class Shell:
    """Runs lines in a copy of the cluster's files; notes what the stand-ins are called with."""

    def __init__(self, directory: Path, *programs: str) -> None:
        self.place, self.bin = directory, directory / "bin"
        self.bin.mkdir()
        shutil.copytree(ROOT / "cluster", directory / "cluster")
        for name in programs:
            (self.bin / name).write_text(PROGRAM.replace("{python}", sys.executable))
            (self.bin / name).chmod(0o755)

    def run(self, lines: str) -> list[list[Any]]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env["PATH"] = f"{self.bin}{os.pathsep}{env['PATH']}"
        script = f"set -euo pipefail\n{lines}\nwait"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.place, env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        calls = [json.loads(line) for line in (self.bin / "calls").read_text().splitlines()]
        (self.bin / "calls").unlink()
        return calls


def parsed_by_ray(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Read a ``ray`` command as Ray does: the command's name, and its parameters."""
    from ray.scripts.scripts import cli

    command, names = cli, []
    while hasattr(command, "commands"):
        names.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    return " ".join(names), command.make_context(" ".join(names), list(words)).params


def parsed_by_us(words: list[str] | tuple[str, ...]) -> Any:
    assert words[0] == "kohaku-ray"
    given = make_parser().parse_args(list(words[1:]))
    assert given.rows_in_error_ok, "one bad file or row is no failed job"
    return given


def test_a_bad_row_is_no_failed_job_in_any_step():
    submitted = [line for block in BLOCKS for line in block.splitlines() if line.startswith("ray job submit")]
    assert len(submitted) == 5
    for line in submitted:
        parsed_by_us(shlex.split(line.partition(" -- ")[2]))


@pytest.fixture
def steps(tmp_path) -> tuple[Shell, list[list[Any]]]:
    [lines] = [block for block in BLOCKS if "docker build" in block]
    shell = Shell(tmp_path, "docker", "kubectl", "ray", "curl")
    return shell, shell.run(lines.replace("REGISTRY", REGISTRY))


def test_every_file_names_the_image_that_was_built_and_pushed(steps):
    shell, calls = steps
    build, tag, push = [words for name, words, *_ in calls if name == "docker"]
    assert build[:1] == ["build"]
    assert build[build.index("-f") + 1] == "cluster/Containerfile"
    built, pushed = build[build.index("-t") + 1], push[1]
    assert (tag, push[0]) == (["tag", built, pushed], "push")
    for name in ("shared.yaml", *(file.name for file in (ROOT / "cluster").glob("ray*.yaml"))):
        images = re.findall(r"image: (\S+)", (shell.place / "cluster" / name).read_text())
        assert set(images) == {pushed}, name
    assert yaml.safe_load((shell.place / "cluster/autoscaler.yaml").read_text())["docker"]["image"] == pushed


def test_on_kubernetes_a_job_starts_when_what_it_reads_is_there(steps):
    shell, calls = steps
    applied, awaited = [], {}
    for words in [words for name, words, *_ in calls if name == "kubectl"]:
        if words[:2] == ["apply", "-f"]:
            applied += [
                (item["kind"].lower(), item["metadata"]["name"])
                for item in yaml.safe_load_all((shell.place / words[2]).read_text())
            ]
        else:
            assert words[0] == "wait"
            kind, name = words[-1].split("/")
            assert applied[-1] == (kind, name), "what was applied last"
            awaited[kind, name] = words[1]
    assert [kind for kind, _ in applied] == ["persistentvolumeclaim", "job", "rayjob", "rayjob", "rayservice"]
    models, index, answer = applied[1:4]
    assert awaited == {models: "--for=condition=complete", index: "--for=jsonpath={.status.jobStatus}=SUCCEEDED"}
    files = {"index": "rayjob-index.yaml", "answer": "rayjob.yaml"}
    for (_, name), (command, file) in zip((index, answer), files.items(), strict=True):
        manifest = yaml.safe_load((shell.place / "cluster" / file).read_text())
        assert manifest["metadata"]["name"] == name
        assert parsed_by_us(shlex.split(manifest["spec"]["entrypoint"])).command.__name__ == command


def test_on_aws_the_token_comes_first_and_jobs_when_the_port_is_forwarded(steps):
    _, calls = steps
    start = next(position for position, (name, words, *_) in enumerate(calls) if words[:1] == ["get-auth-token"])
    assert {mode for name, _, mode, _ in calls[start:]} == {"token"}
    on_aws = calls[start:]
    order = [name if name != "ray" else " ".join(words[: 1 + (words[0] == "job")]) for name, words, *_ in on_aws]
    assert "curl" in order, "the first job waits for the port"
    jobs = ["job submit", "job submit"]
    assert [item for item in order if item != "curl"] == ["get-auth-token", "up", "exec", "dashboard", *jobs]
    given = [parsed_by_ray(words) for name, words, *_ in on_aws if name == "ray"]
    for name, parameters in given:
        if name in ("up", "exec", "dashboard"):
            assert parameters["cluster_config_file"] == "cluster/autoscaler.yaml"
    [up] = [parameters for name, parameters in given if name == "up"]
    assert up["yes"], "no question"
    [fetch] = [parameters["cmd"] for name, parameters in given if name == "exec"]
    [served] = [
        deployment.model
        for deployment in load_config(str(ROOT / "cluster/models.yaml")).deployments.values()
        if deployment.kind == "vllm"
    ]
    assert fetch == f"HF_HUB_OFFLINE=0 hf download {served}"
    jobs = [parameters for name, parameters in given if name == "job submit"]
    assert [parsed_by_us(job["entrypoint"]).command.__name__ for job in jobs] == ["index", "answer"]
    image = (ROOT / "cluster/Containerfile").read_text()
    workdir = re.search(r"^WORKDIR (\S+)", image, re.MULTILINE)[1]
    for job in jobs:
        assert job["address"] == "http://127.0.0.1:8265"
        config = Path(parsed_by_us(job["entrypoint"]).config)
        assert (ROOT / config.relative_to(workdir)).is_file()


def test_a_node_on_aws_logs_in_mounts_the_volume_once_and_waits_for_dpkg(tmp_path):
    cluster = yaml.safe_load((ROOT / "cluster/autoscaler.yaml").read_text())
    shell = Shell(tmp_path, "aws", "docker", "sudo", "mountpoint")
    mounts = []
    for _ in range(2):  # a node that Ray starts again runs them again
        calls = [call for command in cluster["initialization_commands"] for call in shell.run(command)]
        [(_, words, _, password)] = [call for call in calls if call[0] == "docker"]
        assert (words[0], words[-1], password.strip()) == ("login", REGISTRY, "secret")
        asked = [words for name, words, *_ in calls if name == "sudo"]
        update, install = [words for words in asked if words[0] == "apt-get"]
        assert (update[-1], install[-3:]) == ("update", ["install", "-y", "nfs-common"])
        assert all("DPkg::Lock::Timeout=300" in words for words in (update, install))
        verbs = [words[0] for words in asked]
        mounts.append(verbs.count("mount"))
        assert [verb for verb in verbs if verb != "mount"] == ["apt-get", "apt-get", "mkdir", "chown"]
    assert mounts == [1, 0]


def test_rays_own_commands_on_a_node_are_as_ray_reads_them():
    cluster = yaml.safe_load((ROOT / "cluster/autoscaler.yaml").read_text())
    for kind in ("head", "worker"):
        commands = [shlex.split(line) for line in cluster[f"{kind}_start_ray_commands"]]
        names = [parsed_by_ray(words[words.index("ray") + 1 :])[0] for words in commands]
        assert names == ["stop", "start"]
        assert commands[1][0] == "RAY_AUTH_MODE=token"


def test_slurm_gets_a_script_and_a_command(tmp_path):
    [lines] = [block for block in BLOCKS if "sbatch" in block]
    calls = Shell(tmp_path, "sbatch").run(lines)
    commands = []
    for _, words, *_ in calls:
        options = [word for word in words if word.partition("=")[0] in ("--nodes", "--gpus-per-node")]
        script, *command = words[len(options) :]
        assert os.access(ROOT / script, os.X_OK)
        commands.append(parsed_by_us(command).command.__name__)
    assert commands == ["index", "answer"]
