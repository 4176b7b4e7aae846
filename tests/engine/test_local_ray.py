"""A Ray of the job's own: other users of the machine cannot reach it."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from kit import own_ray

from kohaku_ray.engine import local_ray
from kohaku_ray.engine.local_ray import LONGEST_DIRECTORY, own_token, private_directory
from kohaku_ray.errors import ConfigError

STARTED = """
import os, sys, time
from kohaku_ray.config.schema import ClusterConfig
from kohaku_ray.engine.cluster import connect

with connect(ClusterConfig(num_cpus=2, object_store_gib=0.1)):
    import ray

    print("up", ray._private.worker._global_node.get_session_dir_path(), flush=True)
    task = ray.remote(num_cpus=0)(lambda: os.environ["RAY_AUTH_TOKEN"])
    print("token", ray.get(task.remote()), flush=True)
    if len(sys.argv) > 1:
        ray.get(ray.remote(num_cpus=99)(lambda: 0).remote())  # never placed: the call waits
print("ended", flush=True)
"""


def started(tmp_path: Path, *arguments: str, before: str = "", **variables: str) -> subprocess.Popen[str]:
    """A process with a Ray of its own: its environment has nothing of this process's Ray."""
    return subprocess.Popen(
        [sys.executable, "-c", before + STARTED, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=own_ray.environment(**{"HOME": str(tmp_path), **variables}),
    )


def test_directories_are_closed_and_short_enough(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    long = tmp_path / ("x" * 150)
    long.mkdir()
    monkeypatch.setattr(local_ray.tempfile, "gettempdir", lambda: str(long))
    with private_directory() as directory:
        parent = os.path.dirname(directory)
        assert stat.S_IMODE(os.stat(parent).st_mode) == 0o700
        assert len(directory) <= LONGEST_DIRECTORY
    assert not os.path.exists(parent)
    with pytest.raises(RuntimeError), private_directory() as kept:
        raise RuntimeError("Ray did not start: its logs are wanted")
    assert os.path.exists(os.path.dirname(kept))
    os.rmdir(os.path.dirname(kept))
    monkeypatch.setattr(local_ray.os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"TMPDIR is \S+x \(\d+ bytes\), which leaves no room"), private_directory():
        raise AssertionError("not reached")
    monkeypatch.setenv("RAY_TMPDIR", "/chosen")
    with private_directory() as directory:
        assert directory == "/chosen/ray"


def test_agents_without_bytecode_are_compiled_once(monkeypatch, tmp_path, capsys):
    """Ray waits 15 s for agents that on a busy machine take longer to compile their imports (users6.md, S1)."""
    dashboard = tmp_path / "agents" / "dashboard"
    dashboard.mkdir(parents=True)
    (tmp_path / "agents" / "__init__.py").write_text("")
    (dashboard / "__init__.py").write_text("")
    (dashboard / "utils.py").write_text("x = 1")
    (dashboard / "agent.py").write_text("import agents.dashboard.utils")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(local_ray.sys, "pycache_prefix", None)
    local_ray.compile_agents(dashboard, ["agents.dashboard.agent"])
    assert "compiling once what they import" in capsys.readouterr().err
    assert list(dashboard.glob("__pycache__/utils.*.pyc"))
    local_ray.compile_agents(dashboard, ["agents.dashboard.agent"])
    assert capsys.readouterr().err == ""
    shutil.rmtree(dashboard / "__pycache__")

    # A directory that cannot be written: the bytecode goes to the user's cache, and Ray's processes look there.
    monkeypatch.setattr(local_ray.os, "access", lambda *_: False)
    monkeypatch.setattr(local_ray.Path, "home", lambda: tmp_path / "home")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    said = []
    for _ in range(2):
        local_ray.compile_agents(dashboard, ["agents.dashboard.agent"])
        said.append(capsys.readouterr().err)
    assert "compiling once" in said[0]
    assert said[1] == ""
    assert os.environ["PYTHONPYCACHEPREFIX"].startswith(str(tmp_path / "home"))
    assert not (dashboard / "__pycache__").exists()


def test_the_raylet_says_why_it_ended(tmp_path):
    assert local_ray.raylet_reason(str(tmp_path)) == ""
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    reason = "node_manager.cc:3576: Check failed: Timed out waiting for file metrics_agent_port_1"
    (logs / "raylet.out").write_text(f"starting\nTimed out once\n{reason}\n*** StackTrace ***\n")
    assert local_ray.raylet_reason(str(tmp_path)) == reason


def test_a_token_that_is_set_stays(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with own_token():
        first = os.environ["RAY_AUTH_TOKEN"]
    assert "RAY_AUTH_TOKEN" not in os.environ
    with own_token():
        assert os.environ["RAY_AUTH_TOKEN"] != first
        os.environ["RAY_AUTH_MODE"] = "token"  # as Ray does
    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with own_token():
        assert "RAY_AUTH_TOKEN" not in os.environ


FAILING = """
import sys
from ray._private.node import Node

start, left = Node.start_ray_processes, [int(sys.argv.pop())]

def fail(node):
    if left[0]:
        left[0] -= 1
        raise Exception("The current node timed out during startup")
    start(node)

Node.start_ray_processes = fail
"""


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_started_once_more_and_nothing_of_it_is_open_to_other_users(tmp_path):
    """Its token is in no file, its files lie behind a closed door, and a HOME that is not there is no hindrance."""
    process = started(tmp_path, "wait", "1", before=FAILING, TMPDIR="/tmp", HOME="/nonexistent")
    try:
        session = Path(process.stdout.readline().split()[1])
        token = process.stdout.readline().split()[1]
        assert len(token) == 64
        door = session.parent.parent
        assert stat.S_IMODE(door.stat().st_mode) == 0o700
        assert door.stat().st_uid == os.getuid()
        files = [file for file in session.rglob("*") if file.is_file() and not file.is_socket()]
        assert len(files) > 5
        assert not [file for file in files if token.encode() in file.read_bytes()]
        assert not Path("/nonexistent").exists()
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    first_line, *_ = own_ray.own_lines(error)
    assert "timed out during startup): starting it once more" in first_line
    assert not door.exists()
    # Ray's agents see that their raylet ended when they have imported all: a minute on a machine with ten other jobs.
    assert not psutil.wait_procs(children, timeout=120)[1], "those of both tries end with the job"


@pytest.mark.slow
def test_a_ray_that_never_starts_names_the_logs_of_its_last_try(tmp_path):
    process = started(tmp_path, "2", before=FAILING)
    _, error = process.communicate(timeout=200)
    assert process.returncode == 1
    last = error.strip().splitlines()[-1]
    assert "Ray did not start on this machine (Exception: The current node timed out" in last
    logs = Path(last.rsplit(" ", 1)[1])
    assert "in two tries: see the logs of the second in" in last
    assert any(file.name.startswith("gcs_server") for file in logs.iterdir())
    shutil.rmtree(logs.parents[2])


def test_sigterm_while_the_first_libraries_load_is_one_line(tmp_path):
    """Later moments of a start: tests/engine/jobs/test_driver.py."""
    command = [sys.executable, "-m", "kohaku_ray", "index", "demo", "--set", "run=r"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=own_ray.environment()
    ) as process:
        own_ray.wait_until_caught(process)
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        assert not any(name in loaded for name in ("arrow", "numpy", "_raylet", "torch"))
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=90)
    assert (process.returncode, output) == (1, ("", f"{own_ray.INTERRUPTED}\n"))


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a file system of 64 KiB")
def test_a_full_disk_while_indexing_is_one_line(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:
        command = [sys.executable, "-m", "kohaku_ray", "index", "demo", "--set", f"index.path={small}/index"]
        job = subprocess.run([*command, "--set", "run=r"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert job.returncode == 1
    (line,) = own_ray.own_lines(job.stderr)
    assert "No space left on device" in line
    assert "free space or choose a directory that can be written" in line
