"""Checks of a configuration's deployments before anything starts, and the names of their applications."""

from __future__ import annotations

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.errors import ConfigError
from kohaku_ray.extensions import BUILT_IN
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.records import canonical_json, digest
from kohaku_ray.run.batches import server_digest
from kohaku_ray.run.models import BY_BATCH, IN_SHARDS
from kohaku_ray.systems.offline import ExtractiveConfig


def check_deployment(name: str, deployment: Deployment, *, here: bool = True) -> None:
    """Check that a deployment can be served, see ``BackendConfig.check``; ``name`` is its key in the configuration."""
    try:
        deployment.check(here)
    except ConfigError as error:
        raise ConfigError(f"deployments.{name}: {error}") from None


def is_served(deployment: Deployment) -> bool:
    """Whether Ray Serve runs a deployment.

    The ledger's shards ask a baseline of one replica themselves: Serve takes 10 s of CPU to start, a call 2 ms. They
    outlive a job, and may not find a module of another job: the baselines of the package's systems alone. Calls by
    batches are gathered by an actor of the ledger.
    """
    if isinstance(deployment, OpenAIConfig):
        return deployment.batch is None
    if not isinstance(deployment, ExtractiveConfig):
        return True
    return deployment.application is not None or deployment.replicas > 1 or deployment.system not in BUILT_IN["systems"]


def application_name(name: str, deployment: Deployment) -> str:
    """Return a deployment's application name: equal settings give equal names, so that jobs share it."""
    if deployment.application is not None:
        return deployment.application
    if isinstance(deployment, OpenAIConfig) and deployment.batch is not None:
        return f"{BY_BATCH}{server_digest(deployment)}"  # whatever the settings: one process has all of its batches
    if not is_served(deployment):
        return f"{IN_SHARDS}{canonical_json(deployment.model_dump(mode='json'))}"
    return f"kohaku-ray-{name}-{digest(deployment.model_dump(mode='json'), 5)}"


def _models_asked(config: Config, role: str) -> list[str]:
    """Return the deployments that play a role, over all members."""
    return list(dict.fromkeys(config.role(role, member).model for member in range(config.ensemble.members)))


def check_windows(config: Config) -> None:
    """Check that every role's reply fits its model's window, with room for a prompt.

    Raises:
        ConfigError: One does not; the message names both numbers.
    """
    for name in config.uses.roles:
        for model in _models_asked(config, name):
            deployment, wanted = config.models[model], config.role(name).max_tokens
            if isinstance(deployment, CrossEncoderConfig):
                continue
            reasoning, window = deployment.reasoning_tokens, deployment.window
            if wanted + reasoning >= window:
                key = config.deployment_of(model)
                more = f" and deployments.{key}.reasoning_tokens {reasoning:,}" if reasoning else ""
                raise ConfigError(
                    f"roles.{name}.max_tokens is {wanted:,}{more} but the window of {model} is {window:,} tokens, for "
                    f"prompt and reply together: lower max_tokens, or raise deployments.{key}.window_tokens if the "
                    "model takes more"
                )


def check_vision(config: Config) -> None:
    """Check that models which are sent images read images.

    Raises:
        ConfigError: One does not.
    """
    for name in config.uses.images:
        for model in _models_asked(config, name):
            deployment, key = config.models[model], config.deployment_of(model)
            if not getattr(deployment, "vision", False):
                raise ConfigError(
                    f"role {name} sends images but deployments.{key}.vision is false: set it to true if the model "
                    "reads images, name another, such as by --with models/openrouter_vision, or send none"
                )
