"""Export counters to Prometheus beside Ray's own, from the processes that know them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ray

from kohaku_ray.models.calls import Call, FailedCall

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Bounds of the histograms' buckets."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric: its kind, text and labels."""

    kind: str  # Counter, Gauge or Histogram
    what: str
    labels: tuple[str, ...] = ()


METRICS = {
    "kohaku_ray_questions_total": Instrument(
        "Counter", "Questions voted on; outcome: answered, or error", ("outcome",)
    ),
    "kohaku_ray_calls_total": Instrument(
        "Counter",
        "Model calls that got a reply; source: made, ledger (recorded), or joined (in flight for another)",
        ("deployment", "role", "source"),
    ),
    "kohaku_ray_call_errors_total": Instrument(
        "Counter", "Model calls that got no reply", ("deployment", "role", "error")
    ),
    "kohaku_ray_call_retries_total": Instrument(
        "Counter", "Calls sent again: their replica was lost", ("application",)
    ),
    "kohaku_ray_prompt_tokens_total": Instrument("Counter", "Prompt tokens of the calls made", ("deployment",)),
    "kohaku_ray_cached_tokens_total": Instrument("Counter", "Those of them out of a prefix cache", ("deployment",)),
    "kohaku_ray_completion_tokens_total": Instrument("Counter", "Generated tokens of the calls made", ("deployment",)),
    "kohaku_ray_queue_seconds": Instrument("Histogram", "Wait of a call made for its replica", ("deployment",)),
    "kohaku_ray_service_seconds": Instrument("Histogram", "Time of a call made in its replica", ("deployment",)),
    "kohaku_ray_calls_in_flight": Instrument("Gauge", "Calls that a ledger shard waits for", ("shard",)),
}
"""Every metric by name; Ray puts ``ray_`` before it."""


def count_call(call: Call | FailedCall) -> None:
    """Count a model call; the tokens and seconds of a recorded reply were counted when it was made."""
    if isinstance(call, FailedCall):
        add("kohaku_ray_call_errors_total", 1, deployment=call.deployment, role=call.role, error=call.error)
        return
    add("kohaku_ray_calls_total", 1, deployment=call.deployment, role=call.role, source=call.source)
    if call.source == "made":
        add("kohaku_ray_prompt_tokens_total", call.prompt_tokens, deployment=call.deployment)
        add("kohaku_ray_cached_tokens_total", call.cached_tokens, deployment=call.deployment)
        add("kohaku_ray_completion_tokens_total", call.completion_tokens, deployment=call.deployment)
        add("kohaku_ray_queue_seconds", call.queue_s, deployment=call.deployment)
        add("kohaku_ray_service_seconds", call.service_s, deployment=call.deployment)


def add(name: str, amount: float, **labels: str) -> None:
    """Add to a metric, or set a gauge; outside a cluster nobody collects it."""
    if not ray.is_initialized():
        return
    kind = METRICS[name].kind
    if kind == "Counter" and amount > 0:  # Ray refuses to add nothing
        _metric(name).inc(amount, labels)
    elif kind == "Gauge":
        _metric(name).set(amount, labels)
    elif kind == "Histogram":
        _metric(name).observe(amount, labels)


@functools.cache
def _metric(name: str) -> Any:
    from ray.util import metrics

    known = METRICS[name]
    more = {"boundaries": list(SECONDS)} if known.kind == "Histogram" else {}
    return getattr(metrics, known.kind)(name, description=known.what, tag_keys=known.labels, **more)
