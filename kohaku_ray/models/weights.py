"""Load a causal language model and its tokenizer from files."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from kohaku_ray.errors import ConfigError

PACKAGES = {
    "llguidance": "kohaku-ray[transformers]",
    "bitsandbytes": "kohaku-ray[bitsandbytes]",
    "accelerate": "kohaku-ray[bitsandbytes]",
}
"""Optional packages, with the extra that installs each."""


def require_packages(load_in_4bit: bool, n_gpus: float) -> None:
    """Check that this environment has what a model needs.

    Raises:
        ConfigError: A package is missing; the message has the line that installs it.
    """
    needed = {"llguidance": "kind is transformers"}
    if load_in_4bit:
        needed |= dict.fromkeys(("bitsandbytes", "accelerate"), "load_in_4bit is true")
    if n_gpus > 1:
        needed["accelerate"] = f"gpus is {n_gpus:g}"
    for package, reason in needed.items():
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{reason} but the package {package} is missing: pip install '{PACKAGES[package]}'")


def load_model(
    path: Path,
    *,
    n_gpus: float,
    n_cpus: int = 1,
    dtype: str = "auto",
    load_in_4bit: bool = False,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """Load a model from its directory on its device, and its tokenizer.

    ``n_gpus`` is 0 for a CPU with ``n_cpus`` threads, up to 1 for the first GPU that is visible, above for all of them.
    ``dtype`` is a name of torch, or ``auto``: the model's own on a GPU, on a CPU bfloat16 if it computes in it, else
    float32. In 4 bits (NF4) it is quantised by bitsandbytes.

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

    if n_gpus and not torch.cuda.is_available():
        raise ConfigError(f"gpus is {n_gpus:g} but torch sees no GPU: set gpus to 0, or install a torch with CUDA")
    if not n_gpus:
        torch.set_num_threads(n_cpus)
        # On a CPU, torch's own handling of grouped heads takes ten times as long per token as the library's packing.
        sdpa_attention.use_gqa_in_sdpa = lambda *_: False
    chosen: Any = "auto"
    if dtype != "auto":
        chosen = getattr(torch, dtype)
    elif not n_gpus:
        has = torch.cpu.get_capabilities()
        chosen = torch.bfloat16 if has.get("avx512_bf16") or has.get("amx_bf16") else torch.float32
    kwargs: dict[str, Any] = {"dtype": chosen}
    if load_in_4bit:
        kwargs["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16 if chosen == "auto" else chosen,
        )
    if n_gpus > 1:
        kwargs["device_map"] = "auto"
    elif load_in_4bit:
        kwargs["device_map"] = {"": "cuda:0" if n_gpus else "cpu"}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=trust_remote_code, **kwargs)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"{path} cannot be loaded as a causal language model: {error}") from error
    if not tokenizer.is_fast:
        raise ConfigError(f"{path} has no fast tokenizer (tokenizer.json), which a schema needs: name another model")
    if "device_map" not in kwargs and n_gpus:
        model = model.to("cuda:0")
    return model, tokenizer
