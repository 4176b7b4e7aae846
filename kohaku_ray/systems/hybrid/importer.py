"""Read the flat configuration of hybrid's users: a YAML mapping, or a ``.env`` file of the same names in capitals.

======================  ================================================================================
theirs                  here
======================  ================================================================================
a setting of hybrid     ``hybrid.`` and its name
llm_model               ``deployments.llm.model``, an OpenAI-compatible server; ``roles.answer.model: llm``
llm_base_url            ``deployments.llm.base_url``; without it, an Ollama server on this machine
llm_temperature         ``roles.answer.temperature``
llm_max_tokens          ``roles.answer.max_tokens``
expansion_temperature   ``roles.expand.temperature``; likewise ``expansion_top_p``, ``expansion_max_tokens``
cross_encoder_model     ``deployments.ranker.model``; ``hybrid.cross_encoder: ranker``
embedding_model         ``index.encoder.model``
sentence_split          ``documents.sentence_split``
chunk_size              ``index.chunks.size``; likewise ``chunk_overlap``
======================  ================================================================================

Anything else is named with the reason why it is left out; values are never repeated, for they may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from kohaku_ray.errors import did_you_mean
from kohaku_ray.systems.hybrid.settings import HybridSettings

OLLAMA = "http://127.0.0.1:11434/v1"
"""Where an Ollama server listens, unless told otherwise."""

_LONGEST_SCALAR = 40  # a longer text is no number and no truth value
_SECRET = re.compile(r"key|token$|secret|password", re.IGNORECASE)

_PLACES: Mapping[str, str] = {
    **{name: f"hybrid.{name}" for name in HybridSettings.model_fields},
    "llm_model": "deployments.llm.model",
    "llm_base_url": "deployments.llm.base_url",
    "llm_temperature": "roles.answer.temperature",
    "llm_max_tokens": "roles.answer.max_tokens",
    "expansion_temperature": "roles.expand.temperature",
    "expansion_top_p": "roles.expand.top_p",
    "expansion_max_tokens": "roles.expand.max_tokens",
    "cross_encoder_model": "deployments.ranker.model",
    "embedding_model": "index.encoder.model",
    "sentence_split": "documents.sentence_split",
    "chunk_size": "index.chunks.size",
    "chunk_overlap": "index.chunks.overlap",
}
NAMES = frozenset(_PLACES)
"""Every name that has a meaning here."""

_WITH: Mapping[str, Mapping[str, Any]] = {
    "llm_model": {
        "roles.answer.model": "llm",
        "deployments.llm.kind": "openai",
        "deployments.llm.base_url": OLLAMA,
        "deployments.llm.api_key_env": None,
    },
    "cross_encoder_model": {"hybrid.cross_encoder": "ranker", "deployments.ranker.kind": "cross_encoder"},
}
"""What else a key sets, unless another one does."""


def translate(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Translate a flat configuration into keys of ours.

    Args:
        values: Names in any case; text values, as of a ``.env`` file, are read as YAML.

    Returns:
        Dotted keys with their values, ``system: hybrid`` first; and by key what is left out, with the reason.
    """
    keys: dict[str, Any] = {}
    implied: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    names = {str(key).strip().lower() for key in values}
    for key, value in values.items():
        name = str(key).strip().lower()
        if reason := _why_not(name, names):
            left_out[str(key)] = reason
            continue
        keys[_PLACES[name]] = _read(value)
        implied |= _WITH.get(name, {})
    return {"system": "hybrid", **implied, **keys}, left_out


def _why_not(name: str, names: set[str]) -> str:
    if name in _PLACES:
        lacks_model = name == "llm_base_url" and "llm_model" not in names
        return "it says something only with llm_model" if lacks_model else ""
    if _SECRET.search(name):
        return "a key stands in the environment variable that deployments.*.api_key_env names, never in a file"
    return f"it has no meaning here{did_you_mean(name, _PLACES)}"


def _read(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > _LONGEST_SCALAR:
        return value
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return read if read is None or isinstance(read, (bool, int, float)) else value
