"""The command in a process of its own, with a cluster of its own: SIGTERM ends it in words, its key is in no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kit.answers import deployment, flags
from kit.fake_openai import Action, FakeOpenAI, completion

pytestmark = pytest.mark.ray

KEY = "sk-Secret-0123456789abcdef"


def driver(server: FakeOpenAI, home: Path, index: str, ray_home: str, *command: str) -> subprocess.Popen[str]:
    settings = {
        "index.path": index,
        "deployments.fake": json.dumps(deployment(server, api_key_env="OUR_KEY", max_tries=1)),
        "roles.answer.model": "fake",
        "questions.limit": 4,
        "ensemble.members": 1,
        "run": f"{home}/run",
        "ledger.path": f"{home}/ledger",
    }
    own = {"OUR_KEY": KEY, "RAY_TMPDIR": ray_home}
    return subprocess.Popen(
        [sys.executable, "-m", "kohaku_ray", *command, *flags(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **own},
    )


@pytest.fixture
def ray_home():
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as home:  # sockets have short paths
        yield home


def test_sigterm_ends_a_sweep_in_one_line_and_the_key_is_in_no_file(sample_index, tmp_path, ray_home):
    """Every way in which a server may give the key back, and calls that are not answered when the signal comes."""
    sweep = tmp_path / "two.yaml"
    sweep.write_text(f"base: demo\nruns: {tmp_path}/runs\ntables: [{{name: n, axes: {{kohaku.queries: [1, 2]}}}}]\n")
    arrived, over = threading.Event(), threading.Event()
    echoes = [
        Action(401, {"error": {"message": f"no {KEY}"}}, {"X-Key": KEY}, reason=f"Bad key {KEY}"),
        Action(500, "x" * 280 + KEY, reason=KEY),
        Action(200, completion(f"it is {KEY}", finish_reason=KEY)),
    ]

    def script(index, body):
        if index < len(echoes):
            return echoes[index]
        arrived.set()
        over.wait(400)
        return None

    with FakeOpenAI(script) as server:
        job = driver(server, tmp_path, sample_index[0], ray_home, "sweep", str(sweep), "-o", str(tmp_path / "page"))
        try:
            assert arrived.wait(240)
            job.send_signal(signal.SIGTERM)
            output, _ = job.communicate(timeout=60)
        finally:
            over.set()
            job.kill()
        assert job.returncode == 1, output
        assert output.strip().splitlines()[-1] == "interrupted: repeat the same command to go on"
        assert not any(word in output for word in ("SIG", "Traceback", "***", "terminate called")), output
        answer = driver(server, tmp_path, sample_index[0], ray_home, "answer", "demo")
        answered, _ = answer.communicate(timeout=240)
        assert answer.returncode in (0, 3), answered
    key = KEY.encode()
    files = [file for home in (tmp_path, Path(ray_home)) for file in home.rglob("*") if file.is_file()]
    assert any(file.suffix == ".log" for file in files)
    assert [file for file in files if key in file.read_bytes()] == []
    for file in files:
        if file.suffix == ".parquet":
            assert KEY not in json.dumps(pq.read_table(file).to_pylist(), default=str), file
    assert KEY not in output + answered
