"""Jobs as users submit them: to a running cluster, behind a token; and model replicas that outlive jobs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray import serve

from kohaku_ray.engine.serving.applications import build
from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.submissions import read_submission

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[3]
RAY = str(Path(sys.executable).parent / "ray")
TOKEN = "a-token-of-at-least-thirty-two-characters"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def guarded_cluster(tmp_path):
    """A cluster of its own with token authentication on; yields the dashboard's address and the environment."""
    port, dashboard = free_port(), free_port()
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    env.pop("RAY_ADDRESS", None)
    command = [RAY, "start", "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=4"]
    command += ["--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", "--object-store-memory=300000000"]
    command += [
        f"--temp-dir=/tmp/kray{port}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--ray-client-server-port={free_port()}",
    ]
    command += [f"--dashboard-agent-listen-port={free_port()}"]
    with open(tmp_path / "head.log", "w") as log:
        head = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + 90
        while subprocess.run([RAY, "job", "list", "--address", address], env=env, capture_output=True).returncode:
            assert head.poll() is None, (tmp_path / "head.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "head.log").read_text()
            time.sleep(1)
        yield address, env
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)


@pytest.mark.slow
def test_an_answer_job_is_submitted_and_its_outputs_are_read(sample_index, guarded_cluster, tmp_path):
    address, env = guarded_cluster
    settings = {
        "index.path": sample_index[0],
        "run": f"{tmp_path}/run",
        "ledger.path": f"{tmp_path}/ledger",
        "questions.limit": "4",
        "ensemble.members": "2",
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    submit = [RAY, "job", "submit", "--address", address, "--", sys.executable, f"{ROOT}/jobs/answer.py"]
    deadline = time.monotonic() + 90
    while True:
        done = subprocess.run([*submit, f"{ROOT}/configs/demo.yaml", *flags], env=env, capture_output=True, text=True)
        # The dashboard is up before the agent that starts jobs.
        if "No available agent" not in done.stdout + done.stderr or time.monotonic() > deadline:
            break
        time.sleep(2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 questions × 2 members" in done.stdout
    assert "succeeded" in done.stdout
    assert list(read_submission(f"{tmp_path}/run/submission.csv").rows) == ["s001", "s002", "s003", "s004"]
    # As the README gives it: a project's directory travels, its outputs must not stay in Ray's copy of it.
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "my.yaml").write_text(f"base: demo\nindex: {{path: '{sample_index[0]}'}}\n")
    command = str(Path(sys.executable).parent / "kohaku-ray")
    mine = [*submit[:5], "--working-dir", f"{tmp_path}/project", "--", command, "answer", "my.yaml", *flags[4:]]
    lost = subprocess.run(mine, env=env, capture_output=True, text=True)
    assert lost.returncode != 0
    assert "inside the copy of the working directory that Ray deletes after the job" in lost.stdout
    kept = [*mine, "--set", f"run={tmp_path}/second"]
    done = subprocess.run(kept, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(read_submission(f"{tmp_path}/second/submission.csv").rows) == 4
    wrong = {**env, "RAY_AUTH_TOKEN": "another-token-of-thirty-two-characters"}
    refused = subprocess.run([RAY, "job", "list", "--address", address], env=wrong, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "RAY_AUTH_TOKEN" in refused.stdout + refused.stderr


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
