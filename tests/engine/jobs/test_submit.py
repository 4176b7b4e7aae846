"""Jobs as users submit them: to a running cluster, behind a token; and model replicas that outlive jobs."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from kit import own_ray
from kit.answers import deployment
from kit.fake_openai import Action, FakeOpenAI
from kit.runs_here import index_here
from ray import serve

from kohaku_ray import sample
from kohaku_ray.config import load_config
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


@dataclass(frozen=True)
class Head:
    """The head of a cluster behind a token, alone by default."""

    gcs: int
    dashboard: int  # where jobs are sent
    environment: dict[str, str]  # of who submits
    log: Path


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> Iterator[Head]:
    home = tmp_path_factory.mktemp("head")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = own_ray.environment(HOME=str(home), RAY_AUTH_MODE="token", PATH=path)
    subprocess.run(["ray", "get-auth-token", "--generate"], env=environment, check=True, capture_output=True)
    session = tempfile.mkdtemp(dir="/tmp")  # sockets' paths have at most 107 bytes
    gcs, dashboard, client = free_ports(3)
    head = Head(gcs, dashboard, environment, home / "ray.log")
    ports = [f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
    try:
        with node(head, "--head", f"--temp-dir={session}", *ports):
            yield head
    finally:
        shutil.rmtree(session, ignore_errors=True)


@contextlib.contextmanager
def node(head: Head, *arguments: str) -> Iterator[None]:
    """Start a node on this host, which shares Ray's session directory with the others, until jobs can be sent to it."""
    [agent] = free_ports(1)
    command = ["ray", "start", "--block", "--num-cpus=4", "--disable-usage-stats"]
    command += [f"--dashboard-agent-listen-port={agent}", *arguments]
    with head.log.open("a") as output:
        started = subprocess.Popen(command, env=head.environment, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 120
        while not is_open(agent):
            assert started.poll() is None, head.log.read_text()
            assert time.monotonic() < until, head.log.read_text()
            time.sleep(0.5)
        yield
    finally:
        started.terminate()
        started.wait(60)


@pytest.mark.slow
def test_a_job_is_submitted_to_a_cluster_as_the_page_says(head, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", head.environment["PATH"])
    own_project(tmp_path / "project")
    assert LINES.count("ray start --head\n") == 1  # a head of this test's own is up
    lines = LINES.replace("ray start --head\n", "").replace("8265", str(head.dashboard))
    lines = lines.replace("/shared", f"{tmp_path}/shared")
    page = f"ls {tmp_path}/shared/runs/sweeps/top_k_final/sweep.html\n"
    assert lines.count(page) == lines.count("sweep top_k_final ") == 1
    lines = lines.replace(page, "").replace("sweep top_k_final ", "sweep top_k_final --dry-run ")
    environment = {name: value for name, value in head.environment.items() if not name.startswith("RAY_")}
    shell = subprocess.Popen(
        ["bash", "-e", "-c", lines],
        cwd=tmp_path / "project",
        env=environment | {"RAY_USAGE_STATS_ENABLED": "0"},
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
    assert shell.returncode == 0, printed[-4000:] + head.log.read_text()[-2000:]
    assert printed.count("succeeded") == 3, printed
    assert {"submission.csv", "report.html"} <= set(os.listdir(tmp_path / "shared/runs/mine"))
    assert re.search(r"\d+ distinct runs, 0 finished", printed)
    assert os.listdir(tmp_path / "project/runs") == ["large"]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


def working_directories(command: str) -> set[str]:
    """Where the processes of a command work, as the kernel says it."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if command in process.cmdline():
                found.add(os.readlink(f"/proc/{process.pid}/cwd"))
    return found


@pytest.mark.slow
def test_a_sweep_is_raced_to_its_end_though_its_working_directory_goes_away(head, tmp_path, tiny_encoder):
    """The second node on a host unpacks the job's directory anew: the driver's is a deleted one (users5.md 3.2)."""
    project, shared = tmp_path / "project", tmp_path / "shared"
    shutil.copytree(sample.path("documents"), project / "documents", ignore=shutil.ignore_patterns("*.pdf"))
    questions = Path(sample.path("questions.csv")).read_text().splitlines(keepends=True)
    (project / "questions.csv").write_text("".join(questions[:9]))
    second = node(head, f"--address=127.0.0.1:{head.gcs}")
    with FakeOpenAI(lambda index, body: Action(delay_s=0.5)) as server, second:
        mine = {
            "documents": {"paths": ["documents"], "metadata": None},
            "questions": {"path": "questions.csv"},
            "index": {"path": str(shared / "index"), "encoder": {"model": tiny_encoder}, "encoders": 1},
            "kohaku": {"queries": 1, "top_k_final": None},
            "deployments": {"fake": deployment(server)},
            "roles": {"answer": {"model": "fake"}},
            "ensemble": {"members": 1},
            "cluster": {"retriever": {"replicas": 2}},
        }
        (project / "my.yaml").write_text(yaml.safe_dump(mine))
        index_here(load_config(["demo", str(project / "my.yaml")]))
        table = {"name": "depth", "axes": {"kohaku.top_k": [2, 4, 8]}}
        sweep = {"base": ["demo", "my.yaml"], "seeds": [0], "race": {"error": 0, "shard": 2}, "tables": [table]}
        (project / "depth.yaml").write_text(yaml.safe_dump(sweep))
        command = [sys.executable, "-m", "kohaku_ray", "sweep", "depth.yaml", "--set", f"shared={shared}"]
        submit = ["ray", "job", "submit", f"--address=http://127.0.0.1:{head.dashboard}"]
        with (tmp_path / "job.log").open("w") as output:
            job = subprocess.Popen(
                [*submit, "--working-dir=.", "--", *command],
                cwd=project,
                env=head.environment,
                stdout=output,
                stderr=output,
            )
        directories = set[str]()
        until = time.monotonic() + 300
        while job.poll() is None and time.monotonic() < until:
            directories |= working_directories("depth.yaml")
            time.sleep(0.2)
        printed = (tmp_path / "job.log").read_text()
    assert job.poll() == 0, printed[-6000:]
    assert any(directory.endswith("(deleted)") for directory in directories), "or this tests nothing"
    assert "of 3 cells left the race" in (shared / "runs/sweeps/depth/sweep.html").read_text(), printed


OWN = """from dataclasses import replace
from kohaku_ray.systems.kohaku import SYSTEM as KOHAKU
SYSTEM = replace(KOHAKU, name="own")
"""


@pytest.mark.slow
def test_an_own_system_reaches_the_replicas_of_a_driver_that_joins_by_its_address(head, tmp_path):
    """As a second job: Serve's controller belongs to the first, whose folder is another (users6.md S4)."""
    base = {"base": "demo", "deployments": {"extractive": {"kind": "extractive", "replicas": 2}}}
    places = {"questions": {"limit": 1}, "ensemble": {"members": 1}, "cluster": {"address": f"127.0.0.1:{head.gcs}"}}
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"system_{name}.py").write_text(OWN)
        mine = {**base, **places, "system": f"system_{name}:SYSTEM", "run": "run", "ledger": {"path": "ledger"}}
        (folder / "my.yaml").write_text(yaml.safe_dump({**mine, "index": {"path": "index"}}))
        for command in ("index", "answer"):
            job = [sys.executable, "-m", "kohaku_ray", command, "my.yaml"]
            done = subprocess.run(job, cwd=folder, env=head.environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr[-3000:]


NAMED = """
import ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
print([entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)])
"""


def named_actors(head) -> set[str]:
    environment = head.environment | {"RAY_ADDRESS": f"127.0.0.1:{head.gcs}"}
    listed = subprocess.run([sys.executable, "-c", NAMED], env=environment, capture_output=True, text=True, check=True)
    return set(ast.literal_eval(listed.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_after_three_jobs_nothing_is_left_but_what_serves_the_next(head, tmp_path, tiny_encoder):
    """Same server, another time-out each: three limiters were left for ever, on any node (engine6.md A3)."""
    before = named_actors(head)  # of other tests' jobs, Ray Data's among them
    index = ("demo", f"index.encoder.model={tiny_encoder}", f"index.path={tmp_path}/index")
    index_here(load_config(index[0], index[1:]))
    with FakeOpenAI() as server:
        for timeout_s in (50, 60, 70):
            fake = deployment(server, timeout_s=timeout_s, requests_per_s=1000, replicas=2)
            given = ["roles.answer.model=fake", f"deployments.fake={yaml.safe_dump(fake, default_flow_style=True)}"]
            given += [f"run={tmp_path}/{timeout_s}", f"ledger.path={tmp_path}/ledger", "questions.limit=2"]
            given += [f"cluster.address=127.0.0.1:{head.gcs}", "ensemble.members=2", *index[1:]]
            job = [
                sys.executable,
                "-m",
                "kohaku_ray",
                "answer",
                "demo",
                *(part for key in given for part in ("--set", key)),
            ]
            done = subprocess.run(job, cwd=tmp_path, env=head.environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr[-3000:]
    ours = [name for name in named_actors(head) - before if not name.startswith("SERVE_")]
    stays = re.compile(r"(applications|ledger).*")  # until they are idle for five minutes
    assert [name for name in ours if not stays.fullmatch(name)] == []
    assert sum(name.startswith("applications") for name in ours) <= 1


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
