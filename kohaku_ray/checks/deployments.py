"""Checks of a configuration's deployments before anything starts, and where their calls go."""

from __future__ import annotations

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.errors import ConfigError
from kohaku_ray.extensions import BUILT_IN
from kohaku_ray.models.batches import server_digest
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.openai import SERVER_WINDOWS, OpenAIConfig
from kohaku_ray.models.target import Target
from kohaku_ray.records import canonical_json, digest
from kohaku_ray.systems.offline import ExtractiveConfig
from kohaku_ray.version import versioned_name

OUR_PREFIX = "kohaku-ray-"
"""Begins the name of every application that a job starts."""


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


def target_of(name: str, deployment: Deployment) -> Target:
    """Return where a deployment's calls go: equal settings give equal targets, so that jobs share what answers."""
    if deployment.application is not None:
        return Target(deployment.application)
    if isinstance(deployment, OpenAIConfig) and deployment.batch is not None:
        # Whatever the settings: one process has all of its batches.
        return Target(versioned_name(f"{OUR_PREFIX}batches-{server_digest(deployment)}"), "batch")
    settings = deployment.model_dump(mode="json")
    if not is_served(deployment):
        return Target(f"{OUR_PREFIX}baseline-{digest(settings, 5)}", "shard", canonical_json(settings))
    return Target(versioned_name(f"{OUR_PREFIX}{name}-{digest(settings, 5)}"))


def _models_asked(config: Config, role: str) -> list[str]:
    """Return the deployments that play a role, over all members."""
    return list(dict.fromkeys(config.role(role, member).model for member in range(config.ensemble.members)))


Addresses = dict[str, dict[str, str]]
"""By identity of a model, the digests of the addresses that serve it, each with its deployment's name."""


def add_addresses(config: Config, known: Addresses) -> None:
    """Add the addresses of a run's models to those that are known."""
    for name, deployment in config.used_deployments.items():
        if isinstance(deployment, OpenAIConfig):
            known.setdefault(deployment.model_identity, {}).setdefault(deployment.address_digest, name)


def shared_identities(known: Addresses) -> list[str]:
    """Name the deployments of several addresses that are one model to the ledger: all but one are not asked.

    dspy#10006, ragas#2983.
    """
    return [
        f"deployments.{' and deployments.'.join(dict.fromkeys(names.values()))}: {len(names)} addresses (base_url) "
        "have one identity, so what one of them has answered is not asked of the others: set `identity` of each to a "
        "name of its own, such as the server's, or give them one base_url"
        for names in known.values()
        if len(names) > 1
    ]


def beyond_server(name: str, deployment: OpenAIConfig, longest: int, needed: str = "") -> ConfigError:
    """Return the error of a window that is longer than the ``longest`` prompt and reply that its server takes."""
    default = "" if "window_tokens" in deployment.model_fields_set else " by default"
    return ConfigError(
        f"deployments.{name}.window_tokens is {deployment.window:,}{default} but the server takes {longest:,} tokens "
        f"of {deployment.model}, prompt and reply together{needed}: set window_tokens to auto, which is what the "
        f"server says, or to {longest}"
    )


def check_windows(config: Config) -> None:
    """Check that every role's reply fits its model's window, with room for a prompt.

    A window by default, which belongs to a run's identity, may be longer than what the server has said it takes, as
    long as no prompt of the run can be: its prompts are then those of a window that was asked for.

    Raises:
        ConfigError: One does not; the message names both numbers.
    """
    uses = config.uses
    for name in uses.roles:
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
            if not isinstance(deployment, OpenAIConfig) or deployment.application is not None:
                continue
            longest = SERVER_WINDOWS.get((deployment.base_url, deployment.model), window)
            if longest < window:
                needed, context = wanted + reasoning, ""
                if name == config.declaration.lead:
                    # without a bound of its own a context fills the window
                    n_tokens = uses.attempts * uses.context_tokens if uses.context_tokens else window
                    needed, context = needed + n_tokens, f" and {n_tokens:,} of context in the last attempt"
                if needed >= longest:
                    wants = f", and role {name} may need {wanted + reasoning:,} for its reply{context}"
                    raise beyond_server(config.deployment_of(model), deployment, longest, wants)


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
