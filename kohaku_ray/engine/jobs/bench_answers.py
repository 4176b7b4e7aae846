"""The benchmark's answer runs: what ``answer`` does, on the replicas under test, and the calls that it makes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import PriceConfig, VllmConfig
from kohaku_ray.config.sections import DocumentsConfig, QuestionsConfig
from kohaku_ray.engine.actors.pool import n_ledger_shards
from kohaku_ray.engine.jobs.again import requests_of
from kohaku_ray.engine.jobs.answer import run_answer, standing
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.ledger.client import open_ledger
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.pages.throughput import Measurement
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.sources import questions_of
from kohaku_ray.run.summary import describe_errors
from kohaku_ray.storage import below
from kohaku_ray.sweep.plan import is_there
from kohaku_ray.systems.registry import DEFAULT_SYSTEM

WAVES = 10
"""Questions of a run over those that a replica has in flight: the first and the last are a small part of it."""
WARM_UP_QUESTIONS = 4
"""Questions per replica of the run before, which starts what a first question starts in every process."""


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


def answer_on(
    config: Config, name: str, deployment: VllmConfig, members: int, n_questions: int, folder: str
) -> tuple[Config, Measurement, tuple[str, ...]]:
    """Make a run whose every role asks a deployment that is up, on actors of its own, after a short one.

    Args:
        config: With an index.
        name: Of the deployment.
        deployment: With the replicas that are up.
        members: Of the ensemble.
        n_questions: Made of the configured ones (``numbered``).
        folder: For questions, ledger and run; it is made.

    Returns:
        The run's configuration, what was measured of it, and the texts of errors with their numbers.

    Raises:
        ConfigError: The cluster has no room for the actors.
        DataError: Index, ledger or run cannot be used.
        ModelError: The run stopped asking.
    """
    n_warm_ups = WARM_UP_QUESTIONS * deployment.n_engines
    before = run_on(config, name, deployment, members, range(n_questions, n_questions + n_warm_ups), f"{folder}/before")
    run = run_on(config, name, deployment, members, range(n_questions), folder)
    ledger = {"ledger": run.ledger}
    try:
        with standing(run) as pool:
            run_answer(before.model_copy(update=ledger), pool=pool)
            summary = run_answer(run, pool=pool)
    finally:
        open_ledger(run.ledger, n_ledger_shards(run)).close()  # before its directory goes
    if summary.stopped:
        raise ModelError(summary.stopped)
    has_price = deployment.price != PriceConfig()
    measured = Measurement(
        n_questions=summary.n_questions,
        n_calls=summary.n_calls["made"],
        wall_s=summary.wall_s,
        **{name: int(summary.spent[name]) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")},
        n_answers=summary.n_answers,
        n_usable=summary.n_answers - summary.n_member_errors,
        joules=summary.spent.get("joules"),
        dollars=summary.spent["dollars"] if has_price else None,
    )
    return run, measured, tuple(describe_errors(summary.errors))


def run_on(
    config: Config, name: str, deployment: VllmConfig, members: int, numbers: Iterable[int], folder: str
) -> Config:
    """Return the configuration of a run in a ``folder``: every role asks this deployment.

    Its questions are made there of the configured ones, those of these ``numbers`` (see ``numbered``).
    """
    os.makedirs(folder, exist_ok=True)
    questions, path = questions_of(config), f"{folder}/questions.jsonl"
    declared = config.declaration.columns
    columns = (declared.question_id[0], declared.text[0])
    with open(path, "w", encoding="utf-8") as file:
        for number in numbers:
            text, question = numbered([one.text for one in questions], number), questions[number % len(questions)]
            row = {**question.columns, **dict(zip(columns, (f"q{number}", text), strict=True))}
            file.write(json.dumps(row) + "\n")
    ensemble = {"members": members, "models": (), "waves": None}
    changes = {
        "run": f"{folder}/run",
        "ledger": config.ledger.model_copy(update={"path": f"{folder}/ledger"}),
        "questions": QuestionsConfig(path=path),
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


def calls_of(config: Config) -> list[dict[str, Any]]:
    """Read a run's calls back from its ledger, as plain vLLM takes them.

    Raises:
        ModelError: A call cannot be read back, or has images.
    """
    keys = set(RunDirectory(config.run).read_table("usage", ["key"])["key"].to_pylist())
    requests = requests_of(config, questions_of(config), keys)
    if missing := keys - requests.keys():
        raise ModelError(f"{len(missing)} of {len(keys)} calls of the answer run could not be read back")
    if any(requests[key].images for key in keys):
        raise ModelError("calls with images are not given to plain vLLM")
    return [plain_call(request) for key, request in requests.items() if key in keys]


def plain_call(request: ChatRequest) -> dict[str, Any]:
    """Return a request as ``vllm_offline`` takes it."""
    names = ("schema", "seed", "temperature", "top_p", "max_tokens")
    messages = [{"role": role, "content": text} for role, text in request.messages]
    return {"messages": messages, **{name: getattr(request, name) for name in names}}
