"""The benchmark's answer runs: what ``answer`` does, on the replicas under test, and the calls that it makes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import PriceConfig, VllmConfig
from kohaku_ray.config.sections import DocumentsConfig, QuestionsConfig
from kohaku_ray.engine.actors.pool import ActorPool, member_processes, n_ledger_shards
from kohaku_ray.engine.actors.tools import RunContext
from kohaku_ray.engine.cluster import check_cluster, check_nodes
from kohaku_ray.engine.jobs.again import Recorded, Replies, answer_again, models_by_member, open_recorded
from kohaku_ray.engine.jobs.answer import context_of, make_run
from kohaku_ray.engine.jobs.bench_machine import cpu_seconds, processes_here, replica_processes
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.ledger.client import open_ledger
from kohaku_ray.engine.ledger.segments import SegmentStore
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.index.store import MANIFEST
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.pages.throughput import Measurement
from kohaku_ray.records import Question
from kohaku_ray.run.demand import answer_demand
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.identity import identity_of
from kohaku_ray.run.indexes import open_index
from kohaku_ray.run.sources import questions_of
from kohaku_ray.run.summary import AnswerSummary, counted, describe_errors
from kohaku_ray.storage import below
from kohaku_ray.sweep.plan import is_there
from kohaku_ray.systems.registry import DEFAULT_SYSTEM

WAVES = 10
"""Questions of a run over those that a replica has in flight: the first and the last are a small part of it."""
WARM_UP_QUESTIONS = 4
"""Questions per replica of the run before, which starts what a first question starts in every process."""
BLOCK = 32
"""Questions that are read back at once."""


def with_index(config: Config, folder: str) -> Config:
    """Return a configuration whose index is there: its own, or one of the sample collection, made in ``folder``.

    Raises:
        ConfigError: It has no index, and its system is not that of the sample.
        DataError: The index cannot be written.
    """
    if is_there(config.index.path):
        return config
    if config.system != DEFAULT_SYSTEM:
        raise ConfigError(
            f"index.path is {config.index.path}, where there is no index, and system {config.system} does not read the "
            "sample collection: run `kohaku-ray index` first"
        )
    sample = {
        "documents": DocumentsConfig(paths=("sample:documents",), metadata="sample:metadata.csv"),
        "questions": QuestionsConfig(path="sample:questions.csv"),
        "index": config.index.model_copy(update={"path": below(folder, "index")}),
    }
    config = config.model_copy(update=sample)
    run_index(config)
    return config


def run_on(config: Config, name: str, deployment: VllmConfig, members: int, n_questions: int, folder: str) -> Config:
    """Return the configuration of a run in an empty ``folder``: every role asks this deployment.

    Its questions are made there of the configured ones (``numbered``), with those of the run before it at their end.
    """
    declared, n_warm_ups = config.declaration.columns, WARM_UP_QUESTIONS * deployment.n_engines
    questions, path = questions_of(config), Path(folder, "questions.jsonl")
    columns = (declared.question_id[0], declared.text[0])
    with path.open("w", encoding="utf-8") as file:
        for number in range(n_questions + n_warm_ups):
            text, question = numbered([one.text for one in questions], number), questions[number % len(questions)]
            row = {**question.columns, **dict(zip(columns, (f"q{number}", text), strict=True))}
            file.write(json.dumps(row) + "\n")
    ensemble = {"members": members, "models": (), "waves": None}
    changes = {
        "run": below(folder, "run"),
        "ledger": config.ledger.model_copy(update={"path": below(folder, "ledger")}),
        "questions": QuestionsConfig(path=str(path), limit=n_questions),
        "model": name,
        "roles": {role: given.model_copy(update={"model": name}) for role, given in config.roles.items()},
        "deployments": {**config.deployments, name: deployment},
        "ensemble": config.ensemble.model_copy(update=ensemble),
    }
    return config.model_copy(update=changes)


def numbered(texts: Sequence[str], number: int) -> str:
    """Make a question's text for each number, no two equal: the texts, then pairs of them with other evidence."""
    repeat, first = divmod(number, len(texts))
    return texts[first] if repeat == 0 else f"{number}. {texts[first]} {texts[(first + repeat) % len(texts)]}"


def measure_answers(config: Config, application: str, deployment: VllmConfig) -> tuple[Measurement, tuple[str, ...]]:
    """Make a run on actors and a ledger of its own, after a short one that is not measured.

    Args:
        config: Of ``run_on``.
        application: That of the deployment, which is up.
        deployment: The one that it asks.

    Returns:
        What was measured from the first question to the last file, and the texts of errors with their numbers.

    Raises:
        ConfigError: The cluster has no room for the actors.
        DataError: Index, ledger or run cannot be used.
        ModelError: The run stopped asking.
    """
    index = open_index(config)
    check_cluster(answer_demand(config, index.n_shards), config.cluster)
    RunDirectory(config.run).check_writable()
    check_nodes({"index.path": below(config.index.path, MANIFEST)}, {"ledger.path": config.ledger.path})
    every = config.model_copy(update={"questions": config.questions.model_copy(update={"limit": None})})
    questions, before = questions_of(config), questions_of(every)[config.questions.limit :]
    pool = ActorPool(config, member_processes(config, ray.cluster_resources().get("CPU", 1)))
    ledger = open_ledger(config.ledger, n_ledger_shards(config))
    try:
        with serving(config.used_deployments) as applications, ledger.kept_alive():
            pool.wait_until_ready()

            def make(config: Config, questions: Sequence[Question], show: Callable[[AnswerSummary], None]) -> Any:
                context = context_of(config, ledger, applications, config.declaration.prompts(config.prompts))
                return make_run(pool, context, ledger, questions, identity_of(config, index), show, time.perf_counter())

            make(config.model_copy(update={"run": f"{config.run}-before"}), before, lambda _: None)
            actors = [*pool.retrievers, *pool.members, *pool.voters, *ledger.shards]
            processes = [*processes_here(actors), *replica_processes(application)]
            is_whole = len(processes) == len(actors) + deployment.n_engines
            seen = [psutil.Process(), *processes] if is_whole else []
            began_s = cpu_seconds(seen)
            with Progress("bench", len(questions), "questions") as progress:

                def show(summary: AnswerSummary) -> None:
                    progress.show(summary.n_questions, counted(sum(summary.n_calls.values()), "call"))

                summary: AnswerSummary = make(config, questions, show)
            cpu_s = cpu_seconds(seen) - began_s if seen else None
    finally:
        pool.close()
        ledger.close()
    if summary.stopped:
        raise ModelError(summary.stopped)
    has_price = deployment.price != PriceConfig()
    measured = Measurement(
        n_questions=summary.n_questions,
        n_calls=summary.n_calls["made"],
        wall_s=summary.wall_s,
        **{name: int(summary.spent[name]) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")},
        cpu_s=cpu_s,
        n_answers=summary.n_answers,
        n_usable=summary.n_answers - summary.n_member_errors,
        joules=summary.spent.get("joules"),
        dollars=summary.spent["dollars"] if has_price else None,
    )
    return measured, tuple(describe_errors(summary.errors))


def calls_of(config: Config) -> list[dict[str, Any]]:
    """Read a run's calls back from its ledger: what plain vLLM is to generate, per prompt and its sampling.

    Raises:
        ModelError: A call cannot be read back, or has images or no schema.
    """
    requests: dict[str, ChatRequest] = {}
    replies = Replies(SegmentStore(config.ledger.path).load(lambda _: True).entries, learns=True, requests=requests)
    context = RunContext(config, replies, models_by_member(config), config.declaration.prompts(config.prompts))
    index, questions = open_recorded(config, open_index(config), Recorded()), questions_of(config)

    async def ask_again() -> None:
        for start in range(0, len(questions), BLOCK):
            await answer_again(context, index, questions[start : start + BLOCK])

    logging.disable(logging.INFO)  # Serve's import lets every library that loads an encoder tell of it
    try:
        asyncio.run(ask_again())
    finally:
        logging.disable(logging.NOTSET)
    keys = set(RunDirectory(config.run).read_table("usage", ["key"])["key"].to_pylist())
    if missing := keys - requests.keys():
        raise ModelError(f"{len(missing)} of {len(keys)} calls of the answer run could not be read back")
    calls: dict[str, dict[str, Any]] = {}
    for key, request in requests.items():
        if key not in keys:
            continue
        if request.images or request.schema is None:
            raise ModelError("calls with images or without a schema are not given to plain vLLM")
        sampling = {name: getattr(request, name) for name in ("temperature", "top_p", "max_tokens", "schema")}
        call = {"messages": [{"role": role, "content": text} for role, text in request.messages], **sampling}
        calls.setdefault(json.dumps(call, sort_keys=True), {**call, "seeds": []})["seeds"].append(request.seed)
    return list(calls.values())
