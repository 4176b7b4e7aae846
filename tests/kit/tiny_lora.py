"""A random LoRA adapter of a tiny Llama, in the files that PEFT writes, and the model that it makes of its base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RANK, ALPHA = 4, 8
MODULES = ("q_proj", "v_proj")


def build(path: Path, model: str, *, name: str | None = None, seed: int = 0, **settings: Any) -> str:
    """Save an adapter of a model whose config.json is there; ``settings`` go into adapter_config.json."""
    import numpy as np
    from safetensors.numpy import save_file

    config = json.loads(Path(model, "config.json").read_text())
    hidden, rng = config["hidden_size"], np.random.default_rng(seed)
    out = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module in MODULES:
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            sizes = {"A": (RANK, hidden), "B": (out[module] * config["head_dim"], RANK)}
            for matrix, size in sizes.items():
                weights[f"{prefix}.lora_{matrix}.weight"] = rng.normal(0.0, 0.4, size).astype(np.float32)
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights, path / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    fields |= {"target_modules": list(MODULES), "base_model_name_or_path": name or model, **settings}
    (path / "adapter_config.json").write_text(json.dumps(fields))
    return str(path)


def merge(model: Any, adapter: str) -> None:
    """Add an adapter to the weights of a model of transformers: W + alpha / r * B A (Hu et al. 2021)."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(f"{adapter}/adapter_model.safetensors")
    with torch.no_grad():
        for name in sorted(name for name in weights if name.endswith("lora_A.weight")):
            target = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
            change = weights[name.replace("lora_A", "lora_B")] @ weights[name]
            model.get_parameter(target).add_(ALPHA / RANK * change)
