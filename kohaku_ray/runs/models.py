"""What plays each role of a run: which model, asked where and how, and what each call of it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kohaku_ray.config import Config
from kohaku_ray.config.schema import ChatDeployment, PriceConfig
from kohaku_ray.generation.prompts import Prompt
from kohaku_ray.generation.request import ChatRequest
from kohaku_ray.records import Reply
from kohaku_ray.runs.deployments import model_identity

Source = Literal["ledger", "joined", "made"]
"""Where a reply came from: recorded before, a call in flight of another asker, or a call of this run."""


@dataclass(frozen=True, slots=True)
class Model:
    """What plays a role: where it is asked, and how.

    Attributes:
        application: Serve application.
        identity: Its name in the ledger's keys.
        temperature: Sampling temperature.
        top_p: Nucleus sampling.
        max_tokens: Longest reply, in tokens.
        window_tokens: Longest prompt plus reply, in tokens.
        reads_prose: Whether the prompt's text is enough; else its variables travel too.
        deployment: Key of its deployment.
        tokenizer: What counts its prompts; None: nothing here does.
        revision: Revision of the tokenizer on the hub.
        price: What it costs.
    """

    application: str
    identity: str
    temperature: float
    top_p: float
    max_tokens: int
    window_tokens: int
    reads_prose: bool
    deployment: str
    tokenizer: str | None
    revision: str | None
    price: PriceConfig


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as usage.parquet records it; never part of the outputs that are compared.

    Attributes:
        key: What its reply is recorded under in the ledger: equal keys are one call.
        role: What the model was asked for.
        attempt: Which attempt of the answer, from 0.
        source: Whether this run made the call.
        deployment: Who was asked.
        replica: Which of its replicas answered.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: How many of them came from the prefix cache.
        completion_tokens: Generated tokens.
        wait_s: Seconds this run waited for the reply.
        queue_s: Seconds the call, when it was made, waited for a replica to take it.
        service_s: Seconds it was in the replica.
        gpu_s: GPU seconds it used there.
        joules: Energy of these; None where nobody measures it.
        dollars: Price of the call by the deployment's price table, whoever made it.
    """

    key: str
    role: str
    attempt: int
    source: Source
    deployment: str
    replica: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    wait_s: float
    queue_s: float
    service_s: float
    gpu_s: float
    joules: float | None
    dollars: float


def models_of(config: Config, applications: Mapping[str, str], member: int) -> dict[str, Model]:
    """Say which model plays which role for a member, with its sampling parameters; roles a run never asks are left out.

    Args:
        config: The run's configuration.
        applications: Serve application by deployment.
        member: Ensemble member.
    """
    return {name: _model(config, applications, name, member) for name in config.uses.roles}


def _model(config: Config, applications: Mapping[str, str], role: str, member: int) -> Model:
    played = config.role(role, member)
    deployment: ChatDeployment = config.deployments[played.model]  # type: ignore[assignment]
    return Model(
        application=applications[played.model],
        identity=model_identity(deployment),
        temperature=played.temperature,
        top_p=played.top_p,
        max_tokens=played.max_tokens,
        window_tokens=deployment.window_tokens,
        reads_prose=deployment.kind != "extractive",
        deployment=played.model,
        tokenizer=deployment.tokenizer,
        revision=deployment.revision,
        price=deployment.price,
    )


def chat_request(
    model: Model,
    prompt: Prompt,
    seed: int,
    schema: Mapping[str, Any] | None,
    max_tokens: int | None = None,
    session_id: str = "",
) -> ChatRequest:
    """Put together what a model is asked; arguments as of ``ChatRequest``."""
    return ChatRequest(
        model=model.identity,
        messages=(("system", prompt.system), ("user", prompt.user)),
        temperature=model.temperature,
        top_p=model.top_p,
        max_tokens=max_tokens or model.max_tokens,
        seed=seed,
        schema=None if schema is None else dict(schema),
        session_id=session_id,
        variables=None if model.reads_prose else prompt.variables,
    )


def dollars(reply: Reply, price: PriceConfig) -> float:
    """Price one reply."""
    new_tokens = reply.prompt_tokens - reply.cached_tokens
    tokens = new_tokens * price.prompt + reply.cached_tokens * price.cached + reply.completion_tokens * price.completion
    return tokens / 1e6 + reply.gpu_s * price.gpu_hour / 3600
