"""Ask model servers, before a job starts anything, whether they answer and have their models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kohaku_ray.checks.demand import cluster_address
from kohaku_ray.checks.deployments import beyond_server
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.errors import ConfigError, DataError, ModelError, TransientModelError, UnreachableError, did_you_mean
from kohaku_ray.event_loop import run_apart
from kohaku_ray.models.batch_api import BatchApi
from kohaku_ray.models.openai import SERVER_WINDOWS, OpenAIBackend, OpenAIConfig
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import pluralize
from kohaku_ray.store.segments import SegmentStore

REACH_S = 5.0
"""Longest wait for a server's list of models."""

MODELS_NAMED = 5
"""Most models named of such a list."""

T = TypeVar("T")


def check_servers(config: Config, deployments: Mapping[str, Deployment]) -> list[str]:
    """Check that deployments' servers answer and have their models; returns warnings.

    A job whose ledger has replies of the model may need no server, and a cluster's nodes may reach one that this
    machine does not: there it is a warning.

    Raises:
        UnreachableError: No server that is needed answers.
        ConfigError: One refuses the key, or has not the model.
    """
    faults = find_faults(deployments.items())
    missing = [deployment for position, deployment in enumerate(deployments.values()) if position in faults]
    if faults and not may_go_on(config, missing):
        raise join_faults(faults.values())
    return [*map(str, faults.values())]


def join_faults(faults: Iterable[DataError]) -> ConfigError:
    """Make one error of the faults of servers."""
    faults = list(faults)
    kind = UnreachableError if all(isinstance(fault, UnreachableError) for fault in faults) else ConfigError
    return kind("; ".join(map(str, faults)))


def may_go_on(config: Config, *missing: Iterable[Deployment]) -> bool:
    """Tell whether a job may do without the servers of one of these groups, which are not seen here."""
    if cluster_address(config.cluster) is not None:
        return True
    recorded = SegmentStore(config.ledger.path).models()
    return any({deployment.model_identity for deployment in group} <= recorded for group in missing)


def find_faults(deployments: Iterable[tuple[str, Deployment]]) -> dict[int, DataError]:
    """Find what is wrong with servers, by the position of their deployments, which are given with their names.

    Raises:
        ConfigError: A given ``window_tokens`` is above its server's: no recorded reply makes up for it.
    """
    servers = {
        position: (name, deployment)
        for position, (name, deployment) in enumerate(deployments)
        if isinstance(deployment, OpenAIConfig) and deployment.application is None
    }
    with ThreadPoolExecutor(8) as threads:
        faults = threads.map(lambda item: _find_fault(*item), servers.values())
        return {position: fault for position, fault in zip(servers, faults, strict=True) if fault}


def _find_fault(name: str, deployment: OpenAIConfig) -> DataError | None:
    try:
        note = reach(name, deployment)
    except DataError as error:
        return error
    if not note.startswith("warning: "):
        return None
    request = ChatRequest("probe", (("user", "Say yes."),), 0.0, 1.0, 16, seed=0, session_id="probe")

    async def ask(backend: OpenAIBackend) -> DataError | None:
        try:
            await asyncio.wait_for(backend.chat(request), REACH_S)
        except (TransientModelError, TimeoutError):
            pass  # it may have a model under another name, and take its time
        except ModelError:
            return DataError(f"deployments.{name}.model is {deployment.model}: {note.removeprefix('warning: ')}")
        return None

    return _run_on(deployment, ask)


def _run_on(deployment: OpenAIConfig, ask: Callable[[OpenAIBackend], Awaitable[T]]) -> T:
    async def run() -> T:
        backend: OpenAIBackend = deployment.make_backend()
        try:
            return await ask(backend)
        finally:
            await backend.close()

    return run_apart(run())


def _check_batches(name: str, deployment: OpenAIConfig) -> None:
    """Raise a ``DataError`` where a server has no batches for a deployment that asks by them."""
    assert deployment.batch is not None
    settings = deployment.batch
    try:
        _run_on(deployment, lambda backend: BatchApi(backend, settings).check())
    except ModelError as error:
        raise DataError(str(error).replace("deployments.*", f"deployments.{name}")) from None


def reach(name: str, deployment: OpenAIConfig) -> str:
    """Ask a server for the list of its models, which calls none; returns what it says of ours, in a few words.

    Raises:
        UnreachableError: It does not answer.
        DataError: It refuses the key.
        ConfigError: It takes fewer tokens than ``window_tokens``, where that is given, whatever the ledger has; the
            default is judged by what a run asks for, see ``check_windows``.
    """
    where = f"deployments.{name}"
    try:
        models = _run_on(deployment, lambda backend: backend.models(timeout_s=REACH_S))
    except TransientModelError as error:
        way_out = f"start the server, or correct {where}.base_url"
        raise UnreachableError(f"{where} cannot be reached ({error}): {way_out}") from None
    except ModelError as error:
        if "HTTP 401" in str(error) or "HTTP 403" in str(error):
            raise DataError(str(error).replace("deployments.*", where)) from None
        if deployment.batch is not None:
            _check_batches(name, deployment)
        return "it answers, without a list of its models"
    if deployment.batch is not None:
        _check_batches(name, deployment)
    if deployment.model not in models:
        more = ", …" if len(models) > MODELS_NAMED else ""
        named = ", ".join(list(models)[:MODELS_NAMED]) or "none"
        guess = did_you_mean(deployment.model, models)
        return f"warning: not among the server's {pluralize(len(models), 'model')} ({named}{more}){guess}"
    if (longest := models[deployment.model]) is None:
        return "it answers"
    SERVER_WINDOWS[deployment.base_url, deployment.model] = longest
    is_given = "window_tokens" in deployment.model_fields_set and deployment.window_tokens != "auto"
    if is_given and longest < deployment.window:
        raise beyond_server(name, deployment, longest)
    return "it answers"
