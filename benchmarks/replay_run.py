"""CPU of a whole run whose model calls are all recorded, by process and by part (`python benchmarks/replay.py --run`).

282 questions × 5 members over the sample collection are answered once, then replayed into another run directory through
the same actors. By process: CPU seconds of driver, retriever, member workers, voter and ledger shard over the replay
alone. By part: the same questions in one process, with each part's own CPU seconds (those of parts within it taken
out). Limit: `WANTED_MS` beyond encoding and search of its queries.
"""

from __future__ import annotations

import asyncio
import csv
import functools
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from kohaku_ray.answering import votes
from kohaku_ray.answering.block import MemberAnswer, PreparedQuestion
from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.answering.tools import MemberTools, RunContext
from kohaku_ray.collection.sources import questions_of, resolve
from kohaku_ray.config import Config, load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.engine.actors.pool import ActorPool
from kohaku_ray.engine.cluster import connect
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.models.request import request_key
from kohaku_ray.models.target import Target
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.segments import LedgerReply, SegmentStore

N_QUESTIONS, N_MEMBERS = 282, 5
WANTED_MS = 12
QUERY_PARTS = ("encode queries", "search", "BM25")
PROCESSES = {
    "ray::Retriever": "retriever",
    "ray::Member": "member workers",
    "ray::Voter": "voter",
    "ray::LedgerShard": "ledger shard",
    "ray::ServeReplica": "replica",
}
PARTS = {
    "kohaku_ray.index.vectors.VectorIndex.search": "search",
    "kohaku_ray.index.terms.TermIndex.search": "BM25",
    "kohaku_ray.index.encoder.SentenceEncoder.encode_queries": "encode queries",
    "kohaku_ray.systems.kohaku.answer.rank": "rank",
    "kohaku_ray.systems.kohaku.answer.assemble": "assemble context",
    "kohaku_ray.models.prompts.Prompts.render": "render prompts",
    "kohaku_ray.answering.tools.chat_request": "build requests",
    "kohaku_ray.index.nodes.NodeTable.neighbourhood": "fetch nodes",
    "kohaku_ray.models.request.request_key": "hash",
    "kohaku_ray.systems.kohaku.answer.parse_answer": "parse",
    "kohaku_ray.answering.votes.vote_block": "vote and rows",
}


def configured(home: str) -> Config:
    """The sample's questions, repeated under new ids."""
    with open(resolve("sample:questions.csv"), encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    path = Path(home, "questions.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**rows[number % len(rows)], "id": f"r{number:03d}"} for number in range(N_QUESTIONS))
    overrides = [f"questions.path={path}", f"index.path={home}/index", f"ledger.path={home}/ledger", f"run={home}/run"]
    return resolve_paths(load_config("demo", [*overrides, f"ensemble.members={N_MEMBERS}", "kohaku.max_retries=0"]))


def cpu_by_process() -> Counter[str]:
    seconds: Counter[str] = Counter({"driver": time.process_time()})
    for process in psutil.process_iter(["cmdline"]):
        title = (process.info["cmdline"] or [""])[0]
        name = next((name for prefix, name in PROCESSES.items() if title.startswith(prefix)), None)
        if name is not None:
            times = process.cpu_times()
            seconds[name] += times.user + times.system
    return seconds


def by_process(config: Config, pool: ActorPool) -> Counter[str]:
    """Replay the recorded run; CPU seconds by process."""
    before = cpu_by_process()
    summary = run_answer(config.model_copy(update={"run": f"{config.run}-again"}), pool=pool)
    assert summary.n_calls["made"] == 0, "every call is recorded"
    return cpu_by_process() - before


class Clock:
    """CPU seconds of each part, all threads, without those of parts nested in it."""

    def __init__(self) -> None:
        self.seconds_of: Counter[str] = Counter()
        self._open: list[list[float]] = []

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a part."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            began, inner = time.process_time(), [0.0]
            self._open.append(inner)
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self._open.pop()
                self.seconds_of[name] += took - inner[0]
                if self._open:
                    self._open[-1][0] += took

        return run


class Recording:
    """A ledger's replies in this process."""

    def __init__(self, path: str) -> None:
        self._entries = SegmentStore(path).load(lambda _: True).entries

    async def ask(self, request: Any, target: Target, again: bool = False) -> LedgerReply:
        """See ``Ledger``."""
        key = request_key(request)
        return LedgerReply(self._entries[key], "ledger", key)


def by_part(config: Config) -> tuple[Counter[str], float]:
    """Answer the recorded run in this process; seconds by part, and all of them."""
    system = config.declaration
    targets = dict.fromkeys(config.deployments, Target(""))
    models = tuple(models_of(config, targets, member) for member in range(N_MEMBERS))
    context = RunContext(config, Recording(config.ledger.path), models, system.prompts(config.prompts), targets)
    questions, clock = questions_of(config), Clock()
    index = LocalIndex.open(config)
    index.encoder.encode_queries(["warm up"])  # loading the encoder is no question's cost

    async def answer_all() -> None:
        for question in questions:
            tools = MemberTools(index, context, question.question_id, 0)
            evidence = await system.prepare(question, tools, config.settings)
            answers = []
            for member in range(N_MEMBERS):
                tools = MemberTools(index, context, question.question_id, member)
                answers.append(
                    [MemberAnswer(await system.answer(evidence, tools, config.settings), tuple(tools.calls))]
                )
            votes.vote_block(config, 1, [PreparedQuestion(question, evidence, None)], *answers)

    with ExitStack() as patches:
        for target, name in PARTS.items():
            module, _, attribute = target.rpartition(".")
            patches.enter_context(patch(target, clock.timed(name, _found(module, attribute))))
        began = time.process_time()
        asyncio.run(answer_all())
        return clock.seconds_of, time.process_time() - began


def _found(module: str, attribute: str) -> Callable[..., Any]:
    from pkgutil import resolve_name

    return getattr(resolve_name(module), attribute)


def replay() -> int:
    with tempfile.TemporaryDirectory() as home:
        config = configured(home)
        with connect(config.cluster):
            run_index(config)
            pool = ActorPool(config, n_workers=2)
            with serving(config.used_deployments):
                pool.wait_until_ready()
                run_answer(config, pool=pool)
                processes = by_process(config, pool)
        parts, whole = by_part(config)
    print(f"{N_QUESTIONS} questions × {N_MEMBERS} members, every call recorded")
    for name, seconds in processes.most_common():
        print(f"{name:<28}{1e3 * seconds / N_QUESTIONS:>8.2f} ms of CPU per question")
    print(f"{'all processes':<28}{1e3 * processes.total() / N_QUESTIONS:>8.2f}")
    print("in one process, one question after the other:")
    for name, seconds in parts.most_common():
        print(f"{name:<28}{1e3 * seconds / N_QUESTIONS:>8.2f} ms per question")
    print(f"{'outside the parts':<28}{1e3 * (whole - parts.total()) / N_QUESTIONS:>8.2f}")
    beyond = 1e3 * (whole - sum(parts[name] for name in QUERY_PARTS)) / N_QUESTIONS
    print(f"{'beyond encoding and search':<28}{beyond:>8.2f} of CPU (target ≤ {WANTED_MS})")
    return 0 if beyond <= WANTED_MS else 1
