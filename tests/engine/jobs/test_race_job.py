"""A raced sweep on a real cluster: watched, killed, gone on with after its file was edited."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from kit.answers import COMPARED, deployment
from kit.fake_openai import Action, FakeOpenAI
from kit.runs_here import index_here, run_here

from kohaku_ray import Sweep
from kohaku_ray.cli import main
from kohaku_ray.sweep.plan import plan_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow]

N_QUESTIONS, SHARD = 16, 2


def write_sweep(home: Path, server: FakeOpenAI, cluster: str, depths: list[int]) -> str:
    common = {"kohaku.top_k_final": None, "questions.limit": N_QUESTIONS, "ledger.path": str(home / "ledger")}
    common |= {"cluster.retriever.replicas": 1, "cluster.address": cluster, "index.encoders": 1, "kohaku.queries": 1}
    common |= {"deployments.fake": deployment(server), "roles.answer.model": "fake", "ensemble.members": 1}
    places = {name: str(home / name) for name in ("output", "runs", "indexes")}
    values = {"base": ["paper"], **places, "seeds": [0], "race": {"error": 0, "shard": SHARD}, "set": common}
    values["tables"] = [{"name": "depth", "axes": {"kohaku.top_k": depths}}]
    path = home / "mine.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return str(path)


def start(path: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "kohaku_ray", "sweep", path, "--base", "demo"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(page: Path, n_questions: int, job: subprocess.Popen) -> None:
    """Wait until the page says that so many questions are answered by all cells."""
    until = time.monotonic() + 550
    while not (page.is_file() and (found := re.search(r"Race: (\d+) of", page.read_text()))) or (
        int(found[1]) < n_questions
    ):
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_race_is_watched_killed_and_gone_on_with_after_its_file_was_edited(cluster, tmp_path, capsys):
    with FakeOpenAI(lambda index, body: Action(delay_s=0.4)) as server:
        path = write_sweep(tmp_path, server, cluster, [2, 4, 8, 16])
        sweep = Sweep(path, ["demo"])
        for config in plan_sweep(sweep.loaded).indexes.values():
            index_here(config)
        page, job = Path(sweep.page), start(path)
        wait_for(page, 2 * SHARD, job)
        assert '<meta http-equiv="refresh"' in page.read_text()
        assert main(["sweep", path, "--base", "demo"]) != 0
        assert "belongs to process" in capsys.readouterr().err
        wait_for(page, 4 * SHARD, job)
        job.kill()
        job.wait()
        write_sweep(tmp_path, server, cluster, [2, 4, 16])
        plan = plan_sweep(Sweep(path, ["demo"]).loaded)
        job = start(path)
        output, _ = job.communicate(timeout=400)
        assert job.returncode == 0, output
        keys = Counter(json.dumps([request.body["messages"], request.body["seed"]]) for request in server.log)
        assert keys.most_common(4)[-1][1] == 1, "but for the calls in flight when it was killed, each is made once"
        n_made = server.n_requests
        assert '<meta http-equiv="refresh"' not in page.read_text()
        # Outputs are those of runs that were never raced, whose calls are all in the ledger.
        runs = {run: Path(run) for run in map(str, (tmp_path / "runs").iterdir())}
        assert len(runs) == 3
        before = {name: [(run / name).read_bytes() for run in runs.values()] for name in COMPARED}
        for run in runs.values():
            run.rename(run.with_name(f"raced-{run.name}"))
        for config in plan.runs.values():
            run_here(config)
        assert server.n_requests == n_made
        assert {name: [(run / name).read_bytes() for run in runs.values()] for name in COMPARED} == before
