"""A node that does not see a job's files is named before the job's work starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit import own_ray

from kohaku_ray.engine.cluster import unseen
from kohaku_ray.records import digest_text

# A node in a mount namespace of its own, in which an empty file system hides one directory.
SCRIPT = """
import os, subprocess, sys, time
import ray
from ray.cluster_utils import Cluster
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine import cluster as cluster_module
from kohaku_ray.engine.cluster import check_nodes
from kohaku_ray.errors import ConfigError

folder = sys.argv[1]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
ray.init(address=cluster.address, namespace="kohaku_ray", log_to_driver=False, logging_level="ERROR")
seen = [f"run={folder}/seen/run", f"ledger.path={folder}/seen/ledger"]
start = 'mount -t tmpfs none "$1" && exec "$3" -m ray.scripts.scripts start --address="$2" --num-cpus=1 --block'
hidden = f"{folder}/hidden"
alone = ["setpriv", "--pdeathsig", "TERM", "unshare", "-m"]
hiding = [*alone, "sh", "-c", start, "sh", hidden, cluster.address, sys.executable]
node = subprocess.Popen(hiding, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    until = time.monotonic() + 60
    while len([one for one in ray.nodes() if one["Alive"]]) < 2:
        assert time.monotonic() < until and node.poll() is None, "the second node did not start"
        time.sleep(0.2)
    here = ray.get_runtime_context().get_node_id()
    other = next(one for one in ray.nodes() if one["Alive"] and one["NodeID"] != here)
    print("NODE", other["NodeID"][:8])
    for job, own in (
        (run_index, f"index.path={folder}/hidden/index"),
        (run_answer, f"index.path={folder}/hidden/index"),
        (run_answer, f"ledger.path={folder}/hidden/ledger"),
    ):
        where = [] if "index" in own else [f"index.path={folder}/seen/index"]
        try:
            job(load_config("demo", [*seen, *where, own]))
        except ConfigError as error:
            print(job.__name__, error)
    check_nodes({}, {"ledger.path": f"{folder}/seen/ledger"})
    print("SEEN")
    cluster_module.ANSWER_S = 0.0
    check_nodes({}, {"ledger.path": f"{folder}/seen/ledger"})  # no node answers so soon
    print("WENT ON")
finally:
    node.terminate()
    node.wait(20)
    ray.shutdown()
    cluster.shutdown()
"""


def _can_hide(tmp_path: Path) -> bool:
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_node_that_does_not_see_a_directory_is_named(tmp_path, sample_here):
    if not _can_hide(tmp_path):
        pytest.skip("this machine lets nobody make a mount namespace")
    for name in ("hidden", "seen"):
        shutil.copytree(sample_here, tmp_path / name / "index")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=own_ray.environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    node = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("NODE"))
    messages = [line for line in done.stdout.splitlines() if line.startswith("run_")]
    for line, job, key in zip(
        messages,
        ("run_index", "run_answer", "run_answer"),
        ("index.path", "index.path", "ledger.path"),
        strict=True,
    ):
        path = f"{tmp_path}/hidden/{key.removesuffix('.path')}"
        path += "/manifest.json" if (job, key) == ("run_answer", "index.path") else ""
        assert line.startswith(f"{job} node ")
        assert f"({node}) does not see {key} {path}: there is no such file there: mount the same storage" in line
    assert "SEEN" in done.stdout
    assert "WENT ON" in done.stdout, "a node that is slow to start a process ends no job"
    assert f"({node}) has not answered in 0 s: whether it sees ledger.path is not known" in done.stderr
    assert not list(tmp_path.rglob("*.probe")), "nothing is left behind"


def test_a_file_that_is_another_one_there_is_told_from_a_missing_one(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    file, content = str(tmp_path / "a"), digest_text(b"1")
    assert unseen({"index.path": (file, content)}) is None
    assert unseen({"index.path": (file, "other")}) == ("index.path", "it is another directory there")
    assert unseen({"x": (file, content), "y": (f"{file}b", content)}) == ("y", "there is no such file there")
