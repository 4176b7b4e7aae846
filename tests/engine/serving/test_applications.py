"""Who uses which application, with a Serve that refuses now and then."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import ray
from ray.serve.schema import ApplicationStatus

from kohaku_ray.checks.deployments import target_of
from kohaku_ray.engine.ledger.shard import shard_name
from kohaku_ray.engine.serving import applications
from kohaku_ray.engine.serving.applications import Applications, serving
from kohaku_ray.engine.serving.limiter import SharedLimiter, detached_actor, limiter_of_server
from kohaku_ray.errors import ModelError
from kohaku_ray.models.openai import BatchConfig, OpenAIConfig
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.version import versioned_name


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


async def test_a_registry_that_starts_again_ends_what_serve_runs_for_nobody(serve):
    """engine6 A2: the driver and the registry were killed, and replicas stayed for ever."""
    ours, used = (versioned_name(f"kohaku-ray-{name}") for name in ("lost", "used"))
    others = {"theirs", "kohaku-ray-qwen-of-another-version"}
    serve.running |= {ours, used, *others}
    registry = Applications(beat_s=0.01, lost_after_s=0.3)
    deadline = time.monotonic() + 10
    while ours in serve.running:
        assert time.monotonic() < deadline
        await registry.beat("a job that lives", [used])
        await asyncio.sleep(0.01)
    assert serve.running == {used, *others}


def test_names_of_two_versions_differ(monkeypatch, tmp_path):
    """A job of another version would read the fields of our requests by their positions (engine6 A1)."""
    server = OpenAIConfig(base_url="http://127.0.0.1:9/v1", model="m", api_key_env=None, requests_per_s=1)
    batched = server.model_copy(update={"batch": BatchConfig()})

    def names():
        targets = [target_of("m", deployment).name for deployment in (server, batched)]
        return {*targets, shard_name(str(tmp_path), 0, 2), shard_name(str(tmp_path), 1, 2), versioned_name("limit")}

    now = names()
    assert now == names()
    monkeypatch.setattr("kohaku_ray.version.code_version", lambda: "0.2.0+00000000")
    assert not now & names()


def test_a_request_of_an_older_class_is_read_by_position():
    """Why names bear the version: pickle restores a frozen dataclass with slots without the names of its fields."""
    older = dataclass(frozen=True, slots=True)(
        type("Older", (), {"__annotations__": {"model": str, "messages": tuple, "max_tokens": int}, "__module__": "m"})
    )
    state = older("m", (), 512).__getstate__()
    request = ChatRequest.__new__(ChatRequest)
    request.__setstate__(state)
    assert request.temperature == 512


def test_no_limiter_is_made_without_a_limit_and_a_process_finds_it_by_its_name():
    server = OpenAIConfig(base_url="http://127.0.0.1:9/v1", model="m", api_key_env=None, replicas=2)
    assert limiter_of_server("app", server) is None
    limiter = limiter_of_server("app", server.model_copy(update={"requests_per_s": 5.0}))
    copy = pickle.loads(pickle.dumps(limiter))
    assert (copy._name, copy._rates, copy._actor) == ("app", (5.0, None), None)


@pytest.mark.parametrize(
    ("name", "start", "stays"),
    [
        ("applications", lambda: detached_actor(Applications, "applications"), True),
        ("limit-", lambda: SharedLimiter("app", 5.0, None)._find_or_start(), False),
    ],
)
def test_what_must_stay_lies_on_the_head_node_and_the_rest_ends_with_its_owner(monkeypatch, name, start, stays):
    """engine6 A3: on another node an actor keeps an autoscaler from ending it, and limiters stayed for ever."""
    asked: dict[str, object] = {}
    actor = SimpleNamespace(remote=lambda *_: None)
    monkeypatch.setattr(ray, "remote", lambda _: SimpleNamespace(options=lambda **all_: asked.update(all_) or actor))
    start()
    assert str(asked["name"]).startswith(name)
    assert ("lifetime" in asked, "node:__internal_head__" in asked.get("resources", {})) == (stays, stays)
    assert asked["num_cpus"] == 0


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
        assert [target.name for target in names.values()] == asked


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


FAILED_TRY = """A replica failed to start with exception. Retrying {left} more time(s). Error:
\x1b[36mray::ServeReplica:app:VllmReplica:big.initialize_and_get_metadata()\x1b[39m (pid=26562, ip=192.0.2.2)
RuntimeError: Traceback (most recent call last):
  File "vllm/v1/engine/utils.py", line 1320, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}

The above exception was the direct cause of the following exception:

kohaku_ray.errors.ModelError: the weights leave no memory to the KV cache: {cause}
"""
"""As Serve's status has it between two tries (Ray 2.60, deployment_state.py)."""


def test_why_a_replica_did_not_start_is_said_when_it_happens_and_once(serve, monkeypatch, capsys):
    """On a card each try loads for minutes; three failed in silence (findings/gpu6.md, A2)."""

    def status(message: str, state: ApplicationStatus = ApplicationStatus.DEPLOYING) -> SimpleNamespace:
        deployment = SimpleNamespace(message=message, replica_states={})
        return SimpleNamespace(
            applications={"app": SimpleNamespace(status=state, deployments={"big": deployment}, message="")}
        )

    first, again, other = (FAILED_TRY.format(left=left, cause=cause) for left, cause in ((2, "a"), (1, "a"), (0, "b")))
    waiting = "Deployment 'big' has 1 replicas that have taken more than 30s to initialize."
    statuses = [*map(status, ["", first, first, waiting, again, other])]
    statuses.append(status("failed 3 times. Error:\n" + other, ApplicationStatus.DEPLOY_FAILED))
    monkeypatch.setattr("ray.serve.status", lambda: statuses.pop(0))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(ModelError, match=r"^the weights leave no memory to the KV cache: b$"):
        applications._wait_until_running("app", "big", VllmConfig(model="m"))
    reason = "serve   big: a replica did not start ({} left): the weights leave no memory to the KV cache: {}"
    assert capsys.readouterr().err.splitlines() == [reason.format("2 starts", "a"), reason.format("0 starts", "b")]


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
