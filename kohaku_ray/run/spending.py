"""What a run's model calls used, per deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kohaku_ray.run.files import Row


@dataclass(frozen=True, slots=True)
class Spent:
    """What the calls of one deployment used, whichever run made them.

    Attributes:
        deployment: Deployment that was called.
        n_calls: Replies used; one reply used twice counts twice.
        prompt_tokens: Tokens of prompts.
        cached_share: Share of prompt tokens from the prefix cache; None without prompts.
        completion_tokens: Generated tokens.
        queue_s: Seconds spent waiting for a replica.
        service_s: Seconds in replicas.
        gpu_s: GPU seconds.
        joules: Energy; None if not measured.
        dollars: Price by the deployment's prices.
    """

    deployment: str
    n_calls: int
    prompt_tokens: int
    cached_share: float | None
    completion_tokens: int
    queue_s: float
    service_s: float
    gpu_s: float
    joules: float | None
    dollars: float


def spent(usage: Sequence[Row]) -> list[Spent]:
    """Sum usage.parquet's rows by deployment; calls that share one reply each count it."""
    by_deployment: dict[str, list[Row]] = {}
    for row in usage:
        by_deployment.setdefault(row["deployment"], []).append(row)
    return [_spent_by(name, rows) for name, rows in sorted(by_deployment.items())]


def _spent_by(deployment: str, rows: Sequence[Row]) -> Spent:
    def total(name: str) -> Any:
        return sum(row[name] for row in rows)

    prompt = total("prompt_tokens")
    return Spent(
        deployment=deployment,
        n_calls=len(rows),
        prompt_tokens=prompt,
        cached_share=total("cached_tokens") / prompt if prompt else None,
        completion_tokens=total("completion_tokens"),
        queue_s=total("queue_s"),
        service_s=total("service_s"),
        gpu_s=total("gpu_s"),
        joules=None if any(row["joules"] is None for row in rows) else total("joules"),
        dollars=total("dollars"),
    )
