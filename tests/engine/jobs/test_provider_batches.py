"""Runs by a provider's batch API on Ray: waves as files, kills on the way, each line paid once, single calls' bytes."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from kit.answers import COMPARED, deployment, flags
from kit.fake_batches import FakeBatches
from kit.fake_openai import FakeOpenAI
from kit.own_ray import environment
from kit.ray_processes import our_processes
from kit.runs_here import index_here, run_here

from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.sweep import run_sweep
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep

ANSWER = [sys.executable, "-m", "kohaku_ray", "answer", "demo"]
FAST = {"gather_s": 1.0, "poll_s": 0.2}


def settings(server: FakeOpenAI, home: Path, name: str, batch: object, **more: object) -> dict[str, object]:
    return {
        "deployments.fake": json.dumps(deployment(server, batch=batch)),
        "deployments.direct": json.dumps(deployment(server)),
        "model": "fake",
        "run": f"{home}/{name}",
        "ledger.path": f"{home}/{name}-ledger",
        "ensemble.members": 3,
        "questions.limit": 12,
        **more,
    }


def outputs(run: str) -> dict[str, bytes]:
    return {name: Path(run, name).read_bytes() for name in COMPARED}


def singly(server: FakeOpenAI, home: Path, index: str) -> dict[str, bytes]:
    """The outputs of the same run by single calls, made in this process."""
    given = settings(server, home, "singly", None, **{"index.path": index})
    return outputs(run_here(load_config("demo", [f"{key}={value}" for key, value in given.items()])))


def paid_twice(batches: FakeBatches) -> list[str]:
    keys = [key for file in batches.files for key in file]
    return sorted({key for key in keys if keys.count(key) > 1})


@pytest.mark.slow
def test_a_run_whose_machine_is_killed_while_a_batch_is_under_way_pays_each_line_once(sample_here, tmp_path):
    """Plans by single calls, answers by batches; the progress says what these do."""
    with FakeOpenAI(batches=FakeBatches(delay_s=600.0)) as server:
        expected, batches = singly(server, tmp_path, sample_here), server.batches
        mixed = {"roles.plan.model": "direct", "index.path": sample_here}
        command = [*ANSWER, *flags(settings(server, tmp_path, "run", FAST, **mixed))]
        first = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
        says = re.compile(r"1 batch, 0 of 36 lines done, \d+ min since")
        said = next(filter(says.search, first.stderr), None)
        first.kill()  # its Ray ends with it
        first.communicate()
        n_looks = batches.n_looks
        batches.look = lambda index: batches.end() if index > n_looks else None  # the next job finds it under way
        assert said is not None
        assert len(batches.batches) == 1, "answers of all members are one file"
        n_single = server.n_requests
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert server.n_requests == n_single, "plans are recorded"
        assert not paid_twice(batches)
        assert max(batches.paid.values()) == 1
        assert outputs(f"{tmp_path}/run") == expected


@pytest.mark.ray
@pytest.mark.slow
def test_the_runs_of_a_sweep_share_their_files(cluster, tiny_encoder, tmp_path):
    whole = {"gather_s": 4.0, "poll_s": 0.2}
    with FakeOpenAI(batches=FakeBatches()) as server:
        batches = server.batches
        places = {name: f"{tmp_path}/{name}" for name in ("output", "runs", "indexes")}
        common = {"deployments.fake": deployment(server, batch=whole), "model": "fake", "questions.limit": 4}
        common |= {
            "kohaku.top_k_final": None,
            "ledger.path": f"{tmp_path}/ledger",
            "ensemble.members": 2,
            "cluster.retriever.replicas": 1,
            "index.encoder.model": tiny_encoder,
        }
        tables = [{"name": "depth", "axes": {"kohaku.top_k": [4, 8]}}]
        values = {"base": ["paper"], **places, "seeds": [0], "tables": tables, "set": common}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        plan = plan_sweep(load_sweep(f"{tmp_path}/mine.yaml", ["demo"]))
        for config in plan.indexes.values():
            index_here(config)
        summary = run_sweep(plan)
        assert not summary.failed
        plans, answers = batches.files
        assert len(plans) == 4, "cells plan alike"
        assert 8 < len(answers) <= 16, "of both cells and all members"
        assert not paid_twice(batches)


VICTIMS = ("driver", "ray::BatchActor", "ray::LedgerShard")


def kill_on_the_way(server: FakeOpenAI, home: Path, cluster: str, index: str, victims: list[str], seed: int) -> int:
    """Make a run with these kills, some moments after a batch was created or by chance, and repeat it until it ends.

    Returns:
        The kills: a run may end before the last ones.
    """
    batches, chance = server.batches, random.Random(seed)
    given = {"index.path": index, "cluster.address": cluster, "ledger.flush_s": 0.5}
    command = [*ANSWER, *flags(settings(server, home, "run", FAST, **given))]
    left = list(victims)
    while True:
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output: list[str] = []
        reading = threading.Thread(target=lambda driver=driver, into=output: into.append(driver.communicate()[0]))
        reading.start()
        n_seen = len(batches.batches)
        while driver.poll() is None:
            time.sleep(0.02)
            if left and (len(batches.batches) > n_seen or chance.random() < 0.005):
                n_seen = len(batches.batches)
                time.sleep(chance.uniform(0.0, batches.delay_s + 1.0))
                victim = left[0]
                named = [process for name, process in our_processes() if name.startswith(victim)]
                if victim == "driver" and driver.poll() is None:
                    os.kill(driver.pid, signal.SIGKILL)
                elif named:
                    os.kill(max(named, key=lambda process: process.create_time()).pid, signal.SIGKILL)
                else:
                    continue
                left.pop(0)
        reading.join()
        if driver.returncode != -signal.SIGKILL:
            assert driver.returncode == 0, output
            return len(victims) - len(left)


@pytest.mark.ray
@pytest.mark.chaos
def test_kills_of_driver_gatherer_and_shard_pay_each_line_once(cluster, sample_here, tmp_path):
    with FakeOpenAI(batches=FakeBatches(delay_s=3.0)) as server:
        expected = singly(server, tmp_path, sample_here)
        assert kill_on_the_way(server, tmp_path, cluster, sample_here, list(VICTIMS), 1) > 0
        assert not paid_twice(server.batches)
        assert outputs(f"{tmp_path}/run") == expected


@pytest.mark.ray
@pytest.mark.chaos
@pytest.mark.long
def test_twenty_kills_pay_each_line_once(cluster, sample_here, tmp_path):
    n_kills = chain = 0
    while n_kills < 20:
        chain += 1
        home = tmp_path / str(chain)
        home.mkdir()
        with FakeOpenAI(batches=FakeBatches(delay_s=2.0)) as server:
            expected = singly(server, home, sample_here)
            victims = [VICTIMS[(chain + kill) % len(VICTIMS)] for kill in range(4)]
            n_kills += kill_on_the_way(server, home, cluster, sample_here, victims, chain)
            assert not paid_twice(server.batches), chain
            assert outputs(f"{home}/run") == expected, chain
