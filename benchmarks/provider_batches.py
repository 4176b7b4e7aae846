"""CPU per call of batches beside single calls, against one server that answers after a while.

    python benchmarks/provider_batches.py [--calls 10000] [--seconds 30] [--members 5] [--prompt-chars 8000]

A caller asks the ledger, as members do; the calls leave by Serve's replica one by one, or by the actor that gathers
batches. CPU of the caller, the ledger's shard and the replica or actor counts, all threads; that of the server, which
is tests/kit's in another process, does not. Single calls are answered at once, a batch after ``--seconds``. Both are
measured in one run, and so are their ratios. The limit is that of the process that asks the server: a replica took
0.8 ms per single call (results/flow.md).
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from kohaku_ray.config import load_config
from kohaku_ray.config.sections import ClusterConfig
from kohaku_ray.engine.cluster import connect
from kohaku_ray.engine.session import Session
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.request import ChatRequest, seed_for
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.models.target import Target

WANTED_MS = 1.0
AT_ONCE = 64
SCHEMA = answer_schema(("doc-a", "doc-b", "doc-c"), True)
PARTS = ("ray::LedgerShard", "ray::ServeReplica", "ray::BatchActor")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--prompt-chars", type=int, default=8_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.seconds)
        return 0
    command = [sys.executable, __file__, "--serve", "--seconds", str(arguments.seconds)]
    with tempfile.TemporaryDirectory() as home, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            n_single = max(arguments.calls // 10, 500)
            with connect(ClusterConfig(num_cpus=4)):
                single, by_replica = measure(home, url, None, n_single, arguments)
                batched, by_actor = measure(home, url, {"gather_s": 5, "poll_s": 5}, arguments.calls, arguments)
        finally:
            server.terminate()
    print(
        f"asking the server: a replica {by_replica:.3f} ms of CPU per call, the batches' actor {by_actor:.3f}", end=" "
    )
    print(f"(target ≤ {WANTED_MS}), ratio {by_actor / by_replica:.2f}")
    print(f"all of it: single calls {single:.3f} ms, batches {batched:.3f}, ratio {batched / single:.2f}")
    return 0 if by_actor <= WANTED_MS else 1


def measure(
    home: str, url: str, batch: dict[str, object] | None, n_calls: int, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Ask once; returns milliseconds of CPU per call, of all and of the process that asks the server."""
    way = "single" if batch is None else "batches"
    deployment = OpenAIConfig(base_url=url, model="fake", api_key_env=None, max_ongoing=AT_ONCE, batch=batch)
    config = load_config("default", [f"ledger.path={home}/{way}"])
    asked = [
        [request(number, member, arguments.prompt_chars) for member in range(arguments.members)]
        for number in range(n_calls // arguments.members)
    ]
    with Session(config.cluster, config.ledger) as session:
        ledger = session.open_ledger(config.ledger, 1, [deployment])
        [target] = session.start_replicas({"fake": deployment}).values()
        asyncio.run(ask_all(ledger, target, [[request(-1, 0, 10)]] if batch is None else [], 1))  # imports
        here, before, began = time.process_time(), cpu_by_part(), time.perf_counter()
        asyncio.run(ask_all(ledger, target, asked, AT_ONCE if batch is None else len(asked)))
        spent = {"caller": time.process_time() - here}
        spent |= {part: seconds - before.get(part, 0.0) for part, seconds in cpu_by_part().items()}
        wall_s = time.perf_counter() - began
    n = sum(map(len, asked))
    parts = ", ".join(f"{part.removeprefix('ray::')} {1e3 * seconds / n:.3f}" for part, seconds in spent.items())
    print(f"{way}: {n:,} calls in {wall_s:.1f} s; ms per call: {parts}", flush=True)
    return 1e3 * sum(spent.values()) / n, 1e3 * spent["ray::ServeReplica" if batch is None else "ray::BatchActor"] / n


def request(number: int, member: int, n_chars: int) -> ChatRequest:
    """A member's call of a question: members share the prompt."""
    text = f"[ref_id=doc-a] {number} {'the plant makes 40 MW of power and 3 t of steam. ' * (n_chars // 49)}"
    seed = seed_for(0, f"q{number}", member, 0, "answer")
    return ChatRequest("fake", (("user", text),), 0.7, 1.0, 256, seed, SCHEMA, session_id=f"q{number}")


async def ask_all(ledger: object, target: Target, asked: list[list[ChatRequest]], at_once: int) -> None:
    places = asyncio.Semaphore(at_once)

    async def ask(question: list[ChatRequest]) -> None:
        async with places:
            await asyncio.gather(*(ledger.ask(each, target) for each in question))  # type: ignore[attr-defined]

    await asyncio.gather(*map(ask, asked))


def cpu_by_part() -> dict[str, float]:
    """CPU seconds of the actors' processes, by what they are."""
    spent: dict[str, float] = {}
    for process in psutil.process_iter(["cmdline"]):
        title = (process.info["cmdline"] or [""])[0]
        for part in PARTS:
            if title.startswith(part):
                times = process.cpu_times()
                spent[part] = spent.get(part, 0.0) + times.user + times.system
    return spent


def serve(seconds: float) -> None:
    """Run the tests' server; print the address first."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from kit.fake_batches import FakeBatches
    from kit.fake_openai import FakeOpenAI

    with FakeOpenAI(batches=FakeBatches(delay_s=seconds)) as server:
        print(server.base_url, flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    sys.exit(main())
