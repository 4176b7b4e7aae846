"""``kill -9`` at any moment: the same command goes on, to the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from fake_openai import Action, FakeOpenAI
from test_answer import COMPARED

pytestmark = [pytest.mark.ray, pytest.mark.slow]

N_CHAINS, KILLS_PER_CHAIN, FLUSH_S = 4, 5, 0.5
VICTIMS = (
    "driver",
    "driver",
    "ray::Member",
    "ray::LedgerShard",
    "driver",
    "ray::Retriever",
    "driver",
    "ray::ServeReplica",
)


class Killer:
    """Counts requests; at each chosen count kills its victim, once, as soon as there is one alive."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n = 0
        self.plan: dict[int, str] = {}
        self.due: list[str] = []
        self.driver: subprocess.Popen | None = None
        self.kills: list[tuple[float, str]] = []
        self.killed: set[int] = set()

    def script(self, index, body):
        with self.lock:
            if self.n in self.plan:
                self.due.append(self.plan[self.n])
            self.n += 1
            # Calls in flight go on arriving while a driver or an actor comes back: then the next kill waits for it.
            if self.due and self.kill(self.due[0]):
                self.kills.append((time.monotonic(), self.due.pop(0)))
        return Action(delay_s=0.02)

    def kill(self, victim: str) -> bool:
        pid = self.driver.pid if victim == "driver" else self.newest(victim)
        if pid is None or pid in self.killed:
            return False
        os.kill(pid, signal.SIGKILL)
        self.killed.add(pid)
        return True

    def newest(self, title: str) -> int | None:
        ours = [
            p
            for p in psutil.process_iter(["cmdline", "create_time"])
            if (p.info["cmdline"] or [""])[0].startswith(title)
        ]
        return max(ours, key=lambda p: p.info["create_time"]).pid if ours else None


def run_until_done(killer: Killer, command: list[str]) -> int:
    """Repeat the command until it ends by itself; returns how often it was started."""
    for starts in range(1, 20):
        killer.driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = killer.driver.communicate(timeout=240)
        if killer.driver.returncode != -signal.SIGKILL:
            assert killer.driver.returncode == 0, output
            return starts
    raise AssertionError("never finished")


def test_killed_at_twenty_points_and_repeated_it_is_the_same_to_the_byte(cluster, sample_index, tmp_path, capsys):
    killer = Killer()
    with FakeOpenAI(killer.script) as server:
        deployment = {"kind": "openai", "base_url": server.base_url, "model": "fake", "api_key_env": None}
        shared = {
            "cluster.address": cluster,
            "cluster.block_size": "4",
            "index.path": sample_index[0],
            "deployments.fake": json.dumps(deployment),
            "roles.answer.model": "fake",
            "ensemble.members": "3",
            "ledger.flush_s": str(FLUSH_S),
        }

        def command(name: str) -> list[str]:
            own = {"run": f"{tmp_path}/{name}", "ledger.path": f"{tmp_path}/{name}-ledger"}
            flags = [part for key, value in (shared | own).items() for part in ("--set", f"{key}={value}")]
            return [sys.executable, "-m", "kohaku_ray.cli", "answer", "demo", *flags]

        assert run_until_done(killer, command("whole")) == 1
        n_calls = server.n_requests
        lines = [f"{n_calls} calls uninterrupted"]
        draw = random.Random(20251121)
        for chain in range(N_CHAINS):
            victims = [VICTIMS[(chain * KILLS_PER_CHAIN + kill) % len(VICTIMS)] for kill in range(KILLS_PER_CHAIN)]
            points = sorted(draw.sample(range(1, n_calls - 30), KILLS_PER_CHAIN))
            killer.plan = {killer.n + point: victim for point, victim in zip(points, victims, strict=True)}
            first, n_kills = server.n_requests, len(killer.kills)
            starts = run_until_done(killer, command(f"chain{chain}"))
            asked = server.log[first:]
            kills = killer.kills[n_kills:]
            assert len(kills) == KILLS_PER_CHAIN
            assert starts == 1 + victims.count("driver")
            counts = Counter(json.dumps([r.body["messages"], r.body["seed"]]) for r in asked)
            repeated = sum(counts.values()) - len(counts)
            # What may be repeated: calls in flight at a kill, and replies not yet flushed then.
            exposed = sum(
                sum(at - FLUSH_S - 1.0 <= r.arrived_s <= at + 1.0 for r in asked)
                for at, victim in kills
                if victim in ("ray::LedgerShard", "ray::ServeReplica")
            )
            assert len(counts) == n_calls
            assert repeated <= exposed
            for name in COMPARED:
                whole, resumed = (Path(tmp_path, run, name).read_bytes() for run in ("whole", f"chain{chain}"))
                assert whole == resumed, f"{name} differs after {kills}"
            lines.append(f"chain {chain}: killed {', '.join(victims)} at calls {points}: {repeated} calls repeated")
        assert len(killer.kills) == N_CHAINS * KILLS_PER_CHAIN == 20
    with capsys.disabled():
        print("\n" + "\n".join(lines))
