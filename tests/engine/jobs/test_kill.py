"""``kill -9`` at any moment: the same command goes on, to the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.answers import COMPARED, deployment, flags
from kit.fake_openai import Action, FakeOpenAI, completion, default_text
from kit.ray_processes import our_processes
from kit.runs_here import run_here

from kohaku_ray.config import load_config
from kohaku_ray.store.segments import SegmentStore

pytestmark = pytest.mark.ray

ANSWER = [sys.executable, "-m", "kohaku_ray", "answer", "demo"]
LOSSY = ("ray::LedgerShard", "ray::ServeReplica")
"""A reply that no segment holds when one of these is killed is asked for again."""
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
N_CHAINS, KILLS_PER_CHAIN = 4, 5


@dataclass(frozen=True)
class Kill:
    """A kill, with the number of requests that had arrived and the calls whose replies were on disk."""

    victim: str
    n_arrived: int
    on_disk: frozenset[int]


class Killer:
    """Counts requests; at each chosen count kills its victim, once, as soon as there is one alive.

    A reply's prompt_tokens are the number of its call, so that a ledger on disk says which calls it holds.
    """

    server: FakeOpenAI
    ledger: Path

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.lock = threading.Lock()
        self.n = 0
        self.plan: dict[int, str] = {}
        self.due: list[str] = []
        self.driver: subprocess.Popen | None = None
        self.kills: list[Kill] = []
        self.killed: set[int] = set()

    def script(self, index, body):
        with self.lock:
            if self.n in self.plan:
                self.due.append(self.plan[self.n])
            self.n += 1
            # Calls in flight go on arriving while a driver or an actor comes back: then the next kill waits for it.
            if self.due and self.kill(self.due[0]):
                self.due.pop(0)
            call = self.number(body)
        reply = completion(default_text(body))
        reply["usage"]["prompt_tokens"] = call
        return Action(delay_s=0.02, body=reply)

    def number(self, body: dict[str, Any]) -> int:
        return self.calls.setdefault(json.dumps([body["messages"], body["seed"]]), len(self.calls) + 1)

    def kill(self, victim: str) -> bool:
        pid = self.driver.pid if victim == "driver" else self.newest(victim)
        if pid is None or pid in self.killed:
            return False
        recorded = SegmentStore(str(self.ledger)).load(lambda _: True).entries.values()
        on_disk = frozenset(entry.reply.prompt_tokens for entry in recorded)
        os.kill(pid, signal.SIGKILL)
        self.kills.append(Kill(victim, self.server.n_requests, on_disk))
        self.killed.add(pid)
        return True

    def newest(self, title: str) -> int | None:
        # A member's process is called after its class, or after a task: ray::member 3 · block 12.
        named = [process for name, process in our_processes() if name.casefold().startswith(title.casefold())]
        return max(named, key=lambda process: process.create_time()).pid if named else None


def run_until_done(killer: Killer, command: list[str]) -> int:
    """Repeat the command until it ends by itself; returns how often it was started."""
    for starts in range(1, 20):
        killer.driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = killer.driver.communicate(timeout=240)
        if killer.driver.returncode != -signal.SIGKILL:
            assert killer.driver.returncode == 0, output
            return starts
    raise AssertionError("never finished")


class Chains:
    """Runs of one configuration over one server: whole ones, and ones that are killed on the way."""

    def __init__(self, home: Path, server: FakeOpenAI, killer: Killer, settings: dict[str, str]):
        self.home, self.server, self.killer = home, server, killer
        killer.server = server
        model = {"deployments.fake": json.dumps(deployment(server)), "roles.answer.model": "fake"}
        self.settings = {**model, "ledger.flush_s": "0.5", **settings}

    def of(self, name: str) -> dict[str, str]:
        return {**self.settings, "run": f"{self.home}/{name}", "ledger.path": f"{self.home}/{name}-ledger"}

    def whole(self) -> int:
        """Run it uninterrupted, in one process; returns how many calls it makes."""
        run_here(load_config("demo", [f"{key}={value}" for key, value in self.of("whole").items()]))
        self.n_calls = self.server.n_requests
        return self.n_calls

    def kill(self, name: str, kills: dict[int, str]) -> None:
        """Run it with a kill at each of these calls: the outputs are the whole run's, no recorded call is repeated."""
        killer = self.killer
        first, n_kills = self.server.n_requests, len(killer.kills)
        killer.plan = {killer.n + point: victim for point, victim in kills.items()}
        killer.ledger = self.home / f"{name}-ledger"
        starts = run_until_done(killer, [*ANSWER, *flags(self.of(name))])
        asked, done = self.server.log[first:], killer.kills[n_kills:]
        assert len(done) == len(kills)
        assert starts == 1 + list(kills.values()).count("driver")
        counts = Counter(killer.number(request.body) for request in asked)
        assert len(counts) == self.n_calls
        for kill in done:
            again = {killer.number(request.body) for request in asked if request.index >= kill.n_arrived} & kill.on_disk
            assert not again, f"calls {sorted(again)} were on disk when {kill.victim} was killed"
        exposed = sum(self.n_calls - len(kill.on_disk) for kill in done if kill.victim in LOSSY)
        assert sum(counts.values()) - len(counts) <= exposed
        for file in COMPARED:
            whole, resumed = (Path(self.home, run, file).read_bytes() for run in ("whole", name))
            assert whole == resumed, f"{file} differs after {done}"


@pytest.fixture
def chains(cluster, sample_here, tmp_path):
    killer = Killer()
    with FakeOpenAI(killer.script) as server:
        yield lambda **settings: Chains(
            tmp_path, server, killer, {"cluster.address": cluster, "index.path": sample_here, **settings}
        )


@pytest.mark.slow
def test_a_driver_and_an_actor_of_each_kind_are_killed_and_repeated_it_is_the_same(chains):
    one_by_one = {"cluster.block_size": "1", "cluster.blocks_in_flight": "1"}
    small = chains(**one_by_one, **{"questions.limit": "6", "ensemble.members": "2"})
    assert small.whole() == 18, "a plan and two answers of each question"
    victims = ("ray::Member", "ray::LedgerShard", "driver", "ray::Retriever", "ray::ServeReplica")
    small.kill("killed", dict(zip((3, 6, 9, 12, 15), victims, strict=True)))


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_at_twenty_points_and_repeated_it_is_the_same_to_the_byte(chains):
    large = chains(**{"cluster.block_size": "4", "ensemble.members": "3"})
    n_calls, draw = large.whole(), random.Random(20251121)
    for chain in range(N_CHAINS):
        victims = [VICTIMS[(chain * KILLS_PER_CHAIN + kill) % len(VICTIMS)] for kill in range(KILLS_PER_CHAIN)]
        points = sorted(draw.sample(range(1, n_calls - 30), KILLS_PER_CHAIN))
        large.kill(f"chain{chain}", dict(zip(points, victims, strict=True)))
