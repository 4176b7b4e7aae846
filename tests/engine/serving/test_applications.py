"""Who uses which application, with a Serve that refuses now and then."""

from __future__ import annotations

import asyncio
import logging
import time
from types import SimpleNamespace

import pytest
import ray
from ray.serve.schema import ApplicationStatus

from kohaku_ray.engine.serving import applications
from kohaku_ray.engine.serving.applications import Applications, serving
from kohaku_ray.models.openai import OpenAIConfig


class FakeServe:
    """Applications that run, and how many more deletions are refused."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.n_refused = 0

    def delete(self, name: str) -> None:
        if self.n_refused:
            self.n_refused -= 1
            raise TimeoutError("the controller is busy")
        self.running.discard(name)

    def status(self) -> SimpleNamespace:
        running = SimpleNamespace(status=ApplicationStatus.RUNNING)
        return SimpleNamespace(applications=dict.fromkeys(self.running, running))


@pytest.fixture
def serve(monkeypatch):
    fake = FakeServe()
    monkeypatch.setattr("ray.serve.delete", fake.delete)
    monkeypatch.setattr("ray.serve.status", fake.status)
    return fake


async def until(condition, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.005)


async def test_one_starts_it_the_others_wait_and_the_last_one_ends_it(serve):
    applications = Applications()
    assert await applications.claim("one", "app") == "start"
    assert await applications.claim("two", "app") == "wait"
    serve.running.add("app")
    assert await applications.claim("two", "app") == "ready"
    await applications.release("one")
    assert serve.running == {"app"}
    await applications.release("two")
    assert serve.running == set()


async def test_a_starter_that_is_gone_is_replaced(serve):
    applications = Applications()
    assert await applications.claim("one", "app") == "start"
    assert await applications.claim("two", "app") == "wait"
    await applications.release("one")
    assert await applications.claim("two", "app") == "start"


def test_a_deletion_that_fails_is_said_and_tried_again_with_the_next_beat(serve, caplog):
    async def run():
        applications = Applications(beat_s=0.01, lost_after_s=0.05)
        await applications.claim("one", "app")
        await applications.claim("one", "other")
        serve.running |= {"app", "other"}
        serve.n_refused = 3
        await applications.release("one")  # no error for the job that goes
        await until(lambda: not serve.running)
        await applications.claim("lost", "third")
        serve.running.add("third")
        serve.n_refused = 1
        await until(lambda: not serve.running)
        assert not applications._watch.done()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "application app could not be ended, next try in 0.01 s: the controller is busy" in caplog.text


async def test_what_holds_the_registry_up_loses_no_user(serve):
    registry = Applications(beat_s=0.01, lost_after_s=0.3)
    await registry.claim("one", "app")
    serve.running.add("app")
    await asyncio.sleep(0.05)
    time.sleep(0.5)  # the machine stands still, and with it the heartbeats
    await asyncio.sleep(0.05)
    assert serve.running == {"app"}
    await until(lambda: not serve.running)  # from here on it is silent by itself


def test_all_models_of_a_run_start_at_once(serve, monkeypatch):
    """Each of them takes minutes to load; here none comes up before all were asked for."""

    def run_many(targets, wait_for_applications_running):
        asked.extend(target.name for target in targets)
        serve.running |= set(asked) if len(asked) == 3 else set()

    asked: list[str] = []
    starting = SimpleNamespace(status=ApplicationStatus.DEPLOYING, deployments={}, message="")
    status = serve.status

    def all_statuses():
        return SimpleNamespace(applications=dict.fromkeys(asked, starting) | status().applications)

    monkeypatch.setattr("ray.serve.status", all_statuses)
    monkeypatch.setattr("ray.serve.run_many", run_many)
    monkeypatch.setattr("ray.serve.start", lambda **_: None)
    monkeypatch.setattr("ray.cluster_resources", dict)
    monkeypatch.setattr("ray.available_resources", dict)
    monkeypatch.setattr("ray.nodes", list)
    server = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "start_timeout_s": 1}
    models = {name: OpenAIConfig(model=name, **server) for name in ("first", "second", "third")}
    with serving(models, release=False) as names:
        assert list(names.values()) == asked


@pytest.mark.parametrize("is_up", [True, False])
def test_a_job_says_that_it_is_alive_only_while_its_cluster_is_there(monkeypatch, is_up):
    beats, n_asked = [], 0

    class Registry:
        beat = SimpleNamespace(remote=lambda user, names: beats.append(user))
        release = SimpleNamespace(remote=str)

    def is_initialized():
        nonlocal n_asked
        n_asked += 1
        return is_up

    actor = SimpleNamespace(remote=Registry)
    monkeypatch.setattr(ray, "remote", lambda kind: SimpleNamespace(options=lambda **_: actor))
    monkeypatch.setattr(ray, "get", str)
    monkeypatch.setattr(ray, "is_initialized", is_initialized)
    monkeypatch.setattr("ray.serve.start", lambda **_: None)
    with serving({}, beat_s=0.01):
        deadline = time.monotonic() + 10
        while n_asked < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert bool(beats) == is_up


@pytest.mark.parametrize("taken", ["is already taken. Please use a different name", "already exists"])
def test_serve_that_another_job_starts_at_the_same_moment_is_joined(monkeypatch, taken):
    """Two sweeps on a new cluster: the runs of one failed with "SERVE_CONTROLLER_ACTOR … is already taken"."""
    answers = [ValueError(f"The name SERVE_CONTROLLER_ACTOR (namespace=serve) {taken}"), None]

    def start(**_) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    monkeypatch.setattr(applications.serve, "start", start)
    monkeypatch.setattr(applications.time, "sleep", lambda _: None)
    applications._start_serve()
    assert not answers
