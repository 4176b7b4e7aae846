"""Model backends and cross-encoders as Ray Serve applications; jobs share them, and the last job to leave ends them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal

import numpy as np
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import ApplicationStatus

from kohaku_ray.checks.demand import QUEUED, deployment_demand, shortage
from kohaku_ray.checks.deployments import OUR_PREFIX, check_deployment, is_served, target_of
from kohaku_ray.config import load_config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.engine.cluster import idle_cpus, print_progress
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.serving.limiter import SharedLimiter, detached_actor, limiter_of_server
from kohaku_ray.engine.serving.replica import listen_on_loopback, tell_shard
from kohaku_ray.engine.serving.vllm import bind_vllm
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.extensions import BUILT_IN
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.replica import Replica
from kohaku_ray.models.target import Target
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.records import pluralize
from kohaku_ray.store.lease import call_every
from kohaku_ray.systems.offline import ExtractiveConfig
from kohaku_ray.version import versioned_name

LEAST_LOADED = "kohaku_ray.engine.serving.routing.LeastLoadedRouter"

SAY_EVERY_S = 15.0
"""Interval between progress lines of a job that waits for replicas."""

BEAT_S = 5.0
"""Seconds between a job's heartbeats for its applications."""

IDLE_EXIT_S = 300.0
"""Seconds without a user after which the registry ends: until then the next job need not start one."""

LOST_AFTER_S = 60.0
"""Seconds without a heartbeat after which a job counts as dead and its applications end."""

SERVE_TRIES = 10
"""Tries, a second apart, to join a Serve that another job is starting."""

LONGEST_REASON = 1000
"""Characters of a reason: of a vLLM engine, half of them are vLLM's own."""

_REFUSED = re.compile(r"gated repo|GatedRepo|401 Client Error|403 Client Error|Invalid user token", re.IGNORECASE)
"""What a hub's client says of a model whose terms the token's account has not accepted, or without a token."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERROR_LINE = re.compile(r"[\w.]+(?:Error|Exception)\b")
_OUR_ERROR = re.compile(r"^kohaku_ray\.(?:engine\.)?errors\.\w+: ")
_FAILED_TRY = re.compile(r"failed to start with exception\. Retrying(?: (\d+) more time)?")
"""What Serve's status says between two tries of a replica."""
_LOG = logging.getLogger(__name__)

ApplicationClaim = Literal["ready", "start", "wait"]


class ChatReplica(Replica):
    """A Serve replica that hosts one backend."""

    def __init__(self, deployment: Deployment, limiter: SharedLimiter | None = None) -> None:
        listen_on_loopback()
        backend = deployment.make_backend(limiter)
        gpus = deployment.gpus if isinstance(deployment, TransformersConfig) else 0
        super().__init__(backend.chat, deployment.max_ongoing, gpus, tell_shard)


@contextmanager
def serving(
    deployments: Mapping[str, Deployment], release: bool = True, beat_s: float = BEAT_S
) -> Iterator[dict[str, Target]]:
    """Run the deployments' applications while the block runs; all of them start at once, but those not ``is_served``.

    Args:
        deployments: By name.
        release: Share them with other jobs, and end afterwards those that none uses; needless on a cluster that this
            job started and will end.
        beat_s: Seconds between two heartbeats for the shared ones.

    Yields:
        Where calls go, by deployment name.
    """
    for name, deployment in deployments.items():
        check_deployment(name, deployment)
    targets = {name: target_of(name, deployment) for name, deployment in deployments.items()}
    if deployments and not any(map(is_served, deployments.values())):
        yield targets
        return
    deployments = {name: deployment for name, deployment in deployments.items() if is_served(deployment)}
    user = uuid.uuid4().hex
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    # Asked for once: on a busy machine every look-up of its name may take longer than a heartbeat may be late. Its
    # process starts while Serve does.
    registry: Any = detached_actor(Applications, versioned_name("applications")) if release else None
    if release and ray.is_initialized():
        registry.beat.remote(user, [])  # it does not end while Serve starts
    _start_serve()
    for name, deployment in deployments.items():
        if deployment.application is not None and not is_running(deployment.application):
            running = ", ".join(sorted(serve.status().applications)) or "nothing"
            raise ConfigError(
                f"deployments.{name}.application is {deployment.application!r} but Serve runs {running}: start it, or "
                "set application to null"
            )
    # This job does not end applications that others started.
    ours = {name: targets[name].name for name, deployment in deployments.items() if deployment.application is None}

    def beat() -> None:
        if ray.is_initialized():  # else Ray would start a cluster of its own
            registry.beat.remote(user, list(ours.values()))

    def claim_and_start(name: str) -> ApplicationClaim:
        claimed: ApplicationClaim = ray_get(registry.claim.remote(user, ours[name])) if release else "start"
        if claimed == "start":
            with _end_on_failure(ours[name], name, deployments[name]):
                application = serve.RunTarget(_bind(ours[name], name, deployments[name]), ours[name], route_prefix=None)
                serve.run_many([application], wait_for_applications_running=False)
        return claimed

    try:
        with call_every(beat, beat_s, "beat") if release else nullcontext():
            claims = {name: claim_and_start(name) for name in ours}
            for name, application in ours.items():
                while claims[name] == "wait":  # another job is starting it
                    time.sleep(0.5)
                    claims[name] = claim_and_start(name)
                if claims[name] == "start":
                    with _end_on_failure(application, name, deployments[name]):
                        _wait_until_running(application, name, deployments[name])
            yield targets
    finally:
        if release:
            ray_get(registry.release.remote(user))


class Applications:
    """Records which job uses which Serve application: one job starts it, the last to leave ends it."""

    def __init__(self, beat_s: float = BEAT_S, lost_after_s: float = LOST_AFTER_S) -> None:
        """Know no application yet.

        Args:
            beat_s: Seconds between two looks for lost jobs.
            lost_after_s: Seconds without a heartbeat after which a job is lost.
        """
        self._beat_s, self._lost_after_s = beat_s, lost_after_s
        self._seen: dict[str, dict[str, float]] = {}
        self._starting: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._last_used = time.monotonic()
        self._watch: asyncio.Task[None] | None = None
        with suppress(RuntimeError):  # in Ray's actor there is an event loop
            self._watch = asyncio.get_running_loop().create_task(self._end_lost())

    async def beat(self, user: str, names: list[str]) -> None:
        """Record a user's heartbeat for these applications."""
        self._last_used = time.monotonic()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._end_lost())
        for name in names:
            self._seen.setdefault(name, {})[user] = time.monotonic()

    async def claim(self, user: str, name: str) -> ApplicationClaim:
        """Return what a user must do for an application: nothing, start it, or wait until another has started it."""
        async with self._lock:
            await self.beat(user, [name])
            if await asyncio.to_thread(is_running, name):
                self._starting.pop(name, None)
                return "ready"
            if self._starting.get(name, user) not in self._seen[name]:
                del self._starting[name]  # the user that was starting it is dead
            return "start" if self._starting.setdefault(name, user) == user else "wait"

    async def release(self, *lost: str) -> None:
        """Remove users, and end the applications that nobody else uses."""
        # Under the lock: whoever claims an application meanwhile finds it ended, not ending.
        async with self._lock:
            for users in self._seen.values():
                for user in lost:
                    users.pop(user, None)
            for name in [name for name, users in self._seen.items() if not users]:
                self._starting.pop(name, None)
                try:
                    await asyncio.to_thread(serve.delete, name)
                except Exception as error:  # Serve's controller may raise anything
                    _LOG.warning("application %s could not be ended, next try in %g s: %s", name, self._beat_s, error)
                else:
                    del self._seen[name]

    async def _end_lost(self) -> None:
        """End the applications of lost users, those that could not be ended before, and at last this actor."""
        is_adopted = False
        while self._seen or not is_adopted or time.monotonic() - self._last_used < IDLE_EXIT_S:
            is_adopted = is_adopted or await self._adopt_running()
            asleep = time.monotonic()
            await asyncio.sleep(self._beat_s)
            now = time.monotonic()
            # What held this process up kept heartbeats from it: nobody is lost by that.
            late = now - asleep - self._beat_s
            self._seen = {
                name: {user: last_seen + late for user, last_seen in seen.items()} for name, seen in self._seen.items()
            }
            users = [user for users in self._seen.values() for user in users.items()]
            await self.release(*{user for user, seen in users if now - seen > self._lost_after_s})
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _adopt_running(self) -> bool:
        """Take the applications of this version that Serve runs for used: a killed registry has forgotten their users.

        Users that live are heard of again before they are lost. Returns whether Serve could say what it runs.
        """
        try:
            running = await asyncio.to_thread(lambda: list(serve.status().applications))
        except Exception as error:  # as Serve's controller starts again, too
            _LOG.warning("what Serve runs is not known, next try in %g s: %s", self._beat_s, error)
            return False
        for name in running:
            if name.startswith(OUR_PREFIX) and name.endswith(versioned_name("")):
                self._seen.setdefault(name, {})[""] = time.monotonic()
        return True


def is_running(name: str) -> bool:
    """Whether every replica of an application is up."""
    status = serve.status().applications.get(name)
    return status is not None and status.status == ApplicationStatus.RUNNING


def _start_serve() -> None:
    """Start Serve, or join it; another job may start it at the same moment."""
    for attempt in range(SERVE_TRIES):
        try:
            # No HTTP proxy: replicas are called by handle alone.
            serve.start(proxy_location="Disabled")
            return
        except ValueError as error:  # Ray's, of a named actor
            is_other = not re.search("already (exists|taken)", str(error))
            if is_other or attempt == SERVE_TRIES - 1:
                raise
            time.sleep(1.0)


def build(arguments: Mapping[str, str]) -> serve.Application:
    """Build the application of one deployment, for a Serve configuration file (``import_path`` with ``args``).

    Args:
        arguments: ``config``, a YAML file or preset, and ``deployment``, a key of its ``deployments``.

    Raises:
        ConfigError: The configuration has no such deployment, or it cannot be served.
    """
    config = load_config(arguments["config"])
    name = arguments["deployment"]
    if name not in config.deployments:
        raise ConfigError(f"deployment is {name!r} but {arguments['config']} has {', '.join(config.deployments)}")
    check_deployment(name, config.deployments[name])
    return _bind(arguments.get("application", name), name, config.deployments[name])


@contextmanager
def _end_on_failure(application: str, name: str, deployment: Deployment) -> Iterator[None]:
    """End an application that does not come up in the block, and say why."""
    try:
        yield
    except (RuntimeError, ModelError) as error:
        serve.delete(application)
        raise ModelError(
            f"deployments.{name} did not come up: {error}{_on_token(name, deployment, str(error))}"
        ) from None


def _wait_until_running(application: str, name: str, deployment: Deployment) -> None:
    """Wait for every replica; report from time to time how many are up, and at once why one did not start.

    Raises:
        ModelError: Serve gives up, or the deadline passes; the message says what is missing.
    """
    limit_s = deployment.start_timeout_s
    began = printed = time.monotonic()
    told = ""
    while True:
        status = serve.status().applications[application]
        if status.status == ApplicationStatus.RUNNING:
            return
        if status.status == ApplicationStatus.DEPLOY_FAILED:
            raise ModelError(_reason(status))
        if (failed := _FAILED_TRY.search(_messages(status))) and (reason := _reason(status)) != told:
            more = f" ({pluralize(int(failed[1]), 'start')} left)" if failed[1] else ""
            print_progress(f"serve   {name}: a replica did not start{more}: {reason}")
            told = reason
        now = time.monotonic()
        n_up = _n_up(status)
        if now - began > limit_s:
            short = shortage("they", deployment_demand(deployment), ray.cluster_resources(), ray.available_resources())
            raise ModelError(
                f"{n_up} of {deployment.n_engines} replicas were up after start_timeout_s of {limit_s:g} s "
                f"({short}): {_reason(status)}"
            )
        if now - printed > SAY_EVERY_S:
            print_progress(f"serve   {name}: {n_up}/{deployment.n_engines} replicas up after {now - began:.0f} s")
            printed = now
        time.sleep(min(0.2 + (now - began) / 20, 2.0))


def check_applications(applications: Iterable[str]) -> None:
    """Check that Serve still has these applications: a call to one that is gone may wait for ever.

    Raises:
        ModelError: It has not; the message says how that comes.
    """
    try:
        running = set(serve.status().applications)
    except RayError:  # Serve itself is gone
        running = set()
    if gone := sorted(set(applications) - running):
        raise ModelError(
            f"Serve has no application {gone[0]} any more: somebody ended it, or this job stood still for more than "
            f"{LOST_AFTER_S:.0f} s; repeat the command, which goes on where it stopped"
        )


def replicas_up(applications: Iterable[str]) -> int:
    """Count the running replicas of applications."""
    statuses = serve.status().applications
    return sum(_n_up(statuses[name]) for name in set(applications) if name in statuses)


def _n_up(status: Any) -> int:
    return sum(each.replica_states.get("RUNNING", 0) for each in status.deployments.values())


def _reason(status: Any) -> str:
    """Extract the last error of the traceback in Serve's status message."""
    lines = _messages(status).splitlines()
    errors = [number for number, line in enumerate(lines) if _ERROR_LINE.match(line)]
    reason = " ".join(line.strip() for line in lines[errors[-1] if errors else -3 :])
    return _OUR_ERROR.sub("", reason)[:LONGEST_REASON] or "Serve gives no reason; see its logs"


def _messages(status: Any) -> str:
    texts = [deployment.message for deployment in status.deployments.values() if deployment.message]
    return _COLOURS.sub("", "\n".join(texts or [status.message])).strip()


def _on_token(name: str, deployment: Deployment, reason: str) -> str:
    """Say what mends a hub's refusal of a model that asks for a token; empty where it is no such refusal."""
    if not _REFUSED.search(reason):
        return ""
    had = "that was sent" if os.environ.get("HF_TOKEN") else "(HF_TOKEN is not set in this job)"
    given = '{"env_vars": {"HF_TOKEN": "…"}}'
    return (
        f"; the hub refuses {getattr(deployment, 'model', name)} to the token {had}: accept the model's terms there, "
        f"start the job with that account's token (`ray job submit --runtime-env-json '{given}'`), or set "
        f"deployments.{name}.env.HF_TOKEN"
    )


def _bind(application: str, name: str, deployment: Deployment) -> serve.Application:
    if isinstance(deployment, VllmConfig):
        return bind_vllm(name, deployment)
    if isinstance(deployment, CrossEncoderConfig):
        is_here = deployment.base_url is None
        options = {"num_cpus": 1 if is_here else idle_cpus(), "num_gpus": deployment.gpus if is_here else 0}
        limiter = None if is_here else limiter_of_server(application, deployment)
        replicas = _make_deployment(PairReplica, name, deployment, {**options, "resources": deployment.resources})
        return replicas.bind(deployment, limiter)
    limiter = None
    if isinstance(deployment, OpenAIConfig):
        limiter = limiter_of_server(application, deployment)
    actor: dict[str, Any] = {"num_cpus": 1 if isinstance(deployment, ExtractiveConfig) else idle_cpus()}
    if isinstance(deployment, TransformersConfig):
        actor = {"num_cpus": deployment.cpus, "num_gpus": deployment.gpus}
    actor["resources"] = deployment.resources
    if isinstance(deployment, ExtractiveConfig) and deployment.system not in BUILT_IN["systems"]:
        actor |= _with_driver_folder()
    n_queued = math.ceil(QUEUED * deployment.max_ongoing)
    return _make_deployment(ChatReplica, name, deployment, actor, n_queued).bind(deployment, limiter)


def _with_driver_folder() -> dict[str, Any]:
    """Let a replica import the modules of this job's folder, as the job's own workers do: Serve's belong to no job."""
    if ray.get_runtime_context().runtime_env.get("working_dir"):  # of `ray job submit`, which replicas get by Serve
        return {}
    return {"runtime_env": {"env_vars": {"PYTHONPATH": f"{os.getcwd()}:${{PYTHONPATH}}"}}}


def _make_deployment(
    replica: type, name: str, deployment: Deployment, actor: Mapping[str, Any], n_queued: int = 0
) -> Any:
    return serve.deployment(
        replica,
        name=name,
        num_replicas=deployment.replicas,
        max_ongoing_requests=deployment.max_ongoing + n_queued,
        max_constructor_retry_count=deployment.start_tries,
        health_check_timeout_s=120,
        graceful_shutdown_timeout_s=2,
        ray_actor_options=dict(actor),
        request_router_config=RequestRouterConfig(request_router_class=LEAST_LOADED),
    )


BATCH_WAIT_S = 0.005
"""Seconds to wait for further calls to share a batch."""

BATCH_CALLS = 64
"""Most calls of one batch: as many as a deployment takes at once by default."""


class PairReplica:
    """Hosts one cross-encoder of sentence-transformers, or asks one behind an endpoint.

    A batch is what waits when the model is free. Batches of `serve.batch` are made by its timer also while the model
    works: then each has the few calls of 5 ms, however long they wait (Ray 2.60).
    """

    def __init__(self, deployment: CrossEncoderConfig, limiter: SharedLimiter | None = None) -> None:
        listen_on_loopback()
        self._model = deployment.load(limiter)
        self._batch_pairs = deployment.batch_pairs
        self._waiting: list[tuple[list[tuple[str, str]], asyncio.Future[list[float]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def rank(self, pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs, together with those of other calls that wait.

        Raises:
            ModelError: The model broke on the batch.
        """
        scores: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._waiting.append((pairs, scores))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._score_waiting())
        return await scores

    async def _score_waiting(self) -> None:
        """Score batch after batch, in a thread: meanwhile the replica takes calls and answers health checks."""
        await asyncio.sleep(BATCH_WAIT_S)
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_CALLS], self._waiting[BATCH_CALLS:]
            batch = [(pairs, scores) for pairs, scores in batch if not scores.done()]  # nobody waits for the others
            if batch:
                try:
                    results = await asyncio.to_thread(self._score, [pairs for pairs, _ in batch])
                except Exception as error:
                    for _, scores in batch:
                        if not scores.done():
                            scores.set_exception(error)
                    continue
                for (_, scores), result in zip(batch, results, strict=True):
                    if not scores.done():
                        scores.set_result(result)

    def _score(self, calls: list[list[tuple[str, str]]]) -> list[list[float]]:
        """Score the pairs of several calls together; the library sorts them by length."""
        pairs = [pair for call in calls for pair in call]
        try:
            scores = self._model.predict(pairs, batch_size=self._batch_pairs, show_progress_bar=False)
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"the cross-encoder broke on {pluralize(len(pairs), 'pair')}: {error}") from error
        ends = np.cumsum([len(call) for call in calls])[:-1]
        return [part.tolist() for part in np.split(np.asarray(scores, np.float64).reshape(len(pairs)), ends)]
