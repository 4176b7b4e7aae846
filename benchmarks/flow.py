"""How full an answer job keeps its replicas, measured and simulated; the driver's memory over a long run.

    python benchmarks/flow.py [--questions 400] [--members 5] [--call-s 4] [--queries 1] [--rounds 1]
    python benchmarks/flow.py --set waiting.max_context_tokens=8000          # longer prompts, of larger documents
    python benchmarks/flow.py --simulate PREPARE,ANSWER,VOTE,DRIVE,RECORD    # milliseconds of CPU, as the above prints;
                                                          # then waves on engines with a KV cache (cache_simulation.py)
    python benchmarks/flow.py --driver 10000                                 # replayed questions

Measured: a backend that only waits, 4 replicas of 32 calls at once, after a warm-up. Busy is the time in replicas
(service_s of the run's usage.parquet) over the replicas' places between the first call's begin and the last one's end;
the limit is 1. With the CPU seconds of each process in the same run, 1 to 256 replicas of 75 calls per second are
simulated with the default settings (flow_simulation.py), the driver's as the run takes it again from the ledger:
while it waits for calls, Ray's threads take more each second than it does for a question. Driver: its resident memory
after each 1,000 questions of five members, made and then replayed, and the most of every kind of process and of the
object store.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pyarrow.parquet as pq
import ray
import waiting
from cache_simulation import print_cache_table
from flow_simulation import Costs, Flow
from replay_run import PROCESSES

from kohaku_ray.checks.demand import CALLS_PER_S
from kohaku_ray.collection.sources import resolve
from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.actors.pool import ActorPool, member_processes
from kohaku_ray.engine.cluster import connect
from kohaku_ray.engine.jobs import answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.lease import call_every

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from kit.runs_here import index_here

WANTED, WANTED_SIMULATED = 0.92, 0.9
WANTED_CALL = "≤ 4 for prompts of 2,000 tokens, ≤ 6 for 8,000"
REPLICAS, PLACES = 4, 32
WARM_UP = 8
CURVE = (1, 8, 64, 256)
SIMULATED_PLACES = VllmConfig.model_fields["max_ongoing"].default
SIMULATED_WAVES = 10
"""How many times the simulated calls fill all replicas' places."""
DRIVER_STEP = 1000
WANTED_GROWTH_MIB = 64
WANTED_MIB = 1024
"""Most memory of a process, and of the object store, whatever the number of questions."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--call-s", type=float, default=4.0)
    parser.add_argument("--queries", type=int, default=1, help="above 1 a call per question plans them first")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--simulate", help="only the simulation, with these costs in milliseconds")
    parser.add_argument(
        "--curve", type=int, nargs="+", default=CURVE, metavar="REPLICAS", help="simulated numbers of them"
    )
    parser.add_argument("--driver", type=int, help="only the driver's memory, over so many questions")
    arguments = parser.parse_args()
    if arguments.simulate:
        is_kept = simulate(Costs(*(float(cost) / 1000 for cost in arguments.simulate.split(","))), arguments) == 0
        return 0 if print_cache_table() and is_kept else 1
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, str(Path(here).parent), os.environ.get("PYTHONPATH", "")])
    if arguments.driver:
        return driver_memory(arguments.driver)
    shares, costs = [], []
    for _ in range(arguments.rounds):
        share, cost = measure(arguments)
        shares.append(share)
        costs.append(cost)
    rounds = " ".join(f"{share:.3f}" for share in shares)
    print(f"busy: best {max(shares):.3f} of 1 (target ≥ {WANTED}), all rounds {rounds}")
    is_kept = simulate(costs[shares.index(max(shares))], arguments) == 0
    return 0 if is_kept and max(shares) >= WANTED else 1


def configured(home: str, n_questions: int, *settings: str) -> Config:
    """The sample's questions under new ids, answered by the system that waits."""
    with open(resolve("sample:questions.csv"), encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    path = Path(home, "questions.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**rows[number % len(rows)], "id": f"w{number:05d}"} for number in range(n_questions))
    overrides = [f"questions.path={path}", f"index.path={home}/index", f"ledger.path={home}/ledger", f"run={home}/run"]
    overrides += ["system=waiting:SYSTEM", f"deployments.waiting={{kind: extractive, max_ongoing: {PLACES}}}"]
    overrides += ["roles.answer.model=waiting", "documents.paths=[sample:documents]", "cluster.num_cpus=8", *settings]
    return resolve_paths(load_config("default", overrides))


def measure(arguments: argparse.Namespace) -> tuple[float, Costs]:
    """Run once: the busy share, and CPU seconds by hop."""
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {waiting.SECONDS: str(arguments.call_s), waiting.LOG: f"{home}/log"}
        Path(home, "log").mkdir()
        config = configured(
            home,
            arguments.questions,
            f"ensemble.members={arguments.members}",
            f"waiting.queries={arguments.queries}",
            "waiting.max_retries=0",
            f"deployments.waiting.replicas={REPLICAS}",
            *arguments.settings,
        )
        with connect(config.cluster):
            index_here(config)
            pool = ActorPool(config, member_processes(config, 8))
            with serving(config.used_deployments):
                first = config.questions.model_copy(update={"limit": WARM_UP})
                warm_up = {"questions": first, "run": f"{home}/first", "seed": config.seed + 1}
                answer.run_answer(config.model_copy(update=warm_up), pool=pool)
                shutil.rmtree(f"{home}/log")
                Path(home, "log").mkdir()
                before, load = cpu_by_process(), os.getloadavg()[0]
                driven_s, waiting_s = drive(config, pool)
                spent = cpu_by_process() - before
                spent["driver"] = driven_s * arguments.questions
                # Replayed, a question takes the driver's work alone, not what Ray's threads do each second of a call.
                busiest_s = min(drive(config.model_copy(update={"run": f"{home}/again"}), pool)[1], waiting_s)
        calls = sorted(tuple(map(float, line.split())) for file in Path(home, "log").iterdir() for line in file.open())
        usage = pq.read_table(f"{config.run}/usage.parquet").to_pylist()
    served_s = sum(row["service_s"] for row in usage if row["source"] == "made")
    n_calls, span_s = len(usage), max(end for _, end in calls) - calls[0][0]
    share = served_s / (REPLICAS * PLACES * span_s)
    n = arguments.questions
    least_s = arguments.call_s * math.ceil(n_calls / (REPLICAS * PLACES))
    costs = Costs(
        spent["retriever"] / n,
        spent["member workers"] / n_calls,
        spent["voter"] / n,
        busiest_s,
        spent["ledger shard"] / n_calls,
    )
    load = max(load, os.getloadavg()[0])
    n_tokens = np.mean([row["prompt_tokens"] for row in usage])
    asked = f"{n} questions × {arguments.members} members, {n_calls} calls of {arguments.call_s:g} s"
    print(f"{asked}, {n_tokens:,.0f} prompt tokens each, load {load:.1f}")
    print(f"first call to last: {span_s:.1f} s; {least_s:.1f} s if every replica were always full")
    print(f"busy: {share:.3f} of 1 (target ≥ {WANTED})")
    print(f"busy by tenths of that time: {' '.join(f'{tenth:.2f}' for tenth in tenths(calls))}")
    for name, seconds in spent.most_common():
        print(f"{name:<20}{1e3 * seconds / n:>8.2f} ms of CPU per question")
    also = f"{1e3 * waiting_s:.2f} with what it does each second that it waits"
    print(f"driver's busiest thread: {1e3 * costs.drive:.2f} ms per question, replayed; {also}")
    print(f"all processes: {1e3 * spent.total() / n_calls:.2f} ms of CPU per call (target {WANTED_CALL})")
    figures = (costs.prepare, costs.answer, costs.vote, costs.drive, costs.record)
    print(f"hops: --simulate {','.join(f'{1e3 * cost:.2f}' for cost in figures)}", flush=True)
    return share, costs


def drive(config: Config, pool: ActorPool) -> tuple[float, float]:
    """Answer; CPU seconds of the driver per question, and of its busiest thread.

    What it does before the first block is done and after the last is once per run, and left out.
    """
    driven: list[tuple[int, float, dict[str, float]]] = []
    with each_block(lambda n_done: driven.append((n_done, time.process_time(), cpu_by_thread()))):
        answer.run_answer(config, pool=pool)
    (n_first, began_s, at_first), (n_last, ended_s, at_last) = driven[0], driven[-1]
    busiest_s = max(seconds - at_first.get(thread, 0.0) for thread, seconds in at_last.items())
    n = max(n_last - n_first, 1)  # few questions may be one block
    return (ended_s - began_s) / n, busiest_s / n


@contextmanager
def each_block(note: Callable[[int], object]) -> Iterator[None]:
    """Call a function with the questions done, whenever the driver has taken a block."""
    add = answer.AnswerSummary.add

    def noted(summary: answer.AnswerSummary, block: answer.AnswerSummary) -> None:
        add(summary, block)
        note(summary.n_questions)

    with patch.object(answer.AnswerSummary, "add", noted):
        yield


def tenths(calls: list[tuple[float, ...]]) -> list[float]:
    """The share of places that calls hold in each tenth of the time from the first begin to the last end."""
    edges = np.linspace(calls[0][0], max(end for _, end in calls), 11)
    held = [
        sum(max(min(end, till) - max(begin, since), 0.0) for begin, end in calls)
        for since, till in itertools.pairwise(edges)
    ]
    return [seconds / (REPLICAS * PLACES * (edges[1] - edges[0])) for seconds in held]


def cpu_by_thread() -> dict[str, float]:
    """CPU seconds of each thread of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}


def cpu_by_process() -> Counter[str]:
    """CPU seconds of this process and of the actors that it started."""
    seconds: Counter[str] = Counter({"driver": time.process_time()})
    for process in psutil.process_iter(["cmdline"]):
        title = (process.info["cmdline"] or [""])[0]
        name = next((name for prefix, name in PROCESSES.items() if title.startswith(prefix)), None)
        if name is not None and is_ours(process):
            times = process.cpu_times()
            seconds[name] += times.user + times.system
    return seconds


def is_ours(process: psutil.Process) -> bool:
    """Whether a process belongs to this run: other clusters may run beside it."""
    try:
        return process.environ().get(waiting.LOG) == os.environ[waiting.LOG]
    except psutil.Error:
        return False


def simulate(costs: Costs, arguments: argparse.Namespace) -> int:
    """Print the curve over replicas with default settings."""
    call_s = SIMULATED_PLACES / CALLS_PER_S
    print(
        f"\nsimulated: {arguments.members} members, replicas of {SIMULATED_PLACES} calls of {call_s:.2f} s, "
        f"{CALLS_PER_S:g} calls/s each"
    )
    counts = ("retrievers", "workers", "shards", "voters")
    print(f"{'replicas':>9}{'questions':>11}" + "".join(f"{name:>12}" for name in counts) + f"{'busy':>8}")
    worst = 1.0
    for n in arguments.curve:
        n_questions = SIMULATED_WAVES * n * SIMULATED_PLACES // arguments.members
        flow = Flow(simulated(n, arguments), costs, n_questions, call_s)
        busy = flow.busy()
        worst = min(worst, busy)
        cells = "".join(f"{getattr(flow, f'n_{name}'):>12}" for name in counts)
        print(f"{n:>9}{n_questions:>11,}{cells}{busy:>8.3f}  {'█' * round(40 * busy)}", flush=True)
    print(f"least: {worst:.3f} of 1 (target ≥ {WANTED_SIMULATED})")
    return 0 if worst >= WANTED_SIMULATED else 1


@contextmanager
def most_memory() -> Iterator[dict[str, float]]:
    """Watch the resident memory of each kind of process, shared pages of the object store included, and that store."""
    most: dict[str, float] = {}

    def look() -> None:
        with suppress(Exception):  # a process ends, or the cluster
            for process in psutil.process_iter(["cmdline", "memory_info"]):
                title = (process.info["cmdline"] or [""])[0]
                name = next((name for prefix, name in PROCESSES.items() if title.startswith(prefix)), None)
                if name is not None and is_ours(process):
                    most[name] = max(most.get(name, 0.0), process.info["memory_info"].rss / 2**20)
            most["driver"] = max(most.get("driver", 0.0), psutil.Process().memory_info().rss / 2**20)
            total, free = (
                resources.get("object_store_memory", 0.0)
                for resources in (ray.cluster_resources(), ray.available_resources())
            )
            most["object store"] = max(most.get("object store", 0.0), (total - free) / 2**20)

    with call_every(look, 2.0, "memory"):
        yield most


def simulated(n: int, arguments: argparse.Namespace) -> Config:
    overrides = ["system=waiting:SYSTEM", "roles.answer.model=waiting", f"ensemble.members={arguments.members}"]
    overrides += [f"deployments.waiting={{kind: extractive, max_ongoing: {SIMULATED_PLACES}, replicas: {n}}}"]
    return load_config("default", [*overrides, f"waiting.queries={arguments.queries}"])


def driver_memory(n_questions: int) -> int:
    """Answer with a model that replies at once, then replay; memory on the way, and the most of each process."""
    seen: dict[int, float] = {}

    def watch(n_questions: int) -> None:
        seen.setdefault(n_questions // DRIVER_STEP * DRIVER_STEP, psutil.Process().memory_info().rss / 2**20)

    with tempfile.TemporaryDirectory() as home:
        os.environ |= {waiting.SECONDS: "0", waiting.LOG: f"{home}/log"}
        Path(home, "log").mkdir()
        config = configured(home, n_questions, "ensemble.members=5", "waiting.queries=1", "waiting.max_retries=0")
        growth = 0.0
        with connect(config.cluster), each_block(watch):
            run_index(config)  # not in this process, whose memory is measured
            for name in ("made", "replayed"):
                seen.clear()
                began = time.perf_counter()
                with most_memory() as most:
                    summary = answer.run_answer(config.model_copy(update={"run": f"{home}/{name}"}))
                after, peak = psutil.Process().memory_info().rss / 2**20, max(seen.values())
                wall_s = time.perf_counter() - began
                print(f"{name}: {summary.n_questions:,} questions in {wall_s:.0f} s, calls {dict(summary.n_calls)}")
                for step, mib in sorted(seen.items()):
                    print(f"{step:>9,} questions{mib:>9.1f} MiB")
                for what, mib in most.items():
                    print(f"{what:<20}{mib:>11.1f} MiB at most (target ≤ {WANTED_MIB})", flush=True)
                growth = peak - seen[min(step for step in seen if step >= min(DRIVER_STEP, max(seen)))]
                print(f"     at the end{after:>12.1f} MiB; grown by {growth:.1f} MiB since {DRIVER_STEP:,}", flush=True)
    print(f"grown by {growth:.1f} MiB in the replay (target ≤ {WANTED_GROWTH_MIB})")
    return 0 if growth <= WANTED_GROWTH_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
