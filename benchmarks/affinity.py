"""Compare ways of routing: hashing alone and bounded loads (simulated); question and power-of-two routing (measured).

    python benchmarks/affinity.py [--simulate] [--questions 10000] [--config CONFIG] [--set KEY=VALUE]

Simulated: questions of log-normal length on 2 to 64 replicas, 16 in flight per replica: mean over largest load,
and the share of questions moved. Measured, in turns in one process: nine members per question on two replicas by both
routers; cached share of prompt tokens (bound 8/9) and tokens per second. Default: a tiny random Llama on CPUs.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import heapq
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean

from kohaku_ray import sample
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.bench import Grid, run_bench
from kohaku_ray.models.placement import BOUND, Placement

IN_FLIGHT = 16
N_VIRTUAL = 100
REPLICAS = (2, 4, 8, 16, 32, 64)
UNBOUNDED = 1e9
MEMBERS = 9
WANTED_CACHED = 0.95 * (MEMBERS - 1) / MEMBERS
GRID = Grid(replicas=(2,), members=(MEMBERS,), concurrency=(4,), questions=12, context_tokens=1500, output_tokens=32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", action="store_true", help="only the simulation")
    parser.add_argument("--questions", type=int, default=10_000, help="of the simulation")
    parser.add_argument("--config", help="its roles.answer.model is a deployment of kind vllm")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    print_simulation(arguments.questions)
    if arguments.simulate:
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        overrides = [*arguments.overrides, *([] if arguments.config else tiny(Path(scratch)))]
        return measure(arguments.config, overrides, scratch)


def print_simulation(n_questions: int) -> None:
    print(f"{n_questions} questions, {IN_FLIGHT} in flight per replica: mean / largest load, averaged over the run")
    print(f"{'replicas':>9}{'hashing alone':>15}{f'bound {BOUND}':>12}{'moved':>9}")
    for n in REPLICAS:
        alone, bounded = (simulate(n, bound, n_questions) for bound in (UNBOUNDED, BOUND))
        print(f"{n:>9}{alone[0]:>15.2f}{bounded[0]:>12.2f}{bounded[1]:>9.1%}")


def simulate(n_replicas: int, bound: float, n_questions: int) -> tuple[float, float]:
    rng, placement = random.Random(n_replicas), Placement[int](bound)
    ring = sorted(
        (position(f"{replica}:{number}"), replica) for replica in range(n_replicas) for number in range(N_VIRTUAL)
    )
    replicas = range(n_replicas)
    running: list[tuple[float, str]] = []
    now, evenness = 0.0, []
    for number in range(n_questions):
        question = f"question {number}"
        if len(running) >= IN_FLIGHT * n_replicas:
            now, ended = heapq.heappop(running)
            placement.ended(ended)
            evenness.append(placement.n_in_flight / n_replicas / max(map(placement.load, replicas)))
        placement.choose_replica(question, order_of(question, ring), replicas)
        placement.began(question)
        heapq.heappush(running, (now + rng.lognormvariate(0, 0.5), question))
    return mean(evenness), placement.n_moved / placement.n_placed


def order_of(question: str, ring: list[tuple[int, int]]) -> list[int]:
    start = bisect.bisect(ring, (position(question), 0))
    return list(dict.fromkeys(replica for _, replica in ring[start:] + ring[:start]))


def position(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def tiny(directory: Path) -> list[str]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from kit import tiny_llama

    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(sample.path("documents")).rglob("*.md"))]
    model = tiny_llama.build(directory / "tiny", texts)
    return [
        f"deployments.tiny={{kind: vllm, model: {model}, cpus: 1, window_tokens: 2048}}",
        "roles.answer.model=tiny",
        "cluster.num_cpus=6",
    ]


def measure(config: str | None, overrides: list[str], scratch: str) -> int:
    bound = (MEMBERS - 1) / MEMBERS
    print(f"\n{MEMBERS} members, 2 replicas: cached share of prompt tokens (bound {bound:.3f}), tokens/s")
    shares, rates = {}, {}
    for router in ("power_of_two", "question"):
        plain = load_config(config, overrides)
        routed = load_config(config, [*overrides, f"deployments.{plain.role('answer').model}.router={router}"])
        [cell] = run_bench(routed, GRID, f"{scratch}/{router}").cells
        if cell.measured is None:
            print(f"{router}: {cell.reason}")
            return 1
        shares[router] = cell.measured.cached_tokens / cell.measured.prompt_tokens
        rates[router] = (cell.measured.prompt_tokens + cell.measured.completion_tokens) / cell.measured.wall_s
        print(f"{router:>14}{shares[router]:>8.3f}{rates[router]:>10.0f}")
    ratio = rates["question"] / rates["power_of_two"]
    print(f"question over power_of_two: {ratio:.2f} in tokens/s; cached share, target ≥ {WANTED_CACHED:.3f}")
    return 0 if shares["question"] >= WANTED_CACHED else 1


if __name__ == "__main__":
    sys.exit(main())
