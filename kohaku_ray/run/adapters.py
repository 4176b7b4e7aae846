"""LoRA adapters of a vLLM deployment: the room they need, and whether they fit its model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kohaku_ray.config.deployments import VllmConfig
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import model_directory
from kohaku_ray.settings import is_model_path

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
    paths = map(_directory, deployment.adapters.values())
    most = max(USUAL_RANK if path is None else _rank(path) for path in paths)
    return next(rank for rank in RANKS if rank >= most)


def describe_adapters(deployment: VllmConfig) -> str:
    """List a deployment's adapters with their rank and the model they were trained on, as far as is known here."""
    said = []
    for name, source in deployment.adapters.items():
        path = _directory(source)
        known = "" if path is None else f" (rank {_rank(path)}, of {_base(_settings(path)) or 'a model not named'})"
        said.append(name + known)
    return ", ".join(said)


def check_adapters(deployment: VllmConfig, base: Path | None) -> None:
    """Check that a deployment's adapters are there and fit its model; one that is on a hub alone is not read.

    Args:
        deployment: Adapters and model.
        base: The model's config.json; None: it is not here, and only names are compared.

    Raises:
        ConfigError: An adapter is missing, cannot be served or is one of another model; too little room for them.
    """
    places, least = deployment.engine_kwargs.get("max_loras"), least_max_loras(deployment)
    if deployment.cpus is not None and places is not None and places < least:
        raise ConfigError(
            f"engine_kwargs.max_loras is {places} but {len(deployment.adapters)} adapters on CPUs need {least}, one of "
            "them empty, as vLLM's CPU engine would else mix up replies: leave it out"
        )
    for name, source in deployment.adapters.items():
        try:
            path = _directory(source)
            if path is not None:
                rank, room = _rank(path), deployment.engine_kwargs.get("max_lora_rank")
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


def _directory(source: str) -> Path | None:
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


def _settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((path / "adapter_config.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}/adapter_config.json cannot be read: {error}") from None


def _base(settings: Mapping[str, Any]) -> str:
    return str(settings.get("base_model_name_or_path") or "")


def _rank(path: Path) -> int:
    """Return an adapter's rank; refuses what vLLM cannot serve."""
    settings = _settings(path)
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
    theirs, layers, widths = _base(_settings(path)), set(), set()
    for name, shape in _shapes(path).items():
        if "vision" not in name and "visual" not in name and (found := _READS_HIDDEN.search(name)):
            layers.add(int(found[1]))
            widths.add(int(shape[1]))
    width, n_layers = (None, None) if base is None else _sizes(base)
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


def _sizes(config_file: Path) -> tuple[int | None, int | None]:
    try:
        config = json.loads(config_file.read_text())
    except (OSError, ValueError):
        return None, None
    config = config.get("text_config") or config
    return config.get("hidden_size"), config.get("num_hidden_layers")
