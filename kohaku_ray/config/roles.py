"""The model that plays each role of a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from kohaku_ray.config.deployments import ChatDeployment
from kohaku_ray.config.schema import Config
from kohaku_ray.models.calls import Model
from kohaku_ray.models.target import Target


def models_of(config: Config, targets: Mapping[str, Target], member: int) -> dict[str, Model]:
    """Return a member's model per role that the run asks; ``targets`` are by deployment."""
    return {name: model_of(config, targets, name, member) for name in config.uses.roles}


def model_of(config: Config, targets: Mapping[str, Target], role: str, member: int) -> Model:
    """Return a member's model of one role; arguments as of ``models_of``."""
    played = config.role(role, member)
    deployment: ChatDeployment = config.models[played.model]  # type: ignore[assignment]
    return Model(
        target=targets[config.deployment_of(played.model)],
        identity=deployment.model_identity,
        temperature=played.temperature,
        top_p=played.top_p,
        max_tokens=played.max_tokens,
        reasoning_tokens=deployment.reasoning_tokens,
        window_tokens=deployment.window - deployment.reasoning_tokens,
        reads_prose=deployment.kind != "extractive",
        deployment=played.model,
        tokenizer=deployment.tokenizer,
        revision=deployment.revision,
        price=deployment.paid_price,
        adapter=deployment.adapter,
    )
