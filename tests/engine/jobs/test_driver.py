"""The command in a process of its own, with a cluster of its own: SIGTERM ends it in words, its key is in no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
from kit.answers import KEY, deployment, fake, flags, rows_of
from kit.fake_openai import Action, FakeOpenAI, completion

pytestmark = pytest.mark.ray


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
    return subprocess.Popen(
        [sys.executable, "-m", "kohaku_ray", *command, *flags(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, "RAY_TMPDIR": ray_home},
    )


@pytest.fixture
def ray_home():
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as home:  # sockets have short paths
        yield home


def echoing(others: Callable[[], None]) -> Callable[[int, dict], Action | None]:
    """A server that gives the key back in every way it can, to plans and to answers; then ``others`` is called."""
    ways = [
        Action(401, {"error": {"message": f"no {KEY}"}}, {"X-Key": KEY}, reason=f"Bad key {KEY}"),
        Action(500, "x" * 280 + KEY, reason=KEY),
        Action(200, completion(f"it is {KEY}", finish_reason=KEY)),
    ]
    left = {True: iter(ways), False: iter(ways)}

    def script(index: int, body: dict) -> Action | None:
        return next(left["ref_id" in json.dumps(body)], None) or others()

    return script


def files_with_the_key(*homes: str | Path) -> list[Path]:
    files = [file for home in homes for file in Path(home).rglob("*") if file.is_file()]
    assert any(file.suffix == ".log" for file in files)
    tables = {file: pq.read_table(file).to_pylist() for file in files if file.suffix == ".parquet"}
    return [
        file for file in files if KEY.encode() in file.read_bytes() or KEY in json.dumps(tables.get(file), default=str)
    ]


@pytest.mark.slow
def test_sigterm_ends_a_sweep_in_one_line_and_the_key_is_in_no_file(sample_index, tmp_path, ray_home):
    """Calls are not answered when the signal comes."""
    sweep = tmp_path / "two.yaml"
    sweep.write_text(f"base: demo\nruns: {tmp_path}/runs\ntables: [{{name: n, axes: {{kohaku.queries: [1, 2]}}}}]\n")
    arrived, over = threading.Event(), threading.Event()

    def hang() -> None:
        arrived.set()
        over.wait(400)

    with FakeOpenAI(echoing(hang)) as server:
        job = driver(server, tmp_path, sample_index[0], ray_home, "sweep", str(sweep), "-o", str(tmp_path / "page"))
        try:
            assert arrived.wait(240)
            job.send_signal(signal.SIGTERM)
            output, _ = job.communicate(timeout=60)
        finally:
            over.set()
            job.kill()
    assert job.returncode == 1, output
    assert output.strip().splitlines()[-1] == "interrupted: run the same command again to go on"
    assert not any(word in output for word in ("SIG", "Traceback", "***", "terminate called", KEY)), output
    assert files_with_the_key(tmp_path, ray_home) == []


def test_the_key_is_in_no_file_of_a_run_that_ends(sample_config, run_answer, capfd):
    with FakeOpenAI(echoing(lambda: None)) as server:
        overrides = fake(server, api_key_env="OUR_KEY", max_tries=1)
        config = sample_config(*overrides, "questions.limit=4", "ensemble.members=1")
        run_answer(config)
        assert [one.headers["authorization"] for one in server.log[:1]] == [f"Bearer {KEY}"]
    errors = [row["error"] for row in rows_of(config.run, "answers") if row["error"] is not None]
    assert len(errors) == 2, "of the three, one was a reply"
    assert all("[key]" in error for error in errors), errors
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert files_with_the_key(Path(config.run).parent, session / "logs") == []
    assert KEY not in "".join(capfd.readouterr())
