"""The command in a process of its own, with a cluster of its own: signals end it in one line, its key is in no file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import ray
from kit import own_ray
from kit.answers import KEY, deployment, fake, flags, rows_of
from kit.fake_openai import Action, FakeOpenAI, completion


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
        start_new_session=True,
        preexec_fn=as_in_a_terminal,
    )


@pytest.fixture
def ray_home():
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as home:  # sockets have short paths
        yield home


def echoing(others: Callable[[], None]) -> Callable[[int, dict], Action | None]:
    """A server that gives the key back in every way it can, to plans and to answers; then ``others`` is called."""
    ways = [
        Action(400, {"error": {"message": f"no {KEY}"}}, {"X-Key": KEY}, reason=f"Bad key {KEY}"),
        Action(500, "x" * 280 + KEY, reason=KEY),
        Action(200, completion(f"it is {KEY}", finish_reason=KEY)),
        Action(200, completion(f"it is {KEY}")),
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


OFTEN = pytest.mark.slow
"""Of seven moments at which a signal comes, these stand for all: each is a Ray of its own, 35 s of CPU."""

AT_LENGTH = (pytest.mark.chaos, pytest.mark.long)
SENDERS = [
    pytest.param(os.kill, id="to the driver", marks=AT_LENGTH),
    pytest.param(os.killpg, id="to all its processes", marks=OFTEN),
]


@pytest.mark.parametrize("send", SENDERS)
def test_sigterm_ends_a_sweep_in_one_line_and_the_key_is_in_no_file(sample_here, tmp_path, ray_home, send):
    """Calls are not answered when the signal comes."""
    sweep = tmp_path / "two.yaml"
    sweep.write_text(f"base: demo\nruns: {tmp_path}/runs\ntables: [{{name: n, axes: {{kohaku.queries: [1, 2]}}}}]\n")
    arrived, over = threading.Event(), threading.Event()

    def hang() -> None:
        arrived.set()
        over.wait(400)

    with FakeOpenAI(echoing(hang)) as server:
        job = driver(server, tmp_path, sample_here, ray_home, "sweep", str(sweep), "-o", str(tmp_path / "page"))
        try:
            assert arrived.wait(240)
            send(job.pid, signal.SIGTERM)
            output, _ = job.communicate(timeout=60)
        finally:
            over.set()
            job.kill()
    assert job.returncode == 1, output
    assert output.strip().splitlines()[-1] == own_ray.INTERRUPTED
    words = ("SIG", "Traceback", "***", "terminate called", "\x1b", "raylet", KEY)
    assert not any(word in output for word in words), output
    assert files_with_the_key(tmp_path, ray_home) == []


MOMENTS = [
    pytest.param(("answer",), "asking", signal.SIGINT, id="answer, Ctrl-C", marks=OFTEN),
    pytest.param(("answer",), "asking", signal.SIGTERM, id="answer, SIGTERM to all its processes", marks=AT_LENGTH),
    pytest.param(("answer",), "asking", signal.SIGHUP, id="answer, a terminal that is closed", marks=AT_LENGTH),
    pytest.param(("answer",), "waiting for", signal.SIGTERM, id="Ray starts", marks=AT_LENGTH),
    pytest.param(("index",), "encode", signal.SIGINT, id="index, Ctrl-C", marks=AT_LENGTH),
    pytest.param(("index",), "encode", signal.SIGTERM, id="index, SIGTERM to all its processes", marks=OFTEN),
]


def as_in_a_terminal() -> None:
    """A shell's job in the background ignores Ctrl-C, one below ``nohup`` the end of the terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(("command", "moment", "number"), MOMENTS)
def test_an_interrupt_of_the_whole_process_group_is_one_line(tmp_path, sample_here, command, moment, number):
    """Ctrl-C, ``timeout`` and ``ray job stop`` send it to Ray's processes, too, whose ends are not news."""
    settings = ["--set", f"run={tmp_path}/r"]
    settings += ["--set", f"index.path={sample_here}"] if command == ("answer",) else []
    with subprocess.Popen(
        [sys.executable, "-m", "kohaku_ray", *command, "demo", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=own_ray.environment(),
        start_new_session=True,
        preexec_fn=as_in_a_terminal,
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if moment in line:
                break
        os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 1, (lines, output)
    *progress, last = own_ray.own_lines(output)
    assert last == own_ray.INTERRUPTED
    assert not [line for line in progress if not line.startswith(("answer  ", "encode  ", "parse   "))], output


@pytest.fixture
def no_reply() -> Iterator[tuple[FakeOpenAI, threading.Event]]:
    """A server that answers no call, and what is set at the first."""
    arrived, over = threading.Event(), threading.Event()

    def hang(index: int, body: dict) -> None:
        arrived.set()
        over.wait(400)

    with FakeOpenAI(hang) as server:
        yield server, arrived
        over.set()


def has_loaded(library: str) -> Callable[[psutil.Process], bool]:
    return lambda job: library in Path(f"/proc/{job.pid}/maps").read_text()


def has_started(title: str) -> Callable[[psutil.Process], bool]:
    def is_there(job: psutil.Process) -> bool:
        for child in job.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # ended meanwhile
                if title in " ".join(child.cmdline()):
                    return True
        return False

    return is_there


STAGES = {
    "libraries load": (has_loaded("_raylet"), signal.SIGTERM),
    "Ray starts": (has_started("gcs_server"), signal.SIGINT),
    "actors start": (has_started("ray::Retriever"), signal.SIGTERM),
}
N_MOMENTS = 20
START = [
    *(pytest.param(stage, number, marks=OFTEN) for stage, (_, number) in STAGES.items()),
    *(
        pytest.param(moment, number, marks=AT_LENGTH)
        for number in (signal.SIGINT, signal.SIGTERM)
        for moment in range(N_MOMENTS)
    ),
]
start_s: list[float] = []
"""Seconds from the first handler of signals to the first call, measured once."""


def of_ray(home: str) -> list[str]:
    """Processes of a Ray below a directory."""
    running = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("RAY_TMPDIR") == home:
                running.append(process.name())
    return running


def measure_start(start: Callable[[], subprocess.Popen[str]], arrived: threading.Event, number: int) -> float:
    with start() as job:
        own_ray.wait_until_caught(job)
        began = time.monotonic()
        while not arrived.wait(0.05):
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < began + 240
        took_s = time.monotonic() - began
        job.terminate()
        job.communicate(timeout=60)
    return took_s


@pytest.mark.parametrize(("moment", "number"), START)
def test_a_signal_at_any_moment_of_a_start_is_one_line(sample_here, tmp_path, ray_home, no_reply, moment, number):
    """attack5.md, A8: after the line, one of three ended by SIGSEGV. Ctrl-C is sent to all processes."""
    server, arrived = no_reply

    def start(home: Path = tmp_path) -> subprocess.Popen[str]:
        return driver(server, home, sample_here, ray_home, "answer", "demo")

    if moment not in STAGES and not start_s:
        start_s.append(measure_start(lambda: start(tmp_path / "whole"), arrived, number))
    with start() as job:
        own_ray.wait_until_caught(job)
        if moment in STAGES:
            is_there, process, until = STAGES[moment][0], psutil.Process(job.pid), time.monotonic() + 240
            while not is_there(process):
                assert job.poll() is None, job.communicate()[0]
                assert time.monotonic() < until
                time.sleep(0.02)
        else:
            time.sleep(start_s[0] * moment / N_MOMENTS)
        (os.killpg if number == signal.SIGINT else os.kill)(job.pid, number)
        output, _ = job.communicate(timeout=60)
    assert job.returncode == 1, output
    *before, last = own_ray.own_lines(output)
    assert last == own_ray.INTERRUPTED
    assert not [line for line in before if not line.startswith("answer  ")], output
    # Ray's agents see that their raylet ended when they have imported all: a minute on a machine with ten other jobs.
    deadline = time.monotonic() + 120
    while (left := of_ray(ray_home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_the_key_is_in_no_file_of_a_run_that_ends(sample_config, run_answer, capfd):
    with FakeOpenAI(echoing(lambda: None)) as server:
        overrides = fake(server, api_key_env="OUR_KEY", max_tries=1)
        config = sample_config(*overrides, "questions.limit=4", "ensemble.members=1")
        run_answer(config)
        assert [request.headers["authorization"] for request in server.log[:1]] == [f"Bearer {KEY}"]
    errors = [row["error"] for row in rows_of(config.run, "answers") if row["error"] is not None]
    assert len(errors) == 3, "of the four, one was a whole reply"
    assert all("[key]" in error for error in errors), errors
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert files_with_the_key(Path(config.run).parent, session / "logs") == []
    assert KEY not in "".join(capfd.readouterr())
