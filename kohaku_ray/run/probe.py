"""Ask a deployment one short question, and say what it can do or what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jsonschema

from kohaku_ray.config.deployments import ChatDeployment, ExtractiveConfig, OpenAIConfig
from kohaku_ray.errors import DataError, ModelError, TransientModelError, did_you_mean
from kohaku_ray.models.openai import OpenAIBackend
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply
from kohaku_ray.run.deployments import make_backend, window_of

REACH_S = 5.0
"""Longest wait for a server's list of models."""

MODELS_NAMED = 5
"""Most models named of such a list."""

REPLY_TOKENS = 128
"""Longest reply to a probe, reasoning left out."""

SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 40}},
    "required": ["capital"],
    "additionalProperties": False,
}
"""The schema that a probe asks for; the question itself does not mention its key."""

Ask = Callable[[ChatRequest], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Probed:
    """The outcome of one probe.

    Attributes:
        text: What the deployment can do, or what is wrong with it; one line.
        is_usable: Whether a run can call it.
    """

    text: str
    is_usable: bool = True


async def probe_chat(name: str, deployment: ChatDeployment, ask: Ask) -> Probed:
    """Ask two short questions, the second with a schema.

    Args:
        name: The deployment's key in the configuration.
        deployment: Its settings.
        ask: Sends a request.
    """
    where = f"deployments.{name}"
    try:
        began = time.perf_counter()
        plain = await ask(_request(deployment, "Count from one to thirty in English words.", None))
        seconds = time.perf_counter() - began
    except ModelError as error:
        return Probed(f"{where}: {error}", is_usable=False)
    try:
        shaped = await ask(_request(deployment, "What is the capital of France? Reply in JSON.", SCHEMA))
    except ModelError as error:
        return Probed(f"{where} answers, but refuses a JSON schema: {error}", is_usable=False)
    if not plain.text.strip() and not shaped.text.strip():
        return Probed(
            f"{where} answers with empty text ({plain.completion_tokens} tokens, {plain.finish_reason}): if the model "
            f"reasons, raise {where}.reasoning_tokens above {deployment.reasoning_tokens}, or switch reasoning off",
            is_usable=False,
        )
    n_tokens, window = plain.completion_tokens, f"window {window_of(deployment):,} tokens"
    speed = (
        f"{n_tokens / seconds:.1f} tokens/s alone ({n_tokens} in {seconds:.1f} s)" if n_tokens else "tokens not counted"
    )
    return Probed(f"{where}: {deployment.kind}, {window}, {_schema_support(shaped)}, {speed}")


def reach(name: str, deployment: OpenAIConfig) -> str:
    """Ask a server for the list of its models, which calls none; returns what it says of ours, in a few words.

    Raises:
        DataError: It does not answer, refuses the key, or takes fewer tokens than ``window_tokens``.
    """
    where = f"deployments.{name}"

    async def models() -> dict[str, int | None]:
        backend: OpenAIBackend = make_backend(deployment)
        try:
            return await backend.models(timeout_s=REACH_S)
        finally:
            await backend.close()

    try:
        with ThreadPoolExecutor(1) as thread:  # this one may have a loop of its own, as a notebook's
            there = thread.submit(lambda: asyncio.run(models())).result()
    except TransientModelError as error:
        raise DataError(f"{where} cannot be reached ({error}): start the server, or correct {where}.base_url") from None
    except ModelError as error:
        if "HTTP 401" in str(error) or "HTTP 403" in str(error):
            raise DataError(str(error).replace("deployments.*", where)) from None
        return "it answers, without a list of its models"
    if deployment.model not in there:
        more = ", …" if len(there) > MODELS_NAMED else ""
        named = ", ".join(list(there)[:MODELS_NAMED]) or "none"
        guess = did_you_mean(deployment.model, there)
        return f"warning: not among the server's {len(there)} models ({named}{more}){guess}"
    longest = there[deployment.model]
    if longest is not None and longest < deployment.window_tokens:
        raise DataError(
            f"{where}.window_tokens is {deployment.window_tokens:,} but the server takes {longest:,} tokens of "
            f"{deployment.model}, prompt and reply together: set window_tokens to {longest}"
        )
    return "it answers"


async def probe_here(name: str, deployment: ChatDeployment) -> Probed:
    """Probe a deployment whose backend runs in this process: a server's client, or a model that is loaded here."""
    if isinstance(deployment, ExtractiveConfig):
        return Probed(f"deployments.{name}: extractive, no model: nothing to ask")
    if isinstance(deployment, OpenAIConfig):
        deployment = deployment.model_copy(update={"max_tries": 1})
    backend = make_backend(deployment)
    try:
        if not isinstance(deployment, OpenAIConfig):
            return await probe_chat(name, deployment, backend.chat)

        async def ask(request: ChatRequest) -> Reply:
            try:
                reply: Reply = await backend.chat(request)
            except ModelError as error:
                raise ModelError(await _explained(name, deployment, backend, error)) from error
            return reply

        return await probe_chat(name, deployment, ask)
    finally:
        await backend.close()


async def _explained(name: str, deployment: OpenAIConfig, backend: OpenAIBackend, error: ModelError) -> str:
    """Add to a server's refusal what mends it: its models, the key's variable, or its address."""
    said = str(error).replace("deployments.*", f"deployments.{name}")
    if not isinstance(error, TransientModelError):
        return await backend.with_models(said)
    try:
        await backend.models()
    except TransientModelError as unreachable:
        return f"{said}: start the server, or correct deployments.{name}.base_url ({unreachable})"
    except ModelError:  # it answers, without a list
        pass
    return said


def _request(deployment: ChatDeployment, user: str, schema: dict[str, Any] | None) -> ChatRequest:
    return ChatRequest(
        model="probe",
        messages=(("system", "You answer briefly."), ("user", user)),
        temperature=0.0,
        top_p=1.0,
        max_tokens=REPLY_TOKENS + deployment.reasoning_tokens,
        seed=0,
        schema=schema,
        session_id="probe",
    )


def _schema_support(reply: Reply) -> str:
    try:
        jsonschema.validate(json.loads(reply.text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        begin = " ".join(reply.text.split())[:60]
        return f"JSON schema not kept (replied {begin!r}), so replies are read as they come"
    return "JSON schema kept"
