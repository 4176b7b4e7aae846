"""A baseline needs no process of its own: the ledger's shards ask it, and Serve is started for others alone."""

from __future__ import annotations

import asyncio

import pytest

from kohaku_ray.checks.deployments import is_served, target_of
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.answer import _n_up
from kohaku_ray.engine.serving import applications
from kohaku_ray.engine.serving.handles import Handles
from kohaku_ray.engine.session import Session
from kohaku_ray.models.request import ChatRequest

BASELINE = load_config("demo").deployments["extractive"]


def test_a_baseline_is_asked_where_the_call_is():
    target = target_of("extractive", BASELINE)
    requests = [ChatRequest("baseline", (("user", "text"),), 0.7, 1.0, 64, seed, session_id="q1") for seed in (0, 1)]
    outcomes = asyncio.run(Handles().ask(target, requests, "a shard"))
    backend = BASELINE.make_backend()
    assert [reply.text for reply, _ in outcomes] == [asyncio.run(backend.chat(each)).text for each in requests]
    assert all(reply.service_s > 0 for reply, _ in outcomes)
    too_long = ChatRequest("baseline", (("user", "x" * 600_000),), 0.7, 1.0, 64, 0, session_id="q1")
    [(refused, _)] = asyncio.run(Handles().ask(target, [too_long], None))
    assert refused.kind == "ContextOverflowError"


@pytest.mark.parametrize("settings", [{"replicas": 2}, {"application": "theirs"}, {"system": "mine:SYSTEM"}])
def test_a_baseline_of_several_replicas_of_a_named_application_or_of_your_own_is_served(settings):
    assert is_served(BASELINE.model_copy(update=settings))
    assert target_of("extractive", BASELINE.model_copy(update=settings)).route == "serve"


def test_serve_is_not_started_for_a_baseline_alone(monkeypatch):
    monkeypatch.setattr(applications, "_start_serve", lambda: pytest.fail("Serve was started"))
    config = load_config("demo")
    with applications.serving(config.used_deployments) as names:
        assert _n_up(names.values()) == 1
    assert Session(config.cluster).start_replicas(config.used_deployments) == names
