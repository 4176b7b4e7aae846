"""LoRA adapters before anything runs: what a role may name, what the ledger calls it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import tiny_lora
from kit.installed import needs

from kohaku_ray.checks.deployments import check_deployment
from kohaku_ray.checks.validate import validate
from kohaku_ray.config import load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.target import Target
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.models.vllm_arguments import engine_kwargs
from kohaku_ray.runs.identity import output_determinants
from kohaku_ray.settings import resolve_paths

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


@pytest.fixture
def base(tmp_path) -> str:
    """Path of a model, of which only the sizes are here."""
    path = tmp_path / "base"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**SIZES, "max_position_embeddings": 32768}))
    return str(path)


@pytest.fixture
def style(tmp_path, base) -> str:
    return tiny_lora.build(tmp_path / "style", base)


def mixed(base: str, style: str, *overrides: str):
    tiny = f"deployments.tiny={{kind: vllm, model: {base}, cpus: 1, adapters: {{style: {style}, tone: {style}}}}}"
    return load_config("demo", [tiny, "ensemble.models=[tiny, tiny + style]", "ensemble.members=3", *overrides])


def test_members_ask_one_deployment_with_and_without_an_adapter(base, style):
    config = mixed(base, style)
    assert [config.role("answer", member).model for member in range(3)] == ["tiny", "tiny + style", "tiny"]
    assert list(config.answering_deployments) == ["tiny"]
    assert list(config.answering_models) == ["tiny", "tiny + style"]
    targets = dict.fromkeys(config.used_deployments, Target("app"))
    plain, adapted, again = (models_of(config, targets, member)["answer"] for member in range(3))
    assert (plain.target, adapted.target) == (Target("app"), Target("app"))
    assert (plain.adapter, adapted.adapter, again) == (None, "style", plain)
    assert (plain.deployment, adapted.deployment) == ("tiny", "tiny + style")


def test_a_models_name_in_the_ledger_tells_its_adapter_and_the_base_keeps_its_own(base, style):
    config = mixed(base, style)
    names = {name: config.models[name].model_identity for name in ("tiny", "tiny + style", "tiny + tone")}
    bare = VllmConfig(model=base, cpus=1)
    assert names["tiny"] == bare.model_identity == f'vllm:{base} {{"engine":{{}},"revision":null,"template":{{}}}}'
    assert names["tiny + style"] != names["tiny"]
    assert names["tiny + tone"] == names["tiny + style"], "the adapter's files count, not what it is called"
    runs = [
        output_determinants(resolve_paths(mixed(base, style, f"ensemble.models={models}")), "index")
        for models in ("[tiny]", "[tiny, tiny + style]", "[tiny, tiny + tone]")
    ]
    assert runs[0] != runs[1] == runs[2]


def test_the_engine_has_room_for_every_adapter(base, style, tmp_path):
    big = tiny_lora.build(tmp_path / "big", base, r=33)
    both = VllmConfig(model=base, adapters={"style": style, "big": big})
    kwargs = engine_kwargs(both)
    assert [kwargs[name] for name in ("enable_lora", "max_loras", "max_lora_rank")] == [True, 2, 64]
    explicit = both.model_copy(update={"engine_kwargs": {"max_loras": 1, "max_lora_rank": 128}})
    assert [engine_kwargs(explicit)[name] for name in ("max_loras", "max_lora_rank")] == [1, 128]
    assert explicit.model_identity == both.model_identity
    on_cpus = both.model_copy(update={"cpus": 1})
    assert engine_kwargs(on_cpus)["max_loras"] == 3, "one place stays empty"
    tight = on_cpus.model_copy(update={"engine_kwargs": {"max_loras": 2}})
    with pytest.raises(ConfigError, match=r"tiny: engine_kwargs\.max_loras is 2 but on CPUs 2 adapters must have 3"):
        check_deployment("tiny", tight, here=False)
    low = both.model_copy(update={"engine_kwargs": {"max_lora_rank": 8}})
    with pytest.raises(
        ConfigError, match=r"the rank of \S+ is \d+ but engine_kwargs\.max_lora_rank is 8: leave it out"
    ):
        check_deployment("tiny", low, here=False)
    assert "enable_lora" not in engine_kwargs(VllmConfig(model=base))
    elsewhere = VllmConfig(model=base, adapters={"far": "org/not-downloaded"})
    assert engine_kwargs(elsewhere)["max_lora_rank"] == 16


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("ensemble.models=[tiny + stile]", r"'tiny \+ stile' but deployments has .*did you mean tiny \+ style\?"),
        ("deployments.tiny.engine_kwargs={enable_lora: true}", "engine_kwargs has enable_lora: set adapters of"),
        ("deployments.tiny.adapters={a b: /x}", r"deployments\.tiny.*adapters"),
    ],
)
def test_a_name_that_no_adapter_has_is_refused(base, style, overrides, message):
    with pytest.raises(ConfigError, match=message):
        mixed(base, style, overrides)


def refused(model: str, adapter: str) -> str:
    with pytest.raises(ConfigError, match=r"^deployments\.tiny: adapters\.style: ") as error:
        check_deployment("tiny", VllmConfig(model=model, cpus=1, adapters={"style": adapter}), here=False)
    return str(error.value)


def test_what_is_no_adapter_that_vllm_serves_is_refused(base, style, tmp_path):
    check_deployment("tiny", VllmConfig(model=base, cpus=1, adapters={"style": style}), here=False)
    assert f"{tmp_path}/none is not there" in refused(base, f"{tmp_path}/none")
    assert f"{base} has no adapter_config.json" in refused(base, base)
    for settings, message in (
        ({"r": 1024}, "is 1024 but vLLM takes 512 at most"),
        ({"r": None}, "of type LORA with rank None"),
        ({"peft_type": "IA3"}, "of type IA3"),
        ({"use_dora": True, "bias": "all"}, "has use_dora, bias, which vLLM does not serve"),
    ):
        assert message in refused(base, tiny_lora.build(tmp_path / "bad", base, **settings))
    weights = Path(tiny_lora.build(tmp_path / "bad", base), "adapter_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    assert f"{weights} cannot be read" in refused(base, str(weights.parent))
    weights.unlink()
    assert "has no adapter_model.safetensors" in refused(base, str(weights.parent))
    (weights.parent / "adapter_config.json").write_text("{")
    assert "adapter_config.json cannot be read" in refused(base, str(weights.parent))


@pytest.mark.parametrize("sizes", [{"hidden_size": 128}, {"hidden_size": 32}, {"num_hidden_layers": 3}])
def test_an_adapter_of_a_model_of_another_size_is_refused_with_both_names(base, tmp_path, sizes):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**SIZES, **sizes}))
    message = refused(base, tiny_lora.build(tmp_path / "style", str(other), name="org/other"))
    assert "is an adapter of org/other (hidden size" in message
    assert f"but model is {base} (hidden size 64, 2 layers)" in message


def test_where_sizes_are_not_known_the_models_names_are_compared(style, base, tmp_path):
    named = tiny_lora.build(tmp_path / "named", base, name="org/Base")
    check_deployment("tiny", VllmConfig(model="mirror/base", cpus=1, adapters={"style": named}), here=False)
    assert f"{named} is an adapter of org/Base but model is org/other" in refused("org/other", named)
    renamed = tiny_lora.build(tmp_path / "renamed", base, name="org/base-bnb-4bit")
    check_deployment("tiny", VllmConfig(model=base, cpus=1, adapters={"style": renamed}), here=False)


def test_an_adapter_that_is_not_downloaded_is_refused_offline(base, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "it is org/adapter and HF_HUB_OFFLINE is set" in refused(base, "org/adapter")


@needs("vllm")
def test_validate_names_the_adapters_and_the_model_they_were_trained_on(base, style, tmp_path):
    file = tmp_path / "mine.yaml"
    tiny = {"kind": "vllm", "model": "./base", "cpus": 1, "adapters": {"style": "./style"}}
    file.write_text(json.dumps({"base": "demo", "model": "tiny + style", "deployments": {"tiny": tiny}}))
    lines = validate(load_config(str(file))).lines
    assert f"deployments.tiny: vllm, {base}, adapters style (rank 4, of {base})" in lines
    Path(style, "adapter_config.json").unlink()
    findings = validate(load_config(str(file)))
    assert f"deployments.tiny: vllm, {base}" in findings.lines
    assert [item for item in map(str, findings.problems) if "has no adapter_config.json" in item] == [
        f"deployments.tiny: adapters.style: {style} has no adapter_config.json: name a directory that PEFT has saved a "
        "LoRA adapter in"
    ]
