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

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"  # the one that cluster/autoscaler.yaml names

PROGRAM = """#!{python}
import json, pathlib, sys
here, name, words = pathlib.Path(__file__).parent, pathlib.Path(__file__).name, sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps([name, words]) + "\\n")
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
        command = ["bash", "-c", script]
        done = subprocess.run(command, cwd=self.place, env=env, capture_output=True, text=True, timeout=60)
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


def check_job(words: list[str]) -> None:
    given = make_parser().parse_args(words[words.index("kohaku-ray") + 1 :])
    assert given.rows_in_error_ok, "one bad file or row is no failed job"


@pytest.mark.parametrize("line", [line for block in BLOCKS for line in block.splitlines() if line.startswith("ray ")])
def test_ray_knows_every_command_of_the_page(line):
    words = shlex.split(re.split(r" [>&]", line)[0], comments=True)
    name, _ = parsed_by_ray(words[1:])
    if name == "job submit":
        check_job(words)


def test_on_kubernetes_and_aws_the_steps_run_and_every_file_names_the_image_that_was_pushed(tmp_path):
    [lines] = [block for block in BLOCKS if "docker build" in block]
    shell = Shell(tmp_path, "docker", "kubectl", "ray", "curl")
    calls = shell.run(lines.replace("REGISTRY", REGISTRY))
    [pushed] = [words[1] for name, words in calls if name == "docker" and words[0] == "push"]
    for name in ("shared.yaml", *(file.name for file in (ROOT / "cluster").glob("ray*.yaml"))):
        assert set(re.findall(r"image: (\S+)", (shell.place / "cluster" / name).read_text())) == {pushed}, name
    assert yaml.safe_load((shell.place / "cluster/autoscaler.yaml").read_text())["docker"]["image"] == pushed
    applied: list[str] = []
    for words in [words for name, words in calls if name == "kubectl"]:
        if words[0] == "apply":
            items = yaml.safe_load_all((shell.place / words[2]).read_text())
            applied += [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in items]
        else:
            assert words[-1] == applied[-1], "it waits for what was applied last"


def test_a_node_on_aws_mounts_the_volume_once(tmp_path):
    cluster = yaml.safe_load((ROOT / "cluster/autoscaler.yaml").read_text())
    shell = Shell(tmp_path, "aws", "docker", "sudo", "mountpoint")
    mounts = []
    for _ in range(2):  # a node that Ray starts again runs them again
        calls = [call for command in cluster["initialization_commands"] for call in shell.run(command)]
        mounts.append([words[0] for name, words in calls if name == "sudo"].count("mount"))
    assert mounts == [1, 0]


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_rays_own_commands_on_a_node_are_as_ray_reads_them(kind):
    cluster = yaml.safe_load((ROOT / "cluster/autoscaler.yaml").read_text())
    commands = [shlex.split(line) for line in cluster[f"{kind}_start_ray_commands"]]
    assert [parsed_by_ray(words[words.index("ray") + 1 :])[0] for words in commands] == ["stop", "start"]


def test_slurm_gets_a_script_and_a_command(tmp_path):
    [lines] = [block for block in BLOCKS if "sbatch" in block]
    for _, words in Shell(tmp_path, "sbatch").run(lines):
        [script] = [word for word in words if word.endswith(".sh")]
        assert os.access(ROOT / script, os.X_OK)
        check_job(words)
