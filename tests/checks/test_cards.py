"""A model that no GPU of a cluster holds is refused with both sizes before anything starts."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray.checks import cards
from kohaku_ray.checks.cards import weight_bytes
from kohaku_ray.checks.demand import Encoders, answer_demand, check_demand, index_demand
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError

GIB = 1 << 30


def save_header(path: Path, **tensors: tuple[str, int]) -> None:
    """Write the head of a safetensors file, which is all that is read: the numbers' format and bytes by name."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, n_bytes) in tensors.items():
        header[name], offset = (
            {"dtype": dtype, "shape": [1], "data_offsets": [offset, offset + n_bytes]},
            offset + n_bytes,
        )
    text = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.fixture
def model(tmp_path) -> str:
    """A model of 70 billion numbers, in two files."""
    for part in (1, 2):
        save_header(tmp_path / "m" / f"model-{part}.safetensors", w=("BF16", 65 * GIB))
    save_header(tmp_path / "m" / "consolidated.safetensors", w=("BF16", 130 * GIB))
    names = {f"w{part}": f"model-{part}.safetensors" for part in (1, 2)}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return str(tmp_path / "m")


def test_weights_are_read_from_the_headers_of_the_files_that_are_loaded(model, tmp_path):
    assert weight_bytes(model, None) == 130 * GIB
    assert weight_bytes(model, None, 4) == 260 * GIB
    save_header(tmp_path / "q" / "model.safetensors", scale=("F32", 8), w=("I32", 100))
    assert weight_bytes(str(tmp_path / "q"), None, 2) == 104, "packed numbers stay as they are"
    assert weight_bytes(str(tmp_path / "none"), None) is None
    (tmp_path / "q" / "model.safetensors").write_bytes(b"no header")
    assert weight_bytes(str(tmp_path / "q"), None) is None


def node(kind: str | None, gpus: float = 8, **resources: float) -> dict[str, float]:
    return {"CPU": 64.0, "GPU": gpus, **({} if kind is None else {f"accelerator_type:{kind}": 1.0}), **resources}


def served(model: str, *overrides: str):
    settings = ", ".join([f"kind: vllm, model: {model}", *overrides])
    return load_config(None, [f"deployments.big={{{settings}}}", "model=big"])


def test_a_model_too_large_for_its_gpus_is_refused_with_both_sizes(model):
    demand = answer_demand(served(model))
    with pytest.raises(
        ConfigError,
        match=r"a replica of big needs 130\.0 GiB of a GPU for its weights but of the largest GPU, of at most 94 GiB, "
        r"it gets at most 86\.5 GiB: raise tensor_parallel, or use larger GPUs",
    ):
        check_demand(demand, node("H100"), nodes=[node("H100"), node("L4")])
    check_demand(answer_demand(served(model, "tensor_parallel: 2")), node("H100"), nodes=[node("H100")])
    on_l4 = served(model, "tensor_parallel: 4", "resources: {small: 0.001}")
    nodes = [node("H100"), node("L4", small=1)]
    with pytest.raises(ConfigError, match=r"needs 32\.5 GiB .* for its part of 130\.0 GiB of weights on 4 GPUs but"):
        check_demand(answer_demand(on_l4), node("H100", 16, small=1), nodes=nodes)


@check_rows(
    ("kind", "gib", "largest"),
    [
        ("A100", 61, "79.2"),  # a model of 32 billion numbers in bfloat16
        ("H100", 80, "94"),
        ("H20", 110, "139.8"),
    ],
)
def test_a_type_with_several_sizes_refuses_only_what_the_largest_does_not_hold(tmp_path, kind, gib, largest):
    def check(gib: int) -> str:
        save_header(tmp_path / "m" / "model.safetensors", w=("BF16", gib * GIB))
        return cards.too_small(cards.deployment_needs(served(f"{tmp_path}/m").deployments), [node(kind)])

    assert check(gib) == ""
    assert f"of the largest GPU, of at most {largest} GiB, it gets at most " in check(2 * gib)


def test_a_size_that_a_node_names_beside_rays_own_type_counts(model):
    small, large = (node("A100", **{f"accelerator_type:A100-{size}G": 1.0}) for size in (40, 80))
    needs = cards.deployment_needs(served(model, "tensor_parallel: 2").deployments)
    assert "of at most 39.4 GiB" in cards.too_small(needs, [small])
    assert cards.too_small(needs, [large]) == ""


SIZES = {"Qwen3-8B": 8.19e9, "Llama-3.1-8B": 8.03e9, "Qwen2.5-7B": 7.62e9, "Qwen3-VL-8B": 8.77e9}


@pytest.fixture
def sized(tmp_path, monkeypatch):
    """Make a model of a real one's size, and let it be the one that presets name."""

    def save(name: str) -> None:
        save_header(tmp_path / name / "model.safetensors", w=("BF16", 2 * int(SIZES[name])))
        for variable in ("KOHAKU_MODEL", "KOHAKU_CAPTION_MODEL"):
            monkeypatch.setenv(variable, f"{tmp_path}/{name}")

    return save


@pytest.mark.parametrize(
    ("preset", "name", "key"),
    [
        ("models/vllm_qwen3", "Qwen3-8B", "qwen"),
        ("models/vllm_qwen3_thinking", "Qwen3-8B", "qwen"),
        ("models/vllm_llama_8b", "Llama-3.1-8B", "llama"),
        ("models/vllm_qwen25_7b", "Qwen2.5-7B", "qwen"),
        ("models/vllm_qwen3_vl", "Qwen3-VL-8B", "eyes"),
        ("vllm", "Qwen3-8B", "qwen"),
    ],
)
@pytest.mark.parametrize("kind", ["L4", "A10G"])
def test_shipped_models_of_eight_billion_start_on_cards_of_24_gb(sized, preset, name, key, kind):
    sized(name)
    config = load_config(preset)
    deployments = {key: config.deployments[key]}
    assert cards.too_small(cards.deployment_needs(deployments), [node(kind)]) == ""
    assert "raise tensor_parallel" in cards.too_small(cards.deployment_needs(deployments), [node("T4")])


@pytest.mark.parametrize(
    "overrides",
    [
        ["engine_kwargs: {quantization: fp8}"],
        ["engine_kwargs: {load_format: dummy}"],
        ["application: running"],
        ["cpus: 4"],
    ],
)
def test_a_model_whose_size_on_a_gpu_is_not_known_is_not_refused(model, overrides):
    check_demand(answer_demand(served(model, *overrides)), node("L4"), nodes=[node("L4")])


def test_a_gpu_whose_memory_is_not_known_refuses_nothing(model):
    for other in (node(None), node("X9")):
        check_demand(answer_demand(served(model)), node("L4", 16), nodes=[node("L4"), other])


def test_an_encoder_too_large_for_its_share_is_refused(tmp_path):
    save_header(tmp_path / "e" / "model.safetensors", w=("F32", 15 * GIB))
    overrides = [f"index.encoder.model={tmp_path}/e", "index.encoder_gpus=0.5"]
    demand = index_demand(load_config("demo", overrides), Encoders(2, gpu=True))
    with pytest.raises(
        ConfigError, match=r"an encoder needs 15\.0 GiB .* of at most 22\.05 GiB, it gets at most 11\.0 GiB: "
    ):
        check_demand(demand, node("L4"), nodes=[node("L4")])
    half = load_config("demo", [*overrides, "index.encoder.precision=bfloat16"])
    check_demand(index_demand(half, Encoders(2, gpu=True)), node("L4"), nodes=[node("L4")])
    check_demand(index_demand(load_config("demo", overrides), Encoders(2, gpu=False)), node("L4"), nodes=[node("L4")])
