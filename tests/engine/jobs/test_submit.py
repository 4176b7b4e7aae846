"""Jobs as users submit them: to a running cluster, behind a token; and model replicas that outlive jobs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ray import serve

from kohaku_ray import sample
from kohaku_ray.engine.serving.applications import build
from kohaku_ray.errors import ConfigError

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "docs" / "cluster.md").read_text().split("```bash\n", 1)[1].split("```", 1)[0]


def free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def own_project(directory: Path) -> None:
    """What a newcomer has: the files of `init`, documents and questions."""
    subprocess.run(["kohaku-ray", "init", directory], check=True, capture_output=True)
    for file in Path(sample.path("documents")).glob("*.md"):
        (directory / "documents" / file.name).write_bytes(file.read_bytes())
    questions = Path(sample.path("questions.csv")).read_text().splitlines(keepends=True)
    (directory / "questions.csv").write_text("".join(questions[:4]))
    (directory / "runs").mkdir()
    (directory / "runs/large").write_bytes(b"\0" * 101 * 2**20)  # Ray refuses to send more than 100 MB


@pytest.mark.slow
def test_a_job_is_submitted_to_a_cluster_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    own_project(tmp_path / "project")
    session = tempfile.mkdtemp(dir="/tmp")  # sockets' paths have at most 107 bytes
    gcs, dashboard, agent, client = free_ports(4)
    started = (
        f"ray start --head --block --num-cpus=8 --temp-dir={session} --port={gcs} --dashboard-port={dashboard} "
        f"--dashboard-agent-listen-port={agent} --ray-client-server-port={client} >{tmp_path}/ray.log 2>&1 &\n"
        f"until (exec 3<>/dev/tcp/127.0.0.1/{agent}) 2>/dev/null; do sleep 1; done; sleep 3"  # the head's job agent
    )
    assert LINES.count("ray start --head\n") == 1
    lines = LINES.replace("ray start --head\n", f"{started}\n").replace("8265", str(dashboard))
    lines = lines.replace("/shared", f"{tmp_path}/shared")
    # A sweep's runs are those of any other: that its command is found and its preset read there is what is new.
    page = "ls /shared/runs/sweeps/top_k_final/sweep.html".replace("/shared", f"{tmp_path}/shared")
    assert lines.count(page) == lines.count("sweep top_k_final ") == 1
    lines = lines.replace(page, "").replace("sweep top_k_final ", "sweep top_k_final --dry-run ")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    shell = subprocess.Popen(
        ["bash", "-e", "-c", lines],
        cwd=tmp_path / "project",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        shutil.rmtree(session, ignore_errors=True)
    assert shell.returncode == 0, printed[-4000:] + (tmp_path / "ray.log").read_text()[-2000:]
    assert printed.count("succeeded") == 3, printed
    assert {"submission.csv", "report.html"} <= set(os.listdir(tmp_path / "shared/runs/my"))
    assert re.search(r"\d+ distinct runs, 0 finished", printed)
    assert os.listdir(tmp_path / "project/runs") == ["large"]


@pytest.mark.slow
def test_a_job_attaches_to_an_application_and_leaves_it_running(sample_config, run_answer):
    attach = "deployments.extractive={kind: extractive, application: shared-models}"
    config = sample_config(attach, "questions.limit=2", "ensemble.members=1")
    with pytest.raises(ConfigError, match=r"application is 'shared-models' but Serve runs"):
        run_answer(config)
    serve.run(build({"config": "demo", "deployment": "extractive"}), name="shared-models", route_prefix=None)
    try:
        assert run_answer(config).n_questions == 2
        assert serve.status().applications["shared-models"].status == "RUNNING"
    finally:
        serve.delete("shared-models")
    with pytest.raises(ConfigError, match=r"deployment is 'none' but demo has extractive"):
        build({"config": "demo", "deployment": "none"})
