"""Write docs/configuration.md from the schema: every key with its type, bounds, default, meaning and an example.

    python scripts/make_configuration_page.py [--check]     # --check: exit code 1 if the page is not up to date

Examples are values that a preset of `configs/` sets; for other keys they follow from the type.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from kohaku_ray.config import schema, sections
from kohaku_ray.documents.settings import DocumentsConfig
from kohaku_ray.ensemble import settings as ensemble
from kohaku_ray.index import settings as index
from kohaku_ray.models.backend import PriceConfig
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.openai import BatchConfig, OpenAIConfig
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.settings import Settings, read_meanings
from kohaku_ray.sweep import load as sweep_schema
from kohaku_ray.systems.base import RoleConfig
from kohaku_ray.systems.offline import ExtractiveConfig
from kohaku_ray.systems.questions import QuestionsConfig
from kohaku_ray.systems.registry import find_system, system_names

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
HEAD = """\
# Configuration

Generated from the schema by `python scripts/make_configuration_page.py`; a test fails if it is out of date.

- `--set a.b=c` sets any key on the command line. An unknown key answers "did you mean".
- `base: NAME` or `base: [NAME, …]` puts presets or files under a file; later ones win. `--with NAME` adds one.
- Relative paths in a file are relative to that file; those of presets and of `--set`, to the working directory.
- `${NAME}` and `${NAME:-default}` are environment variables. Their values are never written to a file or message.
- "None" in a meaning is `null` in a file.
- `kohaku-ray validate CONFIG --settings` prints every setting of a configuration, defaults included.
"""
KINDS = {
    "extractive": ExtractiveConfig,
    "openai": OpenAIConfig,
    "vllm": VllmConfig,
    "transformers": TransformersConfig,
    "cross_encoder": CrossEncoderConfig,
}
TEXTS = {
    "address": "auto",
    "accelerator": "H100",
    "api_key_env": "MY_API_KEY",
    "application": "shared-models",
    "base_url": "http://127.0.0.1:8000/v1",
    "by": "split",
    "cross_encoder": "ranker",
    "identity": "my-model-2026-01",
    "factory": "IVF1024,Flat",
    "indexes": "runs/sweeps/indexes",
    "metadata": "docs/metadata.csv",
    "model": "/models/big",
    "name": "depth",
    "output": "runs/sweeps/mine",
    "passage_prompt": "passage: ",
    "paper": "Table 1, Figure 10",
    "prompts": "my_prompts",
    "query_prompt": "query: ",
    "reasoning_end": "</think>",
    "revision": "main",
    "strata": r"(.+)_run\d+",
    "project": "water",
    "title": "Depth and rerank",
    "tokenizer": "/models/big",
    "window": "7d",
    "uri": "sqlite:///runs/mlflow.db",
}
"""Examples of texts that no preset sets."""
VALUES: dict[str, Any] = {
    "axes": {"kohaku.top_k": [4, 8, 16]},
    "base": ["paper", "my.yaml"],
    "cells": [{"kohaku.top_k": 4}, {"kohaku.top_k": 16}],
    "extra_body": {"truncate_prompt_tokens": 512},
    "env": {"VLLM_CPU_KVCACHE_SPACE": "4"},
    "headers": {"api-key": "${AZURE_KEY}"},
    "engine_kwargs": {"gpu_memory_utilization": 0.85},
    "files": ["runs/*.csv"],
    "prefer": ["encoders/jina_v3"],
    "adapters": {"physics": "/adapters/physics"},
    "resources": {"replica_node": 0.001},
    "models": ["big", "other"],
    "set": {"kohaku.rerank": "none"},
    "show": ["snippets", "tokens"],
    "waves": [3, 1, 1],
}
"""Examples of lists and mappings that no preset sets."""


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE} is not what the schema says: run python scripts/make_configuration_page.py", file=sys.stderr)
        return 1
    return 0


def page() -> str:
    """Return the page's text."""
    parts = [HEAD]
    for title, prefix, section in every_section():
        rows = [_row(prefix, *entry) for entry in keys(section)]
        if rows:
            head = ["| key | type | default | meaning | example |", "|---|---|---|---|---|"]
            parts.append("\n".join([f"## {title}", "", summary(section), "", *head, *rows, ""]))
    return "\n".join(parts)


def every_section() -> Iterator[tuple[str, str, type[Settings]]]:
    """Yield every section's title, its place in a file and its class, in the order of the page."""
    yield "Top level", "", schema.Config
    for title, section in {
        "documents": DocumentsConfig,
        "questions": QuestionsConfig,
        "index": index.IndexConfig,
        "index.encoder": index.EncoderConfig,
        "index.encoder, kind openai": index.EndpointConfig,
        "index.bm25": index.Bm25Config,
        "index.chunks": index.Chunks,
    }.items():
        yield title, f"{title.partition(',')[0]}.", section
    for name in system_names():
        yield f"{name}", f"{name}.", find_system(name).settings
    yield "roles.NAME", "roles.answer.", RoleConfig
    yield "ensemble", "ensemble.", ensemble.EnsembleConfig
    yield "ensemble.vote", "ensemble.vote.", ensemble.VoteRule
    for kind, section in KINDS.items():
        yield f"deployments.NAME, kind {kind}", "deployments.big.", section
    yield "deployments.NAME.batch", "deployments.big.batch.", BatchConfig
    yield "deployments.NAME.price", "deployments.big.price.", PriceConfig
    yield "budget", "budget.", sections.BudgetConfig
    yield "ledger", "ledger.", sections.LedgerConfig
    yield "cluster", "cluster.", sections.ClusterConfig
    yield "cluster.retriever", "cluster.retriever.", sections.RetrieverConfig
    yield "tracking", "tracking.", sections.TrackingConfig
    yield "A sweep's file", "", sweep_schema.SweepConfig
    yield "A sweep's race", "race.", sweep_schema.RaceConfig
    yield "A sweep's tables", "tables.", sweep_schema.TableConfig
    yield "A table's pool", "pool.", sweep_schema.PoolConfig


def summary(section: type[Settings]) -> str:
    """Return the first paragraph of a section's docstring."""
    return " ".join((section.__doc__ or "").split("\n\n")[0].split())


def keys(section: type[Settings]) -> Iterator[tuple[str, Mapping[str, Any], bool, type[Settings]]]:
    """Yield each key that holds a value: its name, its JSON schema, whether it must be given, its section.

    Raises:
        ValueError: A key has no meaning: write a docstring under it.
    """
    described, told = section.model_json_schema(), read_meanings(section)
    for name, entry in described["properties"].items():
        if name in ("kind", "settings") or "$ref" in str({**entry, "default": None}):
            continue
        if not told.get(name):
            raise ValueError(f"{section.__name__}.{name} has no meaning: write a docstring under it")
        yield name, {**entry, "description": told[name]}, name in described.get("required", ()), section


def _row(prefix: str, name: str, entry: Mapping[str, Any], needed: bool, section: type[Settings]) -> str:
    default = "must be given" if needed else _code(entry.get("default", {} if "object" in str(entry) else None))
    given = example(prefix + name, entry, section)
    cells = (f"`{name}`", _type(entry), default, entry["description"], f"`{name}: {_flow(given)}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def example(key: str, entry: Mapping[str, Any], section: type[Settings]) -> Any:
    """Return a value that the key takes: a preset's, or else one that differs from the default."""
    name, default = key.rpartition(".")[2], entry.get("default")
    if key in _PRESETS and _PRESETS[key] != default:
        return _PRESETS[key]
    if name in TEXTS | VALUES:
        return {**TEXTS, **VALUES}[name]
    options = [option for option in entry.get("anyOf", [entry]) if option.get("type") != "null"]
    kind = options[0]
    if "enum" in kind:
        return next((value for value in kind["enum"] if value != default), default)
    if "const" in kind:
        return kind["const"]
    if kind.get("type") == "boolean":
        return not default
    if kind.get("type") in ("integer", "number"):
        return _number(default, kind)
    return default


def _number(default: Any, kind: Mapping[str, Any]) -> Any:
    at_least = kind.get("minimum", kind.get("exclusiveMinimum", 0))
    default = default if isinstance(default, (int, float)) else at_least
    value = default * 2 or 1
    most = kind.get("maximum")
    value = value if most is None or value <= most else round(default / 2, 3)
    return int(value) if kind["type"] == "integer" else float(value)


def _type(entry: Mapping[str, Any]) -> str:
    return " or ".join(_kind(option) for option in entry.get("anyOf", [entry]))


def _kind(option: Mapping[str, Any]) -> str:
    if "enum" in option or "const" in option:
        return " · ".join(f"`{value}`" for value in option.get("enum", [option.get("const")]))
    if option.get("type") == "array":
        return f"list of {_kind(option.get('items', {})) or 'values'}"
    names = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    names |= {"object": "mapping", "null": "null"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    written = [f"{sign} {option[bound]:g}" for bound, sign in bounds.items() if bound in option]
    return " ".join([names.get(option.get("type", ""), "any value"), ", ".join(written)]).strip()


def _code(value: Any) -> str:
    return f"`{_flow(value)}`"


def _flow(value: Any) -> str:
    if isinstance(value, str) and value and not any(sign in value for sign in ":{}[],&*#?|<>=!%@`\\\"'"):
        return value
    return json.dumps(value, ensure_ascii=False)


def _preset_values() -> dict[str, Any]:
    """Return what presets set, by dotted key; deployments under the name `big`."""
    sections: dict[str, Any] = {}
    files = sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("configs/models/*.yaml"), *ROOT.glob("configs/enc*/*")])
    for file in files:
        for key, value in _leaves(yaml.safe_load(file.read_text(encoding="utf-8")) or {}):
            parts = key.split(".")
            if parts[0] == "deployments" and len(parts) > 1:
                parts[1] = "big"
            if "${" not in str(value) and key != "base":
                sections.setdefault(".".join(parts), value)
    return sections


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")


_PRESETS = _preset_values()

if __name__ == "__main__":
    sys.exit(main())
