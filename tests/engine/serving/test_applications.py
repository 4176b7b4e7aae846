"""Who uses which application, with a Serve that refuses now and then."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from kohaku_ray.engine.serving import applications
from kohaku_ray.engine.serving.applications import Applications


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


@pytest.fixture
def serve(monkeypatch):
    fake = FakeServe()
    monkeypatch.setattr(applications, "serve", fake)
    monkeypatch.setattr(applications, "is_running", lambda name: name in fake.running)
    monkeypatch.setattr(applications, "BEAT_S", 0.01)
    return fake


async def until(condition, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.005)


def test_one_starts_it_the_others_wait_and_the_last_one_ends_it(serve):
    async def run():
        applications = Applications()
        assert await applications.claim("one", "app") == "start"
        assert await applications.claim("two", "app") == "wait"
        serve.running.add("app")
        assert await applications.claim("two", "app") == "ready"
        await applications.release("one")
        assert serve.running == {"app"}
        await applications.release("two")
        assert serve.running == set()

    asyncio.run(run())


def test_a_starter_that_is_gone_is_replaced(serve):
    async def run():
        applications = Applications()
        assert await applications.claim("one", "app") == "start"
        assert await applications.claim("two", "app") == "wait"
        await applications.release("one")
        assert await applications.claim("two", "app") == "start"

    asyncio.run(run())


def test_a_deletion_that_fails_is_said_and_tried_again_with_the_next_beat(serve, monkeypatch, caplog):
    monkeypatch.setattr(applications, "LOST_AFTER_S", 0.05)

    async def run():
        applications = Applications()
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


def test_what_holds_the_registry_up_loses_no_user(serve, monkeypatch):
    monkeypatch.setattr(applications, "LOST_AFTER_S", 0.3)

    async def run():
        registry = Applications()
        await registry.claim("one", "app")
        serve.running.add("app")
        await asyncio.sleep(0.05)
        time.sleep(0.5)  # the machine stands still, and with it the heartbeats
        await asyncio.sleep(0.05)
        assert serve.running == {"app"}
        await until(lambda: not serve.running)  # from here on it is silent by itself

    asyncio.run(run())


@pytest.mark.parametrize("is_up", [True, False])
def test_a_job_says_that_it_is_alive_only_while_its_cluster_is_there(monkeypatch, is_up):
    class Registry:
        n_beats = 0

        class beat:
            @staticmethod
            def remote(user, names):
                Registry.n_beats += 1

        class release:
            remote = staticmethod(str)

    asked = []
    monkeypatch.setattr(applications, "BEAT_S", 0.01)
    monkeypatch.setattr(applications, "_start_serve", lambda: None)
    monkeypatch.setattr(applications, "detached_actor", lambda actor, name: Registry)
    monkeypatch.setattr(applications, "ray_get", str)
    monkeypatch.setattr(applications.ray, "is_initialized", lambda: asked.append(1) or is_up)
    with applications.serving({}):
        deadline = time.monotonic() + 10
        while len(asked) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert (Registry.n_beats > 0) == is_up
