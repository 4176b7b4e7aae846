"""LoRA adapters of a vLLM deployment: the room they need, and whether they fit its model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kohaku_ray.config.deployments import VllmConfig
from kohaku_ray.config.paths import is_directory
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import model_directory

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's ``max_lora_rank``."""

USUAL_RANK = 16
"""Room for an adapter whose rank is not known here: vLLM's default."""

_READS_HIDDEN = re.compile(r"\.layers\.\d+\..*\.(?:q|k|v|gate|up)_proj\.lora_A\.weight$")
"""Matrices as wide as the model's hidden state."""


def least_max_loras(deployment: VllmConfig) -> int:
    """Return ``max_loras`` with a place for every adapter.

    On CPUs the last place stays empty: where calls with and without an adapter share a step, vLLM (0.29) computes those
    without by the last place's weights.
    """
    return len(deployment.adapters) + (deployment.cpus is not None)


def room_for_ranks(deployment: VllmConfig) -> int:
    """Return ``max_lora_rank``: the least one that all adapters fit whose files are on this machine."""
    paths = map(_directory, deployment.adapters.values())
    most = max(USUAL_RANK if path is None else _rank(path) for path in paths)
    return next(rank for rank in RANKS if rank >= most)


def describe_adapters(deployment: VllmConfig) -> str:
    """List a deployment's adapters with their rank, as far as it is known here."""
    found = {name: _directory(source) for name, source in deployment.adapters.items()}
    return ", ".join(name if path is None else f"{name} (rank {_rank(path)})" for name, path in found.items())


def check_adapters(deployment: VllmConfig, base: Path | None) -> None:
    """Check that a deployment's adapters are there and fit its model; one that is on a hub alone is not read.

    Args:
        deployment: Adapters and model.
        base: The model's config.json; None: it is not here, and sizes are not compared.

    Raises:
        ConfigError: An adapter is missing, cannot be served or is one of another model.
    """
    for name, source in deployment.adapters.items():
        try:
            path = _directory(source)
            if path is not None:
                _rank(path)
                _check_base(path, deployment.model, base)
        except ConfigError as error:
            raise ConfigError(f"adapters.{name}: {error}") from None


def _directory(source: str) -> Path | None:
    """Find an adapter's directory; None: it is on a hub, and was not downloaded to this machine."""
    if not is_directory(source):
        try:
            return model_directory(source, None)
        except ConfigError:
            return None
    path = Path(source)
    if not (path / "adapter_config.json").is_file():
        what = "has no adapter_config.json" if path.is_dir() else "is not there"
        raise ConfigError(f"{source} {what}: name a directory that PEFT has saved a LoRA adapter in")
    return path


def _settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((path / "adapter_config.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}/adapter_config.json cannot be read: {error}") from None


def _rank(path: Path) -> int:
    """Return an adapter's rank, which vLLM must be able to serve."""
    settings = _settings(path)
    kind, rank = settings.get("peft_type", "LORA"), settings.get("r")
    if kind != "LORA" or not isinstance(rank, int) or not 1 <= rank <= RANKS[-1]:
        raise ConfigError(
            f"{path} is an adapter of type {kind} with rank {rank}, but vLLM serves LoRA of at most rank {RANKS[-1]}"
        )
    return rank


def _check_base(path: Path, model: str, base: Path | None) -> None:
    """Refuse an adapter of a model of another size, whose matrices vLLM may take without a word."""
    file = path / "adapter_model.safetensors"
    if base is None or not file.is_file():
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            named = [name for name in tensors.keys() if _READS_HIDDEN.search(name)]  # noqa: SIM118
            widths = {tensors.get_slice(name).get_shape()[1] for name in named}
        config = json.loads(base.read_text())
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    width = (config.get("text_config") or config).get("hidden_size")
    if widths and width is not None and width not in widths:
        theirs = _settings(path).get("base_model_name_or_path") or "another model"
        raise ConfigError(
            f"{path} is an adapter of {theirs} (hidden size {max(widths)}) but model is {model} (hidden size {width}): "
            "name one of this model"
        )
