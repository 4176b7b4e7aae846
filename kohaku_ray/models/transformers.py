"""Models of Hugging Face transformers in this process: the settings of a deployment, and how its model is loaded.

``models/decoding.py`` decodes; it imports torch, and this module does not.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.gguf import gguf_identity, is_gguf
from kohaku_ray.index.identity import locate_model, model_directory
from kohaku_ray.models.backend import WeightsConfig, check_window, find_model_config
from kohaku_ray.records import canonical_json
from kohaku_ray.settings import PositiveInt

PACKAGES = {
    "llguidance": "kohaku-ray[transformers]",
    "bitsandbytes": "kohaku-ray[bitsandbytes]",
    "accelerate": "kohaku-ray[bitsandbytes]",
}
"""Optional packages, with the extra that installs each."""


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

    @property
    def window(self) -> int:
        """Longest prompt plus reply, in tokens.

        Raises:
            ConfigError: It is not set and the model's config.json does not say, or it is set to more than that.
        """
        file = find_model_config(self.model, self.revision)
        longest = None if file is None else check_window(self.window_tokens, file)
        if self.window_tokens is None and longest is None:
            why = f"{file} does not say it" if file is not None else "its config.json cannot be read here"
            raise ConfigError(
                f"window_tokens is not set and the window of {self.model} is unknown ({why}): set window_tokens, "
                "correct the name, or download the model"
            )
        return self.window_tokens or longest or 0

    @property
    def model_identity(self) -> str:
        """The model's name, or content if it is a GGUF file, and what else changes its replies."""
        changing = ("revision", "dtype", "load_in_4bit", "chat_template_kwargs", "reasoning_end", "reasoning_tokens")
        extra = canonical_json({name: getattr(self, name) for name in changing})
        if self.identity:
            return f"transformers:{self.identity} {extra}"
        located = locate_model(self.model)
        content = gguf_identity(Path(located)) if is_gguf(located) else self.model
        return f"transformers:{content} {extra}"

    def check(self, here: bool) -> None:
        """Check packages and window; see ``BackendConfig.check``."""
        if here and self.application is None:
            self._require_packages()
        _ = self.window

    def make_backend(self, limiter: Any = None, *, with_key: bool = True) -> Any:
        """Load the model; see ``BackendConfig.make_backend``."""
        from kohaku_ray.models.decoding import LocalBackend

        self._require_packages()
        window_tokens = self.window
        try:
            path = model_directory(self.model, self.revision)
        except ConfigError:
            from huggingface_hub import snapshot_download

            try:
                path = Path(snapshot_download(self.model, revision=self.revision))
            except Exception as error:  # the hub's client raises many types
                raise ConfigError(
                    f"model is {self.model!r} but it is neither a directory nor can it be downloaded ({error}): "
                    "correct the name, or download it first"
                ) from error
        return LocalBackend(*load_model(path, self), self, window_tokens)

    def _require_packages(self) -> None:
        needed = {"llguidance": "kind is transformers"}
        if self.load_in_4bit:
            needed |= dict.fromkeys(("bitsandbytes", "accelerate"), "load_in_4bit is true")
        if self.gpus > 1:
            needed["accelerate"] = f"gpus is {self.gpus:g}"
        for package, reason in needed.items():
            if importlib.util.find_spec(package) is None:
                raise ConfigError(f"{reason} but the package {package} is missing: pip install '{PACKAGES[package]}'")

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


def load_model(path: Path, settings: TransformersConfig) -> tuple[Any, Any]:
    """Load a model from its directory on its device, and its tokenizer.

    Raises:
        ConfigError: There is no GPU, or the model or its tokenizer cannot be loaded.
    """
    # Read when torch is loaded. Threads that wait by spinning stand still for minutes where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    from transformers.integrations import sdpa_attention
    from transformers.utils import logging

    logging.disable_progress_bar()

    if settings.gpus and not torch.cuda.is_available():
        raise ConfigError(
            f"gpus is {settings.gpus:g} but torch sees no GPU: set gpus to 0, or install a torch with CUDA"
        )
    if not settings.gpus:
        torch.set_num_threads(settings.cpus)
        # On a CPU, torch's own handling of grouped heads takes ten times as long per token as the library's packing.
        sdpa_attention.use_gqa_in_sdpa = lambda *_: False
    chosen: Any = "auto"
    if settings.dtype != "auto":
        chosen = getattr(torch, settings.dtype)
    elif not settings.gpus:
        has = torch.cpu.get_capabilities()
        chosen = torch.bfloat16 if has.get("avx512_bf16") or has.get("amx_bf16") else torch.float32
    kwargs: dict[str, Any] = {"dtype": chosen}
    if settings.load_in_4bit:
        kwargs["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16 if chosen == "auto" else chosen,
        )
    if settings.gpus > 1:
        kwargs["device_map"] = "auto"
    elif settings.load_in_4bit:
        kwargs["device_map"] = {"": "cuda:0" if settings.gpus else "cpu"}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=settings.trust_remote_code, **kwargs)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"{path} cannot be loaded as a causal language model: {error}") from error
    if not tokenizer.is_fast:
        raise ConfigError(f"{path} has no fast tokenizer (tokenizer.json), which a schema needs: name another model")
    if "device_map" not in kwargs and settings.gpus:
        model = model.to("cuda:0")
    return model, tokenizer
