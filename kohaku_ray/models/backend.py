"""What the settings of every kind of model backend have in common; each kind has a file of its own beside this one."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import locate_model
from kohaku_ray.settings import ModelPath, PositiveInt, Settings, is_model_path


class PriceConfig(Settings):
    """Prices of a deployment, in US dollars."""

    prompt: Annotated[float, Field(ge=0)] = 0.0
    """Per million prompt tokens that did not come from the prefix cache."""
    cached: Annotated[float, Field(ge=0)] | None = None
    """Per million prompt tokens from the prefix cache; None: as `prompt`."""
    completion: Annotated[float, Field(ge=0)] = 0.0
    """Per million generated tokens."""
    gpu_hour: Annotated[float, Field(ge=0)] = 0.0
    """Per GPU hour."""

    @property
    def by_batch(self) -> PriceConfig:
        """The prices of calls by batches: half of them, as OpenAI, Groq and Mistral have it."""
        prices = self.model_dump(include={"prompt", "cached", "completion", "gpu_hour"}, exclude_none=True)
        return self.model_copy(update={name: price / 2 for name, price in prices.items()})


class BackendConfig(Settings):
    """Settings of every backend."""

    replicas: PositiveInt = 1
    """Serve replicas; they share one rate limit."""
    price: PriceConfig = PriceConfig()
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Longest wait until every replica is up."""
    start_tries: PositiveInt = 3
    """Starts of a failing replica before the job gives up."""

    @property
    def n_engines(self) -> int:
        """Engines there are at first: Serve starts a replica for each."""
        return self.replicas

    @property
    def most_replicas(self) -> int:
        """Engines there may be."""
        return self.replicas

    @property
    def adapter(self) -> str | None:
        """LoRA adapter that calls ask for, of a model that ``VllmConfig.with_adapter`` made; None: none."""
        return None

    @property
    def most_in_flight(self) -> int:
        """Calls that all replicas answer at once."""
        return int(getattr(self, "max_ongoing", 1)) * self.most_replicas

    @property
    def paid_price(self) -> PriceConfig:
        """What a call is paid."""
        return self.price

    application: str | None = None
    """A Serve application that runs already (see `cluster/rayservice.yaml`); None: the job starts its own."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources a replica asks for, to keep it on nodes of one worker group; GPUs of vLLM share them."""

    @property
    def model_identity(self) -> str:
        """The model's identity in the ledger's keys: whatever changes its replies, and nothing else."""
        raise NotImplementedError

    def check(self, here: bool) -> None:
        """Check that it can be served, without starting anything.

        Args:
            here: Whether this environment serves it, and so must have the packages and the model.

        Raises:
            ConfigError: A package, a model or a key is missing, or settings do not fit the model.
        """
        raise NotImplementedError

    def make_backend(self, limiter: Any = None, *, with_key: bool = True) -> Any:
        """Build the backend, and load its model if it runs in this process.

        Args:
            limiter: Rate limit that its replicas share.
            with_key: Whether anything is to be sent, so that the API key is needed.

        Raises:
            ConfigError: Its API key is not in the environment, a package or model is missing.
        """
        raise TypeError(f"{type(self).__name__} is served by an engine of its own")


class ModelConfig(BackendConfig):
    """Settings of every language model."""

    reasoning_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens that the model's reasoning may take, in addition to a role's max_tokens."""
    vision: bool = False
    """Whether the model reads images."""
    note: str = ""
    """What readers of its answers should know, such as that it is weak: stands wherever a run's scores do."""


class WeightsConfig(ModelConfig):
    """Settings of a language model whose weights are loaded by this package."""

    model: ModelPath
    """Name or path of the model; for transformers also a GGUF file, or `package:NAME/FILE`, one in a Python package."""
    revision: str | None = None
    """Revision on the hub; None: the default branch."""
    identity: str | None = None
    """Model's name in the ledger's keys, for a path that may change; None: the name or path itself."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the model's chat template, such as {enable_thinking: false}."""

    @property
    def tokenizer(self) -> str:
        """Tokenizer that counts its prompts: the model's own."""
        return self.model


@functools.lru_cache(maxsize=32)
def find_model_config(model: str, revision: str | None) -> Path | None:
    """Find a model's config.json: in its directory, downloaded, or on the hub; a GGUF file has none."""
    located = locate_model(model)
    if is_model_path(located):
        return Path(located) / "config.json" if (Path(located) / "config.json").is_file() else None
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json", revision=revision))
    except Exception:  # the hub's client raises many types: all mean that the file cannot be had
        return None


def check_window(window_tokens: int | None, file: Path) -> int | None:
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
