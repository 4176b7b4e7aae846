"""The throughput benchmark: replicas × members × concurrency through Serve, answer runs, and plain vLLM beside both."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import psutil
import ray
from ray.exceptions import RayError

from kohaku_ray import sample
from kohaku_ray.answering.executor import block_size
from kohaku_ray.checks.demand import deployment_demand, replicas_demand, shortage, too_large
from kohaku_ray.checks.deployments import check_deployment
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.pool import blocks_in_flight
from kohaku_ray.engine.cluster import node_resources, print_progress
from kohaku_ray.engine.jobs.bench_answers import (
    WAVES,
    answer_on,
    calls_of,
    cpu_seconds,
    device_of,
    gpus_of,
    plain_call,
    replica_processes,
    run_apart,
    versions,
    with_index,
)
from kohaku_ray.engine.serving.vllm import environment
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError, KohakuRayError, ModelError, message_of
from kohaku_ray.index.identity import prompt_counter, token_counter
from kohaku_ray.models.replica import CallOutcome, Refused
from kohaku_ray.models.request import ChatRequest, seed_for
from kohaku_ray.models.target import Target
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.models.vllm_arguments import IGNORE_EOS, engine_kwargs
from kohaku_ray.pages.throughput import (
    AnswerRun,
    BenchCell,
    Measurement,
    Plain,
    Throughput,
    write_throughput,
)
from kohaku_ray.records import Reply, pluralize
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.storage import is_uri, make_directory

WARM_UPS = 4
"""Calls per replica before those that are measured, all at once: its router leaves no replica without one."""
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
        """Keep the words that are one token in a context: those that the model's tokenizer counts least for, alone."""
        self._n_tokens = context_tokens
        words = np.array(sample.words())
        costs = token_counter(deployment.tokenizer, deployment.revision)([f" {word}" for word in words])
        self._words = words[costs == costs.min()]

    def messages(self, cell: int, question: int) -> Messages:
        """Build a question's prompt; its first words differ from every other's, so no two share a prefix.

        The context has ``context_tokens``; the first word's count may differ, as it has no space before it.
        """
        rng = np.random.default_rng([cell, question])
        context = " ".join(rng.choice(self._words, self._n_tokens))
        return (("system", f"{cell}.{question} Answer from the text."), ("user", context))


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
    lead = config.declaration.lead
    name, deployment = config.role(lead).model, config.models[config.role(lead).model]
    if not isinstance(deployment, VllmConfig) or deployment.adapter is not None or deployment.application is not None:
        raise ConfigError(
            f"roles.{lead}.model is {name}, of kind {deployment.kind}, but the benchmark starts replicas of its own, "
            "of kind vllm and without adapters: name a deployment of that kind whose application is null"
        )
    check_deployment(name, deployment)
    texts = Texts(deployment, grid.context_tokens)
    _check(config, name, deployment, grid, texts)
    make_directory(output)
    # Beside the output, which all nodes share.
    scratch_dir = tempfile.TemporaryDirectory(dir=None if is_uri(output) else output, prefix="answers-")
    with scratch_dir as folder, Session(config.cluster):
        bench = _Bench(config, name, deployment, grid, texts, output, os.path.abspath(folder))
        for number, replicas in enumerate(grid.replicas):
            bench.measure(replicas)
            if number == 0:
                bench.measure_plain()
        return bench.so_far()


class _Bench:
    def __init__(
        self, config: Config, name: str, deployment: VllmConfig, grid: Grid, texts: Texts, output: str, folder: str
    ) -> None:
        self._n_answered = grid.questions_to_answer(deployment)  # questions of an answer run per replica
        # Now, before replicas take the GPUs.
        self._config = with_index(config, folder) if self._n_answered else config
        self._name, self._deployment = name, deployment
        self._grid, self._texts, self._output, self._folder = grid, texts, output, folder
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
        self._first_run: Config | None = None
        self._n_warm_ups = 0

    def so_far(self) -> Throughput:
        runs = tuple(self._runs)
        return Throughput(self._facts, tuple(self._plain), tuple(self._cells), runs, self._plain_run, self._gpus)

    def measure_plain(self) -> None:
        """Measure plain vLLM: one engine on one replica's resources for the calls of cells and of the first answer run.

        Of each number of members it gets those of one replica in the first cell.
        """
        cells = [cell for _, cell in self._grid.cells()]
        first = {cell.members: number for number, cell in reversed([*self._grid.cells()])}
        members, needed = sorted(first), deployment_demand(_of(self._deployment, 1))
        answered, calls = (self._runs[0].measured if self._runs else None), list[list[dict[str, Any]]]()
        try:
            calls = [] if self._first_run is None else calls_of(self._first_run)
        except KohakuRayError as error:
            self._plain_run = Plain(max(members), reason=str(error))
        try:
            # It is one process: its GPUs lie on one node.
            if why_not := self._shortage(1) or too_large({"plain vLLM": needed}, node_resources()):
                raise ModelError(why_not)
            runs = [
                {
                    "in_flight": cells[first[n] - 1].concurrency,
                    "questions": [
                        [plain_call(each) for each in self._requests(first[n], question, n)]
                        for question in range(self._grid.questions)
                    ],
                }
                for n in members
            ]
            runs += [{"in_flight": self._in_flight(), "questions": calls}] if calls else []
            print_progress(f"bench   plain vLLM, {', '.join(map(str, members))} members: starting")
            job = {
                "model": self._deployment.model,
                "engine": engine_kwargs(self._deployment),
                "template": self._deployment.chat_template_kwargs,
                "warm_up": plain_call(self._requests(0, 0, 1)[0])["messages"],
                "runs": runs,
            }
            for number, result in enumerate(run_apart(job, environment(self._deployment), needed)):
                if number < len(members):
                    self._check_length(result["completion_tokens"], result["n_calls"])
                    self._plain.append(Plain(members[number], Measurement(self._grid.questions, **result)))
                elif answered is not None:
                    self._plain_run = Plain(max(members), Measurement(answered.n_questions, **result))
                self._write()
        except KohakuRayError as error:
            self._plain += [Plain(n, reason=str(error)) for n in members[len(self._plain) :]]
            if calls and self._plain_run is None:
                self._plain_run = Plain(max(members), reason=str(error))
        self._write()

    def _in_flight(self) -> int:
        """Questions that the first answer run had in flight."""
        assert self._first_run is not None, "there is a run"
        size = block_size(self._first_run, self._n_answered)
        return size * blocks_in_flight(self._first_run, size)

    def measure(self, replicas: int) -> None:
        """Measure all cells of a number of replicas."""
        cells = [(number, cell) for number, cell in self._grid.cells() if cell.replicas == replicas]
        if shortage := self._shortage(replicas):
            self._without(replicas, [cell for _, cell in cells], shortage, is_skipped=True)
            return
        n_before = len(self._cells)
        try:
            with Session(self._config.cluster) as session:
                [target] = session.start_replicas({self._name: _of(self._deployment, replicas)}).values()
                for number, cell in cells:
                    self._cells.append(self._measured(number, cell, target))
                    self._write()
                if self._n_answered:
                    self._runs.append(self._answered(replicas))
                    self._write()
        except (KohakuRayError, RayError) as error:
            done = len(self._cells) - n_before
            self._without(replicas, [cell for _, cell in cells[done:]], message_of(error), is_skipped=False)

    def _measured(self, number: int, cell: BenchCell, target: Target) -> BenchCell:
        from ray import serve
        from ray.serve.exceptions import RayServeException

        n, m, c = cell.replicas, cell.members, cell.concurrency
        try:
            handle = serve.get_app_handle(target.name)
            questions = [self._requests(number, question, m) for question in range(n * self._grid.questions)]
            n_engines = _of(self._deployment, n).n_engines
            # until every replica should have answered; prompts are as long as the measured ones but different
            first, self._n_warm_ups = self._n_warm_ups, self._n_warm_ups + WARM_UPS * n_engines
            warm_ups = [self._requests(0, number, 1, WARM_UP_TOKENS) for number in range(first, self._n_warm_ups)]
            asyncio.run(_ask_all(handle, warm_ups, len(warm_ups)))
            processes = replica_processes(target.name)
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
        print_progress(
            f"bench   {pluralize(n, 'replica')}, {pluralize(m, 'member')}, {c} in flight: "
            f"{measured.questions_per_s:.2f} questions/s"
        )
        return replace(cell, measured=measured)

    def _answered(self, replicas: int) -> AnswerRun:
        from ray.serve.exceptions import RayServeException

        run, they = AnswerRun(replicas, max(self._grid.members)), _of(self._deployment, replicas)
        try:
            config, measured, errors = answer_on(
                self._config, self._name, they, run.members, replicas * self._n_answered, f"{self._folder}/{replicas}"
            )
        except (KohakuRayError, RayError, RayServeException) as error:
            return replace(run, reason=f"{type(error).__name__}: {message_of(error)}")
        self._first_run = self._first_run or config
        rate = measured.rates["answers_per_s"]
        print_progress(f"bench   {pluralize(replicas, 'replica')}, answer run: {rate:.2f} answers/s")
        return replace(run, measured=measured, errors=errors)

    def _requests(self, cell: int, question: int, members: int, max_tokens: int | None = None) -> list[ChatRequest]:
        """Build the requests of one question: one per member."""
        request = ChatRequest(
            model=self._deployment.model_identity,
            messages=self._texts.messages(cell, question),
            temperature=self._played.temperature,
            top_p=self._played.top_p,
            max_tokens=min(max_tokens or self._grid.output_tokens, self._grid.output_tokens),
            seed=0,
            session_id=f"bench-{cell}-{question}",
        )
        seeds = [
            seed_for(self._config.seed, f"bench-{cell}-{question}", member, 0, "answer") for member in range(members)
        ]
        return [replace(request, seed=seed) for seed in seeds]

    def _check_length(self, n_tokens: int, n_calls: int) -> None:
        asked = n_calls * self._grid.output_tokens
        if n_tokens != asked:
            raise ModelError(f"{n_calls} calls generated {n_tokens} tokens but were to generate {asked}")

    def _shortage(self, replicas: int) -> str:
        """Say what the replicas need and the cluster lacks; empty if nothing."""
        if self._config.cluster.autoscaling:
            return ""
        they = _of(self._deployment, replicas)
        short = shortage("they", deployment_demand(they), self._resources)
        return short or too_large(replicas_demand({self._name: they}).on_a_node, node_resources())

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

    async def question(requests: Sequence[ChatRequest]) -> list[CallOutcome]:
        async with gate:
            call = handle.options(session_id=requests[0].session_id).ask.remote(requests)
            outcomes: list[CallOutcome] = await call
            return outcomes

    replies: list[Reply] = []
    for outcomes in await asyncio.gather(*map(question, questions), return_exceptions=True):
        if isinstance(outcomes, BaseException):
            raise outcomes
        for outcome, _ in outcomes:
            if isinstance(outcome, Refused):
                outcome.raise_()
            else:
                replies.append(outcome)
    return replies


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
    """Copy the deployment with this number of replicas, which generate ``max_tokens`` where there is no schema."""
    env = {**deployment.env, IGNORE_EOS: "1"}
    return deployment.model_copy(update={"replicas": replicas, "max_replicas": None, "env": env})
