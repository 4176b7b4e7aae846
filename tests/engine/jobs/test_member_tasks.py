"""A member is an actor task: named after member and block, retried by itself, its failure its own."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import ray
from kit.answers import COMPARED, fake
from kit.fake_openai import Action, FakeOpenAI
from kit.ray_processes import our_processes
from kit.runs_here import run_here

pytestmark = pytest.mark.ray

N_PROCESSES = 3
"""Member processes of the session's pool."""
NAME = re.compile(r"member (\d+) · block (\d+) · .+")


class Tasks:
    """The tasks that Ray has seen end since this was made, from its table of task events."""

    def __init__(self) -> None:
        self._before = set(self._events())

    def of(self, method: str, n_wanted: int = 0) -> Counter[tuple[str, int]]:
        """Count attempts by the task's name and number of attempt, once there are so many of this method."""
        until = time.monotonic() + 30
        while True:
            new = {key: task for key, task in self._events().items() if key not in self._before}
            counts = Counter((name, key[1]) for key, (name, function) in new.items() if function == method)
            if counts.total() >= n_wanted:
                return counts
            assert time.monotonic() < until, f"{counts.total()} of {n_wanted} tasks of {method} after 30 s"
            time.sleep(0.2)

    def _events(self) -> dict[tuple[bytes, int], tuple[str, str]]:
        import ray

        events = ray._private.state.state._get_all_task_events()
        return {
            (event.task_id, event.attempt_number): (event.task_info.name, event.task_info.func_or_class_name)
            for event in events
        }


def test_each_member_and_block_is_a_task_of_that_name_and_siblings_ask_together(sample_config, run_answer):
    config = sample_config("questions.limit=6", "ensemble.members=4", "cluster.block_size=2", "kohaku.max_retries=0")
    tasks = Tasks()
    summary = run_answer(config)
    named = tasks.of("MemberProcess.answer", 12)
    run = Path(config.run).name
    assert named == {(f"member {member} · block {block} · {run}", 0): 1 for member in range(4) for block in range(3)}
    actors = {item["name"].rsplit(" ", 2)[0] for item in ray.util.list_named_actors(all_namespaces=True)}
    assert {"kohaku_ray members", "kohaku_ray voter"} <= actors
    n_calls = sum(summary.n_calls.values())
    assert n_calls >= 24
    assert tasks.of("LedgerShard.ask", 6).total() <= n_calls / 2, "members of a question ask in one message"


def member_processes() -> set[int]:
    """The processes of members, which are called after a task that they run, or after their class."""
    return {process.pid for title, process in our_processes() if title.casefold().startswith("ray::member")}


class Killer:
    """Kills a process of members that is at work, once, when so many requests have arrived."""

    def __init__(self) -> None:
        self.n_arrived, self.due, self.killed = 0, math.inf, set[int]()
        self.lock = threading.Lock()

    def script(self, index, body):
        with self.lock:
            self.n_arrived += 1
            if self.n_arrived >= self.due and not self.killed:
                at_work = [process.pid for title, process in our_processes() if NAME.search(title)]
                self.killed = set(at_work[:1])
                for pid in self.killed:
                    os.kill(pid, signal.SIGKILL)
        return Action(delay_s=0.5)


@pytest.mark.slow
def test_one_process_of_members_dies_while_others_answer_and_all_is_answered_and_asked_once(sample_config, run_answer):
    killer = Killer()
    with FakeOpenAI(killer.script) as server:
        overrides = (
            "questions.limit=6",
            "ensemble.members=3",
            "kohaku.max_retries=0",
            "kohaku.queries=1",
            *fake(server),
        )
        overrides += ("cluster.block_size=1", "cluster.blocks_in_flight=6")

        def run(name, make):
            ledger = f"{Path(sample_config(name=name).run).parent}/{name}-ledger"
            config = sample_config(*overrides, f"ledger.path={ledger}", name=name)
            first = server.n_requests
            make(config)
            asked = server.log[first:]
            return config, Counter(json.dumps([request.body["messages"], request.body["seed"]]) for request in asked)

        whole, asked_by_whole = run("whole", run_here)
        before, tasks = member_processes(), Tasks()
        killer.due = killer.n_arrived + 10
        resumed, asked_by_resumed = run("resumed", run_answer)
        after = member_processes()
    assert len(killer.killed) == 1
    assert before - after == killer.killed, "the other processes are those of before"
    attempts = tasks.of("MemberProcess.answer", 18 + 1)
    retried = {int(NAME.fullmatch(name)[2]) for name, attempt in attempts if attempt > 0}
    assert len({block % N_PROCESSES for block in retried}) == 1, "its own tasks alone: blocks go round the processes"
    assert asked_by_resumed == asked_by_whole, "each call once: those in flight were joined"
    for file in COMPARED:
        assert Path(whole.run, file).read_bytes() == Path(resumed.run, file).read_bytes(), file
