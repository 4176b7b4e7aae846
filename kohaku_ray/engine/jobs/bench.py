"""The throughput benchmark: replicas × members × concurrency through Serve, answer runs, and plain vLLM beside both."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from ray.exceptions import RayError

from kohaku_ray import sample
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import VllmConfig
from kohaku_ray.engine.cluster import connected, node_resources, say
from kohaku_ray.engine.errors import Refused, message_of, ray_get
from kohaku_ray.engine.jobs.bench_answers import WAVES, calls_of, measure_answers, run_on, with_index
from kohaku_ray.engine.jobs.bench_machine import cpu_seconds, device_of, gpus_of, replica_processes, versions
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.engine.serving.handles import ask_together
from kohaku_ray.engine.serving.vllm import engine_kwargs, environment
from kohaku_ray.errors import ConfigError, KohakuRayError, ModelError
from kohaku_ray.index.tokens import prompt_counter, token_counter
from kohaku_ray.models.request import ChatRequest, seed_for
from kohaku_ray.pages.throughput import (
    AnswerRun,
    BenchCell,
    Measurement,
    Plain,
    Throughput,
    write_throughput,
)
from kohaku_ray.records import Reply
from kohaku_ray.run.demand import deployment_demand, replicas_demand, shortage, too_large
from kohaku_ray.run.deployments import check_deployment, vllm_identity
from kohaku_ray.run.sources import resolve_paths
from kohaku_ray.storage import is_uri, make_directory

IGNORE_EOS_ENGINE = "kohaku_ray.engine.serving.vllm_ignore_eos.IgnoreEosEngine"
"""Engine class of the replicas: every call of the grid generates the same number of tokens."""
WARM_UP_ROUNDS = 20
"""Most rounds of calls until every replica has answered one."""
WARM_UP_TOKENS = 8

Messages = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells to measure: every combination of the first three."""

    replicas: Sequence[int] = (1, 2)
    members: Sequence[int] = (1, 9)
    concurrency: Sequence[int] = (8, 32)  # questions in flight per replica
    questions: int = 16  # of a cell per replica
    context_tokens: int = 2000  # of a question, by the model's tokenizer
    output_tokens: int = 128  # that every call generates
    answer_questions: int | None = None  # of an answer run per replica, 0: none; None: WAVES × the largest concurrency

    def cells(self) -> Iterator[tuple[int, BenchCell]]:
        """Yield every combination with its number, from 1."""
        for number, (n, m, c) in enumerate(product(self.replicas, self.members, self.concurrency), start=1):
            yield number, BenchCell(n, m, c)

    def questions_to_answer(self, deployment: VllmConfig) -> int:
        """Return the questions of an answer run per replica; by default none on CPUs, which would take hours."""
        if self.answer_questions is not None:
            return self.answer_questions
        return 0 if deployment.cpus is not None else WAVES * max(self.concurrency)


class Texts:
    """Prompts made of the sample collection's words: a number gives the same prompt every time, no two are equal."""

    def __init__(self, deployment: VllmConfig, context_tokens: int) -> None:
        """Read the words and count the tokens of each by the model's tokenizer."""
        self._n_tokens = context_tokens
        self._words = np.array(_words())
        self._costs = token_counter(deployment.tokenizer, deployment.revision)([f" {word}" for word in self._words])
        self._short = np.flatnonzero(self._costs == 1)

    def messages(self, cell: int, question: int) -> Messages:
        """Build a question's prompt; its first words differ from every other's, so no two share a prefix.

        The context has ``context_tokens``; the first word's count may differ, as it has no space before it.
        """
        rng = np.random.default_rng([cell, question])
        drawn = rng.integers(len(self._words), size=self._n_tokens)
        n_kept = int(np.searchsorted(np.cumsum(self._costs[drawn]), self._n_tokens, side="right"))
        rest = self._n_tokens - int(self._costs[drawn[:n_kept]].sum())
        fill = rng.choice(self._short, rest) if len(self._short) else drawn[:0]
        context = " ".join(self._words[np.concatenate([drawn[:n_kept], fill])])
        return (("system", f"{cell}.{question} Answer from the text."), ("user", context))


def _words() -> list[str]:
    """List the words of the sample collection's plain texts."""
    files = sorted(path for path in Path(sample.path("documents")).iterdir() if path.suffix in {".md", ".txt"})
    return sorted({word for file in files for word in re.findall(r"[a-z]{3,}", file.read_text(encoding="utf-8"))})


def run_bench(config: Config, grid: Grid, output: str) -> Throughput:
    """Measure every cell of a grid, then an answer run, per number of replicas; write page and JSON after each.

    A cell that fails keeps its reason, and a cell whose replicas exceed the cluster is skipped; the others go on.
    ``roles.answer`` names the deployment and its sampling parameters. Plain vLLM is measured after the first number of
    replicas, so that one start of its engine serves the grid's prompts and the calls of the answer run.

    Raises:
        ConfigError: The deployment is not of kind vllm or already running, or the grid does not fit the model.
        DataError: The output cannot be written.
    """
    config = resolve_paths(config)
    name, deployment = _deployment(config)
    texts = Texts(deployment, grid.context_tokens)
    _check(config, name, deployment, grid, texts)
    make_directory(output)
    # Beside the output, which all nodes share.
    place = tempfile.TemporaryDirectory(dir=None if is_uri(output) else output, prefix="answers-")
    with place as folder, connected(config.cluster):
        bench = _Bench(config, name, deployment, grid, texts, output, os.path.abspath(folder))
        bench.find_index()
        for number, replicas in enumerate(grid.replicas):
            bench.measure(replicas)
            if number == 0:
                bench.measure_plain()
        return bench.so_far()


class _Bench:
    def __init__(
        self, config: Config, name: str, deployment: VllmConfig, grid: Grid, texts: Texts, output: str, folder: str
    ) -> None:
        self._config, self._name, self._deployment = config, name, deployment
        self._grid, self._texts, self._output, self._folder = grid, texts, output, folder
        self._n_answered = grid.questions_to_answer(deployment)  # questions of an answer run per replica
        self._played = config.role(config.declaration.lead)
        self._resources = ray.cluster_resources()
        self._facts: dict[str, str | int] = {
            "Deployment": f"{name}: {deployment.model}",
            "Device": device_of(deployment, self._resources),
            "Questions per replica": grid.questions,
            "Context tokens": grid.context_tokens,
            "Generated tokens": grid.output_tokens,
            "Sampling": f"temperature {self._played.temperature:g}, top_p {self._played.top_p:g}",
            "Versions": versions(),
        }
        if self._n_answered:
            how = f"early_stop {config.ensemble.early_stop}"
            self._facts["Answer runs"] = f"system {config.system}, {self._n_answered} questions per replica, {how}"
        self._facts["Engine"] = json.dumps(engine_kwargs(deployment), sort_keys=True, default=str)
        self._gpus = gpus_of(deployment, self._resources)
        self._plain: list[Plain] = []
        self._cells: list[BenchCell] = []
        self._runs: list[AnswerRun] = []
        self._plain_run: Plain | None = None
        self._indexed: Config | None = None
        self._no_index = ""
        self._first_run: Config | None = None
        self._n_warm_ups = 0

    def so_far(self) -> Throughput:
        runs = tuple(self._runs)
        return Throughput(self._facts, tuple(self._plain), tuple(self._cells), runs, self._plain_run, self._gpus)

    def find_index(self) -> None:
        """Find or make the answer runs' index, before replicas take the GPUs."""
        if not self._n_answered:
            return
        try:
            self._indexed = with_index(self._config, self._folder)
        except (KohakuRayError, RayError) as error:
            self._no_index = message_of(error)

    def measure_plain(self) -> None:
        """Measure plain vLLM: one engine for all numbers of members, on one replica's resources."""
        members = sorted({1, *self._grid.members})
        needed = deployment_demand(_of(self._deployment, 1))
        calls = self._calls()
        try:
            # It is one process: its GPUs lie on one node.
            if why_not := self._shortage(1) or too_large({"plain vLLM": needed}, node_resources()):
                raise ModelError(why_not)
            say(f"bench   plain vLLM, n = {', '.join(map(str, members))}: starting")
            job = {**self._plain_job(members), "calls": calls}
            results = _run_apart(job, environment(self._deployment), needed)
            for n, result in zip(members, results, strict=False):
                self._check_length(result["completion_tokens"], result["n_calls"])
                self._plain.append(Plain(n, Measurement(**result)))
            if calls and self._first_run is not None:
                of_run = {"n_questions": self._first_run.questions.limit}  # a question has several prompts
                self._plain_run = Plain(max(members), Measurement(**results[-1] | of_run))
        except KohakuRayError as error:
            self._plain = [Plain(n, reason=str(error)) for n in members]
            if calls:
                self._plain_run = Plain(max(members), reason=str(error))
        self._write()

    def _calls(self) -> list[dict[str, Any]]:
        """Read the first answer run's calls back; none without it."""
        try:
            if self._n_answered and self._first_run is None:
                raise ModelError("no answer run was made before it")
            return [] if self._first_run is None else calls_of(self._first_run)
        except KohakuRayError as error:
            self._plain_run = Plain(max(self._grid.members), reason=str(error))
            return []

    def measure(self, replicas: int) -> None:
        """Measure all cells of a number of replicas."""
        cells = [(number, cell) for number, cell in self._grid.cells() if cell.replicas == replicas]
        if shortage := self._shortage(replicas):
            self._without(replicas, [cell for _, cell in cells], shortage, is_skipped=True)
            return
        n_before = len(self._cells)
        try:
            with serving({self._name: _of(self._deployment, replicas)}) as applications:
                for number, cell in cells:
                    self._cells.append(self._measured(number, cell, applications[self._name]))
                    self._write()
                if self._n_answered:
                    self._runs.append(self._answered(replicas, applications[self._name]))
                    self._write()
        except (KohakuRayError, RayError) as error:
            done = len(self._cells) - n_before
            self._without(replicas, [cell for _, cell in cells[done:]], message_of(error), is_skipped=False)

    def _measured(self, number: int, cell: BenchCell, application: str) -> BenchCell:
        from ray import serve
        from ray.serve.exceptions import RayServeException

        n, m, c = cell.replicas, cell.members, cell.concurrency
        try:
            handle = serve.get_app_handle(application)
            questions = [self._requests(number, at, m) for at in range(n * self._grid.questions)]
            n_engines = _of(self._deployment, n).n_engines
            asyncio.run(self._warm_up(handle, n_engines))
            processes = replica_processes(application)
            seen = [psutil.Process(), *processes] if len(processes) == n_engines else []
            before, began = cpu_seconds(seen), time.perf_counter()
            replies = asyncio.run(_ask_all(handle, questions, n * c))
            wall_s, cpu_s = time.perf_counter() - began, cpu_seconds(seen) - before
            self._check_length(sum(reply.completion_tokens for reply in replies), len(replies))
        except (KohakuRayError, RayError, RayServeException, psutil.Error) as error:
            return replace(cell, reason=f"{type(error).__name__}: {message_of(error)}")
        measured = Measurement(
            n_questions=len(questions),
            n_calls=len(replies),
            wall_s=wall_s,
            prompt_tokens=sum(reply.prompt_tokens for reply in replies),
            completion_tokens=sum(reply.completion_tokens for reply in replies),
            cached_tokens=sum(reply.cached_tokens for reply in replies),
            cpu_s=cpu_s if seen else None,
        )
        say(f"bench   {n} replica(s), {m} member(s), {c} in flight: {measured.questions_per_s:.2f} questions/s")
        return replace(cell, measured=measured)

    def _answered(self, replicas: int, application: str) -> AnswerRun:
        from ray.serve.exceptions import RayServeException

        run, they = AnswerRun(replicas, max(self._grid.members)), _of(self._deployment, replicas)
        if self._indexed is None:
            return replace(run, reason=self._no_index)
        try:
            folder = Path(self._folder, f"{replicas}")
            folder.mkdir()
            config = run_on(self._indexed, self._name, they, run.members, replicas * self._n_answered, str(folder))
            measured, errors = measure_answers(config, application, they)
        except (KohakuRayError, RayError, RayServeException, psutil.Error) as error:
            return replace(run, reason=f"{type(error).__name__}: {message_of(error)}")
        self._first_run = self._first_run or config
        say(f"bench   {replicas} replica(s), answer run: {measured.rates['answers_per_s']:.2f} answers/s")
        return replace(run, measured=measured, errors=errors)

    async def _warm_up(self, handle: Any, n_replicas: int) -> None:
        """Call until every replica has answered; prompts are as long as the measured ones but different."""
        answered: set[str] = set()
        for _ in range(WARM_UP_ROUNDS):
            first, self._n_warm_ups = self._n_warm_ups, self._n_warm_ups + 2 * n_replicas
            calls = [self._requests(0, at, 1, WARM_UP_TOKENS) for at in range(first, self._n_warm_ups)]
            answered |= {reply.replica for reply in await _ask_all(handle, calls, len(calls))}
            if len(answered) >= n_replicas:
                return
        raise ModelError(f"{len(answered)} of {n_replicas} replicas answered in {WARM_UP_ROUNDS} rounds of calls")

    def _requests(self, cell: int, at: int, members: int, max_tokens: int | None = None) -> list[ChatRequest]:
        """Build the requests of one question: one per member."""
        request = ChatRequest(
            model=vllm_identity(self._deployment),
            messages=self._texts.messages(cell, at),
            temperature=self._played.temperature,
            top_p=self._played.top_p,
            max_tokens=min(max_tokens or self._grid.output_tokens, self._grid.output_tokens),
            seed=0,
            session_id=f"bench-{cell}-{at}",
        )
        return [replace(request, seed=self._seed(cell, at, member)) for member in range(members)]

    def _seed(self, cell: int, at: int, member: int = 0) -> int:
        return seed_for(self._config.seed, f"bench-{cell}-{at}", member, 0, "answer")

    def _plain_job(self, members: Iterable[int]) -> dict[str, Any]:
        """Build plain vLLM's job: per number of members, all prompts of the first such cell at once."""
        numbered, at = list(self._grid.cells()), range(self._grid.questions)
        first = {cell.members: number for number, cell in reversed(numbered)}

        def prompt(cell: int, question: int) -> list[dict[str, str]]:
            return [{"role": role, "content": text} for role, text in self._texts.messages(cell, question)]

        def run(n: int) -> dict[str, Any]:
            number = first.get(n, len(numbered) + 1)
            prompts = [prompt(number, question) for question in at]
            return {"members": n, "prompts": prompts, "seeds": [self._seed(number, question) for question in at]}

        return {
            "model": self._deployment.model,
            "engine": engine_kwargs(self._deployment),
            "template": self._deployment.chat_template_kwargs,
            "temperature": self._played.temperature,
            "top_p": self._played.top_p,
            "max_tokens": self._grid.output_tokens,
            "warm_up": prompt(0, 0),
            "runs": [run(n) for n in members],
        }

    def _check_length(self, n_tokens: int, n_calls: int) -> None:
        asked = n_calls * self._grid.output_tokens
        if n_tokens != asked:
            raise ModelError(f"{n_calls} calls generated {n_tokens} tokens but were to generate {asked}")

    def _shortage(self, replicas: int) -> str:
        """Say what the replicas need and the cluster lacks; empty if nothing."""
        if self._config.cluster.autoscaling:
            return ""
        they = _of(self._deployment, replicas)
        large = too_large(replicas_demand({self._name: they}).on_a_node, node_resources())
        return shortage("they", deployment_demand(they), self._resources) or large

    def _without(self, replicas: int, cells: Iterable[BenchCell], reason: str, *, is_skipped: bool) -> None:
        self._cells += [replace(cell, reason=reason, is_skipped=is_skipped) for cell in cells]
        if self._n_answered and all(run.replicas != replicas for run in self._runs):
            run = AnswerRun(replicas, max(self._grid.members), reason=reason, is_skipped=is_skipped)
            self._runs.append(run)
        self._write()

    def _write(self) -> None:
        write_throughput(self.so_far(), self._output)


async def _ask_all(handle: Any, questions: Sequence[Sequence[ChatRequest]], n_in_flight: int) -> list[Reply]:
    """Ask all members of a question at once, at most ``n_in_flight`` questions; raise an error when all calls ended."""
    gate = asyncio.Semaphore(n_in_flight)

    async def question(requests: Sequence[ChatRequest]) -> list[tuple[Reply | Refused, float]]:
        async with gate:
            return await ask_together(handle, requests)

    replies: list[Reply] = []
    for outcomes in await asyncio.gather(*map(question, questions), return_exceptions=True):
        if isinstance(outcomes, BaseException):
            raise outcomes
        for one, _ in outcomes:
            if isinstance(one, Refused):
                one.raise_()
            else:
                replies.append(one)
    return replies


def _run_apart(job: Mapping[str, Any], env: Mapping[str, str], demand: Mapping[str, float]) -> list[dict[str, Any]]:
    """Run plain vLLM on a node with a replica's resources; raises a ModelError if it failed."""
    custom = {kind: amount for kind, amount in demand.items() if kind not in {"CPU", "GPU"}}
    task = ray.remote(_run_plain).options(
        num_cpus=demand["CPU"], num_gpus=demand["GPU"], resources=custom, max_retries=0
    )
    ref = task.remote(job, env)
    try:
        results: list[dict[str, Any]] = ray_get(ref)
    except BaseException:
        ray.cancel(ref, force=True)
        raise
    return results


def _run_plain(job: Mapping[str, Any], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Run ``vllm_offline`` in a process of its own (a Ray task)."""
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file, log_file = (Path(folder, name) for name in ("job.json", "result.json", "log"))
        job_file.write_text(json.dumps(job))
        with log_file.open("wb") as log:
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-m", "kohaku_ray.engine.serving.vllm_offline", str(job_file), str(result_file)],
                # As many threads as Ray gives a replica's actor, unless the deployment says otherwise.
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=False,
            )
        if done.returncode != 0:
            said = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
            raise ModelError(f"plain vLLM ended with code {done.returncode}: {' '.join(said[-2:])[-500:]}")
        results: list[dict[str, Any]] = json.loads(result_file.read_text())
    return results


def _deployment(config: Config) -> tuple[str, VllmConfig]:
    lead = config.declaration.lead
    deployment = config.models[name := config.role(lead).model]
    if not isinstance(deployment, VllmConfig):
        raise ConfigError(
            f"roles.{lead}.model is {name}, a deployment of kind {deployment.kind}, but the benchmark measures kind "
            "vllm: name a deployment of that kind"
        )
    if deployment.adapter is not None:
        raise ConfigError(
            f"roles.{lead}.model is {name}, but the benchmark measures models without adapters: name "
            f"{config.deployment_of(name)}"
        )
    if deployment.application is not None:
        raise ConfigError(
            f"deployments.{name}.application is {deployment.application!r} but the benchmark starts replicas of its "
            "own: set application to null"
        )
    check_deployment(name, deployment)
    return name, deployment


def _check(config: Config, name: str, deployment: VllmConfig, grid: Grid, texts: Texts) -> None:
    """Check that the prompts fit the window, and that members can differ."""
    (_, system), (_, user) = texts.messages(1, 0)
    n_prompt = prompt_counter(deployment.tokenizer, deployment.revision)(system, user)
    if n_prompt + grid.output_tokens > deployment.window_tokens:
        raise ConfigError(
            f"a prompt of {grid.context_tokens} context tokens takes {n_prompt} with its template, and "
            f"{grid.output_tokens} are generated, but deployments.{name}.window_tokens is {deployment.window_tokens}: "
            "lower --context-tokens or --output-tokens, or raise window_tokens"
        )
    if config.role(config.declaration.lead).temperature == 0 and max(grid.members) > 1:
        raise ConfigError(
            f"roles.{config.declaration.lead}.temperature is 0 but --members has {max(grid.members)}: greedy members "
            "give equal answers; raise the temperature"
        )


def _of(deployment: VllmConfig, replicas: int) -> VllmConfig:
    """Copy the deployment with this number of replicas and the engine that ignores EOS."""
    env = {**deployment.env, "RAYLLM_VLLM_ENGINE_CLS": IGNORE_EOS_ENGINE}
    return deployment.model_copy(update={"replicas": replicas, "max_replicas": None, "env": env})
